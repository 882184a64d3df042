"""What monitoring reads agrees with the runs of the store."""

import random
from collections import Counter
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Limits,
    PermanentError,
    Retry,
    Runtime,
    State,
    Workflow,
    step,
    workflow,
)
from keyrun.errors import KeyrunError, RunEnded
from keyrun.runtime.inspect.measure import (
    Distribution,
    MetricFamily,
    immediate,
    measure,
    oldest_pending,
    runs_by_state,
)
from keyrun.runtime.metrics import OTHER
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime
from tests.faults.soaking import amount

SECRET = "s3cret"


@step(retry=Retry.none())
async def work(seconds: float) -> None:
    await trio.sleep(seconds)


@step(retry=Retry.fixed(max_attempts=2, delay=1, jitter=0))
async def stumbles() -> None:
    if trio.current_time() % 1000 < 500:
        raise ConnectionError(SECRET)


@step(retry=Retry.none())
async def breaks() -> None:
    raise PermanentError(SECRET)


@step(timeout=1, retry=Retry.none())
async def hangs() -> None:
    await trio.sleep(5)


@workflow
async def short(ctx: Context) -> None:
    await ctx.step(work, 0.1)


@workflow
async def waits(ctx: Context) -> None:
    await ctx.step(work, 0.1)
    await ctx.wait_signal("go", timeout=1e6)


@workflow(while_waiting="yield")
async def yields(ctx: Context) -> None:
    await ctx.wait_signal("go")
    await ctx.step(work, 2)


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(stumbles)
    await ctx.step(breaks)


@workflow
async def times_out(ctx: Context) -> None:
    await ctx.step(hangs)


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(short, key="child")


ALL: list[Workflow[Any, Any]] = [short, waits, yields, fails, times_out, parent]


def sample(rt: Runtime, name: str, **labels: str) -> Any:
    """The value of one sample. 0 if there is none."""
    found = 0.0
    for family in measure(rt._partition.measured()):
        if family.name == name:
            for values, value in family.samples:
                given = dict(zip(family.labels, values, strict=True))
                if labels.items() <= given.items():
                    if isinstance(value, Distribution):
                        return value
                    found += value
    return found


def families(rt: Runtime) -> dict[str, MetricFamily]:
    return {each.name: each for each in measure(rt._partition.measured())}


async def check(rt: Runtime) -> None:
    """The gauges agree with a scan of all runs, at a moment at which nothing is staged."""
    partition = rt._partition
    await partition.state.counted.wait()
    for _ in range(50):
        await partition.state.store.durable()
        before = partition.state.store.statistics().commits, measured(rt)
        scanned = await scan(rt)
        # Other tasks may have run during the scan, or a commit may be under way.
        await partition.state.store.durable()
        if (partition.state.store.statistics().commits, measured(rt)) == before:
            assert measured(rt) == scanned
            return
        await trio.sleep(0.06)
    raise AssertionError("the runtime never rests")


def measured(rt: Runtime) -> tuple[dict[tuple[str, str], int], dict[str, int], float | None]:
    """What the gauges say."""
    partition = rt._partition
    dead = partition.state.counts.dead_letters
    return (
        runs_by_state(partition.measured()),
        dead,
        immediate(oldest_pending(partition.measured())),
    )


async def scan(rt: Runtime) -> tuple[dict[tuple[str, str], int], dict[str, int], float | None]:
    """Unfinished runs by state, dead letters, and when the oldest pending run was submitted."""
    found: Counter[tuple[str, str]] = Counter()
    pending = []
    for status in await rt.runs(limit=100_000):
        if not status.state.terminal:
            found[status.workflow, status.state.value] += 1
        if status.state is State.PENDING and status.generation == 1:
            number = await rt._statuses.ledger.find(status.run_id)
            assert number is not None
            if rt._partition.runs.delayed(number) is None:
                submission = await rt._statuses.ledger.submission(number)
                assert submission is not None
                pending.append(status.submitted_at + submission.delay)
    dead = Counter(status.workflow for status in await rt.dead_letters(limit=100_000))
    return dict(found), dict(dead), min(pending, default=None)


async def everything(rt: Runtime) -> None:
    """Bring runs to many states. It is played again after a crash."""
    await check(rt)
    await rt.submit(short, key="a", run_id="short")
    await rt.submit(waits, key="b", run_id="waits")
    await rt.submit(waits, key="b", run_id="behind", limits=Limits(run_timeout=1e6))
    await rt.submit(short, key="c", run_id="delayed", delay=1e5)
    await rt.submit(fails, key="d", run_id="fails")
    await rt.submit(parent, key="f", run_id="parent")
    await rt.submit(waits, key="g", run_id="paused")
    await rt.submit(yields, key="h", run_id="yields")
    await rt.submit(yields, key="h", run_id="next")
    await trio.sleep(5)
    await rt.pause("paused")
    with suppress(RunEnded):
        await rt.signal("yields", "go")
    status = await rt.status("fails")
    if status is not None and status.state is State.FAILED and status.generation == 1:
        await rt.redrive("fails")
    await trio.sleep(5)
    await rt.cancel("delayed")
    await rt.submit(waits, key="z", run_id="last")
    await check(rt)


async def test_gauges_agree_with_the_store_whatever_commit_a_crash_comes_at(
    autojump_clock: MockClock,
) -> None:
    for point in crash_points(every=amount(4, 1)):
        await point.run(everything, workflows=ALL)


async def test_gauges_are_exact_at_once_after_a_crash_without_the_workflows(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=ALL) as rt:
        await everything(rt)
        await trio.sleep(10)
        store.crash()
    async with open_test_runtime(store) as rt:
        await check(rt)
        await trio.sleep(10)
        await check(rt)
    async with open_test_runtime(store, workflows=ALL) as rt:
        await check(rt)
        await trio.sleep(10)
        await check(rt)


@pytest.mark.parametrize("seed", range(amount(12, 1000)))
async def test_gauges_agree_with_the_store_after_a_random_history(
    autojump_clock: MockClock, seed: int
) -> None:
    rng, store = random.Random(seed), MemoryStore()
    ids = 0
    for _ in range(3):
        async with open_test_runtime(store, workflows=ALL) as rt:
            await check(rt)
            for _ in range(40):
                run_id = f"r{rng.randrange(ids + 1)}"
                with suppress(KeyrunError):
                    match rng.randrange(9):
                        case 0 | 1 | 2:
                            chosen: Workflow[None, None] = rng.choice(ALL)
                            await rt.submit(
                                chosen,
                                key=rng.choice("abcdef"),
                                run_id=f"r{ids}",
                                delay=rng.choice([0, 0, 0, 3]),
                            )
                            ids += 1
                        case 3:
                            await rt.signal(run_id, "go")
                        case 4:
                            await rt.pause(run_id)
                        case 5:
                            await rt.resume(run_id)
                        case 6:
                            await rt.cancel(run_id)
                        case 7:
                            await rt.redrive(run_id)
                        case 8:
                            await rt.forget(run_id)
                await trio.sleep(rng.choice([0, 0.05, 0.3, 3]))
            if rng.random() < 0.5:
                await trio.sleep(5)
            await check(rt)
            if rng.random() < 0.5:
                store.crash()


async def test_counters_count_runs_and_attempts_by_their_outcome(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(MemoryStore(), workflows=ALL) as rt:
        for number in range(3):
            await rt.submit(short, key=f"k{number}")
        await rt.submit(fails, key="f")
        await rt.submit(times_out, key="t")
        await rt.submit(waits, key="w", run_id="w")
        await trio.sleep(3)
        await rt.cancel("w")
        assert sample(rt, "keyrun_runs_submitted") == 6
        assert sample(rt, "keyrun_runs_ended", workflow="short", state="succeeded") == 3
        assert sample(rt, "keyrun_runs_ended", state="cancelled") == 1
        assert sample(rt, "keyrun_runs_ended", state="failed", kind="step_timeout") == 1
        assert sample(rt, "keyrun_run_duration_seconds", workflow="short").sum == pytest.approx(
            0.3, abs=0.01
        )
        attempts = "keyrun_step_attempts"
        assert sample(rt, attempts, step="work", outcome="completed", workflow="short") == 3
        assert sample(rt, attempts, step="stumbles", outcome="retrying") == 1
        assert sample(rt, attempts, step="stumbles", outcome="failed") == 1
        assert sample(rt, attempts, step="hangs", outcome="timed_out") == 1
        assert sample(rt, "keyrun_step_duration_seconds", step="hangs").sum == pytest.approx(1)
        assert sample(rt, "keyrun_dead_letters") == 2


async def test_an_attempt_that_is_cut_off_counts_as_cancelled_and_one_of_a_killed_process_as_such(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()

    @workflow
    async def long(ctx: Context) -> None:
        await ctx.step(work, 100)

    async with open_test_runtime(store, workflows=[long]) as rt:
        await rt.submit(long, key="a", run_id="a")
        await rt.submit(long, key="b")
        await trio.sleep(1)
        await rt.cancel("a")
        assert sample(rt, "keyrun_step_attempts", outcome="cancelled") == 1
        await trio.sleep(1)
        store.crash()
    async with open_test_runtime(store, workflows=[long]) as rt:
        assert sample(rt, "keyrun_step_interruptions") == 1


async def test_waits_for_slots_room_and_timers_are_measured(autojump_clock: MockClock) -> None:
    options: dict[str, Any] = {"max_concurrent_steps": 1, "max_pending": 2}
    async with open_test_runtime(MemoryStore(), workflows=[short], **options) as rt:
        async with trio.open_nursery() as nursery:
            for number in range(6):
                nursery.start_soon(partial(rt.submit, short, key=f"k{number}"))
            await trio.sleep(0.05)
            assert sample(rt, "keyrun_slots_used") == 1
            assert sample(rt, "keyrun_backlog_runs") == sample(rt, "keyrun_backlog_limit_runs")
            assert sample(rt, "keyrun_backpressure_waiting") > 0
        await trio.sleep(1)
        assert sample(rt, "keyrun_backpressure_waiting") == 0
        assert sample(rt, "keyrun_backpressure_periods") >= 1
        waited = sample(rt, "keyrun_backpressure_wait_seconds", workflow="short")
        assert waited.cumulative[-1] > 0
        assert waited.sum > 0.05
        assert sample(rt, "keyrun_run_start_delay_seconds").sum > 0.5
        assert sample(rt, "keyrun_slot_wait", step="work") == 0


async def test_labels_hold_only_names_from_code(autojump_clock: MockClock) -> None:
    async with open_test_runtime(MemoryStore(), workflows=ALL) as rt:
        await rt.submit(fails, key="key-" + SECRET, run_id="id-" + SECRET, tags=[SECRET])
        await trio.sleep(5)
        for family in families(rt).values():
            for values, _ in family.samples:
                assert not any(SECRET in value for value in values), family.name


async def test_names_beyond_the_limit_count_together_with_one_warning(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def many(ctx: Context) -> None:
        for number in range(60):
            await ctx.step(work.options(name=f"step{number}"), 0.0)

    tuning = Tuning(metric_names=10)
    async with open_test_runtime(MemoryStore(), workflows=[many], tuning=tuning) as rt:
        run = await rt.submit(many, key="a")
        await run.result()
        assert sample(rt, "keyrun_step_attempts", step=OTHER) == 50
        assert len(families(rt)["keyrun_step_duration_seconds"].samples) == 11
    warnings = [each for each in caplog.records if "names of a step" in each.getMessage()]
    assert len(warnings) == 1


async def test_counting_can_be_left_out(autojump_clock: MockClock) -> None:
    tuning = Tuning(metric_names=0)
    async with open_test_runtime(MemoryStore(), workflows=[short], tuning=tuning) as rt:
        run = await rt.submit(short, key="a")
        await run.result()
        assert "keyrun_runs_submitted" not in families(rt)
        assert "keyrun_runs" in families(rt)


async def test_the_oldest_run_that_waits_to_start_is_found_among_many_that_left(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(MemoryStore(), workflows=[short]) as rt:
        await rt.pause_all()
        for number in range(3000):
            await rt.submit_nowait(short, key=f"k{number}", run_id=f"r{number}")
        await trio.sleep(60)
        last = await rt.submit(short, key="last")
        for number in range(3000):
            await rt.cancel(f"r{number}")
        for _ in range(2):
            age = sample(rt, "keyrun_oldest_pending_run_age_seconds")
        assert age == pytest.approx(0, abs=0.01)
        await trio.sleep(10)
        assert sample(rt, "keyrun_oldest_pending_run_age_seconds") == pytest.approx(10, abs=0.01)
        await rt.resume_all()
        await last.result()
        assert sample(rt, "keyrun_oldest_pending_run_age_seconds") == 0
