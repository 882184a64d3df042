"""The journal: what a run remembers, in memory as it is in the store.

Entries have sequence numbers, and outcomes are given back in that order when a run is driven
again: code that runs branches side by side then takes the same turns as before. An entry is a
list of fields that starts with its kind, what it is about, and when it was made.
"""

from collections.abc import Callable
from enum import IntEnum
from typing import Any

import trio

from keyrun.runtime.records import read_failure
from keyrun.runtime.values import Failure


class Entry(IntEnum):
    """Kinds of entries; the numbers are stored."""

    DONE = 1
    """A call has an outcome: kind of call, fingerprint, attempt, begun, payload."""
    FAILED = 2
    """An attempt failed and another follows: fingerprint, attempt, begun, failure, next."""
    GAVE_UP = 3
    """A step failed for good: fingerprint, attempt, begun, failure."""
    INTERRUPTED = 4
    """A crash cut an attempt off: attempt, whether it ran alone."""
    REDRIVEN = 5
    """Failures before this no longer count: generation."""
    TIMER = 6
    """A timer was set: when it is due, and how long it is."""
    TURN = 8
    """The next turn of a machine, always at sequence 0: number, payload, timer."""
    NOTE = 7
    """For the history only: what, and details."""


class Call(IntEnum):
    """What a workflow can ask for; the numbers are stored."""

    STEP = 1
    NOW = 2
    GATHER = 3
    TIMER = 4


class Memory:
    """What is known of one step, or of one other durable call. Most of it never happens to most of
    them, so it stands here until it does."""

    call = Call.STEP
    fingerprint: int | None = None
    attempts = 0
    failure: Failure | None = None
    retry: tuple[float, float] | None = None
    """When the next attempt is due, and how long a wait that was."""
    interruptions = 0
    interruptions_alone = 0
    outcome: Entry | None = None
    payload: Any = None
    delivered = False

    @property
    def known(self) -> bool:
        """Whether anything happened to it yet."""
        return self.attempts > 0 or self.interruptions > 0


class Journal:
    """The memories of a run by what they are about, and the order in which to give them back."""

    __slots__ = (
        "_cursor",
        "_missing",
        "_order",
        "idle",
        "last_failure",
        "memories",
        "next",
        "past",
        "retries",
        "tasks",
        "turn",
        "turn_entries",
        "waiters",
    )

    def __init__(self) -> None:
        self.memories: dict[str, Memory] = {}
        self.next = 1
        self.past = 0
        """How many outcomes are there to be asked for again in this pass."""
        self.retries = 0
        self.last_failure: Failure | None = None
        """What the latest attempt that failed did."""
        self.waiters: dict[str, Callable[[], None]] = {}
        """Branches that ask for an outcome before its turn, and how to wake them."""
        self.tasks = 1
        """Branches that have not ended and do not just wait for branches of their own."""
        self.idle = 0
        """Those of them that the journal says were cancelled, and that ask for nothing more."""
        self._missing: str | None = None
        self.turn: tuple[int, bytes, tuple[float, float] | None] | None = None
        """The next turn of a machine: its number, its payload, and when it is due."""
        self.turn_entries: list[int] = []
        """Entries about the turn that is under way, which go when it is done."""
        self._order: list[str] = []
        self._cursor = 0

    def memory(self, ident: str) -> Memory:
        """What is known of `ident`, from now on remembered."""
        known = self.memories.get(ident)
        if known is None:
            known = self.memories[ident] = Memory()
        return known

    def rewind(self) -> None:
        """Begin another pass: every outcome will be asked for again, in order."""
        for ident in self._order:
            self.memories[ident].delivered = False
        self.past = len(self._order)
        self._cursor = self.idle = 0
        self.tasks = 1
        self._missing = None
        self.waiters.clear()

    def settled(self, ident: str, memory: Memory, outcome: Entry) -> None:
        """`ident` has its outcome, and whoever asked for it has it at once."""
        memory.outcome = outcome
        memory.delivered = True
        self._order.append(ident)

    def may_deliver(self, ident: str) -> bool:
        """Whether the outcome of `ident` is the next to be given back."""
        order = self._order
        while self._cursor < len(order) and self.memories[order[self._cursor]].delivered:
            self._cursor += 1
        return self._cursor >= len(order) or order[self._cursor] == ident

    async def turn_of(self, ident: str) -> str | None:
        """Return when the outcome of `ident` is the next to be given back, or with the name of
        the one whose turn it is if no branch is left that could ask for it."""
        if self.may_deliver(ident):
            return None
        turn = trio.Event()
        self.waiters[ident] = turn.set
        self.look()
        try:
            await turn.wait()
        finally:
            self.waiters.pop(ident, None)
        return self._missing

    def look(self) -> None:
        """Wake everybody if all wait for an outcome that nobody asks for."""
        if self.waiters and self.tasks <= len(self.waiters) + self.idle:
            self._missing = self._order[self._cursor]
            for wake in self.waiters.values():
                wake()

    def deliver(self, memory: Memory) -> None:
        """Give an outcome back, and wake the branch whose turn it is then."""
        memory.delivered = True
        if self.waiters:
            self._wake_next()

    def _wake_next(self) -> None:
        for ident, wake in self.waiters.items():
            if self.may_deliver(ident):
                del self.waiters[ident]
                wake()
                return

    def abandon(self, scope: str) -> None:
        """Nobody will ask for the outcomes of the branches in `scope` any more."""
        for ident in self._order:
            if ident.startswith(scope):
                self.memories[ident].delivered = True
                self.waiters.pop(ident, None)
        self._wake_next()

    def steps_done(self) -> int:
        """How many steps, or turns, have succeeded."""
        if self.turn is not None:
            return self.turn[0]
        done = (memory for memory in self.memories.values() if memory.outcome is Entry.DONE)
        return sum(memory.call is Call.STEP for memory in done)

    def outcomes(self) -> int:
        """How many calls have their outcome."""
        return len(self._order)

    def unread(self) -> str | None:
        """An outcome that was not asked for in this pass."""
        if not self.past:
            return None
        return next((ident for ident in self._order if not self.memories[ident].delivered), None)

    def fold(self, sequence: int, fields: list[Any]) -> None:
        """Take in one stored entry; they come in order."""
        self.next = sequence + 1
        kind, ident, _at, *rest = fields
        entry = Entry(kind)
        if entry is Entry.TURN:
            number, payload, timer = rest
            self.turn = (number, payload, timer and (timer[0], timer[1]))
            return
        if ident.startswith("turn-"):
            self.turn_entries.append(sequence)
        if entry is Entry.NOTE:
            return
        if entry is Entry.REDRIVEN:
            self._forget_failures()
            return
        memory = self.memory(ident)
        match entry:
            case Entry.DONE:
                call, memory.fingerprint, memory.attempts, _begun, memory.payload = rest
                memory.call = Call(call)
            case Entry.FAILED:
                memory.fingerprint, memory.attempts, _begun, failure, retry = rest
                memory.failure = self.last_failure = read_failure(failure)
                memory.retry = (retry[0], retry[1])
                memory.interruptions = memory.interruptions_alone = 0
                self.retries += 1
            case Entry.GAVE_UP:
                memory.fingerprint, memory.attempts, _begun, failure = rest
                memory.failure = self.last_failure = read_failure(failure)
            case Entry.TIMER:
                memory.call = Call.TIMER
                memory.retry = (rest[0], rest[1])
            case Entry.INTERRUPTED:
                _attempt, alone = rest
                memory.interruptions += 1
                memory.interruptions_alone += bool(alone)
        if entry in (Entry.DONE, Entry.GAVE_UP):
            memory.outcome = entry
            self._order.append(ident)
            self.past += 1

    def _forget_failures(self) -> None:
        """What failed is tried again with fresh budgets. What is done stays done, and so do the
        failures that the workflow handled: it went on after them."""
        again = {ident for at, ident in enumerate(self._order) if self._unhandled(at, ident)}
        for ident, memory in list(self.memories.items()):
            unfinished = memory.outcome is None and memory.call is not Call.TIMER
            if unfinished or ident in again:
                del self.memories[ident]
        self._order = [ident for ident in self._order if ident in self.memories]
        self.retries = 0
        self.last_failure = None

    def _unhandled(self, at: int, ident: str) -> bool:
        """Whether the outcome at this place of the order is a failure that nothing follows, except
        in branches beside it."""
        memory = self.memories[ident]
        if memory.call is Call.GATHER:
            ident = f"{ident.removesuffix('()')}.{memory.payload}/"
        elif memory.outcome is Entry.DONE:
            return False
        return all(
            self.memories[later].call is Call.GATHER or _beside(ident, later)
            for later in self._order[at + 1 :]
        )


def _beside(ident: str, other: str) -> bool:
    """Whether two calls are in different branches of the same `gather`."""
    for one, two in zip(ident.split("/")[:-1], other.split("/")[:-1], strict=False):
        if one != two:
            return one.partition(".")[0] == two.partition(".")[0]
    return False
