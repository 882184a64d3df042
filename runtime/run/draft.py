"""A draft: a durable mapping as one attempt of a step sees and changes it."""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from keyrun.storage.native import INT_RANGE
from keyrun.storage.payload import PayloadCodec


class Draft(MutableMapping[str, Any]):
    """A durable mapping, as one attempt sees and changes it. Keys are strings, and values are
    anything that a payload may contain. `stored` has the mapping before the attempt, so the changes
    of the attempt can be dropped."""

    __slots__ = ("_codec", "_on_change", "stored", "values_")

    def __init__(
        self,
        codec: PayloadCodec,
        stored: bytes,
        on_change: Callable[[], None] | None = None,
        known: dict[str, Any] | None = None,
    ) -> None:
        """`known` is the decoded form of `stored`, if it is known. It is not changed."""
        self.stored = stored
        self.values_: dict[str, Any]
        if known is not None:
            self.values_ = known.copy()
        else:
            self.values_ = codec.decode(stored) if stored else {}
        self._codec = codec
        self._on_change = on_change

    def encoded(self) -> bytes:
        """Return the encoded mapping. It equals `stored` if neither the mapping nor a value in it
        was changed."""
        values = self.values_
        if not (values or self.stored):
            return b""
        encoded = self._codec.encode_flat(values)
        return self._codec.encode(values) if encoded is None else encoded

    def __getitem__(self, name: str) -> Any:
        return self.values_[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value as `dict.get` does, which is much faster than `Mapping.get`."""
        return self.values_.get(name, default)

    def __setitem__(self, name: str, value: Any) -> None:
        if not isinstance(name, str):
            raise TypeError(f"names in a durable mapping must be strings, got {name!r}")
        if type(value) is not int or value not in INT_RANGE:
            self._codec.encode(value)  # raises if the value cannot be stored
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
