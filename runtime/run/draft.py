"""A draft: a durable mapping as one attempt of a step sees and changes it."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from keyrun.storage.native import INT_RANGE
from keyrun.storage.payload import PayloadCodec


class Draft(MutableMapping[str, Any]):
    """A durable mapping, as one attempt sees and changes it. Keys are strings; values are whatever
    a payload may hold. `stored` is what it was made of, so that what an attempt does to it stays
    with that attempt."""

    __slots__ = ("_codec", "_on_change", "stored", "values_")

    def __init__(
        self,
        codec: PayloadCodec,
        stored: bytes,
        on_change: Callable[[], None] | None = None,
        known: dict[str, Any] | None = None,
    ) -> None:
        """`known` is what is in `stored`, where somebody knows it, and stays as it is."""
        self.stored = stored
        self.values_: dict[str, Any]
        if known is not None:
            self.values_ = known.copy()
        else:
            self.values_ = codec.decode(stored) if stored else {}
        self._codec = codec
        self._on_change = on_change

    def encoded(self) -> bytes:
        """As it is now; the same as `stored` if nothing was changed, inside its values neither."""
        values = self.values_
        if not (values or self.stored):
            return b""
        encoded = self._codec.encode_flat(values)
        return self._codec.encode(values) if encoded is None else encoded

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def get(self, name: str, default: Any = None) -> Any:
        """As that of a dict, which is much faster than that of a mapping."""
        return self.values_.get(name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"names in a durable mapping are strings, got {name!r}")
        if type(value) is not int or value not in INT_RANGE:
            self._codec.encode(value)  # what cannot be stored is refused where it is put in
        self.values_[name] = value
        if self._on_change is not None:
            self._on_change()

    def __delitem__(self, name: str) -> None:
        del self.values_[name]
        if self._on_change is not None:
            self._on_change()

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_)

    def __len__(self) -> int:
        return len(self.values_)

    def __repr__(self) -> str:
        return f"Draft({self.values_!r})"
