"""The journal: what a run remembers, in memory as it is in the store.

Entries have sequence numbers, and outcomes are given back in that order when a run is driven
again: code that runs branches side by side then takes the same turns as before.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.entry import Call, Ending, Entry, Memory
from keyrun.runtime.records import read_failure
from keyrun.runtime.unhandled import unhandled
from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.branch import Branch
    from keyrun.runtime.scope import Scope

UNDOABLE = "undoable"
"""What the note of a step says that has a compensation."""

__all__ = ["Call", "Ending", "Entry", "Journal", "Memory"]


# Of what most runs never need there is one for all.
_NOBODY: "frozenset[Branch]" = frozenset()


class Journal:
    """The memories of a run by what they are about, and the order in which to give them back."""

    __slots__ = (
        "_cursor",
        "_cut",
        "_missing",
        "_order",
        "fresh",
        "last_failure",
        "memories",
        "next",
        "past",
        "resting",
        "retries",
        "scopes",
        "tasks",
        "turn",
        "turn_entries",
        "undoable",
        "undoing",
        "waiters",
    )

    def __init__(self) -> None:
        self.memories: dict[str, Memory] = {}
        self.fresh: list[tuple[str, int | None, bytes]] = []
        """Steps that were done at their first attempt since others were last settled: what they
        are called, their fingerprint and their payload. Nobody asks for them in this pass, and
        most runs need no other, so that is all that is kept of them."""
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
        self.resting: dict[Branch, trio.Event] = {}
        """Those of them that the journal says were cancelled, and that ask for nothing more."""
        self.scopes: dict[str, Scope] = {}
        """The blocks with a time limit that have been entered and not left, outer ones first."""
        self._cut: frozenset[Branch] = _NOBODY
        """Those that rested until a scope expired, and have not gone on yet."""
        self._missing: str | None = None
        self.turn: tuple[int, bytes, tuple[float, float] | None, int] | None = None
        """The next turn of a machine: its number, its payload, when it is due, and up to which
        entry the retries of the turns before are counted."""
        self.turn_entries: tuple[int, ...] = ()
        """Entries about the turn that is under way, which go when it is done."""
        self.undoable: dict[str, None] = {}
        """Steps that have a compensation, in the order in which they were done."""
        self.undoing: list[Any] | None = None
        """How the run will end when all is undone: see `undoing.decide`."""
        self._order: list[str] = []
        self._cursor = 0

    def memory(self, ident: str) -> Memory:
        """What is known of `ident`, from now on remembered."""
        known = self.memories.get(ident)
        if known is None:
            known = self.memories[ident] = Memory()
        return known

    def remember(self, ident: str, fingerprint: int | None) -> Memory:
        """What is known of a step, from now on remembered."""
        memory = self.memory(ident)
        memory.fingerprint = fingerprint
        return memory

    def _absorb(self) -> None:
        """Remember what is fresh like all the rest."""
        for ident, fingerprint, payload in self.fresh:
            memory = self.remember(ident, fingerprint)
            memory.attempts = 1
            memory.payload = payload
            memory.outcome = Entry.DONE
            memory.delivered = True
            self._order.append(ident)
        self.fresh.clear()

    def rewind(self) -> None:
        """Begin another pass: every outcome will be asked for again, in order."""
        self._absorb()
        for ident in self._order:
            self.memories[ident].delivered = False
        self.past = len(self._order)
        self._cursor = 0
        self.tasks = 1
        self._missing = None
        self.waiters.clear()
        self.resting.clear()
        self.scopes.clear()
        self._cut = _NOBODY

    def settled(self, ident: str, memory: Memory, outcome: Entry) -> None:
        """`ident` has its outcome, and whoever asked for it has it at once."""
        if self.fresh:
            self._absorb()
        memory.outcome = outcome
        memory.delivered = True
        self._order.append(ident)

    def may_deliver(self, ident: str) -> bool:
        """Whether the outcome of `ident` is the next to be given back."""
        order = self._order
        while self._cursor < len(order) and self.memories[order[self._cursor]].delivered:
            self._cursor += 1
        return self._cursor >= len(order) or order[self._cursor] == ident

    @property
    def replaying(self) -> bool:
        """Whether there are outcomes that are to be asked for again."""
        return self.past > 0 and not self.may_deliver("")

    def upcoming(self) -> str | None:
        """What has the outcome that is the next to be given back."""
        return None if self.may_deliver("") else self._order[self._cursor]

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
        except trio.Cancelled:
            if not any(scope.fired for scope in self.around(ident)):
                raise
            # It came after its block had expired: whatever it was, it was not cancelled then.
            with trio.CancelScope(shield=True):
                await turn.wait()
        finally:
            self.waiters.pop(ident, None)
        return self._missing

    async def rest(self, branch: "Branch") -> str | None:
        """Return when a scope around `branch` expires again, or with the name of the outcome that
        is next if no branch is left that could ask for it."""
        over = self.resting[branch] = trio.Event()
        self.look()
        try:
            await over.wait()
        finally:
            self.resting.pop(branch, None)
            self._cut -= {branch}
            for scope in self.around(branch.prefix):
                if scope.fired and not self._cut:
                    self.deliver(scope.memory)
        return self._missing

    def waiting(self) -> int:
        """How many branches cannot go on by themselves."""
        return len(self.waiters) + len(self.resting)

    def look(self) -> None:
        """Wake everybody if all wait for an outcome that nobody asks for."""
        if self.scopes:
            self.advance()
        waiting = self.waiting()
        if waiting and self.tasks <= waiting and not self.caught_up():
            self._missing = self._order[self._cursor]
            for wake in self.waiters.values():
                wake()
            for over in self.resting.values():
                over.set()

    def deliver(self, memory: Memory) -> None:
        """Give an outcome back, and wake the branch whose turn it is then."""
        memory.delivered = True
        if self.scopes:
            self.advance()
        elif self.waiters:
            self._wake_next()

    def caught_up(self) -> bool:
        """Whether all that is remembered has been given back in this pass."""
        return self.may_deliver("")

    def around(self, name: str) -> "list[Scope]":
        """The scopes that a call, or the branch with this prefix, is in, outer ones first. While a
        branch is in a block, all that it and its forks do is done in that block."""
        return [scope for scope in list(self.scopes.values()) if name.startswith(scope.prefix)]

    def advance(self) -> None:
        """Let scopes expire whose turn that is, when all in them wait for nothing else; whom they
        cut off goes on before anybody else has a turn. Where there is nothing left to be given
        back, the time of those that have no outcome counts."""
        scopes = self.scopes
        while not self.caught_up():
            scope = scopes.get(self._order[self._cursor])
            if scope is None or not scope.expires or scope.fired:
                break
            inside = [one for one in self.resting if one.prefix.startswith(scope.prefix)]
            if scope.ending is not Ending.IN_PASSING and not self._quiet(scope, inside):
                break
            scope.fire()
            self._cut = self._cut.union(inside)
            for one in inside:
                self.resting.pop(one).set()
            scope.memory.delivered = not inside
        else:
            for scope in scopes.values():
                if not any(one.fired for one in scopes.values() if one.is_in(scope)):
                    scope.start_clock(exactly=False)
        self._wake_next()

    def _quiet(self, scope: "Scope", resting: "list[Branch]") -> bool:
        """Whether all that goes on in a block rests, at least something, or waits for its turn."""
        if not resting:
            return False
        waiting = {ident.rpartition("/")[0] for ident in self.waiters}
        if all(one in resting or one.prefix[:-1] in waiting for one in scope.lines()):
            return True
        scope.expire_soon()
        return False

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
                if wake := self.waiters.pop(ident, None):
                    wake()
        self.advance()

    def steps_done(self) -> int:
        """How many steps, or turns, have succeeded."""
        before = 0 if self.turn is None else self.turn[0]
        done = (memory for memory in self.memories.values() if memory.outcome is Entry.DONE)
        return before + sum(memory.call is Call.STEP for memory in done)

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
            number, payload, timer, *counted = rest
            self.retries, upto = counted or (0, 0)
            self.turn = (number, payload, timer and (timer[0], timer[1]), upto)
            return
        if ident.startswith("turn-"):
            self.turn_entries += (sequence,)
        if entry is Entry.NOTE:
            if rest[0] == UNDOABLE:
                self.undoable[ident] = None
            return
        if entry is Entry.UNDO:
            self.undoing = rest
            return
        if entry is Entry.REDRIVEN:
            self._forget_failures(fresh=self.turn is None or sequence >= self.turn[3])
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
                due, length, *call = rest
                memory.call = Call(*call) if call else Call.TIMER
                memory.retry = (due, length)
            case Entry.INTERRUPTED:
                _attempt, alone, *_begun = rest
                memory.interruptions += 1
                memory.interruptions_alone += bool(alone)
        if entry in (Entry.DONE, Entry.GAVE_UP):
            memory.outcome = entry
            if ident.startswith("undo()/"):
                return  # no workflow asks for it
            self._order.append(ident)
            self.past += 1

    def _forget_failures(self, *, fresh: bool) -> None:
        """What failed is tried again, with budgets that are fresh unless turns since were counted.
        What is done stays done, and so do the failures that the workflow handled: it went on after
        them."""
        again = unhandled(self.memories, self._order)
        for ident, memory in list(self.memories.items()):
            unfinished = memory.outcome is None and memory.call is not Call.TIMER
            if unfinished or ident in again:
                del self.memories[ident]
        self._order = [ident for ident in self._order if ident in self.memories]
        if fresh:
            self.retries = 0
        self.last_failure = None
