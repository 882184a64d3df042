"""Limits: the nearest word wins, each for itself, and every ceiling is exact."""

from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    Limits,
    Retry,
    RunFailed,
    Runtime,
    State,
    StepFailed,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

tries: list[int] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    tries.clear()


async def stubborn() -> None:
    tries.append(current_step().attempt)
    raise ValueError("no")


async def sleepy() -> None:
    await trio.sleep(1000)


async def fails(runtime: Runtime, flow: Workflow[None, Any], **options: Any) -> RunFailed:
    run = await runtime.submit(flow, key="k", **options)
    with pytest.raises(RunFailed) as caught:
        await run.result()
    return caught.value


LEVELS = [
    ({"runtime": 2}, 2),
    ({"runtime": 2, "workflow": 4}, 4),
    ({"runtime": 2, "workflow": 4, "submit": 1}, 1),
    ({"runtime": 4, "submit": 2}, 2),
    ({"workflow": 2}, 2),
]


def given(levels: dict[str, Any], name: str, level: str) -> Limits:
    return Limits(**{name: levels[level]}) if level in levels else Limits()


@pytest.mark.parametrize(("levels", "expected"), [*LEVELS, ({}, 3)])
async def test_max_attempts_of_the_nearest_level_holds(
    autojump_clock: MockClock, levels: dict[str, Any], expected: int
) -> None:
    @workflow(limits=given(levels, "max_attempts", "workflow"))
    async def flow(ctx: Context) -> None:
        await ctx.step(stubborn)

    at_runtime = given(levels, "max_attempts", "runtime")
    async with open_test_runtime(workflows=[flow], limits=at_runtime) as runtime:
        error = await fails(runtime, flow, limits=given(levels, "max_attempts", "submit"))
    assert tries == list(range(1, expected + 1))
    assert error.failure.attempt == expected
    assert f"attempt {expected} of {expected}" in error.failure.reason


@pytest.mark.parametrize(("runtime_limit", "submit_limit"), [(1, None), (1, 2), (9, 9)])
async def test_the_steps_own_policy_beats_limits_of_the_run(
    autojump_clock: MockClock, runtime_limit: int, submit_limit: int | None
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(step(retry=Retry.fixed(max_attempts=4))(stubborn))

    limits = Limits(max_attempts=submit_limit) if submit_limit else None
    async with open_test_runtime(
        workflows=[flow], limits=Limits(max_attempts=runtime_limit)
    ) as runtime:
        await fails(runtime, flow, limits=limits)
    assert tries == [1, 2, 3, 4]


async def test_the_policy_of_a_workflow_stands_between_submit_and_runtime(
    autojump_clock: MockClock,
) -> None:
    @workflow(retry=Retry.fixed(max_attempts=4, delay=1))
    async def flow(ctx: Context) -> None:
        await ctx.step(stubborn)

    async with open_test_runtime(workflows=[flow], limits=Limits(max_attempts=9)) as runtime:
        await fails(runtime, flow)
        assert len(tries) == 4
        tries.clear()
        await fails(runtime, flow, limits=Limits(max_attempts=2))
        assert len(tries) == 2


@pytest.mark.parametrize(("levels", "expected"), LEVELS)
async def test_step_timeout_of_the_nearest_level_holds(
    autojump_clock: MockClock, levels: dict[str, Any], expected: int
) -> None:
    @workflow(limits=given(levels, "step_timeout", "workflow"), retry=Retry.none())
    async def flow(ctx: Context) -> None:
        await ctx.step(sleepy)

    at_runtime = given(levels, "step_timeout", "runtime")
    async with open_test_runtime(workflows=[flow], limits=at_runtime) as runtime:
        error = await fails(runtime, flow, limits=given(levels, "step_timeout", "submit"))
    assert error.failure.kind is FailureKind.STEP_TIMEOUT
    assert error.failure.elapsed == pytest.approx(expected)


@pytest.mark.parametrize(("levels", "expected"), LEVELS)
async def test_run_timeout_of_the_nearest_level_holds(
    autojump_clock: MockClock, levels: dict[str, Any], expected: int
) -> None:
    @workflow(limits=given(levels, "run_timeout", "workflow"))
    async def flow(ctx: Context) -> None:
        await ctx.sleep(1000)

    at_runtime = given(levels, "run_timeout", "runtime")
    async with open_test_runtime(workflows=[flow], limits=at_runtime) as runtime:
        error = await fails(runtime, flow, limits=given(levels, "run_timeout", "submit"))
    assert error.failure.kind is FailureKind.RUN_TIMEOUT
    assert error.failure.elapsed == pytest.approx(expected)


@pytest.mark.parametrize(("levels", "expected"), LEVELS)
async def test_max_iterations_of_the_nearest_level_holds(
    autojump_clock: MockClock, levels: dict[str, Any], expected: int
) -> None:
    done: list[int] = []

    @step
    async def count(number: int) -> None:
        done.append(number)

    @workflow(limits=given(levels, "max_iterations", "workflow"))
    async def flow(ctx: Context) -> None:
        for number in range(1, 100):
            await ctx.step(count, number)

    at_runtime = given(levels, "max_iterations", "runtime")
    async with open_test_runtime(workflows=[flow], limits=at_runtime) as runtime:
        error = await fails(runtime, flow, limits=given(levels, "max_iterations", "submit"))
    assert error.failure.kind is FailureKind.ITERATION_LIMIT
    assert done == list(range(1, expected + 1))


@pytest.mark.parametrize(("levels", "expected"), LEVELS)
async def test_retry_budget_of_the_nearest_level_holds(
    autojump_clock: MockClock, levels: dict[str, Any], expected: int
) -> None:
    @workflow(
        limits=given(levels, "retry_budget", "workflow"),
        retry=Retry.fixed(max_attempts=99, delay=1),
    )
    async def flow(ctx: Context) -> None:
        await ctx.step(stubborn)

    at_runtime = given(levels, "retry_budget", "runtime")
    async with open_test_runtime(workflows=[flow], limits=at_runtime) as runtime:
        error = await fails(runtime, flow, limits=given(levels, "retry_budget", "submit"))
    assert error.failure.kind is FailureKind.RETRY_BUDGET
    assert f"budget of {expected}" in error.failure.reason
    assert len(tries) == 1 + expected


@pytest.mark.parametrize("most", [1, 5])
@pytest.mark.parametrize("restart", [False, True])
async def test_exactly_max_iterations_steps_are_allowed(
    autojump_clock: MockClock, most: int, restart: bool
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=1))
    async def sometimes(number: int) -> int:
        if current_step().attempt == 1:
            raise ValueError("retries are not counted")
        return number

    @workflow
    async def flow(ctx: Context, steps: int) -> int:
        for number in range(steps):
            await ctx.step(sometimes, number)
        await ctx.sleep(100)
        return steps

    store = MemoryStore()
    limits = Limits(max_iterations=most)
    async with open_test_runtime(store, workflows=[flow], limits=limits) as runtime:
        enough = await runtime.submit(flow, most, key="a", run_id="enough")
        more = await runtime.submit(flow, most + 1, key="b", run_id="more")
        if not restart:
            assert await enough.result() == most
        with pytest.raises(RunFailed) as caught:
            await more.result()
        failure = caught.value.failure
        assert failure.kind is FailureKind.ITERATION_LIMIT
        assert failure.step == f"sometimes#{most + 1}"
        assert f"max_iterations is {most}" in failure.reason
        assert caught.value.step == failure.step
    async with open_test_runtime(store, workflows=[flow], limits=limits) as runtime:
        assert await (await runtime.submit(flow, most, key="a", run_id="enough")).result() == most


async def test_steps_of_branches_count_for_max_iterations(autojump_clock: MockClock) -> None:
    ran: list[int] = []

    @step
    async def one(number: int) -> int:
        ran.append(number)
        await trio.sleep(1)
        return number

    @workflow
    async def flow(ctx: Context, width: int) -> Any:
        return await ctx.gather(*(ctx.step(one, number) for number in range(width)))

    async with open_test_runtime(workflows=[flow], limits=Limits(max_iterations=3)) as runtime:
        assert await (await runtime.submit(flow, 3, key="k")).result() == (0, 1, 2)
        ran.clear()
        run = await runtime.submit(flow, 4, key="k")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        assert caught.value.failure.kind is FailureKind.ITERATION_LIMIT
        assert len(ran) <= 3


async def test_an_iteration_limit_cannot_be_caught_by_the_workflow(
    autojump_clock: MockClock,
) -> None:
    @step
    async def one() -> None: ...

    @workflow(limits=Limits(max_iterations=2))
    async def greedy(ctx: Context) -> str:
        while True:
            try:
                await ctx.step(one)
            except Exception:
                return "got away with it"

    async with open_test_runtime(workflows=[greedy]) as runtime:
        error = await fails(runtime, greedy)
        assert error.failure.kind is FailureKind.ITERATION_LIMIT
        assert not await runtime.dead_letters()


async def test_a_retry_budget_is_of_the_run_and_survives_a_restart(
    autojump_clock: MockClock,
) -> None:
    @workflow(limits=Limits(retry_budget=3), retry=Retry.fixed(max_attempts=3, delay=10, jitter=0))
    async def flow(ctx: Context) -> None:
        with suppress(StepFailed):
            await ctx.step(stubborn)
        await ctx.step(stubborn)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(25)
        assert tries == [1, 2, 3, 1]
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed) as caught:
            await run.result()
    assert caught.value.failure.kind is FailureKind.RETRY_BUDGET
    assert tries == [1, 2, 3, 1, 2]


async def test_none_lifts_a_limit(autojump_clock: MockClock) -> None:
    @workflow(limits=Limits(run_timeout=1, step_timeout=1))
    async def flow(ctx: Context) -> str:
        await ctx.step(sleepy)
        return "done"

    unlimited = Limits(run_timeout=None, step_timeout=None)
    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", limits=unlimited)
        assert await run.result() == "done"
        status = await run.status()
        assert status is not None
        assert (status.state, status.deadline) == (State.SUCCEEDED, None)


async def test_limits_are_those_of_the_time_of_submission(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.sleep(10)
        await ctx.step(stubborn)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], limits=Limits(max_attempts=2)) as before:
        await before.submit(flow, key="k", run_id="r")
    async with open_test_runtime(store, workflows=[flow], limits=Limits(max_attempts=5)) as after:
        run = await after.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
    assert tries == [1, 2]
