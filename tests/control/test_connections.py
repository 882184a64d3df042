"""Connections, attacked with raw bytes on the unix socket and on TCP."""

import errno
import os
import random
import socket
import tracemalloc
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
import trio

from keyrun.control import connections
from keyrun.control.bodies import read_body
from keyrun.control.connections import MOST, Connections, most_connections
from keyrun.control.listening import bind_tcp, bind_unix, serving
from keyrun.control.request import Request
from keyrun.control.target import SOCKET
from tests.control.sockets import listening, statuses
from tests.control.world import Exchange, greet

LIVEZ = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
H2C = LIVEZ + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: %b\r\n\r\n"
WEBSOCKET = (
    b"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize("unix", [True, False])
async def test_no_request_leads_to_http2_or_to_a_websocket(tmp_path: Path, unix: bool) -> None:
    async with listening(tmp_path) as server:
        for settings in (b"AAMAAABkAAQAAP__", b"\xff\xfe", b"A", b""):
            assert statuses(await server.send(H2C % settings, unix=unix)) == [200]
        preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0" * 9
        received = await server.send(preface, unix=unix)
        assert statuses(received)
        assert statuses(received)[0] >= 400
        assert statuses(await server.send(WEBSOCKET, unix=unix)) == [403]
        for broken in (b"Version: 99", b"Version: \xff", b"Version:"):
            upgrade = WEBSOCKET.replace(b"Version: 13", broken)
            assert statuses(await server.send(upgrade, unix=unix)) == [400]
        assert await server.is_alive()


async def test_bytes_that_are_no_request_end_their_connection_only(tmp_path: Path) -> None:
    chance = random.Random(7)
    head = b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    good = head + b"2\r\n{}\r\n0\r\n\r\n"
    async with listening(tmp_path) as server:
        for number in range(60):
            broken = bytearray(good)
            for _ in range(chance.randrange(1, 8)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            for data in (bytes(broken), chance.randbytes(300) + b"\r\n\r\n"):
                received = await server.send(data, unix=number % 2 == 0, answers=0)
                assert all(status < 500 or status == 501 for status in statuses(received))
        assert await server.is_alive()


async def test_a_request_with_two_lengths_hides_no_second_request(tmp_path: Path) -> None:
    async with listening(tmp_path) as server:
        hidden = b"GET /v1/counts HTTP/1.1\r\nHost: x\r\n" + server.bearer + b"\r\n"
        for lengths in (
            b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
            b"Content-Length: 5\r\nContent-Length: 6\r\n",
            b"Content-Length: 5, 6\r\n",
            b"Content-Length: +5\r\n",
            b"Transfer-Encoding: xchunked\r\n",
            b"Transfer-Encoding : chunked\r\n",
            b"Transfer-Encoding: chunked, chunked\r\n",
        ):
            head = b"POST /v1/pause HTTP/1.1\r\nHost: x\r\n" + server.bearer + lengths + b"\r\n"
            received = await server.send(head + b"0\r\n\r\n" + hidden)
            # The connection may be closed before the answer is sent, because more data follows.
            assert statuses(received) in ([], [400], [501]), lengths
        head = b"POST /v1/pause HTTP/1.1\r\nHost: x\r\n" + server.bearer
        both = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        assert statuses(await server.send(head + both)) == [400]
        assert await server.is_alive()


async def test_each_request_of_a_connection_needs_its_own_token(tmp_path: Path) -> None:
    async with listening(tmp_path) as server:
        first = b"GET /v1/counts HTTP/1.1\r\nHost: x\r\n" + server.bearer + b"\r\n"
        second = b"GET /v1/counts HTTP/1.1\r\nHost: localhost\r\n\r\n"
        assert statuses(await server.send(first + second + first, answers=3)) == [200, 401, 200]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /v1/counts HTTP/1.1\r\nHost: evil.example\r\n", 403),
        (b"GET /v1/events HTTP/1.1\r\nHost: evil.example\r\n", 403),
        (b"POST /v1/pause HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n", 403),
        (b"GET /v1/counts HTTP/1.1\r\nHost: localhost.evil.example:80\r\n", 403),
        (b"GET /v1/counts HTTP/1.1\r\nHost: localhost.\r\n", 403),
        (b"GET /v1/counts HTTP/1.1\r\nHost: [::2]:80\r\n", 403),
        (b"GET /v1/counts HTTP/1.1\r\nHost: 127.0.0.1.\r\n", 403),
        (b"GET /v1/counts HTTP/1.1\r\nHost: 2130706433\r\n", 403),
        (b"GET http://localhost/v1/counts HTTP/1.1\r\nHost: evil.example\r\n", 403),
        (b"GET http://evil.example/v1/counts HTTP/1.1\r\nHost: localhost\r\n", 401),
        (b"GET /v1/counts HTTP/1.1\r\n", 400),
        (b"GET /v1/counts HTTP/1.0\r\n", 400),
        (b"GET /v1/counts HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n", 400),
        (b"GET /v1/counts HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: ::1\r\n", 401),
        (b"GET /v1/counts?token={token} HTTP/1.1\r\nHost: localhost\r\n", 401),
        (b"GET /v1/counts?access_token={token} HTTP/1.1\r\nHost: localhost\r\n", 401),
        (b"GET http://x:{token}@localhost/v1/counts HTTP/1.1\r\nHost: localhost\r\n", 401),
        (b"GET /v1/counts HTTP/1.1\r\nHost: localhost\r\nCookie: keyrun_session={token}\r\n", 401),
        (b"GET /v1/counts HTTP/1.1\r\nHost: localhost\r\nX-Api-Key: {token}\r\n", 401),
    ],
)
async def test_only_the_bearer_header_and_a_host_of_this_machine_let_a_program_in(
    tmp_path: Path, head: bytes, status: int
) -> None:
    async with listening(tmp_path) as server:
        received = await server.send(head.replace(b"{token}", server.token) + b"\r\n")
        assert statuses(received) == [status]
        assert server.token not in received


async def test_idle_connections_make_room_for_new_ones(tmp_path: Path) -> None:
    async with listening(tmp_path, most=10) as server, AsyncExitStack() as stack:
        busy = await stack.enter_async_context(await server.connect())
        await busy.send_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n" + server.bearer + b"\r\n")
        assert b"retry" in await receive(busy, b"retry")
        idle = []
        for number in range(50):
            idle.append(await stack.enter_async_context(await server.connect()))
            await idle[-1].send_all(LIVEZ if number % 2 else b"")
            await trio.sleep(0.001)
        with trio.fail_after(5):
            for each in idle[:40]:
                assert await ended(each)
        assert await server.is_alive()
        await server.rt.submit(greet, "ann", key="k")
        assert await receive(busy, b"run_submitted")


async def test_a_connection_is_closed_if_all_others_have_requests(tmp_path: Path) -> None:
    async with listening(tmp_path, most=3) as server, AsyncExitStack() as stack:
        for _ in range(3):
            busy = await stack.enter_async_context(await server.connect())
            await busy.send_all(b"GET /v1/events HTTP/1.1\r\nHost: x\r\n" + server.bearer + b"\r\n")
            await receive(busy, b"retry")
        assert await server.send(LIVEZ + b"\r\n") == b""
        assert await server.get("/livez", unix=True) == 200, "the other listener has its own limit"
        await busy.aclose()
        with trio.fail_after(5):
            while not await server.send(LIVEZ + b"Connection: close\r\n\r\n"):
                await trio.sleep(0.01)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_a_connection_that_was_closed_is_forgotten_at_once(tmp_path: Path) -> None:
    async with listening(tmp_path) as server:
        before = open_files()
        for number in range(30):
            async with await server.connect(unix=number % 3 == 0) as stream:
                if number % 2:
                    await stream.send_all(LIVEZ + b"\r\n")
                    await stream.receive_some()
        with trio.fail_after(5):
            while open_files() > before:
                await trio.sleep(0.01)


async def test_a_client_may_send_no_more_and_still_receives_its_answer(tmp_path: Path) -> None:
    async with listening(tmp_path) as server:
        async with await server.connect() as stream:
            await stream.send_all(LIVEZ + b"\r\n")
            await stream.send_eof()
            with trio.fail_after(5):
                assert b"ok" in await receive(stream, b"ok")
                assert await ended(stream)


async def test_a_client_that_sends_a_refused_body_receives_the_answer(tmp_path: Path) -> None:
    head = b"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer wrong\r\n"
    async with listening(tmp_path) as server:
        for size in (2, 5_000_000):
            body = b"Content-Length: %d\r\n\r\n" % size + b"x" * size
            for _ in range(5):
                received = await server.send(head + body)
                assert statuses(received) == [401]
                assert received.endswith(b"}")


async def test_an_answer_says_whether_the_connection_takes_another_request(tmp_path: Path) -> None:
    head = b"POST /v1/pause HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 2\r\nAuthorization: Bearer "
    async with listening(tmp_path) as server:
        # It is refused before its body arrives.
        early = await server.send(head + b"wrong\r\n\r\n")
        assert statuses(early) == [401]
        assert b"\r\nconnection: close\r\n" in early.lower()
        whole = await server.send((head + server.token + b"\r\n\r\n{}") * 2, answers=2)
        assert statuses(whole) == [200, 200]
        assert b"\r\nconnection: close\r\n" not in whole.lower()


async def test_a_client_that_never_stops_sending_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "LINGER", 0.1)
    async with listening(tmp_path) as server, await server.connect() as stream:
        await stream.send_all(b"POST /v1/runs HTTP/1.1\r\nHost: x\r\n")
        await stream.send_all(b"Transfer-Encoding: chunked\r\n\r\n")
        with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
            while True:
                await stream.send_all(b"5\r\nxxxxx\r\n" * 1000)


async def test_slow_headers_are_not_waited_for(tmp_path: Path) -> None:
    async with listening(tmp_path, keep_alive=0.2) as server:
        for unix in (True, False):
            async with await server.connect(unix=unix) as stream:
                await stream.send_all(LIVEZ)
                with trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
                    while True:
                        await stream.send_all(b"x: y\r\n")
                        await trio.sleep(0.02)


async def test_headers_that_are_too_large_are_refused(tmp_path: Path) -> None:
    async with listening(tmp_path) as server:
        for data in (
            LIVEZ + b"x: " + b"y" * 70_000,
            b"GET /" + b"a" * 70_000,
            LIVEZ + b"a: b\r\n" * 20_000,
        ):
            assert all(status in (400, 431) for status in statuses(await server.send(data)))
        assert await server.is_alive()


async def serve(app: Any, nursery: trio.Nursery, **limits: Any) -> int:
    """Serve an application on TCP, and return the port."""
    listeners = bind_tcp("127.0.0.1", 0)
    port: int = listeners[0].getsockname()[1]

    async def run(task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        async with serving(app, listeners, **limits):
            task_status.started()
            await trio.sleep_forever()

    await nursery.start(run)
    return port


async def test_a_client_that_does_not_read_is_cut_off() -> None:
    over = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 30_000_000})
        over.set()

    async with trio.open_nursery() as nursery:
        port = await serve(app, nursery, send_seconds=0.2)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(LIVEZ + b"\r\n")
            with trio.fail_after(5):
                await over.wait()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(LIVEZ + b"\r\n")
            received = 0
            with trio.fail_after(20):
                while received < 30_000_000:
                    # Slower than the limit for the whole answer, not for each part.
                    received += len(await stream.receive_some(2_000_000))
                    await trio.sleep(0.02)
        nursery.cancel_scope.cancel()


class FullProcess:
    """A listener that finds the process out of files, and then accepts connections."""

    def __init__(self, listener: anyio.abc.SocketListener) -> None:
        self._listener = listener
        self._left = 3

    async def accept(self) -> Any:
        if self._left:
            self._left -= 1
            raise anyio.BrokenResourceError from OSError(errno.EMFILE, "Too many open files")
        return await self._listener.accept()


async def test_a_process_without_free_files_accepts_connections_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    (listener,) = bind_tcp("127.0.0.1", 0)
    port: int = listener.getsockname()[1]
    async with await anyio.abc.SocketListener.from_socket(listener) as inner:
        full: Any = FullProcess(inner)
        served = Connections(app, lambda _: {})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(served.serve, full))
            async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                await stream.send_all(LIVEZ + b"\r\n")
                with trio.fail_after(5):
                    assert statuses(await receive(stream, b"\r\n\r\n")) == [204]
            nursery.cancel_scope.cancel()
    assert caplog.text.count("Too many open files") == 1


def test_a_listener_takes_a_part_of_the_files_of_the_process() -> None:
    assert 0 < most_connections() <= MOST


async def test_a_body_in_small_parts_uses_no_more_memory_than_in_one() -> None:
    class Parts(Exchange):
        left = 20_000

        async def receive(self) -> dict[str, Any]:
            self.left -= 1
            if self.left % 100 == 0:
                await trio.lowlevel.checkpoint()
            return {
                "type": "http.request",
                "body": b"%02d" % (self.left % 100),
                "more_body": self.left,
            }

    exchange = Parts("POST", "/")
    tracemalloc.start()
    try:
        body = await read_body(Request(exchange.scope, exchange.receive), 1_000_000, 30)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(body) == 40_000
    assert most < 400_000


@pytest.mark.parametrize("before", ["nothing", "file", "link", "socket"])
def test_the_socket_is_for_its_owner_only_and_replaces_what_is_there(
    tmp_path: Path, before: str
) -> None:
    path, other = tmp_path / SOCKET, tmp_path / "other"
    other.write_text("secret")
    if before == "file":
        path.write_text("x")
    elif before == "link":
        path.symlink_to(other)
    elif before == "socket":
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
    umask = os.umask(0)
    try:
        listener = bind_unix(path)
    finally:
        os.umask(umask)
    with listener:
        about = path.lstat()
        assert about.st_mode & 0o777 == 0o600
        assert path.is_socket()
        assert not path.is_symlink()
        assert other.read_text() == "secret"
        assert other.lstat().st_mode & 0o777 != 0o600 or umask & 0o077 == 0o077
        assert sorted(each.name for each in tmp_path.iterdir()) == [SOCKET, "other"]


async def receive(stream: trio.SocketStream, text: bytes) -> bytes:
    """Return what arrives until it has a text."""
    received = b""
    with trio.fail_after(10):
        while text not in received:
            part = await stream.receive_some()
            assert part, received
            received += part
    return received


async def ended(stream: trio.SocketStream) -> bool:
    """Wait until the other end has closed a connection."""
    try:
        while await stream.receive_some():
            pass
    except trio.BrokenResourceError:
        pass
    return True


@pytest.mark.parametrize("length", [5, None])
async def test_an_answer_of_known_length_has_its_head_and_body_in_one_part(
    length: int | None,
) -> None:
    """A stream sends its head before it has a body."""
    may_continue = trio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [] if length is None else [(b"content-length", b"%d" % length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if length is None:
            await may_continue.wait()
        await send({"type": "http.response.body", "body": b"hello"})

    async with trio.open_nursery() as nursery:
        port = await serve(app, nursery)
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            for _ in range(2):
                await stream.send_all(LIVEZ + b"\r\n")
                with trio.fail_after(5):
                    first = await stream.receive_some()
                    assert first.startswith(b"HTTP/1.1 200")
                    assert (b"hello" in first) == (length is not None)
                    may_continue.set()
                    if length is None:
                        await receive(stream, b"hello\r\n0\r\n\r\n")
                        may_continue = trio.Event()
        nursery.cancel_scope.cancel()


async def test_a_connection_waits_the_whole_time_for_each_request(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await trio.sleep(3)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    ends: list[socket.socket] = [*socket.socketpair()]
    for each in ends:
        each.setblocking(False)
    served = Connections(app, lambda _: {}, keep_alive=2)
    async with trio.open_nursery() as nursery:
        inner = await anyio.abc.SocketStream.from_socket(ends[0])
        nursery.start_soon(served._serve, inner)
        async with trio.SocketStream(trio.socket.from_stdlib_socket(ends[1])) as stream:
            for _ in range(3):
                await trio.sleep(1.5)
                await stream.send_all(LIVEZ + b"\r\n")
                assert b" 204 " in await stream.receive_some()
            began = trio.current_time()
            assert await stream.receive_some() == b""
            assert trio.current_time() - began == pytest.approx(2)
