"""continue_as: the same run goes on with another input and an empty journal."""

from collections import Counter
from contextlib import suppress
from typing import Any
from uuid import UUID

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    FailureKind,
    Limits,
    NonDeterminism,
    PermanentError,
    Retry,
    RunEnded,
    RunFailed,
    Runtime,
    State,
    StepFailed,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.events import EventKind
from keyrun.testing import crash_points, open_test_runtime, replay
from tests.runtime.fragile import FragileStore

WEEK = 7 * 24

ran: list[Any] = []
calls = 0


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    global calls
    ran.clear()
    calls = 0


@step
async def note(what: Any) -> str:
    ran.append(what)
    return current_step().idempotency_key


def records(store: FragileStore) -> dict[str, int]:
    tables = ("runs", "status", "ids", "queue", "timers", "signals", "sent", "journal", "begun")
    more = ("memo", "reports", "state", "ended", "outcomes", "counter")
    return {table: len(store.keys(table)) for table in (*tables, *more)}


async def loop(ctx: Context, hour: int) -> int:
    global calls
    calls += 1
    await ctx.step(note, hour)
    await ctx.sleep(3600)
    if hour < WEEK:
        ctx.continue_as(hour + 1)
    return hour


hourly = workflow(name="hourly")(loop)
polite = workflow(name="polite", while_waiting="yield")(loop)


@pytest.mark.parametrize("loops", [hourly, polite], ids=["hold", "yield"])
async def test_a_week_of_an_hourly_loop_costs_the_same_in_its_last_hour_as_in_its_first(
    autojump_clock: MockClock, loops: Any
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[hourly, polite]) as rt:
        run = await rt.submit(loops, 1, key="k", run_id="r")
        await trio.sleep(3600 + 1800)
        early, calls_early = records(store), calls
        counts = []
        for _ in range(WEEK - 3):
            await trio.sleep(3600)
            counts.append(records(store))
        assert all(count == early for count in counts)
        # Once when it goes on, and once when it is woken: nothing that is over is replayed.
        assert (calls_early, calls) == (3, 2 * (WEEK - 1) - 1)
        status = await run.status()
        assert status is not None
        assert (status.state, status.steps_done) == (State.WAITING, WEEK - 1)
        assert await run.result() == WEEK
        assert trio.current_time() == pytest.approx(WEEK * 3600, abs=1)
    assert ran == list(range(1, WEEK + 1))


async def test_one_that_yields_lets_others_go_ahead_between_its_journals(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def quick(ctx: Context, what: str) -> None:
        await ctx.step(note, what)

    async with open_test_runtime(workflows=[polite, quick]) as rt:
        await rt.submit(polite, WEEK - 1, key="k")
        await trio.sleep(10)
        await (await rt.submit(quick, "first", key="k")).result()
        await trio.sleep(3600)
        await (await rt.submit(quick, "second", key="k")).result()
    assert ran == [WEEK - 1, "first", WEEK, "second"]


async def test_the_same_run_resumed(autojump_clock: MockClock) -> None:
    @workflow
    async def counting(ctx: Context, n: int) -> list[Any]:
        seen = [ctx.input, n, ctx.run_id, ctx.key, ctx.headers]
        await ctx.step(note, n)
        if n < 3:
            ctx.continue_as(n + 1)
        return seen

    async with open_test_runtime(workflows=[counting]) as rt:
        run = await rt.submit(counting, 1, key="k", run_id="r", headers={"a": "b"})
        behind = await rt.submit(counting, 3, key="k", run_id="behind")
        assert await run.result() == [3, 3, "r", "k", {"a": "b"}]
        assert (await behind.result())[0] == 3
        again = await rt.submit(counting, 1, key="k", run_id="r", headers={"a": "b"})
        assert not again.newly_submitted
        progress = await rt.progress("r")
        assert progress is not None
        assert progress.steps_done == 3
        told = [(one.event, one.detail) for one in await rt.history("r")]
        assert told == [
            ("submitted", None),
            ("started", None),
            ("continued", "with journal 3"),
            ("step_completed", None),
            ("succeeded", None),
        ]
    assert ran == [1, 2, 3, 3]


async def test_what_is_drawn_at_random_and_idempotency_keys_differ_between_journals(
    autojump_clock: MockClock,
) -> None:
    drawn: list[tuple[float, UUID, str]] = []

    @workflow
    async def drawing(ctx: Context, n: int) -> None:
        key = await ctx.step(note, n)
        drawn.append((ctx.random(), ctx.uuid4(), key))
        if n < 3:
            ctx.continue_as(n + 1)

    async with open_test_runtime(workflows=[drawing]) as rt:
        await (await rt.submit(drawing, 1, key="k")).result()
    assert all(len(set(each)) == 3 for each in zip(*drawn, strict=True))


async def test_limits_of_steps_and_retries_count_per_journal(autojump_clock: MockClock) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=1))
    async def flaky() -> None:
        if current_step().attempt == 1:
            raise TransientError("not yet")

    @workflow(limits=Limits(max_iterations=2, retry_budget=1))
    async def looping(ctx: Context, n: int) -> int:
        await ctx.step(flaky)
        await ctx.step(note, n)
        if n < 4:
            ctx.continue_as(n + 1)
        return n

    async with open_test_runtime(workflows=[looping]) as rt:
        assert await (await rt.submit(looping, 1, key="k")).result() == 4


async def test_the_deadline_of_the_run_stays(autojump_clock: MockClock) -> None:
    @workflow(limits=Limits(run_timeout=100))
    async def looping(ctx: Context, n: int) -> None:
        await ctx.sleep(30)
        ctx.continue_as(n + 1)

    async with open_test_runtime(workflows=[looping]) as rt:
        with pytest.raises(RunFailed) as failed:
            await (await rt.submit(looping, 1, key="k")).result()
        assert failed.value.failure.kind is FailureKind.RUN_TIMEOUT
        assert trio.current_time() == pytest.approx(100, abs=0.1)


async def test_signals_that_were_not_taken_are_there_for_the_next_journal(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def summing(ctx: Context, total: int) -> int:
        got = await ctx.wait_signal("add")
        if got:
            ctx.continue_as(total + got)
        return total

    async with open_test_runtime(workflows=[summing]) as rt:
        run = await rt.submit(summing, 0, key="k", run_id="r")
        for amount in (1, 2, 3):
            await rt.signal("r", "add", amount, signal_id=f"s{amount}")
        await trio.sleep(10)
        await rt.signal("r", "add", 3, signal_id="s3")
        await rt.signal("r", "add", 0)
        assert await run.result() == 6


async def test_a_branch_may_go_on_for_all_of_them(autojump_clock: MockClock) -> None:
    cancelled: list[int] = []

    @step
    async def slow(n: int) -> None:
        try:
            await trio.sleep(1000)
        finally:
            cancelled.append(n)

    @workflow
    async def both(ctx: Context, n: int) -> int:
        async def decides(ctx: Context) -> None:
            await ctx.sleep(10)
            if n < 3:
                ctx.continue_as(n + 1)

        async def waits(ctx: Context) -> None:
            await ctx.wait_signal("never", timeout=20)

        if n == 3:
            return n
        await ctx.gather(decides, ctx.step(slow, n), waits)
        raise AssertionError("nobody comes here")

    store = FragileStore()
    async with open_test_runtime(store, workflows=[both]) as rt:
        assert await (await rt.submit(both, 1, key="k")).result() == 3
    assert cancelled == [1, 2]
    assert trio.current_time() == pytest.approx(20, abs=0.1)
    assert not store.keys("begun")


async def test_an_input_that_cannot_be_stored_is_an_error_of_the_workflow(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def wrong(ctx: Context, n: int) -> None:
        ctx.continue_as("not a number")

    async with open_test_runtime(workflows=[wrong]) as rt:
        run = await rt.submit(wrong, 1, key="k")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert failed.value.failure.kind is FailureKind.WORKFLOW_ERROR


async def test_one_that_could_be_undone_is_not_continued(autojump_clock: MockClock) -> None:
    async def undo(what: Compensation) -> None:
        ran.append(f"undo {what.output}")

    @step(compensate=undo)
    async def book(n: int) -> int:
        return n

    @workflow
    async def booking(ctx: Context, n: int) -> None:
        await ctx.step(book, n)
        ctx.continue_as(n + 1)

    async with open_test_runtime(workflows=[booking]) as rt:
        with pytest.raises(RunFailed, match="lose the compensations of 'book'"):
            await (await rt.submit(booking, 1, key="k")).result()
    assert ran == ["undo 1"]


async def test_what_a_sibling_that_cannot_be_cut_off_has_done_is_undone(
    autojump_clock: MockClock,
) -> None:
    async def undo(what: Compensation) -> None:
        ran.append(f"undo {what.output}")

    @step(compensate=undo, shield=True)
    async def book(n: int) -> int:
        await trio.sleep(5)
        return n

    @workflow
    async def booking(ctx: Context, n: int) -> None:
        async def decides(ctx: Context) -> None:
            await ctx.sleep(1)
            ctx.continue_as(n + 1)

        await ctx.gather(decides, ctx.step(book, n))

    async with open_test_runtime(workflows=[booking]) as rt:
        with pytest.raises(RunFailed, match="lose the compensations of"):
            await (await rt.submit(booking, 1, key="k")).result()
    assert ran == ["undo 1"]


async def test_memos_and_failures_of_the_journal_before_are_gone(autojump_clock: MockClock) -> None:
    @step(retry=Retry.none())
    async def remembering(n: int) -> None:
        memo = current_step().memo
        assert not memo
        memo["n"] = n
        raise PermanentError("no")

    @workflow
    async def looping(ctx: Context, n: int) -> int:
        if n < 3:
            with pytest.raises(StepFailed, match="no"):
                await ctx.step(remembering, n)
            ctx.continue_as(n + 1)
        return n

    store = FragileStore()
    async with open_test_runtime(store, workflows=[looping]) as rt:
        run = await rt.submit(looping, 1, key="k", run_id="r")
        assert await run.result() == 3
        assert not store.keys("memo")
        assert [one.event for one in await rt.history("r")][2:] == ["continued", "succeeded"]


async def test_one_that_is_paused_does_not_go_on(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[hourly]) as rt:
        await rt.submit(hourly, 1, key="k", run_id="r")
        await trio.sleep(1000)
        await rt.pause("r")
        await trio.sleep(10_000)
        assert ran == [1]
        await rt.resume("r")
        await trio.sleep(10)
        assert ran == [1, 2]


async def test_one_that_was_paused_before_it_decided_goes_on_after_the_next_open(
    autojump_clock: MockClock,
) -> None:
    @step
    async def slow(n: int) -> None:
        await trio.sleep(10)

    @workflow
    async def looping(ctx: Context, n: int) -> int:
        await ctx.step(slow, n)
        if n < 2:
            ctx.continue_as(n + 1)
        return n

    store = FragileStore()
    async with open_test_runtime(store, workflows=[looping]) as rt:
        await rt.submit(looping, 1, key="k", run_id="r")
        await trio.sleep(5)
        await rt.pause("r")
        await trio.sleep(100)
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.PAUSED
        assert "continued" not in [one.event for one in await rt.history("r")]
    async with open_test_runtime(store, workflows=[looping]) as rt:
        await trio.sleep(100)
        assert "continued" not in [one.event for one in await rt.history("r")]
        await rt.resume("r")
        with trio.fail_after(100):
            while (status := await rt.status("r")) is None or not status.state.terminal:
                await trio.sleep(1)
        assert (status.state, status.result) == (State.SUCCEEDED, 2)


async def test_it_is_cancelled_like_any_other(autojump_clock: MockClock) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[hourly]) as rt:
        for after in (10, 3601, 5000):
            run = await rt.submit(hourly, 1, key="k")
            await trio.sleep(after)
            assert await rt.cancel(run.run_id)
            status = await run.status()
            assert status is not None
            assert status.state is State.CANCELLED
        assert not store.keys("queue")
        assert not store.keys("timers")


async def test_a_loop_that_does_nothing_but_go_on_keeps_nobody_from_their_turn(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def spinning(ctx: Context, n: int) -> None:
        ctx.continue_as(n + 1)

    @workflow
    async def quick(ctx: Context, what: str) -> str:
        return await ctx.step(note, what)

    async with open_test_runtime(FragileStore(latency=0.01), workflows=[spinning, quick]) as rt:
        run = await rt.submit(spinning, 1, key="a", run_id="spins")
        await (await rt.submit(quick, "x", key="b")).result()
        assert await rt.cancel("spins")
        await trio.sleep(1)
        status = await run.status()
        assert status is not None
        assert status.state is State.CANCELLED
    assert ran == ["x"]


async def test_a_dead_letter_is_redriven_in_its_present_journal(
    autojump_clock: MockClock,
) -> None:
    broken = True

    @step(retry=Retry.none())
    async def fragile(n: int) -> None:
        ran.append(n)
        if n == 2 and broken:
            raise PermanentError("broken")

    @workflow
    async def looping(ctx: Context, n: int) -> int:
        await ctx.step(fragile, n)
        if n < 3:
            ctx.continue_as(n + 1)
        return n

    async with open_test_runtime(workflows=[looping]) as rt:
        run = await rt.submit(looping, 1, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        broken = False
        assert await rt.redrive("r") == 2
        assert await run.result() == 3
        status = await run.status()
        assert status is not None
        assert status.steps_done == 3
    assert ran == [1, 2, 2, 3]


async def test_whoever_watches_sees_it_go_on(autojump_clock: MockClock) -> None:
    seen: list[int] = []
    kinds: list[EventKind] = []

    async def watch(rt: Runtime) -> None:
        async for progress in rt.watch("r"):
            seen.append(progress.steps_done)

    async with open_test_runtime(workflows=[hourly]) as rt, trio.open_nursery() as nursery:
        async with rt.events(run_id="r") as events:
            run = await rt.submit(hourly, WEEK - 4, key="k", run_id="r")
            nursery.start_soon(watch, rt)
            await run.result()
            async for event in events:
                kinds.append(event.kind)
                if event.kind is EventKind.RUN_SUCCEEDED:
                    break
    assert seen == sorted(seen)
    assert set(seen) >= {1, 2, 3, 4, 5}
    assert kinds.count(EventKind.RUN_CONTINUED) == 4


async def test_replay_takes_the_present_journal(autojump_clock: MockClock) -> None:
    @workflow(name="hourly")
    async def other(ctx: Context, hour: int) -> int:
        await ctx.sleep(3600)
        return hour

    @workflow(name="hourly")
    async def forever(ctx: Context, hour: int) -> int:
        await ctx.step(note, hour)
        await ctx.sleep(3600)
        ctx.continue_as(hour + 1)

    async with open_test_runtime(workflows=[hourly]) as rt:
        run = await rt.submit(hourly, WEEK - 1, key="k", run_id="r")
        await trio.sleep(5000)
        history = await rt.history("r")
        replayed = await replay(history, hourly)
        assert (replayed.state, replayed.outcomes) == (State.RUNNING, 1)
        with pytest.raises(NonDeterminism):
            await replay(history, other)
        await run.result()
        ended = await rt.history("r")
        assert (await replay(ended, hourly)).state is State.SUCCEEDED
        with pytest.raises(NonDeterminism, match="the code calls continue_as instead"):
            await replay(ended, forever)


async def test_a_crash_at_any_commit_loses_no_journal_and_repeats_none(
    autojump_clock: MockClock,
) -> None:
    executions: Counter[str] = Counter()

    @step
    async def once(n: int) -> int:
        executions[current_step().idempotency_key] += 1
        state = current_step().state
        state["total"] = state.get("total", 0) + n
        return int(state["total"])

    @workflow
    async def looping(ctx: Context, n: int) -> int:
        total = await ctx.step(once, n)
        await ctx.wait_signal("go")
        if n < 4:
            ctx.continue_as(n + 1)
        return total

    async def scenario(rt: Runtime) -> int:
        run = await rt.submit(looping, 1, key="k", run_id="r")
        status = await run.status()
        assert status is not None
        if not status.state.terminal:
            with suppress(RunEnded):
                for number in range(4):
                    await rt.signal("r", "go", signal_id=f"go-{number}")
                    await trio.sleep(5)
        return await run.result()

    for point in crash_points(crashes=2):
        executions.clear()
        assert await point.run(scenario, workflows=[looping]) == 10
        # Each step has one key in each journal, and what is lost with a crash is done again.
        assert len(executions) == 4
        assert max(executions.values()) <= 1 + point.crashes
