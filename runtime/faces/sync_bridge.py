"""How threads call the runtime, which runs on Trio in another thread.

A caller posts what it wants to Trio's thread and blocks until the outcome is set. Threads that call
at about the same time share a wake-up of Trio, and their submits share a commit.
"""

import os
import threading
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

from outcome import Outcome

from keyrun.runtime.faces.calls import HostCall, Post, StandingTasks, Waiter, call_now
from keyrun.runtime.faces.direct import NEEDS_TASK, NeedsTask, Submit, WaitForEnd
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.host.callers import forked
from keyrun.runtime.host.outside import Outside
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.run.running_step import running
from keyrun.runtime.runtime import Runtime

T = TypeVar("T")


class WatchedWaiter(Waiter):
    """A waiter whose wait is reported."""

    __slots__ = ("_outside",)

    def __init__(self, outside: Outside) -> None:
        super().__init__()
        self._outside = outside

    def settle(self, outcome: Outcome[Any]) -> None:
        self._outside.resume(self)
        super().settle(outcome)


def _start_watched(
    outside: Outside,
    waiter: Waiter,
    code: object,
    start: Callable[..., object],
    args: tuple[Any, ...],
) -> None:
    # In one go: in between, nothing would be at work.
    outside.wait(waiter, code)
    start(*args)


class SyncBridge:
    """Calls one runtime from threads. `thread` is the identifier of Trio's thread."""

    def __init__(
        self,
        runtime: Runtime,
        post: Post,
        tasks: StandingTasks,
        thread: int | None,
        outside: Outside | None,
    ) -> None:
        self.runtime = runtime
        self.post = post
        self._tasks = tasks
        self._thread = thread
        self._outside = outside
        self._process = os.getpid()

    def _check(self) -> None:
        if os.getpid() != self._process:
            raise forked(self._process)
        if threading.get_ident() == self._thread:
            raise RuntimeError(
                "this thread runs Keyrun's event loop, and a blocking call would stop it; in an "
                "async step, use `await current_step().runtime...` instead"
            )

    def _waiter(self) -> Waiter:
        """Return the waiter of a call."""
        self._check()
        return Waiter() if self._outside is None else WatchedWaiter(self._outside)

    def _start(self, waiter: Waiter, start: Callable[..., object], *args: Any) -> None:
        """Post the start of a call that a waiter waits for."""
        if self._outside is None:
            self.post(start, *args)
        else:
            self.post(_start_watched, self._outside, waiter, running.get(), start, args)

    def call(
        self, function: Callable[..., Coroutine[Any, Any, T]], /, *args: Any, **kwargs: Any
    ) -> T:
        """Call an async function on the Trio side, and block until it has returned."""
        waiter = self._waiter()
        call = HostCall(function, args, kwargs, copy_context(), waiter.settle)
        self._start(waiter, self._tasks.start, call)
        try:
            value: T = waiter.wait()
        except KeyboardInterrupt:
            self.post(call.cancel)
            raise
        return value

    def now(self, function: Callable[[], T]) -> T:
        """Call a plain function in Trio's thread."""
        self._check()
        waiter = Waiter()
        self.post(call_now, function, waiter.settle)
        value: T = waiter.wait()
        return value

    def submit(self, submission: Submission, *, wait: bool) -> RunHandle[Any]:
        """Admit a run, and return its handle when the run is durable."""
        waiter = self._waiter()
        self._start(waiter, Submit(self.runtime, submission, waiter.settle).start)
        handle: RunHandle[Any] | NeedsTask = waiter.wait()
        if handle is NEEDS_TASK:
            return self.call(self.runtime._admit, submission, wait=wait)
        return handle

    def wait_for_end(self, submission: Submission) -> StatusRecord | None:
        """Wait for the end of a run; see `Runtime.wait_for_end`."""
        waiter = self._waiter()
        wait = WaitForEnd(self.runtime, submission, waiter.settle)
        self._start(waiter, wait.start)
        try:
            end: StatusRecord | NeedsTask | None = waiter.wait()
        except KeyboardInterrupt:
            self.post(wait.cancel)
            raise
        if end is NEEDS_TASK:
            return self.call(self.runtime._find_end, submission)
        return end
