"""A runtime behind the HTTP API, called in memory."""

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import attrs
import trio

from keyrun import Context, Entity, Runtime, Workflow, entity, step, workflow
from keyrun.control.guard import Guard, TokenGuard
from keyrun.control.http import HttpApi
from keyrun.control.owner import Owner
from keyrun.testing import open_test_runtime
from tests.control.conformity import check_answer

PEER = {"keyrun_peer": "uid 1000"}


@step
async def shout(word: str) -> str:
    if word == "broken":
        raise ValueError("the word is broken")
    return word.upper()


@workflow
async def greet(ctx: Context, name: str) -> str:
    return await ctx.step(shout, name)


@workflow
async def wait_for_go(ctx: Context, _: None) -> Any:
    return await ctx.wait_signal("go")


@workflow
async def wait_for_boss(ctx: Context, _: None) -> None:
    await ctx.approval("boss")


@entity
class Account(Entity):
    async def deposit(self, amount: int) -> int:
        self.state["balance"] = self.state.get("balance", 0) + amount
        balance: int = self.state["balance"]
        return balance


WORKFLOWS: list[Workflow[Any, Any]] = [greet, wait_for_go, wait_for_boss]


@attrs.frozen
class Answer:
    """What the API has answered."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Exchange:
    """One request to an ASGI application, and what it answers."""

    def __init__(
        self,
        method: str,
        target: str,
        body: bytes | Iterable[bytes] = b"",
        *,
        headers: Iterable[tuple[str, str]] = (),
        state: Mapping[str, Any] = PEER,
        root_path: str = "",
    ) -> None:
        path, _, query = target.partition("?")
        self.method, self.path, self.root = method, path, root_path
        self.scope = {
            "type": "http",
            "method": method,
            "scheme": "http",
            "path": path,
            "raw_path": path.encode(),
            "query_string": query.encode(),
            "root_path": root_path,
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
            "state": dict(state),
        }
        self._parts = [body] if isinstance(body, bytes) else list(body)
        self._gone = trio.Event()
        self._sent = trio.Event()
        self._may_send = trio.Event()
        self._may_send.set()
        self.start: dict[str, Any] = {}
        self.parts: list[bytes] = []
        self.over = False

    async def receive(self) -> dict[str, Any]:
        """Hand over a part of the body, then wait until the client closes the connection."""
        if self._parts:
            part = self._parts.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._parts)}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: dict[str, Any]) -> None:
        """Take a part of the answer."""
        await self._may_send.wait()
        if message["type"] == "http.response.start":
            assert not self.start, "the answer begins twice"
            self.start = message
        else:
            assert self.start, "the answer has no begin"
            assert not self.over, "the answer goes on after its end"
            self.parts.append(message.get("body", b""))
            self.over = not message.get("more_body", False)
        self._sent.set()
        self._sent = trio.Event()

    def stop_reading(self) -> None:
        """Take no more parts of the answer."""
        self._may_send = trio.Event()

    def close(self) -> None:
        """Close the connection."""
        self._gone.set()
        self._may_send.set()

    async def more(self) -> None:
        """Wait for the next part of the answer."""
        await self._sent.wait()

    async def until(self, text: bytes) -> bytes:
        """Wait until the answer has a text, and return the answer."""
        with trio.fail_after(60):
            while text not in b"".join(self.parts):
                await self.more()
        return b"".join(self.parts)

    def check(self) -> None:
        """Raise AssertionError if the answer is not as `openapi.json` says."""
        if self.start:
            answer = self.answer
            check_answer(
                self.method, self.path, answer.status, answer.headers, answer.body, self.root
            )

    @property
    def answer(self) -> Answer:
        """Return the whole answer."""
        headers = {name.decode(): value.decode() for name, value in self.start["headers"]}
        return Answer(self.start["status"], headers, b"".join(self.parts))


class Client:
    """Calls an ASGI application in memory."""

    def __init__(self, api: Any, runtime: Any = None) -> None:
        self.api = api
        self.rt = runtime

    async def call(
        self, method: str, target: str, data: Any = None, *, body: bytes | None = None, **more: Any
    ) -> Answer:
        """Send a request, and return the whole answer."""
        headers = list(more.pop("headers", ()))
        if data is not None:
            body = json.dumps(data).encode()
            headers.append(("content-type", "application/json"))
        exchange = Exchange(method, target, body or b"", headers=headers, **more)
        await self.api(exchange.scope, exchange.receive, exchange.send)
        assert exchange.over, "the answer has no end"
        exchange.check()
        return exchange.answer

    async def good(self, method: str, target: str, data: Any = None, **more: Any) -> Any:
        """Send a request, and return the JSON of its answer, which must be good."""
        answer = await self.call(method, target, data, **more)
        assert answer.status == 200, answer.body
        return answer.json

    @asynccontextmanager
    async def stream(self, target: str, **more: Any) -> AsyncIterator[Exchange]:
        """Open a stream, and close it at the end."""
        exchange = Exchange("GET", target, **more)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.api, exchange.scope, exchange.receive, exchange.send)
            yield exchange
            exchange.close()
        exchange.check()


SERVER: "Callable[[dict[str, Any]], AbstractAsyncContextManager[Client]] | None" = None
"""Opens a runtime behind a real server. The tests in `servers/` set it."""


@asynccontextmanager
async def served(
    *, guard: Guard | None = None, options: Mapping[str, Any] | None = None, **more: Any
) -> AsyncIterator[Client]:
    """Open a runtime in memory behind the API."""
    given: dict[str, Any] = {"workflows": WORKFLOWS, "entities": [Account], **(options or {})}
    if SERVER is not None:
        assert guard is None
        assert not more, "this test configures the application, so it runs in memory only"
        async with SERVER(given) as client:
            yield client
        return
    async with open_test_runtime(**given) as rt:
        yield client_of(rt, guard=guard, **more)


def client_of(rt: Runtime, *, guard: Guard | None = None, **more: Any) -> Client:
    """Return a client of the API of a runtime."""
    return Client(HttpApi(Owner(rt), guard or TokenGuard(), **more), rt)
