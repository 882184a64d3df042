"""Timers: runs that sleep are woken when they are due, whatever became of the clock."""

from math import inf

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, workflow
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, open_test_runtime
from tests.runtime.fragile import FragileStore

ended: dict[str, float] = {}


@pytest.fixture(autouse=True)
def _nothing_ended() -> None:
    ended.clear()


@workflow
async def napping(ctx: Context, seconds: float) -> None:
    await ctx.sleep(seconds)
    ended[ctx.run_id] = trio.current_time()


def lose_the_clock(store: FragileStore) -> None:
    """Damage the record of how late it was last."""
    (key,) = [key for key in store.keys("counter") if key.endswith(b"clock")]
    store.damage("counter", key)


async def test_a_damaged_record_of_how_late_it_was_keeps_no_store_from_being_opened(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await rt.submit(napping, 100, key="k", run_id="r")
        await trio.sleep(10)
    lose_the_clock(store)
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await trio.sleep(200)
    assert ended == {"r": pytest.approx(100, abs=0.1)}


async def test_runs_are_woken_in_the_order_in_which_they_are_due_where_the_clock_is_lost(
    autojump_clock: MockClock,
) -> None:
    """It was as late at least as when the last of them left memory, whatever the clock says."""
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await rt.submit(napping, 1000, key="k1", run_id="first")
        await trio.sleep(500)
        await rt.submit(napping, 600, key="k2", run_id="second")
        await trio.sleep(10)
    lose_the_clock(store)
    reopened = trio.current_time()

    def set_back() -> float:
        return EPOCH - 7200 + trio.current_time()

    async with open_test_runtime(store, workflows=[napping], wall=set_back) as rt:
        await trio.sleep(2000)
    assert list(ended) == ["first", "second"]
    assert ended["first"] - reopened == pytest.approx(500, abs=20)
    assert ended["second"] - reopened == pytest.approx(600, abs=20)


@pytest.mark.parametrize("crash", [False, True])
async def test_a_clock_that_is_set_back_while_runs_sleep_makes_no_one_wait_longer_after_a_restart(
    autojump_clock: MockClock, crash: bool
) -> None:
    store, behind = MemoryStore(), 0.0

    def wall() -> float:
        return EPOCH - behind + trio.current_time()

    async with open_test_runtime(store, workflows=[napping], wall=wall) as rt:
        await rt.submit(napping, 1000, key="k", run_id="r")
        await trio.sleep(500)
        behind = 7200
        await trio.sleep(100)
        if crash:
            store.crash()
    async with open_test_runtime(store, workflows=[napping], wall=wall) as rt:
        await trio.sleep(2000)
    assert ended == {"r": pytest.approx(1000, abs=20)}


async def test_a_clock_that_is_set_back_while_nobody_has_the_store_makes_no_one_wait_longer(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await rt.submit(napping, 1000, key="k", run_id="r")
        await trio.sleep(900)

    def set_back() -> float:
        return EPOCH - 7200 + trio.current_time()

    async with open_test_runtime(store, workflows=[napping], wall=set_back) as rt:
        await trio.sleep(2000)
    assert ended == {"r": pytest.approx(1000, abs=0.1)}


async def test_nothing_waits_longer_than_its_whole_length_where_the_clock_is_lost(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping], evict_after=inf) as rt:
        await rt.submit(napping, 1000, key="k", run_id="r")
        await trio.sleep(500)
    lose_the_clock(store)

    def set_back() -> float:
        return EPOCH - 7200 + trio.current_time()

    async with open_test_runtime(store, workflows=[napping], wall=set_back, evict_after=inf) as rt:
        await trio.sleep(9000)
    assert ended == {"r": pytest.approx(1500, abs=0.1)}
