"""Claiming: open a store and one of its namespaces, and wait for both if they are locked.

Another process holds the lock of the store, or another runtime of this process holds the store or
the namespace. A wait tries again and again, in Trio's time.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import trio

from keyrun.storage.errors import StoreLocked
from keyrun.storage.store import Store, logger


@asynccontextmanager
async def claimed(store: Store, namespace: str, *, timeout: float | None) -> AsyncIterator[None]:
    """Open a store and hold a namespace of it for the time of a block.

    Without a `timeout`, raises `StoreLocked` at once if either is locked. With one, waits up to
    that number of seconds first."""
    began = trio.current_time()
    is_waiting = False
    while True:
        try:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(store)
                await stack.enter_async_context(store.claim(namespace))
                held = stack.pop_all()
            break
        except StoreLocked as error:
            if timeout is None:
                raise
            waited = trio.current_time() - began
            if waited >= timeout:
                raise StoreLocked(
                    f"{error}; waited {waited:.1f} s (lock_timeout={timeout:g})",
                    pid=error.pid,
                    waited=waited,
                ) from None
            if not is_waiting:
                is_waiting = True
                logger.warning("waiting up to %g s for a lock: %s", timeout, error)
        with trio.move_on_after(began + timeout - trio.current_time()):
            await store.wait_until_free()
    if is_waiting:
        logger.info("got the lock of %r after %.1f s", store, trio.current_time() - began)
    async with held:
        yield
