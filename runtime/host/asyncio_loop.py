"""The asyncio loop: runs steps that are coroutines of asyncio libraries, with trio-asyncio.

One loop serves all steps of a process. It is opened for the first such step, so a program without
one does not import asyncio.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import cache
from typing import Any, TypeVar

import trio

from keyrun.runtime.events.logs import log_error
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.redaction import Redaction

T = TypeVar("T")


class AsyncioLoop:
    """An asyncio loop on top of Trio's."""

    outside = None
    """Report nothing about this loop, because Trio sees what runs on it."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._wanted = trio.Event()
        self._opened = trio.Event()
        self._interrupted = trio.Event()
        self._loop: Any = None

    async def run(self) -> None:
        """Keep the loop open from the first use on, until this is cancelled."""
        await self._wanted.wait()
        if self._loop is None:
            async with self.opened():
                await self._interrupted.wait()
        else:
            await self._interrupted.wait()
        raise KeyboardInterrupt

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Keep the loop open in a block."""
        trio_asyncio = _trio_asyncio()
        left: BaseException | None = None
        async with trio_asyncio.open_loop() as self._loop:
            self._loop.set_exception_handler(self._log)
            self._guard(self._loop)
            self._opened.set()
            self._wanted.set()
            try:
                yield
            except trio.Cancelled:
                raise
            except BaseException as error:
                # Raised outside of the nurseries of the loop, so that it is not in a group.
                left = error
        if left is not None:
            raise left

    @asynccontextmanager
    async def entered(self, manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """Enter and leave a context manager of asyncio on the loop, which is open."""
        trio_asyncio = _trio_asyncio()
        async with trio_asyncio.aio_as_trio(manager, loop=self._loop) as value:
            # The tasks that start in the block must not inherit the loop: they run on Trio.
            loop = trio_asyncio.current_loop.get()
            trio_asyncio.current_loop.set(None)
            try:
                yield value
            finally:
                trio_asyncio.current_loop.set(loop)

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Await a coroutine in the loop."""
        self._wanted.set()
        await self._opened.wait()
        try:
            return await _trio_asyncio().aio_as_trio(function, loop=self._loop)(*args, **kwargs)
        except BaseException as error:
            from_user(error)
            raise

    def _log(self, loop: Any, context: dict[str, Any]) -> None:
        """Log an exception of a callback. It must not end the loop that all steps share."""
        error = context.get("exception")
        extra = {"event": "asyncio_failed"}
        log_error(f"asyncio: {context.get('message')}", error, self._redaction, extra=extra)

    def _guard(self, loop: Any) -> None:
        """Let the loop survive `sys.exit()` and `KeyboardInterrupt` in a task or a callback. Both
        stop a loop of asyncio, and other tasks in it would never end. The future of a task has the
        exception as well, and so it reaches the step."""
        from trio_asyncio._base import TrioAsyncioExit

        # trio-asyncio calls this method for each callback and has no public hook for that.
        run_one = loop._main_loop_one

        async def run_one_safely(no_wait: bool = False) -> None:
            try:
                await run_one(no_wait)
            except TrioAsyncioExit:
                raise  # the loop is asked to stop
            except SystemExit as error:
                self._log(loop, {"message": "a callback called sys.exit()", "exception": error})
            except KeyboardInterrupt:
                self._interrupted.set()

        loop._main_loop_one = run_one_safely
        loop.call_soon(_nothing)  # the loop has called the old method, which waits for a callback


@cache
def _trio_asyncio() -> Any:
    """Import trio-asyncio. Outside of Trio, programs still get asyncio's own loops: the import
    replaces `asyncio.new_event_loop` with a function that makes loops of trio-asyncio everywhere.
    """
    import asyncio
    from asyncio import events

    own = asyncio.new_event_loop
    import trio_asyncio

    of_trio = asyncio.new_event_loop

    def new_event_loop() -> asyncio.AbstractEventLoop:
        return of_trio() if trio.lowlevel.in_trio_task() else own()

    if of_trio is not own:
        asyncio.new_event_loop = events.new_event_loop = new_event_loop
    return trio_asyncio


def _nothing() -> None: ...
