"""An ASGI application that forwards each request to a real server, byte for byte."""

from typing import Any
from urllib.parse import urlsplit

import h11
import trio


class Forward:
    """Forwards to the API at a URL. A peer of the unix socket becomes a caller with a token."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._address = parts.hostname, parts.port
        self._prefix = parts.path.encode()
        self._token = token

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Send a request to the server, and hand over the answer as it comes."""
        assert not scope["root_path"]
        stream = await trio.open_tcp_stream(*self._address)
        connection = h11.Connection(h11.CLIENT)
        async with stream, trio.open_nursery() as nursery:

            async def send_request() -> None:
                message = await receive()
                body, more = message["body"], message["more_body"]
                request = self._request(scope, has_body=bool(body) or more)
                await stream.send_all(connection.send(request))
                try:
                    while True:
                        await stream.send_all(connection.send(h11.Data(data=body)) or b"")
                        if not more:
                            break
                        message = await receive()
                        if message["type"] == "http.disconnect":
                            break
                        body, more = message["body"], message["more_body"]
                    if not more:
                        await stream.send_all(connection.send(h11.EndOfMessage()) or b"")
                except (trio.BrokenResourceError, h11.LocalProtocolError):
                    return  # the server has answered before the end of the body
                await receive()
                nursery.cancel_scope.cancel()  # the client has closed the connection

            nursery.start_soon(send_request)
            await self._take_answer(stream, connection, send)
            nursery.cancel_scope.cancel()

    def _request(self, scope: Any, *, has_body: bool) -> h11.Request:
        headers = list(scope["headers"])
        names = {name for name, _ in headers}
        if b"host" not in names:
            headers.append((b"host", b"localhost"))
        if scope["state"] and b"authorization" not in names:
            headers.append((b"authorization", b"Bearer " + self._token.encode()))
        if has_body and b"content-length" not in names:
            headers.append((b"transfer-encoding", b"chunked"))
        query = scope["query_string"]
        target = self._prefix + scope["raw_path"] + (b"?" + query if query else b"")
        return h11.Request(method=scope["method"], target=target, headers=headers)

    @staticmethod
    async def _take_answer(
        stream: trio.SocketStream, connection: h11.Connection, send: Any
    ) -> None:
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(65536)))
            elif isinstance(event, h11.Response):
                headers = [(name.lower(), value) for name, value in event.headers]
                start = {"type": "http.response.start", "status": event.status_code}
                await send({**start, "headers": headers})
            elif isinstance(event, h11.Data):
                body = {"type": "http.response.body", "body": bytes(event.data)}
                await send({**body, "more_body": True})
            elif isinstance(event, h11.EndOfMessage):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
