"""Open a runtime from an asyncio program."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from typing import Any

import trio
from outcome import Outcome

from keyrun.actors import checks
from keyrun.control.connecting import connect
from keyrun.control.options import Control
from keyrun.hosting.lifespans import on_loop
from keyrun.hosting.trio_host import opened as open_runtime
from keyrun.hosting.trio_side import Block, Guest, TrioSide, TrioThread
from keyrun.runtime.faces.asyncio_bridge import AsyncioBridge, retrieve, settle
from keyrun.runtime.faces.asyncio_face import Runtime
from keyrun.runtime.faces.calls import Post
from keyrun.runtime.host.host_loop import HostLoop
from keyrun.runtime.host.lifespan import ON_HOST_LOOP, async_manager_of, enter
from keyrun.runtime.host.outside import OUTSIDE, at_work
from keyrun.runtime.open import as_store
from keyrun.runtime.options import check_options, lock_policy
from keyrun.runtime.queue.hook import Hook, is_async
from keyrun.runtime.values import RunOutcome


@asynccontextmanager
async def opened(
    store: Any,
    *,
    thread: bool,
    lifespan: Any,
    on_terminal: Hook | None,
    **options: Any,
) -> AsyncIterator[Runtime]:
    """Open a runtime whose Trio side is a guest of the running loop, or runs in a thread."""
    checks.flag("thread", thread)
    loop = _running_loop()
    check_options({"store": store, "lifespan": lifespan, "on_terminal": on_terminal, **options})
    Control.of(options.get("control", False))
    options["when_locked"] = lock_policy(options.get("when_locked"), store)
    # A commit in the thread of the loop would stop the application while the disk syncs.
    store = as_store(store, committer="process", namespace=options.get("namespace", "default"))
    async with AsyncExitStack() as stack:
        joins = options["when_locked"] == "join"
        if lifespan is not None and not joins:
            # In the task of the caller, which also leaves it.
            value = await enter(stack, async_manager_of(lifespan), ON_HOST_LOOP)
            options["lifespan"] = nullcontext(value)
        side: TrioSide
        post: Post
        if thread:
            side = in_thread = TrioThread()
            stack.push_async_callback(asyncio.to_thread, in_thread.end)
            await asyncio.to_thread(in_thread.wait_until_ready)
            post, longest_pass = in_thread.post, None
        else:
            side = guest = await Guest.enter()
            stack.push_async_callback(guest.exit)
            post, longest_pass = guest.post, guest.get_longest_pass
        host_loop = HostLoop(loop, longest_pass)
        if lifespan is not None and joins:
            options["lifespan"] = partial(on_loop, host_loop, lifespan)
        if on_terminal is not None and is_async(on_terminal):
            on_terminal = partial(_call_on_loop, host_loop, on_terminal)
        manager = open_runtime(store, on_terminal=on_terminal, host_loop=host_loop, **options)
        block = OpenBlock(loop, post, in_thread=thread)
        on_trio = Block(manager, block.deliver_opened, block.deliver_closed)
        host_loop.on_closed = on_trio.leave
        async with block.opened(side, on_trio):
            yield block.runtime


@asynccontextmanager
async def connected(address: Any, **options: Any) -> AsyncIterator[Runtime]:
    """Open a client whose Trio side is a guest of the running loop."""
    loop = _running_loop("connect")
    guest = await Guest.enter()
    try:
        block = OpenBlock(loop, guest.post, in_thread=False)
        manager = connect(address, **options)
        on_trio = Block(manager, block.deliver_opened, block.deliver_closed)
        async with block.opened(guest, on_trio):
            yield block.runtime
    finally:
        await guest.exit()


async def _call_on_loop(host_loop: HostLoop, hook: Hook, outcome: RunOutcome) -> None:
    with at_work(host_loop.outside, outcome, in_thread=False):
        await host_loop.call(hook, (outcome,), {})


def _running_loop(function: str = "open_runtime") -> asyncio.AbstractEventLoop:
    loop = asyncio._get_running_loop()
    if loop is not None:
        return loop
    right = "keyrun" if trio.lowlevel.in_trio_task() else "keyrun.sync"
    raise RuntimeError(
        f"keyrun.asyncio.{function} requires a running asyncio loop; without a loop, use "
        f"{right}.{function}"
    )


class OpenBlock:
    """The block of a runtime in an asyncio task. If the runtime fails, the task is cancelled, and
    the block raises the error of the runtime."""

    runtime: Runtime

    def __init__(self, loop: asyncio.AbstractEventLoop, post: Post, *, in_thread: bool) -> None:
        self._loop = loop
        self._post = post
        self._in_thread = in_thread
        self._opened: asyncio.Future[Any] = loop.create_future()
        self._closed: asyncio.Future[None] = loop.create_future()
        for future in (self._opened, self._closed):
            future.add_done_callback(retrieve)  # a cancelled block raises its cancellation instead

    def deliver_opened(self, outcome: Outcome[Any]) -> None:
        """Receive the Trio runtime. Called in Trio's thread."""
        self._deliver(self._opened, outcome)

    def deliver_closed(self, outcome: Outcome[Any]) -> None:
        """Receive that the runtime is closed. Called in Trio's thread."""
        self._deliver(self._closed, outcome)

    def _deliver(self, future: "asyncio.Future[Any]", outcome: Outcome[Any]) -> None:
        if not self._in_thread:
            settle(future, outcome)
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(settle, future, outcome)

    @asynccontextmanager
    async def opened(self, side: TrioSide, block: Block) -> AsyncIterator[None]:
        """Open the runtime, and drain it when this is left."""
        self._post(side.open, block)
        try:
            inner = await asyncio.shield(self._opened)
        except asyncio.CancelledError:
            self._post(block.leave)
            await _finished(self._opened)
            if self._opened.exception() is None:
                await _finished(self._closed)
            raise
        self.runtime = Runtime(
            AsyncioBridge(
                inner,
                self._post,
                block.tasks,
                self._loop,
                in_thread=self._in_thread,
                outside=OUTSIDE.get(),
            )
        )
        task = asyncio.current_task()
        assert task is not None
        has_failed = False

        def fail(_: object) -> None:
            nonlocal has_failed
            has_failed = True
            task.cancel()

        self._closed.add_done_callback(fail)
        try:
            yield
        except asyncio.CancelledError:
            # The error of the runtime replaces the cancellation that it caused, and no other.
            if not has_failed or task.uncancel():
                raise
        finally:
            self._closed.remove_done_callback(fail)
            if not self._closed.done():
                self._post(block.leave)
            await _finished(self._closed)
            self._closed.result()


async def _finished(future: "asyncio.Future[Any]") -> None:
    """Wait for a future whatever cancels this task meanwhile. The last cancellation is raised
    afterwards."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
