"""Waking: how a task tells Trio that it waits until it is woken, and what it is told then.

A leaf: every folder may import it, and it knows nothing of Keyrun.
"""

import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, Generic, TypeVar

import trio
from outcome import Outcome

T = TypeVar("T")
S = TypeVar("S")


class Told(Outcome[T], Generic[T]):
    """A value, as often as anybody wants it. Trio's own outcomes are made for each task that is
    woken and can be looked at once, which takes a fifth of the time of waking it."""

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def unwrap(self) -> T:
        """The value."""
        return self.value

    def send(self, gen: Generator[S, T, object]) -> S:
        """Give it to a generator."""
        return gen.send(self.value)

    async def asend(self, agen: AsyncGenerator[S, T]) -> S:
        """Give it to an asynchronous generator."""
        return await agen.asend(self.value)


GO_ON = Told(None)
"""For those who have nothing to learn but that they may go on."""

MOST_FREE = 1024
"""Places to wait at that are kept while nobody does."""


def _wait_message(abort: Callable[[Any], trio.lowlevel.Abort]) -> Any:
    """What `trio.lowlevel.wait_task_rescheduled(abort)` tells Trio, and gets an outcome for. It
    says nothing else, so it can be told again; to have it made for each wait takes as long as all
    the rest of waiting."""
    waiting = trio.lowlevel.wait_task_rescheduled(abort)  # noqa: ASYNC105
    try:
        return waiting.send(None)
    finally:
        waiting.close()


class Seat:
    """How a task waits that does so over and over: it takes a place among those who are woken,
    tells Trio, and leaves its place if it is cancelled. Whoever wakes it takes it out of there."""

    __slots__ = ("_message", "_place", "task")

    def __init__(self, task: trio.lowlevel.Task) -> None:
        self.task = task
        self._place: dict[trio.lowlevel.Task, None] = {}
        self._message = _wait_message(self._leave)

    @types.coroutine
    def wait(self, place: dict[trio.lowlevel.Task, None]) -> Generator[Any, Any, None]:
        """Wait among those in `place`."""
        self._place = place
        place[self.task] = None
        told = yield self._message
        if told is not GO_ON:
            told.unwrap()

    def _leave(self, _: object) -> trio.lowlevel.Abort:
        del self._place[self.task]
        return trio.lowlevel.Abort.SUCCEEDED


class Hall:
    """Where one task after the other waits, each to be woken by somebody who knows it. What they
    tell Trio is kept for those who come later."""

    __slots__ = ("_free",)

    def __init__(self) -> None:
        self._free: list[_Chair] = []

    @types.coroutine
    def wait(self, leave: Callable[[Any], trio.lowlevel.Abort]) -> Generator[Any, Any, None]:
        """Wait; `leave` is for Trio to call if the task is cancelled."""
        free = self._free
        chair = free.pop() if free else _Chair()
        chair.leave = leave
        told = yield chair.message
        if len(free) < MOST_FREE:
            chair.leave = None
            free.append(chair)
        if told is not GO_ON:
            told.unwrap()


class _Chair:
    __slots__ = ("leave", "message")

    def __init__(self) -> None:
        self.leave: Callable[[Any], trio.lowlevel.Abort] | None = None
        self.message = _wait_message(self._abort)

    def _abort(self, told: object) -> trio.lowlevel.Abort:
        assert self.leave is not None
        return self.leave(told)
