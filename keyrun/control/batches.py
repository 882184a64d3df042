"""Batches: many runs in one request, one JSON object per line, answered one line each in order.

The body may be of any length: runs are submitted as their lines arrive, and the runs that arrive
together share a commit. Answers wait in memory while the client still sends, up to a limit.
"""

from collections import deque
from typing import Any

import anyio

from keyrun.control.bodies import parsed, read_lines
from keyrun.control.guard import SECURITY_HEADERS
from keyrun.control.json_text import dump, parse
from keyrun.control.operation import Operation
from keyrun.control.performer import Performer
from keyrun.control.problems import Refused, problem
from keyrun.control.request import Request, Send
from keyrun.control.requests import NewRun
from keyrun.control.roles import Caller
from keyrun.control.shapes import Misplaced, read_json

MEDIA_TYPE = "application/x-ndjson"
MOST_UNREAD = 8 * 1024 * 1024
"""Bytes of answers that wait for a client that does not read them."""

HEADERS = [(b"content-type", MEDIA_TYPE.encode()), *SECURITY_HEADERS]


class _Unread:
    """The answers that were not sent yet."""

    def __init__(self) -> None:
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._over = False
        self._changed = anyio.Event()

    def _change(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def put(self, text: bytes) -> None:
        """Add a text, and wait while too much is unread."""
        self._parts.append(text)
        self._size += len(text)
        self._change()
        while self._size > MOST_UNREAD:
            await self._changed.wait()

    def end(self) -> None:
        """Add no more texts."""
        self._over = True
        self._change()

    async def take(self) -> bytes | None:
        """Return all texts, or None after the last one."""
        while not self._parts:
            if self._over:
                return None
            await self._changed.wait()
        text = b"".join(self._parts)
        self._parts.clear()
        self._size = 0
        self._change()
        return text


async def submit(
    performer: Performer,
    operation: Operation,
    request: Request,
    caller: Caller,
    send: Send,
    *,
    max_line: int,
    seconds: float,
    prefix: str | None,
) -> None:
    """Submit the runs of a body, and answer one line for each of them."""
    unread = _Unread()
    await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
    async with anyio.create_task_group() as tasks:

        async def write() -> None:
            while (text := await unread.take()) is not None:
                await send({"type": "http.response.body", "body": text, "more_body": True})

        tasks.start_soon(write)
        number = 0
        try:
            async for lines in read_lines(request, max_line, seconds):
                ids = None if prefix is None else f"{prefix}-{{}}"
                runs = [await _read(line, ids, at) for at, line in enumerate(lines, number)]
                number += len(lines)
                answers = await _perform(performer, operation, runs, caller)
                await unread.put(b"".join(dump(each) + b"\n" for each in answers))
        except Exception as error:
            # The rest of the body cannot be read, so this line is the last one.
            await unread.put(dump(problem(error)) + b"\n")
        unread.end()
    await send({"type": "http.response.body", "body": b""})


async def _read(line: bytes, ids: str | None, number: int) -> NewRun | dict[str, Any]:
    """Return the run of a line, or the problem of the line."""
    try:
        data = await parsed(line, parse)
        if ids is not None and type(data) is dict:
            data.setdefault("run_id", ids.format(number))
        run: NewRun = read_json("run", data, NewRun)
        return run
    except (Misplaced, Refused) as error:
        return problem(error)


async def _perform(
    performer: Performer,
    operation: Operation,
    runs: list[NewRun | dict[str, Any]],
    caller: Caller,
) -> list[Any]:
    """Submit runs, and return an answer or a problem for each of them."""
    good = [each for each in runs if isinstance(each, NewRun)]
    answers: list[Any]
    try:
        answers = operation.write_json(await performer.perform(operation, {"runs": good}, caller))
    except Exception as error:
        answers = [problem(error)] * len(good)
    left = iter(answers)
    return [next(left) if isinstance(each, NewRun) else each for each in runs]
