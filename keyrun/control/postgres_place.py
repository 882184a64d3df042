"""The place of a store in PostgreSQL: the lease says who owns it, and where the owner listens."""

import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress

import attrs
import trio

from keyrun.control.front import Front
from keyrun.control.nodes import NodeConnection, NodeListener, Skew, listening
from keyrun.control.options import Control
from keyrun.control.performer import Performer
from keyrun.control.places import Open
from keyrun.control.sealing import new_secret
from keyrun.control.serving import control_plane
from keyrun.control.target import Target
from keyrun.control.transport import Connection, Disconnected, Transport
from keyrun.runtime.open import Companion
from keyrun.runtime.runtime import Runtime
from keyrun.storage import StoreError, StoreLost
from keyrun.storage.postgres import PostgresStore
from keyrun.storage.postgres.wire import ConnectionLost, Wire

__all__ = ["LeaseTransport", "PostgresPlace", "PostgresStore"]


@attrs.frozen(kw_only=True)
class OwnerTarget(Target):
    """The address of the owner, and the database that names it."""

    database: str

    def __str__(self) -> str:
        if self.socket is None and not self.port:
            return self.database
        return f"{super().__str__()}, which owns {self.database}"


def _details(secret: str) -> str:
    """Return what an owner writes into its lease for other nodes."""
    return json.dumps({"secret": secret})


def _secret_in(details: str | None) -> str | None:
    with suppress(ValueError, TypeError):
        found = json.loads(details or "")["secret"]
        if isinstance(found, str) and len(bytes.fromhex(found)) == 32:
            return found
    return None


class LeaseTransport(Transport):
    """Calls operations of the process that owns a namespace of a database."""

    def __init__(
        self,
        store: PostgresStore,
        *,
        call_timeout: float,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._nowhere = OwnerTarget(port=0, database=repr(store))
        super().__init__(
            self._nowhere, call_timeout=call_timeout, context=context, namespace=store.name
        )
        self._store = store
        self._skew = Skew()
        self._epoch = 0
        self._secret = ""

    async def _find(self) -> None:
        self.target = self._nowhere
        try:
            lease = await self._store.read_lease()
        except StoreError as error:
            raise Disconnected(str(error)) from error
        if lease is None or lease.node is None or lease.seconds_left <= 0:
            raise Disconnected("no process owns it")
        secret = _secret_in(lease.details)
        if lease.address is None or secret is None:
            raise Disconnected(
                f"its owner, {lease.node}, does not take calls of other processes: open the store "
                "with when_locked='join' in every process"
            )
        if lease.node == self._store.node:
            raise Disconnected("this process owns it, and does not answer yet")
        target = Target.of(lease.address)
        self.target = OwnerTarget(
            database=self._nowhere.database, **attrs.asdict(target, recurse=False)
        )
        self._epoch, self._secret = lease.epoch, secret

    def _connection_over(self, stream: trio.abc.Stream) -> Connection:
        return NodeConnection(
            stream,
            self.target,
            self._store.name,
            node=self._store.node,
            epoch=self._epoch,
            secret=self._secret,
            skew=self._skew,
        )


class PostgresPlace:
    """A namespace of a database that several processes share."""

    lasts = False
    retry_most = 1.0

    def __init__(
        self,
        store: PostgresStore,
        open_: Open,
        *,
        control: Control,
        call_timeout: float,
        front: Front | None = None,
    ) -> None:
        """`front` is a listener for the HTTP API that is open already."""
        self._store = store
        self._open = open_
        self._control = control
        self._front = front
        self._secret = ""
        self._listener: NodeListener | None = None
        self.transport: Transport = LeaseTransport(store, call_timeout=call_timeout)

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        await self._store.read_lease()  # raises an error that says why the database is no use
        at = self._control.listen or await self._local_address()
        async with listening(at, self._control.advertise) as self._listener:
            self._answer_as_client()
            yield

    def _answer_as_client(self) -> None:
        if self._front is not None:
            self._front.disown(lambda: "client" if self.transport.connection else "no owner")

    async def _local_address(self) -> tuple[str, int] | None:
        """Return the address from which this process reaches the database, or None if it is reached
        over a unix socket."""
        try:
            wire = await Wire.connect(self._store._address)
        except ConnectionLost as error:
            raise StoreError(f"cannot use the database of {self._store!r}: {error}") from None
        try:
            with socket.socket(fileno=socket.dup(wire.fileno())) as connection:
                if connection.family == socket.AF_UNIX:
                    return None
                return str(connection.getsockname()[0]), 0
        finally:
            wire.close()

    def open(self, *, companion: Companion) -> AbstractAsyncContextManager[Runtime]:
        assert self._listener is not None
        self._secret = new_secret()
        self._store.describe(address=self._listener.address, details=_details(self._secret))
        return self._open(companion=companion)

    @asynccontextmanager
    async def serve(self, engine: Runtime) -> AsyncIterator[Performer]:
        assert self._listener is not None
        store = self._store
        async with AsyncExitStack() as stack:
            stack.callback(self._answer_as_client)
            owner = await stack.enter_async_context(
                control_plane(engine, None, self._control, self._front)
            )
            stack.callback(self._listener.cut_off)
            stack.enter_context(
                self._listener.api.owning(
                    owner,
                    epoch=store.epoch,
                    secret=self._secret,
                    now=lambda: Skew().now() + store.clock_offset,
                )
            )
            yield owner

    async def wait_until_free(self) -> None:
        await self._store.wait_until_free()

    def may_pass(self, error: StoreError) -> bool:
        return type(error) is StoreError or isinstance(error, StoreLost)

    def holder(self, error: StoreError) -> str:
        return "another process"

    def advice(self, error: StoreError, trouble: str) -> str:
        return f"{error}; its owner cannot be reached: {trouble}"

    def __str__(self) -> str:
        return repr(self._store)
