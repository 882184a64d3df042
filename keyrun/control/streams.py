"""Streams of the HTTP API: answers of server-sent events."""

from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import anyio

from keyrun.control.event_ring import Follower
from keyrun.control.guard import SECURITY_HEADERS
from keyrun.control.json_text import dump
from keyrun.control.operation import Operation
from keyrun.control.problems import problem
from keyrun.control.redacting import Redacting
from keyrun.control.request import Request, Send

HEARTBEAT = 15.0
"""Seconds without an event after which a comment is sent, so that no proxy closes the stream."""
PATIENCE = 1.0
"""Seconds to wait for the first answer, or an error, before the answer to the request begins."""

STREAM_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
    *SECURITY_HEADERS,
]


def error_event(error: Exception) -> bytes:
    """Return the last event of a stream that fails."""
    return b"event: error\ndata: %s\n\n" % dump(problem(error))


async def _watch(request: Request, scope: anyio.CancelScope) -> None:
    """Cancel a scope when the client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _begin(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": STREAM_HEADERS})


async def _part(send: Send, text: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": text, "more_body": more})


async def send_events(follower: Follower, request: Request, send: Send, heartbeat: float) -> None:
    """Send events until the client or the runtime closes."""
    try:
        await _begin(send)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_watch, request, tasks.cancel_scope)
            while (text := await follower.next(heartbeat)) is not None:
                await _part(send, text or b":\n\n")
            await _part(send, b"event: end\ndata: {}\n\n", more=False)
            tasks.cancel_scope.cancel()
    finally:
        follower.close()


async def send_items(
    items: AsyncIterator[Any],
    operation: Operation,
    request: Request,
    send: Send,
    heartbeat: float,
    redacting: Redacting | None,
) -> None:
    """Send the answers of an operation that streams, one event each. If it fails before its first
    answer, raise the error."""
    failure: Exception | None = None
    begun = False
    give, take = anyio.create_memory_object_stream[Any](16)

    async def pump() -> None:
        nonlocal failure
        async with give:
            try:
                async for item in items:
                    await give.send(item)
            except Exception as error:
                failure = error

    async with anyio.create_task_group() as tasks, take:
        tasks.start_soon(pump)
        number, wait = 0, PATIENCE
        with suppress(anyio.EndOfStream):
            while True:
                text = b":\n\n"
                with anyio.move_on_after(wait):
                    item = await take.receive()
                    if redacting is not None:
                        item = redacting.answer(operation, item)
                    data = dump(operation.write_json(item))
                    text = b"id: %d\ndata: %s\n\n" % (number, data)
                    number += 1
                if not begun:
                    begun, wait = True, heartbeat
                    await _begin(send)
                    tasks.start_soon(_watch, request, tasks.cancel_scope)
                await _part(send, text)
        if failure is None or begun:
            if not begun:
                await _begin(send)
            last = b"event: end\ndata: {}\n\n"
            if failure is not None:
                last = error_event(failure)
            await _part(send, last, more=False)
        tasks.cancel_scope.cancel()
    if failure is not None and not begun:
        raise failure
