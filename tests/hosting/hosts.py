"""Hosts on asyncio: loops of both kinds, with Trio as their guest or in a thread."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import attrs
import uvloop

from keyrun.asyncio import Runtime, open_runtime
from keyrun.storage import MemoryStore
from tests.hosting.workflows import ALL, keyrun_threads

Body = Callable[[Runtime], Awaitable[Any]]


@attrs.frozen
class Host:
    """Where a test runs: with Trio as a guest of the loop or in a thread, and on which loop."""

    thread: bool = False
    new_loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.SelectorEventLoop

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine on a new loop. Once trio-asyncio was imported, `asyncio.run` runs it on
        Trio."""
        with asyncio.Runner(loop_factory=self.new_loop) as runner:
            return runner.run(main)

    def run_with_runtime(self, body: Body, **options: Any) -> Any:
        """Run a body with a runtime on memory."""

        async def main() -> Any:
            store = options.pop("store", None) or MemoryStore()
            options.setdefault("workflows", ALL)
            async with open_runtime(store, thread=self.thread, **options) as rt:
                return await body(rt)

        value = self.run(main())
        assert not keyrun_threads()
        return value


GUEST = Host()
HOSTS = {
    "guest": GUEST,
    "thread": Host(thread=True),
    "uvloop": Host(new_loop=uvloop.new_event_loop),
}
