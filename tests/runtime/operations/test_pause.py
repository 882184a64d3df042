"""Pause and resume, of a run, a key, and everything: the running step finishes, then all waits."""

from collections.abc import Awaitable, Callable, Coroutine
from math import inf
from pathlib import Path
from typing import Any

import pytest
import trio

from keyrun import (
    Context,
    InvalidKey,
    Limits,
    Retry,
    RunCancelled,
    RunFailed,
    Runtime,
    State,
    TransientError,
    Workflow,
    current_step,
    open_reader,
    open_runtime,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime
from tests.storage.processes import run_python

Change = Callable[[Runtime], Awaitable[object]]

LEVELS: dict[str, tuple[Change, Change]] = {
    "run": (lambda rt: rt.pause("r"), lambda rt: rt.resume("r")),
    "key": (lambda rt: rt.pause_key("k"), lambda rt: rt.resume_key("k")),
    "all": (lambda rt: rt.pause_all(), lambda rt: rt.resume_all()),
}

each_level = pytest.mark.parametrize("level", LEVELS)


@pytest.fixture
def done() -> list[str]:
    return []


def make_job(done: list[str]) -> Workflow[None, str]:
    @step
    async def work(name: str) -> None:
        await trio.sleep(10)
        done.append(f"{current_step().run_id}:{name}")

    @workflow
    async def job(ctx: Context) -> str:
        for name in "abc":
            await ctx.step(work, name)
        return "done"

    return job


async def state_of(rt: Runtime, run_id: str) -> State:
    status = await rt.status(run_id)
    assert status is not None
    return status.state


@each_level
async def test_a_running_step_finishes_and_nothing_starts_until_resume(
    autojump_clock: trio.testing.MockClock, done: list[str], level: str
) -> None:
    job = make_job(done)
    pause, resume = LEVELS[level]
    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await trio.sleep(15)
        await pause(rt)
        assert await state_of(rt, "r") is State.RUNNING
        await trio.sleep(1000)
        assert done == ["r:a", "r:b"]
        assert await state_of(rt, "r") is State.PAUSED
        await resume(rt)
        assert await run.result() == "done"
        assert trio.current_time() == pytest.approx(1025, abs=0.1)
    assert done == ["r:a", "r:b", "r:c"]


@each_level
async def test_several_cycles_lose_nothing(
    autojump_clock: trio.testing.MockClock, done: list[str], level: str
) -> None:
    job = make_job(done)
    pause, resume = LEVELS[level]
    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        for _ in range(10):
            await trio.sleep(3)
            await pause(rt)
            await trio.sleep(50)
            await resume(rt)
        assert await run.result() == "done"
    assert done == ["r:a", "r:b", "r:c"]


@each_level
@pytest.mark.parametrize("crash", [True, False])
async def test_a_pause_lasts_over_restarts(
    autojump_clock: trio.testing.MockClock, done: list[str], level: str, crash: bool
) -> None:
    job = make_job(done)
    pause, resume = LEVELS[level]
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(5)
        await pause(rt)
        await trio.sleep(20)
        if crash:
            store.crash()
    assert done == ["r:a"]
    for _ in range(2):
        async with open_test_runtime(store, workflows=[job]) as rt:
            await trio.sleep(100)
            assert await state_of(rt, "r") is State.PAUSED
            if crash:
                store.crash()
    assert done == ["r:a"]
    async with open_test_runtime(store, workflows=[job]) as rt:
        again = await rt.submit(job, key="k", run_id="r")
        await resume(rt)
        assert await again.result() == "done"
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="next")).result() == "done"
    assert done == ["r:a", "r:b", "r:c", "next:a", "next:b", "next:c"]


@each_level
async def test_what_is_paused_before_it_begins_does_not_begin(
    autojump_clock: trio.testing.MockClock, done: list[str], level: str
) -> None:
    """Its time does not begin either."""
    job = make_job(done)
    pause, resume = LEVELS[level]
    async with open_test_runtime(workflows=[job]) as rt:
        if level == "run":
            await rt.submit(job, key="k", run_id="before")
        else:
            await pause(rt)
        run = await rt.submit(job, key="k", run_id="r", limits=Limits(run_timeout=40))
        await pause(rt)
        await trio.sleep(1000)
        assert await state_of(rt, "r") is State.PAUSED
        assert [entry for entry in done if entry.startswith("r")] == []
        status = await rt.status("r")
        assert status is not None
        assert status.started_at is None
        await resume(rt)
        assert await run.result() == "done"


async def test_a_pending_run_that_is_paused_waits_when_its_turn_comes_and_holds_its_key(
    autojump_clock: trio.testing.MockClock, done: list[str]
) -> None:
    job = make_job(done)
    async with open_test_runtime(MemoryStore(latency=0.01), workflows=[job]) as rt:
        for name in ("first", "held", "last"):
            await rt.submit(job, key="k", run_id=name)
        other = await rt.submit(job, key="other", run_id="other")
        assert await rt.pause("held") is True
        assert await state_of(rt, "held") is State.PAUSED
        await other.result()
        await trio.sleep(500)
        assert await state_of(rt, "first") is State.SUCCEEDED
        assert await state_of(rt, "held") is State.PAUSED
        assert await state_of(rt, "last") is State.PENDING
        await rt.resume("held")
        await (await rt.submit(job, key="k", run_id="last")).result()
    mine = [entry.partition(":")[0] for entry in done if not entry.startswith("other")]
    assert mine == ["first"] * 3 + ["held"] * 3 + ["last"] * 3


async def test_a_run_that_is_paused_just_before_its_turn_does_not_slip_through(
    autojump_clock: trio.testing.MockClock, done: list[str]
) -> None:
    """The request is still being committed when the run before it ends."""
    job = make_job(done)
    async with open_test_runtime(MemoryStore(latency=2), workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="first")
        await rt.submit(job, key="k", run_id="held")
        while len(done) < 3:
            await trio.sleep(0.1)
        await rt.pause("held")
        await trio.sleep(100)
        assert len(done) == 3
        await rt.resume("held")
        await trio.sleep(100)
    assert len(done) == 6


async def test_a_timer_that_passes_while_paused_is_over_at_resume(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @workflow
    async def sleeper(ctx: Context) -> float:
        await ctx.sleep(50)
        return trio.current_time()

    async with open_test_runtime(workflows=[sleeper]) as rt:
        passed = await rt.submit(sleeper, key="a", run_id="a")
        left = await rt.submit(sleeper, key="b", run_id="b")
        await trio.sleep(5)
        await rt.pause_all()
        await trio.sleep(15)
        await rt.resume("b")
        await rt.resume_all()
        await rt.pause("a")
        await trio.sleep(100)
        assert await state_of(rt, "a") is State.PAUSED
        await rt.resume("a")
        assert await passed.result() == pytest.approx(120, abs=0.1)
        assert await left.result() == pytest.approx(50, abs=0.1)


async def test_a_backoff_that_passes_while_paused_is_over_at_resume(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []

    @step(retry=Retry.fixed(max_attempts=2, delay=10, jitter=0))
    async def fail_once() -> None:
        times.append(trio.current_time())
        if len(times) == 1:
            raise TransientError("once")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(fail_once)

    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await trio.sleep(5)
        await rt.pause("r")
        await trio.sleep(95)
        assert len(times) == 1
        await rt.resume("r")
        await run.result()
    assert times == pytest.approx([0, 100], abs=0.1)


@each_level
@pytest.mark.parametrize("begun", [True, False])
async def test_a_paused_run_can_be_cancelled(
    autojump_clock: trio.testing.MockClock, done: list[str], level: str, begun: bool
) -> None:
    hook = RecordingHook()
    job = make_job(done)
    pause, resume = LEVELS[level]
    async with open_test_runtime(workflows=[job], on_terminal=hook) as rt:
        if begun:
            run = await rt.submit(job, key="k", run_id="r")
            await trio.sleep(5)
            await pause(rt)
        else:
            await rt.pause_key("k")
            run = await rt.submit(job, key="k", run_id="r")
            await pause(rt)
        await trio.sleep(50)
        assert await run.cancel() is True
        assert await state_of(rt, "r") is State.CANCELLED
        with pytest.raises(RunCancelled):
            await run.result()
        await resume(rt)
        await rt.resume_key("k")
        await (await rt.submit(job, key="k", run_id="next")).result()
    assert [outcome.run_id for outcome in hook.outcomes] == ["r", "next"]


async def test_the_levels_are_independent(
    autojump_clock: trio.testing.MockClock, done: list[str]
) -> None:
    job = make_job(done)
    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await rt.pause("r")
        await rt.pause_key("k")
        await rt.pause_all()
        await trio.sleep(20)
        for resume in (rt.resume_all, lambda: rt.resume_key("k")):
            await resume()
            await trio.sleep(50)
            assert await state_of(rt, "r") is State.PAUSED
        before = len(done)
        await rt.resume("r")
        await run.result()
    assert before <= 1
    assert len(done) == 3


async def test_there_is_nothing_to_resume_in_what_is_not_paused(
    autojump_clock: trio.testing.MockClock, done: list[str]
) -> None:
    job = make_job(done)
    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        assert await rt.resume("r") is False
        assert await rt.resume("nobody") is False
        assert await rt.pause("nobody") is False
        await rt.resume_key("k")
        await rt.resume_all()
        assert await rt.pause("r") is True
        assert await rt.pause("r") is False
        assert await rt.resume("r") is True
        await run.result()
        assert await rt.pause("r") is False
        with pytest.raises(InvalidKey):
            await rt.pause_key("")


async def test_keys_that_were_paused_and_resumed_cost_nothing(
    autojump_clock: trio.testing.MockClock, done: list[str]
) -> None:
    async with open_test_runtime(workflows=[make_job(done)]) as rt:
        for n in range(10):
            await rt.pause_key(f"k{n}")
            await rt.resume_key(f"k{n}")
        await trio.testing.wait_all_tasks_blocked()
        assert rt.statistics().keys == 0


async def test_a_delayed_run_that_is_paused_stays_paused_when_it_is_due(
    autojump_clock: trio.testing.MockClock, done: list[str]
) -> None:
    job = make_job(done)
    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r", delay=10)
        assert await rt.pause("r")
        await trio.sleep(100)
        assert await state_of(rt, "r") is State.PAUSED
        assert done == []
        assert await rt.resume("r")
        assert await run.result() == "done"


@pytest.mark.parametrize("ticks", range(0, 60, 3))
async def test_a_run_that_is_paused_and_cancelled_as_its_turn_comes_is_cancelled(
    autojump_clock: trio.testing.MockClock, done: list[str], ticks: int
) -> None:
    hook = RecordingHook()
    job = make_job(done)
    async with open_test_runtime(MemoryStore(latency=2), workflows=[job], on_terminal=hook) as rt:
        await rt.submit(job, key="k", run_id="first")
        await rt.submit(job, key="k", run_id="second")
        last = await rt.submit(job, key="k", run_id="last")
        while len(done) < 2:
            await trio.sleep(0.1)
        await trio.sleep(8 + ticks / 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.pause, "second")
            await trio.sleep(0.5)
            assert await rt.cancel("second")
        await last.result()
        await trio.sleep(100)
        assert rt.statistics().backlog.pending == 0
    assert not [entry for entry in done if entry.startswith("second")]
    assert sorted(outcome.run_id for outcome in hook.outcomes) == ["first", "last", "second"]


@each_level
async def test_status_and_runs_say_the_same_of_what_is_held_here_and_to_a_reader(
    autojump_clock: trio.testing.MockClock, done: list[str], level: str
) -> None:
    """The run whose turn it is says so; those behind it just wait."""
    job = make_job(done)
    pause, resume = LEVELS[level]
    store = MemoryStore()

    async def told(rt: Runtime) -> dict[str, State]:
        states = {run.run_id: run.state for run in await rt.runs()}
        assert states == {run_id: await state_of(rt, run_id) for run_id in states}
        async with open_reader(store) as reader:
            assert states == {run.run_id: run.state for run in await reader.runs()}
            for run_id, state in states.items():
                assert await state_of(reader, run_id) is state  # type: ignore[arg-type]
            for state in set(states.values()):
                listed = await rt.runs(state=state)
                assert [run.run_id for run in listed] == [r for r in states if states[r] is state]
                assert len(await reader.runs(state=state)) == len(listed)
            assert await reader.keys() == await rt.keys()
        return states

    async with open_test_runtime(store, workflows=[job]) as rt:
        last = [await rt.submit(job, key="k", run_id=name) for name in ("r", "next")][-1]
        await rt.submit(job, key="k", run_id="late", delay=1000)
        await trio.sleep(5)
        assert await told(rt) == {
            "r": State.RUNNING,
            "next": State.PENDING,
            "late": State.PENDING,
        }
        await pause(rt)
        # The step is let finish.
        assert (await told(rt))["r"] is State.RUNNING
        await trio.sleep(10)
        await store.durable()
        held = {"r": State.PAUSED, "next": State.PENDING, "late": State.PENDING}
        assert await told(rt) == held
    for _ in range(2):
        async with open_test_runtime(store, workflows=[job]) as rt:
            await trio.sleep(1)
            assert await told(rt) == held
            store.crash()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await resume(rt)
        last = await rt.submit(job, key="k", run_id="next")
        await last.result()
        states = await told(rt)
        assert (states["r"], states["next"]) == (State.SUCCEEDED, State.SUCCEEDED)
        await pause(rt)
        assert (await told(rt))["next"] is State.SUCCEEDED


@pytest.mark.parametrize("begun", [True, False])
async def test_a_run_that_is_held_before_it_begins_says_so(
    autojump_clock: trio.testing.MockClock, done: list[str], begun: bool
) -> None:
    job, store = make_job(done), MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt, open_reader(store) as reader:
        if begun:
            await rt.submit(job, key="k", run_id="r")
        await rt.pause_key("k")
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(100)
        for source in (rt, reader):
            assert [run.state for run in await source.runs()] == [State.PAUSED]
            assert [run.run_id for run in await source.runs(state=State.PAUSED)] == ["r"]
            assert await source.runs(state=State.PENDING) == []
            (key,) = await source.keys()
            assert (key.state, key.paused, key.quarantined) == (State.PAUSED, True, False)


HELD = """
    import sys, trio
    from keyrun import open_reader

    async def main():
        async with open_reader(sys.argv[1]) as reader:
            print([(r.run_id, r.state.value) for r in await reader.runs()])
            print([(await reader.status(name)).state.value for name in ("a", "b", "c")])
            print([(k.key, k.state.value, k.paused) for k in await reader.keys()])

    trio.run(main)
"""


async def test_another_process_sees_what_is_held(tmp_path: Path, done: list[str]) -> None:
    job = make_job(done)
    async with open_runtime(tmp_path, workflows=[job]) as rt:
        await rt.pause_key("k")
        await rt.submit(job, key="k", run_id="a")
        await rt.submit(job, key="k", run_id="b")
        await rt.pause_all()
        await rt.submit(job, key="other", run_id="c")
        child = await trio.to_thread.run_sync(run_python, HELD, tmp_path)
    assert child.stdout.splitlines() == [
        "[('a', 'paused'), ('b', 'pending'), ('c', 'paused')]",
        "['paused', 'pending', 'paused']",
        "[('k', 'paused', True), ('other', 'paused', False)]",
    ], child.stderr


async def test_a_time_limit_that_passes_while_paused_takes_effect_at_resume(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @workflow
    async def job(ctx: Context) -> str:
        with ctx.move_on_after(5) as scope:
            await ctx.sleep(100)
        return f"expired: {scope.expired}"

    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
        await rt.pause("r")
        await trio.sleep(50)
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.PAUSED
        await rt.resume("r")
        assert await run.result() == "expired: True"


async def refused(ctx: Context) -> None:
    await ctx.step(refuse)


async def judged(ctx: Context) -> None:
    await ctx.sleep(10)
    ctx.fail("not good enough")


async def broken(ctx: Context) -> None:
    await ctx.sleep(10)
    raise ZeroDivisionError


@step(timeout=10, retry=Retry.none())
async def refuse() -> None:
    await trio.sleep_forever()


@each_level
@pytest.mark.parametrize("function", [refused, judged, broken])
async def test_a_run_that_fails_while_paused_ends_at_resume(
    autojump_clock: trio.testing.MockClock,
    level: str,
    function: Callable[[Context], Coroutine[Any, Any, None]],
) -> None:
    pause, resume = LEVELS[level]
    job: Workflow[None, None] = workflow(name="job")(function)
    hook = RecordingHook()
    async with open_test_runtime(workflows=[job], on_terminal=hook) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
        await pause(rt)
        await trio.sleep(50)
        assert await state_of(rt, "r") is State.PAUSED
        assert not hook.outcomes
        await resume(rt)
        with pytest.raises(RunFailed):
            await run.result()


async def test_code_behind_a_block_whose_time_is_up_does_not_run_while_paused(
    autojump_clock: trio.testing.MockClock,
) -> None:
    went: list[str] = []

    @workflow
    async def job(ctx: Context) -> None:
        try:
            with ctx.move_on_after(5):
                try:
                    await ctx.sleep(100)
                finally:
                    went.append("cut off")
            went.append("moved on")
            with ctx.fail_after(5):
                await ctx.sleep(100)
        except TimeoutError:
            went.append("failed")

    async with open_test_runtime(workflows=[job], evict_after=inf) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        for expected in ([], ["cut off", "moved on"]):
            await trio.sleep(1)
            await rt.pause("r")
            await trio.sleep(50)
            assert went == expected
            status = await rt.status("r")
            assert status is not None
            assert status.state is State.PAUSED
            await rt.resume("r")
        await run.result()
    assert went == ["cut off", "moved on", "failed"]


async def test_a_time_limit_that_passed_while_paused_is_no_obstacle_to_leaving_or_cancelling(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        with ctx.move_on_after(5):
            await ctx.sleep(100)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], evict_after=inf) as rt:
        for run_id in "abc":
            limits = Limits(run_timeout=30) if run_id == "c" else None
            await rt.submit(job, key=run_id, run_id=run_id, limits=limits)
        await trio.sleep(1)
        await rt.pause_all()
        await trio.sleep(10)
        assert await rt.cancel("a")
        await trio.sleep(40)
        left = trio.current_time()
    assert trio.current_time() == left
    async with open_test_runtime(store, workflows=[job]) as rt:
        await trio.sleep(50)
        states = {run.run_id: run.state for run in await rt.runs()}
        assert states == {"a": State.CANCELLED, "b": State.PAUSED, "c": State.FAILED}
        await rt.resume_all()
        await (await rt.submit(job, key="b", run_id="b")).result()


@each_level
async def test_what_is_resumed_when_it_would_leave_memory_goes_on(
    autojump_clock: trio.testing.MockClock, level: str
) -> None:
    @step
    async def slow() -> None:
        await trio.sleep(2)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(slow)
        await ctx.step(slow)

    pause, resume = LEVELS[level]
    for late in range(20):
        store = MemoryStore(latency=0.25)
        async with open_test_runtime(store, workflows=[job], evict_after=1.0) as rt:
            run = await rt.submit(job, key="k", run_id="r")
            await trio.sleep(1)
            await pause(rt)
            await trio.sleep(1.5 + late / 10)
            await resume(rt)
            with trio.fail_after(50):
                await run.result()
