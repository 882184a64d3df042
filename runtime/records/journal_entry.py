"""Journal entries: the kinds of entries, and what the entries of one call say together.

An entry is a list of fields. It starts with its kind, the identity of the call, and the time at
which the entry was made.
"""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

from keyrun.runtime.values import Failure

CHILD = "keyrun.child:"
"""What the channel on which a run hears of a child begins with."""
COMPENSATION = "undo()/"
"""What the name of a compensation begins with, before the name of its step. No step can have such a
name."""
GATE = "keyrun.approval:"
"""What the channel of an approval gate begins with."""


class Entry(IntEnum):
    """Kinds of entries; the numbers are stored."""

    DONE = 1
    """A call has an outcome: kind of call, fingerprint, attempt, begun, payload."""
    FAILED = 2
    """An attempt failed and another follows: fingerprint, attempt, begun, failure, next."""
    GAVE_UP = 3
    """A step failed for good: fingerprint, attempt, begun, failure."""
    INTERRUPTED = 4
    """A crash cut an attempt off: attempt, whether it ran alone, begun."""
    REDRIVEN = 5
    """Failures before this no longer count: generation, and of the one before it when it started
    and ended, and how: state, reason, failure."""
    TIMER = 6
    """A timer was set: when it is due, how long it is, and what for if not to sleep."""
    TURN = 8
    """The next turn of a machine, always at sequence 0: number, payload, timer, retries of the
    turns before, the entry up to which those are counted, and if it waits for a signal the channel
    and what came."""
    UNDO = 16
    """The run will end when all is undone: state, reason, failure, whether dead, and what."""
    NOTE = 7
    """For the history only: what, and details."""
    WAIT = 9
    """A wait to be sent something began: kind of call, channel, and when it is over, if ever."""
    CONTINUED = 10
    """The run goes on with another input, always at sequence 0: how often, input, steps done."""


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


def began_at(fields: list[Any]) -> float:
    """When the call began that an entry is about: when the entry was made, if it does not say."""
    kind, _, at, *rest = fields
    begun = None
    if kind == Entry.DONE:
        begun = rest[3]
    elif kind in (Entry.FAILED, Entry.GAVE_UP):
        begun = rest[2]
    elif kind == Entry.INTERRUPTED:
        begun = rest[2] if len(rest) > 2 else None
    return float(at if begun is None else begun)


def is_driven(kind: int) -> bool:
    """Whether an entry of this kind shows that the run was driven."""
    return kind not in (Entry.NOTE, Entry.REDRIVEN, Entry.CONTINUED)


def started_at(entries: Iterable[list[Any]]) -> float | None:
    """When the first call of the present generation began; None if there is none. The status record
    is not written when a run starts, so after a crash only the journal may know."""
    first: float | None = None
    for fields in entries:
        if fields[0] == Entry.REDRIVEN:
            first = None
        elif is_driven(fields[0]):
            began = began_at(fields)
            first = began if first is None else min(first, began)
    return first


class Ending(IntEnum):
    """How a block with a time limit ended; the numbers are stored."""

    FINISHED = 0
    EXPIRED = 1
    """A durable call in it was cut off."""
    IN_PASSING = 2
    """It was cut off where it asked for nothing durable, or was being cut off already."""


SCOPE_LEFT = "scope_left"
"""What the note of a block says when the code leaves it after it has expired. Code that is cut off
may still ask for calls in the block, so the entry which says that it expired does not say where it
ends. Keyrun wrote no such notes before; then the payload of that entry has two items, not three."""


class Left(NamedTuple):
    """Where a block was left."""

    sequence: int
    """The number of the entry that says so."""
    last: str
    """The call that had begun last."""
    outcomes: int
    """How many calls had an outcome."""


class NextTurn(NamedTuple):
    """What is known of the next turn of a machine: when it is due, what it waits for, and what it
    was sent."""

    number: int
    payload: bytes
    timer: tuple[float, float] | None = None
    retries: int = 0
    """Of the turns before."""
    upto: int = 0
    """The entry up to which those are counted."""
    channel: str | None = None
    signal: bytes | None = None


class Continued(NamedTuple):
    """What a journal begins with whose run has gone on with another input: how often it has, the
    input, and how many steps were done before."""

    number: int
    input: bytes
    steps: int


class CallRecord:
    """What the journal knows of one durable call. The defaults are attributes of the class, because
    most calls never set most of them."""

    call = CallKind.STEP
    fingerprint: int | None = None
    attempts = 0
    failure: Failure | None = None
    next_attempt: tuple[float, float] | None = None
    """Of a step: when the next attempt is due, and the length of that wait."""
    sleep_timer: tuple[float, float] | None = None
    """Of a sleep: when it is over, and its length."""
    wait_limit: tuple[float, float] | None = None
    """Of a wait for a signal or an approval: when it times out, and its length; None if never."""
    scope_limit: tuple[float, float] | None = None
    """Of a block with a time limit: when it expires, and its length."""
    interruptions = 0
    interruptions_alone = 0
    outcome: Entry | None = None
    payload: Any = None
    delivered = False
    lost = False
    """Whether the journal says that it was cut off, and nothing of it since."""
    redriven = False
    """Whether it is lost because the run had ended without it: a redrive asks for it anew."""
    last: str | None = None
    """The call that had begun last when a block expired."""
    left: Left | None = None
    """Where a block was left, if the journal knows."""
    block: str | None = None
    """The innermost block that the code left before this call had an outcome."""
    child: int | None = None
    """What tells one child from another: its workflow, key and input."""
    channel: str | None = None
    """What it waits on, if it can be sent something."""
    rank = 0
    """The sequence number of the entry that says since when it waits; 0 if it does not."""

    def interrupted(self, _attempt: int, alone: bool, *_begun: float | None) -> None:
        """A crash cut an attempt off."""
        self.interruptions += 1
        self.interruptions_alone += bool(alone)

    @property
    def unsuspected(self) -> bool:
        """Whether it never failed, and was interrupted at most once."""
        return not (self.attempts or self.interruptions > 1 or self.interruptions_alone)

    @property
    def known(self) -> bool:
        """Whether anything happened to it yet."""
        return self.attempts > 0 or self.interruptions > 0
