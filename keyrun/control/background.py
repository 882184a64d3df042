"""Background: run tasks beside a block, and let an error of the block be itself."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import trio


@asynccontextmanager
async def background() -> AsyncIterator[trio.Nursery]:
    """Run tasks while the block runs, and cancel them when it is left."""
    left: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except trio.Cancelled:
            raise
        except BaseException as error:
            # Raised outside of the nursery, so that it is not in a group.
            left = error
        finally:
            nursery.cancel_scope.cancel()
    if left is not None:
        raise left


@asynccontextmanager
async def beside(*tasks: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Run tasks while the block runs, and cancel them when it is left."""
    async with background() as nursery:
        for task in tasks:
            nursery.start_soon(task)
        yield
