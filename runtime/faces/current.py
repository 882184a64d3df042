"""The runtime for the code that asks: a step on Trio, on asyncio, or in a thread."""

import sys
import threading
from functools import cached_property
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.runtime import Runtime

if TYPE_CHECKING:
    import asyncio

    from keyrun.runtime.faces.calls import Post, StandingTasks
    from keyrun.runtime.host.host_loop import HostLoop
    from keyrun.runtime.run.partition_state import PartitionState


class Faces:
    """Returns the face of a runtime that fits the current task or thread. Made in Trio's thread."""

    def __init__(
        self, runtime: Runtime, partition: "PartitionState", host_loop: "HostLoop | None"
    ) -> None:
        self._runtime = runtime
        self._partition = partition
        self._outside = partition.host.outside
        self._host_loop = host_loop
        self._token = trio.lowlevel.current_trio_token()
        self._thread = threading.get_ident()
        self._lock = threading.Lock()
        self._tasks: StandingTasks | None = None

    def current(self) -> Any:
        """Return the Trio runtime in a Trio task, the asyncio runtime on a loop of asyncio, and the
        blocking runtime in any other thread."""
        loop = _running_loop()
        if loop is not None:
            return self._on_loop(loop)
        if trio.lowlevel.in_trio_task():
            return self._runtime
        return self._blocking

    def _on_loop(self, loop: "asyncio.AbstractEventLoop") -> Any:
        from keyrun.runtime.faces.asyncio_bridge import AsyncioBridge
        from keyrun.runtime.faces.asyncio_face import Runtime as AsyncioRuntime

        in_thread = threading.get_ident() != self._thread
        post = self._post if in_thread else _call
        bridge = AsyncioBridge(
            self._runtime, post, self._standing, loop, in_thread=in_thread, outside=self._outside
        )
        return AsyncioRuntime(bridge)

    @cached_property
    def _blocking(self) -> Any:
        from keyrun.runtime.faces.sync_bridge import SyncBridge
        from keyrun.runtime.faces.sync_face import Runtime as SyncRuntime

        return SyncRuntime(
            SyncBridge(self._runtime, self._post, self._standing, self._thread, self._outside)
        )

    @cached_property
    def _post(self) -> "Post":
        from keyrun.runtime.faces.calls import ThreadsafePost

        return ThreadsafePost(self._token)

    @property
    def _standing(self) -> "StandingTasks":
        """Return the tasks that run the calls. They start with the first call."""
        from keyrun.runtime.faces.calls import StandingTasks

        with self._lock:
            if self._tasks is None:
                self._tasks = StandingTasks()
                self._post(self._begin, self._tasks)
            return self._tasks

    def _begin(self, tasks: "StandingTasks") -> None:
        """Start the tasks, in Trio's thread."""
        if self._partition.closed:
            tasks.close()
        else:
            self._partition.start(tasks.run)


def _running_loop() -> "asyncio.AbstractEventLoop | None":
    if "asyncio" not in sys.modules:
        return None
    import asyncio

    return asyncio._get_running_loop()


def _call(function: Any, *args: Any) -> None:
    function(*args)
