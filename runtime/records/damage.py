"""Damaged runs: find what is still known of a run whose own records cannot be read.

Other records refer to the run: its id, its place in the queue of its key, the index of due times
and the index of ended runs. Finding them means reading these tables as a whole. That is slow, but
damage is rare.
"""

from collections.abc import AsyncIterator, Collection
from contextlib import suppress

import attrs

from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.records.ids import lost_id
from keyrun.runtime.records.submission import SALVAGED, Parent, Submission
from keyrun.runtime.records.tables import Ledger, number_at
from keyrun.runtime.values import Priority
from keyrun.storage import StoreCorrupt
from keyrun.storage.errors import StoreTooNew
from keyrun.storage.record import unseal

DAMAGE = (StoreCorrupt, StoreTooNew)
"""The errors for a record that cannot be read."""

PAGE = 1000


@attrs.define(kw_only=True)
class Trace:
    """The facts about a run that other records have."""

    run_id: str | None = None
    key: str | None = None
    place: int | None = None
    ended_at: float | None = None
    parent: int | None = None
    indexed: list[tuple[str, bytes]] = attrs.Factory(list)
    """Table and key of the records that give the run a time or a place."""


async def trace(ledger: Ledger, number: int) -> Trace:
    """Return what other records say about one run."""
    return (await traces(ledger, [number]))[number]


async def traces(ledger: Ledger, numbers: Collection[int]) -> dict[int, Trace]:
    """Return what other records say about these runs."""
    found = {number: Trace() for number in numbers}
    async for key, raw in rows(ledger, "ids"):
        with suppress(*DAMAGE):
            known = found.get(unseal("ids", key, raw)[0])
            if known is not None:
                known.run_id = key[len(ledger.prefix) :].decode()
    async for key, raw in rows(ledger, "queue"):
        with suppress(*DAMAGE):
            ordering_key, place = ledger.split_place(key)
            known = found.get(number_at(key, raw, place))
            if known is not None:
                known.key, known.place = ordering_key, place
                known.indexed.append(("queue", key))
    async for key, raw in rows(ledger, "children"):
        known = found.get(int.from_bytes(key[-8:], "big"))
        if known is not None:
            known.parent = ledger.split_number(key)[0]
            with suppress(*DAMAGE):
                known.run_id = known.run_id or unseal("children", key, raw)[0]
    for table in ("delayed", "timers", "ended"):
        async for key, _ in rows(ledger, table):
            time, number = ledger.split_timed(key)
            known = found.get(number)
            if known is not None:
                known.indexed.append((table, key))
                if table == "ended":
                    known.ended_at = time
    return found


async def rows(ledger: Ledger, table: str) -> AsyncIterator[tuple[bytes, bytes]]:
    """Yield the key and the undecoded value of all records of a table."""
    async for page in ledger.pages(table, size=PAGE):
        for row in page:
            yield row


def stand_in(number: int, known: Trace, raw: bytes) -> Submission:
    """Return a submission in place of one that cannot be read, with the unreadable record as its
    input."""
    return Submission(
        number=number,
        run_id=known.run_id or lost_id(number),
        key=known.key or "",
        workflow="",
        version=0,
        input=raw,
        digest=b"",
        headers={},
        tags=(),
        priority=Priority.NORMAL,
        limits=ResolvedLimits.of(),
        submitted_at=0.0,
        delay=0.0,
        origin=SALVAGED,
        parent=None if known.parent is None else Parent(known.parent, "", 0, 0),
    )
