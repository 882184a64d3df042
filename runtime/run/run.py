"""A run in memory: its submission, its status, its journal, and the task that drives it."""

from enum import Enum
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.errors import NonDeterminism
from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.internal_errors import InternalError, as_internal, is_internal
from keyrun.runtime.pass_end import Halt, Unwind
from keyrun.runtime.records.journal_entry import JournalEntry, Note
from keyrun.runtime.records.submission import (
    AS_PENDING,
    Counted,
    StatusRecord,
    Submission,
    Summary,
)
from keyrun.runtime.records.tables import pack_sequence
from keyrun.runtime.run.empty import NOTHING, writable
from keyrun.runtime.run.inbox import Inbox, Signal
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.run.wait import Eviction, Wait, waiting_on
from keyrun.runtime.values import Obstacle, QuarantineCause, RunStatus, State
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun._waking import WaitSlot
    from keyrun.runtime.definitions.step import StepFunction
    from keyrun.runtime.definitions.workflow import Workflow
    from keyrun.runtime.events.feed import Feed
    from keyrun.runtime.policies.checkpoint import Checkpointer
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.running_step import Report, RunningStep
    from keyrun.runtime.run.services import GraphOfRun, KeyQueueOfRun, OutputAllowance
    from keyrun.storage.group import Group


NOT_DRIVEN = trio.CancelScope()
"""The scope of a run that is not driven."""


class Location(Enum):
    """Where an unfinished run is. Only the run table changes it."""

    QUEUED = "queued"
    """The run waits in the queue of its key."""
    LIVE = "live"
    """The run is at the head of its key and in memory."""
    EVICTING = "evicting"
    """The coroutine of the run is being cancelled so that the run can leave memory."""
    EVICTED = "evicted"
    """The run left memory to wait for a timer, a signal, a child or a resume."""
    WAKING = "waking"
    """The run was evicted. The commit that puts it back into its queue is under way."""
    DELAYED = "delayed"
    """The run gets its place in the order when its delay is over."""


_QUEUED = Location.QUEUED  # looking it up takes as long as a call


class RunGuard:
    """A block of Keyrun's own code that user code calls, for one run."""

    __slots__ = ("_run",)

    def __init__(self, run: "Run") -> None:
        self._run = run

    def __enter__(self) -> None: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._run.guard(error)


class Run:
    """One run that is, or is about to be, driven."""

    __slots__ = (
        "_resumed",
        "allowance",
        "begun_steps",
        "blocked",
        "careful",
        "checkpointer",
        "compensators",
        "counted",
        "current",
        "deadline",
        "decision",
        "eviction",
        "graph",
        "inbox",
        "journal",
        "location",
        "logged",
        "memos",
        "metrics",
        "number",
        "partition",
        "pending",
        "queue",
        "record",
        "reported",
        "scope",
        "scope_cancelled",
        "scope_timed",
        "shown_running",
        "staged",
        "status",
        "submission",
        "trace",
        "tried_again",
        "undoing",
        "unwinding",
        "wait_slot",
        "waiting_branches",
        "waits",
        "workflow",
    )
    is_dry_run = False
    """Whether the run is driven only to find out which calls the code makes."""

    def __init__(
        self,
        partition: "PartitionState",
        queue: "KeyQueueOfRun",
        submission: Submission,
        status: StatusRecord,
        workflow: "Workflow[Any, Any] | None",
    ) -> None:
        self.partition = partition
        self.queue = queue
        self.submission = submission
        self.status = status
        self.workflow: Any = workflow
        metrics = partition.metrics
        self.metrics = None if metrics is None else metrics.of(submission.workflow)
        self.number = submission.number
        self.record = partition.ledger.number(submission.number)
        """The key of its records, which is also the prefix of the keys of its journal."""
        self.trace: Any = None
        """What the tracer keeps about the run."""
        self.journal = Journal()
        self.memos: dict[str, bytes] = NOTHING
        self.scope: trio.CancelScope = NOT_DRIVEN
        self.wait_slot: WaitSlot | None = None
        """The wait slot of the task that drives the main branch."""
        self.staged: Group | None = None
        """The last group that has a record of this run, or of the run before it. The next effect
        waits until it is durable."""
        self.current: dict[str, RunningStep] = {}
        self.blocked: dict[str, Obstacle] = NOTHING
        """The obstacle of each call that may not start yet."""
        self.logged: dict[str, int] = NOTHING
        """The lines of `ctx.log` that the passes of the present journal have reached, by branch."""
        self.allowance: OutputAllowance | None = None
        """How many bytes its steps may return, if that is limited."""
        self.graph: GraphOfRun | None = None
        """The graph in the present pass, if the workflow is a graph."""
        self.begun_steps = 0
        self.deadline = inf
        self.decision: Any = None
        self.unwinding: Unwind | None = None
        self.waiting_branches = 0
        self.pending = True
        """Whether the run counts as waiting to be started."""
        self.shown_running = False
        """Whether the stored status says that the run is running."""
        self.scope_timed = False
        """Whether the scope of the pass had a deadline."""
        self.scope_cancelled = False
        """Whether the scope of the pass was cancelled."""
        self.careful = False
        """Whether steps wait for their start marker, because the last process was killed."""
        self.checkpointer: Checkpointer | None = None
        """Decides which steps wait for the commit, if the workflow has a checkpoint policy."""
        self.undoing = False
        """Whether its compensations run. Only a drain cuts them off."""
        self.compensators: dict[str, StepFunction[..., Any]] | None = None
        """The steps with a compensation that this process has called or replayed."""
        self.reported: Report | None = None
        self.waits: dict[Wait, None] | tuple[()] = ()
        """The waits of its branches."""
        self.inbox: Inbox | None = None
        self.counted: Counted = AS_PENDING
        """What the run is counted as: see `keyrun.runtime.records.run_counts`."""
        self.tried_again: tuple[QuarantineCause, int] | None = None
        """The cause of its quarantine before this open tried it again, and the next sequence number
        of its journal at that time."""
        self._resumed: trio.Event | None = None
        self.location = _QUEUED
        """Where the run is. Only the run table changes it."""
        self.eviction: Eviction | None = None
        """The waits of the run, while it is being evicted."""

    @property
    def resumed(self) -> trio.Event:
        """Return an event that is set when the run has to check again whether it may continue."""
        if self._resumed is None:
            self._resumed = trio.Event()
        return self._resumed

    @property
    def feed(self) -> "Feed | None":
        """Return where its events go; None while there is no listener."""
        return self.partition.feed

    @property
    def run_id(self) -> str:
        """Return the id of the run."""
        return self.submission.run_id

    @property
    def key(self) -> str:
        """Return the ordering key."""
        return self.submission.key

    def put(self, table: str, key: bytes, *fields: Any) -> None:
        """Stage a record of this run."""
        group = self.staged = self.partition.commits.open_group()
        group.table(table)[key] = seal(table, key, fields)

    def delete(self, table: str, key: bytes) -> None:
        """Stage the removal of a record of this run."""
        group = self.staged = self.partition.commits.open_group()
        group.table(table)[key] = None

    def write(self, entry: JournalEntry) -> None:
        """Stage a journal entry."""
        self.enter(entry.encode())

    def note(self, ident: str, what: str, *details: Any) -> None:
        """Stage a journal entry for the history."""
        self.write(Note(ident, self.partition.wall(), what, details))

    def enter(self, fields: tuple[Any, ...]) -> None:
        """Stage an encoded journal entry."""
        journal = self.journal
        sequence = journal.next
        journal.next = sequence + 1
        key = self.record + pack_sequence(sequence)
        commits = self.partition.commits
        group = self.staged = commits.open_group() if commits.attentive else commits.group
        group.table("journal")[key] = seal("journal", key, fields)

    def store_status(self, summary: Summary | None = None) -> None:
        """Stage the status of the run."""
        status = self.status
        before, now = self.counted, status.counted()
        if now != before:
            self.partition.counts.moved(self.submission, before, now)
            self.partition.commits.open_group().when_dropped(setattr, self, "counted", before)
            self.counted = now
        status.journal_next = self.journal.next
        status.summary = summary
        self.put("status", self.record, *status.fields())

    def store_memo(self, step: str, encoded: bytes) -> None:
        """Stage the memo of a step."""
        self.partition.has_memos = True
        self.memos = writable(self.memos)
        self.memos[step] = encoded
        self.put("memo", self.partition.ledger.step(self.number, step), step, encoded)

    def block(self, ident: str, obstacle: Obstacle) -> None:
        """Record what a call waits for before it may start."""
        self.blocked = writable(self.blocked)
        self.blocked[ident] = obstacle

    def unblock(self, ident: str) -> None:
        """Record that a call waits for nothing any more before it starts."""
        self.blocked.pop(ident, None)

    def compensated_by(self, ident: str, step: "StepFunction[..., Any]") -> None:
        """Remember the step whose compensation undoes the call `ident`."""
        if self.compensators is None:
            self.compensators = {}
        self.compensators[ident] = step

    async def let_others_ask(self) -> None:
        """Return when all branches have asked for their next call, in a dry run."""
        raise AssertionError("this is no dry run")

    async def dry_run_wait(self, label: str) -> Any:
        """Wait for a call that has no outcome, in a dry run."""
        raise AssertionError("this is no dry run")

    async def dry_run_step(self, step: "StepFunction[..., Any]", ident: str) -> Any:
        """Replace a step that has no outcome, in a dry run."""
        raise AssertionError("this is no dry run")

    async def gate(self) -> None:
        """Return when everything that this run has staged is durable."""
        group = self.staged
        if group is not None:
            await group.wait()
            # Another branch or an operation may have staged more meanwhile.
            if self.staged is group:
                self.staged = None

    async def wait(self, wait: Wait) -> None:
        """Wait in one branch, and store in the status what the run waits for."""
        if wait.over:
            return
        if not self.waits:
            self.waits = {}
        assert isinstance(self.waits, dict)
        status, partition = self.status, self.partition
        self.waiting_branches += 1
        self.waits[wait] = None
        if self.journal.tasks > 1:
            self.journal.outside = self.waits
            self.journal.check_stuck()
        status.waiting_on = waiting_on(list(self.waits))
        status.state = State.WAITING
        self.store_status()
        partition.keep_time()
        if partition.feed is not None:
            delay = None if wait.until == inf else wait.until - trio.current_time()
            emitter.run_waits(partition.feed, self, wait.label, delay)
        self.begin()
        self.leave_if_asked()
        try:
            # The due time is durable before the wait begins.
            await self.gate()
            partition.services.eviction.consider(self)
            with trio.move_on_at(wait.until) as limit:
                await wait.event.wait()
            if limit.cancelled_caught and partition.metrics is not None:
                partition.metrics.timer_lag.add(trio.current_time() - wait.until)
        finally:
            self.waiting_branches -= 1
            del self.waits[wait]
            self.shown_running = False
            if self.unwinding is not Unwind.EVICT and status.state is State.WAITING:
                status.waiting_on = waiting_on(list(self.waits))
                if not self.waiting_branches:
                    status.state = State.RUNNING
        if self.unwinding is not None:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise Halt
        if partition.feed is not None:
            emitter.run_resumed(partition.feed, EventKind.RUN_RESUMED, self)

    @property
    def open_inbox(self) -> Inbox:
        """Return the inbox. It is made if there is none."""
        if self.inbox is None:
            self.inbox = Inbox()
        return self.inbox

    def deliver(self, signal: Signal) -> bool:
        """Put a signal that is staged into the inbox. Return whether a wait takes it. After an
        internal error the pass ends, and the next pass reads the signal from the store."""
        try:
            return self.open_inbox.put(signal, self.journal)
        except Exception as error:
            self.crash(error)
            return False

    @property
    def idle(self) -> bool:
        """Return whether all branches wait, and no wait has ended."""
        return (
            not self.current
            and self.unwinding is None
            and self.waiting_branches + self.journal.resting_branches() >= self.journal.tasks
            and not any(wait.over for wait in self.waits)
        )

    def rewind(self) -> None:
        """Prepare another pass from the journal."""
        self.journal.rewind()
        self.begun_steps = 0
        self.decision = self.unwinding = None

    def unwind(self, why: Unwind) -> None:
        """Cancel the coroutine of the workflow. The first reason counts."""
        if self.unwinding is None:
            self.unwinding = why
            self.scope.cancel()
            # A shield in the workflow must not keep the run in a wait.
            for wait in self.waits:
                wait.event.set()
            self.resume()

    def guard(self, error: BaseException) -> None:
        """Check an exception that leaves Keyrun's own code for user code. An internal error ends
        the pass, and the driver raises it, even if user code catches it."""
        if is_internal(error):
            raise self.crash(error)

    def halt(self, decision: Any) -> Halt:
        """Set how the pass ends, and return the exception that ends it: `raise run.halt(...)`. The
        first decision counts."""
        if self.decision is None:
            self.decision = decision
        return Halt()

    def contradicted(self, message: str, step: str | None = None) -> Halt:
        """Return the exception that ends the pass, because the code contradicts the journal."""
        return self.halt(NonDeterminism(message, run_id=self.run_id, key=self.key, step=step))

    def crash(self, error: BaseException) -> InternalError:
        """End the pass because of an internal error, as a drain would: the calls that it cuts off
        do not count as cancelled. Return the exception to raise."""
        self.decision = internal = as_internal(error)
        self.unwind(Unwind.LEAVE)
        return internal

    def guarded(self) -> "RunGuard":
        """Return a block whose exceptions are guarded: `with run.guarded(): ...`."""
        return RunGuard(self)

    def raise_internal(self) -> None:
        """Raise the internal error that ended the pass, if one did."""
        if type(self.decision) is InternalError:
            raise self.decision.error

    @property
    def going(self) -> bool:
        """Return whether the pass continues: it is not cancelled, and the partition has not
        failed."""
        ended = self.unwinding is not None or self.scope.cancel_called
        return not ended and self.partition.failure is None

    @property
    def shielded(self) -> bool:
        """Return whether the run only executes shielded steps."""
        steps = self.current.values()
        return bool(steps) and not self.waiting_branches and all(step.shielded for step in steps)

    def leave_if_asked(self) -> None:
        """Cancel the coroutine if the run was cancelled, if the partition drains and no step of the
        run is running, or if the partition has failed."""
        if self.status.cancel_requested and not self.undoing:
            self.unwind(Unwind.CANCEL)
        elif self.partition.failure is not None or (self.partition.draining and not self.current):
            self.unwind(Unwind.LEAVE)

    async def hold(self) -> None:
        """Wait until the run has to check again whether it may continue."""
        self.leave_if_asked()
        if self.unwinding is not None:
            # A shield in the workflow must not keep the run here.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise Halt
        resumed = self.resumed
        self.queue.entered()
        self.waiting_branches += 1
        self.partition.services.eviction.consider(self)
        try:
            await resumed.wait()
        finally:
            self.waiting_branches -= 1

    def begin(self) -> None:
        """Record that the run has started, so that it no longer counts as pending."""
        if self.pending:
            self.queue.started(self)

    def is_held(self) -> bool:
        """Return whether the run, its key or the partition is paused."""
        return self.status.paused or self.queue.paused or self.partition.paused

    # Every step asks, and Python calls a property five times slower than a method.
    def is_stopped(self) -> bool:
        """Return whether no further step may start now."""
        return (
            self.status.paused
            or (self.status.cancel_requested and not self.undoing)
            or self.queue.paused
            or self.partition.stopped
        )

    def resume(self) -> None:
        """Let the run check again whether it may continue."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None
        self.queue.wake()

    def public_status(self) -> RunStatus:
        """Return the public status of the run, including what is not stored yet."""
        status = self.partition.services.status_of(self.submission, self.status)
        if self.status.state.terminal or self.status.cancel_requested:
            return status
        if self.current:
            current = next(iter(self.current.values()))
            return attrs.evolve(
                status, state=State.RUNNING, step=current.step, attempt=current.attempt
            )
        if self.is_held() and self.status.state is not State.QUARANTINED:
            return attrs.evolve(status, state=State.PAUSED)
        due = min((wait.due for wait in self.waits), default=inf)
        return status if due == inf else attrs.evolve(status, waiting_until=due)
