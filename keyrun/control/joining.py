"""Joining: several processes share a store. One owns it, and the others are its clients.

Each process tries to get the lock of the store. The one that has it runs the engine and serves the
control plane. The others forward their calls to it, and try again when the connection breaks. So
another process takes over when the owner is gone, and calls that were not answered are sent to it
with the same operation ids.
"""

import inspect
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from math import inf
from typing import Any, Protocol

import attrs
import trio

from keyrun.control.background import beside
from keyrun.control.loopback import Loopback
from keyrun.control.options import Control
from keyrun.control.remote import RemoteRuntime
from keyrun.control.serving import control_plane
from keyrun.control.target import SOCKET, Target
from keyrun.control.transport import ClientRejected, Transport
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.logger import logger
from keyrun.runtime.open import Companion
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.runtime import Runtime
from keyrun.storage import LmdbStore, StoreLocked

RETRY = 0.02
"""Seconds between two attempts to own the store or to reach its owner, at first."""
RETRY_MOST = 0.25
SAY_AFTER = 1.0
"""Seconds without an owner after which a process logs what it waits for."""


class Open(Protocol):
    """Opens the engine. Raises `StoreLocked` if another process owns the store."""

    def __call__(self, *, companion: Companion) -> AbstractAsyncContextManager[Runtime]:
        """Return the block in which the engine is open."""


class Travelled(bytes):
    """A payload that came from the owner. It has no transform."""


class SharedRuntime(RemoteRuntime):
    """The runtime of a process that shares a store: a client of the owner, until this process is
    the owner itself. Then its methods are those of the engine, and what the client has begun
    continues through a loopback. A process that owns a store owns it until its block ends."""

    engine: Runtime | None = None
    """The runtime of this process, if it owns the store."""

    def own(self, engine: Runtime) -> None:
        """Call the engine of this process from now on."""
        self.engine = engine
        vars(self).update({name: each for name, each in vars(engine).items() if name not in _OWN})
        vars(self).update({name: getattr(engine, name) for name in _METHODS})

    def _admit_at_once(self, described: Any) -> Any:
        if self.engine is None or not isinstance(described, Submission):
            return None  # the client has described it
        return self.engine._admit_at_once(described)

    async def _admit(self, described: Any, *, wait: bool) -> RunHandle[Any]:
        if self.engine is None or not isinstance(described, Submission):
            return await super()._admit(described, wait=wait)
        return await self.engine._admit(described, wait=wait)

    async def _find_end(self, about: Submission) -> StatusRecord | None:
        end = await super()._find_end(about)
        if end is None or end.result is None:
            return end
        return attrs.evolve(end, result=Travelled(end.result))

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        """Return a result as its workflow declares it, or as plain data."""
        if self.engine is None or isinstance(payload, Travelled):
            return super().decode_result(workflow, version, payload)
        return self.engine.decode_result(workflow, version, payload)


_OWN = frozenset({"_admit", "_admit_at_once", "decode_result"})
"""What a `SharedRuntime` does itself when it has an engine."""
_METHODS = [
    name
    for name, _ in inspect.getmembers(Runtime, inspect.isfunction)
    if not name.startswith("__") and name not in _OWN
]


class Membership:
    """Owns the store, or stays connected to the process that does."""

    def __init__(
        self,
        store: LmdbStore,
        shared: SharedRuntime,
        transport: Transport,
        open_: Open,
        control: Control,
        lock_timeout: float,
    ) -> None:
        self._store = store
        self._shared = shared
        self._transport = transport
        self._open = open_
        self._control = control
        self._lock_timeout = lock_timeout
        self._leaving = trio.Event()
        self._scope = trio.CancelScope()
        self._begin: Callable[[], None] | None = None
        """Reports that there is an owner, for the first time."""

    def leave(self) -> None:
        """Stop taking part."""
        self._leaving.set()
        self._scope.cancel()

    async def run(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until `leave`. Report that it has begun when there is an owner."""
        self._begin = task_status.started
        began = trio.current_time()
        delay = RETRY
        has_said = False
        try:
            while not self._leaving.is_set():
                try:
                    await self._own()
                    return
                except StoreLocked as error:
                    locked = error
                self._transport.owner = f"{_holder(locked)} has the store open"
                with trio.CancelScope() as self._scope:
                    if await self._follow(began + self._lock_timeout):
                        began, delay, has_said = trio.current_time(), RETRY, False
                        continue
                    waited = trio.current_time() - began
                    if self._begin is not None and waited >= self._lock_timeout:
                        raise self._unreachable(locked, waited)
                    if waited >= SAY_AFTER and not has_said:
                        has_said = True
                        logger.warning("waiting for an owner: %s", self._reason(locked))
                    await trio.sleep(delay)
                    delay = min(2 * delay, RETRY_MOST)
        finally:
            self._transport.close()

    def _started(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()

    async def _own(self) -> None:
        """Own the store until this process leaves. Raise `StoreLocked` if another process does."""
        async with self._open(companion=self._serve) as engine:
            logger.info("this process owns the store %s", self._store.path)
            self._shared.own(engine)
            self._started()
            await self._leaving.wait()

    @asynccontextmanager
    async def _serve(self, engine: Runtime) -> AsyncIterator[None]:
        """Serve other processes, and what this process has begun as a client."""
        async with (
            control_plane(engine, self._store.path, self._control) as owner,
            beside(lambda: self._transport.use(Loopback(owner))),
        ):
            yield

    async def _reached(self) -> None:
        while self._transport.connection is None:
            await self._transport.changed()

    async def _follow(self, patience_ends: float) -> bool:
        """Be a client of the owner while there is one. Return whether there was one."""
        was_connected = False
        if self._begin is None:
            patience_ends = inf

        async def report() -> None:
            nonlocal was_connected
            await self._reached()
            was_connected, patience.deadline = True, inf
            logger.info("this process is a client of the owner of %s", self._store.path)
            self._started()

        with trio.CancelScope(deadline=patience_ends) as patience:
            async with beside(report):
                try:
                    await self._transport.stay_connected()
                except ClientRejected as error:
                    if self._begin is not None:
                        raise error.error from error
                    self._transport.trouble = str(error)
        return was_connected

    def _reason(self, locked: StoreLocked) -> str:
        """Return why this process can neither own the store nor join its owner."""
        trouble = self._transport.trouble or "it does not answer"
        return (
            f"{_holder(locked)} has the store {self._store.path} open and cannot be joined at "
            f"{SOCKET} ({trouble}); open the store with when_locked='join' or control=True in "
            "every process, or stop that process"
        )

    def _unreachable(self, locked: StoreLocked, waited: float) -> StoreLocked:
        limit = f"waited {waited:.1f} s (lock_timeout={self._lock_timeout:g})"
        return StoreLocked(f"{self._reason(locked)}; {limit}", pid=locked.pid, waited=waited)


def _holder(locked: StoreLocked) -> str:
    return "another process" if locked.pid is None else f"process {locked.pid}"


@asynccontextmanager
async def joined(
    store: LmdbStore,
    open_: Open,
    *,
    namespace: str,
    workflows: Iterable[Workflow[Any, Any]],
    control: Control,
    lock_timeout: float,
) -> AsyncIterator[SharedRuntime]:
    """Share a store with other processes."""
    # This process may open the store later, when the program has changed its directory.
    store.path = store.path.absolute()
    target = Target(socket=store.path / SOCKET)
    transport = Transport(target, call_timeout=lock_timeout, namespace=namespace)
    shared = SharedRuntime(transport, workflows)
    membership = Membership(store, shared, transport, open_, control, lock_timeout)
    left: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(membership.run)
            try:
                yield shared
            except trio.Cancelled:
                raise
            except BaseException as error:
                left = error
            finally:
                membership.leave()
    except* Exception as group:
        raise _only(group) from None
    if left is not None:
        raise left


def _only(error: BaseException) -> BaseException:
    """Return the one error in groups of one error."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error
