"""Ownership: one process owns a namespace, and another one takes over when it is gone."""

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from keyrun.storage import StoreLocked, StoreLost
from keyrun.storage.conformance import batch
from keyrun.storage.postgres.tuning import StoreTuning
from keyrun.storage.store import boottime
from tests.faults.soaking import amount
from tests.postgres import new_namespace, open_store, run_sql, shared_url
from tests.storage.postgres.proxy import other_backend, proxy

PROGRAM = Path(__file__).with_name("owner.py")


class Owner:
    """Another process that owns a namespace."""

    def __init__(self, url: str, namespace: str, ttl: float) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(PROGRAM), url, namespace, str(ttl)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def line(self) -> list[str]:
        """Return the next line that the process prints, as words."""
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], 60)[0], "the owner prints nothing"
        return self.process.stdout.readline().split()

    async def begun(self) -> None:
        """Wait until the process has committed."""
        while (await trio.to_thread.run_sync(self.line))[:2] != ["committed", "1"]:
            pass

    def rest(self) -> list[list[str]]:
        """Return the words of all lines that were not read yet. The process has ended."""
        assert self.process.stdout is not None
        return [line.split() for line in self.process.stdout.read().splitlines()]

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)


@contextmanager
def owner(namespace: str, ttl: float, url: str | None = None) -> Iterator[Owner]:
    """Run another owner for the time of a block."""
    other = Owner(url or shared_url(), namespace, ttl)
    with other.process:
        try:
            yield other
        finally:
            other.process.kill()


def epochs_of(namespace: str) -> list[int]:
    """Return the epoch of each commit, in order."""
    rows = run_sql(
        shared_url(),
        f"""select l.epoch from keyrun.log l join keyrun.part p on p.id = l.part
            where p.namespace = '{namespace}' order by l.seq""",
    )
    return [int(str(epoch)) for (epoch,) in rows]


async def server_has_run_for(seconds: float) -> None:
    """Wait until session locks count."""
    while True:
        ((uptime,),) = run_sql(
            shared_url(),
            "select extract(epoch from clock_timestamp() - pg_postmaster_start_time())::float8",
        )
        left = seconds - float(str(uptime))
        if left < 0:
            return
        await trio.sleep(left + 0.01)


async def test_a_namespace_has_one_owner() -> None:
    async with open_store(ttl=7) as store:
        another = open_store(namespace=store.name)
        with pytest.raises(StoreLocked, match=rf"{store.node}, epoch 1, with [67]\.\d s left"):
            await another.__aenter__()
        assert not another.is_trusted()
        async with open_store() as other:
            await other.commit(batch(("red", b"k", b"v")))
        await store.commit(batch(("red", b"k", b"v")))


async def test_an_owner_is_trusted_until_its_lease_ends() -> None:
    async with open_store(ttl=10) as store:
        assert store.epoch == 1
        assert store.is_trusted()
        assert 5 < store.trusted_until - boottime() < 10
        before = store.trusted_until
        await store.commit(batch(("red", b"k", b"v")))
        assert store.trusted_until > before
        called: list[bool] = []
        store.when_trusted(lambda: called.append(True))
        assert called
        assert abs(store.clock_offset) < 1
    assert not store.is_trusted()
    async with store:
        assert store.epoch == 2


async def test_the_lease_shows_who_owns_the_namespace() -> None:
    store = open_store()
    store.describe(address="unix:/run/x", format=3, details='{"workflows": []}')
    assert await store.read_lease() is None
    async with store:
        lease = await open_store(namespace=store.name).read_lease()
        assert lease is not None
        assert (lease.node, lease.epoch, lease.address) == (store.node, 1, "unix:/run/x")
        assert (lease.format, lease.details, lease.locked) == (3, '{"workflows": []}', True)
        assert 5 < lease.seconds_left <= 10
    lease = await store.read_lease()
    assert lease is not None
    assert (lease.node, lease.epoch, lease.address) == (None, 1, None)


async def test_of_stores_that_race_for_a_namespace_one_gets_it() -> None:
    namespace = new_namespace()

    async def race(winners: list[int]) -> None:
        store = open_store(namespace=namespace)
        try:
            async with store:
                winners.append(store.epoch)
                await store.commit(batch(("red", b"%d" % store.epoch, b"v")))
                await everyone_tried.wait()
        except StoreLocked:
            losers.append(store)
            if len(losers) == 2:
                everyone_tried.set()

    for turn in range(amount(5, 100)):
        winners: list[int] = []
        losers: list[object] = []
        everyone_tried = trio.Event()
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                for _ in range(3):
                    nursery.start_soon(race, winners)
        assert winners == [turn + 1]


async def test_a_store_that_waits_gets_the_namespace_when_its_owner_closes_it() -> None:
    waiting = open_store(ttl=60)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            async with open_store(namespace=waiting.name, ttl=60) as store:
                await store.commit(batch(("red", b"k", b"v")))
                nursery.start_soon(waiting.wait_until_free)
                await trio.sleep(0.2)
                assert nursery.child_tasks
        async with waiting:
            assert waiting.epoch == 2
            assert await waiting.get("red", b"k") == b"v"


async def test_a_killed_owner_is_replaced_at_once() -> None:
    ttl = 6.0
    await server_has_run_for(ttl)
    waiting = open_store(ttl=ttl)
    with owner(waiting.name, ttl) as other:
        await other.begun()
        with pytest.raises(StoreLocked):
            await waiting.__aenter__()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.wait_until_free)
            await trio.sleep(0.3)
            other.send(signal.SIGKILL)
            killed_at = time.time()
        async with waiting:
            taken_at = time.time()
            await waiting.commit(batch(("red", b"mine", b"v")))
            print(f"take-over after kill -9: {taken_at - killed_at:.3f} s")
            assert taken_at - killed_at < ttl / 2
            committed = [words for words in other.rest() if words[0] == "committed"]
            for words in committed:
                assert await waiting.get("red", b"%06d" % (int(words[1]) - 1)) == b"1"


async def test_behind_a_pooler_a_killed_owner_is_replaced_when_its_lease_ends() -> None:
    ttl = 1.0
    await server_has_run_for(ttl)
    waiting = open_store(ttl=ttl)
    async with proxy(shared_url()) as pooler:
        pooler.rewrite = other_backend
        with owner(waiting.name, ttl, pooler.url(shared_url())) as other:
            await other.begun()
            lease = await waiting.read_lease()
            assert lease is not None
            assert not lease.locked
            async with trio.open_nursery() as nursery:
                nursery.start_soon(waiting.wait_until_free)
                await trio.sleep(0.2)
                other.send(signal.SIGKILL)
                killed_at = time.time()
            async with waiting:
                took = time.time() - killed_at
                print(f"take-over without a session lock: TTL {took - ttl:+.3f} s")
                assert ttl * 0.9 < took < ttl + 5


async def test_a_stopped_owner_is_replaced_and_commits_nothing_afterwards() -> None:
    ttl = 0.6
    for _ in range(amount(2, 100)):
        waiting = open_store(ttl=ttl)
        with owner(waiting.name, ttl) as zombie:
            await zombie.begun()
            zombie.send(signal.SIGSTOP)
            with trio.fail_after(ttl + 10):
                await waiting.wait_until_free()
            async with waiting:
                await waiting.commit(batch(("red", b"mine", b"v")))
                zombie.send(signal.SIGCONT)
                await trio.to_thread.run_sync(zombie.process.wait)
                await waiting.commit(batch(("red", b"mine", b"w")))
            last = zombie.rest()[-1]
            assert last[:2] == ["StoreLost", "False"]
        epochs = epochs_of(waiting.name)
        assert epochs == sorted(epochs)
        assert epochs.count(2) == 2


async def test_a_loop_that_is_blocked_for_longer_than_the_lease_keeps_it() -> None:
    ttl = 1.0
    async with open_store(ttl=ttl) as store:
        with owner(store.name, ttl) as other:
            assert other.line() == ["waits"]
            time.sleep(2.5 * ttl)
            assert store.is_trusted()
            await store.commit(batch(("red", b"k", b"v")))
        assert epochs_of(store.name) == [1]


async def test_a_loop_that_does_not_answer_any_more_loses_the_lease() -> None:
    ttl = 0.5
    with pytest.raises(StoreLost):
        async with open_store(ttl=ttl, tuning=StoreTuning(loop_timeout=0.5)) as store:
            with owner(store.name, ttl) as other:
                while other.line()[0] != "owns":  # blocks the loop
                    pass
                await store.commit(batch(("red", b"k", b"v")))


async def test_an_owner_that_loses_its_session_lock_is_trusted_again_when_it_has_it() -> None:
    async with open_store() as store:
        await store.commit(batch(("red", b"k", b"v")))
        assert store.is_trusted()
        application = f"keyrun:{store.name}:{store.node}"[:63]
        ended = run_sql(
            shared_url(),
            "select pg_terminate_backend(pid) from pg_locks join pg_stat_activity using (pid) "
            f"where locktype = 'advisory' and application_name = '{application}'",
        )
        assert ended == [(True,)]
        with trio.fail_after(10):
            while store.is_trusted():
                await trio.lowlevel.checkpoint()
            trusted = trio.Event()
            store.when_trusted(trusted.set)
            await trusted.wait()
        assert store.is_trusted()
        await store.commit(batch(("red", b"k", b"w")))
        assert store.epoch == 1


async def test_an_owner_without_a_way_to_the_database_is_not_trusted_and_waits() -> None:
    ttl = 0.6
    tuning = StoreTuning(answer_timeout=0.3)
    async with proxy(shared_url()) as network:
        async with open_store(network.url(shared_url()), ttl=ttl, tuning=tuning) as store:
            await store.commit(batch(("red", b"before", b"v")))
            network.is_blocked = True
            async with trio.open_nursery() as nursery:
                nursery.start_soon(store.commit, batch(("red", b"k", b"v")))
                with trio.fail_after(10):
                    while store.is_trusted():
                        await trio.sleep(0.01)
                await trio.sleep(ttl)
                assert await store.get("red", b"k") is None
                network.is_blocked = False
            with trio.fail_after(10):
                trusted = trio.Event()
                store.when_trusted(trusted.set)
                await trusted.wait()
            assert await store.get("red", b"k") == b"v"
            assert store.epoch == 1
