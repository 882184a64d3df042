"""Joining: several processes share a store. One owns it, and the others are its clients.

Each process tries to get the lock of the store. The one that has it runs the engine and serves the
control plane. The others forward their calls to it, and try again when the connection breaks. So
another process takes over when the owner is gone, and calls that were not answered are sent to it
with the same operation ids.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import wraps
from typing import Any, TypeVar

import trio

from keyrun.control.background import beside
from keyrun.control.loopback import Loopback
from keyrun.control.options import Control
from keyrun.control.remote import RemoteRuntime
from keyrun.control.serving import control_plane
from keyrun.control.target import Target
from keyrun.control.transport import ClientRejected, Transport
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.entities.entity import EntityDefinition, EntityMethod
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.logger import logger
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.runtime import Runtime
from keyrun.storage import LmdbStore, StoreLocked

T = TypeVar("T")

RETRY_EVERY = 0.03
"""Seconds between two attempts to own the store or to reach its owner."""

Open = Callable[[], AbstractAsyncContextManager[Runtime]]
"""Opens the engine. Raises `StoreLocked` if another process owns the store."""


class SharedRuntime(RemoteRuntime):
    """The runtime of a process that shares a store: its own engine while it owns the store, and
    otherwise a client of the owner."""

    def __init__(self, transport: Transport, workflows: Iterable[Workflow[Any, Any]]) -> None:
        super().__init__(transport, workflows)
        self.engine: Runtime | None = None
        """The runtime of this process, while it owns the store."""

    @property
    def is_owner(self) -> bool:
        """Return whether this process owns the store now."""
        return self.engine is not None

    def _adopted(self, value: T) -> T:
        """Let a handle of the engine outlive it."""
        if isinstance(value, RunHandle):
            value._runtime = self
        return value

    def _describe(self, *arguments: Any) -> Any:
        engine = self.engine
        if engine is None:
            return super()._describe(*arguments)
        return engine._describe(*arguments)

    def _admit_at_once(self, described: Any) -> Any:
        engine = self.engine
        if engine is None or not isinstance(described, Submission):
            return None
        admitted = engine._admit_at_once(described)
        if admitted is not None:
            self._adopted(admitted[0])
        return admitted

    async def _admit(self, described: Any, *, wait: bool) -> RunHandle[Any]:
        if self.engine is not None and isinstance(described, Submission):
            return self._adopted(await self.engine._admit(described, wait=wait))
        return await super()._admit(described, wait=wait)

    def wait_for_end(self, submission: Submission) -> Awaitable[StatusRecord | None]:
        if self.engine is not None:
            return self.engine.wait_for_end(submission)
        return super().wait_for_end(submission)

    async def _call(
        self,
        definition: EntityDefinition,
        key: str,
        method: EntityMethod,
        timeout: float | None,
        request_id: str | None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if self.engine is None:
            return await super()._call(
                definition, key, method, timeout, request_id, *args, **kwargs
            )
        return await self.engine.call(
            definition.cls,
            key,
            method.name,
            *args,
            request_id=request_id,
            timeout=timeout,
            **kwargs,
        )

    def statistics(self) -> Any:
        if self.engine is None:
            return super().statistics()
        return self.engine.statistics()


def _local_first(name: str) -> Callable[..., Any]:
    """Return the method that asks the engine of this process, if there is one."""
    remote = getattr(RemoteRuntime, name)

    @wraps(remote)
    async def method(self: SharedRuntime, *args: Any, **kwargs: Any) -> Any:
        if self.engine is None:
            return await remote(self, *args, **kwargs)
        return self._adopted(await getattr(self.engine, name)(*args, **kwargs))

    return method


_OWN = {"call", "wait_for_end", "group", "submit_group"}
for _name, _method in inspect.getmembers(RemoteRuntime, inspect.iscoroutinefunction):
    if not _name.startswith("_") and _name not in _OWN and hasattr(Runtime, _name):
        setattr(SharedRuntime, _name, _local_first(_name))


class Membership:
    """Owns the store, or stays connected to the process that does."""

    def __init__(self, path: LmdbStore, shared: SharedRuntime, transport: Transport, open_: Open):
        self._store = path
        self._shared = shared
        self._transport = transport
        self._open = open_
        self.leaving = trio.Event()

    async def run(
        self, control: Control, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Take part until `leaving` is set. Report that it has begun when there is an owner."""
        begun = False

        def begin() -> None:
            nonlocal begun
            if not begun:
                begun = True
                task_status.started()

        try:
            while not self.leaving.is_set():
                try:
                    await self._own(control, begin)
                except StoreLocked:
                    await self._follow(begin)
        finally:
            self._transport.close()

    async def _own(self, control: Control, begin: Callable[[], None]) -> None:
        async with (
            self._open() as engine,
            control_plane(engine, self._store.path, control) as owner,
            beside(lambda: self._transport.use(Loopback(owner))),
        ):
            logger.info("this process owns the store %s", self._store.path)
            self._shared.engine = engine
            begin()
            try:
                await self.leaving.wait()
            finally:
                self._shared.engine = None

    async def _follow(self, begin: Callable[[], None]) -> None:
        """Be a client of the owner while there is one."""

        async def report() -> None:
            await self._transport.connected()
            begin()
            await trio.sleep_forever()

        async def leave() -> None:
            await self.leaving.wait()
            scope.cancel()

        with trio.CancelScope() as scope:
            async with beside(report, leave):
                try:
                    await self._transport.stay_connected()
                except ClientRejected as error:
                    raise error.error from error
        await trio.sleep(RETRY_EVERY)


@asynccontextmanager
async def joined(
    store: LmdbStore,
    open_: Open,
    *,
    workflows: Iterable[Workflow[Any, Any]],
    control: Control,
    call_timeout: float,
) -> AsyncIterator[SharedRuntime]:
    """Share a store with other processes."""
    transport = Transport(Target.of(store.path), call_timeout=call_timeout)
    shared = SharedRuntime(transport, workflows)
    membership = Membership(store, shared, transport, open_)
    left: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(membership.run, control)
            try:
                yield shared
            except trio.Cancelled:
                raise
            except BaseException as error:
                left = error
            finally:
                membership.leaving.set()
    except* Exception as group:
        raise _only(group) from None
    if left is not None:
        raise left


def _only(error: BaseException) -> BaseException:
    """Return the one error in groups of one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
