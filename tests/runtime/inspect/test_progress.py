"""Progress: how far a run is, at every commit, whatever happens to it, and for whoever asks."""

import gc
import subprocess
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun import (
    Context,
    Continue,
    FailureKind,
    PermanentError,
    Retry,
    RunFailed,
    Runtime,
    State,
    StepFailed,
    Succeed,
    TransientError,
    Turn,
    UnknownRun,
    current_step,
    machine,
    open_reader,
    open_runtime,
    step,
    workflow,
)
from keyrun.events import Events
from keyrun.status import Progress, StepCounts
from keyrun.storage import LmdbStore, MemoryStore, StoreClosed
from keyrun.storage.batch import Tables
from keyrun.testing import CrashingMemoryStore, crash_points, open_test_runtime, virtual_wall

SOON = Retry.fixed(max_attempts=2, delay=3, jitter=0)


@step
async def quick(value: Any = None) -> Any:
    return value


@step
async def slow(seconds: float = 1.0) -> float:
    await trio.sleep(seconds)
    return seconds


@step(retry=SOON)
async def flaky(failures: int) -> int:
    attempt = current_step().attempt
    if attempt <= failures:
        raise TransientError(f"attempt {attempt}")
    return attempt


@workflow
async def known(ctx: Context) -> None:
    await ctx.step(quick)
    await ctx.step(slow)
    await ctx.step(flaky, 1)
    await ctx.sleep(5)
    await ctx.step(quick)
    try:
        await ctx.gather(ctx.step(slow, 2), ctx.step(slow, 4), ctx.step(flaky, 2))
    except StepFailed:
        await ctx.step(quick)


class Observed(CrashingMemoryStore):
    """Asks for the progress of the run at each commit."""

    seen: list[Progress]
    reader: Any = None

    async def _commit(self, tables: Tables) -> None:
        await super()._commit(tables)
        if self.reader is not None:
            self._publish(tables)  # early, since the reader has to see it
            found = await self.reader.progress("r")
            if found is not None:
                self.seen.append(found)


async def observe(store: Observed, flow: Any, **options: Any) -> list[Progress]:
    store.seen = []
    async with open_test_runtime(store, workflows=[flow], **options) as runtime:
        async with open_reader(store, wall=virtual_wall) as store.reader:
            with suppress(RunFailed):
                await (await runtime.submit(flow, key="k", run_id="r")).result()
            await runtime._partition.state.store.durable()
        store.reader = None
    return store.seen


def outline(seen: list[Progress]) -> list[tuple[str, int, int, int, int, int]]:
    """State, then steps done, running, retrying, waiting, failed; repeats left out."""
    lines: list[tuple[str, int, int, int, int, int]] = []
    for each in seen:
        c = each.steps
        line = (str(each.state), c.done, c.running, c.retrying, c.waiting, c.failed)
        if not lines or lines[-1] != line:
            lines.append(line)
    return lines


async def test_progress_is_right_at_every_commit_of_a_known_run(
    autojump_clock: MockClock,
) -> None:
    seen = await observe(Observed(), known)
    assert outline(seen) == [
        ("pending", 0, 0, 0, 0, 0),
        ("running", 1, 0, 0, 0, 0),
        ("running", 1, 1, 0, 0, 0),
        ("running", 2, 0, 0, 0, 0),
        ("waiting", 2, 0, 1, 0, 0),
        ("waiting", 3, 0, 0, 1, 0),
        ("running", 3, 0, 0, 0, 0),
        ("running", 4, 0, 0, 0, 0),
        ("running", 4, 2, 1, 0, 0),
        ("running", 5, 1, 1, 0, 0),
        ("running", 5, 0, 0, 0, 1),
        ("succeeded", 6, 0, 0, 0, 1),
    ]
    assert seen[0].percent is None
    assert (seen[-1].percent, seen[-1].time_left, seen[-1].elapsed) == (100.0, 0.0, 12.0)
    assert seen[-1].last_error is not None
    assert seen[-1].last_error.attempt == 2


async def test_progress_is_right_after_a_restart_whichever_commit_it_crashed_at(
    autojump_clock: MockClock,
) -> None:
    restarts = 0

    async def scenario(runtime: Runtime) -> tuple[Progress | None, int]:
        nonlocal restarts
        found = await runtime.progress("r")
        if found is not None:
            restarts += 1
            events = [h.event for h in await runtime.history("r")]
            assert found.steps.done == events.count("step_completed")
            assert found.steps.failed == events.count("step_failed")
            assert found.steps.running == 0
            assert (found.last_error is not None) == ("attempt_failed" in events)
        await (await runtime.submit(known, key="k", run_id="r")).result()
        done = [h for h in await runtime.history("r") if h.event == "step_completed"]
        return await runtime.progress("r"), len(done)

    for point in crash_points():
        end, done = await point.run(scenario, workflows=[known])
        assert end is not None
        assert 5 <= done <= 6  # which branches are done when one fails may differ
        assert (end.state, end.steps) == (State.SUCCEEDED, StepCounts(done=done, failed=1)), point
    assert restarts > 20


async def test_what_a_failed_branch_takes_along_is_not_waited_for(
    autojump_clock: MockClock,
) -> None:
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(1000)

    async def doomed(ctx: Context) -> None:
        await ctx.step(slow)
        await ctx.step(flaky.options(retry=Retry.none()), 1)

    @workflow
    async def flow(ctx: Context) -> None:
        try:
            await ctx.gather(sleeper, ctx.step(flaky, 1), doomed)
        except StepFailed:
            await ctx.step(slow, 10)

    seen = outline(await observe(Observed(), flow))
    assert ("running", 0, 1, 1, 1, 0) in seen
    assert seen[-2:] == [("running", 1, 1, 0, 0, 1), ("succeeded", 2, 0, 0, 0, 1)]


async def test_a_run_that_failed_says_how_far_it_came_and_why_it_ended(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def doomed(ctx: Context) -> None:
        ctx.report(40, "nearly half")
        await ctx.step(slow)
        await ctx.step(flaky, 2)

    (*_, end) = await observe(Observed(), doomed)
    assert (end.state, end.percent, end.message) == (State.FAILED, 40.0, "nearly half")
    assert end.steps == StepCounts(done=1, failed=1)
    assert (end.time_left, end.elapsed, end.rate) == (0.0, 4.0, 0.25)
    assert end.last_error is not None
    assert end.last_error.kind is FailureKind.STEP_FAILED


async def test_a_redriven_run_begins_again_where_it_failed(autojump_clock: MockClock) -> None:
    broken = True

    @step(retry=Retry.none())
    async def fragile() -> None:
        await trio.sleep(1)
        if broken:
            raise TransientError("broken")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.step(fragile)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        broken = False
        await runtime.pause_all()
        await runtime.redrive("r")
        found = await runtime.progress("r")
        assert found is not None
        assert (found.state, found.steps) == (State.PAUSED, StepCounts(done=1))
        assert found.last_error is None
        await runtime.resume_all()
        (*_, end) = [each async for each in runtime.watch("r")]
    assert (end.state, end.steps_done) == (State.SUCCEEDED, 2)


async def test_what_is_reported_is_seen_while_the_attempt_runs(autojump_clock: MockClock) -> None:
    @step(retry=SOON)
    async def working() -> None:
        here = current_step()
        here.report(30, f"attempt {here.attempt}")
        await trio.sleep(10)
        here.report(60, "more")
        await trio.sleep(10)
        if here.attempt == 1:
            raise TransientError("half done")

    @workflow
    async def flow(ctx: Context) -> None:
        ctx.report(5, "off we go")
        await ctx.step(working)
        await ctx.sleep(10)
        ctx.report(90, "nearly there")
        await ctx.sleep(10)

    store = MemoryStore()

    async def seen(runtime: Runtime, at: float) -> tuple[Any, ...]:
        await trio.sleep(at - trio.current_time())
        found = await runtime.progress("r")
        assert found is not None
        running = [(each.attempt, each.percent, each.message) for each in found.running]
        return found.percent, found.message, running

    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        begun = trio.current_time()
        assert await seen(runtime, begun + 5) == (5.0, "off we go", [(1, 30.0, "attempt 1")])
        assert await seen(runtime, begun + 15) == (5.0, "off we go", [(1, 60.0, "more")])
        assert await seen(runtime, begun + 22) == (5.0, "off we go", [])
        assert await seen(runtime, begun + 25) == (5.0, "off we go", [(2, 30.0, "attempt 2")])
        await store.durable()
        store.crash()
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[flow], drain_timeout=0) as runtime:
        assert len(await store.scan("reports")) == 1  # that of the attempt is gone
        found = await runtime.progress("r")
        assert found is not None
        assert (found.percent, found.running) == (5.0, ())
        assert found.steps.retrying == 1
        run = await runtime.submit(flow, key="k", run_id="r")
        begun = trio.current_time()
        assert await seen(runtime, begun + 15) == (5.0, "off we go", [(2, 60.0, "more")])
        assert await seen(runtime, begun + 35) == (90.0, "nearly there", [])
        await run.result()
        assert await seen(runtime, begun + 45) == (100.0, "nearly there", [])
        assert [key for key, _ in await store.scan("reports")] == [
            key for key, _ in await store.scan("runs")
        ]
        await runtime.forget("r")
        assert await store.scan("reports") == []


async def test_a_report_of_long_ago_is_not_said_again_by_a_replay(
    autojump_clock: MockClock,
) -> None:
    told: list[Any] = []

    @step(timeout=5, retry=SOON)
    async def sluggish() -> None:
        await trio.sleep(100 if current_step().attempt == 1 else 0)

    @workflow
    async def flow(ctx: Context) -> None:
        ctx.report(10)
        await ctx.step(quick)
        ctx.report(50)
        await ctx.step(sluggish)  # its timeout has the workflow driven again from the beginning
        ctx.report(80)

    async with open_test_runtime(workflows=[flow]) as runtime:
        async with runtime.events(kinds=["run_progress"]) as events:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
            await runtime._partition.state.store.durable()
            await wait_all_tasks_blocked()
            runtime._partition.state.host.subscribers.close()
            told = [getattr(event, "percent", None) async for event in events]
    assert told == [50.0, 80.0]  # the first two are of one commit: only the last word is told


async def test_a_report_costs_no_commit(autojump_clock: MockClock) -> None:
    @workflow
    async def plain(ctx: Context) -> None:
        for _ in range(5):
            await ctx.step(quick)

    @workflow
    async def reporting(ctx: Context) -> None:
        for percent in range(5):
            ctx.report(percent)
            await ctx.step(quick)

    commits = []
    for flow in (plain, reporting):
        async with open_test_runtime(workflows=[flow]) as runtime:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
            commits.append(runtime.statistics().commits.commits)
    assert commits[0] == commits[1]


async def test_a_thread_that_reports_after_the_store_has_failed_does_no_harm() -> None:
    begun, let_go = threading.Event(), threading.Event()
    store = MemoryStore()

    @step(abandon=True)
    def blocking() -> None:
        begun.set()
        let_go.wait(10)
        current_step().report(50)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(blocking)

    async with open_test_runtime(store, workflows=[flow], threads="real") as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.to_thread.run_sync(begun.wait)
        current = runtime._partition.runs.all_live()[0].current["blocking"]
        store.crash()
        let_go.set()
        await trio.to_thread.run_sync(current.report, 70, "too late", abandon_on_cancel=True)
    async with open_test_runtime(store, threads="real") as runtime:
        found = await runtime.progress("r")
    assert found is not None
    assert found.running == ()


async def test_the_rest_is_guessed_from_earlier_runs(autojump_clock: MockClock) -> None:
    @workflow
    async def four(ctx: Context, seconds: float) -> None:
        for _ in range(4):
            await ctx.step(slow, seconds)

    async with open_test_runtime(workflows=[four]) as runtime:
        first = await runtime.submit(four, 10.0, key="k")
        await trio.sleep(15)
        found = await runtime.progress(first.run_id)
        assert found is not None
        assert (found.percent, found.time_left) == (None, None)
        assert found.rate == pytest.approx(1 / 15)
        await first.result()
        second = await runtime.submit(four, 20.0, key="k")
        await trio.sleep(10)
        found = await runtime.progress(second.run_id)
        assert found is not None
        assert (found.percent, found.rate) == (0.0, None)
        assert found.time_left == pytest.approx(30)
        await trio.sleep(15)
        found = await runtime.progress(second.run_id)
        assert found is not None
        assert found.percent == 25.0
        assert found.rate == pytest.approx(1 / 25)
        assert found.time_left == pytest.approx(55)
        assert found.elapsed == pytest.approx(25)
        await second.result()


async def test_a_workflow_that_reports_is_believed(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(slow, 10)
        ctx.report(25)
        await ctx.step(slow, 50)

    async with open_test_runtime(workflows=[flow], drain_timeout=0) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(16)
        found = await runtime.progress("r")
    assert found is not None
    assert found.percent == 25.0
    assert found.time_left == pytest.approx(24)


async def test_a_machine_is_as_far_as_its_turns(autojump_clock: MockClock) -> None:
    @machine(name="counter", retry=SOON)
    async def counter(t: Turn) -> Any:
        if t.number == 1 and t.attempt == 1:
            raise TransientError("again")
        await trio.sleep(1)
        return Succeed() if t.number == 2 else Continue(after=2)

    store = Observed()
    assert outline(await observe(store, counter)) == [
        ("pending", 0, 0, 0, 0, 0),
        ("running", 0, 1, 0, 0, 0),
        ("waiting", 1, 0, 0, 1, 0),
        ("waiting", 1, 0, 1, 0, 0),
        ("running", 1, 1, 0, 0, 0),
        ("waiting", 2, 0, 0, 1, 0),
        ("running", 2, 1, 0, 0, 0),
        ("succeeded", 3, 0, 0, 0, 0),
    ]


async def test_holding_and_ending_from_outside_show(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(slow.options(shield=True), 10)
        await ctx.step(quick)

    async with open_test_runtime(workflows=[flow]) as runtime:

        async def state(run_id: str) -> State:
            found = await runtime.progress(run_id)
            assert found is not None
            return found.state

        await runtime.submit(flow, key="k", run_id="r")
        await runtime.submit(flow, key="k", run_id="next")
        await trio.sleep(1)
        await runtime.pause("r")
        assert await state("r") is State.RUNNING
        await trio.sleep(10)
        assert (await state("r"), await state("next")) == (State.PAUSED, State.PENDING)
        await runtime.resume("r")
        await trio.sleep(1)
        assert (await state("r"), await state("next")) == (State.SUCCEEDED, State.RUNNING)
        await runtime.cancel("next")
        assert await state("next") is State.CANCELLING
        await trio.sleep(10)
        assert await state("next") is State.CANCELLED
        assert await runtime.progress("nobody") is None


async def test_a_watch_tells_of_changes_and_ends_with_the_run(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[known]) as runtime:
        await runtime.pause_all()
        await runtime.submit(known, key="k", run_id="r")
        seen: list[Progress] = []
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                async for each in runtime.watch("r"):
                    seen.append(each)

            nursery.start_soon(watch)
            await wait_all_tasks_blocked()
            assert len(seen) == 1
            await runtime.resume_all()
        assert runtime._partition.state.feed is None
        again = [each async for each in runtime.watch("r")]
    assert outline(seen)[0][0] in ("pending", "paused")
    assert outline(seen)[-1] == ("succeeded", 6, 0, 0, 0, 1)
    assert {line[0] for line in outline(seen)} >= {"running", "waiting", "succeeded"}
    assert all(one != two for one, two in pairwise(seen))
    assert again == seen[-1:]


async def test_a_slow_watcher_gets_the_latest_not_a_backlog(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        for _ in range(100):
            await ctx.step(slow, 1)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        seen = []
        async for each in runtime.watch("r"):
            seen.append(each.steps_done)
            await trio.sleep(30.25)
        await run.result()
        assert seen == [0, 30, 60, 90, 100]
        spaced = [each.steps_done async for each in runtime.watch("r", interval=30)]
        assert spaced == [100]


async def test_a_watch_of_nothing_says_so(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[known]) as runtime:
        with pytest.raises(UnknownRun):
            await runtime.watch("nobody").__anext__()
        with pytest.raises(ValueError, match="interval must be at least 0"):
            runtime.watch("r", interval=-1)
        watch = runtime.watch("r")
        await runtime.submit(known, key="k", run_id="r")
        assert (await watch.__anext__()).state is not State.SUCCEEDED
    with pytest.raises(StoreClosed):
        while True:
            await watch.__anext__()


async def test_a_reader_watches_by_looking_again_and_again(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[known]) as runtime:
        async with open_reader(store, wall=virtual_wall) as reader:
            await runtime.submit(known, key="k", run_id="r")
            seen = [each async for each in reader.watch("r", interval=0.5)]
            with pytest.raises(ValueError, match="interval must be positive"):
                reader.watch("r", interval=0)
            with pytest.raises(UnknownRun):
                await reader.watch("nobody").__anext__()
        assert seen[-1] == await runtime.progress("r")
    assert {line[0] for line in outline(seen)} >= {"running", "waiting", "succeeded"}


async def test_a_watch_ends_when_the_run_is_forgotten(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[known]) as runtime:
        run = await runtime.submit(known, key="k", run_id="r")
        async with open_reader(store, wall=virtual_wall) as reader:
            watch = reader.watch("r", interval=60)
            await watch.__anext__()
            await run.result()
            await runtime.forget("r")
            assert [each async for each in watch] == []


async def test_a_watch_that_nobody_has_any_more_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[known]) as runtime:
        await runtime.submit(known, key="k", run_id="r")
        async for _ in runtime.watch("r"):
            assert runtime._partition.state.feed is not None
            break
        gc.collect()
        assert runtime._partition.state.feed is None
        assert not [each for each in gc.get_objects() if isinstance(each, Events)]


WATCHER = """
import sys, trio
from keyrun import open_reader

async def main():
    async with open_reader(sys.argv[1]) as reader:
        async for each in reader.watch("r", interval=0.01):
            said = [(step.step, step.percent, step.message) for step in each.running]
            print(each.state, each.steps_done, each.percent, said, flush=True)

trio.run(main)
"""


async def test_another_process_watches_a_live_run_to_its_end(tmp_path: Path) -> None:
    go_on = trio.Event()

    @step
    async def held() -> None:
        current_step().report(33, "held")
        await go_on.wait()

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.step(held)

    lines: list[str] = []
    async with open_runtime(LmdbStore(tmp_path), workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        async for each in runtime.watch("r"):
            if each.running:
                break
        command = [sys.executable, "-c", WATCHER, str(tmp_path)]
        with trio.fail_after(30):
            child = await trio.lowlevel.open_process(command, stdout=subprocess.PIPE)
            assert child.stdout is not None
            received = b""
            async for chunk in child.stdout:
                received += chunk
                if b"\n" in received:
                    go_on.set()
            assert await child.wait() == 0
    lines = received.decode().splitlines()
    assert lines[0] == "running 1 None [('held', 33.0, 'held')]"
    assert lines[-1] == "succeeded 2 100.0 []"


async def test_the_rate_is_of_all_the_time_since_the_generation_started(
    autojump_clock: MockClock,
) -> None:
    mended = False

    @step(retry=Retry.none())
    async def fragile() -> None:
        await trio.sleep(1)
        if not mended:
            raise PermanentError("not yet")

    @workflow
    async def job(ctx: Context) -> None:
        for _ in range(10):
            await ctx.step(slow, 0.0)
        await ctx.sleep(99)
        await ctx.step(fragile)
        await ctx.sleep(3)

    async def rate() -> float | None:
        found = await runtime.progress("r")
        assert found is not None
        return found.rate

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], drain_timeout=0) as runtime:
        await runtime.submit(job, key="k", run_id="r")
        await trio.sleep(10)
        assert await rate() == pytest.approx(1.0)  # and not ten in no time
        await trio.sleep(10)
        assert await rate() == pytest.approx(0.5)
        store.crash()
    async with open_test_runtime(store, workflows=[job]) as runtime:
        await trio.sleep(1000)
        assert await rate() == pytest.approx(0.1)
        mended = True
        await runtime.redrive("r")
        assert await rate() is None
        await trio.sleep(2)
        assert await rate() == pytest.approx(0.5)
        await trio.sleep(1000)
        assert await rate() == pytest.approx(0.25)
