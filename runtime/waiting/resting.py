"""Runs at rest: nobody drives them, and the store does not show yet what was changed of them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from keyrun.runtime.run import Run


class Resting(dict[int, "Run"]):
    """Such runs by their number. It knows how many there are of each key, since the line of a key
    may not be forgotten before."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: dict[str, int] = {}

    def has(self, key: str) -> bool:
        """Whether there is one of this key."""
        return key in self._keys

    def __setitem__(self, number: int, run: "Run") -> None:
        if number not in self:
            self._keys[run.key] = self._keys.get(run.key, 0) + 1
        super().__setitem__(number, run)

    def __delitem__(self, number: int) -> None:
        self._drop(self[number].key)
        super().__delitem__(number)

    def pop(self, number: int, default: Any = None) -> Any:
        """Remove one, if it is there."""
        if number in self:
            self._drop(self[number].key)
        return super().pop(number, default)

    def _drop(self, key: str) -> None:
        left = self._keys[key] - 1
        if left:
            self._keys[key] = left
        else:
            del self._keys[key]
