"""The Trio side of calls from another host: asyncio, or threads.

A call that has to wait runs in one of a few standing tasks, because starting a task for each call
takes longer than most calls. A task runs the call in the context of the caller, so that the context
variables of the caller are visible.
"""

import threading
import types
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import suppress
from contextvars import Context
from enum import Enum
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

import trio
from outcome import Error, Outcome, Value

from keyrun.storage import StoreClosed

if TYPE_CHECKING:
    from keyrun.runtime.events.subscription import Events
    from keyrun.runtime.events.types import Event

T = TypeVar("T")

Deliver: TypeAlias = "Callable[[Outcome[Any]], None]"
"""Hands the outcome of a call to the host. Called once, in Trio's thread."""

Post: TypeAlias = "Callable[..., None]"
"""Calls a function with arguments in Trio's thread, where it may wake tasks and start them. The
function must not raise."""

MAX_IDLE = 64
"""Standing tasks that may wait for a call. More of them end."""


class HostCall:
    """One call of an async function from another host."""

    __slots__ = ("_args", "_context", "_deliver", "_function", "_kwargs", "_scope", "is_cancelled")

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        context: Context,
        deliver: Deliver,
    ) -> None:
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._context = context
        self._deliver = deliver
        self._scope: trio.CancelScope | None = None
        self.is_cancelled = False

    def cancel(self) -> None:
        """Cancel the call. Its outcome is not delivered."""
        self.is_cancelled = True
        if self._scope is not None:
            with suppress(RuntimeError):  # Trio has ended
                self._scope.cancel()

    def refuse(self) -> None:
        """Deliver that the runtime was closed before the call ended."""
        self._deliver(Error(StoreClosed("the runtime was closed; open it again to continue")))

    async def run(self) -> None:
        """Run the call, and deliver its outcome."""
        if self.is_cancelled:
            return
        outcome: Outcome[Any]
        with trio.CancelScope() as self._scope:
            try:
                coroutine = self._context.run(self._function, *self._args, **self._kwargs)
                outcome = Value(await _in_context(self._context, coroutine))
            except (trio.Cancelled, KeyboardInterrupt):
                if not self.is_cancelled:
                    self.refuse()
                raise
            except BaseException as error:
                outcome = Error(error)
            if not self.is_cancelled:
                self._deliver(outcome)


@types.coroutine
def _in_context(context: Context, coroutine: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Await `coroutine` in a context."""
    try:
        trap = context.run(coroutine.send, None)
        while True:
            try:
                value = yield trap
            except BaseException as error:
                trap = context.run(coroutine.throw, error)
            else:
                trap = context.run(coroutine.send, value)
    except StopIteration as stop:
        return cast(T, stop.value)


class StandingTasks:
    """The tasks that run calls. All methods are called in Trio's thread."""

    def __init__(self) -> None:
        self._calls: deque[HostCall] = deque()
        self._idle = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None
        self._is_over = False

    async def run(self) -> None:
        """Run calls, also those that came before this, until this is cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                if self._calls:
                    self._nursery.start_soon(self._serve)
                await trio.sleep_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Refuse all calls from now on."""
        self._is_over = True
        while self._calls:
            self._calls.popleft().refuse()

    def start(self, call: HostCall) -> None:
        """Run a call in the next task that is free."""
        if self._is_over:
            call.refuse()
            return
        self._calls.append(call)
        if self._idle:
            self._idle.unpark()
        elif self._nursery is not None:
            self._nursery.start_soon(self._serve)

    async def _serve(self) -> None:
        while True:
            while self._calls:
                await self._calls.popleft().run()
            if len(self._idle) >= MAX_IDLE:
                return
            await self._idle.park()


class ThreadsafePost:
    """Posts functions to Trio from other threads. Threads that post at about the same time share a
    wake-up."""

    __slots__ = ("_jobs", "_posted", "_token")

    def __init__(self, token: trio.lowlevel.TrioToken) -> None:
        self._jobs: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._posted = False
        self._token = token

    def __call__(self, function: Callable[..., object], *args: Any) -> None:
        self._jobs.append((function, args))
        if not self._posted:
            self._posted = True
            try:
                self._token.run_sync_soon(self._run_jobs)
            except trio.RunFinishedError:
                # Everything is closed, so the jobs deliver that in any thread.
                self._run_jobs()

    def _run_jobs(self) -> None:
        self._posted = False
        jobs = self._jobs
        while jobs:
            function, args = jobs.popleft()
            function(*args)


class Waiter:
    """One thread that waits for an outcome. A lock wakes it faster than an event."""

    __slots__ = ("_lock", "_outcome")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._outcome: Outcome[Any] | None = None

    def settle(self, outcome: Outcome[Any]) -> None:
        """Set the outcome. Called in Trio's thread, once."""
        self._outcome = outcome
        self._lock.release()

    def wait(self) -> Any:
        """Block until there is an outcome, and return its value or raise its error."""
        self._lock.acquire()
        assert self._outcome is not None
        return self._outcome.unwrap()


def call_now(function: Callable[[], Any], deliver: Deliver) -> None:
    """Call a plain function, and deliver its outcome."""
    try:
        outcome: Outcome[Any] = Value(function())
    except Exception as error:
        outcome = Error(error)
    deliver(outcome)


class Ended(Enum):
    """Returned instead of an item: the iteration is over. A future cannot raise that."""

    YES = "yes"


async def next_of(iterator: AsyncIterator[T]) -> T | Ended:
    """Return the next item of an iterator, or `Ended`."""
    try:
        return await anext(iterator)
    except StopAsyncIteration:
        return Ended.YES


async def next_events(events: "Events") -> "list[Event] | Ended":
    """Wait for events, and return all that have arrived."""
    first = await next_of(events)
    if isinstance(first, Ended):
        return first
    found = [first]
    while events.has_more:
        found.append(await anext(events))
    return found
