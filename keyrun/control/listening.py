"""Listening: serve the control plane on the socket of a store, and on TCP."""

import errno
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
from keyrun.control.connections import Connections
from keyrun.control.forking import belongs_here
from keyrun.control.target import SOCKET, short_path

PEER = "keyrun_peer"
"""The name in the state of an ASGI scope that has the peer of a unix socket, such as `uid 1000`."""

BACKLOG = 512


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


class CannotListen(OSError):
    """Raised if a process cannot listen on an address. `strerror` names it."""

    @property
    def in_use(self) -> bool:
        """Whether another process listens there."""
        return self.errno == errno.EADDRINUSE


def bind_tcp(host: str, port: int) -> list[socket.socket]:
    """Return sockets that listen on a host and port: one for each address that the host has and
    that this machine can use. With port 0, only the first address gets a free port."""
    found: list[socket.socket] = []
    unusable: OSError | None = None
    try:
        known = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, _, _, address in known:
            try:
                found.append(_bind(family, kind, address))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                    raise
                unusable = error  # a name may have an IPv6 address on a machine without IPv6
            if found and port == 0:
                break
        if not found:
            raise unusable or OSError(errno.EADDRNOTAVAIL, "the host has no address")
    except OSError as error:
        for each in found:
            each.close()
        raise CannotListen(
            error.errno,
            f"cannot listen on {_authority(host, port)}: {error.strerror}"
            + ("; stop the process that listens there, or choose another port")
            * (error.errno == errno.EADDRINUSE),
        ) from error
    return found


def _bind(family: int, kind: int, address: Any) -> socket.socket:
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
        raise
    return listener


def url_of(host: str, listeners: list[socket.socket]) -> str:
    """Return the address of listeners on a host."""
    return f"http://{_authority(host, listeners[0].getsockname()[1])}"


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


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


def _state(connection: socket.socket) -> dict[str, Any]:
    """Return what the API learns of a connection."""
    peer = peer_of(connection)
    return {} if peer is None else {PEER: peer}


@asynccontextmanager
async def serving(
    app: Callable[..., Any], listeners: list[socket.socket], **limits: Any
) -> AsyncIterator[Callable[[], None]]:
    """Serve an ASGI application on sockets while the block runs. Requests that are under way when
    the block is left are cut off. The function that is yielded cuts off all connections. `limits`
    are those of `Connections`."""
    served: list[Connections] = []
    tasks = []

    def cut_off() -> None:
        for connections in served:
            connections.cut_off()

    async with AsyncExitStack() as stack:
        for each in listeners:
            listener = await anyio.abc.SocketListener.from_socket(each)
            await stack.enter_async_context(listener)
            served.append(Connections(app, _state, **limits))
            tasks.append(partial(served[-1].serve, listener))
        async with beside(*tasks):
            try:
                yield cut_off
            finally:
                cut_off()


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
