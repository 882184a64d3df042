"""Lifespans of processes that share a store: entered when the process becomes the owner, and left
when its engine has ended.

That time is not known before, so the lifespan has a task or a thread of its own, which enters and
leaves it.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from keyrun.hosting.trio_side import only
from keyrun.runtime.host.host_loop import HostLoop
from keyrun.runtime.host.lifespan import ON_HOST_LOOP, Lifespan, async_manager_of, enter

Entered = Callable[[Any], None]
"""Takes the value of a lifespan. Called where the lifespan runs."""


@asynccontextmanager
async def on_loop(host: HostLoop, lifespan: Lifespan) -> AsyncIterator[Any]:
    """Enter a lifespan in a task of the loop of the application, which also leaves it."""
    token = trio.lowlevel.current_trio_token()
    over = asyncio.Event()

    async def live(entered: Entered) -> None:
        async with AsyncExitStack() as stack:
            value = await enter(stack, async_manager_of(lifespan), ON_HOST_LOOP)
            if host.in_thread:
                token.run_sync_soon(entered, value)
            else:
                entered(value)
            await over.wait()

    def leave() -> bool:
        if host.is_closed():
            return False
        if host.in_thread:
            host.loop.call_soon_threadsafe(over.set)
        else:
            over.set()
        return True

    async with _lived(lambda entered: host.call(live, (entered,), {}), leave) as value:
        yield value


@asynccontextmanager
async def in_thread(manager: AbstractContextManager[Any]) -> AsyncIterator[Any]:
    """Enter a plain lifespan in a thread, which also leaves it."""
    over = threading.Event()

    def live(entered: Entered) -> None:
        with manager as value:
            trio.from_thread.run_sync(entered, value)
            over.wait()

    def leave() -> bool:
        over.set()
        return True

    limiter = trio.CapacityLimiter(1)
    async with _lived(
        lambda entered: trio.to_thread.run_sync(live, entered, limiter=limiter), leave
    ) as value:
        yield value


@asynccontextmanager
async def _lived(
    live: Callable[[Entered], Awaitable[None]], leave: Callable[[], bool]
) -> AsyncIterator[Any]:
    """Run a lifespan beside a block. `live` calls its argument with the value, and returns some
    time after `leave` has returned True."""
    has_entered, scope = trio.Event(), trio.CancelScope()
    value: Any = None
    left: BaseException | None = None

    def entered(given: Any) -> None:
        nonlocal value
        value = given
        # A cancellation of the block drains the runtime first.
        scope.shield = True
        has_entered.set()

    async def run() -> None:
        with scope:
            await live(entered)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await has_entered.wait()
            try:
                yield value
            except trio.Cancelled:
                raise
            except BaseException as error:
                left = error
            finally:
                if not leave():
                    scope.shield = False
                    scope.cancel()
    except BaseExceptionGroup as group:
        raise only(group) from None
    if left is not None:
        raise left
