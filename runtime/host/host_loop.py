"""The asyncio loop of the host: runs steps on the loop of the application that embeds Keyrun.

Trio runs as a guest of this loop, or in another thread. Steps with `asyncio=True` run as tasks of
the loop, so the connection pools of the application work in them.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from threading import get_ident
from typing import Any

import trio
from outcome import Error, Outcome, Value, capture

from keyrun.runtime.host.outside import OUTSIDE
from keyrun.runtime.internal_errors import from_user


def _nothing() -> None: ...


class HostLoop:
    """An asyncio loop that the application runs. Without `longest_pass`, Trio runs in another
    thread than the loop. Made in the thread of the loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, longest_pass: Callable[[], float] | None
    ) -> None:
        self.loop = loop
        self.thread = get_ident()
        self.outside = OUTSIDE.get()
        """Receives the code that runs on the loop; None if there is no listener."""
        self.longest_pass = longest_pass
        """Returns how long Trio has held the loop at most, in seconds."""
        self.on_closed: Callable[[], object] = _nothing
        """Called in Trio's thread when a step finds that the loop was closed."""

    @property
    def in_thread(self) -> bool:
        """Return whether Trio runs in another thread than the loop."""
        return self.longest_pass is None

    def is_closed(self) -> bool:
        """Return whether the application has closed the loop."""
        return self.loop.is_closed()

    async def run(self) -> None:
        """Do nothing: the application runs the loop."""

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Await a coroutine function on the loop, in the context of the current task."""
        return await _Call(self, function, args, kwargs).wait()


class _Call:
    """One coroutine on the loop that a Trio task waits for."""

    def __init__(
        self,
        host: HostLoop,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self._host = host
        self._function = function
        self._args = args
        self._kwargs = kwargs
        self._context = copy_context()
        self._waiting = trio.lowlevel.current_task()
        self._token = trio.lowlevel.current_trio_token()
        self._task: asyncio.Task[Outcome[Any]] | None = None
        self._raise_cancel: Callable[[], Any] | None = None

    async def wait(self) -> Any:
        try:
            self._on_loop(self._start)
        except RuntimeError:
            if not self._host.is_closed():
                raise
            # The runtime closes, which cuts off this attempt like all others: it does not count.
            self._host.on_closed()
            await trio.sleep_forever()
        try:
            return await trio.lowlevel.wait_task_rescheduled(self._cancel)
        except trio.Cancelled:
            raise
        except BaseException as error:
            from_user(error)
            raise

    def _on_loop(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the loop."""
        if self._host.in_thread:
            self._host.loop.call_soon_threadsafe(function)
        else:
            function()

    def _start(self) -> None:
        coroutine = self._guarded()
        self._task = self._host.loop.create_task(coroutine, context=self._context)
        self._task.add_done_callback(self._ended)
        if self._raise_cancel is not None:
            self._task.cancel()

    async def _guarded(self) -> Outcome[Any]:
        """Return the outcome of the coroutine. `SystemExit` would stop the loop of the host."""
        try:
            called: Coroutine[Any, Any, Any] = self._function(*self._args, **self._kwargs)
            return Value(await called)
        except asyncio.CancelledError:
            if self._raise_cancel is not None:
                raise
            return Error(asyncio.CancelledError())
        except BaseException as error:
            return Error(error)

    def _cancel(self, raise_cancel: Callable[[], Any]) -> trio.lowlevel.Abort:
        """Cancel the coroutine, because the Trio task is cancelled, and wait for its end."""
        self._raise_cancel = raise_cancel
        if self._task is not None:
            try:
                self._on_loop(self._task.cancel)
            except RuntimeError:  # the loop is closed, and the coroutine will never end
                return trio.lowlevel.Abort.SUCCEEDED
        return trio.lowlevel.Abort.FAILED

    def _ended(self, task: "asyncio.Task[Outcome[Any]]") -> None:
        if task.cancelled():
            assert self._raise_cancel is not None
            outcome: Outcome[Any] = capture(self._raise_cancel)
        else:
            outcome = task.result()
        if self._host.in_thread:
            self._token.run_sync_soon(trio.lowlevel.reschedule, self._waiting, outcome)
        else:
            trio.lowlevel.reschedule(self._waiting, outcome)
