"""Connections of a client: broken, hostile and silent owners, cancelled calls, and what stays."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

import keyrun
from keyrun import NoOwner, StoreClosed
from keyrun.control import channel as channels
from keyrun.control.background import beside
from keyrun.control.frames import ANSWER, BEGUN, ERROR, ITEM, LARGEST, MEDIA_TYPE, WINDOW, pack
from keyrun.control.loopback import Loopback
from keyrun.control.remote import RemoteRuntime
from keyrun.control.target import Target
from keyrun.control.transport import SILENCE, Calls, Connection, Disconnected, Transport
from keyrun.testing import open_test_runtime
from tests.control.clients import connected, linked
from tests.control.world import WORKFLOWS, Account, greet, wait_for_go
from tests.faults.soaking import SOAK, amount
from tests.storage.processes import line, running_python

OPTIONS: dict[str, Any] = {"workflows": WORKFLOWS, "entities": [Account]}
HEAD = (
    f"HTTP/1.1 200 OK\r\nContent-Type: {MEDIA_TYPE}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
)


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def refused(status: int, body: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@asynccontextmanager
async def server(
    path: Path, serve: Callable[[trio.abc.Stream], Awaitable[object]]
) -> AsyncIterator[None]:
    """Serve connections at a unix socket."""
    listener = trio.socket.socket(trio.socket.AF_UNIX)
    await listener.bind(str(path))
    listener.listen()
    streams = trio.SocketListener(listener)

    async def handle(stream: trio.abc.Stream) -> None:
        async with stream:
            with suppress(trio.BrokenResourceError):
                await serve(stream)

    async with streams, trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.serve_listeners, handle, [streams]))
        yield
        nursery.cancel_scope.cancel()


def saying(data: bytes, *, close: bool = True) -> Callable[[trio.abc.Stream], Awaitable[None]]:
    """Return a server that says the same to everybody."""

    async def serve(stream: trio.abc.Stream) -> None:
        await stream.receive_some(1000)
        await stream.send_all(data)
        if not close:
            await trio.sleep_forever()

    return serve


NO_OWNER = [
    (b"", "it closed the connection"),
    (b"SSH-2.0-OpenSSH_9.2\r\n" + b"x" * 99_999, "it does not speak HTTP"),
    (b"\x00" * 1000, "it does not speak HTTP"),
    (HEAD[:40], "it closed the connection|it does not speak HTTP"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000, "it does not speak HTTP"),
    (refused(503, b'{"detail": "the runtime drains"}'), "the runtime drains"),
    (refused(500, b"[" * 100_000), "HTTP status 500"),
    (refused(502, b"<html>bad gateway</html>"), "HTTP status 502"),
    (HEAD + chunk(b"\x00\x00\x00\x01\xc1"), "it sent a frame that is not msgpack"),
    (HEAD + chunk((2**32 - 1).to_bytes(4, "big")), "it sent a frame of 4,294,967,295 bytes"),
    (HEAD + chunk(b"\x00\x00\x00\x05" + b"\xdd\xff\xff\xff\xff"), "it sent a frame"),
    (HEAD + chunk(pack(1, 2, 3, 4, 5)), "it sent a frame of no known form"),
    (HEAD + chunk(pack("x")), "it sent a frame that is not an array with an id"),
    (HEAD + chunk(pack(0, ITEM, {})) + b"zz\r\n", "it does not speak HTTP"),
    (HEAD + b"0\r\n\r\n", "it closed the connection"),
]


@pytest.mark.parametrize(("data", "why"), NO_OWNER, ids=lambda each: ascii(each)[:30])
async def test_a_server_that_is_no_owner_is_no_owner_after_the_timeout(
    data: bytes, why: str, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    async with server(path, saying(data)), keyrun.connect(f"unix:{path}", call_timeout=0.1) as it:
        with trio.fail_after(30), pytest.raises(NoOwner, match=why):
            await it.counts()


async def test_a_server_that_never_answers_is_no_owner_after_the_timeout(tmp_path: Path) -> None:
    for data in (b"", HEAD[:40], refused(503, b"x")[:-1]):
        path = tmp_path / f"s{len(data)}"
        async with (
            server(path, saying(data, close=False)),
            keyrun.connect(f"unix:{path}", call_timeout=0.1) as client,
        ):
            why = r"for 0\.1 s \(a process accepted the connection, and has not answered"
            with trio.fail_after(30), pytest.raises(NoOwner, match=why):
                await client.counts()


UNUSABLE: list[tuple[bytes, type[Exception], str]] = [
    (refused(401, b'{"detail": "no token"}'), PermissionError, "rejected the client: no token"),
    (refused(403, b"{}"), PermissionError, "rejected the client: HTTP status 403"),
    (refused(404, b"not here"), RuntimeError, "is not a control plane.*HTTP status 404"),
    (refused(200, b"welcome"), RuntimeError, "is not a control plane.*content type"),
    (b"HTTP/1.1 301 X\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 9999999, RuntimeError, "301"),
]


@pytest.mark.parametrize(("data", "error", "why"), UNUSABLE, ids=lambda each: ascii(each)[:30])
async def test_a_server_that_refuses_the_client_is_an_error_at_once(
    data: bytes, error: type[Exception], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "s"
    async with server(path, saying(data)), keyrun.connect(f"unix:{path}") as client:
        with trio.fail_after(30), pytest.raises(error, match=why):
            await client.counts()


class Saying(Calls):
    """A connection that says the same to each call."""

    def __init__(self, *frames: tuple[Any, ...]) -> None:
        super().__init__()
        self._frames_to_send = frames

    async def run(self) -> None:
        try:
            while True:
                await self._taken()
                for frame in self._frames_to_send:
                    self._feed(pack(self._next, *frame))
        finally:
            self._break()


@asynccontextmanager
async def talking_to(*frames: tuple[Any, ...]) -> AsyncIterator[RemoteRuntime]:
    transport = Transport(Target(), call_timeout=5)
    async with beside(lambda: transport.use(Saying(*frames))):
        await transport.connected()
        yield RemoteRuntime(transport)


NONSENSE: list[tuple[Any, ...]] = [
    (ANSWER, 5),
    (ANSWER, {"unknown": 5}),
    (ANSWER,),
    (BEGUN,),
    (ITEM, 5),
    (99, 5),
    (ERROR, 5),
    (ERROR, ["ValueError"]),
    (ERROR, ["RunFailed", "x", {"failure": 5}]),
]


@pytest.mark.parametrize("frame", NONSENSE, ids=ascii)
async def test_an_answer_that_cannot_be_read_is_an_error(
    frame: tuple[Any, ...], autojump_clock: Any
) -> None:
    async with talking_to(frame) as client:
        with pytest.raises(RuntimeError, match=r"answered counts with something.*cannot read"):
            await client.counts()
        watch = client.watch("r")
        with pytest.raises(RuntimeError, match=r"answered watch with something.*cannot read"):
            await anext(watch) if frame != (BEGUN,) else await _broken_stream(watch)


async def _broken_stream(watch: Any) -> None:
    """Let a second BEGUN arrive."""
    with trio.move_on_after(1):
        await anext(watch)
    watch._stream._take(BEGUN, None)
    await anext(watch)


async def test_an_error_of_an_unknown_class_is_a_runtime_error(autojump_clock: Any) -> None:
    for name in ("SystemExit", "NoSuchError", "print", ""):
        async with talking_to((ERROR, [name, "the text", {}])) as client:
            with pytest.raises(RuntimeError, match="the text"):
                await client.counts()


async def test_an_owner_that_closes_is_asked_again_with_pauses_until_the_timeout(
    autojump_clock: Any,
) -> None:
    async with talking_to((ERROR, ["StoreClosed", "closed", {}])) as client:
        connection = client._transport.connection
        assert connection is not None
        with pytest.raises(NoOwner, match="was closed"):
            await client.counts()
        assert 5 < connection._next < 30


async def test_a_silent_connection_breaks(autojump_clock: Any) -> None:
    ours, theirs = memory_stream_pair()
    connection = Connection(ours, Target(), None, None)
    await theirs.send_all(HEAD + chunk(pack()))
    await connection.open()
    began = trio.current_time()
    with pytest.raises(Disconnected, match="it sent nothing for 20 s"):
        await connection.run()
    assert trio.current_time() - began == SILENCE


async def test_an_idle_connection_stays(autojump_clock: Any) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        connection = client._transport.connection
        first = client.statistics()
        await rt.submit(wait_for_go, key="k")
        await trio.sleep(3600)
        assert client._transport.connection is connection
        assert (first.live, client.statistics().live) == (0, rt.statistics().live)


async def test_what_is_too_large_is_an_error_and_the_connection_stays(autojump_clock: Any) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        with pytest.raises(ValueError, match="at most 67,108,864 bytes can be sent"):
            await client.find_runs(key="x" * (LARGEST + 1))
        assert (await client.find_runs()).runs == ()


async def test_a_client_cannot_have_any_number_of_calls(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channels, "MOST_CALLS", 100)
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        run = await client.submit(wait_for_go, key="k")
        connection = client._transport.connection
        assert isinstance(connection, Loopback)
        refused: list[Any] = []
        arguments = {"run_id": run.run_id, "number": run._about.number}
        for _ in range(105):
            connection.begin("wait_for_end", None, arguments, lambda *frame: refused.append(frame))
        await trio.sleep(1)
        assert [error[0] for _, error in refused] == ["Backpressure"] * 5


async def test_a_connection_that_breaks_at_any_byte_is_replaced(tmp_path: Path) -> None:
    """A proxy cuts the first connection after some bytes of the answer. The call is repeated."""
    cut: list[int | None] = []
    seen = 0

    async def forward(source: trio.abc.Stream, target: trio.abc.Stream, most: int | None) -> None:
        nonlocal seen
        async for data in source:
            seen += len(data) if most is not None or not cut else 0
            if most is not None and most < len(data):
                await target.send_all(data[:most])
                return
            most = None if most is None else most - len(data)
            await target.send_all(data)

    async def proxy(stream: trio.abc.Stream) -> None:
        owner = await trio.open_unix_socket(str(tmp_path / "state" / "control.sock"))
        most = cut.pop() if cut else None
        try:
            async with owner, trio.open_nursery() as nursery:
                nursery.start_soon(forward, stream, owner, None)
                await forward(owner, stream, most)
                nursery.cancel_scope.cancel()
        except* trio.BrokenResourceError:
            pass

    async with (
        keyrun.open_runtime(tmp_path / "state", control=True, **OPTIONS) as rt,
        server(tmp_path / "s", proxy),
    ):
        positions = range(0, 1200, amount(29, 1))
        for at in positions:
            cut.append(at)
            async with keyrun.connect(f"unix:{tmp_path / 's'}") as client:
                with trio.fail_after(30):
                    run = await client.submit(greet, "ann", key=f"k{at}")
                    assert await run.result() == "ANN"
            cut.clear()
        assert len(await rt.runs(limit=10_000)) == len(positions)


def channel_of(client: RemoteRuntime) -> tuple[Loopback, Any]:
    connection = client._transport.connection
    assert isinstance(connection, Loopback)
    return connection, connection._channel


async def test_calls_and_cancelled_calls_leave_nothing_behind(autojump_clock: Any) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        connection, channel = channel_of(client)
        run = await client.submit(wait_for_go, key="k", run_id="r")
        await trio.sleep(1)

        async def cancelled(call: Callable[[], Awaitable[Any]]) -> None:
            with trio.move_on_after(0.5):
                await call()

        async def cut_off() -> None:
            with trio.CancelScope() as scope:
                scope.cancel()
                await client.pause_key("k2")

        for at in range(amount(3, 100)):
            if at == 1:  # the runtime has started what it needs
                tasks = trio.lowlevel.current_statistics().tasks_living
            async with trio.open_nursery() as nursery:
                for _ in range(300):
                    nursery.start_soon(client.status, "r")
                    nursery.start_soon(cancelled, run.result)
                    nursery.start_soon(cut_off)
                for _ in range(30):
                    nursery.start_soon(cancelled, partial(_read, client))
            await trio.sleep(1)
        assert not connection._answers
        assert not channel._calls
        assert not channel._unsent
        assert not rt._operations._under_way
        assert not rt._partition.state.performing
        assert trio.lowlevel.current_statistics().tasks_living == tasks
        await rt.signal("r", "go", 5)
        assert await run.result() == 5


async def _read(client: RemoteRuntime) -> None:
    async with client.events() as events:
        async for _ in events:
            pass


async def test_a_cancelled_call_cancels_the_wait_and_not_the_write(autojump_clock: Any) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        _, channel = channel_of(client)
        with trio.move_on_after(0) as scope:
            await client.submit(greet, "ann", key="k", run_id="sent")
        assert scope.cancelled_caught
        await trio.sleep(1)
        assert await rt.run("sent").result() == "ANN"
        await rt.submit(wait_for_go, key="k", run_id="r")
        with trio.move_on_after(1):
            await client.run("r").result()
        await trio.sleep(0.1)
        assert not channel._calls
        assert (await rt.run("r").status()).state == "waiting"


async def test_a_slow_reader_of_events_drops_events_and_keeps_the_memory_bounded(
    autojump_clock: Any,
) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        async with client.events(buffer=10) as events:
            for at in range(500):
                await (await rt.submit(greet, "a", key=f"k{at}")).result()
            await trio.sleep(1)
            assert len(events._stream._found) <= WINDOW
            found = 0
            with trio.move_on_after(5):
                async for event in events:
                    found += event.kind != "missed"
            assert events.dropped > 0
            assert found >= WINDOW
            assert found + events.dropped == 500 * 5


async def test_a_dropped_iterator_is_closed_at_the_owner(autojump_clock: Any) -> None:
    async with open_test_runtime(**OPTIONS) as rt, linked(rt) as client:
        _, channel = channel_of(client)
        await rt.submit(wait_for_go, key="k", run_id="r")
        watch = client.watch("r")
        await anext(watch)
        assert len(channel._calls) == 1
        del watch
        await trio.sleep(1)
        assert not channel._calls


async def test_after_its_block_a_client_says_that_it_is_closed(tmp_path: Path) -> None:
    async with keyrun.open_runtime(tmp_path / "state", control=True, **OPTIONS) as rt:
        await rt.submit(wait_for_go, key="k", run_id="r")
        async with keyrun.connect(tmp_path / "state") as client, trio.open_nursery() as nursery:
            await connected(client)
            errors: list[Exception] = []

            async def wait() -> None:
                try:
                    await client.run("r").result()
                except StoreClosed as error:
                    errors.append(error)

            nursery.start_soon(wait)
            await trio.sleep(0.05)
            transport: Transport = client._transport  # type: ignore[attr-defined]
            transport.close()
            assert transport.connection is not None
            transport.connection._break()
        with pytest.raises(StoreClosed, match="the client was closed; connect again"):
            await client.counts()
        assert len(errors) == 1


KILLED = """
    import os, signal, sys, trio, keyrun
    from keyrun.control import channel

    @keyrun.workflow
    async def waits(ctx: keyrun.Context) -> None:
        await ctx.wait_signal("go")

    def pack(*frame):
        if len(frame) == 3 and frame[0] and sys.argv[2] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        return packed(*frame)

    packed, channel.pack = channel.pack, pack

    async def main():
        async with keyrun.open_runtime(sys.argv[1], workflows=[waits], control=True):
            print("open", flush=True)
            await trio.sleep_forever()

    trio.run(main)
"""


@keyrun.workflow
async def waits(ctx: keyrun.Context) -> None: ...


async def test_a_write_is_applied_once_if_the_owner_is_killed_before_it_answers(
    tmp_path: Path,
) -> None:
    handles: list[Any] = []
    async with keyrun.connect(tmp_path / "state") as client, trio.open_nursery() as nursery:

        async def submit() -> None:
            handles.append(await client.submit(waits, key="k"))

        for how in ("killed", "stays"):
            with running_python(KILLED, tmp_path / "state", how) as owner:
                assert await trio.to_thread.run_sync(line, owner) == "open"
                if how == "killed":
                    nursery.start_soon(submit)
                    await trio.to_thread.run_sync(owner.wait)
                    assert not handles
                else:
                    with trio.fail_after(30):
                        while not handles:
                            await trio.sleep(0.01)
                        assert [each.run_id for each in await client.runs()] == [handles[0].run_id]
                        assert handles[0].newly_submitted


@pytest.mark.skipif(not SOAK, reason="the long form")
async def test_a_hundred_thousand_calls_through_a_socket_keep_the_memory(tmp_path: Path) -> None:
    import resource

    async with (
        keyrun.open_runtime(tmp_path / "state", control=True, **OPTIONS),
        keyrun.connect(tmp_path / "state") as client,
    ):

        async def call(times: int) -> None:
            for _ in range(times):
                await client.counts()

        async def many(times: int) -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(64):
                    nursery.start_soon(call, times)

        await many(300)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        await many(1600)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB
