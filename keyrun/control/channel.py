"""The owner's side of a channel: performs the calls of one Python client, many at once."""

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any

import anyio

from keyrun.control.frames import (
    ALIVE,
    ANSWER,
    BEGUN,
    END,
    ERROR,
    HEARTBEAT,
    ITEM,
    MEDIA_TYPE,
    pack,
    unpacker,
)
from keyrun.control.operation import Operation
from keyrun.control.performer import Performer
from keyrun.control.problems import write_error
from keyrun.control.roles import Caller
from keyrun.control.shapes import Misplaced
from keyrun.control.table import CALLS

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

MOST_WAITING = 4 * 1024 * 1024
"""Bytes of answers that wait to be sent. Streams wait while there are more."""


class Channel:
    """One channel."""

    def __init__(self, owner: Performer, caller: Caller, send: Send) -> None:
        self._owner = owner
        self._caller = caller
        self._send = send
        self._calls: dict[int, anyio.CancelScope] = {}
        self._answers: deque[bytes] = deque()
        self._waiting = 0
        self._news = anyio.Event()
        self._sent = anyio.Event()

    async def serve(self, receive: Receive) -> None:
        """Perform the calls of the client until it leaves."""
        headers = [(b"content-type", MEDIA_TYPE.encode()), (b"cache-control", b"no-store")]
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self._put(ALIVE)
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._send_answers)
                frames = unpacker()
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    frames.feed(message.get("body", b""))
                    for frame in frames:
                        self._begin(tasks, frame)
                    more = message.get("more_body", False)
                tasks.cancel_scope.cancel()
        except* (ValueError, OSError):
            # The client sent no frames, or is gone: its other calls were cancelled.
            pass

    def _begin(self, tasks: Any, frame: list[Any]) -> None:
        if len(frame) == 1:
            scope = self._calls.get(frame[0])
            if scope is not None:
                scope.cancel()
            return
        call, name, operation_id, arguments = frame
        operation = CALLS.get(name)
        if operation is None:
            self._fail(call, Misplaced(f"there is no operation {name!r}; is the client newer?"))
            return
        try:
            read = operation.read_wire(arguments)
        except Misplaced as error:
            self._fail(call, error)
            return
        perform = self._stream if operation.streams else self._perform
        self._calls[call] = anyio.CancelScope()
        tasks.start_soon(perform, call, operation, read, operation_id)

    async def _perform(
        self, call: int, operation: Operation, arguments: dict[str, Any], operation_id: str | None
    ) -> None:
        with self._calls[call]:
            try:
                answer = await self._owner.perform(operation, arguments, self._caller, operation_id)
                self._put(pack(call, ANSWER, operation.write_wire(answer)))
            except Exception as error:
                self._fail(call, error)
        del self._calls[call]

    async def _stream(
        self, call: int, operation: Operation, arguments: dict[str, Any], operation_id: str | None
    ) -> None:
        with self._calls[call]:
            try:
                stream = await self._owner.stream(operation, arguments, self._caller)
                self._put(pack(call, BEGUN))
                async with aclosing(stream):
                    async for item in stream:
                        self._put(pack(call, ITEM, operation.write_wire(item)))
                        while self._waiting > MOST_WAITING:
                            await self._sent.wait()
                self._put(pack(call, END))
            except Exception as error:
                self._fail(call, error)
        del self._calls[call]

    def _fail(self, call: int, error: Exception) -> None:
        self._put(pack(call, ERROR, write_error(error)))

    def _put(self, frame: bytes) -> None:
        self._answers.append(frame)
        self._waiting += len(frame)
        self._news.set()

    async def _send_answers(self) -> None:
        """Send answers as they come. What was answered in one pass of the loop goes together."""
        while True:
            with anyio.move_on_after(HEARTBEAT):
                await self._news.wait()
            if not self._answers:
                self._put(ALIVE)
            self._news = anyio.Event()
            body = b"".join(self._answers)
            self._answers.clear()
            self._waiting = 0
            sent, self._sent = self._sent, anyio.Event()
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            sent.set()
