"""Which records share a commit."""

from contextlib import suppress

import pytest
import trio

from keyrun.storage import Batch, MemoryStore


def one(key: bytes) -> Batch:
    batch = Batch()
    batch.put("table", key, b"value")
    return batch


async def test_those_who_come_while_many_wait_share_the_commit() -> None:
    """One sync is cheaper than two; the first to wait wakes others on the way."""
    commits = []
    async with MemoryStore() as store:

        async def come(passes: int) -> None:
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            await store.commit(one(b"%d" % passes))

        async def crowd() -> None:
            before = store.statistics().commits
            async with trio.open_nursery() as nursery:
                for passes in (0, 0, 0, 0, 1):
                    nursery.start_soon(come, passes)
            commits.append(store.statistics().commits - before)

        for _ in range(4):
            await crowd()
    # What a crowd is has to be learnt first.
    assert commits[-1] == 1


async def test_a_crowd_that_comes_one_by_one_shares_the_commit() -> None:
    """Who is to come next is not always woken before the committer looks again."""
    commits = []
    async with MemoryStore() as store:

        async def come(passes: int) -> None:
            for _ in range(passes):
                await trio.lowlevel.checkpoint()
            await store.commit(one(b"%d" % passes))

        for turn in range(20):
            before = store.statistics().commits
            async with trio.open_nursery() as nursery:
                for passes in (0, 0, 1, 2, 3) if turn > 2 else (0, 0, 0, 0, 0):
                    nursery.start_soon(come, passes)
            commits.append(store.statistics().commits - before)
    assert commits[3:] == [1] * 17


async def test_a_group_that_fails_while_more_are_let_in_is_not_committed() -> None:
    """A crash between the first who waits and the commit loses all of it."""
    store = MemoryStore()
    refused = []

    async def come(passes: int) -> None:
        if passes:
            await trio.lowlevel.checkpoint()
            store.crash()
            return
        try:
            await store.commit(one(b"lost"))
        except Exception as error:
            refused.append(type(error).__name__)

    async with store:
        async with trio.open_nursery() as nursery:
            for _ in range(2):
                nursery.start_soon(store.commit, one(b"crowd"))
        async with trio.open_nursery() as nursery:
            for passes in (0, 0, 1):
                nursery.start_soon(come, passes)
    assert refused == ["StoreCrashed"] * 2
    async with store:
        assert [key for key, _ in await store.scan("table")] == [b"crowd"]


async def test_a_block_of_a_group_is_staged_as_a_whole_or_not_at_all() -> None:
    durable: list[str] = []
    async with MemoryStore() as store:
        group = store.open_group()
        group.put("here", b"before", b"1")
        group.when_durable(durable.append, "before")
        with pytest.raises(KeyError), group.together():
            group.put("here", b"before", b"2")
            group.put("there", b"lost", b"2")
            group.delete("here", b"before")
            group.when_durable(durable.append, "lost")
            group.when_dropped(durable.append, "taken back")
            with group.together():
                group.when_dropped(durable.append, "taken back first")
            raise KeyError("x")
        group.when_dropped(durable.append, "never")
        with group.together() as same:
            assert same is group
            group.put("here", b"kept", b"3")
            group.table("other")[b"kept"] = b"3"
            group.when_durable(durable.append, "kept")
            with suppress(KeyError), group.together():
                group.put("here", b"kept", b"4")
                raise KeyError("x")
            with group.together():
                group.put("here", b"inner", b"5")
                group.when_durable(durable.append, "inner")
        group.when_durable(durable.append, "after")
        await store.durable()
        assert await store.scan("here") == [(b"before", b"1"), (b"inner", b"5"), (b"kept", b"3")]
        assert await store.scan("there") == []
        assert await store.scan("other") == [(b"kept", b"3")]
    dropped = ["taken back first", "taken back"]
    assert durable == [*dropped, "before", "kept", "inner", "after"]


async def test_a_group_whose_only_block_was_dropped_makes_nobody_wait() -> None:
    async with MemoryStore() as store:
        group = store.open_group()
        with suppress(KeyError), group.together():
            group.put("table", b"key", b"value")
            raise KeyError("x")
        with trio.fail_after(1):
            await group.wait()
        assert store.statistics().commits == 0
        await store.durable(store.stage(one(b"key")))
        assert store.statistics().commits == 1
