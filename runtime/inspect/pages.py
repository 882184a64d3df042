"""Pages of listings, and the cursors that lead from one page to the next.

A cursor is the place in the index of the last item that its page looked at. It stays valid if that
item is removed.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import attrs

from keyrun.runtime.inspect.slices import PageBudget
from keyrun.runtime.texts import brief
from keyrun.runtime.values import RunStatus

if TYPE_CHECKING:
    from keyrun.runtime.records.tables import Ledger

T = TypeVar("T")


@attrs.frozen(kw_only=True)
class RunPage:
    """Hold one page of a listing of runs."""

    runs: tuple[RunStatus, ...]
    """The runs that match. There may be fewer than `limit`, or none, although there are more pages:
    a page ends when it has read some thousand records."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""
    examined: int
    """The number of runs that Keyrun looked at for this page."""
    examined_until: float | None
    """When the last of these runs was submitted, in seconds since the epoch. None if the page
    looked at no run, or if that run cannot be read."""


def write_cursor(kind: str, place: bytes) -> str:
    """Return the cursor of a place in the index of a listing. `kind` names the listing."""
    return urlsafe_b64encode(kind.encode() + b":" + place).decode().rstrip("=")


def read_cursor(kind: str, cursor: str | None) -> bytes | None:
    """Return the place that `write_cursor` wrote. Raise ValueError for any other text."""
    if cursor is None:
        return None
    if not isinstance(cursor, str):
        raise TypeError(f"cursor must be a string or None, got {cursor!r}")
    try:
        raw = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
    except ValueError:
        raw = b""
    written, colon, place = raw.partition(b":")
    if not colon or written != kind.encode():
        raise ValueError(
            f"cursor must be the cursor of a page of this listing, got {brief(cursor)}"
        )
    return place


@attrs.define
class Looked(Generic[T]):
    """The items that a walk over a table has found so far."""

    last: bytes
    """The key of the last record that was looked at."""
    found: list[T] = attrs.Factory(list)
    examined: int = 0
    more: bool = True


async def look(
    ledger: "Ledger",
    table: str,
    read: Callable[[bytes, bytes, PageBudget], Awaitable[Iterable[T]]],
    *,
    limit: int,
    prefix: bytes | None = None,
    after: bytes = b"",
) -> Looked[T]:
    """Walk over the records of a table, in slices, until `read` has returned `limit` items or
    enough records were read. `read` receives the key and the content of a record. Without a
    `prefix`, this reads all records of the namespace."""
    slices = PageBudget()
    prefix = ledger.prefix if prefix is None else prefix
    looked: Looked[T] = Looked(last=after)
    while looked.more and len(looked.found) < limit and slices.left > 0:
        slices.begin()
        start = looked.last + b"\0" if looked.last else b""
        rows = await ledger.store.scan(table, prefix=prefix, start=start, limit=slices.size)
        looked.more = len(rows) == slices.size
        slices.left -= len(rows)
        for at, (record, raw) in enumerate(rows, 1):
            looked.found += await read(record, raw, slices)
            looked.last = record
            looked.examined += 1
            if len(looked.found) >= limit or slices.left <= 0:
                looked.more = looked.more or at < len(rows)
                return looked
            await slices.pause()
        await slices.end()
    return looked


def place_after(ledger: "Ledger", kind: str, cursor: str | None) -> bytes:
    """Return the key of the record after which a page begins. Empty for the first page."""
    place = read_cursor(kind, cursor)
    return b"" if place is None else ledger.prefix + place


def cursor_of(ledger: "Ledger", kind: str, looked: Looked[Any]) -> str | None:
    """Return the cursor of the next page, or None if there is none."""
    return write_cursor(kind, looked.last[len(ledger.prefix) :]) if looked.more else None
