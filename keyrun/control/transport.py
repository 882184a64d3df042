"""The client's side of a channel: sends calls to the owner of a store, and connects again.

All calls that are made in one pass of the event loop travel together. If the connection breaks, a
call is sent again, with the same operation id, as soon as there is an owner again: the owner
applies it once.
"""

import ssl
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any
from uuid import uuid4

import trio
from outcome import Outcome, Value

from keyrun.control.frames import (
    ANSWER,
    ERROR,
    HEARTBEAT,
    MEDIA_TYPE,
    PATH,
    pack,
    unpacker,
)
from keyrun.control.operation import Operation
from keyrun.control.problems import read_error
from keyrun.control.shapes import WIRE
from keyrun.control.target import Target, short_path
from keyrun.extras import need
from keyrun.runtime.errors import NoOwner
from keyrun.runtime.logger import logger
from keyrun.storage import StoreClosed

SILENCE = 4 * HEARTBEAT
"""Seconds without a byte after which a connection over TCP counts as broken."""
RECONNECT = 0.02
"""Seconds between two attempts to connect, at first."""
RECONNECT_MOST = 0.5
CHUNK = 256 * 1024


class Disconnected(Exception):
    """Raised if the connection broke before a call was answered."""


class ClientRejected(Exception):
    """Raised if the other end does not accept the client. To connect again does not help."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Calls:
    """The calls on one connection, and their answers."""

    def __init__(self) -> None:
        self._answers: dict[int, Callable[[int, Any], None]] = {}
        self._next = 0
        self._frames: list[bytes] = []
        self._wanted = trio.lowlevel.ParkingLot()
        self._unpacker = unpacker()
        self.broken = False
        """Whether no answer comes any more."""

    def begin(
        self,
        operation: str,
        operation_id: str | None,
        arguments: dict[str, Any],
        answer: Callable[[int, Any], None],
    ) -> int:
        """Send a call. `answer` is called with each frame of the answer, and with -1 if the
        connection breaks."""
        if self.broken:
            raise Disconnected
        self._next += 1
        self._answers[self._next] = answer
        self._put(pack(self._next, operation, operation_id, arguments))
        return self._next

    def end(self, call: int, *, cancel: bool) -> None:
        """Expect no more answers of a call."""
        if self._answers.pop(call, None) is not None and cancel and not self.broken:
            self._put(pack(call))

    def _put(self, frame: bytes) -> None:
        self._frames.append(frame)
        self._wanted.unpark()

    async def _taken(self) -> bytes:
        """Return all frames that were sent in one pass of the loop."""
        while not self._frames:
            await self._wanted.park()
        frames, self._frames = self._frames, []
        return b"".join(frames)

    def _feed(self, data: bytes) -> None:
        """Deliver the answers in data from the owner."""
        self._unpacker.feed(data)
        for frame in self._unpacker:
            if frame and (answer := self._answers.get(frame[0])) is not None:
                answer(frame[1], frame[2] if len(frame) > 2 else None)

    def _break(self) -> None:
        """Tell all calls that no answer comes."""
        self.broken = True
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(-1, None)

    async def run(self) -> None:
        """Send calls and receive answers until the connection breaks."""
        raise NotImplementedError


class Connection(Calls):
    """A connection to the owner in another process."""

    def __init__(self, stream: trio.abc.Stream, target: Target, token: str | None) -> None:
        need("h11", for_="keyrun.connect", extra="control")
        import h11

        super().__init__()
        self._h11 = h11
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._target = target
        self._token = token
        self._patience = inf if target.socket is not None else SILENCE

    async def open(self) -> None:
        """Send the head of the request, and read that of the answer."""
        headers = [
            ("Host", self._target.authority),
            ("Content-Type", MEDIA_TYPE),
            ("Transfer-Encoding", "chunked"),
        ]
        if self._token is not None:
            headers.append(("Authorization", f"Bearer {self._token}"))
        path = f"{self._target.prefix}/v1{PATH}"
        request = self._h11.Request(method="POST", target=path, headers=headers)
        await self._stream.send_all(self._http.send(request))
        answer = await self._event()
        if not isinstance(answer, self._h11.Response):
            raise Disconnected
        if answer.status_code != 200:
            body = b""
            while isinstance(event := await self._event(), self._h11.Data):
                body += event.data
            raise refusal(answer.status_code, body, self._target)

    async def _event(self) -> Any:
        while True:
            try:
                event = self._http.next_event()
            except self._h11.RemoteProtocolError as error:
                raise Disconnected from error
            if event is not self._h11.NEED_DATA:
                return event
            with trio.move_on_after(self._patience):
                self._http.receive_data(bytes(await self._stream.receive_some(CHUNK)))
                continue
            raise Disconnected

    async def run(self) -> None:
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive()
                nursery.cancel_scope.cancel()
        finally:
            self._break()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)

    async def _send(self) -> None:
        data = self._h11.Data
        # The receiving side notices a broken connection, too.
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                frames = await self._taken()
                await self._stream.send_all(self._http.send(data(data=frames)))

    async def _receive(self) -> None:
        with suppress(
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            Disconnected,
        ):
            while isinstance(event := await self._event(), self._h11.Data):
                self._feed(event.data)


def refusal(status: int, body: bytes, target: Target) -> Exception:
    """Return the error for an answer that opens no channel."""
    import json

    detail = f"HTTP status {status}"
    with suppress(ValueError, AttributeError):
        detail = json.loads(body).get("detail", detail)
    if status in (421, 502, 503, 504):
        return Disconnected(detail)
    if status in (401, 403):
        return ClientRejected(PermissionError(f"{target} rejected the client: {detail}"))
    return ClientRejected(
        RuntimeError(f"{target} is not a control plane that this client can use: {detail}")
    )


class Transport:
    """Calls operations of whatever process owns a store."""

    def __init__(
        self,
        target: Target,
        *,
        token: str | None = None,
        call_timeout: float = 60.0,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._target = target
        self._token = token
        self._call_timeout = call_timeout
        self._context = context
        self._connection: Calls | None = None
        self._refused: Exception | None = None
        self._changed = trio.Event()
        self._closed = False

    async def run(self) -> None:
        """Stay connected until this is cancelled."""
        delay = RECONNECT
        try:
            while True:
                began = trio.current_time()
                try:
                    await self.stay_connected()
                except ClientRejected:
                    delay = RECONNECT_MOST
                if trio.current_time() - began > 1:
                    delay = RECONNECT
                await trio.sleep(delay)
                delay = min(2 * delay, RECONNECT_MOST)
        finally:
            self.close()

    def close(self) -> None:
        """Let all further calls fail."""
        self._closed = True
        self._notify()

    async def stay_connected(self) -> None:
        """Connect, and return when the connection breaks, or at once if there is no owner. Raise
        `ClientRejected` if the other end does not accept the client."""
        connection = None
        with suppress(OSError, Disconnected, ssl.SSLError):
            connection = await self._opened()
        if connection is not None:
            await self.use(connection)

    async def use(self, connection: Calls) -> None:
        """Send calls over a connection until it breaks."""
        self._connection, self._refused = connection, None
        self._notify()
        try:
            await connection.run()
        finally:
            self._connection = None
            self._notify()

    async def _opened(self) -> Connection:
        stream = await self._connect()
        try:
            connection = Connection(stream, self._target, self._token)
            with trio.move_on_after(SILENCE):
                await connection.open()
                return connection
            raise Disconnected
        except BaseException as error:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
            if isinstance(error, ClientRejected):
                self._refused = error.error
                self._notify()
            raise

    async def _connect(self) -> trio.abc.Stream:
        target = self._target
        if target.socket is not None:
            with short_path(target.socket) as path:
                return await trio.open_unix_socket(path)
        stream: trio.abc.Stream = await trio.open_tcp_stream(target.host, target.port)
        if target.tls:
            context = self._context or ssl.create_default_context()
            return trio.SSLStream(stream, context, server_hostname=target.host)
        return stream

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def connected(self) -> Calls:
        """Return the connection, or wait for one. Raise `NoOwner` if there is none for
        `call_timeout` seconds."""
        with trio.move_on_after(self._call_timeout):
            while (connection := self._connection) is None or connection.broken:
                if self._refused is not None:
                    raise self._refused
                if self._closed:
                    raise StoreClosed("the client was closed; connect again to continue")
                await self._changed.wait()
            return connection
        raise NoOwner(
            f"no process answered at {self._target} for {self._call_timeout:g} s; start the "
            "application that owns the store, and check that it runs with control=True"
        )

    async def call(
        self, operation: Operation, arguments: dict[str, Any], operation_id: str | None = None
    ) -> Any:
        """Perform an operation, and return its answer. Connect and repeat it until there is one."""
        if operation.writes and operation_id is None:
            operation_id = uuid4().hex
        written = write_arguments(operation, arguments)
        while True:
            connection = await self.connected()
            try:
                return await self.call_once(connection, operation, written, operation_id)
            except Disconnected:
                logger.debug("calling %s again: the connection broke", operation.name)

    async def call_once(
        self,
        connection: Calls,
        operation: Operation,
        written: dict[str, Any],
        operation_id: str | None,
    ) -> Any:
        """Perform an operation on one connection. Raise `Disconnected` if it breaks, or if the
        owner closes."""
        task = trio.lowlevel.current_task()
        call = 0

        def answer(kind: int, value: Any) -> None:
            outcome: Outcome[Any] = Value((kind, value))
            connection.end(call, cancel=False)
            trio.lowlevel.reschedule(task, outcome)

        def abort(_: object) -> trio.lowlevel.Abort:
            connection.end(call, cancel=True)
            return trio.lowlevel.Abort.SUCCEEDED

        call = connection.begin(operation.name, operation_id, written, answer)
        kind, value = await trio.lowlevel.wait_task_rescheduled(abort)
        if kind == ANSWER:
            return WIRE.reader(operation.result)(value)
        if kind == ERROR:
            error = read_error(value)
            if isinstance(error, StoreClosed):
                raise Disconnected  # the owner closes, and another process may take over
            raise error
        raise Disconnected


def write_arguments(operation: Operation, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments as they travel."""
    parameters = operation.parameters
    return {
        name: WIRE.writer(parameters[name].declared, name)(value)
        for name, value in arguments.items()
    }
