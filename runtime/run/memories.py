"""Memories: what a run remembers, in memory as it is in the store."""

from zlib import crc32

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
    Entry,
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
from keyrun.runtime.run.unhandled import blocks_left_last, unhandled
from keyrun.runtime.values import CompensationProgress, Failure

_SCOPE = CallKind.SCOPE
_GONE = CallRecord()
_TURN = "turn-"
_APART = (_TURN, COMPENSATION)


class Memories:
    """The memories of a run by what they are about, and the order in which they came about."""

    __slots__ = (
        "_order",
        "continued",
        "done_before",
        "fresh",
        "last_failure",
        "left_by",
        "marks",
        "memories",
        "next",
        "past",
        "retries",
        "turn",
        "turn_entries",
        "undoable",
        "undoing",
        "waited",
    )

    def __init__(self) -> None:
        self.memories: dict[str, CallRecord] = {}
        self.fresh: dict[str, bytes] = {}
        """Steps that were done at their first attempt since others were last settled: what they
        are called and their payload. Nobody asks for them in this pass, and most runs need no
        other, so that is all that is kept of them: strings and bytes, which Python's garbage
        collector need not look at."""
        self.marks: dict[str, int | None] = {}
        """The fingerprints of those of them that were given arguments."""
        self.next = 1
        self.past = 0
        """How many outcomes are there to be asked for again in this pass."""
        self.waited = False
        """Whether there may be waits of an earlier pass that were not asked for again in this."""
        self.retries = 0
        self.last_failure: Failure | None = None
        """What the latest attempt that failed did."""
        self.turn: NextTurn | None = None
        """The next turn of a machine."""
        self.turn_entries: tuple[int, ...] = ()
        """Entries about the turn that is under way, which go when it is done."""
        self.undoable: dict[str, None] | None = None
        """Steps that have a compensation, in the order in which they were done, if there are."""
        self.continued: Continued | None = None
        """What the journal begins with, if the run has gone on with another input."""
        self.done_before: int | None = None
        """Steps that were done before the last redrive, if there was one."""
        self.undoing: Undo | None = None
        """How the run ends when all is undone: see `compensation.decide`."""
        self.left_by: dict[str, str] | None = None
        """The ports by which nodes left in the time of a Keyrun that let an edge without a port
        take every port."""
        self._order: list[str] | tuple[str, ...] = ()

    def memory(self, ident: str) -> CallRecord:
        """What is known of `ident`, from now on remembered."""
        known = self.memories.get(ident)
        if known is None:
            known = self.memories[ident] = CallRecord()
        return known

    def _goes_on(self, ident: str) -> CallRecord:
        """What is known of a call that an entry is about. A call that a redrive asks for anew has
        begun after the redrive."""
        memory = self.memory(ident)
        if memory.lost:
            memory.lost = False
            if memory.redriven:
                memory.redriven = False
                self.memories[ident] = self.memories.pop(ident)
        return memory

    def remember(self, ident: str, fingerprint: int | None) -> CallRecord:
        """What is known of a step, from now on remembered."""
        memory = self.memory(ident)
        memory.fingerprint = fingerprint
        return memory

    def note_undoable(self, ident: str) -> None:
        """A step that has a compensation is done, or was begun if that is enough: what is done
        comes later than what is only begun."""
        if self.undoable is None:
            self.undoable = {}
        self.undoable.pop(ident, None)
        self.undoable[ident] = None

    def _absorb(self) -> None:
        """Remember what is fresh like all the rest."""
        for ident, payload in self.fresh.items():
            memory = self.remember(ident, self.marks.get(ident, 0))
            memory.attempts = 1
            memory.payload = payload
            memory.outcome = Entry.DONE
            memory.delivered = True
            self._note(ident)
        self.fresh.clear()
        self.marks.clear()

    def settled(self, ident: str, memory: CallRecord, outcome: Entry) -> None:
        """`ident` has its outcome, and whoever asked for it has it at once."""
        if self.fresh:
            self._absorb()
        memory.outcome = outcome
        memory.delivered = True
        self._note(ident)

    def has_outcome(self, ident: str) -> bool:
        """Whether it is known how `ident` ended."""
        memory = self.memories.get(ident)
        return ident in self.fresh or (memory is not None and memory.outcome is not None)

    def steps_done(self) -> int:
        """How many steps, or turns, have succeeded. Compensations are not among them."""
        before = 0 if self.turn is None else self.turn.number
        if self.continued is not None:
            before += self.continued.steps
        done, step = Entry.DONE, CallKind.STEP
        steps = [each for each in self.memories.values() if each.call is step]
        count = len([each for each in steps if each.outcome is done])
        if self.undoing is not None:
            undone = (self.memories.get(COMPENSATION + ident) for ident in self.undoing.steps)
            count -= sum(each is not None and each.outcome is done for each in undone)
        return before + count

    def compensation(self) -> CompensationProgress | None:
        """How far the compensation is; None if it has not been decided that there is one."""
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
            done=sum(outcome is Entry.DONE for outcome in outcomes.values()),
            # They run one after the other, the last step first.
            step=next((ident for ident in reversed(idents) if outcomes[ident] is None), None),
            left=tuple(ident for ident in reversed(idents) if outcomes[ident] is Entry.GAVE_UP),
        )

    def outcomes(self) -> int:
        """How many calls have their outcome."""
        return len(self._order)

    def unread(self) -> str | None:
        """An outcome that was not asked for in this pass."""
        if not self.past:
            return None
        return next((ident for ident in self._order if not self.memories[ident].delivered), None)

    def fold(self, sequence: int, entry: JournalEntry) -> None:
        """Add one stored entry; entries come in order."""
        self.next = sequence + 1
        if type(entry) is CallDone and not entry.ident.startswith(_APART):
            # Most entries that a run is loaded with.
            ident, _at, call, fingerprint, attempt, _begun, payload = entry
            memory = self._goes_on(ident)
            memory.call = call
            memory.fingerprint = fingerprint
            memory.attempts = attempt
            memory.payload = payload
            if call is _SCOPE:
                memory.last = next(reversed(self.memories))
                if payload[0] == Ending.FINISHED:
                    memory.left = Left(sequence, memory.last, len(self._order))
            self._has(ident, memory, Entry.DONE)
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
        memory = self._goes_on(entry.ident)
        match entry:
            case Interrupted():
                memory.interrupted(entry.alone)
            case CallDone():
                memory.call, memory.payload = entry.call, entry.payload
                memory.fingerprint, memory.attempts = entry.fingerprint, entry.attempt
                self._fold_outcome(entry.ident, memory, Entry.DONE)
            case AttemptFailed():
                memory.fingerprint, memory.attempts = entry.fingerprint, entry.attempt
                memory.failure = self.last_failure = entry.failure
                memory.next_attempt = entry.retry
                memory.interruptions = memory.interruptions_alone = 0
                self.retries += 1
            case StepGaveUp():
                memory.fingerprint, memory.attempts = entry.fingerprint, entry.attempt
                memory.failure = self.last_failure = entry.failure
                self._fold_outcome(entry.ident, memory, Entry.GAVE_UP)
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

    def _fold_outcome(self, ident: str, memory: CallRecord, outcome: Entry) -> None:
        if ident.startswith(COMPENSATION):
            memory.outcome = outcome  # no workflow asks for it
        else:
            self._has(ident, memory, outcome)

    def _has(self, ident: str, memory: CallRecord, outcome: Entry) -> None:
        """`ident` had its outcome before this pass."""
        memory.outcome = outcome
        self._note(ident)
        self.past += 1

    def _note(self, ident: str) -> None:
        """`ident` has the next outcome in order."""
        if isinstance(self._order, tuple):
            self._order = []
        self._order.append(ident)

    def _forget_failures(self, *, fresh: bool) -> None:
        """What failed is tried again, with budgets that are fresh unless turns since were counted.
        What is done stays done, and so do the failures that the workflow handled: it went on after
        them."""
        again = unhandled(self.memories, self._order)
        for ident in blocks_left_last(self.memories, self._order):
            self.memories[ident].left = None  # the code may come back into the block
        for ident, memory in list(self.memories.items()):
            unfinished = memory.outcome is None
            if memory.call is CallKind.SCOPE and (unfinished or ident in again):
                # What is done in it stays done, so that it begins where it did.
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
