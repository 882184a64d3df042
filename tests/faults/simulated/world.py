"""The world: what everybody outside of a runtime sees of it, held against what is promised.

Steps, the hook, whoever submits and the store itself report here as things happen, and each report
is checked against what is durable at that moment. What is wrong is kept in `breaches`: raised in
a step it would only fail that step.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import attrs
import trio

from keyrun import RunOutcome, State
from keyrun.runtime.records.submission import StatusRecord
from keyrun.storage import MemoryStore
from keyrun.storage.batch import Tables
from keyrun.storage.record import unseal
from keyrun.types import CurrentStep
from tests.faults.simulated.peek import Peek
from tests.faults.simulated.quotas import Quotas

Generation = tuple[int, int]
"""The admission number of a run, and its generation."""

TICK = 1e-6
UNDO = "undo()/"
"""What the names of compensations begin with."""


@attrs.define
class Known:
    """What the world knows of a run."""

    run_id: str
    key: str
    called: int
    delayed: bool
    yields: bool = False
    """Whether others of its key go ahead while it waits."""
    acknowledged: bool = False
    cancelled: bool = False
    """Whether a cancel was answered with yes."""
    held: bool = False
    """Whether a pause was answered, and nobody asked for it to be lifted."""
    delivered: set[str] = attrs.field(factory=set)
    """Steps whose outcome the code of the workflow has in this pass."""
    heard: set[str] = attrs.field(factory=set)
    """Children whose end it has in this pass."""
    executions: Counter[str] = attrs.field(factory=Counter)
    kept: set[str] = attrs.field(factory=set)
    """Steps that write into the state of the key."""
    idempotency: dict[str, str] = attrs.field(factory=dict)
    dice: dict[str, str] = attrs.field(factory=dict)
    undone: list[str] = attrs.field(factory=list)
    """Steps that were undone, in the order in which that was first begun."""
    journals: int = 0
    """How often it went on with an empty journal."""


class World:
    """All that was seen. `slots` is how many steps may run at a time."""

    ends_at_once: trio.CancelScope | None = None
    """What to cancel when a promise is broken, if the rest does not matter."""
    enough: tuple[str, ...] = ()
    """What has to be said of it then."""
    steady = True
    """Whether nobody sets the clock. Inside a process only the time that passes counts."""

    def __init__(self, store: MemoryStore, *, slots: int, wall: Callable[[], float]) -> None:
        self.peek = Peek(store)
        self.slots = slots
        self.wall = wall
        self.breaches: list[str] = []
        self.trace: list[str] = []
        """What happened, in order: the same seed gives the same."""
        self.runs: dict[str, Known] = {}
        self.ends: dict[Generation, State] = {}
        self.told: dict[Generation, list[RunOutcome]] = {}
        self.held_keys: set[str] = set()
        self.forgotten: dict[str, int] = {}
        """Runs that somebody has asked to be forgotten, and their numbers."""
        self.quotas = Quotas(self.breach)
        self.family: dict[str, str] = {}
        """The runs that others started, by what tells them apart."""
        self._running: Counter[str] = Counter()
        self._highest: dict[str, list[tuple[int, int]]] = {}
        self._moment = 0

    def note(self, text: str) -> None:
        """One more thing that happened."""
        self._moment += 1
        self.trace.append(f"{trio.current_time():.6f} {text}")

    def breach(self, text: str) -> None:
        """A promise is broken."""
        self.note(f"BREACH {text}")
        self.breaches.append(f"at {trio.current_time():.3f} s: {text}")
        if self.ends_at_once is not None and any(each in text for each in self.enough):
            self.ends_at_once.cancel()

    def restarted(self) -> None:
        """The process was killed, or left: nothing of it runs any more."""
        self.note("restart")
        self._running.clear()
        self.quotas.restarted()

    def known(self, run_id: str, key: str = "") -> Known:
        """What is known of a run, also of one that was started by another."""
        if run_id not in self.runs:
            self.runs[run_id] = Known(run_id, key, self._moment, delayed=False, acknowledged=True)
        return self.runs[run_id]

    # Whoever submits.

    def submitting(
        self, run_id: str, key: str, *, delayed: bool = False, yields: bool = False
    ) -> None:
        """A submit is called."""
        self.note(f"submit {run_id}")
        if run_id not in self.runs:
            self.runs[run_id] = Known(run_id, key, self._moment, delayed, yields)

    def submitted(self, run_id: str, *, newly: bool) -> None:
        """It has returned."""
        self.note(f"submitted {run_id} {newly}")
        known = self.runs[run_id]
        number = self.peek.number(run_id)
        if number is None:
            self.breach(f"{run_id} is acknowledged, and not on the disk")
            return
        if newly and known.acknowledged:
            self.breach(f"{run_id} is new a second time")
        known.acknowledged = True
        if not newly or known.delayed:
            return
        others = self._highest.setdefault(known.key, [])
        before = [other for other, when in others if when < known.called]
        if before and max(before) >= number:
            self.breach(f"{run_id} is before a run that was acknowledged before it was submitted")
        others.append((number, self._moment))

    def result(self, run_id: str, state: State) -> None:
        """Somebody who waited was told how a run ended."""
        self.note(f"result {run_id} {state}")
        found = self.status(run_id)
        if found.state is not state and found.generation == 1:
            self.breach(f"the result of {run_id} is {state}, and on the disk it is {found.state}")

    def cancelled(self, run_id: str, answer: bool) -> None:
        """A cancel was answered."""
        self.note(f"cancelled {run_id} {answer}")
        known, found = self.runs[run_id], self.status(run_id)
        known.cancelled = known.cancelled or answer
        if answer and not found.cancel_requested and found.state is not State.CANCELLED:
            self.breach(f"the cancel of {run_id} was acknowledged, and is not on the disk")

    # Steps.

    def began(self, here: CurrentStep, *, keeps: bool, once: bool) -> int:
        """An attempt has begun: the moment at which everything before must be durable. Returns the
        generation of the run."""
        run_id, step, key = here.run_id, here.step, here.key
        self.note(f"step {run_id} {step} {here.attempt}")
        number = self.peek.number(run_id)
        if number is None:
            self.breach(f"{run_id} runs {step} and is not on the disk")
            return 1
        known, status = self.known(run_id, key), self.peek.status(number)
        where = f"{run_id} began {step}, attempt {here.attempt},"
        if status.state.terminal:
            self.breach(f"{where} when it had ended")
        if self._before(number, self.peek.queue(key)):
            ahead = self._before(number, self.peek.queue(key))
            self.breach(f"{where} and is not the first of its key: {ahead} are before it")
        self._check_journal(known, number, here, where)
        if once and not self.peek.begun(number, step):
            self.breach(f"{where} which may run once, without its mark on the disk")
        if once and known.executions[step]:
            self.breach(f"{where} which may run once, again")
        undoing = step.startswith(UNDO)
        if known.cancelled and not undoing:
            self.breach(f"{where} when it was cancelled")
        if known.held or key in self.held_keys or "" in self.held_keys:
            self.breach(f"{where} when it was paused")
        deadline = status.deadline
        late = deadline is not None and self.wall() > deadline + TICK
        if late and self.steady and not undoing:
            self.breach(f"{where} after its deadline")
        others = [other for other in self._running if other != run_id and self._running[other]]
        if any(self.known(other).key == key for other in others):
            self.breach(f"{where} beside another run of its key")
        if here.idempotency_key != known.idempotency.setdefault(step, here.idempotency_key):
            self.breach(f"{where} with another idempotency key")
        known.executions[step] += 1
        self._running[run_id] += 1
        if self._running.total() > self.slots:
            self.breach(f"{where} as number {self._running.total()} of {self.slots}")
        if keeps:
            known.kept.add(step)
            if dict(here.state) != self.peek.state(key):
                self.breach(f"{where} with a state that is not on the disk")
        return status.generation

    def _check_journal(self, known: Known, number: int, here: CurrentStep, where: str) -> None:
        memories = self.peek.journal(number).memories
        for child in known.heard:
            if not self.status(self.family[child]).state.terminal:
                self.breach(f"{where} before the end of its child {child} was durable")
        memory = memories.get(here.step)
        if memory is not None and memory.outcome is not None:
            self.breach(f"{where} and had its outcome")
        tried = 0 if memory is None else memory.attempts
        if here.attempt != tried + 1:
            self.breach(f"{where} and {tried} attempts are on the disk")
        for earlier in known.delivered:
            durable = earlier in memories and memories[earlier].outcome is not None
            if not durable and not _beside(earlier, here.step):
                self.breach(f"{where} before {earlier} was durable")

    def undoes(self, run_id: str, step: str) -> None:
        """A compensation has begun."""
        undone = self.runs[run_id].undone
        if step not in undone:
            undone.append(step)

    def remembered(self, here: CurrentStep, attempt: int) -> None:
        """A step has looked at what its attempts before have noted: the last of them, or this very
        one if a drain cut it off."""
        if attempt not in (here.attempt - 1, here.attempt):
            self.breach(f"{here.run_id} {here.step} {here.attempt} has a memo of {attempt}")

    def left(self, here: CurrentStep) -> None:
        """An attempt is over."""
        self.note(f"left {here.run_id} {here.step}")
        self._running[here.run_id] -= 1

    def passed(self, run_id: str) -> None:
        """The code of a workflow begins, from its start."""
        self.note(f"pass {run_id}")
        self.known(run_id).delivered.clear()
        self.known(run_id).heard.clear()

    def delivered(self, run_id: str, step: str) -> None:
        """The code of a workflow has the outcome of a step."""
        self.known(run_id).delivered.add(step)

    def rolled(self, run_id: str, name: str, value: str) -> None:
        """What must be the same whenever a run is driven again."""
        first = self.known(run_id).dice.setdefault(name, value)
        if first != value:
            self.breach(f"{name} of {run_id} was {first}, and is {value}")

    def started(self, name: str, run_id: str) -> None:
        """A run begins that another one, a group or a schedule has started, under this name."""
        first = self.family.setdefault(name, run_id)
        if first != run_id:
            self.breach(f"{name} was started twice: as {first}, and as {run_id}")

    def over(self, name: str, parent: str) -> None:
        """A parent has what came of a child."""
        self.known(parent).heard.add(name)

    def continued(self, run_id: str, times: int) -> None:
        """The code of a workflow begins that went on with an empty journal so often."""
        known, number = self.known(run_id), self.peek.number(run_id)
        assert number is not None
        there = self.peek.journal(number).continued
        durable = 0 if there is None else there.number
        if times != durable:
            self.breach(f"{run_id} is in its journal {times}, and on the disk in {durable}")
        if times > known.journals:
            known.journals = times
            for each in (known.executions, known.idempotency, known.dice):
                each.clear()

    def called(self, key: str, token: str) -> None:
        """A method of an entity begins."""
        self.note(f"call {key} {token}")
        for run_id, running in self._running.items():
            if running and self.known(run_id).key == key:
                self.breach(f"{token} was called beside {run_id}, which runs under the same key")

    # The hook and the store.

    def hooked(self, outcome: RunOutcome) -> None:
        """The hook is told of an end."""
        self.note(f"hook {outcome.run_id} {outcome.generation} {outcome.state}")
        number = self.peek.number(outcome.run_id)
        if number is None and outcome.run_id in self.forgotten:
            return
        assert number is not None
        end = (number, outcome.generation)
        if end not in self.ends:
            self.breach(f"the hook heard of {outcome.run_id} before its end was durable")
        elif self.ends[end] is not outcome.state:
            self.breach(f"the hook heard that {outcome.run_id} is {outcome.state}")
        known = self.told.setdefault(end, [])
        if known and known[0] != outcome:
            self.breach(f"the hook was told two ends of {outcome.run_id}")
        known.append(outcome)

    def committing(self, tables: Tables) -> None:
        """The store is about to apply this."""
        ended: set[int] = set()
        for key, raw in tables.get("status", {}).items():
            if raw is None:
                continue
            number = self.peek.ledger.split_number(key)[0]
            status = StatusRecord.read(unseal("status", key, raw))
            end = (number, status.generation)
            if end in self.ends and self.ends[end] is not status.state:
                self.breach(f"{end} was {self.ends[end]} and becomes {status.state}")
            if status.state.terminal and end not in self.ends:
                self.note(f"end {number} {status.generation} {status.state}")
                self.ends[end] = status.state
                if status.started_at is not None:
                    self._check_turn(number, ended)
                ended.add(number)

    def _check_turn(self, number: int, ended: set[int]) -> None:
        """Runs end in order. Those that do nothing may end in one commit with the run before."""
        queue = self.peek.queue(self.peek.submission(number).key)
        before = self._before(number, [other for other in queue if other not in ended])
        if before:
            self.breach(f"run {number} ends before {before}")

    def _before(self, number: int, queue: list[int]) -> list[str]:
        """The runs of a key whose turn comes before that of this run. Those that yield do not
        count: once they have waited, they wait for whoever went ahead."""
        others = queue[: queue.index(number)] if number in queue else queue
        before = [self.peek.submission(other).run_id for other in others]
        return [run_id for run_id in before if not self.known(run_id).yields]

    def status(self, run_id: str) -> StatusRecord:
        """How a run stands on the disk."""
        number = self.peek.number(run_id)
        return StatusRecord() if number is None else self.peek.status(number)


def _beside(one: str, other: str) -> bool:
    """Whether two steps are in different branches, of which neither waits for the other."""
    mine, theirs = one.rpartition("/")[0], other.rpartition("/")[0]
    return not mine.startswith(theirs) and not theirs.startswith(mine)


def log_of(state: dict[str, Any]) -> list[tuple[str, str]]:
    """What the steps of a key have written into its state, in order."""
    return [(run_id, step) for run_id, step in state.get("log", [])]
