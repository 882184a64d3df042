"""Child processes: run one program, send it bytes, and return a bounded answer.

A child leads its own process group. The whole group is killed when the call ends, for any reason:
an answer, a timeout, a cancel, an answer that is too large. The programs that run here also watch
their standard input, which stays open for as long as Keyrun lives. So they end when Keyrun is
killed.
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
"""Bytes from the end of a child's standard error that are kept."""
GRACE = 1.0
"""Seconds to read the remaining output of a child that has ended."""
_CHUNK = 65_536


@attrs.frozen(kw_only=True)
class ProcessOutput:
    """The standard output of a child, the end of its standard error, and its exit code."""

    output: bytes
    errors: str
    exit_code: int


async def ask(
    command: Sequence[str],
    question: bytes,
    *,
    max_output: int,
    env: dict[str, str],
    cwd: Path | None = None,
) -> ProcessOutput:
    """Run `command`, write `question` to its standard input, and return its answer. Raise
    `OutputTooLarge` if it writes more than `max_output` bytes. The cancel scope around the call
    limits its time."""
    with trio.CancelScope(shield=True):
        # A cancel in here would leave a child that no code knows.
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
            nursery.start_soon(_write, process.stdin, question)
            nursery.start_soon(_read_tail, process.stderr, tail)
            nursery.start_soon(_read, process, output, max_output)
            await process.wait()
            _kill(process)
            # A process that has left the group may hold the other ends of the pipes forever.
            nursery.cancel_scope.deadline = trio.current_time() + GRACE
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                _kill(process)
                await process.wait()
            for stream in (process.stdin, process.stdout, process.stderr):
                await stream.aclose()
    if len(output) > max_output:
        raise OutputTooLarge(f"the code wrote more than {max_output:,} bytes, its limit")
    errors = bytes(tail).decode(errors="replace").strip()
    return ProcessOutput(output=bytes(output), errors=errors, exit_code=process.returncode or 0)


async def _write(stream: trio.abc.SendStream, question: bytes) -> None:
    # If the child has ended, or closed its input, its exit code and its output say why.
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
        await stream.send_all(question)


async def _read(process: trio.Process, output: bytearray, most: int) -> None:
    assert process.stdout is not None
    while len(output) <= most and (chunk := await process.stdout.receive_some(_CHUNK)):
        output += chunk
    if len(output) > most:
        _kill(process)


async def _read_tail(stream: trio.abc.ReceiveStream, tail: bytearray) -> None:
    while chunk := await stream.receive_some(_CHUNK):
        tail += chunk
        del tail[:-TAIL]


def _kill(process: trio.Process) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
