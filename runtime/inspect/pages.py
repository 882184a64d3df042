"""Pages of listings, and the cursors that lead from one page to the next.

A cursor is the place in the index of the last item that its page looked at. It stays valid if that
item is removed.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode

import attrs

from keyrun.runtime.texts import brief
from keyrun.runtime.values import RunStatus


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
