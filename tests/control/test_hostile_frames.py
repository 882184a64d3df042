"""The channel of Python clients, attacked with frames that no client sends."""

from typing import Any

import msgpack
import pytest
import trio

from keyrun.control import channel
from keyrun.control.channel import Channel
from keyrun.control.frames import ANSWER, ERROR, Frames, pack
from keyrun.control.owner import Owner
from keyrun.control.roles import Caller, Role
from tests.control.world import Client, served

READER = Caller(name="reader", role=Role.READ)


class Peer:
    """The other end of a channel."""

    def __init__(self, client: Client, caller: Caller = READER) -> None:
        owner: Owner = client.api._performer
        self.channel = Channel(owner, caller, self._send)
        self._give, self._take = trio.open_memory_channel[bytes](1000)
        self._frames = Frames()
        self.frames: list[Any] = []
        self.reads = True
        self.unread = 0

    async def _send(self, message: Any) -> None:
        while not self.reads:
            await trio.sleep(1)
        self.frames += [
            each for each in self._frames.feed(message.get("body", b"")) if each and each[0]
        ]

    async def _receive(self) -> Any:
        self.unread -= 1
        return {"type": "http.request", "body": await self._take.receive(), "more_body": True}

    async def serve(self) -> None:
        await self.channel.serve(self._receive)

    def send(self, data: bytes) -> None:
        self.unread += 1
        self._give.send_nowait(data)


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


def call(number: int, name: str, /, **arguments: Any) -> bytes:
    return pack(number, name, None, arguments)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff",
        framed(b""),
        framed(b"\xc1"),
        framed(b"\x05"),
        framed(msgpack.packb("counts")),
        pack(),
        pack([1]),
        pack({}),
        pack("1", "counts", None, {}),
        pack(1, ["counts"], None, {}),
        pack(1, "counts", 7, {}),
        pack(1, "counts", None, []),
        pack(1, "counts", None),
        framed(pack(1, "counts", None, {})[4:] + b"\0"),
        call(1, "wait_for_end", run_id="r", number=1) * 2,
        framed(b"\x91" * 3000),
        framed(b"\xdd\xff\xff\xff\xff"),
        framed(b"\x81\x80\xc0"),
        framed(b"\x91\xd9\x02\xff\xff"),
    ],
)
async def test_what_is_no_call_ends_the_channel(data: bytes, autojump_clock: Any) -> None:
    async with served() as client:
        await client.rt.pause_all()
        await client.good(
            "POST", "/v1/runs", {"workflow": "wait_for_go", "key": "k", "run_id": "r"}
        )
        peer = Peer(client)
        peer.send(data)
        with trio.fail_after(10):
            await peer.serve()
        assert await client.good("GET", "/v1/counts")


@pytest.mark.parametrize(
    "arguments",
    [
        {"run_id": [[[]]]},
        {"nothing": 1},
        {},
        {"run_id": b"\xff"},
        {"run_id": {"a": 1}},
        {"run_id": 2**63},
    ],
)
async def test_arguments_that_do_not_fit_are_an_error(
    arguments: dict[str, Any], autojump_clock: Any
) -> None:
    async with served() as client, trio.open_nursery() as nursery:
        peer = Peer(client)
        nursery.start_soon(peer.serve)
        peer.send(call(1, "status", **arguments))
        peer.send(call(2, "no such operation"))
        deep: Any = 1
        for _ in range(500):
            deep = [deep]
        peer.send(call(3, "call", entity="Account", key="k", method="deposit", args=deep))
        peer.send(call(4, "counts"))
        with trio.fail_after(10):
            while len(peer.frames) < 4:
                await trio.sleep(0.1)
        assert sorted((each[0], each[1]) for each in peer.frames) == [
            (1, ERROR),
            (2, ERROR),
            (3, ERROR),
            (4, ANSWER),
        ]
        nursery.cancel_scope.cancel()


async def test_a_role_is_checked_for_each_call(autojump_clock: Any) -> None:
    async with served() as client, trio.open_nursery() as nursery:
        peer = Peer(client)
        nursery.start_soon(peer.serve)
        peer.send(call(1, "pause_all"))
        peer.send(call(2, "counts"))
        with trio.fail_after(10):
            while len(peer.frames) < 2:
                await trio.sleep(0.1)
        answers = {each[0]: each for each in peer.frames}
        assert answers[1][1:3] == [ERROR, answers[1][2]]
        assert answers[1][2][0] == "PermissionError"
        assert answers[2][1] == ANSWER
        nursery.cancel_scope.cancel()


async def test_a_channel_reads_no_calls_while_its_answers_are_not_read(
    autojump_clock: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "MOST_UNSENT", 1000)
    async with served() as client, trio.open_nursery() as nursery:
        peer = Peer(client)
        nursery.start_soon(peer.serve)
        peer.reads = False
        for number in range(1, 501):
            peer.send(call(number, "workflows"))
        await trio.sleep(100)
        assert peer.unread > 450
        peer.reads = True
        with trio.fail_after(100):
            while len(peer.frames) < 500:
                await trio.sleep(1)
        nursery.cancel_scope.cancel()
