"""Replay: a run that is driven again decides as before, or says that it cannot."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    PermanentError,
    Retry,
    RunFailed,
    RunQuarantined,
    RunStatus,
    State,
    StepFailed,
    current_step,
    step,
    workflow,
)
from keyrun.status import QuarantineCause
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime

ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@step
async def one(value: Any = 1) -> Any:
    ran.append(current_step().step)
    return value


@step
async def two(value: Any = 2) -> Any:
    ran.append(current_step().step)
    return value


@step
async def refuse() -> None:
    ran.append(current_step().step)
    raise PermanentError("refused")


Code = Callable[[Context], Awaitable[Any]]


async def changed(before: Code, after: Code) -> tuple[RunStatus, RecordingHook]:
    """How a run stands that was begun with one code and gone on with another. Both wait for a
    while where they are to be cut."""

    def version(code: Code) -> Any:
        @workflow(name="changing")
        async def changing(ctx: Context) -> Any:
            return await code(ctx)

        return changing

    hook = RecordingHook()
    store = MemoryStore()
    old, new = version(before), version(after)
    async with open_test_runtime(store, workflows=[old], on_terminal=hook) as runtime:
        await runtime.submit(old, key="k", run_id="r")
        await trio.sleep(5)
    ran.clear()
    async with open_test_runtime(store, workflows=[new], on_terminal=hook) as runtime:
        run = await runtime.submit(new, key="k", run_id="r")
        with trio.move_on_after(1000), suppress(RunFailed, RunQuarantined):
            await run.result()
        status = await run.status()
    assert status is not None
    return status, hook


async def test_finished_steps_are_not_run_again_after_a_restart(autojump_clock: MockClock) -> None:
    async def code(ctx: Context) -> Any:
        first = await ctx.step(one)
        await ctx.sleep(10)
        return first, await ctx.step(two)

    status, hook = await changed(code, code)
    assert status.result == (1, 2)
    assert status.steps_done == 2
    assert ran == ["two"]
    assert len(hook.outcomes) == 1


async def test_the_whole_wait_is_not_begun_anew(autojump_clock: MockClock) -> None:
    async def code(ctx: Context) -> Any:
        await ctx.sleep(10)

    await changed(code, code)
    assert trio.current_time() == pytest.approx(10, abs=0.2)


async def test_a_handled_failure_takes_the_same_path_live_and_replayed(
    autojump_clock: MockClock,
) -> None:
    seen: list[tuple[str, Any, Any]] = []

    async def code(ctx: Context) -> Any:
        try:
            await ctx.step(refuse)
        except StepFailed as error:
            seen.append((str(error), error.failure, (error.run_id, error.key, error.step)))
            fallback = await ctx.step(one, "fallback")
        await ctx.sleep(10)
        return fallback

    status, _ = await changed(code, code)
    assert status.result == "fallback"
    assert ran == []
    assert len(seen) == 2
    assert seen[0] == seen[1]
    assert seen[0][2] == ("r", "k", "refuse")


async def with_one_and_two(ctx: Context) -> Any:
    told = [await ctx.step(one), await ctx.step(two)]
    await ctx.sleep(10)
    return told


async def extended(ctx: Context) -> Any:
    told = [await ctx.step(one), ctx.random() < 1, await ctx.step(two)]
    await ctx.sleep(10)
    return [*told, await ctx.step(one, "last")]


async def test_a_workflow_that_was_extended_at_its_end_resumes(autojump_clock: MockClock) -> None:
    status, _ = await changed(with_one_and_two, extended)
    assert (status.state, status.result) == (State.SUCCEEDED, [1, True, 2, "last"])
    assert ran == ["one#2"]


async def extended_in_between(ctx: Context) -> Any:
    await ctx.step(one)
    await ctx.step(one.options(name="new"), "new")
    await ctx.step(two)
    await ctx.sleep(10)


async def extended_in_front(ctx: Context) -> Any:
    await ctx.step(two.options(name="front"), "front")
    await ctx.step(one)
    await ctx.step(two)
    await ctx.sleep(10)


async def other_arguments(ctx: Context) -> Any:
    await ctx.step(one, "other")


async def arguments_where_there_were_none(ctx: Context) -> Any:
    await ctx.step(one)
    await ctx.step(two, value=7)


async def one_step_less(ctx: Context) -> Any:
    await ctx.step(two)
    await ctx.sleep(10)


async def ends_early(ctx: Context) -> Any:
    return await ctx.step(one)


async def fails_early(ctx: Context) -> Any:
    await ctx.step(one)
    raise ZeroDivisionError("a bug in the new code")


async def judges_early(ctx: Context) -> Any:
    await ctx.step(one)
    ctx.fail("no need for step two")


async def in_another_order(ctx: Context) -> Any:
    await ctx.step(two)
    await ctx.step(one)
    await ctx.sleep(10)


async def another_kind(ctx: Context) -> Any:
    await ctx.sleep(1)
    await ctx.step(two)
    await ctx.sleep(10)


async def in_branches(ctx: Context) -> Any:
    await ctx.gather(ctx.step(one), ctx.step(two))
    await ctx.sleep(10)


async def waits_elsewhere(ctx: Context) -> Any:
    async def branch(ctx: Context) -> None:
        await ctx.step(two)

    await ctx.gather(branch, branch)
    await ctx.step(two)


@pytest.mark.parametrize(
    ("after", "named"),
    [
        (other_arguments, "the step 'one' with other arguments"),
        (arguments_where_there_were_none, "the step 'two' with other arguments"),
        (one_step_less, "has an outcome of 'one' next, but the workflow asks for 'two'"),
        (in_another_order, "has an outcome of 'one' next, but the workflow asks for 'two'"),
        (another_kind, "has an outcome of 'one' next, but the workflow asks for 'sleep()'"),
        (ends_early, "has an outcome of 'two' next, but the workflow ended without asking"),
        (fails_early, "has an outcome of 'two' next, but the workflow ended without asking"),
        (judges_early, "has an outcome of 'two' next, but the workflow asks for 'ctx.fail()'"),
        (in_branches, "has an outcome of 'one' next, but the workflow asks for 'g1."),
        (waits_elsewhere, "has an outcome of 'one' next, but the workflow asks for 'g1."),
        (extended_in_between, "has an outcome of 'two' next, but the workflow asks for 'new'"),
        (extended_in_front, "has an outcome of 'one' next, but the workflow asks for 'front'"),
    ],
)
async def test_a_workflow_that_contradicts_its_journal_is_quarantined(
    autojump_clock: MockClock, after: Code, named: str
) -> None:
    status, hook = await changed(with_one_and_two, after)
    assert status.state is State.QUARANTINED
    assert status.reason is not None
    assert named in status.reason
    assert status.quarantine_cause is QuarantineCause.CONTRADICTION
    assert "restore the call, put the change behind ctx.patched(...), or" in status.reason or (
        "arguments" in named
    )
    assert status.failure is None
    assert hook.outcomes == []
    assert ran == []


async def test_branches_that_all_wait_for_what_nobody_asks_for_are_found_out(
    autojump_clock: MockClock,
) -> None:
    def code(*, first: bool) -> Code:
        async def left(ctx: Context) -> None:
            if first:
                await ctx.step(one)
            await ctx.sleep(1)
            await ctx.step(two)

        async def right(ctx: Context) -> None:
            await ctx.sleep(2)
            await ctx.step(two)

        async def both(ctx: Context) -> None:
            await ctx.gather(left, right)
            await ctx.sleep(10)

        return both

    status, _ = await changed(code(first=True), code(first=False))
    assert status.state is State.QUARANTINED
    assert status.reason is not None
    assert "'g1.0/one'" in status.reason
    status, _ = await changed(code(first=True), code(first=True))
    assert status.state is State.SUCCEEDED


async def test_a_branch_that_waits_for_its_turn_is_not_taken_for_stuck_when_another_fails(
    autojump_clock: MockClock,
) -> None:
    async def code(ctx: Context) -> Any:
        async def hangs(ctx: Context) -> None:
            await ctx.sleep(1000)

        async def fails_inside(ctx: Context) -> Any:
            try:
                await ctx.gather(ctx.step(refuse), hangs)
            except StepFailed:
                await ctx.sleep(1)
                return await ctx.step(one)

        async def comes_later(ctx: Context) -> Any:
            await ctx.sleep(2)
            return await ctx.step(two)

        told = await ctx.gather(fails_inside, comes_later)
        await ctx.sleep(10)
        return told

    status, _ = await changed(code, code)
    assert (status.state, status.reason) == (State.SUCCEEDED, None)
    assert status.result == (1, 2)


async def test_a_branch_that_failed_and_does_not_any_more_is_a_contradiction(
    autojump_clock: MockClock,
) -> None:
    def code(*, buggy: bool) -> Code:
        async def branch(ctx: Context) -> None:
            await ctx.step(one)
            if buggy:
                raise KeyError("a bug")

        async def other(ctx: Context) -> None:
            await ctx.sleep(100)

        async def both(ctx: Context) -> None:
            try:
                await ctx.gather(branch, other)
            except KeyError:
                await ctx.sleep(10)

        return both

    status, _ = await changed(code(buggy=True), code(buggy=False))
    assert status.state is State.QUARANTINED
    assert status.reason is not None
    assert "branch 0 of 'g1' failed, but it did not" in status.reason


@attrs.frozen
class Old:
    name: str


@attrs.frozen
class New:
    name: str
    age: int


async def test_an_outcome_that_the_type_of_its_step_no_longer_reads_is_quarantined(
    autojump_clock: MockClock,
) -> None:
    @step(name="load")
    async def load_old() -> Old:
        return Old("ann")

    @step(name="load")
    async def load_new() -> New:
        return New("ann", 30)

    async def before(ctx: Context) -> None:
        await ctx.step(load_old)
        await ctx.sleep(10)

    async def after(ctx: Context) -> None:
        await ctx.step(load_new)
        await ctx.sleep(10)

    status, _ = await changed(before, after)
    assert status.state is State.QUARANTINED
    assert status.quarantine_cause is QuarantineCause.OUTCOME
    assert status.reason is not None
    assert "does not fit New" in status.reason


async def test_a_quarantined_run_resumed_when_the_code_is_mended(
    autojump_clock: MockClock,
) -> None:
    def version(code: Code) -> Any:
        @workflow(name="changing")
        async def changing(ctx: Context) -> Any:
            return await code(ctx)

        return changing

    store = MemoryStore()
    good, bad = version(with_one_and_two), version(one_step_less)
    async with open_test_runtime(store, workflows=[good]) as runtime:
        await runtime.submit(good, key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[bad]) as runtime:
        await trio.sleep(1)
        later = await runtime.submit(bad, key="k", run_id="later")
        elsewhere = await runtime.submit(bad, key="other", run_id="elsewhere")
        await elsewhere.result()
        waiting = await later.status()
        assert waiting is not None
        assert waiting.state is State.PENDING
    async with open_test_runtime(store, workflows=[good]) as runtime:
        await runtime.redrive("r")
        run = await runtime.submit(good, key="k", run_id="r")
        with trio.fail_after(100):
            assert await run.result() == [1, 2]
            later = await runtime.submit(good, key="k", run_id="later")
            assert await later.result() == [1, 2]


async def test_arguments_that_cannot_be_told_apart_are_taken_on_trust(
    autojump_clock: MockClock,
) -> None:
    @step(name="use")
    async def use(thing: object) -> str:
        return type(thing).__name__

    async def before(ctx: Context) -> Any:
        told = await ctx.step(use, object())
        await ctx.sleep(10)
        return told

    async def after(ctx: Context) -> Any:
        told = await ctx.step(use, {1, 2})
        await ctx.sleep(10)
        return told

    status, _ = await changed(before, after)
    assert status.result == "object"


async def test_a_run_left_in_the_middle_of_a_retry_goes_on_with_the_next_attempt(
    autojump_clock: MockClock,
) -> None:
    attempts: list[int] = []

    @step(retry=Retry.fixed(max_attempts=5, delay=4, jitter=0))
    async def flaky() -> int:
        attempts.append(current_step().attempt)
        if len(attempts) < 4:
            raise ValueError("not yet")
        return current_step().attempt

    async def code(ctx: Context) -> Any:
        return await ctx.step(flaky)

    status, _ = await changed(code, code)
    assert status.result == 4
    assert attempts == [1, 2, 3, 4]
