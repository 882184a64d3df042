"""Waits and wake-ups of Trio tasks that cost less than Trio's own.

A private leaf: every package may import it, and it knows nothing of Keyrun.
"""

import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Generic, TypeVar

import trio
from outcome import Outcome

T = TypeVar("T")
S = TypeVar("S")


class WakeValue(Outcome[T], Generic[T]):
    """Hold a value that can wake any number of tasks.

    Trio's own outcomes can be unwrapped once, so each task needs a new one. Making it takes a fifth
    of the time of a wake-up."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def unwrap(self) -> T:
        """Return the value."""
        return self.value

    def send(self, gen: Generator[S, T, object]) -> S:
        """Send the value to a generator."""
        return gen.send(self.value)

    async def asend(self, agen: AsyncGenerator[S, T]) -> S:
        """Send the value to an asynchronous generator."""
        return await agen.asend(self.value)


WAKE = WakeValue(None)
"""Wakes a task that only needs to know that it may resume."""

MAX_FREE = 1024
"""Waiters that a pool keeps for reuse."""


def _wait_message(abort: Callable[[Any], trio.lowlevel.Abort]) -> Any:
    """Return the message that `trio.lowlevel.wait_task_rescheduled(abort)` yields to Trio.

    The message has no other state, so a task can yield it again. Making one for each wait takes as
    long as the rest of the wait."""
    waiting = trio.lowlevel.wait_task_rescheduled(abort)  # noqa: ASYNC105
    try:
        return waiting.send(None)
    finally:
        waiting.close()


class WaitSlot:
    """Let one task wait again and again.

    The task puts itself into a dict of waiting tasks and suspends. The code that wakes the task
    removes it from that dict. A task that is cancelled removes itself."""

    __slots__ = ("_message", "_waiting", "task")

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        self._waiting: dict[trio.lowlevel.Task, None] = {}
        self._message = _wait_message(self._leave)

    @types.coroutine
    def wait(self, waiting: dict[trio.lowlevel.Task, None]) -> Generator[Any, Any, None]:
        """Wait as one of the tasks in `waiting`."""
        self._waiting = waiting
        waiting[self.task] = None
        outcome = yield self._message
        if outcome is not WAKE:
            outcome.unwrap()

    def _leave(self, _: object) -> trio.lowlevel.Abort:
        del self._waiting[self.task]
        return trio.lowlevel.Abort.SUCCEEDED


class WaiterPool:
    """Let many short-lived tasks wait, and reuse their messages to Trio.

    The code that wakes a task knows the task."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: list[_Waiter] = []

    @types.coroutine
    def wait(self, leave: Callable[[Any], trio.lowlevel.Abort]) -> Generator[Any, Any, None]:
        """Wait. Trio calls `leave` if the task is cancelled."""
        free = self._free
        waiter = free.pop() if free else _Waiter()
        waiter.leave = leave
        outcome = yield waiter.message
        if len(free) < MAX_FREE:
            waiter.leave = None
            free.append(waiter)
        if outcome is not WAKE:
            outcome.unwrap()


class _Waiter:
    __slots__ = ("leave", "message")

    def __init__(self) -> None:
        self.leave: Callable[[Any], trio.lowlevel.Abort] | None = None
        self.message = _wait_message(self._abort)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        assert self.leave is not None
        return self.leave(raise_cancel)
