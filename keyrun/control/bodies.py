"""Bodies of requests: read within limits of size and time."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread

from keyrun.control.problems import Refused
from keyrun.control.request import Request

T = TypeVar("T")

MAX_BODY = 32 * 1024 * 1024
"""Bytes that a body may have, unless the application gets another limit."""
BODY_SECONDS = 30.0
"""Seconds that a body may take, and one more for each `LEAST_RATE` bytes. Also the seconds that a
client may pause within a stream of lines."""
LEAST_RATE = 64 * 1024
LARGE_BODY = 256 * 1024
"""Bytes of a body that is parsed in a thread, because parsing it would hold the event loop."""


async def parsed(body: bytes, read: Callable[[bytes], T]) -> T:
    """Return what `read` returns for a body, and let other tasks run if the body is large."""
    return read(body) if len(body) < LARGE_BODY else await anyio.to_thread.run_sync(read, body)


def too_large(max_body: int) -> Refused:
    """Return the refusal of a body that is too large."""
    return Refused(413, "BodyTooLarge", f"a body may have {max_body:,} bytes")


def _gone() -> Refused:
    return Refused(400, "Disconnected", "the client has closed the connection")


def _too_slow() -> Refused:
    return Refused(408, "BodyTooSlow", "the body of the request took too long")


async def read_body(request: Request, max_body: int, seconds: float) -> bytes:
    """Return the body of a request."""
    announced = request.headers.get(b"content-length")
    if announced is not None and (not announced.isdigit() or int(announced[:20]) > max_body):
        raise too_large(max_body)
    with anyio.move_on_after(seconds) as scope:
        # Not a list of parts: a client may send one byte at a time.
        body = bytearray()
        while True:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise _gone()
            part: bytes = message.get("body", b"")
            if len(body) + len(part) > max_body:
                raise too_large(max_body)
            if not message.get("more_body"):
                return bytes(body + part) if body else part
            body += part
            scope.deadline += len(part) / LEAST_RATE
    raise _too_slow()


async def read_lines(request: Request, max_line: int, seconds: float) -> AsyncIterator[list[bytes]]:
    """Yield the lines of a body as they arrive, without empty lines."""
    begun = bytearray()
    more = True
    while more:
        message = None
        with anyio.move_on_after(seconds):
            message = await request.receive()
        if message is None:
            raise _too_slow()
        if message["type"] == "http.disconnect":
            raise _gone()
        more = message.get("more_body", False)
        *ended, rest = message.get("body", b"").split(b"\n")
        if ended:
            ended[0] = bytes(begun + ended[0])
            begun.clear()
        begun += rest
        if len(begun) > max_line:
            raise too_large(max_line)
        if not more:
            ended.append(bytes(begun))
        lines = [line for line in ended if line and not line.isspace()]
        if lines:
            yield lines


async def until_gone(request: Request, performed: Awaitable[Any]) -> Any:
    """Return what an operation answers, and cancel it if the client closes the connection."""
    failure: BaseException = _gone()
    answer, done = None, False
    async with anyio.create_task_group() as tasks:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            tasks.cancel_scope.cancel()

        tasks.start_soon(watch)
        try:
            answer = await performed
            done = True
        except Exception as error:
            failure = error
        tasks.cancel_scope.cancel()
    if not done:
        raise failure
    return answer
