"""The asyncio loop: for steps that are coroutines of asyncio libraries, by way of trio-asyncio.

One loop serves all steps of a runtime. It is opened when the first of them asks, so that whoever
uses none does not even import asyncio.
"""

from collections.abc import Callable
from typing import Any

import trio

from keyrun.runtime.logs import logger


class AsyncioLoop:
    """An asyncio loop on top of Trio's."""

    def __init__(self) -> None:
        self._wanted = trio.Event()
        self._opened = trio.Event()
        self._loop: Any = None

    async def run(self) -> None:
        """Keep the loop open from the first use on, until this is cancelled."""
        await self._wanted.wait()
        import trio_asyncio

        async with trio_asyncio.open_loop() as self._loop:
            self._loop.set_exception_handler(_log)
            self._opened.set()
            await trio.sleep_forever()

    async def call(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Await a coroutine in the loop."""
        self._wanted.set()
        await self._opened.wait()
        import trio_asyncio

        return await trio_asyncio.aio_as_trio(function, loop=self._loop)(*args, **kwargs)


def _log(loop: Any, context: dict[str, Any]) -> None:
    """A callback that nobody waits for must not take the loop of all steps down."""
    logger.error("asyncio: %s", context.get("message"), exc_info=context.get("exception"))
