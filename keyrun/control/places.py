"""Places: where a store is shared. A place opens the engine, and reaches the owner of the store."""

from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Protocol

import trio

from keyrun.control.options import Control
from keyrun.control.performer import Performer
from keyrun.control.serving import control_plane
from keyrun.control.target import SOCKET, Target
from keyrun.control.transport import Transport
from keyrun.runtime.open import Companion
from keyrun.runtime.runtime import Runtime
from keyrun.storage import LmdbStore, Store, StoreError, StoreLocked


class Open(Protocol):
    """Opens the engine. Raises `StoreLocked` if another process owns the store."""

    def __call__(self, *, companion: Companion) -> AbstractAsyncContextManager[Runtime]:
        """Return the block in which the engine is open."""


class StorePlace(Protocol):
    """A store that several processes share."""

    transport: Transport
    """Reaches the owner, wherever it is."""
    lasts: bool
    """Whether a process that owns the store owns it until it leaves. If not, the engine may end
    with `StoreLost`, and the process becomes a client of the next owner."""
    retry_most: float
    """The seconds between two attempts to own the store or to reach its owner, at most."""

    def open(self, *, companion: Companion) -> AbstractAsyncContextManager[Runtime]:
        """Return the block in which the engine is open. Raises `StoreLocked` if another process
        owns the store."""

    def entered(self) -> AbstractAsyncContextManager[None]:
        """Return a block around all of the time in which this process takes part."""

    def serve(self, engine: Runtime) -> AbstractAsyncContextManager[Performer]:
        """Serve the control plane, so that other processes reach this owner."""

    async def wait_until_free(self) -> None:
        """Return when the store may have no owner, as far as that can be noticed."""

    def may_pass(self, error: StoreError) -> bool:
        """Return whether a store that was reached before may be opened later, although it cannot be
        opened now."""

    def holder(self, error: StoreError) -> str:
        """Return who has the store open, or why that is not known."""

    def advice(self, error: StoreError, trouble: str) -> str:
        """Return why this process can neither own the store nor reach its owner, and what to do."""


class PlaceOf(Protocol):
    """Returns the place of a store."""

    def __call__(
        self, store: Store, open_: Open, *, namespace: str, control: Control, call_timeout: float
    ) -> StorePlace: ...


class DirectoryPlace:
    """A store in a directory. The lock of the directory decides, and the owner serves a socket in
    it."""

    lasts = True
    retry_most = 0.25

    def __init__(
        self,
        store: LmdbStore,
        open_: Open,
        *,
        namespace: str,
        control: Control,
        call_timeout: float,
    ) -> None:
        # This process may open the store later, when the program has changed its directory.
        store.path = store.path.absolute()
        self._open = open_
        target = Target(socket=store.path / SOCKET)
        self.transport = Transport(target, call_timeout=call_timeout, namespace=namespace)
        self._store = store
        self._control = control

    def open(self, *, companion: Companion) -> AbstractAsyncContextManager[Runtime]:
        return self._open(companion=companion)

    def entered(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def serve(self, engine: Runtime) -> AbstractAsyncContextManager[Performer]:
        return control_plane(engine, self._store.path, self._control)

    async def wait_until_free(self) -> None:
        # A connection to the owner breaks when the owner ends.
        await trio.sleep_forever()

    def may_pass(self, error: StoreError) -> bool:
        return False

    def holder(self, error: StoreError) -> str:
        pid = error.pid if isinstance(error, StoreLocked) else None
        return "another process" if pid is None else f"process {pid}"

    def advice(self, error: StoreError, trouble: str) -> str:
        return (
            f"{self.holder(error)} has {self} open and cannot be joined at {SOCKET} ({trouble}); "
            "open the store with when_locked='join' or control=True in every process, or stop "
            "that process"
        )

    def __str__(self) -> str:
        return f"the store {self._store.path}"


def place_of(
    store: Store, open_: Open, *, namespace: str, control: Control, call_timeout: float
) -> StorePlace:
    """Return the place of a store, or raise an error if it cannot be shared."""
    if isinstance(store, LmdbStore):
        return DirectoryPlace(
            store, open_, namespace=namespace, control=control, call_timeout=call_timeout
        )
    if store.leased:
        from keyrun.control.postgres_place import PostgresPlace, PostgresStore

        if isinstance(store, PostgresStore):
            return PostgresPlace(store, open_, control=control, call_timeout=call_timeout)
    raise ValueError(f"when_locked='join' requires a path or a URL, got {store!r}")
