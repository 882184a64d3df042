"""The servers: what `keyrun serve` opens, and the API mounted in a FastAPI application."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import trio
import uvicorn
from fastapi import FastAPI
from starlette.requests import Request

import keyrun.asyncio
import keyrun.web
from keyrun import App, connect
from keyrun.control.options import Control
from keyrun.hosting.served import served
from keyrun.storage import MemoryStore
from tests.control import world
from tests.control.servers.forwarding import Forward
from tests.control.world import Client

TOKEN = "the-token-of-an-admin"
READER = "the-token-of-a-reader"
LOGINS = {f"Bearer {TOKEN}": ("ann", "admin"), f"Bearer {READER}": ("eve", "read")}


def user_of(request: Request) -> tuple[str, str] | None:
    return LOGINS.get(request.headers.get("authorization", ""))


async def user_of_later(request: Request) -> tuple[str, str] | None:
    await asyncio.sleep(0)
    return user_of(request)


class Uvicorn:
    """A FastAPI application under uvicorn, in a thread. Runtimes are mounted while it runs."""

    def __init__(self) -> None:
        self._app = FastAPI()
        self._numbers = count()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._server = uvicorn.Server(uvicorn.Config(self._app, log_level="error"))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        await self._server.serve([self._listener])

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()

    @asynccontextmanager
    async def mounted(self, authorize: Any, options: dict[str, Any]) -> AsyncIterator[Client]:
        """Mount the API of a new runtime below a prefix of its own."""
        prefix = f"/inner/keyrun-{next(self._numbers)}"
        opened, closed = trio.Event(), trio.Event()
        token = trio.lowlevel.current_trio_token()
        left = asyncio.Event()

        async def keep_open() -> None:
            try:
                async with keyrun.asyncio.open_runtime(MemoryStore(), **options) as rt:
                    self._app.mount(prefix, keyrun.web.app(rt, authorize=authorize))
                    token.run_sync_soon(opened.set)
                    await left.wait()
            finally:
                token.run_sync_soon(closed.set)

        while self._loop is None or not self._server.started:
            await trio.sleep(0.01)
        future = asyncio.run_coroutine_threadsafe(keep_open(), self._loop)
        await opened.wait()
        host, port = self._listener.getsockname()
        url = f"http://{host}:{port}{prefix}"
        try:
            async with connect(url, token=TOKEN) as rt:
                yield Client(Forward(url, TOKEN), rt)
        finally:
            self._loop.call_soon_threadsafe(left.set)
            with trio.CancelScope(shield=True):
                await closed.wait()
            future.result(10)


@asynccontextmanager
async def by_serve(tokens: Path, options: dict[str, Any]) -> AsyncIterator[Client]:
    """Serve a runtime as the command does."""
    control = Control(http="127.0.0.1:0", token_file=tokens)
    tokens.touch(0o600)
    tokens.write_text(f"{TOKEN} admin ann\n{READER} read eve\n")
    async with served(MemoryStore(), App(**options), control) as server:
        assert server.url is not None
        yield Client(Forward(server.url, TOKEN), server.runtime)


@pytest.fixture(scope="session")
def fastapi() -> Iterator[Uvicorn]:
    found = Uvicorn()
    found.start()
    yield found
    found.stop()


REFUSED = (
    # anycorn refuses this path itself, with 400 and without a problem.
    "[serve-GET-/v1/keys/%FF/",
    # The mount of Starlette finds no path with a line break.
    "[fastapi-'a\\\\nb']",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out the requests that a server refuses before the API sees them."""
    items[:] = [each for each in items if not any(name in each.name for name in REFUSED)]


Opens = Callable[[dict[str, Any]], AbstractAsyncContextManager[Client]]


@pytest.fixture(params=["serve", "fastapi"], autouse=True)
def server(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `served` open a real server."""
    opens: Opens
    if request.param == "serve":

        def opens(options: dict[str, Any]) -> AbstractAsyncContextManager[Client]:
            return by_serve(tmp_path / "tokens", options)
    else:
        uvicorn: Uvicorn = request.getfixturevalue("fastapi")

        def opens(options: dict[str, Any]) -> AbstractAsyncContextManager[Client]:
            return uvicorn.mounted(user_of_later, options)

    monkeypatch.setattr(world, "SERVER", opens)


@pytest.fixture
def autojump_clock() -> None:
    """Time is real: a server waits for its sockets, not for Trio."""
