"""The HTTP API on a unix socket and on TCP, and requests as raw bytes."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun import Runtime, open_runtime
from keyrun.control.guard import TokenGuard
from keyrun.control.http import HttpApi
from keyrun.control.listening import bind_tcp, serving, socket_of
from keyrun.control.owner import Owner
from keyrun.control.target import SOCKET
from keyrun.control.tokens import TokenFile
from keyrun.storage import MemoryStore
from tests.control.world import Account, greet, wait_for_boss, wait_for_go


@attrs.frozen
class Listening:
    """A runtime that listens."""

    rt: Runtime
    folder: Path
    port: int
    token: bytes

    @property
    def bearer(self) -> bytes:
        """The header with the token of an admin."""
        return b"Authorization: Bearer " + self.token + b"\r\n"

    async def connect(self, *, unix: bool = False) -> trio.SocketStream:
        """Return a connection."""
        if unix:
            return await trio.open_unix_socket(self.folder / SOCKET)
        return await trio.open_tcp_stream("127.0.0.1", self.port)

    async def send(self, data: bytes, *, unix: bool = False, answers: int = 1) -> bytes:
        """Send bytes, and return what comes back: this many answers, and what follows at once."""
        stream = await self.connect(unix=unix)
        async with stream:
            received = b""
            try:
                await stream.send_all(data)
                while True:
                    with trio.move_on_after(5 if len(statuses(received)) < answers else 0.03):
                        part = await stream.receive_some()
                        received += part
                        if part:
                            continue
                    return received
            except trio.BrokenResourceError:
                return received

    async def get(self, target: str, *headers: bytes, unix: bool = False) -> int:
        """Send a GET with a Host of this machine, and return the status of the answer."""
        lines = b"".join(each + b"\r\n" for each in headers)
        head = f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n".encode()
        return statuses(await self.send(head + lines + b"\r\n", unix=unix))[0]

    async def is_alive(self) -> bool:
        """Return whether both listeners answer."""
        return [await self.get("/livez", unix=each) for each in (True, False)] == [200, 200]


def statuses(received: bytes) -> list[int]:
    """Return the status of each answer."""
    return [int(each) for each in re.findall(rb"HTTP/1\.1 (\d{3})", received)]


@asynccontextmanager
async def listening(folder: Path, **limits: Any) -> AsyncIterator[Listening]:
    """Serve a runtime in memory on both kinds of sockets."""
    tokens = TokenFile.create(folder / "tokens")
    secret = tokens.path.read_text().split()[-3].encode()
    async with (
        open_runtime(
            MemoryStore(), workflows=[greet, wait_for_go, wait_for_boss], entities=[Account]
        ) as rt,
        socket_of(folder) as unix,
    ):
        tcp = bind_tcp("127.0.0.1", 0)
        api = HttpApi(Owner(rt), TokenGuard(tokens))
        async with serving(api, [unix, *tcp], **limits):
            yield Listening(rt, folder, tcp[0].getsockname()[1], secret)
