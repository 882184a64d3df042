"""Committers: where the commits of an LMDB store run.

"inline" commits in the thread of the loop. This is the shortest way to the disk, and the loop waits
for one sync. "process" sends whole groups to a child process, so the loop never waits for the disk,
and a second core does the B-tree work. A thread would be slower than both: the LMDB binding
releases the interpreter lock around every put, and beside a busy loop it waits for a switch
interval each time.
"""

import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import msgpack
import trio

from keyrun.storage import writer
from keyrun.storage.batch import Tables
from keyrun.storage.errors import StoreError, StoreFull


class Committer(Protocol):
    """Makes tables durable, one set at a time."""

    suspends: bool
    """Whether other tasks run, and may read, while a commit is under way."""

    async def commit(self, tables: Tables) -> None:
        """Apply all of `tables` or nothing. Return when they would survive a power loss."""

    async def close(self) -> None:
        """Release all resources. No commit is under way."""

    def forked(self) -> None:
        """Release the resources of the parent in a forked child."""


def failure(kind: str, sentence: str) -> StoreError:
    """Return the error for an answer of `writer.explain`."""
    return StoreFull(sentence) if kind == writer.FULL else StoreError(sentence)


class InlineCommitter:
    """Commits in the thread that runs the loop."""

    suspends = False

    def __init__(self, target: writer.Writer) -> None:
        self._writer = target

    async def commit(self, tables: Tables) -> None:
        try:
            self._writer.apply(tables)
        except Exception as error:
            raise failure(*writer.explain(error, self._writer.environment.path())) from error

    async def close(self) -> None:
        """Do nothing: it has no resources of its own."""

    def forked(self) -> None:
        """Do nothing: it has no resources of its own."""


class ProcessCommitter:
    """Commits in a child process, which `start` starts."""

    suspends = True

    def __init__(self, process: trio.Process, connection: socket.socket) -> None:
        self.process = process
        self._connection = connection
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(connection))
        self._received = bytearray()

    @classmethod
    async def start(cls, path: Path, *, map_size: int, lock: int) -> "ProcessCommitter":
        """Start the child and wait until it has the store open. It shares the owner lock through
        the descriptor `lock`."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                arguments = [str(path), str(theirs.fileno()), str(map_size)]
                process = await trio.lowlevel.open_process(
                    [sys.executable, "-P", writer.__file__, *arguments],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(), lock),
                )
        except BaseException:
            ours.close()
            raise
        self = cls(process, ours)
        try:
            await self._answer()
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.close()
            raise
        return self

    async def commit(self, tables: Tables) -> None:
        # A child that has ended may have sent the reason before.
        with suppress(trio.BrokenResourceError):
            await self._stream.send_all(writer.frame(tables))
        await self._answer()

    async def close(self) -> None:
        await self._stream.aclose()
        await self.process.wait()

    def forked(self) -> None:
        # The child ends when the last copy of this socket is closed, so a fork must not keep one.
        self._connection.close()

    async def _answer(self) -> None:
        header = await self._exactly(writer.HEADER.size)
        body = await self._exactly(writer.HEADER.unpack(header)[0])
        answer = msgpack.unpackb(body)
        if answer is not None:
            raise failure(*answer)

    async def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            try:
                part = await self._stream.receive_some()
            except trio.BrokenResourceError:
                part = b""
            if not part:
                code = await self.process.wait()
                raise StoreError(
                    f"the committer process {self.process.pid} ended with code {code}; commits "
                    "that it had not acknowledged may or may not be in the store; open the store "
                    "again to continue"
                )
            self._received += part
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken
