"""The wire: one connection to PostgreSQL, for the Trio loop and for threads.

libpq never blocks here. What it has to wait for is a generator that yields, and the caller decides
how to wait: a task of the loop with Trio, a thread with `poll`.

The rules:

1. A connection whose statement was cut off, by an error of the network, a cancellation or a
   timeout, is closed. Nobody knows what it would answer next.
2. No setting and no prepared statement stays in a session, because a pooler shares sessions.
3. On a virtual clock the loop polls, so that virtual time stands still while PostgreSQL works.
"""

import os
import select
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from enum import Enum
from math import inf
from typing import TypeVar

import psycopg
import trio
from psycopg import pq

from keyrun.storage.postgres.address import Address

T = TypeVar("T")

CONNECT_TIMEOUT = 10.0

Parameters = Sequence["bytes | None"]


class Readiness(Enum):
    """What a connection waits for."""

    READABLE = select.POLLIN
    WRITABLE = select.POLLOUT


Steps = Generator[tuple[int, Readiness], None, T]
"""Yields the descriptor to wait for, and returns the result."""


class ConnectionLost(Exception):
    """Raised if the connection is lost. A statement that was under way may have been applied, or
    may still be."""


class StatementFailed(Exception):
    """Raised if PostgreSQL answers with an error. The statement has changed nothing."""

    def __init__(self, state: str, message: str) -> None:
        super().__init__(f"{message} (SQLSTATE {state})")
        self.state = state
        """The SQLSTATE."""

    @property
    def is_transient(self) -> bool:
        """Whether the same statement may succeed later: the server shuts down, is a standby, has no
        connection left, or cancelled the statement."""
        return self.state[:2] in ("08", "40", "57") or self.state in ("25006", "53300", "55P03")


class Stopped(Exception):
    """Raised in a thread that was asked to stop while it waited."""


class Result:
    """The rows of a statement, as text or as binary values."""

    __slots__ = ("_result",)

    def __init__(self, result: "pq.abc.PGresult") -> None:
        self._result = result

    def __len__(self) -> int:
        return self._result.ntuples

    def row(self, number: int = 0) -> list[bytes | None]:
        """Return the columns of a row."""
        return [self._result.get_value(number, at) for at in range(self._result.nfields)]

    def texts(self, number: int = 0) -> list[str | None]:
        """Return the columns of a row as text."""
        return [None if value is None else value.decode() for value in self.row(number)]


class Waker:
    """Ends the wait of a thread from another thread."""

    def __init__(self) -> None:
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        os.set_blocking(self._reader, False)
        self.is_stopped = False

    def wake(self) -> None:
        """End the wait that is under way, or the next one."""
        with suppress(BlockingIOError, OSError):
            os.write(self._writer, b"\0")

    def stop(self) -> None:
        """End all waits, now and later."""
        self.is_stopped = True
        self.wake()

    def close(self) -> None:
        """Close both descriptors. No thread waits any more."""
        os.close(self._reader)
        os.close(self._writer)

    def sleep(self, seconds: float, wire: "Wire | None" = None) -> bool:
        """Wait for `wake`, and for something to read from an idle connection. Return whether there
        is something to read. Raises `Stopped`."""
        return self.wait(wire.fileno() if wire else None, Readiness.READABLE, seconds)

    def wait(self, descriptor: int | None, want: Readiness, seconds: float) -> bool:
        """Wait for a descriptor. Return whether it is ready. Raises `Stopped`."""
        if self.is_stopped:
            raise Stopped
        poll = select.poll()
        poll.register(self._reader, select.POLLIN)
        if descriptor is not None:
            poll.register(descriptor, want.value)
        ready = dict(poll.poll(None if seconds == inf else max(0, int(seconds * 1000) + 1)))
        if self._reader in ready:
            with suppress(BlockingIOError):
                os.read(self._reader, 4096)
        if self.is_stopped:
            raise Stopped
        return descriptor in ready


class Wire:
    """A connection. Use it in one task or thread at a time."""

    def __init__(self, connection: "pq.abc.PGconn", address: Address) -> None:
        connection.nonblocking = 1
        self._connection = connection
        self._address = address
        self.notices: list[str] = []
        """The messages of the server since the last statement began."""
        connection.notice_handler = self._notice
        self.backend = connection.backend_pid
        """The process of the server, as libpq knows it. A pooler makes this number up."""
        self.version = connection.server_version
        """The version of the server, such as 150018."""

    @classmethod
    async def connect(cls, address: Address) -> "Wire":
        """Connect in the loop. Raises `ConnectionLost`."""
        if address.is_local:
            conninfo = address.conninfo()
        else:
            conninfo = await trio.to_thread.run_sync(address.conninfo, abandon_on_cancel=True)
        steps = _connecting(conninfo)
        try:
            with trio.fail_after(CONNECT_TIMEOUT):
                return cls(await _drive(steps), address)
        except trio.TooSlowError:
            raise ConnectionLost(f"no answer from {address} for {CONNECT_TIMEOUT:g} s") from None
        finally:
            steps.close()

    @classmethod
    def connect_in_thread(cls, address: Address, waker: Waker) -> "Wire":
        """Connect in a thread. Raises `ConnectionLost`, or `Stopped`."""
        steps = _connecting(address.conninfo())
        try:
            return cls(_drive_in_thread(steps, waker, CONNECT_TIMEOUT), address)
        finally:
            steps.close()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._connection.socket

    @property
    def is_open(self) -> bool:
        """Whether the connection may be used."""
        return self._connection.status == pq.ConnStatus.OK

    def close(self) -> None:
        """Close the connection."""
        self._connection.finish()

    def forked(self) -> None:
        """Close the socket in a forked child, without a word to the server."""
        with suppress(psycopg.Error, OSError):
            os.close(self._connection.socket)

    def notice_end(self) -> None:
        """Raise `ConnectionLost` if the server has closed the idle connection."""
        try:
            self._connection.consume_input()
        except psycopg.Error as error:
            raise self._lost(error) from None
        if not self.is_open:
            raise self._lost()

    def send(self, statement: bytes, parameters: Parameters = (), *, binary: bool = False) -> None:
        """Begin a statement. Parameters are binary if `binary` says so, and otherwise text; results
        are text. Raises `ConnectionLost`."""
        self.notices = []
        formats = [int(binary)] * len(parameters) if parameters else None
        try:
            self._connection.send_query_params(statement, parameters, None, formats)
            self._connection.flush()
        except psycopg.Error as error:
            raise self._lost(error) from None

    async def answer(self, timeout: float = inf) -> Result:
        """Return the result of the statement that `send` began. Raises `ConnectionLost` or
        `StatementFailed`."""
        try:
            with trio.fail_after(timeout):
                return _result(await _drive(self._answering()))
        except trio.TooSlowError:
            raise self._lost(f"no answer for {timeout:g} s") from None
        except psycopg.Error as error:
            raise self._lost(error) from None
        except trio.Cancelled:
            self.close()
            raise

    async def run(self, statement: bytes, *parameters: object, timeout: float = inf) -> Result:
        """Run a statement in the loop. Raises `ConnectionLost` or `StatementFailed`."""
        self.send(statement, _texts(parameters))
        return await self.answer(timeout)

    async def readable(self) -> None:
        """Wait until the server has sent something, also on a virtual clock in its time. The wait
        may be cancelled, and the statement continues."""
        await trio.lowlevel.wait_readable(self.fileno())

    def has_answer(self) -> bool:
        """Return whether `answer` would not wait for the server. Raises `ConnectionLost`."""
        self.notice_end()
        return not self._connection.is_busy()

    def run_in_thread(
        self, waker: Waker, statement: bytes, *parameters: object, timeout: float = inf
    ) -> Result:
        """Run a statement in a thread. Raises `ConnectionLost`, `StatementFailed` or `Stopped`."""
        self.send(statement, _texts(parameters))
        try:
            return _result(_drive_in_thread(self._answering(), waker, timeout))
        except (ConnectionLost, psycopg.Error) as error:
            raise self._lost(error) from None
        except Stopped:
            self.close()
            raise

    async def copy(self, statement: bytes, take: Callable[[memoryview], None]) -> None:
        """Run a COPY to the client, and call `take` with each of its messages. The loop runs after
        each part that the socket had. Raises `ConnectionLost` or `StatementFailed`."""
        connection = self._connection
        self.send(statement)
        try:
            result = await _drive(self._answering())
            if result.status != pq.ExecStatus.COPY_OUT:
                _result(result)
                raise AssertionError("COPY answered with rows")
            while True:
                size, message = connection.get_copy_data(1)
                if size > 0:
                    take(message)
                elif size == 0:
                    await _wait(connection.socket, Readiness.READABLE)
                    connection.consume_input()
                else:
                    break
            _result(await _drive(self._answering()))
        except psycopg.Error as error:
            raise self._lost(error) from None
        except BaseException as error:
            if not isinstance(error, StatementFailed):
                self.close()
            raise

    def _answering(self) -> "Steps[pq.abc.PGresult]":
        """Send what is left to send, and return the first result, or the first error. The result of
        a COPY to the client is returned at its beginning."""
        connection = self._connection
        while connection.flush():
            yield connection.socket, Readiness.WRITABLE
        first = None
        while True:
            while connection.is_busy():
                yield connection.socket, Readiness.READABLE
                connection.consume_input()
            result = connection.get_result()
            if result is None:
                break
            if first is None or result.status == pq.ExecStatus.FATAL_ERROR:
                first = result
            if result.status == pq.ExecStatus.COPY_OUT:
                break
        if first is None or not self.is_open:
            raise psycopg.OperationalError(
                first.get_error_message() if first else connection.get_error_message()
            )
        return first

    def _lost(self, error: object = None) -> ConnectionLost:
        text = str(error if error is not None else self._connection.get_error_message())
        self.close()
        return ConnectionLost(f"the connection to {self._address} is lost: {_one_line(text)}")

    def _notice(self, result: "pq.abc.PGresult") -> None:
        self.notices.append(_one_line(result.get_error_message()))


def _connecting(conninfo: bytes) -> "Steps[pq.abc.PGconn]":
    connection = pq.PGconn.connect_start(conninfo)
    try:
        while True:
            if connection.status == pq.ConnStatus.BAD:
                break
            state = connection.connect_poll()
            if state == pq.PollingStatus.OK:
                return connection
            if state == pq.PollingStatus.FAILED:
                break
            reads = state == pq.PollingStatus.READING
            yield connection.socket, Readiness.READABLE if reads else Readiness.WRITABLE
        text = _one_line(connection.get_error_message())
        connection.finish()
        raise ConnectionLost(text)
    except GeneratorExit:
        connection.finish()
        raise


async def _drive(steps: Steps[T]) -> T:
    while True:
        try:
            descriptor, want = next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        await _wait(descriptor, want)


async def _wait(descriptor: int, want: Readiness) -> None:
    if hasattr(trio.lowlevel.current_clock(), "autojump_threshold"):
        await _wait_on_virtual_time(descriptor, want)
    elif want is Readiness.READABLE:
        await trio.lowlevel.wait_readable(descriptor)
    else:
        await trio.lowlevel.wait_writable(descriptor)


async def _wait_on_virtual_time(descriptor: int, want: Readiness) -> None:
    """Wait without an end of the tasks that can run: a virtual clock jumps when there is none."""
    poll = select.poll()
    poll.register(descriptor, want.value)
    while not poll.poll(0):
        await trio.lowlevel.checkpoint()


def _drive_in_thread(steps: Steps[T], waker: Waker, timeout: float) -> T:
    give_up_at = time.monotonic() + timeout
    while True:
        try:
            descriptor, want = next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        while not waker.wait(descriptor, want, give_up_at - time.monotonic()):
            if time.monotonic() > give_up_at:
                raise ConnectionLost(f"no answer for {timeout:g} s")


def _result(result: "pq.abc.PGresult") -> Result:
    if result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
        return Result(result)
    state = result.error_field(pq.DiagnosticField.SQLSTATE) or b"?????"
    message = result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY)
    text = message.decode(errors="replace") if message else result.get_error_message()
    raise StatementFailed(state.decode(), _one_line(text))


def _texts(parameters: Sequence[object]) -> list[bytes | None]:
    return [
        value if value is None or isinstance(value, bytes) else str(value).encode()
        for value in parameters
    ]


def _one_line(text: str) -> str:
    return " ".join(text.split())
