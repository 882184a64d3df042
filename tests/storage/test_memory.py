"""The store in memory loses in a crash what a process would lose."""

import pytest
import trio
from trio.testing import MockClock

from keyrun.storage import MemoryStore, StoreCrashed
from keyrun.storage.conformance import batch


async def test_a_crash_in_the_middle_of_a_commit_applies_nothing(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore(latency=1.0)
    async with store:
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                with pytest.raises(StoreCrashed):
                    await store.commit(batch(("red", b"k", b"v")))

            nursery.start_soon(commit)
            await trio.sleep(0.5)
            store.crash()
        await trio.sleep(2)
    async with store:
        assert await store.scan("red") == []


async def test_a_commit_that_is_applied_first_survives_a_crash_before_its_answer(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore(latency=1.0, apply_first=True)
    async with store:
        await store.commit(batch(("red", b"k", b"1")))
        async with trio.open_nursery() as nursery:

            async def commit() -> None:
                with pytest.raises(StoreCrashed):
                    await store.commit(batch(("red", b"k", b"2")))

            nursery.start_soon(commit)
            await trio.sleep(0.5)
            assert await store.get("red", b"k") == b"1"
            store.crash()
        await trio.sleep(2)
        assert await store.get("red", b"k") == b"1"
    async with store:
        assert await store.get("red", b"k") == b"2"


async def test_a_commit_that_is_applied_first_is_readable_when_it_is_answered(
    autojump_clock: MockClock,
) -> None:
    async with MemoryStore(latency=1.0, apply_first=True) as store:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(store.commit, batch(("red", b"k", b"v")))
            await trio.sleep(0.9)
            assert await store.get("red", b"k") is None
        assert trio.current_time() == 1.0
        assert await store.get("red", b"k") == b"v"


async def test_latency_is_how_long_a_commit_takes(autojump_clock: MockClock) -> None:
    async with MemoryStore(latency=1.0) as store:
        await store.commit(batch(("red", b"k", b"v")))
        assert trio.current_time() == 1.0


def test_a_negative_latency_is_refused() -> None:
    with pytest.raises(ValueError, match="latency must be at least 0, got -1"):
        MemoryStore(latency=-1)
