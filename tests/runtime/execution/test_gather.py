"""Gather: several things at once, with one outcome that is the same live and replayed."""

import threading
from contextlib import suppress
from gc import collect
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    PermanentError,
    Retry,
    RunCancelled,
    RunFailed,
    Runtime,
    State,
    StepFailed,
    current_step,
    step,
    workflow,
)
from keyrun.errors import WrongTask
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime

ran: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


@step
async def after(seconds: float, value: Any = None) -> Any:
    ran.append(current_step().step)
    await trio.sleep(seconds)
    return value


@step
async def refuse(seconds: float = 0) -> None:
    ran.append(current_step().step)
    await trio.sleep(seconds)
    raise PermanentError("refused")


async def test_results_come_in_the_order_of_the_arguments(autojump_clock: MockClock) -> None:
    async def branch(ctx: Context) -> str:
        return "".join([await ctx.step(after, 1, "x"), await ctx.step(after, 1, "y")])

    @workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.gather(ctx.step(after, 3, "a"), branch, ctx.step(after, 1, "c"))

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == ("a", "xy", "c")
        assert trio.current_time() == pytest.approx(3, abs=0.2)
    assert sorted(ran) == ["g1.0/after", "g1.1/after", "g1.1/after#2", "g1.2/after"]


async def test_nothing_and_one_thing_can_be_gathered(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.gather(), await ctx.gather(ctx.step(after, 1, 1))

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == ((), (1,))


async def test_what_cannot_be_gathered_is_refused(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.gather(7)  # type: ignore[call-overload]

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed, match=r"gather takes .* got 7"):
            await (await runtime.submit(flow, key="k")).result()


async def test_waits_that_are_no_functions_are_refused_with_how_to_write_them(
    autojump_clock: MockClock, recwarn: pytest.WarningsRecorder
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.gather(ctx.sleep(1), ctx.wait_signal("go"))  # type: ignore[call-overload]

    async with open_test_runtime(workflows=[flow]) as rt:
        with pytest.raises(RunFailed, match=r"as in lambda ctx: ctx.wait_signal\('go'\)"):
            await (await rt.submit(flow, key="k")).result()
    collect()
    assert [str(each.message) for each in recwarn if each.category is RuntimeWarning] == []


async def test_gathers_nest_and_number_their_own_calls(autojump_clock: MockClock) -> None:
    async def inner(ctx: Context) -> Any:
        first = await ctx.step(after, 1, "i")
        return first, await ctx.gather(ctx.step(after, 1, "j"), ctx.step(after, 2, "k"))

    async def outer(ctx: Context) -> Any:
        return await ctx.gather(inner, inner)

    @workflow
    async def flow(ctx: Context) -> Any:
        nested = await ctx.gather(outer, ctx.step(after, 1, "o"))
        return nested, await ctx.gather(ctx.step(after, 1, "last"))

    async with open_test_runtime(workflows=[flow]) as runtime:
        result = await (await runtime.submit(flow, key="k")).result()
    one = ("i", ("j", "k"))
    assert result == (((one, one), "o"), ("last",))
    assert sorted(ran) == [
        "g1.0/g1.0/after",
        "g1.0/g1.0/g1.0/after",
        "g1.0/g1.0/g1.1/after",
        "g1.0/g1.1/after",
        "g1.0/g1.1/g1.0/after",
        "g1.0/g1.1/g1.1/after",
        "g1.1/after",
        "g2.0/after",
    ]


async def test_a_step_called_like_a_gather_is_no_gather(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        first = await ctx.step(after.options(name="g1"), 0, "step")
        both = await ctx.gather(ctx.step(after, 1, "a"), ctx.step(after, 1, "b"))
        await ctx.sleep(10)
        return first, both

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        assert await run.result() == ("step", ("a", "b"))


async def test_a_context_of_another_branch_is_refused(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        async def wrong(_: Context) -> None:
            await ctx.step(after, 1)

        try:
            await ctx.gather(wrong)
        except WrongTask as error:
            return str(error)
        return "allowed"

    async with open_test_runtime(workflows=[flow]) as runtime:
        said = await (await runtime.submit(flow, key="k")).result()
    assert "can be used only in the task that received it" in said
    assert ran == []


async def test_a_context_of_a_branch_ends_with_the_branch(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        async def leaks(inner: Context) -> None:
            kept.append(inner)

        kept: list[Context] = []
        await ctx.gather(leaks)
        try:
            await kept[0].step(after, 1)
        except WrongTask as error:
            return str(error)
        return "allowed"

    async with open_test_runtime(workflows=[flow]) as runtime:
        said = await (await runtime.submit(flow, key="k")).result()
    assert "this context is closed" in said


async def long_branch(ctx: Context) -> None:
    await ctx.step(after, 1, "first")
    await ctx.step(after, 100, "never done")
    await ctx.step(after, 1, "never begun")


async def tidy_branch(ctx: Context) -> None:
    try:
        await ctx.step(after, 100)
    finally:
        with trio.CancelScope(shield=True):
            await ctx.step(after, 0, "tidied")


@workflow
async def with_losers(ctx: Context) -> list[str]:
    told = []
    try:
        await ctx.gather(ctx.step(refuse, 5), long_branch, tidy_branch)
    except StepFailed as error:
        told += [str(error.failure.kind), error.failure.step or ""]
    await ctx.sleep(10)
    told.append(await ctx.step(after, 0, "went on"))
    return told


EXPECTED = ["permanent_error", "g1.0/refuse", "went on"]


async def test_the_first_failure_cancels_the_others_and_is_raised(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[with_losers]) as runtime:
        run = await runtime.submit(with_losers, key="k")
        assert await run.result() == EXPECTED
        assert trio.current_time() == pytest.approx(15, abs=0.2)
        history = await runtime.history(run.run_id)
    assert sorted(ran) == ["after", "g1.0/refuse", "g1.1/after", "g1.1/after#2", "g1.2/after"]
    cancelled = {each.step for each in history if each.event == "step_cancelled"}
    assert cancelled == {"g1.1/after#2", "g1.2/after"}
    assert [each.step for each in history if each.event == "branch_failed"] == ["g1()"]


@pytest.mark.parametrize("crash", [False, True])
async def test_losers_never_run_again(autojump_clock: MockClock, crash: bool) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[with_losers]) as runtime:
        await runtime.submit(with_losers, key="k", run_id="r")
        await trio.sleep(8)
        if crash:
            store.crash()
            await trio.sleep_forever()
    before = list(ran)
    async with open_test_runtime(store, workflows=[with_losers]) as runtime:
        run = await runtime.submit(with_losers, key="k", run_id="r")
        assert await run.result() == EXPECTED
    assert ran[len(before) :] == ["after"]


async def test_a_failed_gather_is_the_same_after_a_crash_at_any_commit(
    autojump_clock: MockClock,
) -> None:
    async def scenario(runtime: Runtime) -> list[str]:
        return await (await runtime.submit(with_losers, key="k", run_id="r")).result()

    for point in crash_points():
        ran.clear()
        assert await point.run(scenario, workflows=[with_losers]) == EXPECTED, point
        assert "g1.1/after#3" not in ran, point


async def test_an_unhandled_failure_in_a_branch_fails_the_run(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.gather(ctx.step(after, 100), ctx.step(refuse, 1))

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        assert caught.value.failure.kind is FailureKind.PERMANENT_ERROR
        assert caught.value.failure.step == "g1.1/refuse"
        assert len(await runtime.dead_letters()) == 1


async def test_an_error_of_branch_code_itself_is_raised_by_gather(
    autojump_clock: MockClock,
) -> None:
    async def buggy(ctx: Context) -> None:
        await ctx.step(after, 1)
        raise KeyError("in a branch")

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.gather(buggy, ctx.step(after, 100))
        except KeyError as error:
            await ctx.sleep(10)
            return str(error)
        return "fine"

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        assert await run.result() == "'in a branch'"
    assert ran.count("g1.1/after") == 1


@pytest.mark.parametrize("verdict", ["fail", "cancel"])
async def test_a_verdict_in_a_branch_ends_the_run(autojump_clock: MockClock, verdict: str) -> None:
    async def judge(ctx: Context) -> None:
        await ctx.step(after, 1)
        if verdict == "fail":
            ctx.fail("enough")
        ctx.cancel("enough")

    @workflow
    async def flow(ctx: Context) -> None:
        try:
            await ctx.gather(judge, ctx.step(after, 100))
        except Exception:
            raise AssertionError("a verdict cannot be caught") from None

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        with pytest.raises((RunFailed, RunCancelled), match="enough"):
            await run.result()
        status = await run.status()
        assert status is not None
        assert status.state is (State.FAILED if verdict == "fail" else State.CANCELLED)
        assert trio.current_time() == pytest.approx(1, abs=0.2)


async def test_retries_in_branches_do_not_hold_each_other_up(autojump_clock: MockClock) -> None:
    @step(retry=Retry.fixed(max_attempts=3, delay=10, jitter=0))
    async def flaky(good: int) -> int:
        if current_step().attempt < good:
            raise ValueError("not yet")
        return current_step().attempt

    @workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.gather(*(ctx.step(flaky, good) for good in (1, 2, 3, 3)))

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == (1, 2, 3, 3)
        assert trio.current_time() == pytest.approx(20, abs=0.2)


async def test_a_wide_gather_runs_with_one_slot(autojump_clock: MockClock) -> None:
    running = most = 0

    @step
    async def careful(number: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(1)
        running -= 1
        return number

    @workflow
    async def flow(ctx: Context) -> Any:
        return await ctx.gather(*(ctx.step(careful, number) for number in range(20)))

    async with open_test_runtime(workflows=[flow], max_concurrent_steps=1) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == tuple(range(20))
    assert most == 1


@pytest.mark.parametrize("crash", [False, True])
async def test_a_shielded_loser_ends_in_peace_and_disturbs_no_replay(
    autojump_clock: MockClock, crash: bool
) -> None:
    """Its outcome comes after the decision, so nobody asks for it when the run is replayed."""

    @workflow
    async def flow(ctx: Context) -> str:
        async def loser(ctx: Context) -> None:
            await ctx.step(after.options(shield=True), 10, "in peace")
            await ctx.step(after, 1, "never")

        with suppress(StepFailed):
            await ctx.gather(loser, ctx.step(refuse, 1))
        await ctx.sleep(10)
        return str(await ctx.step(after, 0, "went on"))

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(15)
        if crash:
            store.crash()
            await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with trio.fail_after(100):
            assert await run.result() == "went on"
    assert sorted(ran) == ["after", "g1.0/after", "g1.1/refuse"]


async def test_a_sync_loser_is_waited_for() -> None:
    release = threading.Event()

    @step
    def blocking() -> str:
        assert release.wait(10)
        return "done"

    @step
    async def fail() -> None:
        release.set()
        raise PermanentError("refused")

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.step(blocking), ctx.step(fail))
        except StepFailed as error:
            return error.step or ""
        return "fine"

    async with open_test_runtime(workflows=[flow], threads="real") as runtime:
        with trio.fail_after(5):
            assert await (await runtime.submit(flow, key="k")).result() == "g1.1/fail"


async def test_replay_gives_outcomes_back_in_the_order_they_came(
    autojump_clock: MockClock,
) -> None:
    """Branches that share a variable take the same turns, whoever the scheduler lets run first."""
    passes: list[list[str]] = []

    @workflow
    async def race(ctx: Context) -> list[str]:
        order: list[str] = []

        def runner(name: str, seconds: float) -> Any:
            async def run(ctx: Context) -> None:
                for lap in range(3):
                    await ctx.step(after, seconds)
                    order.append(f"{name}{lap}")

            return run

        await ctx.gather(runner("a", 3.1), runner("b", 2), runner("c", 1.1))
        passes.append(order)
        await ctx.sleep(10)
        return order

    store = MemoryStore()
    for _ in range(8):
        async with open_test_runtime(store, workflows=[race]) as runtime:
            await runtime.submit(race, key="k", run_id="r")
            await trio.sleep(9.5 if not passes else 0.01)
    assert len(passes) >= 8
    assert all(order == passes[0] for order in passes)
    assert passes[0] == ["c0", "b0", "c1", "a0", "c2", "b1", "b2", "a1", "a2"]


async def test_a_redrive_runs_the_failed_branch_and_the_losers_again(
    autojump_clock: MockClock,
) -> None:
    broken = True

    @step(retry=Retry.none())
    async def sometimes() -> str:
        ran.append(current_step().step)
        await trio.sleep(2)
        if broken:
            raise ValueError("broken")
        return "mended"

    async def other(ctx: Context) -> str:
        first = await ctx.step(after, 1, "first")
        return str(first + await ctx.step(after, 10, "second"))

    @workflow
    async def flow(ctx: Context) -> Any:
        try:
            await ctx.step(refuse)
        except StepFailed:
            handled = await ctx.step(after, 1, "handled")
        return handled, await ctx.gather(ctx.step(sometimes), other)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        broken = False
        ran.clear()
        await runtime.redrive("r")
        again = await runtime.submit(flow, key="k", run_id="r")
        with trio.fail_after(100):
            assert await again.result() == ("handled", ("mended", "firstsecond"))
    assert sorted(ran) == ["g1.0/sometimes", "g1.1/after#2"]


async def handled(ctx: Context) -> str:
    try:
        await ctx.gather(ctx.step(refuse, 1), ctx.step(after, 100))
    except StepFailed:
        return str(await ctx.step(after, 1, "handled"))
    return "fine"


@pytest.mark.parametrize("crash", [False, True])
async def test_a_failure_inside_a_branch_is_replayed_beside_others(
    autojump_clock: MockClock, crash: bool
) -> None:
    """While its losers are being cancelled, nobody else is told that nothing can go on."""

    @workflow
    async def flow(ctx: Context) -> Any:
        results = await ctx.gather(handled, ctx.step(after, 3, "beside"), handled)
        await ctx.sleep(10)
        return results

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
        if crash:
            store.crash()
            await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with trio.fail_after(100):
            assert await run.result() == ("handled", "beside", "handled")


@pytest.mark.parametrize("crash", [False, True])
async def test_a_failure_inside_a_branch_that_lost_is_replayed(
    autojump_clock: MockClock, crash: bool
) -> None:
    async def loser(ctx: Context) -> None:
        await handled(ctx)
        await ctx.step(after, 100)

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.gather(loser, ctx.step(refuse, 5))
        except StepFailed as error:
            await ctx.sleep(10)
            return error.step or ""
        return "fine"

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(8)
        if crash:
            store.crash()
            await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with trio.fail_after(100):
            assert await run.result() == "g1.1/refuse"


@pytest.mark.parametrize("crash", [False, True])
async def test_a_loser_that_shields_itself_holds_up_no_replay(
    autojump_clock: MockClock, crash: bool
) -> None:
    async def loser(ctx: Context) -> None:
        with trio.CancelScope(shield=True):
            await ctx.gather(ctx.step(after, 10))

    @workflow
    async def flow(ctx: Context) -> str:
        with suppress(StepFailed):
            await ctx.gather(loser, ctx.step(refuse, 1))
        return str(await ctx.step(after, 1, "went on"))

    store = MemoryStore()
    with trio.fail_after(100):
        async with open_test_runtime(store, workflows=[flow], drain_timeout=0) as runtime:
            await runtime.submit(flow, key="k", run_id="r")
            await trio.sleep(5)
            if crash:
                store.crash()
                await trio.sleep_forever()
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            run = await runtime.submit(flow, key="k", run_id="r")
            assert await run.result() == "went on"
