"""The owner's side of a channel: performs the calls of one Python client, many at once."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import anyio

from keyrun.control.frames import (
    ANSWER,
    BEGUN,
    END,
    ERROR,
    HEARTBEAT,
    ITEM,
    MEDIA_TYPE,
    WINDOW,
    BrokenFrame,
    Frames,
    pack,
)
from keyrun.control.operation import Operation
from keyrun.control.performer import Performer
from keyrun.control.problems import write_error
from keyrun.control.redacting import Redacting
from keyrun.control.roles import Caller
from keyrun.control.shapes import Misplaced
from keyrun.control.table import CALLS
from keyrun.runtime.errors import Backpressure
from keyrun.runtime.host.tracing import caller_trace, trace_fields
from keyrun.runtime.logger import logger

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MOST_UNSENT = 4 * 1024 * 1024
"""Bytes of answers that wait to be sent. While there are more, no call begins and no answer is
written."""
MOST_CALLS = 20_000
"""Calls of one client that may be under way."""

_STATISTICS = CALLS["statistics"]


class ClientCall:
    """A call that is under way."""

    __slots__ = ("_taken", "_under_way", "scope")

    def __init__(self) -> None:
        self.scope = anyio.CancelScope()
        self._under_way = 0
        self._taken: anyio.Event | None = None

    def take(self, number: int) -> None:
        """Record that the client has taken answers of the stream."""
        self._under_way -= number
        if self._taken is not None:
            self._taken.set()

    async def sent(self) -> None:
        """Record that an answer of the stream was sent, and wait while too many are under way."""
        self._under_way += 1
        while self._under_way >= WINDOW:
            self._taken = anyio.Event()
            await self._taken.wait()


class Channel:
    """One channel."""

    def __init__(
        self,
        owner: Performer,
        caller: Caller,
        send: Send,
        redacting: Redacting | None = None,
    ) -> None:
        self._owner = owner
        self.caller = caller
        """Who calls. It changes if the role of the client changes."""
        self._redacting = redacting
        self._send = send
        self._calls: dict[int, ClientCall] = {}
        self._answers: deque[bytes] = deque()
        self._unsent = 0
        self._news = anyio.Event()
        self._sent = anyio.Event()

    async def serve(self, receive: Receive) -> None:
        """Perform the calls of the client until it leaves."""
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        await self._report()
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_answers)
                tasks.start_soon(self._keep_reporting)
                await self._receive(tasks, receive)
                tasks.cancel_scope.cancel()
        except* BrokenFrame as error:
            logger.warning(
                "a client of %s sent %s",
                self.caller.name,
                error.exceptions[0],
                extra={"event": "client_failed"},
            )
        except* OSError:
            # The client is gone: its other calls were cancelled.
            pass

    async def _receive(self, tasks: Any, receive: Receive) -> None:
        frames = Frames()
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            for frame in frames.feed(message.get("body", b"")):
                self._begin(tasks, frame)
            more = message.get("more_body", False)
            await self._room()

    def _begin(self, tasks: Any, frame: list[Any]) -> None:
        match frame:
            case [int(call)]:
                if call in self._calls:
                    self._calls[call].scope.cancel()
            case [int(call), int(number)]:
                if call in self._calls:
                    self._calls[call].take(number)
            case [int(call), str(name), str() | None as operation_id, dict(arguments), *more]:
                if call in self._calls:
                    raise BrokenFrame(f"the call {call} twice")
                match more:
                    case []:
                        trace = None
                    case [dict(fields)]:
                        trace = trace_fields(fields)
                    case _:
                        raise BrokenFrame("a frame of no known form")
                self._start(tasks, call, name, operation_id, arguments, trace)
            case _:
                raise BrokenFrame("a frame of no known form")

    def _start(
        self,
        tasks: Any,
        call: int,
        name: str,
        operation_id: str | None,
        arguments: dict[str, Any],
        trace: dict[str, str] | None,
    ) -> None:
        try:
            operation = CALLS.get(name)
            if operation is None:
                raise Misplaced(f"the owner has no operation {name!r}; is the client newer?")
            if len(self._calls) >= MOST_CALLS:
                raise Backpressure(
                    f"this client has {MOST_CALLS:,} calls under way, which is the most: wait for "
                    "some of them"
                )
            read = operation.read_wire(arguments)
        except (Misplaced, Backpressure) as error:
            self._fail(call, error)
            return
        perform = self._stream if operation.streams else self._perform
        self._calls[call] = ClientCall()
        tasks.start_soon(perform, call, operation, read, operation_id, trace)

    async def _perform(
        self,
        call: int,
        operation: Operation,
        arguments: dict[str, Any],
        operation_id: str | None,
        trace: dict[str, str] | None,
    ) -> None:
        caller_trace.set(trace)
        with self._calls[call].scope:
            try:
                await self._room()
                answer = await self._owner.perform(operation, arguments, self.caller, operation_id)
                await self._room()
                self._put(pack(call, ANSWER, self._written(operation, answer)))
            except Exception as error:
                self._fail(call, error)
        del self._calls[call]

    async def _stream(
        self,
        call: int,
        operation: Operation,
        arguments: dict[str, Any],
        operation_id: str | None,
        trace: dict[str, str] | None,
    ) -> None:
        under_way = self._calls[call]
        with under_way.scope:
            try:
                stream = await self._owner.stream(operation, arguments, self.caller)
                async with aclosing(stream):
                    self._put(pack(call, BEGUN))
                    async for item in stream:
                        self._put(pack(call, ITEM, self._written(operation, item)))
                        await under_way.sent()
                        await self._room()
                self._put(pack(call, END))
            except Exception as error:
                self._fail(call, error)
        del self._calls[call]

    def _written(self, operation: Operation, answer: Any) -> Any:
        if self._redacting is not None:
            answer = self._redacting.answer(operation, answer)
        return operation.write_wire(answer)

    def _fail(self, call: int, error: Exception) -> None:
        self._put(pack(call, ERROR, write_error(error)))

    def _put(self, frame: bytes) -> None:
        self._answers.append(frame)
        self._unsent += len(frame)
        self._news.set()

    async def _room(self) -> None:
        """Wait while the client does not read its answers."""
        while self._unsent > MOST_UNSENT:
            await self._sent.wait()

    async def _send_answers(self) -> None:
        """Send answers as they come. What was answered in one pass of the loop goes together."""
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            body = b"".join(self._answers)
            self._answers.clear()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            self._unsent -= len(body)
            sent, self._sent = self._sent, anyio.Event()
            sent.set()

    async def _keep_reporting(self) -> None:
        """Report from time to time, so that the client knows that the connection is alive."""
        while True:
            await anyio.sleep(HEARTBEAT)
            if not self._unsent:
                await self._report()

    async def _report(self) -> None:
        """Send the statistics of the runtime."""
        try:
            found = await self._owner.perform(_STATISTICS, {}, self.caller)
            self._put(pack(0, ITEM, _STATISTICS.write_wire(found)))
        except Exception:
            # The caller may not read them, or the runtime closes.
            self._put(pack())
