"""The viewer: shows a store that another process may have open, or none.

While a process has the store open and serves its control plane, operations go there. Otherwise they
read the store, and those that write are refused. The viewer follows each change.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NoReturn

import attrs
import trio

from keyrun.control.background import beside
from keyrun.control.event_ring import RETRY, Follower
from keyrun.control.forwarding import Forwarder
from keyrun.control.guard import TokenGuard
from keyrun.control.http import HttpApi
from keyrun.control.listening import bind_tcp, serving, url_of
from keyrun.control.operation import Operation
from keyrun.control.options import Control
from keyrun.control.owner import session_of
from keyrun.control.page_address import page_address
from keyrun.control.reading import StoredRuns, stored_runs
from keyrun.control.requests import Session
from keyrun.control.roles import ITSELF, Caller, Role, require
from keyrun.control.serving import hosts_of
from keyrun.control.target import Target
from keyrun.control.tokens import Tokens
from keyrun.control.transport import Transport
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import NoOwner
from keyrun.runtime.redaction import Redact, Redaction
from keyrun.storage import StoreReadOnly
from keyrun.storage.payload import Transform

PATIENCE = 2.0
"""Seconds to wait for the process that has the store open, before the store is read instead."""


class Viewer:
    """Performs operations for the page of `keyrun open`. `stored` is None if the address is not a
    directory, so that there is nothing to read."""

    def __init__(
        self,
        transport: Transport,
        namespace: str,
        stored: StoredRuns | None,
        redaction: Redaction,
    ) -> None:
        self.namespace = namespace
        self.redaction = redaction
        self._transport = transport
        self._forwarder = Forwarder(transport)
        self._stored = stored

    @property
    def is_live(self) -> bool:
        """Return whether operations go to the process that has the store open."""
        return self._stored is None or self._transport.connection is not None

    @property
    def read_only(self) -> str:
        """Return why operations only read, as a sentence."""
        refused = self._transport.refused
        if refused is not None:
            return f"the page only reads the store, because its process rejects this one: {refused}"
        return (
            f"no process answers at {self._transport.target}, so the page only reads the store; "
            "start the application with keyrun serve or with control=True, and the page follows"
        )

    async def changed(self) -> None:
        """Wait until the store becomes live or idle."""
        was_live = self.is_live
        while self.is_live is was_live:
            await self._transport.changed()

    async def perform(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        caller: Caller,
        operation_id: str | None = None,
    ) -> Any:
        """Perform an operation where that is possible now."""
        if self.is_live:
            try:
                return await self._forwarder.perform(operation, arguments, caller, operation_id)
            except NoOwner:
                if self._stored is None or operation.writes:
                    raise
        assert self._stored is not None
        return await self._stored.perform(operation, arguments, caller, self.read_only)

    async def stream(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller
    ) -> AsyncGenerator[Any, None]:
        """Begin an operation that streams, and return its answers. Close them at the end."""
        if self.is_live:
            return await self._forwarder.stream(operation, arguments, caller)
        assert self._stored is not None
        return await self._stored.stream(operation, arguments, caller, self.read_only)

    async def follow(
        self, arguments: Mapping[str, Any], caller: Caller, last_id: str | None = None
    ) -> Follower:
        """Return a reader of the events of all runs."""
        require(caller, Role.READ, "events")
        if self.is_live:
            return await self._forwarder.follow(arguments, last_id)
        return NoEvents(self.changed)

    async def session(self, caller: Caller) -> Session:
        """Return what the caller may do: what this process may do in the process that has the store
        open, or why nothing can be changed."""
        if self.is_live:
            try:
                there = await self._forwarder.session()
                lower = caller.role if there.role.may(caller.role) else there.role
                return attrs.evolve(there, role=lower)
            except NoOwner:
                if self._stored is None:
                    raise
        return session_of(caller, self.namespace, self.read_only)

    def measure(self) -> NoReturn:
        """Measure nothing: the process that has the store open has its metrics."""
        raise StoreReadOnly("ask the process that has the store open for its metrics")

    def trouble(self) -> None:
        """Return nothing: the viewer can always answer."""


class NoEvents:
    """The events of a store that no process has open. They end when a process opens it."""

    def __init__(self, changed: Callable[[], Any]) -> None:
        self._changed = changed
        self._said = f"{RETRY}\n".encode()

    async def next(self, seconds: float) -> bytes | None:
        """Wait for a process that opens the store; see `Follower`."""
        said, self._said = self._said, b""
        if said:
            return said
        with trio.move_on_after(seconds):
            await self._changed()
            return None
        return b""

    def close(self) -> None:
        """Wait no more."""


@asynccontextmanager
async def viewing(
    address: Path | str,
    *,
    namespace: str,
    token: str | None = None,
    workflows: Iterable[Workflow[Any, Any]] = (),
    transform: Transform | None = None,
    redact: Redact | None = None,
) -> AsyncIterator[Viewer]:
    """Show the store in a directory, or that of the process at an address, while the block runs.
    Raises `NoOwner` and `PermissionError` if the process at an address does not answer."""
    target = Target.of(address)
    transport = Transport(
        target, token=token, call_timeout=PATIENCE, namespace=namespace, redacted=True
    )
    async with AsyncExitStack() as stack:
        stored = None
        if isinstance(address, Path):
            reading = stored_runs(address, namespace, workflows, transform)
            stored = await stack.enter_async_context(reading)
        await stack.enter_async_context(beside(transport.run))
        viewer = Viewer(transport, namespace, stored, Redaction(redact))
        if stored is None:
            await viewer.session(ITSELF)
        elif target.socket is not None and target.socket.exists():
            with trio.move_on_after(PATIENCE):
                while transport.connection is None and transport.refused is None:
                    await transport.changed()
        yield viewer


@asynccontextmanager
async def shown(
    address: Path | str,
    control: Control,
    *,
    namespace: str = "default",
    token: str | None = None,
    role: Role = Role.ADMIN,
    workflows: Iterable[Workflow[Any, Any]] = (),
    transform: Transform | None = None,
    redact: Redact | None = None,
) -> AsyncIterator[tuple[Viewer, str]]:
    """Serve the page of a viewer while the block runs. Yield the viewer, and the address of the
    page with a token that ends with the block. `role` limits what the page may do. Raises
    `CannotListen`."""
    assert control.http is not None
    host, port = control.http
    tokens, secret = Tokens.new(Caller(name="viewer", role=role))
    listeners = bind_tcp(host, port)
    try:
        async with viewing(
            address,
            namespace=namespace,
            token=token,
            workflows=workflows,
            transform=transform,
            redact=redact,
        ) as viewer:
            async with serving(HttpApi(viewer, TokenGuard(tokens, hosts_of(control))), listeners):
                url = url_of(host, listeners)
                yield viewer, page_address(url, secret, control.allowed_hosts)
    finally:
        for each in listeners:
            each.close()
