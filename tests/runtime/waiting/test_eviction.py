"""Parking: runs that wait leave memory, and come back when there is something to do."""

from math import inf
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from keyrun import (
    Context,
    Delivery,
    Limits,
    Priority,
    Retry,
    Runtime,
    State,
    TransientError,
    Workflow,
    step,
    workflow,
)
from keyrun.runtime.tuning import Tuning
from keyrun.testing import EPOCH, crash_points, open_test_runtime
from tests.runtime.fragile import FragileStore

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@step
async def note(what: str) -> str:
    ran.append(what)
    return what


@workflow
async def napping(ctx: Context, seconds: float) -> float:
    await ctx.sleep(seconds)
    await ctx.step(note, f"{ctx.run_id} awake")
    return trio.current_time()


@workflow(while_waiting="yield")
async def polite(ctx: Context, seconds: float) -> str:
    await ctx.step(note, f"{ctx.run_id} begins")
    await ctx.sleep(seconds)
    return await ctx.step(note, f"{ctx.run_id} ends")


async def test_a_run_that_sleeps_leaves_nothing_in_memory_but_the_name_of_its_key(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[napping]) as rt:
        runs = [await rt.submit(napping, 1000, key=f"k{n}") for n in range(50)]
        await trio.sleep(10)
        assert (rt.statistics().live, rt.statistics().keys) == (0, 0)
        for run in runs:
            status = await run.status()
            assert status is not None
            assert (status.state, status.waiting_on) == (State.WAITING, "timer")
        for run in runs:
            assert await run.result() == pytest.approx(1000, abs=0.1)


async def test_a_run_that_is_due_soon_stays(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[napping], evict_after=1.0) as rt:
        run = await rt.submit(napping, 1.5, key="k")
        await trio.sleep(1.2)
        assert rt.statistics().live == 1
        assert await run.result() == pytest.approx(1.5, abs=0.1)


async def test_too_many_that_wait_leave_before_their_time(autojump_clock: MockClock) -> None:
    sizes = Tuning(waiting_in_memory=10)
    async with open_test_runtime(workflows=[napping], evict_after=1000, tuning=sizes) as rt:
        runs = [await rt.submit(napping, 100, key=f"k{n}") for n in range(30)]
        await trio.sleep(5)
        assert rt.statistics().live == 10
        for run in runs:
            assert await run.result() == pytest.approx(100, abs=0.2)


async def test_the_key_stays_held_while_its_first_run_sleeps(autojump_clock: MockClock) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await rt.submit(napping, 100, key="k", run_id="a")
        await trio.sleep(5)
        await rt.submit(napping, 1, key="k", run_id="b")
        await trio.sleep(5)
        assert rt.statistics().backlog.pending == 1
        assert rt.statistics().live == 0
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await trio.sleep(5)
        assert rt.statistics().backlog.pending == 1
        late = await rt.submit(napping, 1, key="k", run_id="c")
        await late.result()
        assert rt.statistics().backlog.pending == 0
    assert ran == ["a awake", "b awake", "c awake"]
    assert store.keys("queue") == store.keys("timers") == []


@pytest.mark.parametrize("crash", [False, True])
async def test_after_a_restart_only_the_rest_is_slept(
    autojump_clock: MockClock, crash: bool
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await rt.submit(napping, 100, key="k", run_id="r")
        await trio.sleep(30)
        if crash:
            store.crash()
            await trio.sleep_forever()
    await trio.sleep(20)
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await trio.sleep(1)
        assert rt.statistics().live == 0, "it is not even loaded"
        run = await rt.submit(napping, 100, key="k", run_id="r")
        assert await run.result() == pytest.approx(100, abs=0.2)
    assert ran == ["r awake"]


async def test_what_was_due_while_nobody_was_there_is_due_at_once(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        for n in range(5):
            await rt.submit(napping, 100, key=f"k{n}", run_id=f"r{n}")
        await trio.sleep(30)
    await trio.sleep(1000)
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await trio.sleep(1)
        assert sorted(ran) == [f"r{n} awake" for n in range(5)]


async def test_a_run_driven_again_a_hundred_times_has_the_same_journal(
    autojump_clock: MockClock,
) -> None:
    passes = 0

    @workflow
    async def flow(ctx: Context) -> Any:
        nonlocal passes
        await ctx.step(note, "once")
        passes += 1
        ctx.random(), ctx.now()

        async def timed(ctx: Context) -> None:
            await ctx.sleep(10_000)

        async def told(ctx: Context) -> Any:
            return await ctx.wait_signal("go")

        return (await ctx.gather(timed, told))[1]

    store = FragileStore()
    async with open_test_runtime(store, workflows=[flow]) as rt:
        run = await rt.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
        before = store.keys("journal")
        for _ in range(100):
            await rt.pause("r")
            await rt.resume("r")
            await trio.sleep(5)
        notes = [each for each in await rt.history("r") if each.event in ("paused", "resumed")]
        assert len(store.keys("journal")) == len(before) + len(notes)
        assert passes >= 100
        assert await rt.signal("r", "go", 7) is Delivery.DELIVERED
        assert await run.result() == 7
    assert ran == ["once"]


async def test_with_branches_a_run_leaves_only_when_all_of_them_wait(
    autojump_clock: MockClock,
) -> None:
    @step
    async def work() -> None:
        await trio.sleep(50)

    @workflow
    async def flow(ctx: Context) -> None:
        async def rest(ctx: Context) -> None:
            await ctx.sleep(200)

        await ctx.gather(ctx.step(work), rest)

    async with open_test_runtime(workflows=[flow]) as rt:
        run = await rt.submit(flow, key="k")
        await trio.sleep(40)
        assert rt.statistics().live == 1
        await trio.sleep(20)
        assert rt.statistics().live == 0
        await run.result()
        assert trio.current_time() == pytest.approx(200, abs=0.2)


async def test_a_branch_that_waits_for_a_slot_keeps_the_run_in_memory(
    autojump_clock: MockClock,
) -> None:
    began: list[float] = []

    @step
    async def work(seconds: float) -> None:
        began.append(trio.current_time())
        await trio.sleep(seconds)

    @workflow
    async def busy(ctx: Context) -> None:
        await ctx.step(work, 50)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.gather(ctx.step(work, 1), lambda ctx: ctx.sleep(200))

    async with open_test_runtime(workflows=[busy, flow], max_concurrent_steps=1) as rt:
        await rt.submit(busy, key="busy")
        run = await rt.submit(flow, key="k")
        await trio.sleep(40)
        assert rt.statistics().live == 2
        await run.result()
    assert began == [pytest.approx(0, abs=0.2), pytest.approx(50, abs=0.2)]


async def test_backoff_leaves_memory_too_and_costs_no_attempt(autojump_clock: MockClock) -> None:
    tries: list[float] = []

    @step(retry=Retry.fixed(max_attempts=3, delay=500, jitter=0))
    async def flaky() -> str:
        tries.append(trio.current_time())
        if len(tries) < 3:
            raise TransientError("again")
        return "done"

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(flaky)

    async with open_test_runtime(workflows=[flow]) as rt:
        run = await rt.submit(flow, key="k")
        await trio.sleep(100)
        assert rt.statistics().live == 0
        assert await run.result() == "done"
    assert tries == pytest.approx([0, 500, 1000], abs=0.3)


async def test_a_sleeper_can_be_cancelled_paused_and_resumed(autojump_clock: MockClock) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        first = await rt.submit(napping, 100, key="k", run_id="a")
        second = await rt.submit(napping, 100, key="k", run_id="b")
        await trio.sleep(5)
        assert await first.cancel()
        status = await first.status()
        assert status is not None
        assert status.state is State.CANCELLED
        await trio.sleep(50)
        assert await rt.pause("b")
        await trio.sleep(500)
        status = await second.status()
        assert status is not None
        assert status.state is State.PAUSED
        assert ran == []
        assert rt.statistics().live == 0, "what is paused leaves memory as well"
        assert await rt.resume("b")
        await second.result()
        assert rt.statistics().backlog.pending == 0
    assert store.keys("timers") == []


async def test_the_deadline_of_a_run_that_sleeps_wakes_it(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[napping]) as rt:
        run = await rt.submit(napping, 1000, key="k", limits=Limits(run_timeout=60))
        with pytest.raises(RuntimeError, match="run_timeout of 60 s"):
            await run.result()
        assert trio.current_time() == pytest.approx(60, abs=0.1)


async def test_a_thousand_that_are_due_at_once_start_fairly(autojump_clock: MockClock) -> None:
    @step
    async def work(who: str) -> None:
        ran.append(who)
        await trio.sleep(1)

    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(100)
        await ctx.step(work, "sleeper")

    @workflow
    async def other(ctx: Context) -> float:
        await ctx.step(work, "other")
        return trio.current_time()

    async with open_test_runtime(workflows=[sleeper, other], max_concurrent_steps=10) as rt:
        for n in range(1000):
            await rt.submit(sleeper, key=f"k{n}")
        await trio.sleep(100.5)
        assert rt.statistics().live < 200, "those who wait for a slot do so by name"
        hurried = await rt.submit(other, key="late", priority=Priority.HIGH)
        assert await hurried.result() < 110
        await trio.sleep(200)
        assert ran.count("sleeper") == 1000


async def test_more_timers_than_are_kept_in_memory_fire_in_time(autojump_clock: MockClock) -> None:
    sizes = Tuning(timer_window=4)
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping], tuning=sizes) as rt:
        for n in range(100):
            await rt.submit(napping, 100 + (n * 37) % 100, key=f"k{n}", run_id=f"r{n}")
        await trio.sleep(20)
    async with open_test_runtime(store, workflows=[napping], tuning=sizes) as rt:
        for n in range(100):
            run = await rt.submit(napping, 100 + (n * 37) % 100, key=f"k{n}", run_id=f"r{n}")
            assert await run.result() == pytest.approx(100 + (n * 37) % 100, abs=0.3)


async def test_a_clock_that_jumps_forward_fires_once_and_one_that_jumps_back_delays_nothing(
    autojump_clock: MockClock,
) -> None:
    jump = 0.0

    def wall() -> float:
        return EPOCH + trio.current_time() + jump

    async with open_test_runtime(workflows=[napping], wall=wall) as rt:
        far = await rt.submit(napping, 10_000, key="far", run_id="far")
        near = await rt.submit(napping, 1000, key="near", run_id="near")
        await trio.sleep(10)
        jump = -5000.0
        assert await near.result() == pytest.approx(1000, abs=0.2)
        jump = 6000.0
        assert await far.result() < 4200
        await trio.sleep(20_000)
    assert ran == ["near awake", "far awake"]


async def test_yield_lets_the_next_run_go_ahead_and_keeps_its_place(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[polite, napping]) as rt:
        await rt.submit(polite, 100, key="k", run_id="a")
        await rt.submit(polite, 50, key="k", run_id="b")
        await rt.submit(napping, 300, key="k", run_id="c")
        last = await rt.submit(napping, 1, key="k", run_id="d")
        await last.result()
    # While c holds the key, a and b are due; then they come before d.
    assert ran == ["a begins", "b begins", "c awake", "a ends", "b ends", "d awake"]


@pytest.mark.parametrize("restart", [False, True])
async def test_those_who_yielded_come_back_in_the_order_of_admission_before_those_not_begun(
    autojump_clock: MockClock, restart: bool
) -> None:
    order: list[str] = []

    @step
    async def work(name: str) -> None:
        order.append(name)
        await trio.sleep(5)

    @workflow(while_waiting="yield")
    async def polite(ctx: Context) -> None:
        await ctx.wait_signal("go")
        await ctx.step(work, ctx.run_id)

    @workflow
    async def holding(ctx: Context) -> None:
        await ctx.step(work, ctx.run_id)

    flows = [polite, holding]
    store = FragileStore()
    async with open_test_runtime(store, workflows=flows) as rt:
        for number in range(3):
            await rt.submit(polite, key="k", run_id=f"polite-{number}")
        for number in range(3):
            await rt.submit(holding, key="k", run_id=f"holding-{number}")
        await trio.sleep(2)
        for number in (2, 0, 1):
            await rt.signal(f"polite-{number}", "go")
        if not restart:
            await trio.sleep(100)
    async with open_test_runtime(store, workflows=flows) as rt:
        await trio.sleep(100)
    woken = ["polite-0", "polite-1", "polite-2"]
    assert order == ["holding-0", *woken, "holding-1", "holding-2"]


@pytest.mark.parametrize("window", [1, 64])
@pytest.mark.parametrize("page", [1, 1000])
@pytest.mark.parametrize("asleep", [True, False])
async def test_who_yielded_does_not_overtake_who_holds_the_key_after_a_restart(
    autojump_clock: MockClock, asleep: bool, page: int, window: int
) -> None:
    sizes = Tuning(startup_page=page, queue_window=window)

    @step
    async def slow() -> None:
        await trio.sleep(100)

    @workflow
    async def holding(ctx: Context) -> None:
        await (ctx.sleep(100) if asleep else ctx.step(slow))
        await ctx.step(note, "held")

    store = FragileStore()
    workflows: list[Workflow[Any, Any]] = [polite, holding, napping]
    async with open_test_runtime(store, workflows=workflows, tuning=sizes) as rt:
        for run_id in ("a", "b"):
            await rt.submit(polite, 10, key="k", run_id=run_id)
        await rt.submit(holding, key="k", run_id="c")
        await rt.submit(napping, 1, key="k", run_id="d")
        await trio.sleep(50)  # a and b are due, and wait until c has ended
        store.crash()
    assert ran == ["a begins", "b begins"]
    async with open_test_runtime(store, workflows=workflows, tuning=sizes) as rt:
        last = await rt.submit(napping, 1, key="k", run_id="d")
        await last.result()
        assert rt.statistics().backlog.pending == 0
    assert ran[2:] == ["held", "a ends", "b ends", "d awake"]


async def test_yield_also_for_what_comes_later_and_across_a_restart(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[polite]) as rt:
        await rt.submit(polite, 100, key="k", run_id="a")
        await trio.sleep(0.2)
        await rt.submit(polite, 1, key="k", run_id="b")
        await trio.sleep(20)
        assert ran == ["a begins", "b begins", "b ends"]
    async with open_test_runtime(store, workflows=[polite]) as rt:
        await rt.submit(polite, 1, key="k", run_id="c")
        await trio.sleep(20)
        first = await rt.submit(polite, 100, key="k", run_id="a")
        await first.result()
        assert rt.statistics().backlog.pending == 0
    assert ran[3:] == ["c begins", "c ends", "a ends"]
    assert store.keys("queue") == store.keys("timers") == []


async def test_a_hundred_that_yield_do_not_hide_the_one_behind_them(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[polite]) as rt:
        for n in range(100):
            await rt.submit(polite, 1000 + n, key="k", run_id=f"r{n}")
        last = await rt.submit(polite, 1, key="k", run_id="last")
        await last.result()
        assert trio.current_time() < 50
        await trio.sleep(2000)
        assert len([each for each in ran if each.endswith("ends")]) == 101


async def test_nobody_yields_in_backoff(autojump_clock: MockClock) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=100))
    async def flaky(who: str) -> None:
        ran.append(who)
        if ran.count(who) == 1:
            raise TransientError("again")

    @workflow(while_waiting="yield")
    async def flow(ctx: Context) -> None:
        await ctx.step(flaky, ctx.run_id)

    async with open_test_runtime(workflows=[flow]) as rt:
        await rt.submit(flow, key="k", run_id="a")
        last = await rt.submit(flow, key="k", run_id="b")
        await last.result()
    assert ran == ["a", "a", "b", "b"]


async def test_sleeping_and_waking_survive_a_crash_at_every_commit(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> list[str]:
        async def one(ctx: Context) -> str:
            await ctx.sleep(30)
            return await ctx.step(note, "one")

        async def two(ctx: Context) -> str:
            with ctx.move_on_after(20):
                await ctx.sleep(1000)
            return await ctx.step(note, "two")

        first = await ctx.step(note, "first")
        return [first, *await ctx.gather(one, two)]

    async def scenario(rt: Runtime) -> Any:
        run = await rt.submit(flow, key="k", run_id="r")
        behind = await rt.submit(napping, 5, key="k", run_id="behind")
        await behind.result()
        return await run.result()

    for point in crash_points(crashes=2):
        ran.clear()
        assert await point.run(scenario, workflows=[flow, napping]) == ["first", "one", "two"]
        assert ran[-1] == "behind awake"


@pytest.mark.parametrize("table", ["timers", "status", "queue"])
async def test_damage_to_what_a_sleeper_left_behind_is_noticed_and_stays_with_it(
    autojump_clock: MockClock, table: str
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await rt.submit(napping, 100, key="bad", run_id="bad")
        await trio.sleep(10)
    store.damage(table, store.keys(table)[0])
    async with open_test_runtime(store, workflows=[napping]) as rt:
        good = await rt.submit(napping, 100, key="good", run_id="good")
        await good.result()
        await trio.sleep(200)
        status = await rt.status("bad")
        assert status is not None
        # Where the status is lost, a person must look; the rest can be found again.
        expected = State.QUARANTINED if table == "status" else State.SUCCEEDED
        assert status.state is expected
        behind = await rt.submit(napping, 1, key="bad", run_id="behind")
        await behind.result()
        assert rt.statistics().backlog.pending == 0


@step
async def take(seconds: float) -> None:
    await trio.sleep(seconds)


async def _signalled(ctx: Context) -> Any:
    return await ctx.wait_signal("go")


@workflow(while_waiting="yield")
async def polite_in_part(ctx: Context) -> None:
    await ctx.gather(ctx.step(take, 5), _signalled)


@workflow(while_waiting="yield")
async def polite_later(ctx: Context) -> None:
    await ctx.step(take, 5)
    await ctx.wait_signal("go")


async def test_a_run_yields_when_the_last_branch_that_did_something_has_ended(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[polite_in_part, napping]) as rt:
        first = await rt.submit(polite_in_part, key="k", run_id="first")
        second = await rt.submit(napping, 1, key="k", run_id="second")
        assert await second.result() == pytest.approx(6, abs=0.1)
        await rt.signal("first", "go")
        await first.result()


async def _hold(rt: Runtime, what: str, *, paused: bool) -> None:
    if what == "run":
        await (rt.pause if paused else rt.resume)("first")
    elif what == "key":
        await (rt.pause_key if paused else rt.resume_key)("k")
    else:
        await (rt.pause_all if paused else rt.resume_all)()


@pytest.mark.parametrize("what", ["run", "key", "all"])
async def test_a_run_that_waits_yields_when_it_is_no_longer_held(
    autojump_clock: MockClock, what: str
) -> None:
    async with open_test_runtime(workflows=[polite_later, napping], evict_after=100) as rt:
        first = await rt.submit(polite_later, key="k", run_id="first")
        second = await rt.submit(napping, 1, key="k", run_id="second")
        await trio.sleep(1)
        await _hold(rt, what, paused=True)
        await trio.sleep(9)
        await _hold(rt, what, paused=False)
        assert await second.result() == pytest.approx(11, abs=0.1)
        await rt.signal("first", "go")
        await first.result()


@pytest.mark.parametrize("latency", [0.0, 0.05])
async def test_a_run_that_is_resumed_while_it_sleeps_is_woken_in_the_same_commit(
    autojump_clock: MockClock, latency: float
) -> None:
    store = FragileStore(latency=latency)
    async with open_test_runtime(store, workflows=[napping]) as rt:
        await rt.submit(napping, 5, key="k", run_id="r")
        await trio.sleep(1)
        await rt.pause("r")
        await trio.sleep(20)
        assert rt.statistics().live == 0
        # The process is killed as soon as the request is durable.
        store.crash_at = store.commits + 2
        await rt.resume("r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[napping]) as rt:
        run = await rt.submit(napping, 5, key="k", run_id="r")
        with trio.fail_after(100):
            await run.result()


@step
async def put_back(why: Any) -> None:
    ran.append("undone")


@step(compensate=put_back)
async def put() -> None:
    ran.append("done")


@workflow
async def undoable(ctx: Context) -> None:
    await ctx.step(put)
    await ctx.wait_signal("never")


async def test_a_run_that_is_cancelled_while_it_sleeps_is_undone_also_if_that_is_cut_off(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[undoable]) as rt:
        await rt.submit(undoable, key="k", run_id="r")
        await trio.sleep(10)
        assert rt.statistics().live == 0
        store.crash_at = store.commits + 2
        await rt.cancel("r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[undoable]) as rt:
        await trio.sleep(10)
        status = await rt.status("r")
        assert status is not None
        assert (status.state, ran) == (State.CANCELLED, ["done", "undone"])


async def test_a_run_that_is_cancelled_while_it_leaves_memory_lets_its_key_go_on(
    autojump_clock: MockClock,
) -> None:
    """Its line is forgotten while the cancel is under way, and made again."""
    store = FragileStore(latency=1.0)
    async with open_test_runtime(store, workflows=[undoable], evict_after=5.0) as rt:
        await rt.submit(undoable, key="k", run_id="first")
        while rt.statistics().live:
            await trio.sleep(0.1)
        await rt.cancel("first")
        await trio.sleep(60)
        await rt.submit(undoable, key="k", run_id="second")
        await trio.sleep(60)
        assert ran == ["done", "undone", "done"]


async def test_a_run_whose_key_was_held_leaves_memory_afterwards(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[polite_later]) as rt:
        await rt.submit(polite_later, key="k", run_id="r")
        await trio.sleep(5.5)
        await rt.pause_key("k")
        await trio.sleep(10)
        assert rt.statistics().live == 1
        await rt.resume_key("k")
        await trio.sleep(2)
        assert rt.statistics().live == 0


async def test_runs_that_are_cancelled_while_they_leave_are_not_kept(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[napping], evict_after=100) as rt:
        runs = [await rt.submit(napping, 1000, key=f"k{n}") for n in range(20)]
        await trio.sleep(1)
        parking = rt._partition.eviction
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(run.cancel)
            await trio.lowlevel.checkpoint()
            for live in rt._partition.runs.all_live():
                parking.evict(live)
        assert not [run for run in rt._partition.runs if run.eviction is not None]


async def test_a_sleeper_that_is_found_again_has_as_many_behind_it(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[napping]) as rt:
        await rt.submit(napping, 100, key="k", run_id="first")
        await trio.sleep(10)
        second = await rt.submit(napping, 1, key="k", run_id="second")
        partition = rt._partition
        ((evicted, pending),) = partition.queues.evicted.values()
        assert pending == 1
        partition.queues.found_evicted("k", evicted)
        await second.result()
        assert (rt.statistics().backlog.pending, rt.statistics().keys) == (0, 0)


async def test_evict_after_is_checked() -> None:
    with pytest.raises(ValueError, match="evict_after must be at least 0"):
        async with open_test_runtime(workflows=[napping], evict_after=-1):
            pass


async def test_while_waiting_is_checked() -> None:
    with pytest.raises(ValueError, match="while_waiting must be 'hold' or 'yield'"):
        workflow(while_waiting="perhaps")(napping.function)  # type: ignore[call-overload]


@workflow
async def working(ctx: Context) -> None:
    for part in ("first", "second", "third"):
        await ctx.step(note, f"{ctx.run_id} {part}")
        await ctx.step(toil)


@step
async def toil() -> None:
    await trio.sleep(10)


async def test_a_run_that_went_ahead_goes_on_after_a_restart_before_the_one_that_was_woken(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    options: Any = {"workflows": [polite, working]}
    async with open_test_runtime(store, **options) as rt:
        await rt.submit(polite, 15, key="k", run_id="polite")
        await trio.sleep(1)
        await rt.submit(working, key="k", run_id="working")
        await rt.submit(working, key="k", run_id="pending")
        await trio.sleep(17)
        store.crash()
        await trio.sleep(1)
    async with open_test_runtime(store, **options) as rt:
        await trio.sleep(100)
        assert rt.statistics().backlog.pending == 0
    assert ran == [
        *("polite begins", "working first", "working second", "working third", "polite ends"),
        *("pending first", "pending second", "pending third"),
    ]


@pytest.mark.parametrize("operation", ["resume", "pause twice", "cancel after the end"])
async def test_an_operation_that_changes_nothing_leaves_no_key_in_memory(
    autojump_clock: MockClock, operation: str
) -> None:
    async with open_test_runtime(workflows=[napping], evict_after=0.1) as rt:
        await rt.submit(napping, 1000, key="k", run_id="r")
        await trio.sleep(5)
        if operation == "pause twice":
            await rt.pause("r")
            await trio.sleep(5)
        elif operation == "cancel after the end":
            await rt.cancel("r")
            await trio.sleep(1)  # the actor of the key looks at its queue once more
        assert rt.statistics().keys == 0
        ask = {"resume": rt.resume, "pause twice": rt.pause}.get(operation, rt.cancel)
        assert await ask("r") is False
        await trio.sleep(5)
        assert rt.statistics().keys == 0


@workflow
async def listening(ctx: Context) -> Any:
    await ctx.step(note, f"{ctx.run_id} listens")
    return await ctx.wait_signal("go")


@pytest.mark.parametrize("seed", range(6))
def test_a_run_that_is_resumed_while_it_is_being_evicted_leaves_its_key_in_order(
    seed: int,
) -> None:
    async def main() -> None:
        flows: list[Workflow[Any, Any]] = [napping, listening]
        store = FragileStore(latency=0.1)
        async with open_test_runtime(store, workflows=flows, evict_after=inf) as rt:
            await rt.submit(napping, 2, key="k", run_id="first")
            await rt.submit(listening, key="k", run_id="second")
            await rt.pause("first")
            await trio.sleep(3)  # its time is over, and only the pause holds it
        async with open_test_runtime(store, workflows=flows, evict_after=0.05) as rt:
            await trio.sleep(0.06)
            await rt.resume("first")
            await rt.resume("second")
            await trio.sleep(10)
            assert await rt.signal("second", "go", 1) is Delivery.DELIVERED
            await trio.sleep(10)
            status = await rt.status("second")
            assert status is not None
            assert (status.state, status.result) == (State.SUCCEEDED, 1)
            figures = rt.statistics()
            assert (figures.live, figures.keys, figures.backlog.pending) == (0, 0, 0)

    with patch.object(trio_run, "_r", Random(seed)):  # which task runs first
        trio.run(main, clock=MockClock(autojump_threshold=0))
