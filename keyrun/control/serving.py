"""Serving: the control plane of a runtime, on its socket and over HTTP."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from keyrun.control.guard import LOCAL_HOSTS, TokenGuard
from keyrun.control.http import HttpApi
from keyrun.control.listening import bind_tcp, serving, socket_of
from keyrun.control.options import Control
from keyrun.control.owner import Owner
from keyrun.control.tokens import TokenFile
from keyrun.runtime.runtime import Runtime

TOKENS = "tokens"
"""The name of the token file in the directory of a store."""


@asynccontextmanager
async def control_plane(
    runtime: Runtime, store: Path | None, options: Control
) -> AsyncIterator[Owner]:
    """Serve the control plane of a runtime while the block runs."""
    owner = Owner(runtime)
    tokens = None
    if options.http is not None:
        path = options.token_file or (None if store is None else store / TOKENS)
        if path is None:
            raise ValueError(
                "Control(http=...) requires token_file, because this store has no path"
            )
        tokens = TokenFile.create(path)
    hosts = options.allowed_hosts or LOCAL_HOSTS
    app = HttpApi(owner, TokenGuard(tokens, hosts))
    async with AsyncExitStack() as stack:
        listeners = []
        if store is not None:
            listeners.append(await stack.enter_async_context(socket_of(store)))
        if options.http is not None:
            listeners += bind_tcp(*options.http)
        await stack.enter_async_context(serving(app, listeners))
        yield owner
