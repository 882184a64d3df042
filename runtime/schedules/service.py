"""Schedules: they start runs when their timetables say so.

A firing is a run whose id is made of the schedule and the time on the timetable, admitted in the
commit that moves the schedule on: there are both or none of them, whenever the process is killed.
Schedules live in the store. In memory are those few that are due next, and those that were changed
and are not durable yet.
"""

from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.runtime.errors import InputMismatch, InvalidSchedule, UnknownWorkflow
from keyrun.runtime.events.logs import logger
from keyrun.runtime.host.due_loop import NOW, DueLoop
from keyrun.runtime.host.wall_clock import TOLERANCE, WallClock
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.submission import Submission
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.runs import Change
from keyrun.runtime.schedules.records import NEVER, Plan, Schedule, due_key, split_due
from keyrun.runtime.schedules.timetable import Every, Once
from keyrun.storage.payload import PayloadError, PayloadTypeError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from keyrun.runtime.partition import Partition
    from keyrun.storage.group import Group

WINDOW = 256
LOOK = 60.0
"""Seconds after which the wall clock is looked at again, however long there is to wait."""

SCHEDULED_AT = "keyrun.scheduled_at"
"""The header that tells a run the time on the timetable that it is for."""

_UNREADABLE = (*DAMAGE, InvalidSchedule)
_CANNOT_START = (UnknownWorkflow, PayloadError, PayloadTypeError)


def firing_id(schedule_id: str, at: float) -> str:
    """The id of the run for one time on the timetable of a schedule."""
    time = datetime.fromtimestamp(at, UTC)
    return f"{schedule_id}-{time.strftime('%Y%m%dT%H%M%S' + ('_%fZ' if time.microsecond else 'Z'))}"


class Schedules:
    """The schedules of a runtime."""

    def __init__(self, partition: "Partition", keep: float) -> None:
        self._partition = partition
        self._keep = keep
        """Seconds for which one is known that will not fire any more."""
        self._clock = WallClock(partition.wall)
        self._horizon = 0.0
        """What was due earlier and did not fire has been missed: nobody was there, or the clock
        was set forward."""
        self._loop = DueLoop(self._fire_due)
        self._first = NEVER
        """What is due later than this is found in the index in time."""
        self._staged: dict[str, Schedule | None] = {}
        """As they will be when what is staged is durable; None for those that are deleted."""
        self._changes = 0
        self._begun = False

    def begin(self) -> None:
        """Fire from here on, for as long as the runtime is open."""
        if not self._begun:
            self._begun = True
            self._partition.start(self.run)

    async def put(self, schedule_id: str, plan: Plan, *, paused: bool) -> Schedule:
        """Make a schedule, or give one that is there another plan."""
        old = await self._current(schedule_id)
        if old is not None and old.plan == plan:
            if schedule_id in self._staged:
                await self._partition.store.durable()
            return old
        now = self._partition.wall()
        if old is not None and old.plan.when == plan.when:
            new = attrs.evolve(old, plan=plan, problem=None)
            if old.problem is not None:
                new = self._placed(new, now)
        else:
            first = plan.when.at if isinstance(plan.when, Once) else plan.when.following(now, now)
            if first is None:
                raise InvalidSchedule(f"{plan.when} never fires; no day fits it")
            if old is None:
                old = Schedule(schedule_id=schedule_id, plan=plan, paused=paused)
            new = attrs.evolve(old, plan=plan, created=now, since=now, next=first, problem=None)
            new = self._placed(new, now)
        await self._stage(old, new).wait()
        return new

    async def pause(self, schedule_id: str, paused: bool) -> bool:
        """Hold a schedule, or let it go on. Says whether there was anything to change."""
        old = await self._current(schedule_id)
        if old is None or old.paused == paused or old.next is None:
            return False
        new = attrs.evolve(old, paused=paused)
        if not paused:
            now = self._partition.wall()
            if not isinstance(old.plan.when, Once):
                new = attrs.evolve(new, next=old.plan.when.following(now, old.created))
            new = attrs.evolve(new, since=now, problem=None)
        await self._stage(old, self._placed(new, self._partition.wall())).wait()
        return True

    async def delete(self, schedule_id: str) -> bool:
        """Remove a schedule. Says whether there was one."""
        old = await self._current(schedule_id)
        if old is None:
            return False
        await self._stage(old, None).wait()
        return True

    async def _current(self, schedule_id: str) -> Schedule | None:
        """A schedule as it is, or is about to be. Nothing may be awaited between this and staging
        what takes its place."""
        if schedule_id in self._staged:
            return self._staged[schedule_id]
        ledger = self._partition.ledger
        fields = await ledger.get("schedules", ledger.name(schedule_id))
        if schedule_id in self._staged:
            return self._staged[schedule_id]
        return None if fields is None else Schedule.read(schedule_id, fields)

    def _placed(self, schedule: Schedule, now: float) -> Schedule:
        """With its place in the index: what counts seconds is never further away than that, also
        if the clock was set back."""
        due = schedule.next
        if schedule.paused:
            due = None
        elif due is None:
            due = min(now + self._keep, NEVER)
        elif isinstance(schedule.plan.when, Every) and schedule.counted:
            due = min(due, now + schedule.plan.when.seconds)
        return attrs.evolve(schedule, due=due)

    def _key(self, schedule: Schedule) -> bytes | None:
        due = schedule.due
        return None if due is None else due_key(self._partition.ledger, due, schedule.schedule_id)

    def _stage(self, old: Schedule, new: Schedule | None) -> "Group":
        """Have one take the place of the other, in the group that is open."""
        self._partition.check_open()
        self.begin()
        ledger, schedule_id = self._partition.ledger, old.schedule_id
        record = ledger.name(schedule_id)
        group = self._partition.store.open_group()
        if (key := self._key(old)) is not None:
            group.delete("firings", key)
        if new is None:
            group.delete("schedules", record)
        else:
            group.put("schedules", record, sealed("schedules", record, *new.fields()))
            if (key := self._key(new)) is not None:
                group.put("firings", key, sealed("firings", key, new.counted))
        # Which clock the due times are of must be known to the next process.
        self._partition.keep_time()
        self._changes += 1
        self._staged[schedule_id] = new
        group.when_durable(self._durable, schedule_id, new)
        return group

    def _durable(self, schedule_id: str, schedule: Schedule | None) -> None:
        if schedule_id in self._staged and self._staged[schedule_id] is schedule:
            del self._staged[schedule_id]
        if schedule is not None and schedule.due is not None and schedule.due < self._first:
            self._loop.wake()

    async def run(self) -> None:
        """Fire for ever."""
        await self._partition.counted.wait()
        self._horizon, _ = self._clock.look()
        await self._opened(self._horizon)
        await self._loop.run()

    async def _fire_due(self) -> float:
        """Fire the schedules that are due. Return when the next one is due, or when to look at the
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
                await self._turn(key, now)
        await partition.store.durable()
        return NOW

    async def _opened(self, now: float) -> None:
        """What could not start its run may find its workflow by now, and the clock may have been
        set back since: those that count seconds are as far away as they were."""
        set_back = self._partition.set_back
        async for due, counted, schedule in self._indexed():
            if counted or due >= NEVER:
                placed = self._placed(schedule, now)
                if counted and due < NEVER and set_back > TOLERANCE and placed.due is not None:
                    placed = attrs.evolve(placed, due=min(placed.due, due - set_back))
                if placed.due is not None and placed.due < due:
                    self._stage(schedule, placed)

    async def _set_back(self, jump: float) -> None:
        """Those that count seconds are as far away as they were before."""
        async for due, counted, schedule in self._indexed():
            if counted and due < NEVER:
                self._stage(schedule, attrs.evolve(schedule, due=due + jump))

    async def _indexed(self) -> "AsyncIterator[tuple[float, bool, Schedule]]":
        """All that the index has: when it is due, whether it counts seconds, and what it is."""
        partition = self._partition
        async for rows in partition.ledger.pages("firings", size=WINDOW):
            for key, raw in rows:
                due, schedule_id = split_due(partition.ledger, key)
                try:
                    (counted,) = unseal("firings", key, raw)
                    schedule = await self._current(schedule_id)
                except _UNREADABLE as error:
                    logger.error("the schedule %s is damaged: %s", schedule_id, error)
                    continue
                if schedule is not None and self._key(schedule) == key:
                    yield due, counted, schedule
            await partition.store.durable()

    async def _turn(self, key: bytes, now: float) -> None:
        """Do what is due according to one key of the index."""
        _, schedule_id = split_due(self._partition.ledger, key)
        while True:
            changes = self._changes
            try:
                schedule = await self._current(schedule_id)
            except _UNREADABLE as error:
                logger.error("the schedule %s is damaged and does not fire: %s", schedule_id, error)
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
        if submission is not None:
            self._partition.admission.admit(submission)
            moved = attrs.evolve(moved, last_number=submission.number)
        self._stage(schedule, moved)

    async def _decide(
        self, schedule: Schedule, at: float, now: float
    ) -> tuple[Schedule, Submission | None]:
        """What becomes of a schedule that is due, and the run to be started with that."""
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
        if not plan.overlap and await self._under_way(schedule.last_number):
            return attrs.evolve(moved, skipped=moved.skipped + 1), None
        try:
            submission = self._describe(schedule, at)
            known = await self._partition.admission.known(submission)
        except _CANNOT_START as error:
            logger.error("the schedule %s cannot start its run: %s", schedule.schedule_id, error)
            return attrs.evolve(schedule, due=NEVER, problem=str(error)), None
        except (InputMismatch, *DAMAGE) as error:
            logger.error("the schedule %s cannot start its run: %s", schedule.schedule_id, error)
            return attrs.evolve(moved, skipped=moved.skipped + 1, problem=str(error)), None
        moved = attrs.evolve(moved, last=at, last_run_id=submission.run_id)
        if known is not None:
            return attrs.evolve(moved, last_number=known.submission.number), None
        return attrs.evolve(moved, fired=moved.fired + 1), submission

    def _describe(self, schedule: Schedule, at: float) -> Submission:
        partition, plan = self._partition, schedule.plan
        workflow = partition.registry.latest(plan.workflow)
        submission = partition.admission.describe(
            workflow,
            partition.codec.decode(plan.input, workflow.input_type),
            plan.key,
            firing_id(schedule.schedule_id, at),
            None,  # those of the plan were checked when it was made
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

    async def _under_way(self, number: int | None) -> bool:
        """Whether a run has not ended."""
        if number is None:
            return False
        partition = self._partition
        if partition.runs.live(number) or partition.runs.changing(number) is Change.REDRIVE:
            return True
        # A damaged one is quarantined, and has not ended.
        state = await partition.reading.state(number)
        return state is not None and not state.terminal
