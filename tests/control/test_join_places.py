"""Where stores are shared: any path, and owners that cannot be joined."""

import json
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

import keyrun
from keyrun.control.frames import MEDIA_TYPE
from keyrun.control.target import SOCKET, short_path
from keyrun.errors import StoreLocked
from keyrun.storage import LmdbStore, MemoryStore
from tests.control.joiners import append, crowd, member, other_owner, owns, until_owner

STORES = ["plain", "x" * 150, "with spaces and 'quotes'", "gelée-königlich-蜂王漿"]


@pytest.mark.parametrize("name", STORES)
async def test_a_store_at_any_path_can_be_shared(tmp_path: Path, name: str) -> None:
    lines = tmp_path / "lines"
    async with crowd(tmp_path / name / "state") as members:
        owner, client = await members.join(), await members.join()
        assert not owns(client.rt)
        await (await client.rt.submit(append, [str(lines), "a"], key="k")).result()
        await owner.leave()
        await (await client.rt.submit(append, [str(lines), "b"], key="k")).result()
        assert owns(client.rt)
    assert lines.read_text() == "a\nb\n"


async def test_a_relative_path_is_meant_from_the_folder_of_the_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with crowd("state") as members:
        owner, client = await members.join(), await members.join()
        run = await client.rt.submit(append, [str(tmp_path / "lines"), "a"], key="k")
        await run.result()
        monkeypatch.chdir(tmp_path / "elsewhere")
        await owner.leave()
        await until_owner(client.rt)
        assert await run.result() == "a"
    assert not any((tmp_path / "elsewhere").iterdir())


async def test_the_socket_is_for_this_user_only_and_is_removed_at_the_end(tmp_path: Path) -> None:
    async with member(tmp_path):
        assert (tmp_path / SOCKET).stat().st_mode & 0o777 == 0o600
    assert not (tmp_path / SOCKET).exists()


async def test_a_socket_that_was_removed_is_made_again(tmp_path: Path) -> None:
    async with crowd(tmp_path) as members:
        owner, client = await members.join(), await members.join()
        (tmp_path / SOCKET).unlink()
        # Who is connected stays connected.
        assert await client.rt.status("none") is None
        late = await members.join()
        assert await late.rt.status("none") is None
        assert owns(owner.rt)
    assert not (tmp_path / SOCKET).exists()


async def test_a_stale_socket_is_replaced_by_the_holder_of_the_lock_only(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / SOCKET))
    stale = (tmp_path / SOCKET).stat().st_ino
    async with keyrun.open_runtime(tmp_path):
        with pytest.raises(StoreLocked):
            async with member(tmp_path, lock_timeout=0.2):
                pass
        assert (tmp_path / SOCKET).stat().st_ino == stale
    async with member(tmp_path):
        assert (tmp_path / SOCKET).stat().st_ino != stale


async def test_an_owner_that_cannot_be_joined_is_named_after_the_lock_timeout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with keyrun.open_runtime(tmp_path):
        with pytest.raises(StoreLocked) as caught:
            async with member(tmp_path, lock_timeout=1.2):
                pass
    assert caught.value.pid == os.getpid()
    assert caught.value.waited >= 1.2
    text = str(caught.value)
    assert f"process {os.getpid()} has the store {tmp_path} open" in text
    assert "No such file or directory" in text
    assert "when_locked='join' or control=True in every process" in text
    assert "lock_timeout=1.2" in text
    waits = [each.message for each in caplog.records if "waiting for an owner" in each.message]
    assert len(waits) == 1


async def test_a_process_waits_for_the_lock_of_an_owner_that_cannot_be_joined(
    tmp_path: Path,
) -> None:
    opened, over = trio.Event(), trio.Event()

    async def own() -> None:
        async with keyrun.open_runtime(tmp_path):
            opened.set()
            await over.wait()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(own)
        await opened.wait()
        nursery.start_soon(_later, over)
        async with member(tmp_path) as rt:
            assert owns(rt)


async def _later(event: trio.Event) -> None:
    await trio.sleep(0.1)
    event.set()


async def test_an_owner_with_a_control_plane_can_be_joined(tmp_path: Path) -> None:
    async with keyrun.open_runtime(tmp_path, control=True), member(tmp_path) as rt:
        assert not owns(rt)
        assert await rt.status("none") is None


async def test_a_stopped_owner_keeps_the_store(tmp_path: Path) -> None:
    with other_owner(tmp_path) as owner:
        async with member(tmp_path) as rt:
            answers = []

            async def ask() -> None:
                answers.append(await rt.status("none"))

            owner.stop()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask)
                await trio.sleep(0.3)
                assert not answers
                assert not owns(rt)
                owner.go_on()
            assert answers == [None]


async def test_a_process_with_another_namespace_is_refused(tmp_path: Path) -> None:
    async with member(tmp_path, namespace="shop"):
        with pytest.raises(RuntimeError, match=r"serves the namespace 'shop' .* not 'office'"):
            async with member(tmp_path, namespace="office"):
                pass


async def test_a_client_of_another_version_is_refused(tmp_path: Path) -> None:
    async with member(tmp_path):
        with short_path(tmp_path / SOCKET) as path:
            stream = await trio.open_unix_socket(path)
        async with stream:
            head = "POST /v1/channel HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"
            kind = "Content-Type: application/vnd.keyrun.channel.v0+msgpack\r\n\r\n"
            await stream.send_all((head + kind).encode())
            answer = b""
            while not answer.endswith(b"}"):
                answer += await stream.receive_some(65536)
    assert answer.startswith(b"HTTP/1.1 415")
    detail = json.loads(answer.partition(b"\r\n\r\n")[2])["detail"]
    assert f"Keyrun {keyrun.__version__} answers a channel of the type {MEDIA_TYPE}" in detail
    assert "use the same version of Keyrun on both sides" in detail


@asynccontextmanager
async def answering(store: Path, answer: bytes) -> AsyncIterator[None]:
    """Own a store, and give each request on its socket the same answer."""

    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        await stream.send_all(answer)
        await stream.aclose()

    async with LmdbStore(store), trio.open_nursery() as nursery:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(store / SOCKET))
        listener.listen()
        over = trio.SocketListener(trio.socket.from_stdlib_socket(listener))
        nursery.start_soon(partial(trio.serve_listeners, serve, [over]))
        yield
        nursery.cancel_scope.cancel()
    (store / SOCKET).unlink()


async def test_a_process_that_the_owner_does_not_understand_says_so_at_once(
    tmp_path: Path,
) -> None:
    body = b'{"detail": "Keyrun 9 answers a channel of another type"}'
    head = b"HTTP/1.1 415 No\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with answering(tmp_path, head + body):
        with pytest.raises(RuntimeError, match="Keyrun 9 answers a channel of another type"):
            async with member(tmp_path):
                pass


async def test_a_store_without_a_path_cannot_be_shared() -> None:
    with pytest.raises(ValueError, match="requires a path or a URL"):
        async with member(MemoryStore()):
            pass


def test_the_paths_of_these_tests_are_longer_than_the_address_of_a_socket() -> None:
    assert len(os.fsencode(STORES[1])) > 107
