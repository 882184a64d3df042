"""The listener on TCP: addresses, and what it answers before and after a runtime is open."""

import errno
import socket

import httpx
import pytest
import trio

from keyrun import App
from keyrun.control.front import Front
from keyrun.control.listening import CannotListen, bind_tcp, url_of
from keyrun.control.options import Control
from keyrun.hosting.served import served
from keyrun.storage import MemoryStore


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_the_url_of_a_listener_can_be_opened(host: str) -> None:
    async with Front.opened(host, 0) as front, httpx.AsyncClient() as client:
        shown = f"[{host}]" if ":" in host else host
        assert front.url.startswith(f"http://{shown}:")
        assert (await client.get(f"{front.url}/livez")).text == "ok"
        answer = await client.get(f"{front.url}/readyz")
        assert (answer.status_code, answer.text) == (503, "opening")


def test_an_address_that_the_machine_lacks_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the IPv6 address of `localhost` in a container without IPv6."""
    lacking = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("192.0.2.1", 0))
    usable = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lacking, usable])
    (listener,) = bind_tcp("localhost", 0)
    with listener:
        assert url_of("localhost", [listener]).startswith("http://localhost:")
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: [lacking])
    with pytest.raises(CannotListen, match="cannot listen on localhost:0") as caught:
        bind_tcp("localhost", 0)
    assert caught.value.errno == errno.EADDRNOTAVAIL


async def test_streams_are_cut_off_when_the_application_drains(tmp_path: object) -> None:
    control = Control(http="127.0.0.1:0", token_file=f"{tmp_path}/tokens")
    leave, left = trio.Event(), trio.Event()

    async def serve(task_status: "trio.TaskStatus[str]") -> None:
        async with served(MemoryStore(), App(), control) as server:
            assert server.url is not None
            task_status.started(server.url)
            await leave.wait()
        left.set()

    with trio.fail_after(20):
        async with trio.open_nursery() as nursery, httpx.AsyncClient() as client:
            url = await nursery.start(serve)
            assert control.token_file is not None
            token = control.token_file.read_text().splitlines()[-1].split()[0]
            bearer = {"Authorization": f"Bearer {token}"}
            async with client.stream("GET", f"{url}/v1/events", headers=bearer) as answer:
                assert answer.status_code == 200
                leave.set()
                with pytest.raises(httpx.RemoteProtocolError):
                    await answer.aread()
            await left.wait()
