"""Serving: the control plane of a runtime, on its socket and over HTTP."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import trio

from keyrun.control.background import background
from keyrun.control.front import Front
from keyrun.control.guard import LOCAL_HOSTS, TokenGuard, is_host
from keyrun.control.http import HttpApi
from keyrun.control.listening import bind_tcp, inode_of, serving, socket_of
from keyrun.control.options import Control
from keyrun.control.owner import Owner
from keyrun.control.page_address import ALL
from keyrun.control.target import SOCKET
from keyrun.control.tokens import TokenFile
from keyrun.runtime.logger import logger
from keyrun.runtime.runtime import Runtime

TOKENS = "tokens"
"""The name of the token file in the directory of a store."""
CHECK_EVERY = 1.0
"""Seconds between two looks whether the socket is still there."""


@asynccontextmanager
async def control_plane(
    runtime: Runtime, store: Path | None, options: Control, front: Front | None = None
) -> AsyncIterator[Owner]:
    """Serve the control plane of a runtime while the block runs. `front` is a listener that is open
    already."""
    owner = Owner(runtime)
    tokens = None
    if options.http is not None:
        tokens = TokenFile.create(token_path(store, options))
    app = HttpApi(owner, TokenGuard(tokens, hosts_of(options)))
    async with AsyncExitStack() as stack:
        if front is not None:
            stack.enter_context(front.answering(app))
        elif options.http is not None:
            await stack.enter_async_context(serving(app, bind_tcp(*options.http)))
        if store is not None:
            nursery = await stack.enter_async_context(background())
            await nursery.start(_serve_socket, app, store)
        yield owner


async def _serve_socket(
    app: HttpApi, store: Path, task_status: "trio.TaskStatus[None]" = trio.TASK_STATUS_IGNORED
) -> None:
    """Serve the socket of a store. If the socket is removed, make it again."""
    path, has_begun = store / SOCKET, False
    async with AsyncExitStack() as stack:
        while True:
            try:
                listener = await stack.enter_async_context(socket_of(store))
            except OSError:
                if not has_begun:
                    raise
                await trio.sleep(CHECK_EVERY)
                continue
            mine = inode_of(path)
            await stack.enter_async_context(serving(app, [listener]))
            if not has_begun:
                has_begun = True
                task_status.started()
            while inode_of(path) == mine:  # noqa: ASYNC110 (files do not report)
                await trio.sleep(CHECK_EVERY)
            logger.warning(
                "the socket %s was removed, and is made again",
                path,
                extra={"event": "socket_removed"},
            )


def hosts_of(options: Control) -> tuple[str, ...]:
    """Return the values of the Host header that browsers may use: those of this machine, the
    address to listen on, and the others."""
    host = "" if options.http is None or options.http[0] in ALL else options.http[0]
    own = f"[{host}]" if ":" in host else host
    return (*LOCAL_HOSTS, *([own] if is_host(own) else []), *options.allowed_hosts)


def check_control(store: Path | None, options: Control) -> None:
    """Raise an error if the token file cannot be used, before anything is opened."""
    if options.http is not None:
        path = token_path(store, options)
        if options.token_file is not None or path.exists():
            TokenFile.create(path)


def token_path(store: Path | None, options: Control) -> Path:
    """Return the path of the token file."""
    path = options.token_file or (None if store is None else store / TOKENS)
    if path is None:
        raise ValueError("Control(http=...) requires token_file, because this store has no path")
    return path
