"""With `compensate_on="attempted"`, what was begun is undone, however it was cut off."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    Retry,
    RunStatus,
    Runtime,
    State,
    TransientError,
    step,
    workflow,
)
from keyrun.testing import crash_points, open_test_runtime, replay
from tests.runtime.graphs.nodes import ended

undone: list[str] = []
told: dict[str, Compensation] = {}
LATER = Retry.fixed(max_attempts=5, delay=100, jitter=0)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    undone.clear()
    told.clear()


async def undo(given: Compensation) -> None:
    undone.append(given.step)
    told[given.step] = given


@step(compensate=undo)
async def take(seconds: float) -> float:
    await trio.sleep(seconds)
    return seconds


@step(compensate=undo, retry=LATER)
async def stumble() -> None:
    raise TransientError("not yet")


@step
async def refuse(seconds: float) -> None:
    await trio.sleep(seconds)
    raise PermanentError("refused")


def lanes(compensate_on: Any, *, fail_fast: bool = True) -> Graph:
    """One node is done, one runs, one waits for its next attempt and one was not reached when the
    last one fails."""

    def lasting(seconds: float) -> Any:
        async def work(given: NodeInput) -> float:
            await trio.sleep(seconds)
            return seconds

        return work

    async def stumbling(given: NodeInput) -> None:
        raise TransientError("not yet")

    async def failing(given: NodeInput) -> None:
        await trio.sleep(5)
        raise PermanentError("refused")

    graph = Graph("lanes", fail_fast=fail_fast, compensate_on=compensate_on)
    graph.node("runs", lasting(50), compensate=undo)
    graph.node("done", lasting(1), compensate=undo)
    graph.node("waits", stumbling, compensate=undo, retry=LATER)
    graph.node("unreached", lasting(1), compensate=undo)
    graph.node("bad", failing)
    graph.edge("runs", "unreached")
    return graph


def gathered(compensate_on: Any) -> Any:
    @workflow(compensate_on=compensate_on)
    async def flow(ctx: Context) -> None:
        await ctx.step(take, 1)
        await ctx.gather(ctx.step(take, 50), ctx.step(stumble), ctx.step(refuse, 5))

    return flow


def timed(compensate_on: Any) -> Any:
    @workflow(compensate_on=compensate_on)
    async def flow(ctx: Context) -> None:
        with ctx.move_on_after(3):
            await ctx.step(take, 50)
        await ctx.step(take, 1)
        await ctx.step(refuse, 1)

    return flow


def out_of_time(compensate_on: Any) -> Any:
    @workflow(compensate_on=compensate_on, limits=Limits(run_timeout=5))
    async def flow(ctx: Context) -> None:
        await ctx.step(take, 1)
        await ctx.step(take, 50)

    return flow


CUT_OFF: list[tuple[Callable[[Any], Any], list[str], list[str]]] = [
    (lanes, ["waits", "runs", "done"], ["done"]),
    (gathered, ["g1.1/stumble", "g1.0/take", "take"], ["take"]),
    (timed, ["take", "take#2"], ["take#2"]),
    (out_of_time, ["take#2", "take"], ["take"]),
]


@pytest.mark.parametrize(("make", "attempted", "completed"), CUT_OFF)
async def test_what_was_cut_off_is_undone_first(
    make: Callable[[Any], Any],
    attempted: list[str],
    completed: list[str],
    autojump_clock: MockClock,
) -> None:
    for compensate_on, expected in (("attempted", attempted), ("completed", completed)):
        undone.clear()
        flow = make(compensate_on)
        async with open_test_runtime(workflows=[flow]) as runtime:
            status = await ended(await runtime.submit(flow, key="k", run_id="r"))
            await replay(await runtime.history("r"), flow)
        assert status.state is State.FAILED
        assert sorted(undone) == sorted(expected)
        assert undone[-1] == expected[-1]


@pytest.mark.parametrize(("make", "attempted"), [each[:2] for each in CUT_OFF[:3]])
async def test_a_crash_at_any_commit_undoes_each_of_them_once(
    make: Callable[[Any], Any], attempted: list[str], autojump_clock: MockClock
) -> None:
    flow = make("attempted")

    async def scenario(runtime: Runtime) -> RunStatus:
        return await ended(await runtime.submit(flow, key="k", run_id="r"))

    for point in crash_points():
        undone.clear()
        status = await point.run(scenario, workflows=[flow])
        assert status.state is State.FAILED
        assert sorted(set(undone)) == sorted(attempted)
        assert len(undone) <= len(attempted) + 1


@pytest.mark.parametrize("graph", [True, False])
async def test_what_runs_when_the_run_is_cancelled_is_undone(
    graph: bool, autojump_clock: MockClock
) -> None:
    flow = lanes("attempted", fail_fast=False) if graph else gathered("attempted")

    async def scenario(runtime: Runtime) -> RunStatus:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(3)
        await run.cancel()
        return await ended(run)

    for point in crash_points():
        undone.clear()
        status = await point.run(scenario, workflows=[flow])
        assert status.state is State.CANCELLED
        if graph:
            assert set(undone) >= {"waits", "runs"}
            assert set(undone) <= {"waits", "runs", "done"}
        else:
            assert set(undone) <= {"g1.1/stumble", "g1.0/take", "take"}
            assert "take" in undone


async def test_a_compensation_of_what_was_cut_off_gets_no_output(
    autojump_clock: MockClock,
) -> None:
    graph = lanes("attempted")
    async with open_test_runtime(workflows=[graph]) as runtime:
        await ended(await runtime.submit(graph, key="k", run_id="r"))
    assert told["runs"].output is None
    assert told["runs"].failed == "bad"
    assert told["done"].output == 1
