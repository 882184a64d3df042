"""Blocks with a time limit: `move_on_after` and `fail_after`, the same live and replayed."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    KeyrunError,
    Retry,
    RunFailed,
    Runtime,
    ScopeTimeout,
    StepFailed,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, crash_points, open_test_runtime
from tests.runtime.blocks import Body, after, ends, fetch, quick, ran, refuse, replayed, stop, wait


@pytest.fixture(autouse=True)
def _fresh() -> None:
    ran.clear()


async def test_a_block_that_takes_too_long_is_cut_off(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        told = []
        with ctx.move_on_after(5) as scope:
            told.append(await ctx.step(after, 1, "first"))
            told.append(await ctx.step(after, 100, "second"))
            told.append("not reached")
        return told, scope.expired, await ctx.step(quick, "went on")

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        assert await run.result() == (["first"], True, "went on")
        assert trio.current_time() == pytest.approx(5, abs=0.2)
        history = await runtime.history(run.run_id)
    assert ran == ["after", "after#2", "quick"]
    told = [(each.event, each.step, each.detail) for each in history[2:-1]]
    assert told == [
        ("scope_entered", "move_on_after()", None),
        ("step_completed", "after", None),
        ("scope_expired", "move_on_after()", "its limit was 5 s"),
        ("step_cancelled", "after#2", "attempt 1"),
        ("scope_left", "move_on_after()", None),
        ("step_completed", "quick", None),
    ]
    assert history[2].delay == 5
    assert history[4].began_at == pytest.approx(history[2].at)
    assert history[4].at - history[2].at == pytest.approx(5)


async def test_a_block_that_is_in_time_is_left_alone(autojump_clock: MockClock) -> None:
    async def body(ctx: Context) -> Any:
        with ctx.move_on_after(5) as scope:
            value = await ctx.step(after, 4, "value")
        await ctx.sleep(10)
        with ctx.fail_after(5):
            value += await ctx.step(after, 1, ", value")
        return value, scope.expired

    assert await replayed(body) == ("value, value", False)


async def test_live_and_replayed_take_the_same_path(autojump_clock: MockClock) -> None:
    async def body(ctx: Context) -> Any:
        told: list[Any] = []
        for seconds in (1, 3, 5):
            with ctx.move_on_after(4) as scope:
                told.append(await ctx.step(after, seconds, seconds))
                told.append(await ctx.step(after, 2, "and"))
            told.append(scope.expired)
        return told

    assert await replayed(body) == [1, "and", False, 3, True, True]
    assert ran == ["after", "after#2", "after#3", "after#4", "after#5"]


async def tidy(ctx: Context) -> None:
    try:
        await ctx.step(after.options(name="held"), 100)
    finally:
        with trio.CancelScope(shield=True):
            await ctx.step(after.options(name="tidied"), 1)


async def keep_on(ctx: Context) -> None:
    await ctx.step(after.options(name="shielded", shield=True), 8)
    await ctx.step(after.options(name="too late"), 1)


@workflow
async def with_losers(ctx: Context) -> list[Any]:
    told: list[Any] = [await ctx.step(after, 1, "before")]
    with ctx.move_on_after(5) as scope:
        told.append(await ctx.step(after, 1, "inside"))
        told.append(await ctx.gather(fetch, wait, tidy, keep_on, ctx.step(after, 50, "never")))
    told.append(scope.expired)
    try:
        with ctx.fail_after(3):
            await ctx.gather(ctx.step(after, 1), ctx.step(after, 50))
    except TimeoutError as error:
        told.append(str(error))
    with ctx.move_on_after(10) as scope:
        told.append(await ctx.gather(ctx.step(after, 1, "a"), ctx.step(after, 2, "b")))
    told.append(scope.expired)
    await ctx.sleep(10)
    told.append(await ctx.step(quick, "went on"))
    return told


WITH_LOSERS = [
    "before",
    "inside",
    True,
    "the block 'fail_after()' exceeded its limit of 3 s",
    ("a", "b"),
    False,
    "went on",
]
NEVER = {"too late", "g1.0/after#3", "g1.3/too late"}
LOSERS = {"g1.0/after#2", "g1.2/held", "g1.4/after", "g2.1/after"}


async def test_a_gather_in_a_block_is_cut_off_with_it(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[with_losers]) as runtime:
        run = await runtime.submit(with_losers, key="k")
        assert await run.result() == WITH_LOSERS
        history = await runtime.history(run.run_id)
    cancelled = {each.step for each in history if each.event == "step_cancelled"}
    assert cancelled == LOSERS
    done = {each.step for each in history if each.event == "step_completed"}
    assert {"g1.1/between", "g1.2/tidied", "g1.3/shielded"} < done
    assert not NEVER & set(ran)
    assert len([each for each in history if each.event == "scope_expired"]) == 2


@pytest.mark.parametrize(("crashes", "every"), [(1, 1), (2, 3)])
async def test_a_crash_at_any_commit_leads_to_the_same_end(
    autojump_clock: MockClock, crashes: int, every: int
) -> None:
    durable: dict[str, int] = {}

    async def scenario(runtime: Runtime) -> Any:
        expired = False
        if await runtime.status("r") is not None:
            for each in await runtime.history("r"):
                expired |= each.event == "scope_expired" and each.step == "move_on_after()"
                if each.event == "step_completed" and each.step is not None:
                    durable.setdefault(each.step, ran.count(each.step))
        if expired:
            for loser in LOSERS - {"g2.1/after"}:
                durable.setdefault(loser, ran.count(loser))
        return await (await runtime.submit(with_losers, key="k", run_id="r")).result()

    tried = 0
    for point in crash_points(crashes=crashes, every=every):
        ran.clear()
        durable.clear()
        assert await point.run(scenario, workflows=[with_losers]) == WITH_LOSERS, point
        assert not NEVER & set(ran), point
        for name, count in durable.items():
            assert ran.count(name) == count, (point, name)
        tried += point.crashes > 0
    assert tried > 20 // every


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("down", [0, 1, 60])
async def test_after_a_restart_only_the_rest_is_waited(
    autojump_clock: MockClock, crash: bool, down: float
) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(10) as scope:
            await ctx.step(after, 1)
            await ctx.step(after, 100)
        return scope.expired, trio.current_time()

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], drain_timeout=0) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(6)
        await stop(store, crash)
    await trio.sleep(down)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        expired, ended = await run.result()
    assert expired
    assert ended == pytest.approx(max(10, 6 + down), abs=0.2)
    # What is too late already is not even begun.
    assert ran == ["after", "after#2"] + ["after#2"] * (down < 4)


async def test_a_clock_that_is_set_back_makes_no_block_longer(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(10) as scope:
            await ctx.sleep(1000)
        return scope.expired

    store, jump = MemoryStore(), 0.0

    def wall() -> float:
        return EPOCH + trio.current_time() + jump

    async with open_test_runtime(store, workflows=[flow], wall=wall) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(4)
    jump = -3600.0
    async with open_test_runtime(store, workflows=[flow], wall=wall) as runtime:
        assert await (await runtime.submit(flow, key="k", run_id="r")).result()
        assert 10 <= trio.current_time() <= 14.2


@pytest.mark.parametrize("crash", [False, True])
async def test_what_a_block_had_before_a_crash_it_keeps_however_late_it_is(
    autojump_clock: MockClock, crash: bool
) -> None:
    """Its time is up when it is driven again, but all that it asked for is remembered."""
    passes: list[list[Any]] = []

    @workflow
    async def flow(ctx: Context) -> Any:
        told: list[Any] = []
        passes.append(told)
        with ctx.move_on_after(10) as scope:
            told += await ctx.gather(ctx.step(after, 1, "a"), ctx.step(after, 2, "b"))
            told.append(await ctx.step(after, 1, "c"))
            await ctx.sleep(100)
        return told, scope.expired

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
        await stop(store, crash)
    await trio.sleep(100)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        assert await run.result() == (["a", "b", "c"], True)
    assert passes == [["a", "b", "c"]] * 2


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        (10, 3, ["inner", 5]),  # the inner one expires
        (3, 10, ["outer"]),
        (8, 6, ["inner", "outer"]),
        (5, 5, ["outer"]),  # at the same time
        (100, 100, ["in", 5]),
    ],
)
async def test_blocks_nest(
    autojump_clock: MockClock, outer: float, inner: float, expected: list[Any]
) -> None:
    async def body(ctx: Context) -> Any:
        told: list[Any] = []
        with ctx.move_on_after(outer) as one:
            with ctx.move_on_after(inner) as two:
                told.append(await ctx.step(after, 7, "in"))
            if two.expired:
                told.append("inner")
            told.append(await ctx.step(after, 5, 5))
        if one.expired:
            told.append("outer")
        return told

    assert await replayed(body) == expected


async def test_an_inner_block_may_fail_and_the_outer_one_goes_on(
    autojump_clock: MockClock,
) -> None:
    async def body(ctx: Context) -> Any:
        told = []
        with ctx.fail_after(20) as outer:
            for _ in range(3):
                try:
                    with ctx.fail_after(2):
                        await ctx.step(after, 100)
                except ScopeTimeout as error:
                    told.append(error.step)
        return told, outer.expired

    names = ["fail_after()#2", "fail_after()#3", "fail_after()#4"]
    assert await replayed(body) == (names, False)


async def test_branches_have_blocks_of_their_own(autojump_clock: MockClock) -> None:
    async def body(ctx: Context) -> Any:
        def part(limit: float, order: list[str]) -> Body:
            async def run(ctx: Context) -> Any:
                with ctx.move_on_after(limit) as scope:
                    for lap in range(3):
                        await ctx.step(after, 2)
                        order.append(f"{limit:g} lap {lap}")
                order.append(f"{limit:g} over")
                return scope.expired, await ctx.step(after, 1, "went on")

            return run

        order: list[str] = []
        results = await ctx.gather(part(3, order), part(5, order), part(9, order))
        return results, order

    results, order = await replayed(body)
    assert results == ((True, "went on"), (True, "went on"), (False, "went on"))
    assert [each for each in order if each.startswith("3")] == ["3 lap 0", "3 over"]
    assert order.index("3 over") < order.index("5 lap 1") < order.index("5 over")
    assert order[-1] == "9 over"


async def test_a_block_in_a_branch_that_loses_says_nothing(autojump_clock: MockClock) -> None:
    async def body(ctx: Context) -> Any:
        async def loser(ctx: Context) -> None:
            with ctx.move_on_after(50):
                await ctx.step(after, 1)
                await ctx.step(after, 100)

        try:
            await ctx.gather(loser, ctx.step(refuse, 5), loser)
        except StepFailed as error:
            return error.step

    assert await replayed(body) == "g1.1/refuse"
    assert ran.count("g1.0/after#2") == 1


async def test_a_failed_gather_in_a_block_that_expires_later(autojump_clock: MockClock) -> None:
    """The failure is what the block gets, though the journal says next that it expired."""

    async def body(ctx: Context) -> Any:
        told = []
        with ctx.move_on_after(5) as scope:
            try:
                await ctx.gather(ctx.step(refuse, 2), ctx.step(after, 100), fetch)
            except StepFailed as error:
                told.append(error.step)
            await ctx.step(after, 100)
        return told, scope.expired

    assert await replayed(body) == (["g1.0/refuse"], True)


async def test_order_is_kept_where_a_block_is_cut_off(autojump_clock: MockClock) -> None:
    """Who notices the end first, and what comes later, is the same each time."""

    async def body(ctx: Context) -> Any:
        order: list[str] = []

        async def shielded(ctx: Context) -> None:
            await ctx.step(after.options(shield=True), 9)
            order.append("shielded step done")
            await ctx.step(after, 1)

        async def held(ctx: Context) -> None:
            try:
                await ctx.step(after, 100)
            finally:
                order.append("cut off")
                with trio.CancelScope(shield=True):
                    await ctx.step(after, 1)
                    order.append("tidied")
                    await ctx.sleep(20)
                    order.append("tidied and slept")

        with ctx.move_on_after(5) as scope:
            await ctx.gather(shielded, held)
        return order, scope.expired

    expected = ["cut off", "tidied", "shielded step done", "tidied and slept"]
    assert await replayed(body) == (expected, True)


async def test_fail_after_raises_a_timeout_that_names_the_limit(
    autojump_clock: MockClock,
) -> None:
    async def body(ctx: Context) -> Any:
        with pytest.raises(TimeoutError) as caught, ctx.fail_after(2.5) as scope:
            await ctx.sleep(100)
        error = caught.value
        assert isinstance(error, ScopeTimeout)
        assert isinstance(error, KeyrunError)
        assert (error.run_id, error.key, error.step) == ("r", "k", "fail_after()")
        return str(error), scope.expired

    assert await replayed(body) == ("the block 'fail_after()' exceeded its limit of 2.5 s", True)


async def test_a_block_that_failed_uncaught_is_a_dead_letter(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        with ctx.fail_after(2):
            await ctx.step(after, 100)

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
        (letter,) = await runtime.dead_letters()
    failure = caught.value.failure
    assert failure.kind is FailureKind.WORKFLOW_ERROR
    assert failure.step == "fail_after()"
    assert failure.reason == (
        "the workflow raised ScopeTimeout: the block 'fail_after()' exceeded its limit of 2 s"
    )
    assert letter.run_id == "r"


@pytest.mark.parametrize("where", ["main", "branch"])
async def test_a_redrive_gives_a_block_that_failed_another_chance(
    autojump_clock: MockClock, where: str
) -> None:
    slow = True

    @step
    async def mended() -> str:
        ran.append(current_step().step)
        await trio.sleep(100 if slow else 1)
        return "in time"

    async def part(ctx: Context) -> str:
        with ctx.fail_after(5):
            return str(await ctx.step(after, 1, "done, ") + await ctx.step(mended))

    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(1) as scope:
            await ctx.step(after, 100)
        if where == "main":
            return scope.expired, await part(ctx)
        return scope.expired, (await ctx.gather(part, ctx.step(after, 2)))[0]

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed, match="ScopeTimeout"):
            await run.result()
        await trio.sleep(100)
        slow = False
        await runtime.redrive("r")
        with trio.fail_after(100):
            assert await run.result() == (True, "done, in time")
    # What the first block was cut off from stays so, and what was done stays done.
    assert ran.count("after") == 1
    assert len(ran) == (4 if where == "main" else 5)


async def test_a_redrive_keeps_a_failed_block_that_was_handled(autojump_clock: MockClock) -> None:
    broken = True

    @step(retry=Retry.none())
    async def sometimes() -> str:
        if broken:
            raise ValueError("broken")
        return "mended"

    @workflow
    async def flow(ctx: Context) -> Any:
        try:
            with ctx.fail_after(5):
                await ctx.step(after, 100)
        except TimeoutError:
            told = await ctx.step(after, 1, "handled")
        with ctx.fail_after(5):
            return told, await ctx.step(sometimes)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed, match="broken"):
            await run.result()
        await trio.sleep(100)
        broken = False
        await runtime.redrive("r")
        # The block in which the step failed has all of its time again.
        with trio.fail_after(100):
            assert await run.result() == ("handled", "mended")
    assert ran == ["after", "after#2"]


@pytest.mark.parametrize("limited", ["move_on_after", "fail_after"])
@pytest.mark.parametrize(
    ("seconds", "error"),
    [
        (-1, ValueError),
        (float("nan"), ValueError),
        (-float("inf"), ValueError),
        ("5", TypeError),
        (None, TypeError),
    ],
)
async def test_bad_limits_are_refused(
    autojump_clock: MockClock, limited: str, seconds: Any, error: type[Exception]
) -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        with pytest.raises(error, match="seconds must be"):
            getattr(ctx, limited)(seconds)
        return "refused"

    assert await ends(flow) == "refused"


async def test_a_scope_is_entered_once(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        scope = ctx.move_on_after(5)
        with scope:
            pass
        with pytest.raises(RuntimeError, match=r"entered only once; create another one"), scope:
            pass

    await ends(flow)


async def test_no_time_and_all_the_time(autojump_clock: MockClock) -> None:
    async def body(ctx: Context) -> Any:
        with ctx.move_on_after(0) as none:
            await ctx.step(quick)
        with ctx.move_on_after(float("inf")) as all_:
            await ctx.step(after, 100)
        return none.expired, all_.expired

    assert await replayed(body) == (True, False)
    assert ran == ["after"]
