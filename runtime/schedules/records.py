"""A schedule: what is to be run when, and how far it has come, as it is stored and as it is shown.

| table     | key                   | what                                                     |
|-----------|-----------------------|----------------------------------------------------------|
| schedules | schedule id           | the schedule                                             |
| firings   | due time, schedule id | the index that says which is next; none while it is held |
"""

import re
import struct
from typing import TYPE_CHECKING, Any, Literal, get_args

import attrs

from keyrun.runtime.errors import InvalidSchedule
from keyrun.runtime.limits import Limits
from keyrun.runtime.schedules.timetable import Every, Timetable, read_timetable, write_timetable
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import UNSET, Priority, State
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.inspect.statuses import Reading
    from keyrun.runtime.records.tables import Ledger

Misfire = Literal["fire_once", "skip"]

NEVER = float(2**43)
"""Where the index has what is not due before the store is opened again."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DUE = struct.Struct(">Q")


def check_schedule_id(schedule_id: object) -> None:
    """Raise unless `schedule_id` can be one: run ids begin with it."""
    if not isinstance(schedule_id, str) or not _ID.fullmatch(schedule_id):
        raise InvalidSchedule(
            f"a schedule id is 1 to 100 of A-Z, a-z, 0-9, '_' and '-', got {schedule_id!r}"
        )


@attrs.frozen(kw_only=True)
class Plan:
    """What somebody asked for. Two plans are equal if they would run the same in the same way."""

    workflow: str
    key: str
    input: bytes = attrs.field(eq=False, repr=False)
    digest: bytes = attrs.field(repr=False)
    headers: dict[str, str]
    tags: tuple[str, ...]
    priority: Priority
    limits: Limits
    when: Timetable = attrs.field()
    misfire: Misfire = attrs.field()
    overlap: bool

    @misfire.validator
    def _check_misfire(self, attribute: object, value: object) -> None:
        if value not in get_args(Misfire):
            raise InvalidSchedule(f"misfire must be 'fire_once' or 'skip', got {value!r}")

    @when.validator
    def _check_when(self, attribute: object, value: object) -> None:
        if not isinstance(value, Timetable):
            raise InvalidSchedule(f"when must be Once(...), Every(...) or Cron(...), got {value!r}")

    def fields(self) -> tuple[Any, ...]:
        """As they are stored."""
        given = {name: value for name, value in _limits(self.limits) if value is not UNSET}
        return (
            self.workflow,
            self.key,
            self.input,
            self.digest,
            self.headers,
            self.tags,
            int(self.priority),
            given,
            write_timetable(self.when),
            self.misfire,
            self.overlap,
        )

    @classmethod
    def read(cls, fields: list[Any]) -> "Plan":
        """The inverse of `fields`."""
        workflow, key, input_, digest, headers, tags, priority, limits, *rest = fields
        when, misfire, overlap = rest
        return cls(
            workflow=workflow,
            key=key,
            input=input_,
            digest=digest,
            headers=headers,
            tags=tuple(tags),
            priority=Priority(priority),
            limits=Limits(**limits),
            when=read_timetable(when),
            misfire=misfire,
            overlap=overlap,
        )


def _limits(limits: Limits) -> list[tuple[str, Any]]:
    return [(each.name, getattr(limits, each.name)) for each in attrs.fields(Limits)]


@attrs.frozen(kw_only=True)
class Schedule:
    """A plan and how far it has come. It never changes: the next one takes its place."""

    schedule_id: str
    plan: Plan
    created: float = 0.0
    """When its timetable began to count."""
    since: float = 0.0
    """What was due earlier is a misfire: it was made, or resumed, then."""
    next: float | None = None
    """The firing that comes next; None when there is none any more."""
    due: float | None = None
    """When to look at it: the place in the index. None while it is paused."""
    paused: bool = False
    fired: int = 0
    skipped: int = 0
    missed: int = 0
    last: float | None = None
    last_number: int | None = None
    last_run_id: str | None = None
    problem: str | None = None

    @property
    def counted(self) -> bool:
        """Whether the next firing is so many seconds after another, and not at a time that
        somebody named."""
        when = self.plan.when
        return isinstance(when, Every) and self.next is not None and self.next != when.start

    def fields(self) -> tuple[Any, ...]:
        """As they are stored."""
        return (
            self.plan.fields(),
            self.created,
            self.since,
            self.next,
            self.due,
            self.paused,
            self.fired,
            self.skipped,
            self.missed,
            self.last,
            self.last_number,
            self.last_run_id,
            self.problem,
        )

    @classmethod
    def read(cls, schedule_id: str, fields: list[Any]) -> "Schedule":
        """The inverse of `fields`."""
        plan, created, since, following, due, paused, fired, skipped, missed, *rest = fields
        last, last_number, last_run_id, problem = rest
        return cls(
            schedule_id=schedule_id,
            plan=Plan.read(plan),
            created=created,
            since=since,
            next=following,
            due=due,
            paused=paused,
            fired=fired,
            skipped=skipped,
            missed=missed,
            last=last,
            last_number=last_number,
            last_run_id=last_run_id,
            problem=problem,
        )


@attrs.frozen(kw_only=True)
class ScheduleStatus:
    """How a schedule stands. Times are seconds since the epoch, and those of firings are the ones
    of the timetable.

    `fired` counts firings that started a run, and `skipped` those at which the run before had not
    ended. `missed` counts times that passed without a firing of their own: Keyrun merged them into
    a later firing, or dropped them because of `misfire="skip"`. `problem` says why the schedule
    does not fire and requires an operator.
    """

    schedule_id: str
    workflow: str
    key: str
    when: Timetable
    misfire: Misfire
    overlap: bool
    paused: bool
    next_at: float | None
    last_at: float | None
    last_run_id: str | None
    last_state: State | None
    fired: int
    skipped: int
    missed: int
    problem: str | None

    @property
    def kind(self) -> str:
        """`once`, `every` or `cron`."""
        return str(write_timetable(self.when)[0])

    @property
    def finished(self) -> bool:
        """Whether it will not fire any more: only one that fires once can be that."""
        return self.next_at is None and not self.paused

    @classmethod
    def of(cls, schedule: Schedule, last_state: State | None) -> "ScheduleStatus":
        """The public form of what is stored."""
        plan = schedule.plan
        return cls(
            schedule_id=schedule.schedule_id,
            workflow=plan.workflow,
            key=plan.key,
            when=plan.when,
            misfire=plan.misfire,
            overlap=plan.overlap,
            paused=schedule.paused,
            next_at=None if schedule.paused else schedule.next,
            last_at=schedule.last,
            last_run_id=schedule.last_run_id,
            last_state=last_state,
            fired=schedule.fired,
            skipped=schedule.skipped,
            missed=schedule.missed,
            problem=schedule.problem,
        )


def due_key(ledger: "Ledger", due: float, schedule_id: str) -> bytes:
    """The key of a schedule in `firings`."""
    return ledger.prefix + _DUE.pack(round(due * 1e6)) + schedule_id.encode()


def split_due(ledger: "Ledger", key: bytes) -> tuple[float, str]:
    """The inverse of `due_key`."""
    at = len(ledger.prefix)
    return _DUE.unpack_from(key, at)[0] / 1e6, key[at + 8 :].decode(errors="replace")


async def show(reading: "Reading", schedule: Schedule) -> ScheduleStatus:
    """The public form, with the state of the run that was fired last."""
    number = schedule.last_number
    return ScheduleStatus.of(schedule, None if number is None else await reading.state(number))


async def page(
    ledger: "Ledger", reading: "Reading", limit: int, after: str | None
) -> list[ScheduleStatus]:
    """Schedules in the order of their ids; damaged ones are left out and counted."""
    found: list[ScheduleStatus] = []
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
                    schedule = Schedule.read(key[len(ledger.prefix) :].decode(), fields)
                    found.append(await show(reading, schedule))
                except (StoreError, InvalidSchedule):
                    reading.unreadable += 1
    return found
