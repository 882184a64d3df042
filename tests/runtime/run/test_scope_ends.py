"""What a block with a time limit is doing when its time is up, or when something else ends it."""

import threading
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    Limits,
    PermanentError,
    Retry,
    RunCancelled,
    RunFailed,
    ScopeTimeout,
    State,
    StepFailed,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, open_test_runtime
from tests.runtime.blocks import Body, after, ends, fetch, quick, ran, refuse, replayed, stop, wait


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


async def test_a_block_cut_off_in_backoff_spends_no_attempt(autojump_clock: MockClock) -> None:
    @step(retry=Retry.fixed(max_attempts=3, delay=10, jitter=0))
    async def flaky() -> None:
        ran.append(current_step().step)
        raise ValueError("not yet")

    async def body(ctx: Context) -> Any:
        with ctx.move_on_after(5) as scope:
            await ctx.step(flaky)
        return scope.expired

    assert await replayed(body) is True
    assert ran == ["flaky"]


async def test_a_block_cut_off_while_it_waits_for_a_slot(autojump_clock: MockClock) -> None:
    @workflow
    async def hog(ctx: Context) -> None:
        await ctx.step(after.options(name="hog"), 20)

    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(5) as scope:
            await ctx.step(after, 1)
        return scope.expired, await ctx.step(after, 1, "went on")

    async with open_test_runtime(workflows=[hog, flow], max_concurrent_steps=1) as runtime:
        await runtime.submit(hog, key="other")
        await trio.sleep(1)
        run = await runtime.submit(flow, key="k")
        assert await run.result() == (True, "went on")
    assert ran == ["hog", "after#2"]


@pytest.mark.parametrize("place", ["main", "branch"])
@pytest.mark.parametrize("reaction", ["value", "error", "permanent", "group"])
async def test_a_step_that_reacts_to_being_cut_off_has_not_failed(
    autojump_clock: MockClock, reaction: str, place: str
) -> None:
    @step(retry=Retry.none())
    async def stubborn() -> str:
        ran.append(current_step().step)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
        except BaseException as error:
            if reaction == "value":
                return "too late"
            if reaction == "error":
                raise ValueError("raised while being cancelled") from None
            if reaction == "permanent":
                raise PermanentError("raised while being cancelled") from None
            raise BaseExceptionGroup("both", [ValueError("x"), error]) from None
        return "never"

    async def body(ctx: Context) -> Any:
        told: list[Any] = []
        with ctx.move_on_after(5) as scope:
            if place == "main":
                told.append(await ctx.step(stubborn))
            else:
                told += await ctx.gather(ctx.step(stubborn))
            await ctx.step(quick, "never")
        return told, scope.expired

    # A value counts, as late as it is.
    assert await replayed(body) == (["too late"] if reaction == "value" else [], True)
    assert len(ran) == 1


@pytest.mark.parametrize("kind", ["shielded", "sync"])
@pytest.mark.parametrize("last", [False, True])
async def test_what_cannot_be_cut_off_is_waited_for(kind: str, last: bool) -> None:
    """If it was the last thing in the block, the block has finished, as late as it is."""
    entered, release = trio.Event(), threading.Event()
    clock = MockClock()
    told: list[Any] = []

    @step
    def sync() -> str:
        trio.from_thread.run_sync(entered.set)
        assert release.wait(10)
        return "done"

    @step(shield=True)
    async def shielded() -> str:
        entered.set()
        await trio.to_thread.run_sync(release.wait)
        return "done"

    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(5) as scope:
            told.append(await ctx.step(shielded if kind == "shielded" else sync))
            if not last:
                await ctx.step(quick, "never")
        await ctx.step(quick, "went on")
        return scope.expired

    async def main() -> None:
        async with open_test_runtime(workflows=[flow], threads="real") as runtime:
            run = await runtime.submit(flow, key="k", run_id="r")
            await entered.wait()
            clock.jump(20)
            await trio.testing.wait_all_tasks_blocked()
            release.set()
            assert await run.result() is (not last)
            events = [each.event for each in await runtime.history("r")]
            assert "attempt_failed" not in events
            assert "step_cancelled" not in events

    def in_trio() -> None:
        trio.run(main, clock=clock)

    await trio.to_thread.run_sync(in_trio)
    assert told == ["done"]
    assert len(ran) == 1


async def test_an_abandonable_step_is_left_behind(autojump_clock: MockClock) -> None:
    """A thread cannot be stopped, but this one need not be waited for."""
    release = threading.Event()

    @step(abandon=True)
    def stuck() -> None:
        release.wait(10)

    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(5) as scope:
            await ctx.step(stuck)
        return scope.expired

    autojump_clock.autojump_threshold = 0.01
    try:
        assert await ends(flow, threads="real")
    finally:
        release.set()


async def ask_for_a_step(ctx: Context) -> None:
    await ctx.step(quick)


async def ask_for_a_sleep(ctx: Context) -> None:
    await ctx.sleep(0)


async def ask_for_a_gather(ctx: Context) -> None:
    await ctx.gather(ctx.step(quick))


@pytest.mark.parametrize("call", [ask_for_a_step, ask_for_a_sleep, ask_for_a_gather])
async def test_code_that_computes_too_long_is_cut_off_at_the_next_call(
    autojump_clock: MockClock, call: Body
) -> None:
    passed: list[str] = []

    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(5) as scope:
            await ctx.step(quick.options(name="first"))
            autojump_clock.jump(20)  # what a computation does to the clock
            passed.append("computed")
            await call(ctx)
            passed.append("never")
        with ctx.move_on_after(5) as late:
            await ctx.step(quick.options(name="second"))
            autojump_clock.jump(20)
        return scope.expired, late.expired

    assert await ends(flow) == (True, False)
    assert ran == ["first", "second"]
    assert passed == ["computed"]


async def test_a_step_that_times_out_in_a_block_is_tried_again_in_what_is_left(
    autojump_clock: MockClock,
) -> None:
    """On the main line its timeout unwinds the workflow: the block goes on where it was."""

    @step(timeout=2, retry=Retry.fixed(max_attempts=9, delay=1, jitter=0))
    async def sluggish(good: int) -> int:
        ran.append(current_step().step)
        await trio.sleep(1 if current_step().attempt >= good else 100)
        return current_step().attempt

    async def body(ctx: Context) -> Any:
        with ctx.move_on_after(8) as one:
            await ctx.step(sluggish, 2)
        with ctx.move_on_after(8) as two:
            await ctx.step(sluggish, 9)
        return one.expired, two.expired

    assert await replayed(body) == (False, True)
    assert ran == ["sluggish"] * 2 + ["sluggish#2"] * 3


async def test_a_timeout_at_the_very_end_of_a_block_corrupts_nothing(
    autojump_clock: MockClock,
) -> None:
    @step(timeout=5, retry=Retry.none())
    async def slow() -> None:
        ran.append(current_step().step)
        await trio.sleep(100)

    async def body(ctx: Context) -> Any:
        told: list[Any] = []
        for at_once in (False, True):
            with ctx.move_on_after(5) as scope:
                try:
                    if at_once:
                        await ctx.gather(ctx.step(slow))
                    else:
                        await ctx.step(slow)
                except StepFailed:
                    told.append("timed out")
                await ctx.step(quick)
            told.append(scope.expired)
        return [each for each in told if each != "timed out"]

    assert await replayed(body) == [True, True]
    assert ran == ["slow", "g1.0/slow"]


async def test_a_workflow_that_swallows_the_end_of_a_block_takes_the_same_path(
    autojump_clock: MockClock,
) -> None:
    async def body(ctx: Context) -> Any:
        told: list[Any] = []
        with ctx.move_on_after(5) as scope:
            try:
                await ctx.step(after, 100)
            except BaseException:
                told.append("swallowed")
            try:
                await ctx.step(quick, "never")
            except BaseException:
                told.append("again")
        told.append(scope.expired)
        try:
            with ctx.fail_after(5):
                try:
                    await ctx.sleep(100)
                finally:
                    raise KeyError("instead")
        except KeyError:
            told.append("instead")
        try:
            with ctx.fail_after(5):
                try:
                    await ctx.sleep(100)
                except BaseException:
                    told.append("swallowed")
        except ScopeTimeout:
            told.append("failed")
        return told

    expected = ["swallowed", "again", True, "instead", "swallowed", "failed"]
    assert await replayed(body) == expected
    assert ran == ["after"]


async def test_a_block_cut_off_where_it_asks_for_nothing_durable(
    autojump_clock: MockClock,
) -> None:
    async def body(ctx: Context) -> Any:
        with ctx.move_on_after(5) as scope:
            await ctx.gather(ctx.step(after, 1), ctx.step(after, 2))
            await trio.sleep_forever()
        return scope.expired

    assert await replayed(body) is True


async def test_a_shield_of_the_workflow_holds_the_end_up(autojump_clock: MockClock) -> None:
    async def body(ctx: Context) -> Any:
        with ctx.move_on_after(5) as one:
            with trio.CancelScope(shield=True):
                await ctx.step(after, 10)
                await ctx.step(after, 10)
            await ctx.step(after, 10)
        with ctx.move_on_after(5) as two, trio.CancelScope(shield=True):
            await ctx.step(after, 10)
        return one.expired, two.expired

    assert await replayed(body) == (True, False)
    assert ran == ["after", "after#2", "after#4"]


@pytest.mark.parametrize("crash", [False, True])
async def test_what_tidies_a_block_up_is_gone_on_with_after_a_restart(
    autojump_clock: MockClock, crash: bool
) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        told = []
        with ctx.move_on_after(5) as scope:
            try:
                await ctx.step(after, 100)
            finally:
                with trio.CancelScope(shield=True):
                    told.append(await ctx.step(after.options(name="one"), 1, "one"))
                    told.append(await ctx.step(after.options(name="two"), 10, "two"))
        return told, scope.expired

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], drain_timeout=0) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(8)
        await stop(store, crash)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        assert await run.result() == (["one", "two"], True)
    # A drain waits for what the workflow itself shields.
    assert ran == ["after", "one", "two"] + ["two"] * crash


async def test_a_block_that_ends_while_losers_are_waited_for_gets_the_failure(
    autojump_clock: MockClock,
) -> None:
    """That a branch failed was written down first, though the block hears of it later."""

    async def body(ctx: Context) -> Any:
        told: list[Any] = []
        with ctx.move_on_after(5) as scope:
            try:
                await ctx.gather(
                    ctx.step(refuse, 2), ctx.step(after.options(shield=True), 9), fetch
                )
            except StepFailed as error:
                told.append(error.step)
            await ctx.step(quick, "never")
        return told, scope.expired

    assert await replayed(body) == (["g1.0/refuse"], True)


async def test_a_cancel_passes_through_a_block(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        with ctx.move_on_after(100):
            await ctx.gather(ctx.step(after, 50), fetch)
        raise AssertionError("a cancelled workflow does not go on")

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
        assert await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert trio.current_time() == pytest.approx(10, abs=0.2)
        events = [each.event for each in await runtime.history("r")]
    assert "scope_expired" not in events
    assert "scope_finished" not in events


@pytest.mark.parametrize("shield", [False, True])
@pytest.mark.parametrize("seconds", [8, 20])
async def test_the_deadline_of_the_run_passes_through_a_block(
    autojump_clock: MockClock, seconds: float, shield: bool
) -> None:
    @workflow(limits=Limits(run_timeout=8))
    async def flow(ctx: Context) -> str:
        with ctx.move_on_after(seconds):
            await ctx.gather(ctx.step(after.options(shield=shield), 50), wait)
        return "went on"

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
        assert trio.current_time() == pytest.approx(8, abs=0.2)
        events = [each.event for each in await runtime.history("r")]
    assert caught.value.failure.kind is FailureKind.RUN_TIMEOUT
    assert "scope_expired" not in events


async def test_the_time_of_a_block_counts_while_the_run_is_paused(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(10) as scope:
            await ctx.step(after, 2)
            await ctx.step(after, 2)
        return scope.expired, await ctx.step(quick, "went on")

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(1)
        await runtime.pause("r")
        await trio.sleep(50)
        status = await run.status()
        assert status is not None
        assert status.state is State.PAUSED
        assert ran == ["after"]
        await runtime.resume("r")
        assert await run.result() == (True, "went on")
    assert ran == ["after", "quick"]


async def test_a_block_goes_on_after_a_drain(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        told: list[Any] = []
        with ctx.move_on_after(30) as scope:
            told += await ctx.gather(ctx.step(after, 5, "a"), ctx.step(after, 50, "b"))
        told.append(scope.expired)
        with ctx.move_on_after(30) as scope:
            told.append(await ctx.step(after, 5, "c"))
            await ctx.sleep(10)
        return [*told, scope.expired, trio.current_time()]

    store = MemoryStore()
    for _ in range(4):
        async with open_test_runtime(store, workflows=[flow], drain_timeout=2) as runtime:
            await runtime.submit(flow, key="k", run_id="r")
            await trio.sleep(9)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        *told, ended = await run.result()
        assert told == [True, "c", False]
        events = [each.event for each in await runtime.history("r")]
    # 30 s of the first block; 5 s of the step, which is begun anew at 33 s, and the wait.
    assert ended == pytest.approx(33 + 5 + 10, abs=0.5)
    assert "interrupted" not in events


async def test_a_step_knows_when_its_block_ends(autojump_clock: MockClock) -> None:
    @step(timeout=50)
    async def deadline() -> float | None:
        end = current_step().deadline
        return None if end is None else end - EPOCH

    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(20), ctx.move_on_after(10):
            (inside,) = await ctx.gather(ctx.step(deadline))
        return inside, await ctx.step(deadline)

    assert await ends(flow) == (pytest.approx(10, abs=0.5), pytest.approx(50, abs=0.5))


async def expire(ctx: Context) -> None:
    with ctx.move_on_after(5):
        await ctx.step(after, 1)
        await ctx.step(after, 100)


async def finish(ctx: Context) -> None:
    with ctx.move_on_after(5):
        await ctx.step(after, 1)


async def without(ctx: Context) -> None:
    await ctx.step(after, 1)


async def ended_early(ctx: Context) -> None:
    with ctx.move_on_after(5):
        await ctx.step(after, 1)


async def something_else(ctx: Context) -> None:
    with ctx.move_on_after(5):
        await ctx.step(quick)


async def something_else_beside(ctx: Context) -> None:
    with ctx.move_on_after(5):
        await ctx.gather(ctx.step(after, 1), ctx.step(after, 1))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (expire, without, "the workflow asks for 'sleep()'|'move_on_after()'"),
        (finish, without, "'move_on_after()'"),
        (expire, ended_early, "says that 'move_on_after()' expired, but it did not"),
        (expire, something_else, "of 'after' next, but the code does not ask for it"),
        (expire, something_else_beside, "has an outcome of 'after' next"),
    ],
)
async def test_code_that_contradicts_how_a_block_ended_is_found_out(
    autojump_clock: MockClock, old: Body, new: Body, said: str
) -> None:
    def flow_of(body: Body) -> Workflow[Any, Any]:
        @workflow(name="flow")
        async def flow(ctx: Context) -> None:
            await body(ctx)
            await ctx.sleep(100)

        return flow

    store = MemoryStore()
    flow = flow_of(old)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(50)
    async with open_test_runtime(store, workflows=[flow_of(new)]) as runtime:
        await trio.sleep(200)
        status = await runtime.status("r")
        assert status is not None
        assert status.state is State.QUARANTINED
        assert status.reason is not None
        assert any(each in status.reason for each in said.split("|"))


async def test_a_block_that_expires_in_a_shield_is_left_before_one_that_expired_around_it(
    autojump_clock: MockClock,
) -> None:
    async def body(ctx: Context) -> Any:
        with ctx.move_on_after(1) as outer:
            with trio.CancelScope(shield=True), ctx.move_on_after(2) as inner:
                await ctx.sleep(100)
            await ctx.step(quick)
        return outer.expired, inner.expired

    assert await replayed(body) == (True, True)
