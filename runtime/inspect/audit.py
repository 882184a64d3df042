"""The audit log: find the writes from outside that match a filter, page by page.

A page reads at most `MOST_READ` entries, in slices between which other tasks run. So a page may
have fewer entries than its limit although there are more: its cursor continues where it stopped.
"""

from math import inf

import attrs
import trio

from keyrun.actors import checks
from keyrun.runtime.inspect.pages import read_cursor, write_cursor
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.operation import AuditEntry, Write
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.texts import brief, check_text
from keyrun.storage.record import unseal

MOST_READ = 10_000
"""Entries that one page reads at most."""
SLICE = 200
"""Entries that are read before other tasks run."""
_LISTING = "audit"
_LATEST = 1e12
"""A time after all entries."""


@attrs.frozen(kw_only=True)
class AuditPage:
    """List one page of the audit log."""

    entries: tuple[AuditEntry, ...]
    """The entries that match, in the order of the log."""
    cursor: str | None
    """Pass it to the next call to continue. None at the end of the log."""
    examined_until: float | None
    """The time of the last entry that was read, in seconds since the epoch. If `cursor` is not
    None, entries beyond this time were not read. None if nothing was read."""
    unreadable: int = 0
    """The number of damaged entries that were left out."""


@attrs.frozen(kw_only=True)
class AuditFilter:
    """The conditions that a listed entry matches."""

    since: float | None
    until: float | None
    who: str | None
    operation: str | None
    run_id: str | None
    key: str | None

    def check(self) -> "AuditFilter":
        """Return the filter. Raise if a condition is invalid."""
        for name in ("who", "run_id", "key"):
            if getattr(self, name) is not None:
                check_text(getattr(self, name), name)
        for name in ("since", "until"):
            if getattr(self, name) is not None:
                checks.at_least(name, getattr(self, name), -inf)
        if self.operation is not None and self.operation not in tuple(Write):
            names = ", ".join(Write)
            raise ValueError(f"operation must be one of {names}; got {brief(self.operation)}")
        return self

    def marks(self) -> list[bytes]:
        """Return byte strings that the record of every matching entry contains."""
        texts = (self.who, self.operation, self.run_id, self.key)
        return [text.encode() for text in texts if text is not None]

    def fits(self, entry: AuditEntry) -> bool:
        """Return whether an entry of the right time matches."""
        return (
            self.who in (None, entry.who)
            and self.operation in (None, entry.operation)
            and self.run_id in (None, entry.run_id)
            and self.key in (None, entry.key)
        )


async def page_of(
    ledger: Ledger,
    wanted: AuditFilter,
    *,
    limit: int,
    cursor: str | None,
    newest_first: bool,
) -> AuditPage:
    """Return the entries that match, at most `limit`, after `cursor`."""
    checks.count("limit", limit, 1)
    wanted.check()
    marks, found, unreadable = wanted.marks(), list[AuditEntry](), 0
    start = b"" if wanted.since is None else ledger.timed(min(wanted.since, _LATEST), 0)
    stop = None if wanted.until is None else ledger.timed(min(wanted.until, _LATEST), 0)
    place = read_cursor(_LISTING, cursor)
    if place is not None:
        at = ledger.prefix + place
        start, stop = (start, at) if newest_first else (max(start, at + b"\0"), stop)
    last, read = b"", 0
    while read < MOST_READ:
        rows = await ledger.store.scan(
            "audit",
            prefix=ledger.prefix,
            start=start,
            stop=stop,
            limit=SLICE,
            reverse=newest_first,
        )
        for key, raw in rows:
            last, read = key, read + 1
            if not all(mark in raw for mark in marks):
                continue
            try:
                time = ledger.split_timed(key)[0]
                entry = AuditEntry.read(time, unseal("audit", key, raw))
            except (*DAMAGE, ValueError):
                unreadable += 1
                continue
            if wanted.fits(entry):
                found.append(entry)
                if len(found) == limit:
                    return _page(ledger, found, last, unreadable, more=True)
        if len(rows) < SLICE:
            return _page(ledger, found, last, unreadable, more=False)
        if newest_first:
            stop = last
        else:
            start = last + b"\0"
        await trio.lowlevel.checkpoint()
    return _page(ledger, found, last, unreadable, more=True)


async def entries_of(ledger: Ledger, number: int) -> list[AuditEntry]:
    """Return the entries about a run, in order."""
    found, run = [], ledger.number(number)
    async for rows in ledger.pages("audited", prefix=run, size=SLICE):
        keys = [ledger.prefix + index[len(run) :] for index, _ in rows]
        stored = await ledger.store.get_many("audit", keys)
        for key in keys:
            raw = stored.get(key)
            if raw is None:
                continue  # the entry has expired
            try:
                found.append(AuditEntry.read(ledger.split_timed(key)[0], unseal("audit", key, raw)))
            except (*DAMAGE, ValueError):
                continue
    return found


def _page(
    ledger: Ledger, found: list[AuditEntry], last: bytes, unreadable: int, *, more: bool
) -> AuditPage:
    cursor = write_cursor(_LISTING, last[len(ledger.prefix) :]) if more else None
    return AuditPage(
        entries=tuple(found),
        cursor=cursor,
        examined_until=ledger.split_timed(last)[0] if last else None,
        unreadable=unreadable,
    )
