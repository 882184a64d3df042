"""Listings of schedules and groups, page by page, sorted by id."""

import attrs

from keyrun.actors import checks
from keyrun.runtime.errors import InvalidSchedule
from keyrun.runtime.groups.records import GroupRecord
from keyrun.runtime.inspect.pages import Looked, cursor_of, look, place_after
from keyrun.runtime.inspect.slices import RUN, PageBudget
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.schedules.records import ScheduleStatus, StoredSchedule, schedule_status
from keyrun.runtime.texts import check_text
from keyrun.storage import StoreError
from keyrun.storage.record import unseal


@attrs.frozen(kw_only=True)
class SchedulePage:
    """Hold one page of a listing of schedules."""

    schedules: tuple[ScheduleStatus, ...]
    """The schedules, sorted by id."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""


@attrs.frozen(kw_only=True)
class GroupSummary:
    """Describe a group in a listing. `rt.group_status` reads its members, too."""

    group_id: str
    """The id of the group."""
    created_at: float
    """When the group was submitted, in seconds since the epoch."""
    size: int
    """The number of members."""


@attrs.frozen(kw_only=True)
class GroupPage:
    """Hold one page of a listing of groups."""

    groups: tuple[GroupSummary, ...]
    """The groups, sorted by id."""
    cursor: str | None
    """Pass it to get the next page. None if this is the last page."""


async def find_schedules(
    statuses: StatusReader, *, limit: int = 100, cursor: str | None = None
) -> SchedulePage:
    """Return one page of the schedules."""
    checks.count("limit", limit, 1)
    after = place_after(statuses.ledger, "schedules", cursor)
    looked = await _look_at_schedules(statuses, limit, after)
    return SchedulePage(
        schedules=tuple(looked.found), cursor=cursor_of(statuses.ledger, "schedules", looked)
    )


async def schedules(
    statuses: StatusReader, *, limit: int = 100, after: str | None = None
) -> list[ScheduleStatus]:
    """Return schedules, sorted by id, from as many pages as this takes."""
    checks.count("limit", limit, 1)
    found: list[ScheduleStatus] = []
    start, more = b"" if after is None else statuses.ledger.name(check_text(after, "after")), True
    while more and len(found) < limit:
        looked = await _look_at_schedules(statuses, limit - len(found), start)
        found += looked.found
        start, more = looked.last, looked.more
    return found


async def _look_at_schedules(
    statuses: StatusReader, limit: int, after: bytes
) -> Looked[ScheduleStatus]:
    ledger = statuses.ledger

    async def read(record: bytes, raw: bytes, slices: PageBudget) -> list[ScheduleStatus]:
        slices.left -= RUN
        try:
            fields = unseal("schedules", record, raw)
            schedule = StoredSchedule.read(record[len(ledger.prefix) :].decode(), fields)
            return [await schedule_status(schedule, statuses.state)]
        except (StoreError, InvalidSchedule):
            statuses.unreadable += 1
            return []

    return await look(ledger, "schedules", read, limit=limit, after=after)


async def find_groups(
    statuses: StatusReader, *, limit: int = 100, cursor: str | None = None
) -> GroupPage:
    """Return one page of the groups."""
    checks.count("limit", limit, 1)
    ledger = statuses.ledger

    async def read(record: bytes, raw: bytes, slices: PageBudget) -> list[GroupSummary]:
        try:
            group = GroupRecord(*unseal("groups", record, raw))
            name = record[len(ledger.prefix) :].decode()
        except (*DAMAGE, TypeError, UnicodeDecodeError):
            statuses.unreadable += 1
            return []
        return [GroupSummary(group_id=name, created_at=group.created, size=group.size)]

    after = place_after(ledger, "groups", cursor)
    looked = await look(ledger, "groups", read, limit=limit, after=after)
    return GroupPage(groups=tuple(looked.found), cursor=cursor_of(ledger, "groups", looked))
