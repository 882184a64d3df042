"""Schedules as users see them: the status of one, and pages of many."""

from typing import TYPE_CHECKING

from keyrun.runtime.errors import InvalidSchedule
from keyrun.runtime.schedules.records import ScheduleStatus, StoredSchedule
from keyrun.runtime.texts import check_text
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.inspect.statuses import StatusReader


async def schedule_status(statuses: "StatusReader", schedule: StoredSchedule) -> ScheduleStatus:
    """Return the status of a schedule, with the state of the run that it started last."""
    number = schedule.last_number
    return ScheduleStatus.of(schedule, None if number is None else await statuses.state(number))


async def schedules(
    statuses: "StatusReader", limit: int, after: str | None
) -> list[ScheduleStatus]:
    """Return schedules in the order of their ids. Damaged ones are left out and counted."""
    ledger, found = statuses.ledger, list[ScheduleStatus]()
    if after is not None:
        check_text(after, "after")
    start = b"" if after is None else ledger.name(after) + b"\0"
    pages = ledger.pages("schedules", start=start, size=limit)
    while pages.more and len(found) < limit:
        pages.size = limit - len(found)
        with ledger.store.view():
            for key, raw in await pages.next():
                try:
                    fields = unseal("schedules", key, raw)
                    schedule = StoredSchedule.read(key[len(ledger.prefix) :].decode(), fields)
                    found.append(await schedule_status(statuses, schedule))
                except (StoreError, InvalidSchedule):
                    statuses.unreadable += 1
    return found
