"""Processes share a namespace of a real PostgreSQL."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import trio

import keyrun
from keyrun.control.options import Control
from keyrun.control.postgres_place import LeaseTransport
from keyrun.control.sealing import Signature
from keyrun.storage.postgres import PostgresStore
from tests.control.joiners import OPTIONS, Account, append, crowd, owns, until_owner, wait_for_go
from tests.postgres import new_namespace, run_sql, shared_url

TTL = 1.0


def store_of(namespace: str) -> PostgresStore:
    return PostgresStore(shared_url(), namespace=namespace, ttl=TTL, unsafe=True)


@pytest.fixture
def namespace() -> str:
    return new_namespace()


class OtherNode:
    """A node in another process."""

    def __init__(self, namespace: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.control.test_postgres_place", shared_url(), namespace],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "open\n"

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


@contextmanager
def other_node(namespace: str) -> Iterator[OtherNode]:
    node = OtherNode(namespace)
    try:
        yield node
    finally:
        node.close()


async def test_one_process_owns_and_the_others_forward_and_take_over(
    namespace: str, tmp_path: Any
) -> None:
    lines = str(tmp_path / "lines")
    async with crowd(store_of(namespace)) as members:
        owner = await members.join(namespace=namespace)
        client = await members.join(store=store_of(namespace), namespace=namespace)
        assert (owns(owner.rt), owns(client.rt)) == (True, False)
        run = await client.rt.submit(append, [lines, "a"], key="k")
        assert await run.result() == "a"
        waiting = await owner.rt.submit(wait_for_go, key="k", run_id="r")
        assert await client.rt.entity(Account, "k2").deposit(5) == 5
        await owner.leave()
        await until_owner(client.rt)
        await client.rt.signal("r", "go", 1)
        assert await client.rt.run(waiting.run_id).result() == "1"
        assert await client.rt.entity(Account, "k2").deposit(5) == 10


async def test_a_killed_owner_is_replaced_and_calls_continue(namespace: str, tmp_path: Any) -> None:
    with other_node(namespace) as owner:
        async with crowd(store_of(namespace)) as members:
            client = await members.join(namespace=namespace)
            assert not owns(client.rt)
            run = await client.rt.submit(wait_for_go, key="k")
            assert await client.rt.entity(Account, "a").deposit(1) == 1
            owner.process.kill()
            assert await client.rt.entity(Account, "a").deposit(1) == 2
            assert owns(client.rt)
            await client.rt.signal(run.run_id, "go", "x")
            assert await run.result() == "x"


async def test_a_stopped_owner_comes_back_as_a_client(namespace: str, tmp_path: Any) -> None:
    lines = tmp_path / "lines"
    with other_node(namespace) as owner:
        async with crowd(store_of(namespace)) as members:
            client = await members.join(namespace=namespace)
            await (await client.rt.submit(append, [str(lines), "a"], key="k")).result()
            owner.process.send_signal(signal.SIGSTOP)
            await (await client.rt.submit(append, [str(lines), "b"], key="k")).result()
            assert owns(client.rt)
            owner.process.send_signal(signal.SIGCONT)
            # The block of the former owner lives: it forwards its calls to this process.
            assert owner.process.stdin is not None
            owner.process.stdin.write(f"{lines}\n")
            owner.process.stdin.flush()
            assert owner.process.stdout is not None
            said = await trio.to_thread.run_sync(owner.process.stdout.readline)
            assert said == "c False\n"
    assert lines.read_text() == "a\nb\nc\n"


async def test_a_client_without_workflows_connects_to_a_url(namespace: str) -> None:
    with other_node(namespace):
        async with keyrun.connect(shared_url(), namespace=namespace) as client:
            assert await client.entity(Account, "a").deposit(3) == 3


async def test_requests_that_no_node_has_signed_are_refused(namespace: str) -> None:
    async with crowd(store_of(namespace)) as members:
        await members.join(namespace=namespace)
        store = store_of(namespace)
        lease = await store.read_lease()
        assert lease is not None
        assert lease.address is not None
        assert lease.details is not None
        secret = json.loads(lease.details)["secret"]
        path = f"/v1/channel?namespace={namespace}"

        def signed(**changes: Any) -> Signature:
            given = {"node": "n", "epoch": lease.epoch, "time": time.time(), **changes}
            return Signature.of(changes.pop("secret", secret), "POST", path, **given)

        good = signed()
        cases = [
            (None, 401),
            ("Bearer x", 401),
            (signed(epoch=lease.epoch + 1).header(), 421),
            (signed(time=time.time() - 40).header(), 401),
            (good.header().replace(good.nonce, "0" * 32), 401),
            (good.header(), 200),
            (good.header(), 401),
        ]
        for header, status in cases:
            assert await _status(lease.address, path, header) == status, header
        assert await _status(lease.address, "/v1/runs", signed().header()) == 404
        assert await _status(lease.address, "/", None) == 404


async def _status(address: str, path: str, header: str | None) -> int:
    stream = await trio.open_unix_socket(address.removeprefix("unix:"))
    async with stream:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
        head += "Content-Type: application/vnd.keyrun.channel.v1+msgpack\r\n"
        head += "" if header is None else f"Authorization: {header}\r\n"
        await stream.send_all(f"{head}\r\n".encode())
        answer = b""
        while b"\r\n" not in answer:
            answer += await stream.receive_some(4096)
    return int(answer.split()[1])


async def test_a_node_whose_clock_is_wrong_joins_all_the_same(
    namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with other_node(namespace):
        real = time.time
        monkeypatch.setattr("keyrun.control.nodes.time.time", lambda: real() - 3600)
        transport = LeaseTransport(store_of(namespace), call_timeout=10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.run)
            await transport.connected()
            nursery.cancel_scope.cancel()


async def test_nodes_listen_where_they_are_told(namespace: str) -> None:
    control = Control(listen="127.0.0.1:0", advertise="http://localhost:1")
    async with crowd(store_of(namespace)) as members:
        await members.join(namespace=namespace, control=control)
        lease = await store_of(namespace).read_lease()
        assert lease is not None
        assert lease.address == "http://localhost:1"


async def test_nodes_speak_over_tcp_and_see_values_that_are_redacted_for_people(
    namespace: str,
) -> None:
    options: dict[str, Any] = {
        "namespace": namespace,
        "control": Control(listen="127.0.0.1:0"),
        "redact": lambda value: "hidden",
    }
    async with crowd(store_of(namespace)) as members:
        owner = await members.join(**options)
        client = await members.join(store=store_of(namespace), **options)
        assert (owns(owner.rt), owns(client.rt)) == (True, False)
        lease = await store_of(namespace).read_lease()
        assert lease is not None
        assert str(lease.address).startswith("http://127.0.0.1:")
        run = await client.rt.submit(wait_for_go, key="k")
        await client.rt.signal(run.run_id, "go", "secret")
        assert await run.result() == "secret"
        audit = await owner.rt.audit()
        assert {each.who for each in audit.entries} == {f"node {_node_of(client.rt)}"}


def _node_of(rt: Any) -> str:
    return str(rt._transport._store.node)


async def test_the_secret_is_new_for_each_owner_and_in_no_text(
    namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = []
    caplog.set_level("DEBUG")
    for _ in range(2):
        async with crowd(store_of(namespace)) as members:
            member = await members.join(namespace=namespace)
            (row,) = run_sql(
                shared_url(), f"select details from keyrun.part where namespace = '{namespace}'"
            )
            seen.append(json.loads(str(row[0]))["secret"])
            assert seen[-1] not in repr(vars(member.rt))
    assert len(set(seen)) == 2
    assert not [each for each in caplog.messages if any(one in each for one in seen)]


async def _main(url: str, namespace: str) -> None:
    store = PostgresStore(url, namespace=namespace, ttl=TTL, unsafe=True)
    options: dict[str, Any] = {**OPTIONS, "when_locked": "join", "namespace": namespace}
    async with keyrun.open_runtime(store, **options) as rt:
        print("open", flush=True)
        while True:
            path = (await trio.to_thread.run_sync(sys.stdin.readline)).strip()
            if not path:
                os._exit(0)
            run = await rt.submit(append, [path, "c"], key="k")
            print(await run.result(), owns(rt), flush=True)


if __name__ == "__main__":
    trio.run(_main, sys.argv[1], sys.argv[2])
