"""Scopes: blocks of a workflow with a time limit that holds across crashes.

The journal has the limit from the moment in which the block is first entered. One entry says how
the block ended: that it finished, or, as soon as a call in it is cut off, that it expired. In a
replay, a block that finished has no limit. A block that expired returns the outcomes that it had
and is then cut off where the journal says so, whatever the clock says. A second entry says where
the code left a block that had expired, because the code may make calls in the block before that.

1. When the block is entered for the first time, its time starts.
2. When the block is entered again and the journal has no end of it (after a crash, a drain, or a
   timeout of a step in the main branch), the rest of its time starts when the replay is complete.
   So the block never loses an outcome that it had.
3. The end of the pass (cancel, the deadline of the run, drain) and the end of the branch (a sibling
   failed) are not an end of the block. Nothing is written then.
"""

from collections.abc import Coroutine
from math import inf
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

import trio

from keyrun.runtime.errors import ScopeTimeout
from keyrun.runtime.records.journal_entry import (
    SCOPE_LEFT,
    CallDone,
    CallKind,
    CallRecord,
    Ending,
    EntryKind,
    Left,
    Timer,
    TimerSet,
)

if TYPE_CHECKING:
    from keyrun.runtime.run.branch import Branch

R = TypeVar("R")

GRACE = 0.05
"""Seconds that a replay has to come to the point where the workflow was."""


class Scope:
    """One block with a time limit."""

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
        """Return whether the block was cancelled because its time was over. A block that reached
        its end has not expired, however late."""
        return self.fired

    @property
    def prefix(self) -> str:
        """Return the prefix of the branch that is in the block."""
        return self._branch.prefix

    @property
    def ending(self) -> Ending | None:
        """Return how the block ended according to the journal, or None if it has not ended."""
        payload = self.memory.payload
        return None if payload is None else Ending(payload[0])

    @property
    def expires(self) -> bool:
        """Return whether the journal says that the block expired."""
        return bool(self.ending)

    @property
    def due(self) -> float:
        """Return when the block expires, in seconds since the epoch, or infinity if it has
        ended."""
        return self._timer.due if self.memory.outcome is None else inf

    @property
    def _timer(self) -> Timer:
        timer = self.memory.scope_limit
        assert timer is not None
        return timer

    def is_in(self, other: "Scope") -> bool:
        """Return whether this block is inside `other`, or in the same branch."""
        return self is not other and self.prefix.startswith(other.prefix)

    def active_branches(self) -> "list[Branch]":
        """Return the branches that run in the block."""
        return self._branch.active_branches()

    def start_clock(self, *, exactly: bool) -> None:
        """Start the rest of the time of the block. A wall clock that was set back does not make it
        longer. If not `exactly`, the replay gets at least `GRACE` seconds."""
        if self.memory.outcome is None and not self._exact:
            self._exact = exactly
            due, length = self._timer
            rest = min(due - self._branch.run.partition.steady(), length)
            self._limit.deadline = trio.current_time() + (rest if exactly else max(rest, GRACE))

    @property
    def overdue(self) -> bool:
        """Return whether the time of the block is over and the journal has no end of it."""
        return self.memory.outcome is None and self._limit.cancel_called

    @property
    def fired(self) -> bool:
        """Return whether the block is cut off in this pass."""
        return self.expires and self._limit.cancel_called

    def cancel(self) -> None:
        """Cut the block off, because the journal says so."""
        self._limit.cancel()

    def expire_soon(self) -> None:
        """Cut the block off soon, even if code in it waits for something that is not a durable
        call."""
        self._limit.deadline = min(self._limit.deadline, trio.current_time() + GRACE)

    def end_as(self, ending: Ending) -> None:
        """Write the end of the block into the journal."""
        run = self._branch.run
        due, length = self._timer
        payload = self.memory.payload = [int(ending), length]
        if ending is not Ending.FINISHED:
            payload.append(True)  # an entry follows when the block is left
        at, begun = run.partition.wall(), due - length
        run.write(CallDone(self._ident, at, CallKind.SCOPE, None, 1, begun, payload))
        run.journal.settled(self._ident, self.memory, EntryKind.DONE)
        if ending is not Ending.FINISHED:
            run.journal.expect_no_more(self.prefix)

    def __enter__(self) -> Self:
        entered = bool(self._ident)
        with self._branch.run.guarded():
            self._branch.check()
            if not entered:
                self._enter()
        if entered:
            raise RuntimeError(
                f"a block can be entered only once; create another one: ctx.{self.name}(...)"
            )
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
        journal.enter_scope(ident, self)
        if journal.caught_up():
            self.start_clock(exactly=True)
        else:
            journal.advance()
        # Last, because the block would not be left if the lines above raised.
        self._limit.__enter__()

    def _leave(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        branch, journal = self._branch, self._branch.run.journal
        try:
            # This may raise a part of the exception group that user code raised in the block.
            return self._limit.__exit__(kind, error, trace)
        finally:
            with branch.run.guarded():
                journal.scopes.pop(self._ident, None)
                branch.bound = self._was_bound
                if branch.run.going and not branch.closed:
                    self._end(error)
                    journal.advance()

    def _end(self, error: BaseException | None) -> None:
        """Write the end of the block, or compare it with the journal."""
        memory, branch = self.memory, self._branch
        if memory.outcome is None:
            if branch.cut_off_next:
                return
            if self._limit.cancelled_caught:
                self.end_as(Ending.IN_PASSING)
            elif error is None:
                # The journal has no end of the block, so all remaining calls of it are inside.
                branch.check_ended()
                self.end_as(Ending.FINISHED)
                return
        if self.expires:
            if self.fired:
                self._note_left()
            elif error is None or isinstance(error, Exception):
                said = f"the journal says that {self._ident!r} expired, but it did not"
                raise branch.run.contradicted(said, self._ident)
        elif memory.outcome is not None and error is None:
            branch.ask_end(self._ident)
            branch.run.journal.deliver(memory)

    def _note_left(self) -> None:
        """Write that the code leaves the block after it has expired, or compare that with the
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


class MoveOnAfter(Scope):
    """Limit the time of a block. `ctx.move_on_after` returns this."""

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
    """Limit the time of a block. `ctx.fail_after` returns this."""

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
                    f"the block {self._ident!r} exceeded its limit of {self._timer.length:g} s",
                    run_id=run.run_id,
                    key=run.key,
                    step=self._ident,
                ) from None


async def watched(branch: "Branch", call: Coroutine[Any, Any, R]) -> R:
    """Await a durable call, guarded, and watch the time limits of the blocks around it. If a time
    limit cuts the call off, write that before anything else can happen. While the run is paused,
    the cancellation does not reach its code."""
    run = branch.run
    with run.guarded():
        try:
            return await call
        except trio.Cancelled:
            if branch.notice() and run.is_held():
                with trio.CancelScope(shield=True, deadline=run.deadline):
                    while run.is_held():
                        await run.hold()
            raise
