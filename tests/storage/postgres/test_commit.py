"""Commits: each is applied once, also if its connection is cut off, and only by the owner."""

import logging
from random import Random

import pytest
import trio

from keyrun.storage import BatchTooLarge, StoreLost
from keyrun.storage.conformance import batch
from keyrun.storage.postgres import PostgresStore
from tests.faults.soaking import amount
from tests.postgres import new_namespace, open_store, run_sql, shared_url
from tests.storage.postgres.proxy import WAYS, proxy


def commits_of(store: PostgresStore) -> list[tuple[int, int, list[bytes]]]:
    """Return sequence number, epoch and keys of the commits in the log."""
    rows = run_sql(
        shared_url(),
        f"""select l.seq, l.epoch, l.keys from keyrun.log l join keyrun.part p on p.id = l.part
            where p.namespace = '{store.name}' order by l.seq""",
    )
    return [(int(str(seq)), int(str(epoch)), list(keys)) for seq, epoch, keys in rows]  # type: ignore[call-overload]


@pytest.mark.parametrize("way", WAYS)
async def test_a_commit_that_was_cut_off_is_applied_once(way: str) -> None:
    async with proxy(shared_url()) as cutter:
        namespace = new_namespace()
        async with open_store(cutter.url(shared_url()), namespace) as store:
            await store.commit(batch(("red", b"before", b"")))
            cutter.cuts = [way]
            with trio.fail_after(20):
                await store.commit(batch(("red", b"k", b"v")))
                assert await store.get("red", b"k") == b"v"
                await store.commit(batch(("red", b"after", b"")))
            assert cutter.done == [way]
            log = commits_of(store)
            assert [keys for _, _, keys in log if keys] == [[b"before"], [b"k"], [b"after"]]
            assert [seq for seq, _, _ in log] == [*range(1, len(log) + 1)]


async def test_a_commit_whose_answer_was_lost_is_acknowledged_after_one_more_commit() -> None:
    """With synchronous replication, a commit is visible before the standby has it."""
    async with proxy(shared_url()) as cutter:
        async with open_store(cutter.url(shared_url())) as store:
            cutter.cuts = ["answer lost"]
            await store.commit(batch(("red", b"k", b"v")))
            assert [keys for _, _, keys in commits_of(store)] == [[b"k"], []]


async def test_commits_that_are_cut_off_at_random_are_applied_once_and_in_order() -> None:
    seed = 7
    random = Random(seed)
    count = amount(60, 2000)
    async with proxy(shared_url()) as cutter:
        namespace = new_namespace()
        async with open_store(cutter.url(shared_url()), namespace) as store:
            cutter.cuts = [random.choice((*WAYS, None)) for _ in range(count)]
            with trio.fail_after(30 + count / 5):
                for number in range(count):
                    await store.commit(
                        batch(("red", b"%05d" % number, b"v"), ("green", b"last", b"%d" % number))
                    )
            log = commits_of(store)
        written = [key for _, _, keys in log for key in keys if key != b"last"]
        assert written == [b"%05d" % number for number in range(count)], f"seed {seed}"
        async with open_store(namespace=namespace) as store:
            assert len(await store.scan("red")) == count
            assert await store.get("green", b"last") == b"%d" % (count - 1)


async def test_an_owner_of_an_earlier_epoch_can_commit_nothing() -> None:
    failures: list[object] = []
    with pytest.raises(StoreLost, match="epoch 1 was taken over by another process"):
        async with open_store() as store:
            store.when_failed(failures.append)
            await store.commit(batch(("red", b"k", b"v")))
            run_sql(
                shared_url(),
                f"update keyrun.part set owner = 'another', epoch = epoch + 1 "
                f"where namespace = '{store.name}'",
            )
            with pytest.raises(StoreLost):
                await store.commit(batch(("red", b"late", b"v")))
            assert not store.is_trusted()
            assert await store.get("red", b"late") is None
            with pytest.raises(StoreLost):
                store.stage(batch(("red", b"later", b"v")))
    assert [type(failure) for failure in failures] == [StoreLost]
    assert [keys for _, _, keys in commits_of(store)] == [[b"k"]]


async def test_an_idle_owner_notices_that_another_process_owns_the_store() -> None:
    with pytest.raises(StoreLost, match="epoch 1 was taken over by another process"):
        async with open_store(ttl=0.5) as store:
            lost = trio.Event()
            store.when_failed(lambda _: lost.set())
            run_sql(
                shared_url(),
                f"update keyrun.part set owner = 'another', epoch = epoch + 1 "
                f"where namespace = '{store.name}'",
            )
            with trio.fail_after(10):
                await lost.wait()
            assert not store.is_trusted()


@pytest.mark.parametrize("by", [-2, 2])
async def test_a_position_that_is_not_that_of_this_owner_stops_it_loudly(
    by: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A database that was set back has lost acknowledged commits."""
    with pytest.raises(StoreLost, match="was set back"):
        async with open_store() as store:
            for number in range(3):
                await store.commit(batch(("red", b"%d" % number, b"v")))
            run_sql(
                shared_url(),
                f"update keyrun.part set seq = seq + {by} where namespace = '{store.name}'",
            )
            with pytest.raises(StoreLost, match=f"commit 3 .* is at commit {3 + by}"):
                await store.commit(batch(("red", b"k", b"v")))
    assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1


async def test_an_idle_owner_notices_that_the_database_was_set_back() -> None:
    with pytest.raises(StoreLost, match="commit 1 was acknowledged, and the database is at commit"):
        async with open_store(ttl=0.5) as store:
            lost = trio.Event()
            store.when_failed(lambda _: lost.set())
            await store.commit(batch(("red", b"k", b"v")))
            run_sql(
                shared_url(),
                f"update keyrun.part set seq = 0 where namespace = '{store.name}'",
            )
            with trio.fail_after(10):
                await lost.wait()


async def test_a_batch_that_is_too_large_is_refused_and_the_store_continues() -> None:
    async with open_store() as store:
        large = bytes(100 << 20)
        with pytest.raises(BatchTooLarge, match="at most 268435456 at once"):
            store.stage(batch(*(("red", b"%d" % number, large) for number in range(3))))
        await store.commit(batch(("red", b"k", b"v")))
        assert await store.scan("red") == [(b"k", b"v")]


class SmallGroups(PostgresStore):
    full_group_bytes = 1 << 20


async def test_a_group_is_closed_when_it_is_full() -> None:
    """A message to PostgreSQL ends at 1 GB."""
    value = bytes(1 << 16)
    async with SmallGroups(shared_url(), namespace=new_namespace(), unsafe=True) as store:
        async with trio.open_nursery() as nursery:
            for number in range(64):
                one = batch(("red", b"%d" % number, value), ("green", b"%d" % number, b""))
                nursery.start_soon(store.commit, one)
        sizes = [len(keys) for _, _, keys in commits_of(store)]
        assert sum(sizes) == 128
        assert 2 * 16 <= max(sizes) <= 2 * 17
        assert len(await store.scan("red")) == 64


async def test_what_a_task_stages_without_an_await_is_one_commit_however_large_it_is() -> None:
    async with SmallGroups(shared_url(), namespace=new_namespace(), unsafe=True) as store:
        for number in range(20):
            store.stage(batch(("red", b"%d" % number, bytes(1 << 17))))
        await store.durable()
        assert [len(keys) for _, _, keys in commits_of(store)] == [20]
