"""A real HTTP server on 127.0.0.1 that keeps what it is sent and answers as it is told."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio


@attrs.frozen(kw_only=True)
class Request:
    """What a client has sent."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@attrs.define(kw_only=True)
class Reply:
    """What the server answers. `hang` answers nothing, `drop` closes the connection."""

    status: int = 200
    body: Any = None
    headers: dict[str, str] = attrs.field(factory=dict)
    hang: bool = False
    drop: bool = False

    def sent(self) -> tuple[bytes, dict[str, str]]:
        if isinstance(self.body, bytes):
            return self.body, self.headers
        if isinstance(self.body, str):
            return self.body.encode(), {"content-type": "text/plain", **self.headers}
        return json.dumps(self.body).encode(), {"content-type": "application/json", **self.headers}


class Server:
    """`answer` says what to reply to a request; or `replies` are taken one after the other, the
    last one for ever."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.requests: list[Request] = []
        self.times: list[float] = []
        self.connections = 0
        self.replies: list[Reply] = [Reply()]
        self.answer: Callable[[Request], Reply] = lambda request: (
            self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        )

    async def handle(self, stream: trio.SocketStream) -> None:
        self.connections += 1
        connection = h11.Connection(h11.SERVER)
        while await self._one(stream, connection):
            connection.start_next_cycle()

    async def _one(self, stream: trio.SocketStream, connection: h11.Connection) -> bool:
        head, body = None, b""
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                try:
                    connection.receive_data(await stream.receive_some(65_536))
                except trio.BrokenResourceError:
                    return False
            elif isinstance(event, h11.Request):
                head = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        assert head is not None
        request = Request(
            method=head.method.decode(),
            target=head.target.decode(),
            headers={name.decode(): value.decode() for name, value in head.headers},
            body=body,
        )
        self.requests.append(request)
        self.times.append(trio.current_time())
        reply = self.answer(request)
        if reply.hang:
            await trio.sleep_forever()
        if reply.drop:
            return False
        content, headers = reply.sent()
        lines = [*headers.items(), ("content-length", str(len(content)))]
        sent = b"".join(
            connection.send(event) or b""
            for event in (
                h11.Response(status_code=reply.status, headers=lines),
                h11.Data(data=content),
                h11.EndOfMessage(),
            )
        )
        try:
            await stream.send_all(sent)
        except trio.BrokenResourceError:
            return False
        return connection.our_state is h11.DONE


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    """A server for as long as the block takes."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server = Server(listener.socket.getsockname()[1])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.handle, [listener])
        yield server
        nursery.cancel_scope.cancel()
