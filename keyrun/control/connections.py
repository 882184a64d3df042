"""Connections: serve the HTTP/1.1 connections of one listener, within limits.

1. An error in one connection ends that connection only. Anybody who reaches the port can send any
   bytes, and the engine runs in this process.
2. A listener has at most `most` connections. One more takes the place of the connection that has
   waited for a request the longest. If all of them have requests, the new one is closed.
3. A connection that does not read its answers is cut off after `send_seconds`.
4. No connection leaves HTTP/1.1: HTTP/2 has more ways to use up memory, and no client needs it.
"""

import resource
import socket
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

import anyio
import anyio.abc
import h11
import trio
from anycorn.app_wrappers import ASGIWrapper
from anycorn.config import Config
from anycorn.events import Closed, Event, RawData, Updated
from anycorn.protocol.events import Event as StreamEvent
from anycorn.protocol.events import Response
from anycorn.task_group import TaskGroup
from anycorn.tcp_server import TCPServer
from anycorn.typing import LifespanState
from anycorn.worker_context import WorkerContext

from keyrun.control.forking import belongs_here
from keyrun.runtime.logger import logger

KEEP_ALIVE = 75.0
"""Seconds that a connection waits for a whole request line and its headers."""
SEND_SECONDS = 60.0
"""Seconds that a client may take for `PIECE` bytes of an answer."""
PIECE = 64 * 1024
HEADERS = 64 * 1024
"""Bytes that the headers of a request may have."""
MOST = 2000
"""Connections of a listener. Fewer if the process may open fewer than four times as many files."""
LINGER = 2.0
"""Seconds that a client may go on sending after its request was answered."""
RETRY = 0.1
"""Seconds until the next attempt to accept a connection, after one that failed."""
SAY_EVERY = 60.0
"""Seconds between two log messages about connections that were not served."""

_LENGTH = b"\r\ncontent-length: "


def most_connections() -> int:
    """Return the number of connections that a listener may have."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MOST if files == resource.RLIM_INFINITY else max(1, min(MOST, files // 4))


class _Stream(anyio.abc.ByteStream):
    """A connection that breaks if the other end does not read."""

    def __init__(self, inner: anyio.abc.SocketStream, seconds: float) -> None:
        self._inner = inner
        self._seconds = seconds
        self.discards = False
        """Whether everything that the other end still sends is dropped."""

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:
        return self._inner.extra_attributes

    async def receive(self, max_bytes: int = 65536) -> bytes:
        while True:
            data = await self._inner.receive(max_bytes)
            if not self.discards:
                return data

    async def send(self, item: bytes) -> None:
        for at in range(0, len(item), PIECE):
            with trio.move_on_after(self._seconds):
                await self._inner.send(item[at : at + PIECE] if len(item) > PIECE else item)
                continue
            # What is sent later must not wait again.
            shut(self._inner.extra(anyio.abc.SocketAttribute.raw_socket))
            raise anyio.BrokenResourceError

    async def send_eof(self) -> None:
        await self._inner.send_eof()

    async def aclose(self) -> None:
        await self._inner.aclose()


class _Idle:
    """Closes a connection that waits too long for a request. One task serves all waits of the
    connection: a task for each of them would be the most expensive part of a request."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope: trio.CancelScope | None = None

    async def restart(self, tasks: TaskGroup, close: Callable[[], Awaitable[None]]) -> None:
        """Close the connection unless `stop` is called in time."""
        if self._scope is None:
            self._scope = trio.CancelScope()
            tasks.spawn(self._run, self._scope, close)
        self._scope.deadline = trio.current_time() + self._seconds

    async def stop(self) -> None:
        """Do not close the connection."""
        if self._scope is not None:
            self._scope.deadline = inf

    def end(self) -> None:
        """Wait no more."""
        if self._scope is not None:
            self._scope.cancel()

    async def _run(self, scope: trio.CancelScope, close: Callable[[], Awaitable[None]]) -> None:
        with scope:
            await trio.sleep_forever()
        await close()


class _Server(TCPServer):
    """One connection. It sends the head of an answer together with the body if the length is known.
    It ends when the other end has closed it, and not after `KEEP_ALIVE`."""

    def __init__(
        self,
        app: ASGIWrapper,
        config: Config,
        context: WorkerContext,
        state: LifespanState,
        stream: _Stream,
    ) -> None:
        socket_stream: Any = stream
        super().__init__(app, config, context, state, socket_stream)
        self._stream = stream
        self._is_closed = False
        self._linger = anyio.CancelScope()
        self._head = b""
        """The head of an answer that waits for the first part of its body."""
        self._idle = _Idle(config.keep_alive_timeout)
        self.idle_task: Any = self._idle

    async def _read_data(self) -> None:
        protocol: Any = self.protocol
        protocol.protocol._check_protocol = _stay_with_http1
        protocol.protocol.stream_send = _SaysClose(protocol.protocol)
        await super()._read_data()
        self._is_closed = True
        self._linger.cancel()
        self._idle.end()

    async def protocol_send(self, event: Event) -> None:
        if self._is_closed and isinstance(event, Updated):
            return
        if isinstance(event, Closed) and not self._is_closed and not self._stream.discards:
            # The client may still send a body that was refused. If the connection were closed now,
            # the client would see it break, instead of the answer.
            self._stream.discards = True
            with suppress(OSError, anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._stream.send_eof()
            self._task_group.spawn(self._close_later)
            await self.protocol.handle(event)
            return
        if isinstance(event, RawData):
            head, self._head = self._head, b""
            if not head and event.data.startswith(b"HTTP/1.1 ") and _LENGTH in event.data:
                # The protocol always sends the body, or at least its end.
                self._head = event.data
                return
            if head and len(event.data) < PIECE:
                event = RawData(data=head + event.data)
            elif head:
                await super().protocol_send(RawData(data=head))
            if not event.data:
                return
        await super().protocol_send(event)

    async def _idle_timeout(self) -> None:
        if not self._is_closed:
            with anyio.CancelScope(shield=True):
                await self._initiate_server_close()

    async def _close_later(self) -> None:
        with self._linger:
            await anyio.sleep(LINGER)
            shut(self._stream.extra(anyio.abc.SocketAttribute.raw_socket))


class _SaysClose:
    """Sends the answers of a connection. An answer that begins before the whole body of its request
    has arrived says that the connection closes after it. A client that was not told would send the
    next request on a connection that reads no more."""

    def __init__(self, protocol: Any) -> None:
        self._protocol = protocol
        self._send = protocol.stream_send

    async def __call__(self, event: StreamEvent) -> None:
        unread = self._protocol.connection.their_state is h11.SEND_BODY
        # The answer to a batch begins while its lines arrive, and ends after them.
        if (
            unread
            and isinstance(event, Response)
            and event.status_code >= 200
            and any(name == b"content-length" for name, _ in event.headers)
        ):
            event = replace(event, headers=[*event.headers, (b"connection", b"close")])
        await self._send(event)


async def _stay_with_http1(_: object) -> None:
    """Ignore that a request asks for HTTP/2."""


def shut(connection: socket.socket) -> None:
    """Break a connection, so that everything that waits for it ends."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Connections:
    """The connections of one listener."""

    def __init__(
        self,
        app: Callable[..., Any],
        state: Callable[[socket.socket], dict[str, Any]],
        *,
        most: int | None = None,
        send_seconds: float = SEND_SECONDS,
        keep_alive: float = KEEP_ALIVE,
    ) -> None:
        self._app = app
        self._state = state
        self._most = most_connections() if most is None else most
        self._send_seconds = send_seconds
        self._open: set[socket.socket] = set()
        self._waiting: dict[socket.socket, None] = {}
        """Connections without a request, first the one that has waited the longest."""
        self._say_at = 0.0
        config = Config()
        config.accesslog = config.errorlog = None
        config.include_server_header = False
        config.keep_alive_timeout = keep_alive
        config.h11_max_incomplete_size = HEADERS
        config.keep_alive_max_requests = 1 << 62
        self._config = config
        self._context = WorkerContext(None)

    async def serve(self, listener: anyio.abc.SocketListener) -> None:
        """Accept connections until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                try:
                    stream = await listener.accept()
                except (anyio.BrokenResourceError, OSError) as error:
                    # The client has left already, or the process can open no more files.
                    self._say("cannot accept a connection: %s", error.__cause__ or error)
                    self._make_room()
                    await trio.sleep(RETRY)
                    continue
                if len(self._open) >= self._most:
                    self._say("%d connections are open; closing others", self._most)
                    if not self._make_room():
                        await anyio.aclose_forcefully(stream)
                        continue
                nursery.start_soon(self._serve, stream)

    async def _serve(self, stream: anyio.abc.SocketStream) -> None:
        """Serve one connection."""
        connection = stream.extra(anyio.abc.SocketAttribute.raw_socket)

        async def app(*given: Any) -> None:
            self._waiting.pop(connection, None)
            try:
                await self._app(*given)
            finally:
                if connection in self._open:
                    self._waiting[connection] = None

        belongs_here(connection)
        self._open.add(connection)
        self._waiting[connection] = None
        limited = _Stream(stream, self._send_seconds)
        state = LifespanState(self._state(connection))
        try:
            await _Server(ASGIWrapper(app), self._config, self._context, state, limited).run()
        except* Exception:
            logger.exception("a connection failed", extra={"event": "connection_failed"})
        finally:
            self._open.discard(connection)
            self._waiting.pop(connection, None)

    def _make_room(self) -> bool:
        """Close the connection that has waited for a request the longest. Return whether there was
        one."""
        if not self._waiting:
            return False
        connection = next(iter(self._waiting))
        del self._waiting[connection]
        self._open.discard(connection)
        shut(connection)
        return True

    def _say(self, text: str, about: object) -> None:
        now = trio.current_time()
        if now >= self._say_at:
            self._say_at = now + SAY_EVERY
            logger.warning(text, about, extra={"event": "connection_refused"})

    def cut_off(self) -> None:
        """Break all connections."""
        for connection in self._open:
            # The server waits, shielded, for a client that does not read.
            shut(connection)
