"""The client's side of a channel: sends calls to the owner of a store, and connects again.

All calls that are made in one pass of the event loop travel together. If the connection breaks, a
call is sent again, with the same operation id, as soon as there is an owner again: the owner
applies it once.
"""

import os
import ssl
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import uuid4

import trio
from outcome import Outcome, Value

from keyrun.control.client_trace import caller_fields
from keyrun.control.forking import belongs_here
from keyrun.control.frames import (
    ANSWER,
    ERROR,
    HEARTBEAT,
    MEDIA_TYPE,
    PATH,
    BrokenFrame,
    Frames,
    pack,
)
from keyrun.control.operation import Operation
from keyrun.control.problems import read_error
from keyrun.control.sealing import Unsealed
from keyrun.control.shapes import WIRE
from keyrun.control.target import Target, short_path
from keyrun.extras import need
from keyrun.runtime.errors import NoOwner
from keyrun.runtime.host.callers import forked
from keyrun.runtime.logger import logger
from keyrun.runtime.texts import clean
from keyrun.storage import StoreClosed, StoreLost

SILENCE = 4 * HEARTBEAT
"""Seconds without a byte after which a connection counts as broken."""
RECONNECT = 0.02
"""Seconds between two attempts to connect, at first."""
RECONNECT_MOST = 0.5
STABLE = 1.0
"""Seconds after which a connection that breaks is no failed attempt."""
CHUNK = 256 * 1024
LONGEST_REFUSAL = 64 * 1024
"""Bytes that are read of an answer that opens no channel."""


BROKEN = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)
"""What a stream raises if its connection is broken."""


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
        self._waiting: list[Callable[[], bytes] | bytes] = []
        self._wanted = trio.lowlevel.ParkingLot()
        self._frames = Frames()
        self.statistics: Any = None
        """The statistics of the runtime that the owner sent last, as they travel."""
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
            raise Disconnected("the connection is broken")
        trace = caller_fields()
        more = () if trace is None else (trace,)
        frame = pack(self._next + 1, operation, operation_id, arguments, *more)
        return self._begin(frame, answer)

    def begin_later(self, frame: Callable[[int], bytes], answer: Callable[[int, Any], None]) -> int:
        """Send a call whose frame is made when the calls of this pass of the loop are sent. `frame`
        takes the id of the call, and returns the frame."""
        if self.broken:
            raise Disconnected("the connection is broken")
        return self._begin(partial(frame, self._next + 1), answer)

    def _begin(self, frame: Callable[[], bytes] | bytes, answer: Callable[[int, Any], None]) -> int:
        self._next += 1
        self._answers[self._next] = answer
        self._put(frame)
        return self._next

    def end(self, call: int, *, cancel: bool) -> None:
        """Expect no more answers of a call."""
        if self._answers.pop(call, None) is not None and cancel and not self.broken:
            self._put(pack(call))

    def take(self, call: int, number: int) -> None:
        """Let the owner send further answers of a stream, because `number` of them were taken."""
        if call in self._answers and not self.broken:
            self._put(pack(call, number))

    def _put(self, frame: Callable[[], bytes] | bytes) -> None:
        self._waiting.append(frame)
        self._wanted.unpark()

    async def _taken(self) -> bytes:
        """Return all frames that were sent in one pass of the loop."""
        while not self._waiting:
            await self._wanted.park()
        frames, self._waiting = self._waiting, []
        return b"".join([each if isinstance(each, bytes) else each() for each in frames])

    def _feed(self, data: bytes) -> None:
        """Deliver the answers in data from the owner. Raises `BrokenFrame`."""
        for frame in self._frames.feed(data):
            match frame:
                case []:
                    pass
                case [0, int(), statistics]:
                    self.statistics = statistics
                case [int(call), int(kind), *values] if kind >= 0 and len(values) < 2:
                    if (answer := self._answers.get(call)) is not None:
                        answer(kind, values[0] if values else None)
                case _:
                    raise BrokenFrame("a frame of no known form")

    def _break(self) -> None:
        """Tell all calls that no answer comes."""
        self.broken = True
        answers, self._answers = self._answers, {}
        for answer in answers.values():
            answer(-1, None)

    async def run(self) -> None:
        """Send calls and receive answers until the connection breaks, then raise `Disconnected`."""
        raise NotImplementedError


class Connection(Calls):
    """A connection to the owner in another process."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        target: Target,
        token: str | None,
        namespace: str | None,
        *,
        redacted: bool = False,
    ) -> None:
        need("h11", for_="keyrun.connect", extra="control")
        import h11

        super().__init__()
        self._h11 = h11
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._target = target
        self._token = token
        self._namespace = namespace
        self._redacted = redacted

    async def open(self) -> None:
        """Send the head of the request, and read that of the answer. Raises `Disconnected` or
        `ClientRejected`."""
        headers = [
            ("Host", self._target.authority),
            ("Content-Type", MEDIA_TYPE),
            ("Transfer-Encoding", "chunked"),
        ]
        path = f"{self._target.prefix}/v1{PATH}"
        query = {} if self._namespace is None else {"namespace": self._namespace}
        if self._redacted:
            query["redacted"] = "true"
        if query:
            path += f"?{urlencode(query)}"
        credentials = self._credentials(path)
        if credentials is not None:
            headers.append(("Authorization", credentials))
        try:
            request = self._h11.Request(method="POST", target=path, headers=headers)
        except self._h11.LocalProtocolError as error:
            raise ClientRejected(
                ValueError(f"{self._target} is not a valid address: {error}")
            ) from error
        await self._write(self._http.send(request))
        answer = await self._event()
        if not isinstance(answer, self._h11.Response):
            raise Disconnected("it closed the connection before it answered")
        kind = dict(answer.headers).get(b"content-type", b"").decode("latin-1")
        if answer.status_code != 200:
            body = b""
            while isinstance(event := await self._event(), self._h11.Data):
                body += event.data
                if len(body) > LONGEST_REFUSAL:
                    break
            raise self._refusal(answer, body)
        if kind != MEDIA_TYPE:
            raise ClientRejected(
                unusable(self._target, f"it answers with {kind or 'no content type'!r}")
            )

    def _credentials(self, path: str) -> str | None:
        """Return the Authorization header of the request."""
        return None if self._token is None else f"Bearer {self._token}"

    def _refusal(self, answer: Any, body: bytes) -> Exception:
        """Return the error for an answer that opens no channel."""
        return refusal(answer.status_code, body, self._target)

    def _sealed(self, frames: bytes) -> bytes:
        """Return frames as they travel."""
        return frames

    def _unsealed(self, data: bytes) -> bytes:
        """Return the frames that have arrived. Raises `ValueError`."""
        return data

    async def _write(self, data: bytes) -> None:
        try:
            await self._stream.send_all(data)
        except BROKEN as error:
            if isinstance(error.__cause__, ssl.SSLCertVerificationError):
                raise ClientRejected(error.__cause__) from error
            raise Disconnected(_cause(error)) from error

    async def _event(self) -> Any:
        is_closed = False
        while True:
            try:
                event = self._http.next_event()
                if event is not self._h11.NEED_DATA:
                    return event
                with trio.move_on_after(SILENCE):
                    data = bytes(await self._stream.receive_some(CHUNK))
                    is_closed = not data
                    self._http.receive_data(data)
                    continue
            except self._h11.RemoteProtocolError as error:
                if is_closed:
                    raise Disconnected("it closed the connection") from error
                raise Disconnected(f"it does not speak HTTP as it should ({error})") from error
            except BROKEN as error:
                raise Disconnected(_cause(error)) from error
            raise Disconnected(f"it sent nothing for {SILENCE:g} s")

    async def run(self) -> None:
        broken: BaseException
        try:
            # Both tasks end with `Disconnected`.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send)
                await self._receive()
        except* Disconnected as group:
            broken = _first(group)
        finally:
            self._break()
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(self._stream)
        raise broken

    async def _send(self) -> None:
        data = self._h11.Data
        while True:
            frames = await self._taken()
            await self._write(self._http.send(data(data=self._sealed(frames))))

    async def _receive(self) -> None:
        try:
            while isinstance(event := await self._event(), self._h11.Data):
                self._feed(self._unsealed(event.data))
        except (BrokenFrame, Unsealed) as error:
            raise Disconnected(f"it sent {error}") from error
        raise Disconnected("it closed the connection")


def _first(error: BaseException) -> BaseException:
    """Return the first error in groups of errors."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _cause(error: BaseException) -> str:
    """Return what broke a connection. Trio hides it in the cause, which is a group if a host has
    several addresses."""
    cause = error.__cause__ or error
    if isinstance(cause, BaseExceptionGroup):
        return "; ".join(dict.fromkeys(_cause(each) for each in cause.exceptions))
    return str(cause) or type(cause).__name__


def unusable(target: Target, why: str) -> Exception:
    """Return the error for a server that is not the control plane of a runtime."""
    return RuntimeError(f"{target} is not a control plane that this client can use: {why}")


def refusal(status: int, body: bytes, target: Target) -> Exception:
    """Return the error for an answer that opens no channel."""
    import json

    detail = f"HTTP status {status}"
    with suppress(ValueError, AttributeError, RecursionError):
        detail = clean(str(json.loads(body).get("detail", detail)))[:500]
    if status in (408, 421, 429) or status >= 500:
        return Disconnected(detail)
    if status in (401, 403):
        return ClientRejected(PermissionError(f"{target} rejected the client: {detail}"))
    return ClientRejected(unusable(target, detail))


class Transport:
    """Calls operations of whatever process owns a store."""

    def __init__(
        self,
        target: Target,
        *,
        token: str | None = None,
        call_timeout: float = 60.0,
        context: ssl.SSLContext | None = None,
        namespace: str | None = None,
        redacted: bool = False,
    ) -> None:
        """With `redacted`, the owner redacts all answers, on the unix socket too."""
        self.target = target
        self.call_timeout = call_timeout
        self.token = trio.lowlevel.current_trio_token()
        self._token = token
        self._context = context
        self._namespace = namespace
        self._redacted = redacted
        self._process = os.getpid()
        self._connection: Calls | None = None
        self._refused: Exception | None = None
        self.trouble = ""
        """Why the last attempt to connect failed."""
        self.owner = ""
        """What is known of the process that owns the store."""
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
                if trio.current_time() - began > STABLE:
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
        try:
            await self.use(await self._opened())
        except Disconnected as error:
            if self.trouble != str(error):
                self.trouble = str(error)
                logger.debug("%s: %s", self.target, error, extra={"event": "connection_lost"})

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
        with trio.move_on_after(SILENCE):
            await self._find()
            stream = await self._connect()
            self.trouble = "a process accepted the connection, and has not answered; is it stopped?"
            try:
                connection = self._connection_over(stream)
                await connection.open()
                return connection
            except BaseException as error:
                with trio.CancelScope(shield=True):
                    await trio.aclose_forcefully(stream)
                if isinstance(error, ClientRejected):
                    self._refused = error.error
                    self._notify()
                raise
        raise Disconnected(f"it did not answer for {SILENCE:g} s")

    async def _find(self) -> None:
        """Set the target to the address of the owner. Raises `Disconnected`."""

    def _connection_over(self, stream: trio.abc.Stream) -> Connection:
        return Connection(
            stream, self.target, self._token, self._namespace, redacted=self._redacted
        )

    async def _connect(self) -> trio.abc.Stream:
        target = self.target
        try:
            if target.socket is not None:
                with short_path(target.socket) as path:
                    local = await trio.open_unix_socket(path)
                belongs_here(local.socket)
                return local
            stream: trio.abc.Stream = await trio.open_tcp_stream(target.host, target.port)
        except (OSError, ValueError) as error:
            raise Disconnected(_cause(error)) from error
        if target.tls:
            context = self._context or ssl.create_default_context()
            return trio.SSLStream(
                stream, context, server_hostname=target.host, https_compatible=True
            )
        return stream

    def _notify(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    @property
    def connection(self) -> Calls | None:
        """Return the connection, if there is one."""
        found = self._connection
        return None if found is None or found.broken else found

    @property
    def refused(self) -> Exception | None:
        """Return why the other end does not accept this client, if it does not."""
        return self._refused

    async def changed(self) -> None:
        """Wait until the connection breaks, or there is one."""
        await self._changed.wait()

    async def connected(self, seconds: float | None = None) -> Calls:
        """Return the connection, or wait for one. Raise `NoOwner` if there is none after a number
        of seconds. Default: `call_timeout`."""
        if os.getpid() != self._process:
            raise forked(self._process)
        known = self._connection
        if known is not None and not (known.broken or self._closed or self._refused):
            return known
        with trio.move_on_after(self.call_timeout if seconds is None else max(0, seconds)):
            while True:
                if self._closed:
                    raise StoreClosed("the client was closed; connect again to continue")
                if self._refused is not None:
                    raise self._refused
                if (connection := self.connection) is not None:
                    return connection
                await self._changed.wait()
        raise self.no_owner(self.trouble)

    def no_owner(self, trouble: str) -> NoOwner:
        """Return the error of a call that found no owner in time."""
        known = "; ".join(each for each in (self.owner, trouble) if each)
        why = f" ({known})" if known else ""
        return NoOwner(
            f"no process answered at {self.target} for {self.call_timeout:g} s{why}; start the "
            "application that owns the store, and check that it runs with control=True or "
            "when_locked='join'"
        )

    async def call(
        self, operation: Operation, arguments: dict[str, Any], operation_id: str | None = None
    ) -> Any:
        """Perform an operation, and return its answer. Connect and repeat it until there is one."""
        written = operation.arguments_on_wire(arguments)
        return await self.call_written(operation, written, operation_id)

    async def call_written(
        self, operation: Operation, written: dict[str, Any], operation_id: str | None = None
    ) -> Any:
        """Do the same with arguments as they travel."""
        if operation.writes and operation_id is None:
            operation_id = uuid4().hex
        attempts = Attempts(self)
        while True:
            connection = await attempts.next()
            try:
                return await self.call_once(connection, operation, written, operation_id)
            except Disconnected:
                logger.debug(
                    "calling %s again: the connection broke",
                    operation.name,
                    extra={"event": "call_repeated"},
                )

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
            return self.read(operation, value)
        raise self.error(operation, kind, value)

    def read(self, operation: Operation, value: Any) -> Any:
        """Return an answer, or an item of a stream."""
        try:
            return WIRE.reader(operation.result)(value)
        except Exception as error:
            raise self._unreadable(operation) from error

    def error(self, operation: Operation, kind: int, value: Any) -> Exception:
        """Return the error that an answer stands for. `Disconnected` means: try again."""
        if kind < 0:
            return Disconnected("the connection broke")
        if kind != ERROR:
            return self._unreadable(operation)
        try:
            error = read_error(value)
        except Exception:
            return self._unreadable(operation)
        if isinstance(error, StoreClosed | StoreLost):
            return Disconnected(str(error))  # another process may take over
        return error

    def _unreadable(self, operation: Operation) -> RuntimeError:
        return RuntimeError(
            f"{self.target} answered {operation.name} with something that this client cannot read; "
            "check that both have the same version of Keyrun"
        )


class Attempts:
    """The attempts of one call to find an owner. A call waits `call_timeout` seconds for an owner,
    in all attempts together. What an owner does with a call that it has received has no limit."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._left = transport.call_timeout
        self._last: Calls | None = None
        self._began = 0.0
        self._delay = RECONNECT

    async def next(self) -> Calls:
        """Return the connection for the next attempt. Raises `NoOwner`."""
        transport, last = self._transport, self._last
        now = trio.current_time()
        if last is not None and now - self._began >= STABLE:
            self._left, self._delay = transport.call_timeout, RECONNECT
        if last is not None and last is transport.connection:
            # The owner closes, and the next one is not there at once.
            if self._left <= 0:
                raise transport.no_owner("the runtime at this address was closed")
            with trio.move_on_after(self._delay):
                await transport.changed()
            self._delay = min(2 * self._delay, RECONNECT_MOST)
        self._last = await transport.connected(self._left - (trio.current_time() - now))
        self._began = trio.current_time()
        self._left -= self._began - now
        return self._last
