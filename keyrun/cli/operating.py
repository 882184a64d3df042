"""Operating a store: perform operations of the table, wherever the store is open.

- A process has the store open: the operation goes to this process, through the socket in the
  directory of the store, or to the address that was given.
- No process has the store open: the command opens it as an operator, which runs nothing.
"""

import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    asynccontextmanager,
    suppress,
)
from pathlib import Path
from typing import Any, Protocol

import trio

from keyrun import App, Reader, Runtime, connect
from keyrun.cli.addresses import StoreAddress, quoted, token
from keyrun.cli.errors import check_store
from keyrun.cli.exit_codes import NO_STORE, USAGE, CommandError
from keyrun.cli.reading import check_namespace
from keyrun.control.operation import Idle, Operation
from keyrun.control.owner import Owner
from keyrun.control.remote import RemoteRuntime
from keyrun.control.requests import Session
from keyrun.control.roles import ITSELF
from keyrun.control.table import CALLS
from keyrun.control.target import SOCKET, short_path
from keyrun.runtime.operator import open_operator
from keyrun.storage import PayloadError, StoreLocked
from keyrun.storage.opening import is_url

CALL_TIMEOUT = 5.0
"""Seconds until a process has to answer at an address."""
PATIENCE = 1.0
"""Seconds to wait for the socket of a process that has the store open: it may be opening it."""
RETRY_EVERY = 0.05


class OperatedStore(Protocol):
    """Performs operations."""

    async def perform(
        self, operation: Operation, arguments: Mapping[str, Any], operation_id: str | None = None
    ) -> Any:
        """Perform an operation, and return its answer."""


class LiveStore:
    """A store that a process has open."""

    def __init__(self, client: RemoteRuntime) -> None:
        self._client = client

    async def perform(
        self, operation: Operation, arguments: Mapping[str, Any], operation_id: str | None = None
    ) -> Any:
        """Perform an operation in that process."""
        return await self._client._perform(operation, dict(arguments), operation_id)


class IdleStore:
    """A store that no process has open, opened as an operator."""

    def __init__(self, owner: Owner, store: StoreAddress, app: App | None) -> None:
        self._owner = owner
        self._store = store
        self._app = app

    async def perform(
        self, operation: Operation, arguments: Mapping[str, Any], operation_id: str | None = None
    ) -> Any:
        """Perform an operation here. Raise `CommandError` if it needs the application."""
        self._check(operation)
        if self._app is None and takes_values(operation):
            await self._check_values(operation, arguments)
        return await self._owner.perform(operation, arguments, ITSELF, operation_id)

    def _check(self, operation: Operation) -> None:
        name = operation.name if operation.command is None else operation.command.name
        start = "start the application, with control=True, and repeat the command"
        if operation.idle is Idle.NO:
            raise CommandError(
                f"{name} runs code of the application, and no process has {quoted(self._store)} "
                f"open; {start}",
                USAGE,
            )
        if operation.idle is Idle.WITH_APP and self._app is None:
            raise CommandError(
                f"{name} needs the workflows of the application, and no process has "
                f"{quoted(self._store)} open; add --app MODULE:APP, or {start}",
                USAGE,
            )

    async def _check_values(self, operation: Operation, arguments: Mapping[str, Any]) -> None:
        """Raise if the values of a run may be encrypted: the application could not read another."""
        if operation.composite:
            action = CALLS[arguments["action"]]
            if takes_values(action) and not arguments.get("preview", True):
                raise CommandError(
                    f"{action.name} stores a value for each run that matches, and no process has "
                    f"{quoted(self._store)} open; add --app MODULE:APP, or start the application, "
                    "with control=True, and repeat the command",
                    USAGE,
                )
            return
        run_id: str = arguments["run_id"]
        try:
            await self._owner.runtime.input(run_id)
        except PayloadError as error:
            raise CommandError(
                f"the values of the run {run_id} cannot be decoded here, so a value that is stored "
                f"here could not be read by the application: {error}; add --app MODULE:APP, or "
                "start the application, with control=True, and repeat the command",
                USAGE,
            ) from error


def takes_values(operation: Operation) -> bool:
    """Return whether an operation stores values of the application."""
    if operation.idle is Idle.YES:
        return operation.writes and any(each.is_payload for each in operation.parameters.values())
    return operation.idle is Idle.WITH_APP


@asynccontextmanager
async def opened(
    store: StoreAddress, namespace: str, app: App | None = None
) -> AsyncIterator[OperatedStore]:
    """Open a store to operate it. `app` is the application, if it is known here."""
    check_namespace(namespace)
    async with AsyncExitStack() as stack:
        if isinstance(store, Path):
            check_store(store)
            yield await _of_directory(store, namespace, app, stack)
        elif is_url(store):
            yield await _of_database(store, namespace, app, stack)
        else:
            yield LiveStore(await stack.enter_async_context(connected(store, namespace)))


async def _of_directory(
    path: Path, namespace: str, app: App | None, stack: AsyncExitStack
) -> OperatedStore:
    given = App() if app is None else app
    until = trio.current_time() + PATIENCE
    while True:
        try:
            operator = _operator(path, namespace, given)
            return IdleStore(Owner(await stack.enter_async_context(operator)), path, app)
        except StoreLocked as error:
            locked = error
        if _is_served(path / SOCKET):
            client = await stack.enter_async_context(connected(path, namespace))
            return LiveStore(client)
        if trio.current_time() >= until:
            process = "another process" if locked.pid is None else f"the process {locked.pid}"
            raise CommandError(
                f"{process} has {quoted(path)} open, and serves no control plane; open the store "
                "with open_runtime(..., control=True) there, or stop that process, and repeat "
                "the command",
                NO_STORE,
            )
        await trio.sleep(RETRY_EVERY)


async def _of_database(
    url: str, namespace: str, app: App | None, stack: AsyncExitStack
) -> OperatedStore:
    try:
        operator = _operator(url, namespace, App() if app is None else app)
        return IdleStore(Owner(await stack.enter_async_context(operator)), url, app)
    except StoreLocked:
        return LiveStore(await stack.enter_async_context(connected(url, namespace)))


def _operator(
    store: StoreAddress, namespace: str, app: App
) -> AbstractAsyncContextManager[Runtime]:
    return open_operator(
        store,
        namespace=namespace,
        workflows=app.workflows,
        limits=app.limits,
        transform=app.transform,
        redact=app.redact,
    )


@asynccontextmanager
async def reading(url: str, namespace: str) -> AsyncIterator[Reader]:
    """Read a namespace of a database: through its owner, or as an operator if it has none."""
    async with AsyncExitStack() as stack:
        reader: Reader
        try:
            reader = await stack.enter_async_context(_operator(url, namespace, App()))
        except StoreLocked:
            reader = await stack.enter_async_context(connected(url, namespace))
        yield reader


def _is_served(path: Path) -> bool:
    """Return whether a process accepts connections at a socket."""
    with suppress(OSError), socket.socket(socket.AF_UNIX) as probe, short_path(path) as address:
        probe.connect(address)
        return True
    return False


@asynccontextmanager
async def connected(store: StoreAddress, namespace: str) -> AsyncIterator[RemoteRuntime]:
    """Connect to the process that has a store open. Raise `CommandError` if it has another
    namespace open."""
    in_database = is_url(store)
    given = token() if isinstance(store, str) and not in_database else None
    of_database = namespace if in_database else None
    async with connect(
        store, token=given, call_timeout=CALL_TIMEOUT, namespace=of_database
    ) as client:
        assert isinstance(client, RemoteRuntime)
        about: Session = await client._perform(CALLS["about"], {})
        if about.namespace != namespace:
            raise CommandError(
                f"the process at {store} serves the namespace {about.namespace!r}, not "
                f"{namespace!r}; to operate on that namespace, add --namespace {about.namespace}",
                USAGE,
            )
        yield client
