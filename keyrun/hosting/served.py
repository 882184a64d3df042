"""Serve an application: open it, with a control plane that answers probes all the time."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from keyrun.control.front import Front
from keyrun.control.options import Control
from keyrun.control.page_address import page_address
from keyrun.control.places import Open, StorePlace
from keyrun.control.roles import Role
from keyrun.control.serving import check_control, control_plane, token_path
from keyrun.control.target import SOCKET
from keyrun.control.tokens import TokenFile
from keyrun.extras import need
from keyrun.hosting.app import App
from keyrun.hosting.trio_host import opened
from keyrun.runtime import open as engine
from keyrun.runtime.runtime import Runtime
from keyrun.storage import LmdbStore, Store
from keyrun.storage.opening import is_url


@attrs.frozen(kw_only=True)
class Served:
    """An application that is served."""

    runtime: Runtime
    """The runtime."""
    url: str | None
    """The address of the API on TCP, if there is one."""
    tokens: Path | None
    """The token file for that address."""
    page: str | None
    """The address of the web page with the first token that may read, if there is one. Print it
    only where the token may be seen."""
    socket: Path | None
    """The unix socket of the API. None if the store has no path."""


@asynccontextmanager
async def served(
    store: "Path | str | Store", app: App, control: Control, **opening: Any
) -> AsyncIterator[Served]:
    """Open an application and serve its control plane. `opening` has the arguments of
    `open_runtime` that are not in `app`.

    The listener on TCP is open before the store is, and until the runtime has drained. If the store
    is the URL of a database, the API answers in the process that owns the store."""
    if is_url(store):
        async with _served_at_url(str(store), app, control, **opening) as found:
            yield found
        return
    store = engine.as_store(store)
    path = store.path if isinstance(store, LmdbStore) else None
    check_control(path, control)
    async with AsyncExitStack() as stack:
        front = None
        if control.http is not None:
            front = await stack.enter_async_context(Front.opened(*control.http))
        runtime = await stack.enter_async_context(
            engine.open_runtime(store, **app.options(), **opening)
        )
        await stack.enter_async_context(control_plane(runtime, path, control, front))
        tokens = None if front is None else token_path(path, control)
        yield Served(
            runtime=runtime,
            url=None if front is None else front.url,
            tokens=tokens,
            page=None if front is None or tokens is None else _page(front.url, tokens, control),
            socket=None if path is None else path / SOCKET,
        )


@asynccontextmanager
async def _served_at_url(
    url: str, app: App, control: Control, **opening: Any
) -> AsyncIterator[Served]:
    check_control(None, control)
    need("psycopg", for_="the URL of a database", extra="postgres")
    from keyrun.control.postgres_place import PostgresPlace, PostgresStore

    async with AsyncExitStack() as stack:
        front = None
        if control.http is not None:
            front = await stack.enter_async_context(Front.opened(*control.http))

        def placed(
            store: Store, open_: Open, *, namespace: str, control: Control, call_timeout: float
        ) -> StorePlace:
            assert isinstance(store, PostgresStore)
            return PostgresPlace(
                store, open_, control=control, call_timeout=call_timeout, front=front
            )

        runtime = await stack.enter_async_context(
            opened(url, control=control, place=placed, **app.options(), **opening)
        )
        tokens = None if front is None else token_path(None, control)
        yield Served(
            runtime=runtime,
            url=None if front is None else front.url,
            tokens=tokens,
            page=None if front is None or tokens is None else _page(front.url, tokens, control),
            socket=None,
        )


def _page(url: str, tokens: Path, control: Control) -> str | None:
    """Return the address of the page with the first token of a file that may read."""
    token = TokenFile(tokens).first(Role.READ)
    return None if token is None else page_address(url, token, control.allowed_hosts)
