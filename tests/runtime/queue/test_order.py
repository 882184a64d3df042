"""Runs of one key go one after the other, in the order in which they were admitted."""

from collections import defaultdict
from random import Random

import pytest
import trio

from keyrun import Context, Retry, TransientError, current_step, step, workflow
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.fragile import FragileStore

QUICK = Retry.fixed(max_attempts=5, delay=1.0)

WINDOW = Tuning().queue_window


class Trace:
    """Which run of which key did what, in order."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, int]] = []
        self.running: defaultdict[str, int] = defaultdict(int)
        self.most_keys = 0

    def enter(self, key: str, run: int) -> None:
        assert not self.running[key], f"two steps of {key} at once"
        self.running[key] += 1
        self.entries.append((key, run))
        self.most_keys = max(self.most_keys, sum(self.running.values()))

    def leave(self, key: str) -> None:
        self.running[key] -= 1

    def crashed(self) -> None:
        """The process is gone, and with it all that ran."""
        self.running.clear()

    def of(self, key: str) -> list[int]:
        """The runs of a key whose steps were executed, in order."""
        return [run for other, run in self.entries if other == key]


@pytest.fixture
def trace() -> Trace:
    return Trace()


async def test_runs_of_a_key_start_and_finish_in_the_order_of_their_admission(
    autojump_clock: trio.testing.MockClock, trace: Trace
) -> None:
    @step
    async def work(run: int) -> None:
        trace.enter("k", run)
        await trio.sleep(10 - run)
        trace.leave("k")

    @workflow
    async def job(ctx: Context, run: int) -> int:
        await ctx.step(work, run)
        await ctx.step(work, run)
        return run

    async with open_test_runtime(workflows=[job]) as rt:
        handles = [await rt.submit(job, run, key="k") for run in range(5)]
        assert [await handle.result() for handle in handles] == [0, 1, 2, 3, 4]
        ends = [status.ended_at for handle in handles if (status := await handle.status())]
    assert trace.of("k") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert len(ends) == 5
    assert ends == sorted(ends, key=lambda end: end or 0.0)


async def test_a_run_that_retries_and_sleeps_holds_its_key_and_no_other(
    autojump_clock: trio.testing.MockClock, trace: Trace
) -> None:
    @step(retry=QUICK)
    async def work(key: str, run: int) -> None:
        trace.enter(key, run)
        await trio.sleep(0.1)
        trace.leave(key)
        if run == 0 and key == "slow" and current_step().attempt < 4:
            raise TransientError("not yet")

    @workflow
    async def job(ctx: Context, run: int) -> float:
        await ctx.step(work, ctx.key, run)
        if run == 0 and ctx.key == "slow":
            await ctx.sleep(100)
        await ctx.step(work, ctx.key, run)
        return trio.current_time()

    async with open_test_runtime(workflows=[job]) as rt:
        slow = [await rt.submit(job, run, key="slow") for run in range(3)]
        fast = [await rt.submit(job, run, key="fast") for run in range(3)]
        fast_ends = [await handle.result() for handle in fast]
        slow_ends = [await handle.result() for handle in slow]
    assert trace.of("slow") == [0] * 8 + [1, 1, 2, 2]
    assert trace.of("fast") == [0, 0, 1, 1, 2, 2]
    assert max(fast_ends) < 2
    assert min(slow_ends) > 100


async def test_different_keys_overlap(autojump_clock: trio.testing.MockClock, trace: Trace) -> None:
    @step
    async def work(key: str) -> None:
        trace.enter(key, 0)
        await trio.sleep(1)
        trace.leave(key)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work, ctx.key)

    async with open_test_runtime(workflows=[job]) as rt:
        handles = [await rt.submit(job, key=f"k{n}") for n in range(20)]
        for handle in handles:
            await handle.result()
    assert trace.most_keys == 20


async def test_a_submit_that_returned_before_another_was_called_comes_first(
    autojump_clock: trio.testing.MockClock, trace: Trace
) -> None:
    """Also when its commit is slow and others submit at the same time."""
    store = MemoryStore(latency=0.01)

    @step
    async def work(run: int) -> None:
        trace.enter("k", run)
        trace.leave("k")

    @workflow
    async def job(ctx: Context, run: int) -> None:
        await ctx.step(work, run)

    async with open_test_runtime(store, workflows=[job]) as rt:

        async def submit_many(first: int) -> None:
            for run in range(first, first + 10):
                await rt.submit(job, run, key="k")

        async with trio.open_nursery() as nursery:
            for first in (0, 100, 200):
                nursery.start_soon(submit_many, first)
        await (await rt.submit(job, 999, key="k")).result()
    order = trace.of("k")
    assert len(order) == 31
    assert order[-1] == 999
    for first in (0, 100, 200):
        assert [run for run in order if first <= run < first + 10] == [*range(first, first + 10)]


@pytest.mark.parametrize(
    "store", [MemoryStore(), MemoryStore(latency=0.01), MemoryStore(latency=0.01, apply_first=True)]
)
async def test_a_key_with_more_runs_than_its_window_runs_each_of_them_once(
    autojump_clock: trio.testing.MockClock, trace: Trace, store: MemoryStore
) -> None:
    count = 3 * WINDOW + 7

    @step
    async def work(run: int) -> None:
        trace.enter("k", run)
        trace.leave("k")

    @workflow
    async def job(ctx: Context, run: int) -> int:
        await ctx.step(work, run)
        return run

    async with open_test_runtime(store, workflows=[job], drain_timeout=0) as rt:
        await rt.pause_all()
        handles = [await rt.submit(job, run, key="k") for run in range(count)]
        await rt.resume_all()
        # More arrive while the window is read again and again.
        handles += [await rt.submit(job, run, key="k") for run in range(count, count + 50)]
        assert [await handle.result() for handle in handles] == [*range(count + 50)]
        assert rt.statistics().backlog.pending == 0
    assert trace.of("k") == [*range(count + 50)]


async def test_a_run_that_is_read_before_the_news_of_it_is_run_once(
    autojump_clock: trio.testing.MockClock, trace: Trace
) -> None:
    """A line that reads its window may find a run whose submit has not returned yet."""

    @step
    async def work(run: int) -> None:
        trace.enter("k", run)
        trace.leave("k")

    @workflow
    async def job(ctx: Context, run: int) -> None:
        await ctx.step(work, run)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.pause_key("k")
        for run in range(2):
            await rt.submit(job, run, key="k", run_id=f"r{run}")
    async with open_test_runtime(store, workflows=[job]) as rt:
        await trio.testing.wait_all_tasks_blocked()
        ledger = rt._partition.state.ledger
        number = await ledger.find("r1")
        assert number is not None
        submission = await ledger.submission(number)
        assert submission is not None
        rt._partition.queues.of("k").admit(submission)
        await rt.resume_key("k")
        await (await rt.submit(job, 2, key="k")).result()
    assert trace.of("k") == [0, 1, 2]


async def test_a_cancelled_run_beyond_the_window_is_not_run(
    autojump_clock: trio.testing.MockClock, trace: Trace
) -> None:
    @step
    async def work(run: int) -> None:
        trace.enter("k", run)
        trace.leave("k")

    @workflow
    async def job(ctx: Context, run: int) -> None:
        await ctx.step(work, run)

    async with open_test_runtime(MemoryStore(latency=0.01), workflows=[job]) as rt:
        await rt.pause_all()
        handles = []
        async with trio.open_nursery() as nursery:

            async def submit(run: int) -> None:
                handles.append(await rt.submit(job, run, key="k", run_id=f"r{run}"))

            for run in range(2 * WINDOW):
                nursery.start_soon(submit, run)
                await trio.testing.wait_all_tasks_blocked()
        await rt.resume_all()
        assert await rt.cancel(f"r{WINDOW + 3}")
        assert await rt.cancel(f"r{2 * WINDOW - 1}")
        await (await rt.submit(job, 999, key="k")).result()
        assert rt.statistics().backlog.pending == 0
    order = trace.of("k")
    assert WINDOW + 3 not in order
    assert 2 * WINDOW - 1 not in order
    assert len(order) == 2 * WINDOW - 1


async def test_thousands_of_keys_each_keep_their_own_order(
    autojump_clock: trio.testing.MockClock, trace: Trace
) -> None:
    @step
    async def work(key: str, run: int) -> None:
        trace.enter(key, run)
        trace.leave(key)

    @workflow
    async def job(ctx: Context, run: int) -> None:
        await ctx.step(work, ctx.key, run)

    async with open_test_runtime(workflows=[job]) as rt:
        handles = [
            await rt.submit(job, run, key=f"k{key}") for run in range(2) for key in range(2000)
        ]
        for handle in handles:
            await handle.result()
        assert rt.statistics().keys == 0
    orders = defaultdict(list)
    for key, run in trace.entries:
        orders[key].append(run)
    assert len(orders) == 2000
    assert all(order == [0, 1] for order in orders.values())


async def test_the_next_run_has_no_effect_before_the_end_of_the_one_before_is_durable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    seen: list[str] = []

    @step
    async def work(run: int) -> None:
        if run:
            previous = await rt.status(f"r{run - 1}")
            assert previous is not None
            seen.append(str(previous.state))

    @workflow
    async def job(ctx: Context, run: int) -> None:
        await ctx.step(work, run)

    async with open_test_runtime(MemoryStore(latency=1.0), workflows=[job]) as rt:
        await rt.pause_all()
        for run in range(4):
            await rt.submit(job, run, key="k", run_id=f"r{run}")
        await rt.resume_all()
        await (await rt.submit(job, 4, key="k", run_id="r4")).result()
    assert seen == ["succeeded"] * 4


async def test_a_step_has_no_effect_before_what_its_branch_did_is_durable(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also when a sibling has waited for an earlier commit meanwhile."""
    durable: list[bool] = []

    @step(at_most_once=True)
    async def once() -> None:
        await trio.sleep(10)

    @step
    async def before() -> None:
        await trio.sleep(1.5)

    @step
    async def after() -> None:
        story = await rt.history("r")
        durable.append(any(entry.step == "g1.0/before" for entry in story))

    @workflow
    async def job(ctx: Context) -> None:
        async def branch(ctx: Context) -> None:
            await ctx.step(before)
            await trio.sleep(0.7)
            await ctx.step(after)

        async def sibling(ctx: Context) -> None:
            await trio.sleep(0.1)
            await ctx.step(once)

        await ctx.gather(branch, sibling)

    async with open_test_runtime(MemoryStore(latency=1.0), workflows=[job]) as rt:
        await (await rt.submit(job, key="k", run_id="r")).result()
    assert durable == [True]


@pytest.mark.parametrize("seed", range(8))
async def test_history_per_key_is_serial_and_in_order_under_random_faults_and_crashes(
    autojump_clock: trio.testing.MockClock, trace: Trace, seed: int
) -> None:
    """Mixed keys, several steps, retries, sleeps, pauses, and crashes at random commits."""
    random = Random(seed)
    store = FragileStore()
    finished: dict[str, int] = {}

    @step(retry=Retry.fixed(max_attempts=50, delay=0.5))
    async def work(key: str, run: int) -> None:
        trace.enter(key, run)
        try:
            if random.random() < 0.5:
                await trio.sleep(random.random())
        finally:
            trace.leave(key)
        if random.random() < 0.3:
            raise TransientError("a seeded fault")

    @workflow
    async def job(ctx: Context, run: int) -> int:
        for _ in range(3):
            await ctx.step(work, ctx.key, run)
            if run % 3 == 0:
                await ctx.sleep(0.3)
        return run

    runs = [(f"k{n % 6}", n) for n in range(60)]
    submitted = 0
    while len(finished) < len(runs):
        store.crash_at = store.commits + random.randrange(5, 200)
        async with open_test_runtime(store, workflows=[job], max_concurrent_steps=4) as rt:
            while submitted < len(runs):
                key, run = runs[submitted]
                await rt.submit(job, run, key=key, run_id=f"r{run}")
                submitted += 1
            if random.random() < 0.5:
                await rt.pause_key("k1")
                await trio.sleep(random.random())
            await rt.resume_key("k1")
            for key, run in runs:
                handle = await rt.submit(job, run, key=key, run_id=f"r{run}")
                finished[f"r{run}"] = await handle.result()
            store.crash_at = None
        trace.crashed()
    assert finished == {f"r{run}": run for _, run in runs}
    for n in range(6):
        order = trace.of(f"k{n}")
        assert order == sorted(order)
        assert set(order) == {run for key, run in runs if key == f"k{n}"}
