"""The asyncio loop: runs steps that are coroutines of asyncio libraries, with trio-asyncio.

One loop serves all steps of a process. It is opened for the first such step, so a program without
one does not import asyncio.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeVar

import trio

from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.logger import logger

T = TypeVar("T")


class AsyncioLoop:
    """An asyncio loop on top of Trio's."""

    outside = None
    """Report nothing about this loop, because Trio sees what runs on it."""

    def __init__(self) -> None:
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
        import trio_asyncio

        async with trio_asyncio.open_loop() as self._loop:
            self._loop.set_exception_handler(_log)
            self._guard(self._loop)
            self._opened.set()
            self._wanted.set()
            yield

    @asynccontextmanager
    async def entered(self, manager: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
        """Enter and leave a context manager of asyncio on the loop, which is open."""
        import trio_asyncio

        async with trio_asyncio.aio_as_trio(manager, loop=self._loop) as value:
            yield value

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Await a coroutine in the loop."""
        self._wanted.set()
        await self._opened.wait()
        import trio_asyncio

        try:
            return await trio_asyncio.aio_as_trio(function, loop=self._loop)(*args, **kwargs)
        except BaseException as error:
            from_user(error)
            raise

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
                _log(loop, {"message": "a callback called sys.exit()", "exception": error})
            except KeyboardInterrupt:
                self._interrupted.set()

        loop._main_loop_one = run_one_safely


def _log(loop: Any, context: dict[str, Any]) -> None:
    """Log an exception of a callback. It must not end the loop that all steps share."""
    logger.error("asyncio: %s", context.get("message"), exc_info=context.get("exception"))
