"""The journal: gives back what a run remembers, in the order in which it came about.

Entries have sequence numbers, and outcomes are given back in that order when a run is driven
again: code that runs branches side by side then takes the same turns as before.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.records.journal_entry import (
    GATE,
    SCOPE_LEFT,
    CallKind,
    CallRecord,
    Ending,
    Entry,
    Left,
    NextTurn,
)
from keyrun.runtime.run.expected import Expected, Kind, expected_of
from keyrun.runtime.run.memories import Memories

if TYPE_CHECKING:
    from keyrun.runtime.run.branch import Branch
    from keyrun.runtime.run.scope import Scope

__all__ = [
    "GATE",
    "SCOPE_LEFT",
    "CallKind",
    "CallRecord",
    "Ending",
    "Entry",
    "Journal",
    "Left",
    "NextTurn",
]


# Of what most runs never need there is one for all.
_NOBODY: "frozenset[Branch]" = frozenset()


class Journal(Memories):
    """The memories of a run, and who asks for them in this pass."""

    __slots__ = (
        "_cursor",
        "_cut",
        "_missing",
        "expected",
        "held",
        "resting",
        "scopes",
        "tasks",
        "waiters",
    )

    def __init__(self) -> None:
        Memories.__init__(self)  # `super()` takes as long as the rest
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
        self._cursor = 0
        self.expected: Expected | None = None
        """What the code has to ask for before anything new may start; None if that is nothing."""
        self.held: dict[trio.Event, None] = {}
        """Calls that the journal does not have, and that wait for that."""

    def expect(self, kind: Kind) -> None:
        """Begin a pass of a workflow of this kind over what was read from the store."""
        if self.memories or self.turn is not None:
            turning = self.turn is not None
            self.expected = expected_of(self.memories, self._order, kind, turning=turning)

    def rewind(self) -> None:
        """Begin another pass: every outcome will be asked for again, in order."""
        self._absorb()
        for ident in self._order:
            self.memories[ident].delivered = False
        self.past = len(self._order)
        self.waited = True
        self._cursor = 0
        self.tasks = 1
        self._missing = None
        # The same code is called again, and asks for the same.
        self.expected = None
        self.held.clear()
        self.waiters.clear()
        self.resting.clear()
        self.scopes.clear()
        self._cut = _NOBODY

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

    def asked(self, expected: Expected) -> None:
        """Something was asked for: if that was all, what is new may start."""
        if not expected.left:
            self._start_next()

    def _start_next(self) -> None:
        """Let the call start that was asked for first. Trio wakes tasks in a random order, so each
        of them starts before the next one is woken."""
        if self.held:
            next(iter(self.held)).set()
        else:
            self.expected = None

    async def all_asked(self) -> str | None:
        """Return when all that the journal has was asked for, or with the name of what nobody asks
        for."""
        over = trio.Event()
        self.held[over] = None
        self.look()
        try:
            await over.wait()
        finally:
            self.held.pop(over, None)
            if self.expected is not None and not self.expected.left:
                self._start_next()
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
        held = sum(not over.is_set() for over in self.held)
        return len(self.waiters) + len(self.resting) + held

    def at_rest(self) -> int:
        """How many branches cannot go on before those that wait for something outside."""
        return sum(not over.is_set() for over in self.resting.values())

    def look(self) -> None:
        """Wake everybody if all wait for an outcome that nobody asks for."""
        if self.scopes:
            self.advance()
        waiting = self.waiting()
        if not waiting or self.tasks > waiting:
            return
        if not self.caught_up():
            self._missing = self._order[self._cursor]
        elif self.held and self.expected is not None and self.expected.left:
            self._missing = self.expected.next()
        else:
            return
        for wake in self.waiters.values():
            wake()
        for over in (*self.resting.values(), *self.held):
            over.set()

    def deliver(self, memory: CallRecord) -> None:
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

    def expect_no_more(self, prefix: str) -> None:
        """What is in the scopes that begin with `prefix` was cut off."""
        if self.expected is not None:
            self.expected.drop(prefix)
            self.asked(self.expected)

    def _wake_next(self) -> None:
        for ident, wake in self.waiters.items():
            if self.may_deliver(ident):
                del self.waiters[ident]
                wake()
                return

    def abandon(self, scope: str, *, halted: bool = False) -> None:
        """Nobody will ask for the calls of the branches in `scope` any more. If the pass is
        `halted`, nothing new may start elsewhere because of that."""
        if not halted:
            self.expect_no_more(scope)
        for ident in self._order:
            if ident.startswith(scope):
                self.memories[ident].delivered = True
                if wake := self.waiters.pop(ident, None):
                    wake()
        self.advance()
