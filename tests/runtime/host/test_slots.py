"""Slots bound the steps that run, not the runs; free ones are shared out fairly."""

import pytest
import trio

from keyrun import Context, Priority, Retry, TransientError, step, workflow
from keyrun.runtime.host.slots import Slots
from keyrun.testing import open_test_runtime


class Gauge:
    """How many steps run, and in which order they began."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self.order: list[str] = []

    async def work(self, name: str, seconds: float = 1.0) -> None:
        self.order.append(name)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await trio.sleep(seconds)
        finally:
            self.now -= 1


@pytest.fixture
def gauge() -> Gauge:
    return Gauge()


async def test_no_more_steps_run_than_there_are_slots(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        work = step(gauge.work)
        await ctx.step(work, "a")
        await ctx.gather(*(ctx.step(work, name) for name in "bcd"))

    async with open_test_runtime(workflows=[job], max_concurrent_steps=3) as rt:
        handles = [await rt.submit(job, key=f"k{n}") for n in range(10)]
        await trio.sleep(0.5)
        statistics = rt.statistics()
        assert statistics.running_steps == 3
        assert statistics.waiting_for_slot == 7
        for handle in handles:
            await handle.result()
        assert rt.statistics().running_steps == 0
    assert gauge.most == 3
    assert len(gauge.order) == 40


async def test_one_slot_is_enough_for_runs_with_many_steps_and_gather(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        work = step(gauge.work)

        async def branch(ctx: Context) -> None:
            await ctx.step(work, "b")
            await ctx.sleep(1)
            await ctx.gather(ctx.step(work, "c"), ctx.step(work, "d"))

        await ctx.step(work, "a")
        await ctx.gather(branch, branch, ctx.step(work, "e"))
        return "done"

    async with open_test_runtime(workflows=[job], max_concurrent_steps=1) as rt:
        handles = [await rt.submit(job, key=f"k{n}") for n in range(4)]
        assert [await handle.result() for handle in handles] == ["done"] * 4
    assert gauge.most == 1


async def test_runs_that_wait_hold_no_slot(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=1000))
    async def fail_once() -> None:
        gauge.order.append("fail")
        if gauge.order.count("fail") == 1:
            raise TransientError("once")

    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(1000)

    @workflow
    async def retrier(ctx: Context) -> None:
        await ctx.step(fail_once)

    @workflow
    async def job(ctx: Context) -> float:
        await ctx.step(step(gauge.work), "job")
        return trio.current_time()

    async with open_test_runtime(
        workflows=[sleeper, retrier, job], max_concurrent_steps=1, drain_timeout=0
    ) as rt:
        await rt.submit(sleeper, key="a")
        await rt.submit(retrier, key="b")
        await rt.submit(job, key="c", run_id="paused")
        await rt.pause("paused")
        assert await (await rt.submit(job, key="d")).result() < 10


async def test_a_run_that_is_paused_while_it_waits_for_a_slot_does_not_keep_the_slot(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    @workflow
    async def job(ctx: Context, name: str) -> None:
        await ctx.step(step(gauge.work), name)

    async with open_test_runtime(workflows=[job], max_concurrent_steps=1) as rt:
        await rt.submit(job, "first", key="a")
        await trio.testing.wait_all_tasks_blocked()
        held = await rt.submit(job, "held", key="b", run_id="held")
        await trio.testing.wait_all_tasks_blocked()
        assert rt.statistics().waiting_for_slot == 1
        await rt.pause("held")
        await (await rt.submit(job, "other", key="c")).result()
        assert rt.statistics().running_steps == 0
        await rt.resume("held")
        await held.result()
    assert gauge.order == ["first", "other", "held"]


async def test_a_run_that_is_cancelled_while_it_waits_for_a_slot_does_not_lose_the_slot(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    @workflow
    async def job(ctx: Context, name: str) -> None:
        await ctx.step(step(gauge.work), name)

    async with open_test_runtime(workflows=[job], max_concurrent_steps=1) as rt:
        await rt.submit(job, "first", key="a")
        await trio.testing.wait_all_tasks_blocked()
        await rt.submit(job, "gone", key="b", run_id="gone")
        last = await rt.submit(job, "last", key="c")
        await trio.testing.wait_all_tasks_blocked()
        assert rt.statistics().waiting_for_slot == 2
        assert await rt.cancel("gone")
        await last.result()
        assert rt.statistics().running_steps == 0
    assert gauge.order == ["first", "last"]


async def test_a_waiter_that_is_cancelled_as_it_gets_its_slot_gives_it_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """By the time it runs again the slot is its own."""
    slots = Slots(1)
    assert slots.take_nowait()

    async def take(scope: trio.CancelScope) -> None:
        with scope:
            await slots.take(Priority.NORMAL)
            try:
                await trio.sleep_forever()
            finally:
                slots.give()

    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()
        nursery.start_soon(take, scope)
        await trio.testing.wait_all_tasks_blocked()
        slots.give()
        scope.cancel()
    assert slots.free == 1
    assert slots.waiting == 0


async def test_cold_keys_are_not_starved_by_hot_ones(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    """50 keys with 40 steps each, 25 keys with one: those are done after a few rounds."""

    @workflow
    async def hot(ctx: Context) -> None:
        for _ in range(40):
            await ctx.step(step(gauge.work), "hot")

    @workflow
    async def cold(ctx: Context) -> int:
        await ctx.step(step(gauge.work), "cold")
        return len(gauge.order)

    async with open_test_runtime(
        workflows=[hot, cold], max_concurrent_steps=4, drain_timeout=0
    ) as rt:
        for n in range(50):
            await rt.submit(hot, key=f"hot{n}")
        await trio.sleep(5)
        handles = [await rt.submit(cold, key=f"cold{n}") for n in range(25)]
        begun = [await handle.result() for handle in handles]
    assert max(begun) < 200


async def test_high_is_preferred_and_low_still_moves(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    @workflow
    async def job(ctx: Context, name: str) -> None:
        for _ in range(10):
            await ctx.step(step(gauge.work), name)

    async with open_test_runtime(workflows=[job], max_concurrent_steps=1, drain_timeout=0) as rt:
        for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
            for n in range(10):
                await rt.submit(job, priority.name, key=f"{priority}{n}", priority=priority)
        await trio.sleep(140)
    begun = gauge.order[30:135]
    assert begun.count("HIGH") == pytest.approx(60, abs=2)
    assert begun.count("NORMAL") == pytest.approx(30, abs=2)
    assert begun.count("LOW") == pytest.approx(15, abs=2)
    assert "LOW" in gauge.order[:10]


async def test_inside_a_priority_who_comes_first_is_served_first(
    autojump_clock: trio.testing.MockClock, gauge: Gauge
) -> None:
    @workflow
    async def job(ctx: Context, name: str) -> None:
        await ctx.step(step(gauge.work), name)

    async with open_test_runtime(workflows=[job], max_concurrent_steps=1) as rt:
        handles = []
        for n in range(8):
            handles.append(await rt.submit(job, str(n), key=f"k{n}"))
            await trio.testing.wait_all_tasks_blocked()
        for handle in handles:
            await handle.result()
    assert gauge.order == [str(n) for n in range(8)]
