"""Child processes: one program, some bytes in, a bounded answer out, and nothing left behind.

A child leads a process group of its own, and the whole group is killed when the call ends, however
it ends: an answer, a timeout, a cancel, an answer that is too large. The programs that are run here
also watch their standard input, which stays open for as long as Keyrun lives, so that they end when
Keyrun is killed.
"""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE

import attrs
import trio

from keyrun.errors import OutputTooLarge

TAIL = 4096
"""Bytes that are kept of what a child says on its standard error, from the end."""
GRACE = 1.0
"""Seconds for reading what a child has left, once it has ended."""
_CHUNK = 65_536


@attrs.frozen(kw_only=True)
class Answer:
    """What a child left: what it wrote, the end of what it said, and how it exited."""

    output: bytes
    said: str
    exit_code: int


async def ask(
    command: Sequence[str],
    question: bytes,
    *,
    max_output: int,
    env: dict[str, str],
    cwd: Path | None = None,
) -> Answer:
    """Run `command`, write `question` to it, and return what it wrote. Raises `OutputTooLarge` if
    that is more than `max_output` bytes. It has the time of the cancel scope around."""
    with trio.CancelScope(shield=True):
        # Else a cancel in between could leave a child that nobody knows of.
        process = await trio.lowlevel.open_process(
            list(command),
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            start_new_session=True,
            env=env,
            cwd=cwd,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output = bytearray()
    tail = bytearray()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_tell, process.stdin, question)
            nursery.start_soon(_overhear, process.stderr, tail)
            nursery.start_soon(_listen, process, output, max_output)
            await process.wait()
            _kill(process)
            # What has left the group may hold the other ends of the pipes for ever.
            nursery.cancel_scope.deadline = trio.current_time() + GRACE
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                _kill(process)
                await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                await stream.aclose()
    if len(output) > max_output:
        raise OutputTooLarge(
            f"the code wrote more than {max_output:,} bytes, which is the most it may"
        )
    said = bytes(tail).decode(errors="replace").strip()
    return Answer(output=bytes(output), said=said, exit_code=process.returncode or 0)


async def _tell(stream: trio.abc.SendStream, question: bytes) -> None:
    # One that has ended, or does not want to know, says why on its own.
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_all(question)


async def _listen(process: trio.Process, output: bytearray, most: int) -> None:
    assert process.stdout is not None
    while len(output) <= most and (chunk := await process.stdout.receive_some(_CHUNK)):
        output += chunk
    if len(output) > most:
        _kill(process)


async def _overhear(stream: trio.abc.ReceiveStream, tail: bytearray) -> None:
    while chunk := await stream.receive_some(_CHUNK):
        tail += chunk
        del tail[:-TAIL]


def _kill(process: trio.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
