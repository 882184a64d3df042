"""Journal entries: one type for each kind, with `encode` and `decode`.

A stored entry is a list of fields that starts with the number of its kind, the name of the call it
is about, and the time when it was made. Only this module knows the positions of fields. Older
versions of Keyrun stored fewer fields for some kinds: `decode` fills those with defaults.
"""

from collections.abc import Callable, Iterable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

from keyrun.runtime.records.submission import StatusRecord, read_failure, write_end, write_failure
from keyrun.runtime.values import Failure, State

CHILD = "keyrun.child:"
"""The prefix of the channel that notifies a run of the end of a child."""
COMPENSATION = "undo()/"
"""The prefix of the name of a compensation, before the name of its step. No step can have such a
name."""
GATE = "keyrun.approval:"
"""The prefix of the channel of an approval gate."""


class EntryKind(IntEnum):
    """Kinds of entries; the numbers are stored."""

    DONE = 1
    FAILED = 2
    GAVE_UP = 3
    INTERRUPTED = 4
    REDRIVEN = 5
    TIMER = 6
    NOTE = 7
    TURN = 8
    WAIT = 9
    CONTINUED = 10
    UNDO = 16


class CallKind(IntEnum):
    """Kinds of durable calls; the numbers are stored."""

    STEP = 1
    NOW = 2
    GATHER = 3
    TIMER = 4
    SCOPE = 5
    SIGNAL = 6
    APPROVAL = 7
    CHILD = 8
    GRAPH = 16


class Ending(IntEnum):
    """How a block with a time limit ended; the numbers are stored."""

    FINISHED = 0
    EXPIRED = 1
    """A durable call in it was cut off."""
    IN_PASSING = 2
    """It was cut off between durable calls, or while an inner block was cutting it off."""


SCOPE_LEFT = "scope_left"
"""The note that the code has left a block which had expired. Code that is cut off may still make
calls in the block, so the entry which says that the block expired does not say where it ends.
Earlier versions wrote no such note. Then the payload of that entry has two items, not three."""


class Left(NamedTuple):
    """The point at which the code left a block."""

    sequence: int
    """The sequence number of the entry about it."""
    last: str
    """The call that had begun last."""
    outcomes: int
    """The number of calls that had an outcome."""


class CallRecord:
    """The state of one durable call in the journal. The defaults are attributes of the class,
    because most calls never set most of them."""

    call = CallKind.STEP
    fingerprint: int | None = None
    attempts = 0
    failure: Failure | None = None
    next_attempt: "Timer | None" = None
    """For a step, when the next attempt is due, and the length of that wait."""
    sleep_timer: "Timer | None" = None
    """For a sleep, when it is over, and its length."""
    wait_limit: "Timer | None" = None
    """For a wait for a signal or an approval, when it times out, and its length. None if never."""
    scope_limit: "Timer | None" = None
    """For a block with a time limit, when it expires, and its length."""
    interruptions = 0
    interruptions_alone = 0
    outcome: EntryKind | None = None
    payload: Any = None
    delivered = False
    lost = False
    """Whether the last entry about the call says that it was cut off."""
    redriven = False
    """Whether the call is lost because the run ended without it. A redrive makes it again."""
    last: str | None = None
    """The call that had begun last when a block expired."""
    left: Left | None = None
    """Where a block was left, if the journal knows."""
    block: str | None = None
    """The innermost block that the code left before this call had an outcome."""
    child: int | None = None
    """For a child, the checksum of its workflow, key and input."""
    channel: str | None = None
    """The channel that the call waits on, if it waits for a signal."""
    rank = 0
    """The sequence number of the entry with which the wait began; 0 if the call does not wait."""

    def interrupted(self, alone: bool) -> None:
        """Count an attempt that a crash cut off. `alone` says that no other attempt was running."""
        self.interruptions += 1
        self.interruptions_alone += bool(alone)

    @property
    def unsuspected(self) -> bool:
        """Return whether the call never failed and was interrupted at most once."""
        return not (self.attempts or self.interruptions > 1 or self.interruptions_alone)

    @property
    def known(self) -> bool:
        """Return whether an attempt was made or interrupted."""
        return self.attempts > 0 or self.interruptions > 0


NODE_ENDED = "node_ended"
"""The note about the end of a node that is workflow code."""
STEP_OVERRUN = "step_overrun"
"""The note that a step in a thread has exceeded its timeout."""
UNDOABLE = "undoable"
"""The note that a step has a compensation."""


class Timer(NamedTuple):
    """A point in time, in seconds since the epoch, and the length of the wait until then."""

    due: float
    length: float


class CallDone(NamedTuple):
    """A call has an outcome."""

    ident: str
    at: float
    call: CallKind
    fingerprint: int | None
    attempt: int
    begun: float | None
    payload: Any

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        ident, at, call, fingerprint, attempt, begun, payload = self
        return _DONE, ident, at, int(call), fingerprint, attempt, begun, payload


class AttemptFailed(NamedTuple):
    """An attempt failed, and another follows."""

    ident: str
    at: float
    fingerprint: int | None
    attempt: int
    begun: float | None
    failure: Failure
    retry: Timer
    """When the next attempt is due."""

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        ident, at, fingerprint, attempt, begun, failure, retry = self
        kind = int(EntryKind.FAILED)
        return kind, ident, at, fingerprint, attempt, begun, write_failure(failure), retry


class StepGaveUp(NamedTuple):
    """A step failed permanently."""

    ident: str
    at: float
    fingerprint: int | None
    attempt: int
    begun: float | None
    failure: Failure

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        ident, at, fingerprint, attempt, begun, failure = self
        kind = int(EntryKind.GAVE_UP)
        return kind, ident, at, fingerprint, attempt, begun, write_failure(failure)


class Interrupted(NamedTuple):
    """A crash cut an attempt off."""

    ident: str
    at: float
    attempt: int
    alone: bool
    """Whether no other attempt was running."""
    begun: float | None = None

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        return int(EntryKind.INTERRUPTED), *self


class Redriven(NamedTuple):
    """The run was redriven. Failures before this entry no longer count."""

    at: float
    generation: int
    former: StatusRecord | None = None
    """When the generation before started and ended, and how. Older versions did not store this."""

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        former = () if self.former is None else write_end(self.former)
        return int(EntryKind.REDRIVEN), "", self.at, self.generation, *former


class TimerSet(NamedTuple):
    """A sleep began, or a block with a time limit was entered: `call` says which."""

    ident: str
    at: float
    timer: Timer
    call: CallKind = CallKind.TIMER

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        ident, at, (due, length), call = self
        block = () if call is CallKind.TIMER else (int(call),)
        return int(EntryKind.TIMER), ident, at, due, length, *block


class NextTurn(NamedTuple):
    """The next turn of a machine, always at sequence 0: when it is due, the signal that it waits
    for, and the signal that arrived."""

    at: float
    number: int
    payload: bytes
    timer: Timer | None = None
    retries: int = 0
    """The number of retries in the turns before."""
    upto: int = 0
    """The sequence number of the entry up to which the retries are counted."""
    channel: str | None = None
    signal: bytes | None = None

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        at, *rest = self
        return int(EntryKind.TURN), "turn", at, *rest


class Undo(NamedTuple):
    """The run ends with this state when the compensations of `steps` have run."""

    at: float
    state: State
    reason: str | None
    failure: Failure | None
    dead: bool
    steps: Sequence[str]

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        at, state, reason, failure, dead, steps = self
        return int(EntryKind.UNDO), "", at, str(state), reason, write_failure(failure), dead, steps


class Note(NamedTuple):
    """Something that happened, for the history. A few notes also matter to replay."""

    ident: str
    at: float
    what: str
    details: tuple[Any, ...] = ()

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        return int(EntryKind.NOTE), self.ident, self.at, self.what, *self.details


class NodeEnded(NamedTuple):
    """A node that is workflow code has ended."""

    ident: str
    at: float
    on: str
    """`complete` or `fail`."""
    port: str | None
    fired: list[int]
    """The edges that were taken."""
    failure: Failure | None
    has_failure: bool = True
    """False for an entry from before the rule that a rejection or a timeout which no edge takes
    fails its node. Such an entry has no field for the failure."""

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        ident, at, on, port, fired, failure, has_failure = self
        failed = (write_failure(failure),) if has_failure else ()
        return int(EntryKind.NOTE), ident, at, NODE_ENDED, on, port, fired, *failed


class StepOverrun(NamedTuple):
    """A step in a thread has exceeded its timeout, and its thread still runs."""

    ident: str
    at: float
    attempt: int
    limit: float

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        ident, at, attempt, limit = self
        return int(EntryKind.NOTE), ident, at, STEP_OVERRUN, attempt, limit


class WaitBegan(NamedTuple):
    """A wait for a signal, an approval or a child began."""

    ident: str
    at: float
    call: CallKind
    channel: str
    limit: Timer | None
    """When the wait times out; None if never."""
    child: int | None = None
    """Of a child: the checksum of its workflow, key and input."""

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        ident, at, call, channel, limit, child = self
        which = (child,) if call is CallKind.CHILD else ()
        return int(EntryKind.WAIT), ident, at, int(call), channel, limit, *which


class Continued(NamedTuple):
    """The run continues with another input, always at sequence 0: how often it has continued, the
    input, and the number of steps that were done before."""

    at: float
    number: int
    input: bytes
    steps: int

    def encode(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        at, number, input_, steps = self
        return int(EntryKind.CONTINUED), "", at, number, input_, steps


JournalEntry: TypeAlias = (
    CallDone
    | AttemptFailed
    | StepGaveUp
    | Interrupted
    | Redriven
    | TimerSet
    | NextTurn
    | Undo
    | Note
    | NodeEnded
    | StepOverrun
    | WaitBegan
    | Continued
)

# Looking a member up in its enum takes as long as the rest of an entry.
_DONE, _STEP = int(EntryKind.DONE), int(CallKind.STEP)
_CALL_KINDS = {int(call): call for call in CallKind}
_new = tuple.__new__


def encode_step(
    ident: str, at: float, fingerprint: int | None, attempt: int, begun: float, payload: bytes
) -> tuple[Any, ...]:
    """Return the fields of the `CallDone` of a step without making one: every step is encoded."""
    return _DONE, ident, at, _STEP, fingerprint, attempt, begun, payload


def decode(fields: list[Any]) -> JournalEntry:
    """Return the entry that is stored as `fields`. Raise ValueError if the kind is not known, or
    the number of fields does not match the kind."""
    decoder = _DECODERS.get(fields[0])
    if decoder is None:
        raise ValueError(f"{fields[0]!r} is not a known kind of journal entry")
    return decoder(fields)


def _done(fields: list[Any]) -> CallDone:
    _, ident, at, call, fingerprint, attempt, begun, payload = fields
    kind = _CALL_KINDS[call]
    return _new(CallDone, (ident, at, kind, fingerprint, attempt, begun, payload))


def _failed(fields: list[Any]) -> AttemptFailed:
    _, ident, at, fingerprint, attempt, begun, failure, retry = fields
    return AttemptFailed(ident, at, fingerprint, attempt, begun, _failure(failure), Timer(*retry))


def _gave_up(fields: list[Any]) -> StepGaveUp:
    _, ident, at, fingerprint, attempt, begun, failure = fields
    return StepGaveUp(ident, at, fingerprint, attempt, begun, _failure(failure))


def _failure(fields: list[Any]) -> Failure:
    failure = read_failure(fields)
    assert failure is not None
    return failure


def _interrupted(fields: list[Any]) -> Interrupted:
    _, ident, at, attempt, alone, *begun = fields
    return _new(Interrupted, (ident, at, attempt, alone, begun[0] if begun else None))


def _redriven(fields: list[Any]) -> Redriven:
    _, _, at, generation, *former = fields
    if len(former) < 5:
        return Redriven(at, generation)
    started_at, ended_at, state, reason, failure = former[:5]
    end = StatusRecord(
        started_at=started_at,
        ended_at=ended_at,
        state=State(state),
        reason=reason,
        failure=read_failure(failure),
    )
    return Redriven(at, generation, end)


def _timer_set(fields: list[Any]) -> TimerSet:
    _, ident, at, due, length, *call = fields
    kind = CallKind(call[0]) if call else CallKind.TIMER
    return TimerSet(ident, at, Timer(due, length), kind)


def _turn(fields: list[Any]) -> NextTurn:
    _, _, at, number, payload, timer, *more = fields
    return NextTurn(at, number, payload, timer and Timer(*timer), *more)


def _undo(fields: list[Any]) -> Undo:
    _, _, at, state, reason, failure, dead, steps = fields
    return Undo(at, State(state), reason, read_failure(failure), dead, steps)


def _note(fields: list[Any]) -> JournalEntry:
    _, ident, at, what, *details = fields
    if what == NODE_ENDED:
        on, port, fired, *failure = details
        failed = read_failure(failure[0]) if failure else None
        return NodeEnded(ident, at, on, port, fired, failed, bool(failure))
    if what == STEP_OVERRUN:
        attempt, limit = details
        return StepOverrun(ident, at, attempt, limit)
    return Note(ident, at, what, tuple(details))


def _wait_began(fields: list[Any]) -> WaitBegan:
    _, ident, at, call, channel, limit, *child = fields
    which = child[0] if child else None
    return WaitBegan(ident, at, CallKind(call), channel, limit and Timer(*limit), which)


def _continued(fields: list[Any]) -> Continued:
    _, _, at, number, input_, steps = fields
    return Continued(at, number, input_, steps)


_DECODERS: dict[int, Callable[[list[Any]], JournalEntry]] = {
    int(EntryKind.DONE): _done,
    int(EntryKind.FAILED): _failed,
    int(EntryKind.GAVE_UP): _gave_up,
    int(EntryKind.INTERRUPTED): _interrupted,
    int(EntryKind.REDRIVEN): _redriven,
    int(EntryKind.TIMER): _timer_set,
    int(EntryKind.NOTE): _note,
    int(EntryKind.TURN): _turn,
    int(EntryKind.WAIT): _wait_began,
    int(EntryKind.CONTINUED): _continued,
    int(EntryKind.UNDO): _undo,
}


def began_at(entry: JournalEntry) -> float:
    """Return when the call began that an entry is about, or when the entry was made if the entry
    does not say it."""
    begun = None
    if isinstance(entry, CallDone | AttemptFailed | StepGaveUp | Interrupted):
        begun = entry.begun
    return float(entry.at if begun is None else begun)


_UNDRIVEN = (Note, NodeEnded, StepOverrun, Redriven, Continued)


def is_note(entry: JournalEntry) -> bool:
    """Return whether an entry is stored as a note."""
    return isinstance(entry, Note | NodeEnded | StepOverrun)


def is_driven(entry: JournalEntry) -> bool:
    """Return whether an entry shows that the run was driven."""
    return not isinstance(entry, _UNDRIVEN)


def started_at(entries: Iterable[JournalEntry]) -> float | None:
    """Return when the first call of the present generation began, or None if there is none. The
    status record is not written when a run starts, so after a crash only the journal may know."""
    first: float | None = None
    for entry in entries:
        if isinstance(entry, Redriven):
            first = None
        elif is_driven(entry):
            began = began_at(entry)
            first = began if first is None else min(first, began)
    return first
