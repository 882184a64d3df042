"""The journal: the calls of a run and their outcomes, which a replay returns in their order.

Entries have sequence numbers. A replay returns the outcomes in that order, so that branches which
run side by side resume in the same order as before.
"""

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING
from zlib import crc32

import trio

from keyrun.runtime.records.journal_entry import (
    COMPENSATION,
    SCOPE_LEFT,
    UNDOABLE,
    AttemptFailed,
    CallDone,
    CallKind,
    CallRecord,
    Continued,
    Ending,
    EntryKind,
    Interrupted,
    JournalEntry,
    Left,
    NextTurn,
    NodeEnded,
    Note,
    Redriven,
    StepGaveUp,
    StepOverrun,
    TimerSet,
    Undo,
    WaitBegan,
)
from keyrun.runtime.run.empty import NOTHING, writable
from keyrun.runtime.run.expected import Expected, Kind, are_apart, expected_of
from keyrun.runtime.run.unhandled import blocks_left_last, unhandled
from keyrun.runtime.values import CompensationProgress, Failure

if TYPE_CHECKING:
    from keyrun.runtime.run.branch import Branch
    from keyrun.runtime.run.scope import Scope
    from keyrun.runtime.run.wait import Wait

# Looking a member up in its enum takes as long as a call.
_SCOPE, _STEP, _DONE = CallKind.SCOPE, CallKind.STEP, EntryKind.DONE
_GONE = CallRecord()
_TURN = "turn-"
_APART = (_TURN, COMPENSATION)

# Shared, because most runs never need it.
_NO_BRANCHES: "frozenset[Branch]" = frozenset()


class Journal:
    """The calls of a run by their identity, the order of their outcomes, and the branches that ask
    for them in this pass."""

    __slots__ = (
        "_cursor",
        "_cut",
        "_limited",
        "_missing",
        "_order",
        "continued",
        "done_before",
        "expected",
        "fresh",
        "held",
        "last_failure",
        "left_by",
        "marks",
        "memories",
        "next",
        "nodes_ended",
        "outside",
        "past",
        "resting",
        "retries",
        "scopes",
        "tasks",
        "turn",
        "turn_entries",
        "undoable",
        "undoing",
        "waited",
        "waiters",
    )

    def __init__(self) -> None:
        self.memories: dict[str, CallRecord] = {}
        self.fresh: dict[str, bytes] = {}
        """Steps that succeeded in their first attempt since another call was settled: the name and
        the payload. The code does not ask for them again in this pass, so only strings and bytes
        are kept, which Python's garbage collector does not visit."""
        self.marks: dict[str, int | None] = {}
        """The fingerprints of the fresh steps that have arguments."""
        self.next = 1
        self.past = 0
        """The number of outcomes of earlier passes."""
        self.waited = False
        """Whether there may be waits of an earlier pass that this pass has not reached."""
        self.retries = 0
        self.last_failure: Failure | None = None
        """The failure of the latest failed attempt."""
        self.turn: NextTurn | None = None
        """The next turn of a machine."""
        self.turn_entries: tuple[int, ...] = ()
        """Entries about the present turn, which are removed when the turn is done."""
        self.undoable: dict[str, None] | None = None
        """Steps that have a compensation, in the order in which they were done, if there are
        any."""
        self.continued: Continued | None = None
        """The first entry of the journal, if the run was continued with another input."""
        self.done_before: int | None = None
        """The number of steps that were done before the last redrive, if there was one."""
        self.undoing: Undo | None = None
        """How the run ends when its compensations have run: see `compensation.decide`."""
        self.nodes_ended: set[str] | None = None
        """The nodes with workflow code whose end the journal has, since the last redrive."""
        self.left_by: dict[str, str] | None = None
        """The ports of nodes that ended under an older Keyrun, which let an edge without a port
        take every port."""
        self._order: list[str] | tuple[str, ...] = ()
        self.waiters: dict[str, Callable[[], None]] = NOTHING
        """Branches that ask for an outcome before its turn, and how to wake them."""
        self.tasks = 1
        """The number of branches that have not ended and do not only wait for their forks."""
        self.resting: dict[Branch, trio.Event] = NOTHING
        """The branches that wait to be cut off, because the journal says that they were."""
        self.scopes: dict[str, Scope] = NOTHING
        """The blocks with a time limit that have been entered and not left, outer ones first."""
        self._cut: frozenset[Branch] = _NO_BRANCHES
        """The branches that waited until a block expired and have not resumed yet."""
        self._limited = 0
        """The number of branches in `resting` whose own Trio scope has a deadline."""
        self.outside: Collection[Wait] = ()
        """The waits of the run: what branches wait for that is not in the journal."""
        self._missing: str | None = None
        self._cursor = 0
        self.expected: Expected | None = None
        """The calls that the code has to ask for before a new call may start; None if there are
        none."""
        self.held: dict[trio.Event, None] = NOTHING
        """The new calls that wait to start."""

    # The calls.

    def memory(self, ident: str) -> CallRecord:
        """Return the record of a call. It is made if there is none."""
        known = self.memories.get(ident)
        if known is None:
            known = self.memories[ident] = CallRecord()
        return known

    def _call_of(self, ident: str) -> CallRecord:
        """Return the record of a call that an entry is about. A call that a redrive makes again
        began after the redrive."""
        memory = self.memory(ident)
        if memory.lost:
            memory.lost = False
            if memory.redriven:
                memory.redriven = False
                self.memories[ident] = self.memories.pop(ident)
        return memory

    def enter_scope(self, ident: str, scope: "Scope") -> None:
        """Record that a block with a time limit was entered."""
        self.scopes = writable(self.scopes)
        self.scopes[ident] = scope

    def remember(self, ident: str, fingerprint: int | None) -> CallRecord:
        """Return the record of a step with this fingerprint. It is made if there is none."""
        memory = self.memory(ident)
        memory.fingerprint = fingerprint
        return memory

    def note_node_ended(self, ident: str) -> bool:
        """Record that the journal has the end of a node, and return whether that is new."""
        if self.nodes_ended is None:
            self.nodes_ended = set()
        is_new = ident not in self.nodes_ended
        self.nodes_ended.add(ident)
        return is_new

    def note_undoable(self, ident: str) -> None:
        """Record that a step with a compensation is done, or was begun if that is enough. A step
        that is done moves to the end."""
        if self.undoable is None:
            self.undoable = {}
        self.undoable.pop(ident, None)
        self.undoable[ident] = None

    def _absorb(self) -> None:
        """Make records of the fresh steps."""
        for ident, payload in self.fresh.items():
            memory = self.remember(ident, self.marks.get(ident, 0))
            memory.attempts = 1
            memory.payload = payload
            memory.outcome = _DONE
            memory.delivered = True
            self._note(ident)
        self.fresh.clear()
        self.marks.clear()

    def settled(self, ident: str, memory: CallRecord, outcome: EntryKind) -> None:
        """Record the outcome of a call, which its caller has received."""
        if self.fresh:
            self._absorb()
        memory.outcome = outcome
        memory.delivered = True
        self._note(ident)

    def has_outcome(self, ident: str) -> bool:
        """Return whether a call has an outcome."""
        memory = self.memories.get(ident)
        return ident in self.fresh or (memory is not None and memory.outcome is not None)

    def steps_done(self) -> int:
        """Return the number of steps or turns that have succeeded, without compensations."""
        before = 0 if self.turn is None else self.turn.number
        if self.continued is not None:
            before += self.continued.steps
        memories = self.memories.values()
        count = len([each for each in memories if each.outcome is _DONE and each.call is _STEP])
        if self.undoing is not None:
            undone = (self.memories.get(COMPENSATION + ident) for ident in self.undoing.steps)
            count -= sum(each is not None and each.outcome is _DONE for each in undone)
        return before + count

    def compensation(self) -> CompensationProgress | None:
        """Return the progress of the compensation, or None if no compensation was decided."""
        if self.undoing is None:
            return None
        idents = self.undoing.steps
        outcomes = {
            ident: None if memory is None else memory.outcome
            for ident in idents
            for memory in (self.memories.get(COMPENSATION + ident),)
        }
        return CompensationProgress(
            total=len(idents),
            done=sum(outcome is EntryKind.DONE for outcome in outcomes.values()),
            # Compensations run one after the other, the last step first.
            step=next((ident for ident in reversed(idents) if outcomes[ident] is None), None),
            left=tuple(ident for ident in reversed(idents) if outcomes[ident] is EntryKind.GAVE_UP),
        )

    def outcomes(self) -> int:
        """Return the number of calls that have an outcome."""
        return len(self._order)

    def unread(self) -> str | None:
        """Return a call whose outcome the code has not asked for in this pass, or None."""
        if not self.past:
            return None
        return next((ident for ident in self._order if not self.memories[ident].delivered), None)

    def fold(self, sequence: int, entry: JournalEntry) -> None:
        """Add a stored entry. Entries are added in order."""
        self.next = sequence + 1
        if type(entry) is CallDone and not entry.ident.startswith(_APART):
            # Most stored entries are of this kind.
            ident, _at, call, fingerprint, attempt, _begun, payload = entry
            memory = self._call_of(ident)
            memory.call = call
            memory.fingerprint = fingerprint
            memory.attempts = attempt
            memory.payload = payload
            if call is _SCOPE:
                memory.last = next(reversed(self.memories))
                if payload[0] == Ending.FINISHED:
                    memory.left = Left(sequence, memory.last, len(self._order))
            self._has(ident, memory, _DONE)
            return
        match entry:
            case Continued():
                self.continued = entry
            case NextTurn():
                self.turn = entry
                self.retries = entry.retries
            case Undo():
                self.undoing = entry
            case Redriven():
                self.done_before = self.steps_done()
                self.nodes_ended = None
                self._forget_failures(fresh=self.turn is None or sequence >= self.turn.upto)
            case _:
                if entry.ident.startswith(_TURN):
                    self.turn_entries += (sequence,)
                if isinstance(entry, Note | NodeEnded | StepOverrun):
                    self._fold_note(sequence, entry)
                else:
                    self._fold_call(sequence, entry)

    def _fold_note(self, sequence: int, entry: Note | NodeEnded | StepOverrun) -> None:
        ident = entry.ident
        if isinstance(entry, NodeEnded):
            self.note_node_ended(ident)
            if not entry.has_failure and entry.port is not None:
                self.left_by = {**(self.left_by or {}), ident: entry.port}
        elif isinstance(entry, Note):
            if entry.what == UNDOABLE:
                self.note_undoable(ident)
            elif entry.what in ("wait_cancelled", "step_cancelled"):
                memory = self.memory(ident)
                memory.rank = 0
                memory.lost = True
            elif entry.what == SCOPE_LEFT:
                last = next(reversed(self.memories))
                self.memory(ident).left = Left(sequence, last, len(self._order))

    def _fold_call(
        self,
        sequence: int,
        entry: CallDone | AttemptFailed | StepGaveUp | Interrupted | TimerSet | WaitBegan,
    ) -> None:
        memory = self._call_of(entry.ident)
        match entry:
            case Interrupted():
                memory.interrupted(entry.alone)
            case CallDone():
                memory.call, memory.payload = entry.call, entry.payload
                memory.fingerprint, memory.attempts = entry.fingerprint, entry.attempt
                self._fold_outcome(entry.ident, memory, EntryKind.DONE)
            case AttemptFailed():
                memory.fingerprint, memory.attempts = entry.fingerprint, entry.attempt
                memory.failure = self.last_failure = entry.failure
                memory.next_attempt = entry.retry
                memory.interruptions = memory.interruptions_alone = 0
                self.retries += 1
            case StepGaveUp():
                memory.fingerprint, memory.attempts = entry.fingerprint, entry.attempt
                memory.failure = self.last_failure = entry.failure
                self._fold_outcome(entry.ident, memory, EntryKind.GAVE_UP)
            case TimerSet():
                memory.call = entry.call
                if entry.call is CallKind.SCOPE:
                    memory.scope_limit = entry.timer
                else:
                    memory.sleep_timer = entry.timer
            case WaitBegan():
                memory.call, memory.channel, memory.child = entry.call, entry.channel, entry.child
                memory.fingerprint = crc32((entry.channel or "").encode())
                memory.wait_limit = entry.limit
                memory.rank = sequence
                self.waited = True

    def _fold_outcome(self, ident: str, memory: CallRecord, outcome: EntryKind) -> None:
        if ident.startswith(COMPENSATION):
            memory.outcome = outcome  # the workflow does not ask for it
        else:
            self._has(ident, memory, outcome)

    def _has(self, ident: str, memory: CallRecord, outcome: EntryKind) -> None:
        """Record an outcome of an earlier pass."""
        memory.outcome = outcome
        self._note(ident)
        self.past += 1

    def _note(self, ident: str) -> None:
        """Append a call to the order of outcomes."""
        if isinstance(self._order, tuple):
            self._order = []
        self._order.append(ident)

    def _forget_failures(self, *, fresh: bool) -> None:
        """Forget the failures that a redrive retries. With `fresh`, the retry budget starts anew.
        Calls that are done stay done, and so do the failures that the workflow has handled."""
        again = unhandled(self.memories, self._order)
        for ident in blocks_left_last(self.memories, self._order):
            self.memories[ident].left = None  # the code may come back into the block
        for ident, memory in list(self.memories.items()):
            unfinished = memory.outcome is None
            if memory.call is CallKind.SCOPE and (unfinished or ident in again):
                # The calls inside the block stay done, so the block keeps its place.
                self.memories[ident] = fresh_block = CallRecord()
                fresh_block.call = CallKind.SCOPE
                fresh_block.lost = True
            elif ident in again:
                del self.memories[ident]
            elif unfinished:
                if memory.call is CallKind.STEP:
                    memory = self.memories[ident] = CallRecord()
                memory.lost = memory.redriven = True
        self._order = [ident for ident in self._order if self.memories.get(ident, _GONE).outcome]
        if fresh:
            self.retries = 0
        self.last_failure = None

    # A pass over the journal.

    def expect(self, kind: Kind) -> None:
        """Begin the first pass of a workflow of this kind over a stored journal."""
        if self.memories or self.turn is not None:
            turning = self.turn is not None
            self.expected = expected_of(self.memories, self._order, kind, turning=turning)

    def rewind(self) -> None:
        """Begin another pass. The code asks for every outcome again, in order."""
        self._absorb()
        for ident in self._order:
            self.memories[ident].delivered = False
        self.past = len(self._order)
        self.waited = True
        self._cursor = 0
        self.tasks = 1
        self._missing = None
        # The same code is called again, so there is nothing to compare.
        self.expected = None
        self.held.clear()
        self.waiters.clear()
        self.resting.clear()
        self.scopes.clear()
        self._cut = _NO_BRANCHES

    def may_deliver(self, ident: str) -> bool:
        """Return whether the outcome of `ident` is the next one in order."""
        order = self._order
        while self._cursor < len(order) and self.memories[order[self._cursor]].delivered:
            self._cursor += 1
        return self._cursor >= len(order) or order[self._cursor] == ident

    def is_replaying(self) -> bool:
        """Return whether there are outcomes that this pass has not returned yet."""
        return self.past > 0 and not self.may_deliver("")

    def upcoming(self) -> str | None:
        """Return the call whose outcome is the next one in order, or None."""
        return None if self.may_deliver("") else self._order[self._cursor]

    async def turn_of(self, ident: str) -> str | None:
        """Return None when the outcome of `ident` is the next one in order. Return the call whose
        outcome is next if no branch is left that could ask for it."""
        if self.may_deliver(ident):
            return None
        turn = trio.Event()
        self.waiters = writable(self.waiters)
        self.waiters[ident] = turn.set
        self.check_stuck()
        try:
            await turn.wait()
        except trio.Cancelled:
            if not any(scope.fired for scope in self.around(ident)):
                if turn.is_set():
                    # It was its turn, and it is cut off: the next branch must not wait for it.
                    self._wake_next()
                raise
            # The outcome came after its block had expired, so the call was not cancelled then.
            with trio.CancelScope(shield=True):
                await turn.wait()
        finally:
            self.waiters.pop(ident, None)
        if self._missing is None and self.caught_up():
            # What waited to start something new returns no outcome, so it wakes the next one here.
            self._wake_next()
        return self._missing

    def call_asked(self, expected: Expected) -> None:
        """Let new calls start if the code has asked for all expected calls."""
        if not expected.left:
            self._start_next()

    def _start_next(self) -> None:
        """Let the new call start that the code asked for first. Trio wakes tasks in a random order,
        so each of them starts before the next one is woken."""
        if self.held:
            next(iter(self.held)).set()
        else:
            self.expected = None

    async def all_asked(self) -> str | None:
        """Return None when the code has asked for all expected calls. Return an expected call if no
        branch is left that could ask for it."""
        over = trio.Event()
        self.held = writable(self.held)
        self.held[over] = None
        self.check_stuck()
        try:
            await over.wait()
        finally:
            self.held.pop(over, None)
            if self.expected is not None and not self.expected.left:
                self._start_next()
        return self._missing

    async def wait_cut_off(self, branch: "Branch") -> str | None:
        """Return None when a block around `branch` expires again. Return the call whose outcome is
        next if no branch is left that could ask for it."""
        self.resting = writable(self.resting)
        over = self.resting[branch] = trio.Event()
        limited = trio.current_effective_deadline() < branch.run.deadline
        self._limited += limited
        self.check_stuck()
        try:
            await over.wait()
        finally:
            self._limited -= limited
            self.resting.pop(branch, None)
            self._cut -= {branch}
            for scope in self.around(branch.prefix):
                if scope.fired and not self._cut:
                    self.deliver(scope.memory)
        return self._missing

    def waiting(self) -> int:
        """Return the number of branches that cannot resume by themselves."""
        held = sum(not over.is_set() for over in self.held)
        return len(self.waiters) + len(self.resting) + held - self._limited

    def resting_branches(self) -> int:
        """Return the number of branches that wait to be cut off."""
        return sum(not over.is_set() for over in self.resting.values())

    def check_stuck(self) -> None:
        """Wake all branches if they wait for a call that no branch can ask for any more.

        A branch that waits for something outside may still ask for calls behind its own, or behind
        the `gather` that it is in, but never for calls of a branch beside it."""
        if self.scopes:
            self.advance()
        waiting = self.waiting()
        if not waiting or self.tasks > waiting + len(self.outside):
            return
        if not self.caught_up():
            wanted: Iterable[str] = (self._order[self._cursor],)
        elif self.held and self.expected is not None and self.expected.left:
            wanted = self.expected.all_next()
        else:
            return
        outside = self.outside if self.tasks > waiting else ()
        if any(wait.over for wait in outside):
            return
        idents = [wait.ident for wait in outside]
        missing = (call for call in wanted if all(are_apart(call, other) for other in idents))
        self._missing = next(missing, None)
        if self._missing is None:
            return
        for wake in self.waiters.values():
            wake()
        for over in (*self.resting.values(), *self.held):
            over.set()

    def deliver(self, memory: CallRecord) -> None:
        """Record that an outcome is returned to the code, and wake the branch that asked for the
        next one."""
        memory.delivered = True
        if self.scopes:
            self.advance()
        elif self.waiters:
            self._wake_next()

    def caught_up(self) -> bool:
        """Return whether this pass has returned all outcomes."""
        return self.may_deliver("")

    def around(self, name: str) -> "list[Scope]":
        """Return the blocks around a call, or around the branch with this prefix, outer ones first.
        While a branch is in a block, it and its forks make all their calls in that block."""
        return [scope for scope in list(self.scopes.values()) if name.startswith(scope.prefix)]

    def advance(self) -> None:
        """Let the next blocks in order expire, when all branches in them only wait for that. The
        branches that they cut off resume before any other outcome is returned. If all outcomes are
        returned, start the time of the blocks that have not ended."""
        scopes = self.scopes
        while not self.caught_up():
            scope = scopes.get(self._order[self._cursor])
            if scope is None or not scope.expires or scope.fired:
                break
            inside = [one for one in self.resting if one.prefix.startswith(scope.prefix)]
            if scope.ending is not Ending.IN_PASSING and not self._is_quiet(scope, inside):
                break
            scope.cancel()
            self._cut = self._cut.union(inside)
            for one in inside:
                self.resting.pop(one).set()
            scope.memory.delivered = not inside
        else:
            for scope in scopes.values():
                if not any(one.fired for one in scopes.values() if one.is_in(scope)):
                    scope.start_clock(exactly=False)
        self._wake_next()

    def _is_quiet(self, scope: "Scope", resting: "list[Branch]") -> bool:
        """Return whether all branches in a block wait to be cut off, at least one of them, or for
        an outcome that comes later in the order."""
        if not resting:
            return False
        waiting = {ident.rpartition("/")[0] for ident in self.waiters}
        if all(one in resting or one.prefix[:-1] in waiting for one in scope.active_branches()):
            return True
        scope.expire_soon()
        return False

    def expect_no_more(self, prefix: str) -> None:
        """Expect no more calls in the scopes that begin with `prefix`, which were cut off."""
        if self.expected is not None:
            self.expected.drop(prefix)
            self.call_asked(self.expected)

    def _wake_next(self) -> None:
        for ident, wake in self.waiters.items():
            if self.may_deliver(ident):
                del self.waiters[ident]
                wake()
                return

    def cut_off(self, node: str) -> list[str]:
        """Expect no more calls of a node that a map has cut off. Return its waits for signals,
        which end by that."""
        self.abandon(node)
        ended = []
        for ident, memory in self.memories.items():
            if memory.rank and memory.outcome is None and ident.startswith(f"{node}/"):
                memory.rank = 0
                ended.append(ident)
        return ended

    def abandon(self, scope: str, *, halted: bool = False) -> None:
        """Expect no more calls of the branches in `scope`, which have ended. If the pass is
        `halted`, no new call starts elsewhere because of that."""
        if not halted:
            self.expect_no_more(scope)
        for ident in self._order:
            if ident.startswith(scope):
                self.memories[ident].delivered = True
                if wake := self.waiters.pop(ident, None):
                    wake()
        self.advance()
