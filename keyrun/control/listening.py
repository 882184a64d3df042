"""Listening: serve the control plane on the socket of a store, and on TCP."""

import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc

from keyrun.control.background import beside
from keyrun.control.forking import belongs_here
from keyrun.control.target import SOCKET, short_path
from keyrun.extras import need

PEER = "keyrun_peer"
"""The name in the state of an ASGI scope that has the peer of a unix socket, such as `uid 1000`."""

BACKLOG = 512
KEEP_ALIVE = 75.0
"""Seconds that a connection without a request stays open."""
HEADERS = 64 * 1024
"""Bytes that the headers of a request may have."""


def bind_unix(path: Path) -> socket.socket:
    """Return a socket that listens at `path`, for this user only. It replaces one that is there:
    call this only while the store is locked."""
    folder, draft = path.parent, path.with_name(f"{path.name}.new")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with suppress(FileNotFoundError):
            draft.unlink()
        with short_path(folder / draft.name) as address:
            listener.bind(address)
        # Before anybody can connect.
        draft.chmod(0o600)
        listener.listen(BACKLOG)
        listener.setblocking(False)
        draft.rename(path)
        belongs_here(listener)
    except BaseException:
        listener.close()
        with suppress(OSError):
            draft.unlink()
        raise
    return listener


def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on a host and port."""
    found: list[socket.socket] = []
    flags = socket.AI_PASSIVE
    for family, kind, _, _, address in socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=flags
    ):
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listener.bind(address)
            listener.listen(BACKLOG)
            listener.setblocking(False)
            belongs_here(listener)
        except BaseException:
            listener.close()
            for each in found:
                each.close()
            raise
        found.append(listener)
        port = listener.getsockname()[1]
        if address[1] == 0:
            break
    return found


def peer_of(connection: socket.socket) -> str | None:
    """Return who is at the other end of a unix socket."""
    if connection.family != socket.AF_UNIX:
        return None
    if not hasattr(socket, "SO_PEERCRED"):
        return f"uid {os.getuid()}"  # the mode of the socket lets nobody else in
    size = struct.calcsize("3i")
    _, uid, _ = struct.unpack(
        "3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return f"uid {uid}"


@asynccontextmanager
async def serving(app: Callable[..., Any], listeners: list[socket.socket]) -> AsyncIterator[None]:
    """Serve an ASGI application on sockets while the block runs. Requests that are under way when
    the block is left are cut off."""
    need("anycorn", for_="the control plane", extra="control")
    from anycorn.app_wrappers import ASGIWrapper
    from anycorn.config import Config
    from anycorn.tcp_server import TCPServer
    from anycorn.typing import LifespanState
    from anycorn.worker_context import WorkerContext

    config = Config()
    config.accesslog = config.errorlog = None
    config.include_server_header = False
    config.keep_alive_timeout = KEEP_ALIVE
    config.h11_max_incomplete_size = HEADERS
    config.keep_alive_max_requests = 1 << 62
    context = WorkerContext(None)
    wrapped = ASGIWrapper(app)

    connections: set[Any] = set()

    async def handle(stream: anyio.abc.SocketStream) -> None:
        connection = stream.extra(anyio.abc.SocketAttribute.raw_socket)
        peer = peer_of(connection)
        state = LifespanState({} if peer is None else {PEER: peer})
        connections.add(connection)
        belongs_here(connection)
        try:
            await TCPServer(wrapped, config, context, state, stream).run()
        finally:
            connections.remove(connection)

    async with AsyncExitStack() as stack:
        serve: list[anyio.abc.SocketListener] = []
        for each in listeners:
            serve.append(
                await stack.enter_async_context(await anyio.abc.SocketListener.from_socket(each))
            )
        async with beside(*(partial(listener.serve, handle) for listener in serve)):
            try:
                yield
            finally:
                for connection in connections:
                    # The server waits, shielded, for a client that does not read.
                    with suppress(OSError):
                        connection.shutdown(socket.SHUT_RDWR)


@asynccontextmanager
async def socket_of(store: Path) -> AsyncIterator[socket.socket]:
    """Listen at the socket of a store. Remove the socket at the end, unless it was replaced, or
    this is a forked child of the owner."""
    path, process = store / SOCKET, os.getpid()
    listener = bind_unix(path)
    mine = inode_of(path)
    try:
        yield listener
    finally:
        if os.getpid() == process and inode_of(path) == mine:
            with suppress(OSError):
                path.unlink()
        with suppress(OSError):
            listener.close()


def inode_of(path: Path) -> int | None:
    """Return the number of the file at a path, or None if there is none."""
    with suppress(OSError):
        return path.stat().st_ino
    return None
