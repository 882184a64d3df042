"""Timeouts of attempts and of runs: who says how long, and what happens when it is up."""

import logging
import threading
from math import inf
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
    RunFailed,
    State,
    StepFailed,
    StepTimeout,
    current_step,
    step,
    workflow,
)
from keyrun.runtime.values import UNSET
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, RecordingHook, open_test_runtime

begun: list[tuple[str, int]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    begun.clear()


def note() -> int:
    here = current_step()
    begun.append((here.step, here.attempt))
    return here.attempt


@step(retry=Retry.none())
async def slow(seconds: float) -> float:
    note()
    await trio.sleep(seconds)
    return seconds


@step
async def quick(value: Any = None) -> Any:
    note()
    return value


async def in_branch(ctx: Context, call: Any, *args: Any) -> Any:
    (result,) = await ctx.gather(ctx.step(call, *args))
    return result


async def on_main_line(ctx: Context, call: Any, *args: Any) -> Any:
    return await ctx.step(call, *args)


PLACES = pytest.mark.parametrize("place", [on_main_line, in_branch])


@pytest.mark.parametrize(
    ("options", "of_step", "of_workflow", "of_runtime", "expected"),
    [(1, 2, 3, 4, 1), (None, 2, 3, 4, 2), (None, None, 3, 4, 3), (None, None, None, 4, 4)],
)
async def test_options_beat_the_step_which_beats_the_limits(
    autojump_clock: MockClock,
    options: float | None,
    of_step: float | None,
    of_workflow: float | None,
    of_runtime: float,
    expected: float,
) -> None:
    called = step(retry=Retry.none(), timeout=of_step or UNSET)(slow.function)
    if options:
        called = called.options(timeout=options)

    @workflow(limits=Limits(step_timeout=of_workflow) if of_workflow else Limits())
    async def flow(ctx: Context) -> None:
        await ctx.step(called, 1000)

    limits = Limits(step_timeout=of_runtime)
    async with open_test_runtime(workflows=[flow], limits=limits) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k")).result()
    failure = caught.value.failure
    assert failure.kind is FailureKind.STEP_TIMEOUT
    assert failure.elapsed == pytest.approx(expected)


@PLACES
async def test_a_timeout_names_step_limit_and_elapsed_time(
    autojump_clock: MockClock, place: Any
) -> None:
    told: list[Any] = []

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await place(ctx, slow.options(timeout=2.5), 100)
        except StepTimeout as error:
            told.append(error)
            return str(error.failure.kind)
        return "in time"

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == "step_timeout"
    (error,) = told
    assert isinstance(error, StepTimeout)
    assert isinstance(error, TimeoutError)
    name = "slow" if place is on_main_line else "g1.0/slow"
    assert str(error) == (
        f"step '{name}', attempt 1 of 1, after 2.500 s: took longer than its timeout of 2.5 s"
    )
    assert error.failure.elapsed == pytest.approx(2.5)
    assert begun == [(name, 1)]


@PLACES
async def test_a_timeout_is_retried_like_any_other_failure(
    autojump_clock: MockClock, place: Any
) -> None:
    @step(timeout=10, retry=Retry.fixed(max_attempts=3, delay=5, jitter=0))
    async def slower_at_first() -> int:
        attempt = note()
        await trio.sleep(30 if attempt < 3 else 3)
        return attempt

    before: list[str] = []

    @workflow
    async def flow(ctx: Context) -> Any:
        first = await ctx.step(quick, "first")
        before.append(first)
        return await place(ctx, slower_at_first), await ctx.step(quick, "last")

    async with open_test_runtime(workflows=[flow], evict_after=inf) as runtime:
        run = await runtime.submit(flow, key="k")
        assert await run.result() == (3, "last")
        assert trio.current_time() == pytest.approx(10 + 5 + 10 + 5 + 3, abs=0.2)
        events = [each.event for each in await runtime.history(run.run_id)]
        assert events.count("attempt_failed") == 2
    assert [attempt for name, attempt in begun if "slower" in name] == [1, 2, 3]
    assert begun.count(("quick", 1)) == 1
    # On the main line, the workflow is driven again from its journal.
    assert before == ["first"] * (3 if place is on_main_line else 1)


@PLACES
async def test_an_attempt_is_clamped_to_what_is_left_of_the_run(
    autojump_clock: MockClock, place: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="keyrun.runtime")

    @workflow(limits=Limits(run_timeout=10))
    async def flow(ctx: Context) -> None:
        await ctx.sleep(4)
        await place(ctx, slow.options(timeout=100), 1000)

    hook = RecordingHook()
    async with open_test_runtime(workflows=[flow], on_terminal=hook) as runtime:
        run = await runtime.submit(flow, key="k")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        assert trio.current_time() == pytest.approx(10, abs=0.2)
        history = await runtime.history(run.run_id)
    failure = caught.value.failure
    assert failure.kind is FailureKind.RUN_TIMEOUT
    assert failure.step is not None
    assert failure.step.endswith("slow")
    assert "its run_timeout of 10 s" in failure.reason
    (clamp,) = (each for each in history if each.event == "timeout_clamped")
    assert clamp.detail is not None
    assert "100 s is longer than the 5.9" in clamp.detail or "6.000 s" in clamp.detail
    assert any(getattr(record, "event", "") == "timeout_clamped" for record in caplog.records)
    assert len(hook.outcomes) == 1


async def test_a_shielded_step_is_clamped_too(autojump_clock: MockClock) -> None:
    @workflow(limits=Limits(run_timeout=5))
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step(slow.options(shield=True, timeout=100), 1000)
        except StepFailed:
            return "handled, but the run is out of time"
        return "in time"

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k")).result()
        assert trio.current_time() == pytest.approx(5, abs=0.2)
    assert caught.value.failure.kind is FailureKind.RUN_TIMEOUT


async def test_a_shielded_step_has_its_own_timeout(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step(slow.options(shield=True, timeout=3), 1000)
        except StepTimeout:
            return await ctx.step(quick, "handled")
        return "in time"

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == "handled"
        assert trio.current_time() == pytest.approx(3, abs=0.2)
    assert begun == [("slow", 1), ("quick", 1)]


@PLACES
async def test_a_step_that_returned_in_time_counts_however_long_the_commit_takes(
    autojump_clock: MockClock, place: Any
) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        one = await place(ctx, slow.options(timeout=2), 1)
        return one, await place(ctx, slow.options(timeout=2), 1.5)

    async with open_test_runtime(MemoryStore(latency=30), workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == (1, 1.5)
    assert len(begun) == 2


async def test_a_run_whose_last_step_returned_in_time_has_succeeded(
    autojump_clock: MockClock,
) -> None:
    @workflow(limits=Limits(run_timeout=40))
    async def flow(ctx: Context) -> Any:
        return await ctx.step(slow, 5)

    async with open_test_runtime(MemoryStore(latency=30), workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        assert await run.result() == 5


async def test_a_fast_step_is_not_delayed_by_a_slow_one_of_another_key(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context, seconds: float) -> float:
        await ctx.step(slow, seconds)
        return trio.current_time()

    async with open_test_runtime(workflows=[flow]) as runtime:
        blocked = await runtime.submit(flow, 200, key="slow")
        fast = await runtime.submit(flow, 1, key="fast")
        assert await fast.result() == pytest.approx(1, abs=0.1)
        assert await blocked.result() == pytest.approx(200, abs=0.1)


async def test_a_timeout_in_one_branch_leaves_the_others_alone(autojump_clock: MockClock) -> None:
    async def impatient(ctx: Context) -> str:
        try:
            await ctx.step(slow.options(timeout=1), 100)
        except StepTimeout:
            return await ctx.step(quick, "fell back")
        return "in time"

    @workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.gather(impatient, ctx.step(slow, 10), impatient)

    async with open_test_runtime(workflows=[flow]) as runtime:
        result = await (await runtime.submit(flow, key="k")).result()
    assert result == ("fell back", 10, "fell back")
    assert begun.count(("g1.1/slow", 1)) == 1


@PLACES
@pytest.mark.parametrize("reaction", ["value", "error", "permanent", "group"])
async def test_a_step_that_swallows_its_cancellation_corrupts_nothing(
    autojump_clock: MockClock, place: Any, reaction: str
) -> None:
    @step(timeout=2, retry=Retry.fixed(max_attempts=2, delay=1))
    async def stubborn() -> str:
        if note() == 2:
            return "second attempt"
        try:
            await trio.sleep(100)
        except trio.Cancelled:
            if reaction == "value":
                return "too late"
            if reaction == "error":
                raise ValueError("raised while being cancelled") from None
            if reaction == "permanent":
                raise PermanentError("raised while being cancelled") from None
            raise BaseExceptionGroup("both", [ValueError("x"), *await _cancelled()]) from None
        return "in time"

    async def _cancelled() -> list[BaseException]:
        try:
            await trio.lowlevel.checkpoint()
        except trio.Cancelled as error:
            return [error]
        return []

    @workflow
    async def flow(ctx: Context) -> Any:
        first = await ctx.step(quick, "first")
        try:
            value = await place(ctx, stubborn)
        except StepFailed as error:
            value = str(error.failure.kind)
        return first, value, await ctx.step(quick, "last")

    async with open_test_runtime(workflows=[flow]) as runtime:
        result = await (await runtime.submit(flow, key="k", run_id="r")).result()
        other = await (await runtime.submit(flow, key="other")).result()
    expected = "permanent_error" if reaction == "permanent" else "second attempt"
    assert result == other == ("first", expected, "last")
    assert begun.count(("quick", 1)) == 2


async def test_a_workflow_that_swallows_its_cancellation_is_driven_again(
    autojump_clock: MockClock,
) -> None:
    @step(timeout=2, retry=Retry.fixed(max_attempts=2, delay=1))
    async def at_second() -> int:
        attempt = note()
        await trio.sleep(100 if attempt == 1 else 1)
        return attempt

    @workflow
    async def greedy(ctx: Context) -> Any:
        try:
            return await ctx.step(at_second)
        except BaseException:
            return "swallowed"

    async with open_test_runtime(workflows=[greedy]) as runtime:
        assert await (await runtime.submit(greedy, key="k")).result() == 2


@PLACES
async def test_a_step_with_a_nursery_times_out_like_any_other(
    autojump_clock: MockClock, place: Any
) -> None:
    @step(timeout=2, retry=Retry.none())
    async def busy() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(trio.sleep, 100)

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await place(ctx, busy)
        except StepTimeout as error:
            return str(error.failure.kind)
        return "in time"

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == "step_timeout"


@PLACES
async def test_a_sync_step_that_overruns_is_waited_for_and_has_failed(place: Any) -> None:
    """Its thread cannot be stopped, so slot and key stay held until it returns."""
    release = threading.Event()
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    @step(timeout=0.05, retry=Retry.none())
    def blocking() -> str:
        token.run_sync_soon(started.set)
        assert release.wait(10)
        return "too late"

    @workflow
    async def flow(ctx: Context) -> Any:
        try:
            return await place(ctx, blocking)
        except StepTimeout as error:
            return error.failure.elapsed

    async with open_test_runtime(
        workflows=[flow], max_concurrent_steps=1, threads="real"
    ) as runtime:
        run = await runtime.submit(flow, key="k")
        await started.wait()
        await trio.sleep(0.15)
        assert runtime.statistics().running_steps == 1
        status = await run.status()
        assert status is not None
        assert status.state is State.RUNNING
        release.set()
        assert await run.result() > 0.1


def overruns(caplog: pytest.LogCaptureFixture) -> list[tuple[Any, ...]]:
    fields = ("run", "key", "step", "attempt")
    told = [record for record in caplog.records if getattr(record, "event", "") == "step_overrun"]
    return [tuple(getattr(record, field) for field in fields) for record in told]


@PLACES
@pytest.mark.parametrize("limited_by", ["step", "run"])
async def test_an_overrun_is_told_when_it_happens(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture, place: Any, limited_by: str
) -> None:
    release = threading.Event()
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    @step(timeout=5 if limited_by == "step" else 50, retry=Retry.none())
    def blocking() -> None:
        token.run_sync_soon(started.set)
        assert release.wait(10)

    @workflow(limits=Limits(run_timeout=5000 if limited_by == "step" else 5))
    async def flow(ctx: Context) -> None:
        await place(ctx, blocking)

    async with open_test_runtime(
        workflows=[flow], max_concurrent_steps=1, threads="real"
    ) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        await started.wait()
        mock_clock.jump(4.9)
        await trio.testing.wait_all_tasks_blocked()
        assert overruns(caplog) == []
        mock_clock.jump(0.1)
        await trio.testing.wait_all_tasks_blocked()
        ident = "blocking" if place is on_main_line else "g1.0/blocking"
        assert overruns(caplog) == [("r", "k", ident, 1)]
        text = f"{ident!r}, attempt 1, exceeded its timeout of 5 s, and its thread still runs"
        assert text in caplog.text
        mock_clock.jump(1000)
        await trio.testing.wait_all_tasks_blocked()
        assert len(overruns(caplog)) == 1
        assert runtime.statistics().running_steps == 1
        (told,) = [each for each in await runtime.history("r") if each.event == "step_overrun"]
        assert (told.step, told.attempt, told.at) == (ident, 1, EPOCH + 5)
        assert told.detail == "it exceeded its timeout of 5 s, and its thread still runs"
        release.set()
        with pytest.raises(RunFailed) as failed:
            await run.result()
        kind = FailureKind.STEP_TIMEOUT if limited_by == "step" else FailureKind.RUN_TIMEOUT
        assert failed.value.failure.kind is kind


async def test_a_sync_step_that_returns_in_time_or_never_had_a_thread_is_no_overrun(
    mock_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that was abandoned keeps its thread, so the next one waits for it in vain."""
    release = threading.Event()
    started = trio.Event()
    token = trio.lowlevel.current_trio_token()

    @step(timeout=5, retry=Retry.none(), abandon=True)
    def stubborn() -> None:
        token.run_sync_soon(started.set)
        assert release.wait(10)

    @step(timeout=5, retry=Retry.none())
    def prompt() -> None:
        pass

    @workflow
    async def flow(ctx: Context, call: str) -> None:
        await ctx.step(prompt if call == "prompt" else stubborn)

    async with open_test_runtime(
        workflows=[flow], max_concurrent_steps=1, threads="real"
    ) as runtime:
        await (await runtime.submit(flow, "prompt", key="k")).result()
        mock_clock.jump(5)
        await runtime.submit(flow, "stubborn", key="k")
        await started.wait()
        mock_clock.jump(5)
        await trio.testing.wait_all_tasks_blocked()
        run = await runtime.submit(flow, "prompt", key="k")
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(5)
        with pytest.raises(RunFailed, match="took longer than its timeout of 5 s"):
            await run.result()
        release.set()
    assert overruns(caplog) == []


@PLACES
async def test_a_sync_step_that_may_be_abandoned_is_left_behind(place: Any) -> None:
    release = threading.Event()
    ended = trio.Event()
    token = trio.lowlevel.current_trio_token()
    refused: list[str] = []

    @step(timeout=0.05, retry=Retry.none(), abandon=True)
    def blocking() -> str:
        here = current_step()
        assert release.wait(10)
        try:
            here.state["late"] = True
        except RuntimeError as error:
            refused.append(str(error))
        token.run_sync_soon(ended.set)
        return "too late"

    @step
    async def look() -> dict[str, Any]:
        return dict(current_step().state)

    @workflow
    async def flow(ctx: Context) -> Any:
        try:
            await place(ctx, blocking)
        except StepTimeout:
            release.set()
            return await ctx.step(look)

    async with open_test_runtime(workflows=[flow], threads="real") as runtime:
        run = await runtime.submit(flow, key="k")
        with trio.fail_after(5):
            assert await run.result() == {}
            await ended.wait()
    assert "has ended" in refused[0]


@pytest.mark.parametrize("crash", [False, True])
async def test_the_deadline_of_a_run_is_not_reset_by_a_restart(
    autojump_clock: MockClock, crash: bool
) -> None:
    @workflow(limits=Limits(run_timeout=100))
    async def flow(ctx: Context) -> None:
        await ctx.sleep(1000)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(30)
        status = await runtime.status("r")
        assert status is not None
        deadline = status.deadline
        if crash:
            store.crash()
            await trio.sleep_forever()
    await trio.sleep(30)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        status = await run.status()
        assert status is not None
        assert status.deadline == deadline
    assert caught.value.failure.kind is FailureKind.RUN_TIMEOUT
    assert trio.current_time() == pytest.approx(100, abs=0.2)


async def test_nothing_is_started_when_the_deadline_passed_while_nobody_ran(
    autojump_clock: MockClock,
) -> None:
    @workflow(limits=Limits(run_timeout=100))
    async def flow(ctx: Context) -> None:
        await ctx.step(slow, 50)
        await ctx.sleep(1)
        await ctx.step(quick)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], drain_timeout=0) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
    await trio.sleep(1000)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
    assert caught.value.failure.kind is FailureKind.RUN_TIMEOUT
    assert begun == [("slow", 1)]


async def test_waiting_in_line_does_not_use_up_the_time_of_a_run(
    autojump_clock: MockClock,
) -> None:
    @workflow(limits=Limits(run_timeout=15))
    async def flow(ctx: Context) -> float:
        return await ctx.step(slow, 10)

    async with open_test_runtime(workflows=[flow]) as runtime:
        runs = [await runtime.submit(flow, key="k") for _ in range(5)]
        assert [await run.result() for run in runs] == [10] * 5


async def test_the_deadline_of_a_run_ends_its_branches(autojump_clock: MockClock) -> None:
    @workflow(limits=Limits(run_timeout=20))
    async def flow(ctx: Context) -> None:
        await ctx.gather(ctx.step(slow, 100), ctx.step(slow, 200), ctx.step(slow, 1))

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k")).result()
    assert caught.value.failure.kind is FailureKind.RUN_TIMEOUT
    assert trio.current_time() == pytest.approx(20, abs=0.2)


async def test_a_timeout_at_the_deadline_of_the_run_is_the_runs(autojump_clock: MockClock) -> None:
    @workflow(limits=Limits(run_timeout=20))
    async def flow(ctx: Context) -> None:
        try:
            await ctx.step(slow.options(timeout=20), 100)
        except StepFailed:
            await ctx.step(quick)

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k")).result()
    assert caught.value.failure.kind is FailureKind.RUN_TIMEOUT
    assert begun == [("slow", 1)]


async def test_a_drain_that_cuts_a_step_off_costs_no_attempt(autojump_clock: MockClock) -> None:
    @step(retry=Retry.none())
    async def touchy() -> str:
        note()
        try:
            await trio.sleep(100)
        except trio.Cancelled:
            raise ValueError("it does not like to be cancelled") from None
        return "done"

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(touchy)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], drain_timeout=1) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        assert await run.result() == "done"
        events = [each.event for each in await runtime.history("r")]
    assert begun == [("touchy", 1), ("touchy", 1)]
    assert "attempt_failed" not in events
    assert "interrupted" not in events


async def test_a_step_that_may_run_once_is_not_begun_again_after_a_drain_cut_it_off(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(slow.options(at_most_once=True), 100)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], drain_timeout=1) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
    assert caught.value.failure.kind is FailureKind.INTERRUPTED
    assert begun == [("slow", 1)]


async def test_a_step_that_may_run_once_is_not_retried(autojump_clock: MockClock) -> None:
    @step(at_most_once=True, timeout=5)
    async def once() -> None:
        note()
        await trio.sleep(100)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(once)

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k")).result()
    assert caught.value.failure.kind is FailureKind.STEP_TIMEOUT
    assert begun == [("once", 1)]
