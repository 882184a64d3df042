"""A run in memory: its submission, its status, its journal, and the task that drives it."""

from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.internal_errors import InternalError, as_internal, is_internal
from keyrun.runtime.records.journal_entry import JournalEntry, Note
from keyrun.runtime.records.submission import Standing, Submission, Summary
from keyrun.runtime.records.tables import SEQUENCE
from keyrun.runtime.run.inbox import Inbox
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.run.location import Location
from keyrun.runtime.run.wait import Wait, waiting_on
from keyrun.runtime.unwinding import Halt, Unwind
from keyrun.runtime.values import QuarantineCause, RunStatus, State
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun._waking import WaitSlot
    from keyrun.runtime.definitions.step import StepFunction
    from keyrun.runtime.definitions.workflow import Workflow
    from keyrun.runtime.events.feed import Feed
    from keyrun.runtime.policies.checkpoint import Cadence
    from keyrun.runtime.run.eviction import Eviction
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.running_step import Report, RunningStep
    from keyrun.runtime.run.services import GraphOfRun, KeyQueueOfRun, OutputAllowance
    from keyrun.storage.group import Group


NOT_DRIVEN = trio.CancelScope()
"""Stands in for the scope of a run that nobody drives."""


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
        "cadence",
        "careful",
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
        "memos",
        "number",
        "parked",
        "partition",
        "pending",
        "queue",
        "record",
        "reported",
        "scope",
        "seat",
        "seen",
        "spent",
        "staged",
        "standing",
        "submission",
        "timed",
        "tried_again",
        "undoing",
        "unwinding",
        "waits",
        "workflow",
    )
    is_dry_run = False
    """Whether it is only driven to find out what the code asks for."""

    def __init__(
        self,
        partition: "PartitionState",
        queue: "KeyQueueOfRun",
        submission: Submission,
        standing: Standing,
        workflow: "Workflow[Any, Any] | None",
    ) -> None:
        self.partition = partition
        self.queue = queue
        self.submission = submission
        self.standing = standing
        self.workflow: Any = workflow
        self.number = submission.number
        self.record = partition.ledger.number(submission.number)
        """The key of its records; those of its journal begin with it."""
        self.journal = Journal()
        self.memos: dict[str, bytes] = {}
        self.scope: trio.CancelScope = NOT_DRIVEN
        self.seat: WaitSlot | None = None
        """How the task waits that drives its main line."""
        self.staged: Group | None = None
        """The last group that holds something of this run, or of the one before it: no further
        effect until it is durable."""
        self.current: dict[str, RunningStep] = {}
        self.allowance: OutputAllowance | None = None
        """How much its steps may give, if that is limited."""
        self.graph: GraphOfRun | None = None
        """The graph in the present pass, if it is a run of one."""
        self.begun_steps = 0
        self.deadline = float("inf")
        self.decision: Any = None
        self.unwinding: Unwind | None = None
        self.parked = 0
        self.pending = True
        """Whether it counts as waiting to be started."""
        self.seen = False
        self.timed = False
        """Whether the scope that it is driven in had a deadline."""
        self.spent = False
        """Whether the scope that it was driven in was cancelled."""
        self.careful = False
        """Whether steps wait for their start marker, since the process was killed last time."""
        self.cadence: Cadence | None = None
        """How often it waits until what it has done is durable, if not before every step."""
        self.undoing = False
        """Whether its compensations run, which nothing but a drain cuts off."""
        self.compensators: dict[str, StepFunction[..., Any]] | None = None
        """The steps that are to be undone if the run fails, as far as this process has seen."""
        self.reported: Report | None = None
        self.waits: dict[Wait, None] | tuple[()] = ()
        """What its branches wait for, if they do."""
        self.inbox: Inbox | None = None
        self.counted: bytes | None = standing.fingerprint
        """The fingerprint that it is counted with; see `keyrun.runtime.records.unfinished`."""
        self.tried_again: tuple[QuarantineCause, int] | None = None
        """The cause for which it was quarantined before this open tried it again, and the next
        entry of its journal by then."""
        self._resumed: trio.Event | None = None
        self.location = Location.QUEUED
        """Where it is; only the run table changes it."""
        self.eviction: Eviction | None = None
        """How it leaves memory, while it does."""

    @property
    def resumed(self) -> trio.Event:
        """Set when it is time to look again whether the run may go on."""
        if self._resumed is None:
            self._resumed = trio.Event()
        return self._resumed

    @property
    def feed(self) -> "Feed | None":
        """Return where its events go; None while there is no listener."""
        return self.partition.feed

    @property
    def run_id(self) -> str:
        """The id it was submitted with."""
        return self.submission.run_id

    @property
    def key(self) -> str:
        """The ordering key."""
        return self.submission.key

    def put(self, table: str, key: bytes, *fields: Any) -> None:
        """Stage a record of this run."""
        group = self.staged = self.partition.commits.open_group()
        group.tables[table][key] = seal(table, key, fields)

    def delete(self, table: str, key: bytes) -> None:
        """Stage the removal of a record of this run."""
        group = self.staged = self.partition.commits.open_group()
        group.tables[table][key] = None

    def write(self, entry: JournalEntry) -> None:
        """Stage a journal entry."""
        self.enter(entry.encode())

    def note(self, ident: str, what: str, *details: Any) -> None:
        """Stage a journal entry for the history."""
        self.write(Note(ident, self.partition.wall(), what, details))

    def enter(self, fields: tuple[Any, ...]) -> None:
        """Stage a journal entry that was encoded."""
        journal = self.journal
        sequence = journal.next
        journal.next = sequence + 1
        key = self.record + SEQUENCE.pack(sequence)
        commits = self.partition.commits
        group = self.staged = commits.open_group() if commits.attentive else commits.group
        group.tables["journal"][key] = seal("journal", key, fields)

    def store_standing(self, summary: Summary | None = None) -> None:
        """Stage how the run stands."""
        standing = self.standing
        if standing.fingerprint != self.counted:
            self.counted = self.partition.unfinished.started(
                self.submission, self.counted, standing.fingerprint
            )
        standing.journal_next = self.journal.next
        standing.summary = summary
        self.put("status", self.record, *standing.fields())

    def store_memo(self, step: str, encoded: bytes) -> None:
        """Stage the memo of a step."""
        self.partition.has_memos = True
        self.memos[step] = encoded
        self.put("memo", self.partition.ledger.step(self.number, step), step, encoded)

    def compensated_by(self, ident: str, step: "StepFunction[..., Any]") -> None:
        """Remember how a step is to be undone."""
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
            # Another branch, or somebody outside, may have staged more meanwhile.
            if self.staged is group:
                self.staged = None

    async def wait(self, wait: Wait) -> None:
        """Wait with nothing running, and say so in the status."""
        if wait.over:
            return
        if not self.waits:
            self.waits = {}
        assert isinstance(self.waits, dict)
        standing, partition = self.standing, self.partition
        self.parked += 1
        self.waits[wait] = None
        standing.waiting_on = waiting_on(list(self.waits))
        standing.state = State.WAITING
        self.store_standing()
        partition.keep_time()
        if partition.feed is not None:
            delay = None if wait.until == inf else wait.until - trio.current_time()
            emitter.run_waits(partition.feed, self, wait.label, delay)
        self.begin()
        self.leave_if_asked()
        try:
            # When to go on is on the disk before the wait begins.
            await self.gate()
            partition.services.eviction.consider(self)
            with trio.move_on_at(wait.until):
                await wait.event.wait()
        finally:
            self.parked -= 1
            del self.waits[wait]
            self.seen = False
            if self.unwinding is not Unwind.EVICT and standing.state is State.WAITING:
                standing.waiting_on = waiting_on(list(self.waits))
                if not self.parked:
                    standing.state = State.RUNNING
        if self.unwinding is not None:
            await trio.lowlevel.checkpoint_if_cancelled()
            raise Halt
        if partition.feed is not None:
            emitter.run_goes_on(partition.feed, EventKind.RUN_RESUMED, self)

    @property
    def open_inbox(self) -> Inbox:
        """What it was sent and has not taken."""
        if self.inbox is None:
            self.inbox = Inbox()
        return self.inbox

    @property
    def idle(self) -> bool:
        """Whether all of its branches wait, and none for what has come already."""
        return (
            not self.current
            and self.unwinding is None
            and self.parked + self.journal.at_rest() >= self.journal.tasks
            and not any(wait.over for wait in self.waits)
        )

    def rewind(self) -> None:
        """Have it driven again from its journal."""
        self.journal.rewind()
        self.begun_steps = 0
        self.decision = self.unwinding = None

    def unwind(self, why: Unwind) -> None:
        """Cancel the coroutine of the workflow; the first reason counts."""
        if self.unwinding is None:
            self.unwinding = why
            self.scope.cancel()
            # A shield of the workflow's own must not keep the run in a wait.
            for wait in self.waits:
                wait.event.set()
            self.resume()

    def guard(self, error: BaseException) -> None:
        """Look at an exception that leaves Keyrun's own code for user code. An internal error ends
        the pass, and the driver raises it: whatever user code makes of it says nothing."""
        if is_internal(error):
            raise self.crash(error)

    def crash(self, error: BaseException) -> InternalError:
        """End the pass because of an internal error, as a drain would: nothing that is cut off by
        it counts as cancelled. Return what to raise."""
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
        """Whether nothing ends the pass from outside."""
        ended = self.unwinding is not None or self.scope.cancel_called
        return not ended and self.partition.failure is None

    @property
    def shielded(self) -> bool:
        """Whether all that the run is doing are steps that may only be told of a cancel."""
        steps = self.current.values()
        return bool(steps) and not self.parked and all(step.shielded for step in steps)

    def leave_if_asked(self) -> None:
        """Unwind if the run was cancelled, or if all drains and none of its steps runs any more, or
        if nothing can go on."""
        if self.standing.cancel_requested and not self.undoing:
            self.unwind(Unwind.CANCEL)
        elif self.partition.failure is not None or (self.partition.draining and not self.current):
            self.unwind(Unwind.LEAVE)

    async def hold(self) -> None:
        """Wait until it is time to look again whether the run may go on."""
        self.leave_if_asked()
        if self.unwinding is not None:
            # A shield of the workflow's own must not keep it here.
            await trio.lowlevel.checkpoint_if_cancelled()
            raise Halt
        resumed = self.resumed
        if self.queue.entering:
            self.queue.entered()
        self.parked += 1
        self.partition.services.eviction.consider(self)
        try:
            await resumed.wait()
        finally:
            self.parked -= 1

    def begin(self) -> None:
        """It no longer waits to be started."""
        if self.pending:
            self.pending = False
            self.queue.started()

    @property
    def held(self) -> bool:
        """Whether somebody paused the run, its key, or everything."""
        return self.standing.paused or self.queue.paused or self.partition.paused

    @property
    def stopped(self) -> bool:
        """Whether no further step may start for now."""
        return (
            self.standing.paused
            or (self.standing.cancel_requested and not self.undoing)
            or self.queue.paused
            or self.partition.stopped
        )

    def resume(self) -> None:
        """Look again whether the run is held."""
        if self._resumed is not None:
            self._resumed.set()
            self._resumed = None
        self.queue.wake()

    def status(self) -> RunStatus:
        """How it stands, also where that is not stored yet."""
        status = self.partition.services.status_of(self.submission, self.standing)
        if self.standing.state.terminal or self.standing.cancel_requested:
            return status
        if self.current:
            current = next(iter(self.current.values()))
            return attrs.evolve(
                status, state=State.RUNNING, step=current.step, attempt=current.attempt
            )
        if self.held and self.standing.state is not State.QUARANTINED:
            return attrs.evolve(status, state=State.PAUSED)
        due = min((wait.due for wait in self.waits), default=inf)
        return status if due == inf else attrs.evolve(status, waiting_until=due)
