"""Open a runtime from a program with threads: Trio runs in a thread of its own."""

import atexit
import os
from collections.abc import Callable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    ExitStack,
    contextmanager,
    nullcontext,
)
from functools import partial
from typing import Any

import trio

from keyrun.control.connecting import connect
from keyrun.control.options import Control
from keyrun.hosting.lifespans import in_thread
from keyrun.hosting.trio_host import opened as open_runtime
from keyrun.hosting.trio_side import Block, TrioThread
from keyrun.runtime.faces.calls import Waiter
from keyrun.runtime.faces.sync_bridge import SyncBridge
from keyrun.runtime.faces.sync_face import Runtime
from keyrun.runtime.host.lifespan import AnyLifespan, is_for_asyncio, manager_of
from keyrun.runtime.host.outside import OUTSIDE
from keyrun.runtime.options import check_options, lock_policy
from keyrun.runtime.runtime import Runtime as TrioRuntime


@contextmanager
def opened(store: Any, *, lifespan: Any, **options: Any) -> Iterator[Runtime]:
    """Open a runtime whose Trio side runs in a thread."""
    _check_caller("open_runtime")
    check_options({"store": store, "lifespan": lifespan, **options})
    Control.of(options.get("control", False))
    options["when_locked"] = lock_policy(options.get("when_locked"), store)
    with ExitStack() as stack:
        if lifespan is not None and not is_for_asyncio(lifespan):
            if options["when_locked"] == "join":
                lifespan = partial(_in_place, lifespan)
            else:
                lifespan = manager_of(lifespan)
                if isinstance(lifespan, AbstractContextManager):
                    # In the thread of the caller, which also leaves it.
                    lifespan = nullcontext(stack.enter_context(lifespan))
        manager = open_runtime(store, lifespan=lifespan, **options)
        yield stack.enter_context(_in_thread(manager, stack.pop_all))


def _in_place(lifespan: AnyLifespan) -> AbstractAsyncContextManager[Any]:
    """Return the lifespan of an owner. A process may own a store more than once."""
    manager = manager_of(lifespan)
    return in_thread(manager) if isinstance(manager, AbstractContextManager) else manager


@contextmanager
def connected(address: Any, **options: Any) -> Iterator[Runtime]:
    """Open a client whose Trio side runs in a thread."""
    _check_caller("connect")
    with _in_thread(connect(address, **options)) as client:
        yield client


def _check_caller(function: str) -> None:
    if trio.lowlevel.in_trio_task():
        raise RuntimeError(
            f"keyrun.sync.{function} blocks, and this program runs on Trio: use keyrun.{function}"
        )


@contextmanager
def _in_thread(
    manager: AbstractAsyncContextManager[TrioRuntime],
    forget: Callable[[], object] = lambda: None,
) -> Iterator[Runtime]:
    """Open a runtime or a client in a thread. `forget` is called if a forked child leaves this."""
    thread = TrioThread()
    process = os.getpid()
    try:
        thread.wait_until_ready()
        is_open, is_closed = Waiter(), Waiter()
        block = Block(manager, is_open.settle, is_closed.settle)
        thread.post(thread.open, block)
        try:
            inner = is_open.wait()
        except KeyboardInterrupt:
            thread.post(block.leave)
            raise
        try:
            bridge = SyncBridge(inner, thread.post, block.tasks, thread.ident, OUTSIDE.get())
            yield Runtime(bridge)
        finally:
            if os.getpid() == process:
                thread.post(block.leave)
                is_closed.wait()
            else:
                # The lifespan is the parent's.
                forget()
    finally:
        if os.getpid() == process:
            # A forked child has no thread to wait for.
            thread.end()


class StartedRuntime(Runtime):
    """Keep a runtime open until `stop`, or until the program ends. `keyrun.sync.start` returns
    one."""

    __slots__ = ("_stack",)

    def __init__(self, runtime: Runtime, stack: ExitStack) -> None:
        super().__init__(runtime._bridge)
        self._stack = stack
        atexit.register(self.stop)

    def stop(self) -> None:
        """Drain the runtime and close it. A second call does nothing."""
        atexit.unregister(self.stop)
        self._stack.close()


def started(store: Any, **options: Any) -> StartedRuntime:
    """Open a runtime without a block."""
    stack = ExitStack()
    return StartedRuntime(stack.enter_context(opened(store, **options)), stack)
