"""How code on an asyncio loop calls the runtime, which runs on Trio.

Submits and waits for ends take no Trio task: the caller waits for a future, and the commit or the
run table sets it. All other calls run in a standing task of the Trio side.
"""

import asyncio
import os
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from outcome import Error, Outcome

from keyrun.runtime.faces.calls import HostCall, Post, StandingTasks, Waiter, call_now
from keyrun.runtime.faces.direct import NEEDS_TASK, NeedsTask, Submit, WaitForEnd
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.host.callers import forked, wrong_caller
from keyrun.runtime.host.outside import Outside
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.run.running_step import running
from keyrun.runtime.runtime import Runtime

T = TypeVar("T")


class AsyncioBridge:
    """Calls one runtime from one asyncio loop. `in_thread` says that Trio runs in another thread
    than the loop."""

    __slots__ = ("_in_thread", "_outside", "_process", "_tasks", "loop", "post", "runtime")

    def __init__(
        self,
        runtime: Runtime,
        post: Post,
        tasks: StandingTasks,
        loop: asyncio.AbstractEventLoop,
        *,
        in_thread: bool,
        outside: Outside | None,
    ) -> None:
        self.runtime = runtime
        self.loop = loop
        self.post = post
        self._tasks = tasks
        self._in_thread = in_thread
        self._process = os.getpid()
        self._outside = outside

    def begin(
        self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any
    ) -> "tuple[asyncio.Future[T], Callable[[], None]]":
        """Call an async function on the Trio side. Return the future of its value, and how to
        cancel the call."""
        future: asyncio.Future[T] = self._future()
        call = HostCall(function, args, kwargs, copy_context(), partial(self._deliver, future))
        self.post(self._tasks.start, call)
        return future, partial(self.post, call.cancel)

    async def call(
        self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any
    ) -> T:
        """Call an async function on the Trio side, and return its value."""
        future, cancel = self.begin(function, *args, **kwargs)
        try:
            return await future
        except asyncio.CancelledError:
            cancel()
            raise

    def now(self, function: Callable[[], T]) -> T:
        """Call a plain function in Trio's thread. It must be short: the loop waits for it."""
        if asyncio._get_running_loop() is not self.loop:
            raise self._wrong_caller()
        if not self._in_thread:
            return function()
        waiter = Waiter()
        self.post(call_now, function, waiter.settle)
        value: T = waiter.wait()
        return value

    async def submit(self, submission: Submission, *, wait: bool) -> RunHandle[Any]:
        """Admit a run, and return its handle when the run is durable."""
        future: asyncio.Future[RunHandle[Any] | NeedsTask] = self._future()
        self.post(Submit(self.runtime, submission, partial(self._deliver, future)).start)
        handle = await future
        if handle is NEEDS_TASK:
            return await self.call(self.runtime._admit, submission, wait=wait)
        assert isinstance(handle, RunHandle)
        return handle

    async def wait_for_end(self, submission: Submission) -> StatusRecord | None:
        """Wait for the end of a run; see `Runtime.wait_for_end`."""
        future: asyncio.Future[StatusRecord | NeedsTask | None] = self._future()
        wait = WaitForEnd(self.runtime, submission, partial(self._deliver, future))
        self.post(wait.start)
        try:
            end = await future
        except asyncio.CancelledError:
            self.post(wait.cancel)
            raise
        if end is NEEDS_TASK:
            return await self.call(self.runtime._find_end, submission)
        return end

    def _wrong_caller(self) -> RuntimeError:
        if os.getpid() != self._process:
            return forked(self._process)
        return wrong_caller("on asyncio")

    def _future(self) -> "asyncio.Future[Any]":
        """Return a new future, if this code runs on the loop that the runtime belongs to."""
        if asyncio._get_running_loop() is not self.loop:
            raise self._wrong_caller()
        future: asyncio.Future[Any] = self.loop.create_future()
        if self._outside is not None:
            self.post(self._outside.wait, future, running.get())
            future.add_done_callback(self._outside.resume)  # it may be cancelled
        return future

    def _deliver(self, future: "asyncio.Future[Any]", outcome: Outcome[Any]) -> None:
        """Set the outcome of a future. Called in Trio's thread."""
        if self._outside is not None:
            self._outside.resume(future)
        if not self._in_thread:
            settle(future, outcome)
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(settle, future, outcome)


def settle(future: "asyncio.Future[Any]", outcome: Outcome[Any]) -> None:
    """Set the outcome of a future, unless its caller was cancelled."""
    if future.done():
        return
    if isinstance(outcome, Error):
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome.value)  # type: ignore[attr-defined]


def retrieve(future: "asyncio.Future[Any]") -> None:
    """Tell asyncio that the error of a future need not be logged if no task awaits the future."""
    if not future.cancelled():
        future.exception()
