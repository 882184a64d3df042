"""Scopes: blocks of a workflow with a time limit that holds across crashes.

The journal has the limit from the moment in which the block is first entered. One entry says how
the block ended: that it finished, or, as soon as a call in it is cut off, that it expired. When the
run is replayed, a block that finished has no limit. A block that expired gives back the outcomes
that it had and is then cut off where the journal says so, whatever the clock says. A second entry
says where the code left a block that had expired, because it may tidy up in the block before that.

1. Entered for the first time, its time counts from then.
2. Entered again with no end in the journal (a crash, a drain, a timeout of a step on the main line
   drove the workflow again): what is left of its time counts, from when all that the journal has
   was given back. So an outcome that the block had is never taken from it.
3. What ends the pass (cancel, the deadline of the run, drain) and what ends the branch (a sibling
   that failed) is no end of the block: nothing is written down then.
"""

from collections.abc import Coroutine
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from keyrun.runtime.errors import NonDeterminism, ScopeTimeout
from keyrun.runtime.records.journal_entry import CallDone, Timer, TimerSet
from keyrun.runtime.run.contradiction import halt
from keyrun.runtime.run.journal import SCOPE_LEFT, CallKind, CallRecord, Ending, Entry, Left

if TYPE_CHECKING:
    from keyrun.runtime.run.branch import Branch

R = TypeVar("R")

GRACE = 0.05
"""Seconds in which a workflow that is driven again gets to where it was."""


class Scope:
    """One block with a time limit. `expired` says whether it was cut off."""

    __slots__ = ("_branch", "_exact", "_ident", "_limit", "_seconds", "_was_bound", "memory")

    name = ""

    def __init__(self, branch: "Branch", seconds: float) -> None:
        self._branch = branch
        self._seconds = float(seconds)
        self._ident = ""
        self.memory = CallRecord()
        self._limit = trio.CancelScope()
        self._was_bound = False
        self._exact = False

    @property
    def expired(self) -> bool:
        """Whether the block was cut off. One that got to its end was not, however late."""
        return self.fired

    @property
    def prefix(self) -> str:
        """That of the branch which is in the block."""
        return self._branch.prefix

    @property
    def ending(self) -> Ending | None:
        """How the block ended, as far as the journal knows."""
        payload = self.memory.payload
        return None if payload is None else Ending(payload[0])

    @property
    def expires(self) -> bool:
        """Whether the journal says that it expired."""
        return bool(self.ending)

    @property
    def due(self) -> float:
        """When its time is up, in seconds since the epoch; never if it has finished before."""
        return self._timer.due if self.memory.outcome is None else inf

    @property
    def _timer(self) -> Timer:
        timer = self.memory.scope_limit
        assert timer is not None
        return timer

    def is_in(self, other: "Scope") -> bool:
        """Whether this one is inside `other`, or the other way round in the same branch."""
        return self is not other and self.prefix.startswith(other.prefix)

    def lines(self) -> "list[Branch]":
        """The branches in which something goes on in the block."""
        return self._branch.lines()

    def start_clock(self, *, exactly: bool) -> None:
        """Let what is left of its time count. A wall clock that was set back does not make it
        longer. If not `exactly`, the workflow gets to where it was before it is cut off."""
        if self.memory.outcome is None and not self._exact:
            self._exact = exactly
            due, length = self._timer
            rest = min(due - self._branch.run.partition.steady(), length)
            self._limit.deadline = trio.current_time() + (rest if exactly else max(rest, GRACE))

    @property
    def overdue(self) -> bool:
        """Whether its time is up and the journal does not know yet how it ends."""
        return self.memory.outcome is None and self._limit.cancel_called

    @property
    def fired(self) -> bool:
        """Whether what is in the block is cut off, in this pass."""
        return self.expires and self._limit.cancel_called

    def fire(self) -> None:
        """Cut it off, since the journal says so."""
        self._limit.cancel()

    def expire_soon(self) -> None:
        """Cut it off even if something in it waits for what is not durable, and never rests."""
        self._limit.deadline = min(self._limit.deadline, trio.current_time() + GRACE)

    def end_as(self, ending: Ending) -> None:
        """Write down that it ended so."""
        run = self._branch.run
        due, length = self._timer
        payload = self.memory.payload = [int(ending), length]
        if ending is not Ending.FINISHED:
            payload.append(True)  # an entry follows when the block is left
        at, begun = run.partition.wall(), due - length
        run.write(CallDone(self._ident, at, CallKind.SCOPE, None, 1, begun, payload))
        run.journal.settled(self._ident, self.memory, Entry.DONE)
        if ending is not Ending.FINISHED:
            run.journal.expect_no_more(self.prefix)

    def __enter__(self) -> Self:
        entered = bool(self._ident)
        with self._branch.run.guarded():
            self._branch.check()
            if not entered:
                self._enter()
        if entered:
            raise RuntimeError(f"a scope is entered once; ask for another: ctx.{self.name}(...)")
        return self

    def _enter(self) -> None:
        branch = self._branch
        run, journal = branch.run, branch.run.journal
        ident = self._ident = branch.name(f"{self.name}()")
        branch.ask_at_once(ident)
        memory = self.memory = journal.memory(ident)
        branch.check_place(ident, memory)
        if memory.scope_limit is None and memory.outcome is None:
            memory.call = CallKind.SCOPE
            limit = Timer(run.partition.steady() + self._seconds, self._seconds)
            memory.scope_limit = limit
            if not (branch.bound and branch.cut_off_next):
                run.write(TimerSet(ident, run.partition.wall(), limit, CallKind.SCOPE))
        self._was_bound, branch.bound = branch.bound, True
        journal.scopes[ident] = self
        if journal.caught_up():
            self.start_clock(exactly=True)
        else:
            journal.advance()
        # Last: if any of this raised, the block would not be left.
        self._limit.__enter__()

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        branch, journal = self._branch, self._branch.run.journal
        try:
            # Raises what is left of the group of errors that user code raised in the block.
            return self._limit.__exit__(kind, error, trace)
        finally:
            with branch.run.guarded():
                journal.scopes.pop(self._ident, None)
                branch.bound = self._was_bound
                if branch.run.going and not branch.closed:
                    self._end(error)
                    journal.advance()

    def _end(self, error: BaseException | None) -> None:
        """The block has been left, for whatever reason."""
        memory, branch = self.memory, self._branch
        if memory.outcome is None:
            if branch.cut_off_next:
                return
            if self._limit.cancelled_caught:
                self.end_as(Ending.IN_PASSING)
            elif error is None:
                # The journal has no end of it, so that all that is left here was inside.
                branch.check_ended()
                self.end_as(Ending.FINISHED)
                return
        if self.expires:
            if self.fired:
                self._note_left()
            elif error is None or isinstance(error, Exception):
                raise self._contradiction(f"says that {self._ident!r} expired, and it did not")
        elif memory.outcome is not None and error is None:
            branch.ask_end(self._ident)
            branch.run.journal.deliver(memory)

    def _note_left(self) -> None:
        """Write down that the code leaves the block after it has expired, or compare that with the
        journal. An earlier Keyrun wrote no such entry, so its journals do not say which calls are
        behind the block."""
        branch, memory = self._branch, self.memory
        if memory.left is not None:
            branch.ask_end(self._ident)
        elif len(memory.payload) > 2 and not branch.cut_off_next:
            branch.check_ended()
            run, journal = branch.run, branch.run.journal
            memory.left = Left(journal.next, self._ident, journal.outcomes())
            run.note(self._ident, SCOPE_LEFT)

    def _contradiction(self, said: str) -> BaseException:
        run = self._branch.run
        error = NonDeterminism(
            f"the journal {said}", run_id=run.run_id, key=run.key, step=self._ident
        )
        return halt(run, error)


class MoveOnAfter(Scope):
    """See `Context.move_on_after`."""

    __slots__ = ()
    name = "move_on_after"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._leave(kind, error, trace)


class FailAfter(Scope):
    """See `Context.fail_after`."""

    __slots__ = ()
    name = "fail_after"

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        caught, run = self._leave(kind, error, trace), self._branch.run
        with run.guarded():
            if self.fired and (caught or error is None):
                raise ScopeTimeout(
                    f"the block {self._ident!r} took longer than its {self._timer.length:g} s",
                    run_id=run.run_id,
                    key=run.key,
                    step=self._ident,
                ) from None


async def watched(branch: "Branch", call: Coroutine[Any, Any, R]) -> R:
    """Await a durable call, guarded, and look out for the time limits of the blocks around it: that
    a time limit cut the call off is written down before anything else can happen. While the run is
    paused, its code does not learn of it."""
    run = branch.run
    with run.guarded():
        try:
            return await call
        except trio.Cancelled:
            if branch.notice() and run.held:
                with trio.CancelScope(shield=True, deadline=run.deadline):
                    while run.held:
                        await run.hold()
            raise
