"""Crashes of PostgreSQL: nothing that was acknowledged is lost, and the store continues."""

import shutil
import subprocess

import pytest
import trio

from keyrun.storage import StoreError, StoreLost
from keyrun.storage.conformance import batch
from keyrun.storage.postgres import PostgresStore
from keyrun.storage.postgres.tuning import StoreTuning
from tests.faults.soaking import amount
from tests.postgres import Server, new_namespace, server

OFTEN = StoreTuning(fold_seconds=0.2, fold_piece=16, close_timeout=1.0)


def open_on(own: Server, namespace: str, ttl: float) -> PostgresStore:
    """Return a store on a server that syncs."""
    return PostgresStore(own.url(), namespace=namespace, ttl=ttl, tuning=OFTEN)


async def test_nothing_is_lost_when_the_server_is_killed_under_load() -> None:
    ttl = 1.0
    namespace = new_namespace()
    acknowledged: dict[bytes, bytes] = {}
    is_over = False

    async def load(store: PostgresStore, task: int) -> None:
        number = 0
        while not is_over:
            key, value = b"%d.%d" % (task, number % 50), b"%d" % number
            await store.commit(batch(("red", key, value), ("green", b"%d" % task, value)))
            acknowledged[key] = value
            number += 1

    with server(fsync="on", full_page_writes="on") as own:
        async with open_on(own, namespace, ttl) as store:
            async with trio.open_nursery() as nursery:
                for task in range(8):
                    nursery.start_soon(load, store, task)
                for turn in range(amount(2, 10)):
                    await trio.sleep(0.3)
                    await trio.to_thread.run_sync(own.kill)
                    # Every other time for longer than the lease.
                    await trio.sleep(2 * ttl if turn % 2 else 0.0)
                    assert turn % 2 == 0 or not store.is_trusted()
                    await trio.to_thread.run_sync(own.start)
                    began, commits = trio.current_time(), store.statistics().commits
                    with trio.fail_after(20):
                        while store.statistics().commits < commits + 3:
                            await trio.sleep(0.001)
                    print(f"continues {trio.current_time() - began:.3f} s after the restart")
                    trusted = trio.Event()
                    store.when_trusted(trusted.set)
                    with trio.fail_after(20):
                        await trusted.wait()
                is_over = True
            assert store.epoch == 1
        async with open_on(own, namespace, ttl) as store:
            assert dict(await store.scan("red")) == acknowledged


async def test_a_database_that_was_set_back_is_noticed() -> None:
    with server(fsync="on") as own:
        namespace = new_namespace()
        with pytest.raises(StoreLost, match="was set back: commit 20 was acknowledged"):
            async with open_on(own, namespace, 10.0) as store:
                for number in range(10):
                    await store.commit(batch(("red", b"%d" % number, b"v")))
                own.halt()
                backup = own.folder / "backup"
                subprocess.run(["cp", "-a", own.data, backup], check=True)
                own.start()
                for number in range(10, 20):
                    await store.commit(batch(("red", b"%d" % number, b"v")))
                own.halt()
                shutil.rmtree(own.data)
                backup.rename(own.data)
                own.start()
                lost = trio.Event()
                store.when_failed(lambda _: lost.set())
                with trio.fail_after(20):
                    await lost.wait()
                assert not store.is_trusted()
        async with store:
            assert len(await store.scan("red")) == 10


async def test_a_store_that_is_closed_without_its_database_gives_up_after_a_while() -> None:
    with server() as own:
        store = PostgresStore(own.url(), ttl=1.0, unsafe=True, tuning=OFTEN)
        await store.__aenter__()
        own.kill()
        store.stage(batch(("red", b"k", b"v")))
        with pytest.raises(StoreError, match="closed after a failed commit") as raised:
            with trio.fail_after(20):
                await store.__aexit__(None, None, None)
        assert "could not be reached for 1 s" in str(raised.value.__cause__)
        own.start()
        with trio.fail_after(20):
            await store.wait_until_free()
        async with store:
            assert await store.scan("red") == []
