"""Joining: several processes share a store. One owns it, and the others are its clients.

Each process tries to own the store. The one that succeeds runs the engine and serves the control
plane. The others forward their calls to it, and try again when the connection breaks. So another
process takes over when the owner is gone, and calls that were not answered are sent to it with the
same operation ids.

In some places an owner can lose the store. It is a client of the next owner at once, while its
engine ends. It tries to own the store again when its engine has ended, with the threads of sync
steps.
"""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import trio

from keyrun.control.background import beside
from keyrun.control.loopback import Loopback
from keyrun.control.places import StorePlace
from keyrun.control.sharing import LosableRuntime, SharedRuntime
from keyrun.control.transport import ClientRejected
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.logger import logger
from keyrun.runtime.runtime import Runtime
from keyrun.storage import StoreError, StoreLocked, StoreLost

RETRY = 0.02
"""Seconds between two attempts to own the store or to reach its owner, at first."""
SAY_AFTER = 1.0
"""Seconds without an owner after which a process logs what it waits for."""


class Membership:
    """Owns the store, or stays connected to the process that does."""

    def __init__(self, place: StorePlace, shared: SharedRuntime, lock_timeout: float) -> None:
        self._place = place
        self._shared = shared
        self._transport = place.transport
        self._lock_timeout = lock_timeout
        self._leaving = trio.Event()
        self._scope = trio.CancelScope()
        self._begin: Callable[[], None] | None = None
        """Reports that there is an owner, for the first time."""
        self._engine_ended = trio.Event()
        """Set while this process has no engine."""
        self._engine_ended.set()
        self._disowned = trio.Event()
        """Set when this process has left or lost the store. Its engine may still end."""
        self._loopback = trio.CancelScope()
        """Around the connection to this process as the owner."""

    def leave(self) -> None:
        """Stop taking part."""
        self._leaving.set()
        self._scope.cancel()

    async def run(self, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED) -> None:
        """Take part until `leave`. Report that it has begun when there is an owner."""
        self._begin = task_status.started
        try:
            async with self._place.entered(), trio.open_nursery() as nursery:
                await self._take_part(nursery)
        finally:
            self._transport.close()

    async def _take_part(self, nursery: trio.Nursery) -> None:
        began = trio.current_time()
        delay = RETRY
        has_said = False
        why: StoreError | None = None
        while not self._leaving.is_set():
            if self._engine_ended.is_set():
                why = await self._own(nursery)
                if why is None:
                    began, delay, has_said = trio.current_time(), RETRY, False
                    continue
                self._transport.owner = f"{self._place.holder(why)} has the store open"
            with trio.CancelScope() as self._scope:
                if await self._follow(began + self._lock_timeout):
                    began, delay, has_said = trio.current_time(), RETRY, False
                    continue
                waited = trio.current_time() - began
                if why is not None and self._begin is not None and waited >= self._lock_timeout:
                    raise self._unreachable(why, waited)
                if why is not None and waited >= SAY_AFTER and not has_said:
                    has_said = True
                    logger.warning(
                        "waiting for an owner: %s",
                        self._advice(why),
                        extra={"event": "owner_awaited"},
                    )
                with trio.move_on_after(delay):
                    await self._free()
                delay = min(2 * delay, self._place.retry_most)

    def _started(self) -> None:
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()

    async def _own(self, nursery: trio.Nursery) -> StoreError | None:
        """Own the store until this process leaves or loses it. Return None then, or the error if
        it cannot own the store now. The engine of a process that lost the store may still end."""
        self._engine_ended = trio.Event()
        # As a value, so that it is not in a group.
        why: StoreError | None = await nursery.start(self._run_engine)
        if why is None:
            await self._disowned.wait()
        return why

    async def _run_engine(self, task_status: "trio.TaskStatus[StoreError | None]") -> None:
        is_open = False
        self._disowned = trio.Event()
        try:
            async with self._place.open(companion=self._serve) as engine:
                is_open = True
                logger.info("this process owns %s", self._place, extra={"event": "store_owned"})
                self._shared.own(engine)
                self._started()
                task_status.started(None)
                try:
                    await self._leaving.wait()
                finally:
                    if not self._leaving.is_set():
                        self._shared.disown()
                        self._loopback.cancel()
                        self._disowned.set()
        except StoreError as error:
            if is_open and isinstance(error, StoreLost) and not self._place.lasts:
                logger.warning(
                    "this process has lost %s: %s",
                    self._place,
                    error,
                    extra={"event": "store_lost"},
                )
            elif is_open or not self._is_temporary(error):
                raise
            else:
                task_status.started(error)
        finally:
            self._engine_ended.set()
            self._disowned.set()

    def _is_temporary(self, error: StoreError) -> bool:
        """Return whether this process may own the store later."""
        if isinstance(error, StoreLocked):
            return True
        return self._begin is None and self._place.may_pass(error)

    @asynccontextmanager
    async def _serve(self, engine: Runtime) -> AsyncIterator[None]:
        """Serve other processes, and what this process has begun as a client."""
        async with self._place.serve(engine) as owner:

            async def use() -> None:
                with trio.CancelScope() as self._loopback:
                    await self._transport.use(Loopback(owner))

            async with beside(use):
                yield

    async def _free(self) -> None:
        """Return when this process may own the store."""
        await self._engine_ended.wait()
        await self._place.wait_until_free()

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
            logger.info(
                "this process is a client of the owner of %s",
                self._place,
                extra={"event": "store_joined"},
            )
            self._started()

        async def end_when_free() -> None:
            await self._free()
            patience.cancel()

        with trio.CancelScope(deadline=patience_ends) as patience:
            async with beside(report, end_when_free):
                try:
                    await self._transport.stay_connected()
                except ClientRejected as error:
                    if self._begin is not None:
                        raise error.error from error
                    self._transport.trouble = str(error)
        return was_connected

    def _advice(self, why: StoreError) -> str:
        return self._place.advice(why, self._transport.trouble or "it does not answer")

    def _unreachable(self, why: StoreError, waited: float) -> StoreError:
        if not isinstance(why, StoreLocked):
            return why
        limit = f"waited {waited:.1f} s (lock_timeout={self._lock_timeout:g})"
        return StoreLocked(f"{self._advice(why)}; {limit}", pid=why.pid, waited=waited)


@asynccontextmanager
async def joined(
    place: StorePlace, *, workflows: Iterable[Workflow[Any, Any]], lock_timeout: float
) -> AsyncIterator[SharedRuntime]:
    """Share a store with other processes."""
    kind = SharedRuntime if place.lasts else LosableRuntime
    shared = kind(place.transport, workflows)
    membership = Membership(place, shared, lock_timeout)
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
