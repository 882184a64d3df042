"""The elastic pool of worker tasks, and the queue of ready cells that it serves.

A worker is *seeking* from its wake-up until its handler suspends or the queue is empty. A seeking
worker certainly looks at the queue again, so no other worker has to be woken. That is why a single
task serves any number of handlers that never wait. When the last seeking worker suspends and cells
are still ready, it wakes or starts two other workers. If these suspend as well and cells are still
ready, it is four, and so on.
"""

import types
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextvars import copy_context
from math import inf
from typing import Any, TypeAlias, TypeVar, cast

import trio
from trio.lowlevel import current_task, reschedule

from keyrun._waking import WAKE, WaitSlot
from keyrun.actors.cell import BOUND, READY, Cell

T = TypeVar("T")

PASS = 256
"""Messages after which a worker lets other tasks run. Counted, not timed: with a seeded
scheduler a run repeats itself exactly."""

MAX_IDLE = 1024
"""The number of workers that wait for a wake-up. Further workers end. A task costs about 3 KB, and
20 us to start."""

Serve: TypeAlias = Callable[[trio.lowlevel.Task, int], Coroutine[Any, Any, int | None]]
"""Serves ready cells in the current context, and waits while there are none. It receives the number
of messages that the worker has handled in this pass. It returns the new number when the context or
the cancel scope is no longer clean, and None when the worker may end."""


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
    """The wait slot of a worker."""

    __slots__ = ("scope",)

    def __init__(self, task: trio.lowlevel.Task) -> None:
        super().__init__(task)
        self.scope: trio.CancelScope
        """The cancel scope that the handlers of the worker share."""


class Pool:
    """Serves ready cells with as many workers as have something to do."""

    def __init__(self, max_workers: int | None, pass_size: int | None) -> None:
        self.pass_size = PASS if pass_size is None else pass_size
        """Messages after which a worker lets other tasks run."""
        self._max_burst = MAX_IDLE if pass_size is None else pass_size
        """Workers that are woken at once."""
        self.ready: deque[Cell] = deque()
        self.delayed: set[Cell] = set()
        """Cells that return to the queue when their backoff is over."""
        self.serving: dict[trio.lowlevel.Task, Cell | None] = {}
        """Every running worker, and its latest cell."""
        self.slots: dict[trio.lowlevel.Task, WorkerSlot] = {}
        """The wait slot of each worker, with the scope that its handlers share."""
        self.borrowed: set[trio.lowlevel.Task] = set()
        """Workers whose scope a handler has requested and not yet returned."""
        self.spent: set[trio.lowlevel.Task] = set()
        """Workers whose scope was cancelled. They need a new one before they wait."""
        self.suspension = Suspension()
        self.seeking = 0
        self.workers = 0
        self._max_workers = max_workers
        self._burst = 1
        self._idle: dict[trio.lowlevel.Task, None] = {}
        self._quiet = trio.lowlevel.ParkingLot()

    def open(self, nursery: trio.Nursery, serve: Serve) -> None:
        """Set the nursery of the workers, and the function that they run.

        Workers inherit the context of this call, not the context of the `tell` that starts them.
        """
        self._nursery = nursery
        self._serve = serve
        self._context = copy_context()

    def spawn(self, function: Callable[[], Awaitable[None]]) -> None:
        """Run a task beside the workers."""
        self._context.run(self._nursery.start_soon, function)

    def close(self) -> None:
        """Drop all cells after the workers have ended."""
        self.ready.clear()
        self.delayed.clear()
        self.signal_quiet()

    @property
    def idle(self) -> int:
        """Return the number of workers that wait for a wake-up."""
        return len(self._idle)

    def bound(self) -> set[Cell]:
        """Return the cells that workers hold."""
        return {c for c in self.serving.values() if c is not None and c.state is BOUND}

    def push(self, cell: Cell) -> None:
        """Put a cell at the end of the queue."""
        cell.state = READY
        self.ready.append(cell)
        if not self.seeking:
            self.wake()

    def wake(self) -> None:
        """Wake a worker, or start one if the pool may have one more."""
        if self._idle:
            task, _ = self._idle.popitem()
            reschedule(task, WAKE)
        elif self._max_workers is None or self.workers < self._max_workers:
            self.workers += 1
            self.spawn(self._work)
        else:
            return
        self.seeking += 1

    def _wake_several(self) -> None:
        """Wake workers because a handler waits, and the handlers of other ready cells may wait as
        well. Their number doubles with each call, and halves when a worker finds no cell."""
        self._burst = min(2 * self._burst, self._max_burst)
        for _ in range(min(self._burst, len(self.ready))):
            self.wake()

    async def _work(self) -> None:
        task = current_task()
        served = 0
        try:
            self.serving[task] = None
            slot = self.slots[task] = WorkerSlot(task)
            while True:
                with trio.CancelScope() as slot.scope:
                    while task not in self.spent:
                        if not self.ready:
                            self._burst = max(1, self._burst // 2)  # nothing was ready
                        handled = await self._carry(self._serve(task, served))
                        if handled is None:
                            self.seeking -= 1
                            return
                        served = handled
                self.spent.discard(task)
                # The whole system may have been cancelled as well.
                await trio.lowlevel.checkpoint_if_cancelled()
        finally:
            del self.serving[task]
            self.slots.pop(task, None)
            self.borrowed.discard(task)
            self.spent.discard(task)
            self.workers -= 1
            self.signal_quiet()

    async def rest(self, task: trio.lowlevel.Task) -> bool:
        """Wait for a wake-up. Return False if enough other workers wait, so that this one may
        end."""
        if len(self._idle) >= MAX_IDLE:
            return False

        self.serving[task] = None
        self._idle[task] = None
        if self._quiet:
            self.signal_quiet()
        await self.slots[task].wait(self._idle)
        self.seeking -= 1  # counted by the wake-up, and again when this task resumed
        if not self.ready:
            self._burst = max(1, self._burst // 2)  # nothing was ready
        return True

    async def let_others_run(self) -> None:
        """Run other tasks between two passes of a worker. The worker stays a seeking one."""
        self.seeking += 1
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self.seeking -= 1

    @types.coroutine
    def _carry(self, coroutine: Coroutine[Any, Any, int | None]) -> Generator[Any, Any, int | None]:
        """Run a coroutine in a context of its own, and wake other workers whenever it suspends.

        Apart from that, it does the same as `yield from`. While no handler suspends, handlers are
        awaited one after the other without a call of Trio.
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
        """Return whether no cell is running, ready or in backoff."""
        return not self.ready and len(self._idle) == self.workers and not self.delayed

    def signal_quiet(self) -> None:
        """Wake the tasks in `wait_quiet` if the pool is quiet."""
        if self._quiet and self.quiet:
            self._quiet.unpark_all()

    async def wait_quiet(self) -> None:
        """Return when the pool is quiet."""
        await trio.lowlevel.checkpoint()
        while not self.quiet:
            await self._quiet.park()

    def scope(self, *, kept: bool = False) -> trio.CancelScope:
        """Return the scope of the worker of this task. With `kept`, the pool does not check it when
        the handler has ended."""
        slot = self.wait_slot()
        if not kept:
            self.borrowed.add(slot.task)
        return slot.scope

    def wait_slot(self) -> WorkerSlot:
        """Return the wait slot of the worker of this task."""
        slot = self.slots.get(current_task())
        if slot is None:
            raise RuntimeError("only a handler has a scope, in the task that it was called in")
        return slot

    def renew_scope(self) -> None:
        """Give the worker of this task a new scope as soon as its handler returns."""
        self.scope()
        self.spent.add(current_task())

    def take_back(self, task: trio.lowlevel.Task) -> bool:
        """Take back the scope from a handler that has ended, and remove its deadline. Return
        whether the next handler may have the scope: it may not if the scope is cancelled."""
        self.borrowed.discard(task)
        scope = self.slots[task].scope
        if scope.deadline != inf:
            scope.deadline = inf
        if scope.cancel_called:
            self.spent.add(task)
        return task not in self.spent

    def cells_above(self) -> Iterator[Cell]:
        """Yield the cells whose handlers this task is part of, also as a task in their
        nurseries."""
        task: trio.lowlevel.Task | None = current_task()
        while task is not None:
            cell = self.serving.get(task)
            if cell is not None:
                yield cell
            task = task.parent_nursery and task.parent_nursery.parent_task
