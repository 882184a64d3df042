"""One empty dict, shared by all runs in place of dicts that most runs never need."""

from typing import Any, NoReturn, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class _Nothing(dict[Any, Any]):
    """A dict that stays empty."""

    __slots__ = ()

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise TypeError("this dict is shared and stays empty; use writable() before you write")

    setdefault = update = __ior__ = __setitem__  # type: ignore[assignment]


NOTHING: dict[Any, Any] = _Nothing()
"""A dict that was never written to. Each dict of a run takes time to make, and time of Python's
garbage collector."""


def writable(entries: dict[K, V]) -> dict[K, V]:
    """Return a dict with these entries that can be written to."""
    return {} if entries is NOTHING else entries
