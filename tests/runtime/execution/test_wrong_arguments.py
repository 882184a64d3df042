"""Wrong arguments of a context fail the run that passes them, and quarantine nothing."""

from collections.abc import Callable
from math import nan
from typing import Any

import pytest
from trio.testing import MockClock

from keyrun import Context, FailureKind, RunFailed, step, workflow
from keyrun.testing import open_test_runtime


@step
async def nothing() -> None: ...


@workflow
async def other(ctx: Context) -> None: ...


async def failure_of(call: Callable[[Context], Any]) -> str:
    """Return the reason why a run fails that makes a call of its context."""

    @workflow
    async def calling(ctx: Context) -> None:
        called = call(ctx)
        if hasattr(called, "__await__"):
            await called

    async with open_test_runtime(workflows=[calling, other]) as rt:
        run = await rt.submit(calling, key="k")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        after = await rt.submit(other, key="k")
        await after.result()
    assert failed.value.failure.kind is FailureKind.WORKFLOW_ERROR
    return str(failed.value.failure.reason)


TIMES: dict[str, Callable[[Context, Any], Any]] = {
    "sleep": lambda ctx, time: ctx.sleep(time),
    "move_on_after": lambda ctx, time: ctx.move_on_after(time),
    "fail_after": lambda ctx, time: ctx.fail_after(time),
    "wait_signal": lambda ctx, time: ctx.wait_signal("go", timeout=time),
    "approval": lambda ctx, time: ctx.approval("gate", timeout=time),
    "options": lambda ctx, time: ctx.step(nothing.options(timeout=time)),
}


@pytest.mark.parametrize("time", [-1, nan, "5", [], True, 10**400], ids=lambda time: f"{time}"[:4])
@pytest.mark.parametrize("call", TIMES)
async def test_a_time_that_is_no_number_of_seconds_fails_the_run(
    autojump_clock: MockClock, call: str, time: Any
) -> None:
    reason = await failure_of(lambda ctx: TIMES[call](ctx, time))
    assert "seconds must" in reason or "timeout must" in reason


@pytest.mark.parametrize("function", [None, [], {}, "charge", 3, ...])
async def test_a_step_that_is_no_function_fails_the_run(
    autojump_clock: MockClock, function: Any
) -> None:
    reason = await failure_of(lambda ctx: ctx.step(function))
    assert reason.endswith(f"a step must be a function, got {function!r}")


async def test_a_workflow_that_is_called_as_a_step_names_the_right_call(
    autojump_clock: MockClock,
) -> None:
    reason = await failure_of(lambda ctx: ctx.step(other))
    assert reason.endswith("ctx.step takes a step, got the workflow 'other': use ctx.child")
