"""The counter: read the next admission number and the last stored time when a store is opened.

Keyrun never uses an admission number twice, because records are found by it and the idempotency
keys of steps are derived from it. If the counter is damaged, the highest number of any record gives
the next one, with a margin for runs that were removed.
"""

from time import time

from keyrun.runtime.logger import logger
from keyrun.runtime.records.damage import DAMAGE, rows
from keyrun.runtime.records.tables import Ledger, number_at

SPARE = 1_000_000
"""Numbers that are skipped if the counter is lost. The latest runs may have left no record, and
their numbers must not be used again."""

_BY_NUMBER = ("runs", "status", "journal", "begun", "memo", "reports", "dead", "outbox")
_BY_TIME = ("delayed", "ended", "answered")


async def stored_counter(ledger: Ledger) -> int:
    """Return the next admission number."""
    try:
        fields = await ledger.get("counter", ledger.name("next"))
    except DAMAGE as error:
        counter = await _highest(ledger) + SPARE
        logger.error(
            "the counter of admission numbers cannot be read and continues at %d: %s",
            counter,
            error,
            extra={"event": "counter_lost"},
        )
        return counter
    return 1 if fields is None else int(fields[0])


async def stored_clock(ledger: Ledger) -> tuple[float, float]:
    """Return the time that an earlier process stored last, and the seconds by which its wall clock
    was behind that time. Return zeros if the store does not say."""
    try:
        fields = await ledger.get("counter", ledger.name("clock"))
        # Earlier versions did not store the second field.
        time, behind = (*(fields or ()), 0.0, 0.0)[:2]
        return float(time), float(behind)
    except DAMAGE as error:
        logger.error(
            "the stored time cannot be read, so the wall clock is used: %s",
            error,
            extra={"event": "counter_lost"},
        )
        return 0.0, 0.0


async def stored_epoch(ledger: Ledger) -> int:
    """Return the number of the last owner."""
    try:
        fields = await ledger.get("counter", ledger.name("epoch"))
    except DAMAGE as error:
        # Seconds since 1970 are more than the number of opens of any store.
        epoch = int(time())
        logger.error(
            "the number of the last owner cannot be read, %d is used: %s",
            epoch,
            error,
            extra={"event": "counter_lost"},
        )
        return epoch
    return 0 if fields is None else int(fields[0])


async def _highest(ledger: Ledger) -> int:
    """Return the highest number of any record or place of a run."""
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
