"""Schedules: start runs at the times of their timetables.

A firing is a run whose id consists of the schedule id and the time of the timetable. One commit
admits the run and moves the schedule to its next firing, so a crash leaves both or neither.
Schedules are in the store. Memory has only the few that are due next, and those whose change is not
durable yet.
"""

from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.errors import InputMismatch, InvalidSchedule, UnknownWorkflow
from keyrun.runtime.host.due_loop import NOW, DueLoop
from keyrun.runtime.host.tracing import LINK, without_link
from keyrun.runtime.host.wall_clock import TOLERANCE, WallClock
from keyrun.runtime.limits import Limits
from keyrun.runtime.logger import logger
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.operation import Write
from keyrun.runtime.records.submission import Submission
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.runs import Change
from keyrun.runtime.schedules.records import (
    NEVER,
    SchedulePlan,
    ScheduleStatus,
    StoredSchedule,
    due_key,
    schedule_status,
    split_due,
)
from keyrun.runtime.schedules.timetable import Every, Once
from keyrun.storage.payload import PayloadError, PayloadTypeError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from keyrun.runtime.queue.admission import Admission
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.runtime.schedules.declared import Schedule
    from keyrun.runtime.values import State
    from keyrun.storage.group import Group

WINDOW = 256
"""Entries of the index that one scan reads."""
LOOK = 60.0
"""The longest wait in seconds before the wall clock is read again."""

SCHEDULED_AT = "keyrun.scheduled_at"
"""The header of a run that has its time of the timetable."""

_UNREADABLE = (*DAMAGE, InvalidSchedule)
_CANNOT_START = (UnknownWorkflow, PayloadError, PayloadTypeError)


def firing_id(schedule_id: str, at: float) -> str:
    """Return the id of the run for one time of the timetable of a schedule."""
    time = datetime.fromtimestamp(at, UTC)
    return f"{schedule_id}-{time.strftime('%Y%m%dT%H%M%S' + ('_%fZ' if time.microsecond else 'Z'))}"


class Schedules:
    """The schedules of a partition."""

    def __init__(
        self,
        partition: "PartitionState",
        *,
        runs: "RunTable",
        admission: "Admission",
        state_of: "Callable[[int], Awaitable[State | None]]",
        keep_seconds: float,
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._admission = admission
        self._state_of = state_of
        self._keep_seconds = keep_seconds
        """How long a schedule that will not fire again is kept."""
        self._clock = WallClock(partition.wall)
        self._horizon = 0.0
        """Firings that were due earlier are missed: no runtime was open, or the clock was set
        forward."""
        self._loop = DueLoop(self._fire_due)
        self._first = NEVER
        """The earliest due time that the loop knows. It wakes for a schedule that is due
        earlier."""
        self._staged: dict[str, StoredSchedule | None] = {}
        """Schedules whose change is staged and not durable; None for deleted ones."""
        self._changes = 0
        self._begun = False

    def begin(self) -> None:
        """Start the task that fires schedules, unless it runs already."""
        if not self._begun:
            self._begun = True
            self._partition.start(self.run)

    async def put(self, declared: "Schedule[Any]") -> ScheduleStatus:
        """Make a schedule, or give an existing schedule another plan."""
        schedule_id, plan = declared.schedule_id, self._plan(declared)
        old = await self._current(schedule_id)
        if old is not None and _same(old.plan, plan):
            if schedule_id in self._staged:
                await self._partition.store.durable()
            return await schedule_status(old, self._state_of)
        now = self._partition.wall()
        if old is not None and old.plan.when == plan.when:
            new = attrs.evolve(old, plan=plan, problem=None)
            if old.problem is not None:
                new = self._placed(new, now)
        else:
            first = plan.when.at if isinstance(plan.when, Once) else plan.when.following(now, now)
            if first is None:
                raise InvalidSchedule(f"{plan.when} never fires: no date matches it")
            if old is None:
                old = StoredSchedule(schedule_id=schedule_id, plan=plan, paused=declared.paused)
            new = attrs.evolve(old, plan=plan, created=now, since=now, next=first, problem=None)
            new = self._placed(new, now)
        status = await schedule_status(new, self._state_of)
        await self._stage(old, new, Write.SCHEDULE, status).wait()
        return status

    def _plan(self, declared: "Schedule[Any]") -> SchedulePlan:
        described = self._admission.describe(
            declared.workflow,
            declared.input,
            declared.key,
            declared.schedule_id,
            declared.headers,
            declared.tags,
            declared.priority,
            declared.limits,
            0,
        )
        headers, tracer = described.headers, self._partition.tracer
        if tracer is not None:
            headers = tracer.linked(dict(declared.headers or {}))
        assert described.digest is not None
        return SchedulePlan(
            workflow=described.workflow,
            key=described.key,
            input=described.input,
            digest=described.digest,
            headers=headers,
            tags=described.tags,
            priority=declared.priority,
            limits=declared.limits or Limits(),
            when=declared.when,
            misfire=declared.misfire,
            overlap=declared.overlap,
        )

    async def pause(self, schedule_id: str, paused: bool) -> bool:
        """Pause or resume a schedule. Return whether this changed anything."""
        old = await self._current(schedule_id)
        if old is None or old.paused == paused or old.next is None:
            return False
        new = attrs.evolve(old, paused=paused)
        if not paused:
            now = self._partition.wall()
            if not isinstance(old.plan.when, Once):
                new = attrs.evolve(new, next=old.plan.when.following(now, old.created))
            new = attrs.evolve(new, since=now, problem=None)
        write = Write.PAUSE_SCHEDULE if paused else Write.RESUME_SCHEDULE
        await self._stage(old, self._placed(new, self._partition.wall()), write, True).wait()
        return True

    async def delete(self, schedule_id: str) -> bool:
        """Remove a schedule. Return whether it existed."""
        old = await self._current(schedule_id)
        if old is None:
            return False
        await self._stage(old, None, Write.DELETE_SCHEDULE, True).wait()
        return True

    async def _current(self, schedule_id: str) -> StoredSchedule | None:
        """Return a schedule with its staged changes. The caller must not await anything else
        before it stages a change."""
        if schedule_id in self._staged:
            return self._staged[schedule_id]
        ledger = self._partition.ledger
        fields = await ledger.get("schedules", ledger.name(schedule_id))
        if schedule_id in self._staged:
            return self._staged[schedule_id]
        return None if fields is None else StoredSchedule.read(schedule_id, fields)

    def _placed(self, schedule: StoredSchedule, now: float) -> StoredSchedule:
        """Return the schedule with its due time in the index. A schedule that counts seconds is due
        after at most that many, also if the clock was set back."""
        due = schedule.next
        if schedule.paused:
            due = None
        elif due is None:
            due = min(now + self._keep_seconds, NEVER)
        elif isinstance(schedule.plan.when, Every) and schedule.counted:
            due = min(due, now + schedule.plan.when.seconds)
        return attrs.evolve(schedule, due=due)

    def _key(self, schedule: StoredSchedule) -> bytes | None:
        due = schedule.due
        return None if due is None else due_key(self._partition.ledger, due, schedule.schedule_id)

    def _stage(
        self,
        old: StoredSchedule,
        new: StoredSchedule | None,
        write: Write | None = None,
        answer: object = None,
    ) -> "Group":
        """Stage that a schedule is replaced, or deleted if `new` is None. `write` is the write that
        does this, if it comes from outside, with its answer."""
        self._partition.check_caller()
        self.begin()
        ledger, schedule_id = self._partition.ledger, old.schedule_id
        record = ledger.name(schedule_id)
        with self._partition.together() as group:
            if (key := self._key(old)) is not None:
                group.delete("firings", key)
            if new is None:
                group.delete("schedules", record)
            else:
                group.put("schedules", record, sealed("schedules", record, *new.fields()))
                if (key := self._key(new)) is not None:
                    group.put("firings", key, sealed("firings", key, new.counted))
            if write is not None:
                self._partition.applied(write, answer)
            # The next process has to know which clock the due times refer to.
            self._partition.keep_time()
            self._changes += 1
            known = schedule_id in self._staged, self._staged.get(schedule_id)
            group.when_dropped(self._unstage, schedule_id, *known)
            self._staged[schedule_id] = new
            group.when_durable(self._durable, schedule_id, new)
        return group

    def _unstage(self, schedule_id: str, staged: bool, before: StoredSchedule | None) -> None:
        """Take back a change that was not staged. `staged` says whether `before` is staged."""
        if staged:
            self._staged[schedule_id] = before
        else:
            self._staged.pop(schedule_id, None)

    def _durable(self, schedule_id: str, schedule: StoredSchedule | None) -> None:
        if schedule_id in self._staged and self._staged[schedule_id] is schedule:
            del self._staged[schedule_id]
        if schedule is not None and schedule.due is not None and schedule.due < self._first:
            self._loop.wake()

    async def run(self) -> None:
        """Fire schedules until cancelled."""
        await self._partition.counted.wait()
        self._horizon, _ = self._clock.look()
        await self._opened(self._horizon)
        await self._loop.run()

    async def _fire_due(self) -> float:
        """Fire the schedules that are due. Return when the next one is due, or when to read the
        wall clock again."""
        partition = self._partition
        if partition.closed:
            return inf
        self._first = NEVER
        rows = await partition.store.scan("firings", prefix=partition.ledger.prefix, limit=WINDOW)
        keys = [key for key, _ in rows]
        if keys:
            self._first, _ = split_due(partition.ledger, keys[0])
        now, jump = self._clock.look()
        if jump > 0:
            self._horizon = now
        elif jump < 0:
            await self._set_back(jump)
            return NOW
        if self._first > now:
            rest = inf if self._first >= NEVER else min(LOOK, self._first - now)
            return trio.current_time() + rest
        for key in keys:
            if split_due(partition.ledger, key)[0] <= now:
                await self._fire(key, now)
        await partition.store.durable()
        return NOW

    async def _opened(self, now: float) -> None:
        """Update the index when the store was opened. A schedule that could not start its run may
        find its workflow now. If the clock was set back, a schedule that counts seconds is due
        after as many seconds as before."""
        set_back = self._partition.set_back
        async for due, counted, schedule in self._indexed():
            if counted or due >= NEVER:
                placed = self._placed(schedule, now)
                if counted and due < NEVER and set_back > TOLERANCE and placed.due is not None:
                    placed = attrs.evolve(placed, due=min(placed.due, due - set_back))
                if placed.due is not None and placed.due < due:
                    self._stage(schedule, placed)

    async def _set_back(self, jump: float) -> None:
        """Update the index when the clock was set back. A schedule that counts seconds is due after
        as many seconds as before."""
        async for due, counted, schedule in self._indexed():
            if counted and due < NEVER:
                self._stage(schedule, attrs.evolve(schedule, due=due + jump))

    async def _indexed(self) -> "AsyncIterator[tuple[float, bool, StoredSchedule]]":
        """Yield the entries of the index: the due time, whether the schedule counts seconds, and
        the schedule."""
        partition = self._partition
        async for rows in partition.ledger.pages("firings", size=WINDOW):
            for key, raw in rows:
                due, schedule_id = split_due(partition.ledger, key)
                try:
                    (counted,) = unseal("firings", key, raw)
                    schedule = await self._current(schedule_id)
                except _UNREADABLE as error:
                    logger.error(
                        "the schedule %s is damaged: %s",
                        schedule_id,
                        error,
                        extra={"event": "schedule_damaged"},
                    )
                    continue
                if schedule is not None and self._key(schedule) == key:
                    yield due, counted, schedule
            await partition.store.durable()

    async def _fire(self, key: bytes, now: float) -> None:
        """Fire the schedule that one key of the index is about."""
        _, schedule_id = split_due(self._partition.ledger, key)
        while True:
            changes = self._changes
            try:
                schedule = await self._current(schedule_id)
            except _UNREADABLE as error:
                logger.error(
                    "the schedule %s is damaged and does not fire: %s",
                    schedule_id,
                    error,
                    extra={"event": "schedule_damaged"},
                )
                schedule = None
            if schedule is None or self._key(schedule) != key:
                self._partition.store.open_group().delete("firings", key)
                return
            if schedule.next is None:
                self._stage(schedule, None)
                return
            moved, submission = await self._decide(schedule, schedule.next, now)
            if changes == self._changes:
                break
        with self._partition.together():
            if submission is not None:
                self._admission.admit(submission)
                moved = attrs.evolve(moved, last_number=submission.number)
            self._stage(schedule, moved)

    def _cannot_start(self, schedule: StoredSchedule, error: Exception) -> str:
        """Log why a firing starts no run, and return it."""
        problem = self._partition.redaction.text(str(error))
        logger.error(
            "the schedule %s cannot start its run: %s",
            schedule.schedule_id,
            problem,
            extra={"event": "schedule_failed"},
        )
        return problem

    async def _decide(
        self, schedule: StoredSchedule, at: float, now: float
    ) -> tuple[StoredSchedule, Submission | None]:
        """Return the schedule after a firing, and the run that the firing starts."""
        plan, created, missed = schedule.plan, schedule.created, 0
        if now > at:
            first, at = at, plan.when.latest(now, created)
            missed = plan.when.count(first, at, created)
        moved = attrs.evolve(
            schedule,
            next=plan.when.following(at, created),
            missed=schedule.missed + missed,
            problem=None,
        )
        moved = self._placed(moved, now)
        if plan.misfire == "skip" and at < max(self._horizon, schedule.since):
            return attrs.evolve(moved, missed=moved.missed + 1), None
        if not plan.overlap and await self._is_unfinished(schedule.last_number):
            return attrs.evolve(moved, skipped=moved.skipped + 1), None
        try:
            submission = self._describe(schedule, at)
            known = await self._admission.known(submission)
        except _CANNOT_START as error:
            problem = self._cannot_start(schedule, error)
            return attrs.evolve(schedule, due=NEVER, problem=problem), None
        except (InputMismatch, *DAMAGE) as error:
            problem = self._cannot_start(schedule, error)
            return attrs.evolve(moved, skipped=moved.skipped + 1, problem=problem), None
        moved = attrs.evolve(moved, last=at, last_run_id=submission.run_id)
        if known is not None:
            return attrs.evolve(moved, last_number=known.submission.number), None
        return attrs.evolve(moved, fired=moved.fired + 1), submission

    def _describe(self, schedule: StoredSchedule, at: float) -> Submission:
        partition, plan = self._partition, schedule.plan
        workflow = partition.registry.latest(plan.workflow)
        submission = self._admission.describe(
            workflow,
            partition.codec.decode(plan.input, workflow.input_type),
            plan.key,
            firing_id(schedule.schedule_id, at),
            None,  # the headers and tags of the plan were checked when it was made
            (),
            plan.priority,
            plan.limits,
            0,
        )
        submission.origin = f"schedule:{schedule.schedule_id}"
        time = datetime.fromtimestamp(at, UTC).isoformat()
        submission.headers = {**plan.headers, SCHEDULED_AT: time}
        submission.tags = plan.tags
        return submission

    async def _is_unfinished(self, number: int | None) -> bool:
        """Return whether a run has not ended."""
        if number is None:
            return False
        if self._runs.live(number) or self._runs.changing(number) is Change.REDRIVE:
            return True
        # A damaged run is quarantined, so it has not ended.
        state = await self._state_of(number)
        return state is not None and not state.terminal


def _same(old: SchedulePlan, new: SchedulePlan) -> bool:
    """Return whether two plans differ at most in the span that they were made in."""
    old, new = (
        attrs.evolve(plan, headers=without_link(plan.headers)) if LINK in plan.headers else plan
        for plan in (old, new)
    )
    return old == new
