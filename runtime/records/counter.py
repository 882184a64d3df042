"""The counter: read the next admission number and the last stored time when a store is opened.

Keyrun never uses an admission number twice, because records are found by it and the idempotency
keys of steps are derived from it. If the counter is damaged, the highest number of any record gives
the next one, with a margin for runs that were removed.
"""

from keyrun.runtime.logger import logger
from keyrun.runtime.records.damage import DAMAGE, rows
from keyrun.runtime.records.tables import Ledger, number_at

SPARE = 1_000_000
"""Numbers that are left out where the counter is lost: of so many runs, the latest of all, may
nothing be left in the store."""

_BY_NUMBER = ("runs", "status", "journal", "begun", "memo", "reports", "dead", "outbox")
_BY_TIME = ("delayed", "ended", "answered")


async def stored_counter(ledger: Ledger) -> int:
    """The next number that may be given."""
    try:
        fields = await ledger.get("counter", ledger.name("next"))
    except DAMAGE as error:
        counter = await _highest(ledger) + SPARE
        logger.error(
            "the counter of admission numbers cannot be read, and goes on at %d: %s",
            counter,
            error,
            extra={"event": "counter_lost"},
        )
        return counter
    return 1 if fields is None else int(fields[0])


async def stored_clock(ledger: Ledger) -> tuple[float, float]:
    """Return how late it was, at least, when an earlier process last stored the time, and how far
    the wall clock was behind that; zeros where nobody knows."""
    try:
        fields = await ledger.get("counter", ledger.name("clock"))
        # Earlier versions did not store the second field.
        time, behind = (*(fields or ()), 0.0, 0.0)[:2]
        return float(time), float(behind)
    except DAMAGE as error:
        logger.error("how late it was last cannot be read, and is left to the clock: %s", error)
        return 0.0, 0.0


async def _highest(ledger: Ledger) -> int:
    """The highest number that a record of a run has, or a place."""
    highest = 0
    for table in _BY_NUMBER:
        last = await ledger.store.scan(table, prefix=ledger.prefix, limit=1, reverse=True)
        highest = max([highest, *(ledger.split_number(key)[0] for key, _ in last)])
    for table in _BY_TIME:
        async for key, _ in rows(ledger, table):
            highest = max(highest, ledger.split_timed(key)[1])
    async for key, raw in rows(ledger, "queue"):
        try:
            place = ledger.split_place(key)[1]
        except DAMAGE:
            continue
        highest = max(highest, place, number_at(key, raw, place))
    return highest
