"""The elastic pool of worker tasks, and the queue of ready cells that it serves.

A worker is *seeking* while it is certain to look at the queue again without waiting for anybody:
from its wake-up until its handler suspends or it finds nothing to do. As long as one is seeking
nobody needs to be woken, so a flood of handlers that never wait is served by a single task. When
the last seeking worker suspends and leaves ready cells behind, it wakes others, or starts them:
two, and twice as many each time that they too suspend and leave something behind.
"""

import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from math import inf
from typing import Any, TypeAlias, TypeVar, cast

import trio

from keyrun._waking import WAKE, WaitSlot
from keyrun.actors.cell import BOUND, READY, Cell

T = TypeVar("T")

PASS = 256
"""Messages after which a worker lets other tasks run. Counted, not timed: with a seeded
scheduler a run repeats itself exactly."""

MAX_IDLE = 1024
"""More waiting workers than this go home. A task costs about 3 KB and 20 us to start."""

Serve: TypeAlias = Callable[[trio.lowlevel.Task, int], Coroutine[Any, Any, int | None]]
"""Serves ready cells in the context it is called in, and rests in between, for a worker that has
already handled so many messages of its pass. Returns how many that makes when the context, or the
scope, is no longer clean; None when the worker may go."""


class Suspension:
    """Calls `callback` once, as soon as the code that has set it suspends.

    A handler sets `callback` right before an `await` and removes it right after. If the callback is
    still set then, the awaited code has not suspended, so no other task has run. A task that a
    handler starts has to run its code in `carry`, or its suspensions are not noticed.
    """

    __slots__ = ("callback",)

    def __init__(self) -> None:
        self.callback: Callable[[], None] | None = None

    @types.coroutine
    def carry(self, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
        """Await `coroutine`, and call the callback whenever it suspends with one set. An error of
        the callback is raised where the code suspends."""
        try:
            trap = coroutine.send(None)
            while True:
                while self.callback is not None:
                    callback, self.callback = self.callback, None
                    try:
                        callback()
                    except BaseException as error:
                        trap = coroutine.throw(error)
                try:
                    value = yield trap
                except BaseException as error:
                    trap = coroutine.throw(error)
                else:
                    trap = coroutine.send(value)
        except StopIteration as stop:
            return cast(T, stop.value)


class WorkerSlot(WaitSlot):
    """How a worker waits."""

    __slots__ = ("scope",)

    def __init__(self, task: trio.lowlevel.Task) -> None:
        super().__init__(task)
        self.scope: trio.CancelScope
        """What it lends to its handlers."""


class Pool:
    """Serves ready cells with as many workers as have something to do."""

    def __init__(self, max_workers: int | None, pass_size: int | None) -> None:
        self.pass_size = PASS if pass_size is None else pass_size
        """Messages after which a worker lets other tasks run."""
        self._max_burst = MAX_IDLE if pass_size is None else pass_size
        """Workers that are woken at once."""
        self.ready: deque[Cell] = deque()
        self.delayed: set[Cell] = set()
        """Cells that will come back to the queue by themselves."""
        self.serving: dict[trio.lowlevel.Task, Cell | None] = {}
        """Every running worker, and the cell it had last."""
        self.slots: dict[trio.lowlevel.Task, WorkerSlot] = {}
        """How each of them waits, and the scope that it lends to its handlers."""
        self.borrowed: set[trio.lowlevel.Task] = set()
        """Workers whose scope a handler has asked for, until it is taken back."""
        self.spent: set[trio.lowlevel.Task] = set()
        """Workers whose scope was cancelled, and that need another before they may wait."""
        self.suspension = Suspension()
        self.seeking = 0
        self.workers = 0
        self._max_workers = max_workers
        self._burst = 1
        self._idle: dict[trio.lowlevel.Task, None] = {}
        self._quiet = trio.lowlevel.ParkingLot()

    def open(self, nursery: trio.Nursery, serve: Serve) -> None:
        """Say where workers run and what they do.

        Workers inherit the context of this call, not of the `tell` that happens to start them.
        """
        self._nursery = nursery
        self._serve = serve
        self._context = copy_context()

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the workers."""
        self._context.run(self._nursery.start_soon, function)

    def close(self) -> None:
        """Forget what is left when the workers are gone."""
        self.ready.clear()
        self.delayed.clear()
        self.signal_quiet()

    @property
    def idle(self) -> int:
        """How many workers wait for a wake-up."""
        return len(self._idle)

    def bound(self) -> set[Cell]:
        """The cells that workers hold."""
        return {c for c in self.serving.values() if c is not None and c.state is BOUND}

    def push(self, cell: Cell) -> None:
        """Put a cell at the end of the queue."""
        cell.state = READY
        self.ready.append(cell)
        if not self.seeking:
            self.wake()

    def wake(self) -> None:
        """See to it that a worker comes, if the pool may have one more."""
        if self._idle:
            task, _ = self._idle.popitem()
            trio.lowlevel.reschedule(task, WAKE)
        elif self._max_workers is None or self.workers < self._max_workers:
            self.workers += 1
            self.spawn(self._work)
        else:
            return
        self.seeking += 1

    def _wake_several(self) -> None:
        """A handler waits, so those of the other ready cells may wait, too: as many workers as
        were of use lately, and twice as many as the last time."""
        self._burst = min(2 * self._burst, self._max_burst)
        for _ in range(min(self._burst, len(self.ready))):
            self.wake()

    async def _work(self) -> None:
        task = trio.lowlevel.current_task()
        served = 0
        try:
            self.serving[task] = None
            slot = self.slots[task] = WorkerSlot(task)
            while True:
                with trio.CancelScope() as slot.scope:
                    while task not in self.spent:
                        if not self.ready:
                            self._burst = max(1, self._burst // 2)  # woken in vain
                        handled = await self._carry(self._serve(task, served))
                        if handled is None:
                            self.seeking -= 1
                            return
                        served = handled
                self.spent.discard(task)
                # What came out of a handler may have been the end of the system as well.
                await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            del self.serving[task]
            self.slots.pop(task, None)
            self.borrowed.discard(task)
            self.spent.discard(task)
            self.workers -= 1
            self.signal_quiet()

    async def rest(self, task: trio.lowlevel.Task) -> bool:
        """Wait for a wake-up, in what a worker serves with. Says False when enough others wait and
        this worker may go."""
        if len(self._idle) >= MAX_IDLE:
            return False

        self.serving[task] = None
        self._idle[task] = None
        if self._quiet:
            self.signal_quiet()
        await self.slots[task].wait(self._idle)
        self.seeking -= 1  # it was counted when it was woken, and again when it went on
        if not self.ready:
            self._burst = max(1, self._burst // 2)  # woken in vain
        return True

    async def let_others_run(self) -> None:
        """What a worker does between two passes. It stays the one that seeks."""
        self.seeking += 1
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self.seeking -= 1

    @types.coroutine
    def _carry(self, coroutine: Coroutine[Any, Any, int | None]) -> Generator[Any, Any, int | None]:
        """Run a coroutine in a context of its own, and pass the queue on whenever it suspends.

        What `yield from` does, plus that. While nothing in it suspends, handlers are awaited
        one after the other without touching Trio at all.
        """
        context = copy_context()
        suspension = self.suspension
        try:
            trap = context.run(coroutine.send, None)
            while True:
                while suspension.callback is not None:
                    callback, suspension.callback = suspension.callback, None
                    try:
                        callback()
                    except BaseException as error:
                        trap = context.run(coroutine.throw, error)
                self.seeking -= 1
                if self.ready and not self.seeking:
                    self._wake_several()
                try:
                    value = yield trap
                except BaseException as error:
                    self.seeking += 1
                    trap = context.run(coroutine.throw, error)
                else:
                    self.seeking += 1
                    trap = context.run(coroutine.send, value)
        except StopIteration as stop:
            return cast(int | None, stop.value)

    @property
    def quiet(self) -> bool:
        """Whether nothing runs, waits its turn or will come back by itself."""
        return not self.ready and len(self._idle) == self.workers and not self.delayed

    def signal_quiet(self) -> None:
        """Tell whoever waits for the quiet, if it is there."""
        if self._quiet and self.quiet:
            self._quiet.unpark_all()

    async def wait_quiet(self) -> None:
        """Return at a moment when it is quiet."""
        await trio.lowlevel.checkpoint()
        while not self.quiet:
            await self._quiet.park()

    def scope(self, *, kept: bool = False) -> trio.CancelScope:
        """The scope that the worker of this task lends. Where it is `kept`, nobody looks at it
        when the handler has ended."""
        slot = self.wait_slot()
        if not kept:
            self.borrowed.add(slot.task)
        return slot.scope

    def wait_slot(self) -> WorkerSlot:
        """That of the worker of this task."""
        slot = self.slots.get(trio.lowlevel.current_task())
        if slot is None:
            raise RuntimeError("only a handler has a scope, in the task that it was called in")
        return slot

    def renew_scope(self) -> None:
        """Have the worker of this task get another scope as soon as its handler returns."""
        self.scope()
        self.spent.add(trio.lowlevel.current_task())

    def take_back(self, task: trio.lowlevel.Task) -> bool:
        """A handler that had the scope has ended. Says whether the next one may have it: not one
        that is cancelled, and none keeps a deadline."""
        self.borrowed.discard(task)
        scope = self.slots[task].scope
        if scope.deadline != inf:
            scope.deadline = inf
        if scope.cancel_called:
            self.spent.add(task)
        return task not in self.spent

    def cells_above(self) -> Iterator[Cell]:
        """The cell whose handler this task is part of, also in a nursery that it opened."""
        task: trio.lowlevel.Task | None = trio.lowlevel.current_task()
        while task is not None:
            cell = self.serving.get(task)
            if cell is not None:
                yield cell
            task = task.parent_nursery and task.parent_nursery.parent_task
