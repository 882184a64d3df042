"""Explain why a run or a key does not move: one cause, and one sentence for people.

A runtime knows what its runs wait for in memory, such as slots and rate limits. A reader of another
process knows what the store has: it explains a run that waits for a slot as running.
"""

from collections.abc import Collection
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from heapq import nsmallest
from math import inf
from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.journal_entry import CHILD, GATE
from keyrun.runtime.records.operation import Pause
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.run.wait import BACKOFF, TIMER
from keyrun.runtime.values import Obstacle, RunStatus, State

if TYPE_CHECKING:
    from keyrun.runtime.entities.calls import EntityCall
    from keyrun.runtime.queue.instance_limits import Instances
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.runs import RunTable

_NAMED = 3
"""Steps or waits that a sentence names. It counts the others."""
_AT_ONCE, _MOST = 100, 5000
"""Runs at once, and in all, among which an explanation looks for the head of a queue."""
_NESTED = 3
"""How far a sentence follows the runs that others wait for."""


class Cause(StrEnum):
    """Name the reason why a run or a key does not move."""

    ENDED = "ended"
    """The run has ended."""
    IDLE = "idle"
    """The key has no unfinished run."""
    RUNNING = "running"
    """A step or the workflow code runs: nothing holds the run."""
    QUEUED = "queued"
    """Another run of the key is before it."""
    SLOT = "slot"
    """All slots of `max_concurrent_steps` are taken."""
    RATE_LIMIT = "rate_limit"
    """The rate limit of a step."""
    CIRCUIT = "circuit"
    """The circuit breaker of a step is open."""
    RESOURCES = "resources"
    """The resources that a step reserves are taken."""
    MAX_CONCURRENT = "max_concurrent"
    """As many calls of the step as its `max_concurrent` allows are running."""
    MAX_WAITING = "max_waiting"
    """As many calls of a later node of the graph as its `max_waiting` allows are waiting."""
    CALL = "call"
    """A call of an entity under the same key is before it."""
    INSTANCES = "instances"
    """As many runs of the workflow as its `instances` allows have started."""
    SUSPECT = "suspect"
    """The step may have killed an earlier process, and another such step runs: they run alone."""
    PAUSED = "paused"
    """The run, its key or the runtime is paused."""
    BACKOFF = "backoff"
    """A step failed, and its next attempt is not due."""
    TIMER = "timer"
    """A durable timer."""
    SIGNAL = "signal"
    """A signal that was not sent."""
    APPROVAL = "approval"
    """A decision at an approval gate."""
    CHILD = "child"
    """A child run."""
    QUARANTINED = "quarantined"
    """The run or its key needs an operator."""
    DELAYED = "delayed"
    """The run was submitted with a delay."""
    DRAINING = "draining"
    """The runtime is closing."""
    OWNERSHIP = "ownership"
    """It is not certain that this process owns the store, so nothing begins."""


@attrs.frozen(kw_only=True)
class Explanation:
    """Explain why a run or a key does not move."""

    cause: Cause
    """The cause. If several branches of the run wait, the one that ends first, as far as known."""
    sentence: str
    """A sentence for people. It names all that the run waits for."""
    key: str
    """The ordering key."""
    run_id: str | None
    """The run that the cause belongs to: for a key, the run at the head of its queue."""
    step: str | None = None
    """The step that runs or waits."""
    holder: str | None = None
    """What it waits for: the id of a run, the name of a signal or a gate, the entity and the method
    of a call, or `run`, `key` or `runtime` for a pause."""
    holder_key: str | None = None
    """The key of the child run that it waits for."""
    until: float | None = None
    """When the wait ends at the latest, in seconds since the epoch. None if no time is set."""
    by: str | None = None
    """Who paused the run, the key or the runtime, if a caller from outside did."""


class Inside:
    """Facts about runs and keys that are only in the memory of the runtime."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        queues: "KeyQueues",
        instances: "Instances | None",
        calls: "Collection[EntityCall]",
    ) -> None:
        self._partition = partition
        self._queues = queues
        self._instances = instances
        self._calls = calls
        self.live = runs.live
        self.find = runs.find

    @property
    def draining(self) -> bool:
        """Return whether the runtime is closing."""
        return self._partition.draining

    @property
    def is_trusted(self) -> bool:
        """Return whether it is certain that this process owns the store."""
        return self._partition.store.is_trusted()

    def wall_time(self, until: float) -> float:
        """Return a time of Trio's clock as a time of the wall clock."""
        return self._partition.wall() + until - trio.current_time()

    def obstacle(self, key: str, number: int) -> Obstacle | None:
        """Return what keeps the run at the head of a queue from its start."""
        if self._instances is not None and self._instances.is_waiting(number):
            return Obstacle.INSTANCES
        queue = self._queues.get(key)
        at_gate = self._queues.is_at_gate(key) if queue is None else queue.queued
        return Obstacle.SLOT if at_gate else None

    def running_call(self, key: str) -> str | None:
        """Return the entity and the method of the call that runs under a key."""
        return next((each.name for each in self._calls if each.key == key), None)

    def call_before(self, key: str, number: int) -> str | None:
        """Return the entity and the method of the call that has to run before the run at the head
        of a queue."""
        queue = self._queues.get(key)
        if queue is None or not queue.calls:
            return None
        first = queue.calls[0]
        place = next((place for place, each, _ in queue.window if each == number), 0)
        return first.name if first.number <= place else None


_OBSTACLES = {
    Obstacle.SLOT: (Cause.SLOT, "waits for a slot, because all of max_concurrent_steps are taken"),
    Obstacle.RATE_LIMIT: (Cause.RATE_LIMIT, "waits for its rate limit"),
    Obstacle.CIRCUIT: (Cause.CIRCUIT, "waits for its circuit breaker, which is open"),
    Obstacle.RESOURCES: (Cause.RESOURCES, "waits for resources that other steps have reserved"),
    Obstacle.MAX_CONCURRENT: (
        Cause.MAX_CONCURRENT,
        "waits until one of the running calls has ended, because of its max_concurrent",
    ),
    Obstacle.MAX_WAITING: (
        Cause.MAX_WAITING,
        "waits, because as many calls of a later node wait as its max_waiting allows",
    ),
    Obstacle.INSTANCES: (
        Cause.INSTANCES,
        "waits until another run of its workflow has ended, because of its instances",
    ),
    Obstacle.SUSPECT: (
        Cause.SUSPECT,
        "may have killed an earlier process, and waits until no other such step is running",
    ),
}

_ENDED = {
    State.SUCCEEDED: "has succeeded",
    State.FAILED: "has failed",
    State.CANCELLED: "was cancelled",
}


@attrs.frozen
class _Answer:
    """A cause, and the predicate of the sentence: the subject is the run."""

    cause: Cause
    says: str
    step: str | None = attrs.field(default=None, kw_only=True)
    holder: str | None = attrs.field(default=None, kw_only=True)
    holder_key: str | None = attrs.field(default=None, kw_only=True)
    until: float | None = attrs.field(default=None, kw_only=True)
    by: str | None = attrs.field(default=None, kw_only=True)


class Explainer:
    """Explains runs and keys. `inside` is None in a reader."""

    def __init__(self, statuses: StatusReader, inside: Inside | None) -> None:
        self._statuses = statuses
        self._ledger = statuses.ledger
        self._inside = inside

    async def run(self, number: int) -> Explanation | None:
        """Explain a run. Return None if there is no such run."""
        status = await self._statuses.status(number, result=False)
        if status is None:
            return None
        answer = await self._answer(status, number)
        return Explanation(
            cause=answer.cause,
            sentence=f"Run {status.run_id} {answer.says}.",
            key=status.key,
            run_id=status.run_id,
            step=answer.step,
            holder=answer.holder,
            holder_key=answer.holder_key,
            until=answer.until,
            by=answer.by,
        )

    async def key(self, key: str) -> Explanation:
        """Explain a key: why the run at the head of its queue does not move."""
        number = await self._head(key)
        found = None if number is None else await self.run(number)
        if found is not None:
            return found
        held = self._statuses.quarantined.get(key)
        cause, says = Cause.IDLE, "has no run that holds it"
        holder: str | None = None
        by: str | None = None
        if held is not None:
            cause, says = Cause.QUARANTINED, f"is quarantined: {held.reason}"
        elif (pause := await self._hold(key)) is not None:
            says = f"is paused{_by(pause)}, and no run holds it"
            cause, holder, by = Cause.PAUSED, "key", pause.by
        elif (holder := self._running_call(key)) is not None:
            says, cause = f"is running the call of {holder}, and no run holds it", Cause.CALL
        sentence = f"Key {key} {says}."
        return Explanation(
            cause=cause, sentence=sentence, key=key, run_id=None, holder=holder, by=by
        )

    def _running_call(self, key: str) -> str | None:
        return None if self._inside is None else self._inside.running_call(key)

    async def _head(self, key: str) -> int | None:
        """Return the number of the head run of a key. Other tasks run while this looks for it
        behind runs that yield the key."""
        ledger, seen = self._ledger, 0
        async for rows in ledger.pages("queue", prefix=ledger.key_prefix(key), size=_AT_ONCE):
            number = ledger.head_of(rows)
            seen += len(rows)
            if number is not None or seen >= _MOST:
                return number
        return None

    async def _hold(self, key: str) -> Pause | None:
        """Return since when a key is paused, or the runtime for the empty key. None if it is not
        paused."""
        ledger, unknown = self._ledger, Pause(0.0, None)
        try:
            fields = await ledger.get("held", ledger.name(key))
        except DAMAGE:
            return unknown
        return None if fields is None else Pause.read(fields) or unknown

    async def _answer(self, status: RunStatus, number: int, depth: int = 0) -> _Answer:
        if status.state.terminal:
            at = "" if status.ended_at is None else f" at {_time(status.ended_at)}"
            return _Answer(Cause.ENDED, f"{_ENDED[status.state]}{at}")
        if status.state is State.QUARANTINED:
            says = f"is quarantined ({status.quarantine_cause}): {status.reason}"
            return _Answer(Cause.QUARANTINED, says)
        live = None if self._inside is None else self._inside.live(number)
        if live is None:
            before = await self._before_start(status, number, depth)
            if before is not None:
                return before
        paused = await self._paused(status, number)
        waits: _Answer | None = None
        if live is not None and (live.current or live.blocked or live.waits):
            waits = await self._live(live, depth)
            if paused is None or waits.cause is Cause.RUNNING:
                return waits
        elif live is None and paused is not None and status.waiting_on is not None:
            waits = await self._evicted(status, number, depth)
        if paused is not None:
            also = "" if waits is None else f", and {waits.says}"
            return attrs.evolve(paused, says=f"{paused.says}{also}")
        if self._inside is not None and self._inside.draining:
            return _Answer(Cause.DRAINING, "resumes at the next open, because the runtime closes")
        if self._inside is not None and not self._inside.is_trusted:
            says = "resumes when it is certain again that this process owns the store"
            return _Answer(Cause.OWNERSHIP, says)
        if live is not None or status.state is not State.WAITING:
            held = None if self._inside is None else self._held(status.key, number)
            return held or _running(status)
        return await self._evicted(status, number, depth)

    async def _before_start(self, status: RunStatus, number: int, depth: int) -> _Answer | None:
        """Explain a run that is delayed, or behind another run of its key."""
        if status.state is State.WAITING and status.waiting_until is not None:
            return None
        with suppress(*DAMAGE):
            stored = await self._stored(number)
            if stored is not None and stored.evicted_wait is not None:
                return None
            submission = await self._ledger.submission(number)
            has_no_place = stored is None or stored.place is None
            if submission is not None and submission.delay and has_no_place:
                due = submission.submitted_at + submission.delay
                if await self._has_delay(due, number):
                    return _Answer(Cause.DELAYED, f"is delayed until {_time(due)}", until=due)
            head = await self._head(status.key)
            if head in (None, number):
                return None
            ahead = await self._statuses.status(head, result=False)
            if ahead is None:
                return None
            says = f"waits behind run {ahead.run_id} of its key"
            until: float | None = None
            if depth < _NESTED:
                why = await self._answer(ahead, head, depth + 1)
                says, until = f"{says}, which {why.says}", why.until
            return _Answer(Cause.QUEUED, says, holder=ahead.run_id, until=until)
        return None

    async def _stored(self, number: int) -> StatusRecord | None:
        """Return the status of a run as the store has it, or will have it: memory knows the change
        whose commit is under way."""
        run = None if self._inside is None else self._inside.find(number)
        return await self._ledger.status(number) if run is None else run.status

    async def _has_delay(self, until: float, number: int) -> bool:
        ledger = self._ledger
        return await ledger.store.get("delayed", ledger.timed(until, number)) is not None

    def _held(self, key: str, number: int) -> _Answer | None:
        """Explain a run at the head of a queue that a call, a slot or another run of its workflow
        keeps from its start."""
        assert self._inside is not None
        call = self._inside.running_call(key)
        if call is not None:
            return _Answer(Cause.CALL, f"waits behind the call of {call}, which runs", holder=call)
        obstacle = self._inside.obstacle(key, number)
        if obstacle is not None:
            return _Answer(*_OBSTACLES[obstacle])
        call = self._inside.call_before(key, number)
        if call is None:
            return None
        return _Answer(Cause.CALL, f"waits behind a call of {call}", holder=call)

    async def _paused(self, status: RunStatus, number: int) -> _Answer | None:
        """Explain a run that is paused itself, or with its key or the runtime."""
        if status.state is not State.PAUSED:
            return None
        with suppress(*DAMAGE):
            stored = await self._stored(number)
            if stored is not None and stored.paused:
                by = None if stored.pause is None else stored.pause.by
                says = f"is paused{_by(stored.pause)} until it is resumed"
                return _Answer(Cause.PAUSED, says, holder="run", by=by)
        pause = await self._hold(status.key)
        if pause is not None:
            says = f"is paused, because its key is paused{_by(pause)}"
            return _Answer(Cause.PAUSED, says, holder="key", by=pause.by)
        pause = await self._hold("")
        says = f"is paused, because the runtime is paused{_by(pause)}"
        return _Answer(Cause.PAUSED, says, holder="runtime", by=None if pause is None else pause.by)

    async def _live(self, run: "Run", depth: int) -> _Answer:
        """Explain a run in memory: what runs comes first, then what waits for a policy, then the
        wait that ends first."""
        if run.current:
            steps = [f"{name} (attempt {step.attempt})" for name, step in run.current.items()]
            named = ", ".join(steps[:_NAMED])
            more = f" and {len(steps) - _NAMED} more" if steps[_NAMED:] else ""
            step = next(iter(run.current))
            return _Answer(Cause.RUNNING, f"is running {named}{more}", step=step)
        if run.blocked:
            step, obstacle = next(iter(run.blocked.items()))
            cause, says = _OBSTACLES[obstacle]
            return _Answer(cause, f"has not started {step}, which {says}", step=step)
        answers = []
        for wait in nsmallest(_NAMED, run.waits, key=lambda each: (each.until, each.label)):
            until = None if wait.until == inf else self._wall_time(wait.until)
            if wait.channel is not None:
                answers.append(await self._channel(wait.channel, until, depth))
            else:
                answers.append(_timed(until, wait.ident if wait.label == BACKOFF else None))
        return _together(answers, len(run.waits))

    def _wall_time(self, until: float) -> float:
        assert self._inside is not None
        return self._inside.wall_time(until)

    async def _evicted(self, status: RunStatus, number: int, depth: int) -> _Answer:
        """Explain a run that is only in the store and waits."""
        with suppress(*DAMAGE):
            stored = await self._stored(number)
            wait = None if stored is None else stored.evicted_wait
            if stored is not None and wait is not None:
                labels = (stored.waiting_on or "").split(", ")
                # If nothing waits for a time alone, the time limits the wait for a message.
                is_limit = BACKOFF not in labels and TIMER not in labels and wait.channels
                limit = wait.due if is_limit else None
                answers = []
                if wait.due is not None and not is_limit:
                    failed = _failed_step(stored) if BACKOFF in labels else None
                    answers.append(_timed(wait.due, failed))
                total = len(answers) + len(wait.channels)
                for each in wait.channels[: _NAMED - len(answers)]:
                    answers.append(await self._channel(each, limit, depth))
                if answers:
                    return _together(answers, total)
        return _Answer(Cause.RUNNING, f"waits for {status.waiting_on}")

    async def _channel(self, channel: str, until: float | None, depth: int) -> _Answer:
        """Explain a wait for a message."""
        limit = "" if until is None else f" until {_time(until)}"
        if channel.startswith(GATE):
            gate = channel.removeprefix(GATE)
            says = f"waits for a decision at the gate {gate!r}{limit}"
            return _Answer(Cause.APPROVAL, says, holder=gate, until=until)
        if not channel.startswith(CHILD):
            says = f"waits for the signal {channel!r}{limit}"
            return _Answer(Cause.SIGNAL, says, holder=channel, until=until)
        child = channel.removeprefix(CHILD)
        number = await self._ledger.find(child)
        status = None if number is None else await self._statuses.status(number, result=False)
        if number is None or status is None:
            return _Answer(Cause.CHILD, f"waits for its child {child}", holder=child)
        says = f"waits for its child {child} under key {status.key}"
        if depth < _NESTED:
            why = await self._answer(status, number, depth + 1)
            says, until = f"{says}, which {why.says}", why.until
        return _Answer(Cause.CHILD, says, holder=child, holder_key=status.key, until=until)


def _running(status: RunStatus) -> _Answer:
    if status.state is State.CANCELLING:
        return _Answer(Cause.RUNNING, "is being cancelled")
    if status.compensating:
        return _Answer(Cause.RUNNING, "is being compensated")
    if status.state is State.PENDING:
        return _Answer(Cause.RUNNING, "is next and starts when its key is served")
    return _Answer(Cause.RUNNING, "is running")


def _failed_step(stored: StatusRecord) -> str | None:
    """Return the step whose attempt failed last, as an evicted run has it."""
    failure = None if stored.summary is None else stored.summary.last_failure
    return None if failure is None else failure.step


def _timed(until: float | None, failed: str | None) -> _Answer:
    """Explain a wait for a time. `failed` is the step whose next attempt is due then."""
    at = "" if until is None else f" until {_time(until)}"
    if failed is None:
        return _Answer(Cause.TIMER, f"waits for a timer{at}", until=until)
    says = f"waits{at} before the next attempt of {failed}"
    return _Answer(Cause.BACKOFF, says, step=failed, until=until)


def _together(answers: list[_Answer], total: int) -> _Answer:
    """Return the first of the answers for some of `total` waits, with a sentence that names the
    others."""
    first = answers[0]
    others = [each.says.removeprefix("waits ") for each in answers[1:]]
    more = [f"{total - len(answers)} more"] if total > len(answers) else []
    return attrs.evolve(first, says=", and ".join([first.says, *others, *more]))


def _by(pause: Pause | None) -> str:
    """Return who paused something and when, if a caller from outside did."""
    if pause is None or pause.by is None:
        return ""
    return f" by {pause.by} since {_time(pause.at)}"


def _time(at: float) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
