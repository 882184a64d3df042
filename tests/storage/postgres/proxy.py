"""A proxy between a store and PostgreSQL, which cuts connections in the middle of commits."""

import os
import re
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import quote

import psycopg
import trio

COMMIT = b"insert into keyrun.log"

WAYS = (
    "request lost",
    "request half sent",
    "cut while applied",
    "answer lost",
    "answer half sent",
    "applied late",
)
"""How a commit is cut off."""


class Proxy:
    """Forwards connections to a server. `cuts` is the plan for the next commits: one of `WAYS`, or
    None to let a commit pass."""

    def __init__(self, target: Path) -> None:
        self._target = target
        self.cuts: list[str | None] = []
        self.done: list[str] = []
        """The cuts that were made."""
        self.rewrite: Callable[[bytes], bytes] = bytes
        """Changes what the server sends."""
        self.is_blocked = False
        """Whether nothing is forwarded any more, in silence."""
        self._folder = Path(tempfile.mkdtemp(prefix="keyrun-proxy-"))
        self._nursery: trio.Nursery | None = None

    def url(self, url: str) -> str:
        """Return the URL of a database, through the proxy."""
        base = url.partition("?")[0]
        return f"{base}?host={quote(str(self._folder))}"

    async def serve(self, nursery: trio.Nursery) -> None:
        """Begin to listen."""
        listener = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        await listener.bind(str(self._folder / ".s.PGSQL.5432"))
        listener.listen()
        self._nursery = nursery
        nursery.start_soon(self._accept, listener)

    def close(self) -> None:
        """Remove the socket."""
        with suppress(FileNotFoundError):
            (self._folder / ".s.PGSQL.5432").unlink()
        self._folder.rmdir()

    async def _accept(self, listener: trio.socket.SocketType) -> None:
        assert self._nursery is not None
        with listener:
            while True:
                client, _ = await listener.accept()
                self._nursery.start_soon(self._forward, client)

    async def _forward(self, client: trio.socket.SocketType) -> None:
        server = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        with client, server, suppress(OSError, trio.ClosedResourceError, trio.Cancelled):
            await server.connect(str(self._target))
            async with trio.open_nursery() as nursery:
                connection = _Connection(self, client, server)
                nursery.start_soon(connection.requests, nursery.cancel_scope)
                nursery.start_soon(connection.answers, nursery.cancel_scope)


class _Connection:
    def __init__(
        self, proxy: Proxy, client: trio.socket.SocketType, server: trio.socket.SocketType
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._cut: str | None = None
        self._answered = trio.Event()

    async def requests(self, scope: trio.CancelScope) -> None:
        with suppress(OSError):
            while data := await self._client.recv(1 << 20):
                await self._unblocked()
                cuts = self._proxy.cuts
                if COMMIT in data and cuts:
                    self._cut = cuts.pop(0)
                if self._cut is None:
                    await _send(self._server, data)
                elif await self._cut_request(self._cut, data):
                    break
        scope.cancel()

    async def _cut_request(self, way: str, data: bytes) -> bool:
        """Send a part of a commit. Return whether the connection is to be closed."""
        if way in ("answer lost", "answer half sent"):
            await _send(self._server, data)
            return False
        self._proxy.done.append(way)
        if way == "request half sent":
            await _send(self._server, data[: len(data) // 2])
        elif way == "cut while applied":
            await _send(self._server, data)
        elif way == "applied late":
            self._client.close()
            await trio.sleep(0.03)
            await _send(self._server, data)
            await self._answered.wait()
        return True

    async def answers(self, scope: trio.CancelScope) -> None:
        with suppress(OSError, trio.ClosedResourceError):
            while data := await self._server.recv(1 << 20):
                await self._unblocked()
                if self._cut == "applied late":
                    self._answered.set()
                if self._cut in ("answer lost", "answer half sent"):
                    self._proxy.done.append(self._cut)
                    if self._cut == "answer half sent":
                        await _send(self._client, data[: len(data) // 2])
                    break
                await _send(self._client, self._proxy.rewrite(data))
        if self._cut != "applied late":
            scope.cancel()

    async def _unblocked(self) -> None:
        while self._proxy.is_blocked:
            await trio.sleep(0.005)


async def _send(to: trio.socket.SocketType, data: bytes) -> None:
    while data:
        data = data[await to.send(data) :]


@asynccontextmanager
async def proxy(url: str) -> AsyncIterator[Proxy]:
    """Run a proxy to the server of a URL for the time of a block."""
    with psycopg.connect(url) as connection:
        info = connection.info
        target = Path(info.host) / f".s.PGSQL.{info.port}"
    made = Proxy(target)
    try:
        async with trio.open_nursery() as nursery:
            await made.serve(nursery)
            yield made
            nursery.cancel_scope.cancel()
    finally:
        made.close()


def other_backend(data: bytes) -> bytes:
    """Change the process of the server that a client is told, as a pooler does."""
    return re.sub(
        rb"K\0\0\0\x0c(....)(?=....Z)",
        lambda found: b"K\0\0\0\x0c" + (int.from_bytes(found[1], "big") + 1).to_bytes(4, "big"),
        data,
        count=1,
        flags=re.DOTALL,
    )


def older_server(data: bytes) -> bytes:
    """Change the version of the server that a client is told to 12."""
    return re.sub(rb"(server_version\0)\d\d", rb"\g<1>12", data)


assert os.name == "posix"
