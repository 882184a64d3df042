"""A cancellation that Keyrun asked for is not a failed attempt. One from anywhere else is."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    Retry,
    RunCancelled,
    RunFailed,
    Runtime,
    State,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from keyrun.types import StepFunction

TWICE = Retry.fixed(max_attempts=2, delay=1, jitter=0)
begun: list[float] = []


async def sleep() -> None:
    begun.append(trio.current_time())
    await trio.sleep_forever()


async def leave_with_a_group() -> None:
    begun.append(trio.current_time())
    try:
        await trio.sleep_forever()
    except trio.Cancelled as error:
        raise BaseExceptionGroup("both", [error, GeneratorExit()]) from None


async def leave_with_another_error() -> None:
    """A nursery drops the cancellation if one of its tasks raised something else."""

    async def stop_badly() -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise GeneratorExit

    begun.append(trio.current_time())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stop_badly)


async def sleep_in_asyncio() -> None:
    begun.append(trio.current_time())
    await asyncio.sleep(10_000)


async def await_a_task() -> None:
    begun.append(trio.current_time())
    await asyncio.create_task(asyncio.sleep(10_000))


async def leave_by_another_way() -> None:
    begun.append(trio.current_time())
    try:
        await asyncio.sleep(10_000)
    except asyncio.CancelledError:
        raise asyncio.CancelledError("by another task") from None


FUNCTIONS: dict[str, tuple[Callable[[], Awaitable[None]], bool]] = {
    "a step": (sleep, False),
    "a step with a group": (leave_with_a_group, False),
    "a step with a nursery": (leave_with_another_error, False),
    "an asyncio step": (sleep_in_asyncio, True),
    "an asyncio step with a task": (await_a_task, True),
    "an asyncio step that raises another": (leave_by_another_way, True),
}
each_function = pytest.mark.parametrize("name", FUNCTIONS)


def made(name: str, **options: Any) -> "StepFunction[[], Any]":
    begun.clear()
    function, on_asyncio = FUNCTIONS[name]
    decorate: Any = step(name="work", asyncio=on_asyncio, **{"retry": TWICE, **options})
    found: StepFunction[[], Any] = decorate(function)
    return found


async def failures(rt: Runtime) -> list[str | None]:
    events = await rt.history("r")
    return [each.step for each in events if each.event in ("attempt_failed", "step_failed")]


@pytest.mark.parametrize("name", [name for name in FUNCTIONS if "nursery" not in name])
async def test_a_timeout_is_a_timeout(autojump_clock: MockClock, name: str) -> None:
    work = made(name, timeout=5)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work)

    async with open_test_runtime(workflows=[job]) as rt:
        with pytest.raises(RunFailed) as caught:
            await (await rt.submit(job, key="k", run_id="r")).result()
    assert caught.value.failure.kind is FailureKind.STEP_TIMEOUT
    assert begun == [0, 6]


@each_function
async def test_a_cancel_is_no_failure(autojump_clock: MockClock, name: str) -> None:
    work = made(name)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work)

    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await trio.sleep(5)
        assert await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert await failures(rt) == []
        assert await rt.dead_letters() == []


@each_function
async def test_a_drain_is_no_failure(autojump_clock: MockClock, name: str) -> None:
    work, store = made(name), MemoryStore()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work)

    for _ in range(3):
        async with open_test_runtime(store, workflows=[job], drain_timeout=1) as rt:
            await rt.submit(job, key="k", run_id="r")
            await trio.sleep(5)
            status = await rt.status("r")
            assert status is not None
            assert (status.state, status.attempt) == (State.RUNNING, 1)
            assert await failures(rt) == []
    assert len(begun) == 3


@each_function
async def test_a_sibling_that_fails_is_no_failure_of_others(
    autojump_clock: MockClock, name: str
) -> None:
    work = made(name)

    @step(retry=Retry.none())
    async def fail() -> None:
        await trio.sleep(5)
        raise ValueError("no")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.gather(ctx.step(work), ctx.step(fail))

    async with open_test_runtime(workflows=[job]) as rt:
        with pytest.raises(RunFailed) as caught:
            await (await rt.submit(job, key="k", run_id="r")).result()
        assert caught.value.failure.step == "g1.1/fail"
        assert "g1.0/work" not in await failures(rt)
    assert len(begun) == 1


@each_function
async def test_a_scope_that_expires_is_no_failure(autojump_clock: MockClock, name: str) -> None:
    work = made(name)

    @workflow
    async def job(ctx: Context) -> str:
        with ctx.move_on_after(5):
            await ctx.step(work)
        return "moved on"

    async with open_test_runtime(workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="r")).result() == "moved on"
        assert await failures(rt) == []
    assert len(begun) == 1


async def test_a_task_that_somebody_else_cancelled_is_a_failed_attempt(
    autojump_clock: MockClock,
) -> None:
    calls = 0

    @step(asyncio=True, retry=TWICE)
    async def fetch() -> str:
        nonlocal calls
        calls += 1
        task = asyncio.create_task(asyncio.sleep(9))
        if calls == 1:
            task.cancel()
        await task
        return "fetched"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(fetch)

    async with open_test_runtime(workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="r")).result() == "fetched"
        assert await failures(rt) == ["fetch"]
    assert calls == 2


async def test_a_shielded_step_fails_by_a_foreign_cancellation_while_its_run_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    """No scope of Keyrun reaches a shielded step, so a cancellation in it is never Keyrun's."""
    outcomes: list[str] = []

    @step(shield=True, retry=Retry.none())
    async def stubborn() -> None:
        with trio.CancelScope() as scope:
            scope.cancel()
            try:
                await trio.lowlevel.checkpoint()
            except trio.Cancelled as error:
                kept = error
        await trio.sleep(5)
        outcomes.append("raised")
        raise kept

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(stubborn)

    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
        assert await failures(rt) == ["stubborn"]
    assert outcomes == ["raised"]
