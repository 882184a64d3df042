"""The public status of schedules, and their records in the store.

| table     | key                   | contents                                                    |
|-----------|-----------------------|-------------------------------------------------------------|
| schedules | schedule id           | the schedule                                                |
| firings   | due time, schedule id | the index of the next firings, without paused schedules     |
"""

import re
import struct
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

import attrs

from keyrun.runtime.errors import InvalidSchedule
from keyrun.runtime.limits import Limits
from keyrun.runtime.schedules.timetable import Every, Timetable, read_timetable, write_timetable
from keyrun.runtime.values import UNSET, Priority, State

if TYPE_CHECKING:
    from keyrun.runtime.records.tables import Ledger

Misfire = Literal["fire_once", "skip"]

NEVER = float(2**43)
"""The due time in the index of a schedule that cannot fire before the store is opened again."""

_SHOWN = 5
"""The next firings that a status has."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DUE = struct.Struct(">Q")


def check_schedule_id(schedule_id: object) -> None:
    """Raise `InvalidSchedule` unless `schedule_id` can be one. Run ids begin with it."""
    if not isinstance(schedule_id, str) or not _ID.fullmatch(schedule_id):
        raise InvalidSchedule(
            f"a schedule id is 1 to 100 of A-Z, a-z, 0-9, '_' and '-', got {schedule_id!r}"
        )


@attrs.frozen(kw_only=True)
class SchedulePlan:
    """The arguments of a schedule. Two plans are equal if they start the same runs at the same
    times."""

    workflow: str
    key: str
    input: bytes = attrs.field(eq=False, repr=False)
    digest: bytes = attrs.field(repr=False)
    headers: dict[str, str]
    tags: tuple[str, ...]
    priority: Priority
    limits: Limits
    when: Timetable
    misfire: Misfire
    overlap: bool

    def fields(self) -> tuple[Any, ...]:
        """Return the fields as they are stored."""
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
    def read(cls, fields: list[Any]) -> "SchedulePlan":
        """Return the plan that `fields` wrote."""
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
class StoredSchedule:
    """A plan and its progress. The object never changes: each firing stores a new one."""

    schedule_id: str
    plan: SchedulePlan
    created: float = 0.0
    """When the timetable began to count."""
    since: float = 0.0
    """When the schedule was made or resumed. Earlier times are misfires."""
    next: float | None = None
    """The next firing; None if there is none."""
    due: float | None = None
    """The due time in the index; None while the schedule is paused."""
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
        """Return whether the next firing is a number of seconds after another one, and not at a
        time that the user gave."""
        when = self.plan.when
        return isinstance(when, Every) and self.next is not None and self.next != when.start

    def fields(self) -> tuple[Any, ...]:
        """Return the fields as they are stored."""
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
    def read(cls, schedule_id: str, fields: list[Any]) -> "StoredSchedule":
        """Return the schedule that `fields` wrote."""
        plan, created, since, following, due, paused, fired, skipped, missed, *rest = fields
        last, last_number, last_run_id, problem = rest
        return cls(
            schedule_id=schedule_id,
            plan=SchedulePlan.read(plan),
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
    """Describe the status of a schedule. Times are seconds since the epoch. Times of firings are
    those of the timetable."""

    schedule_id: str
    """The id of the schedule."""
    workflow: str
    """The name of the workflow."""
    key: str
    """The ordering key of the runs."""
    when: Timetable
    """The timetable: `Once`, `Every` or `Cron`."""
    misfire: Misfire
    """`fire_once` or `skip`."""
    overlap: bool
    """Whether a firing starts a run while the run before has not ended."""
    paused: bool
    """Whether the schedule is paused."""
    next_at: float | None
    """The next firing. None if the schedule is paused or finished."""
    last_at: float | None
    """The latest firing that started a run."""
    last_run_id: str | None
    """The id of the run of that firing."""
    last_state: State | None
    """The state of that run."""
    fired: int
    """The number of firings that started a run."""
    skipped: int
    """The number of firings that were skipped because the run before had not ended."""
    missed: int
    """The number of times that passed without a firing of their own: Keyrun merged them into a
    later firing, or dropped them because of `misfire="skip"`."""
    problem: str | None
    """Why the schedule does not fire and needs an operator."""

    @property
    def kind(self) -> str:
        """Return `once`, `every` or `cron`."""
        return str(write_timetable(self.when)[0])

    @property
    def next_times(self) -> tuple[float, ...]:
        """Return the next firings, at most 5, as far as the timetable has them. It is empty if the
        schedule is paused or finished."""
        times: list[float] = []
        at = self.next_at
        while at is not None and len(times) < _SHOWN:
            times.append(at)
            at = self.when.following(at, at)
        return tuple(times)

    @property
    def finished(self) -> bool:
        """Return whether the schedule will not fire again. Only a schedule with `Once` finishes."""
        return self.next_at is None and not self.paused

    @classmethod
    def of(cls, schedule: StoredSchedule, last_state: State | None) -> "ScheduleStatus":
        """Return the status of a schedule whose last run is in `last_state`."""
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


StateOf = Callable[[int], Awaitable[State | None]]
"""Returns the state of the run with an admission number."""


async def schedule_status(schedule: StoredSchedule, state_of: StateOf) -> ScheduleStatus:
    """Return the status of a schedule, with the state of the run that it started last."""
    number = schedule.last_number
    return ScheduleStatus.of(schedule, None if number is None else await state_of(number))


def due_key(ledger: "Ledger", due: float, schedule_id: str) -> bytes:
    """Return the record key of a schedule in `firings`."""
    return ledger.prefix + _DUE.pack(round(due * 1e6)) + schedule_id.encode()


def split_due(ledger: "Ledger", key: bytes) -> tuple[float, str]:
    """Return the due time and the schedule id of a record key that `due_key` made."""
    at = len(ledger.prefix)
    return _DUE.unpack_from(key, at)[0] / 1e6, key[at + 8 :].decode(errors="replace")
