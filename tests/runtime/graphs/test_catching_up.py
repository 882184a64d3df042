"""A graph that is driven again: several nodes have begun, and others wait until those are there."""

from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Graph,
    NodeInput,
    Retry,
    RunStatus,
    Runtime,
    State,
    TransientError,
    step,
)
from keyrun.graphs import durable
from keyrun.runtime.run.journal import Journal
from keyrun.testing import crash_points
from tests.runtime.graphs.nodes import ended

LATER = Retry.fixed(max_attempts=5, delay=100, jitter=0)


@pytest.fixture(autouse=True)
def _no_endless_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop without an end would not let any time pass, so it has to be counted."""
    all_asked, calls = Journal.all_asked, 0

    async def counted(journal: Journal) -> str | None:
        nonlocal calls
        calls += 1
        assert calls < 1000, "the nodes wait for each other"
        return await all_asked(journal)

    monkeypatch.setattr(Journal, "all_asked", counted)


async def undo(given: Compensation) -> None: ...


def lanes() -> Graph:
    def lasting(seconds: float) -> Callable[[NodeInput], Awaitable[None]]:
        async def work(given: NodeInput) -> None:
            await trio.sleep(seconds)

        return work

    async def stumbling(given: NodeInput) -> None:
        raise TransientError("not yet")

    graph = Graph("lanes", fail_fast=False, compensate_on="attempted")
    for seconds in (50, 1, 20):
        graph.node(f"lasts{seconds}", lasting(seconds), compensate=undo)
    graph.node("stumbles", stumbling, compensate=undo, retry=LATER)
    graph.node("bad", lasting(5))
    return graph


@pytest.mark.parametrize("seed", range(8))
async def test_nodes_do_not_wait_for_each_other_when_a_graph_is_driven_again(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("trio._core._run._r", Random(seed))  # whom the scheduler lets run first
    graph = lanes()

    async def scenario(rt: Runtime) -> RunStatus:
        run = await rt.submit(graph, key="k", run_id="r")
        await trio.sleep(3)
        await run.cancel()
        return await ended(run)

    for point in crash_points():
        with trio.fail_after(1000):
            status = await point.run(scenario, workflows=[graph])
        assert status.state is State.CANCELLED


async def test_workflow_code_may_be_ahead_of_nodes_that_have_begun(
    autojump_clock: MockClock,
) -> None:
    """The code in a node got its last outcome, and asks for a new call. Nodes beside it have begun
    and have no outcome: they are asked for, too, before the new call starts."""

    @step
    async def plus(value: int) -> int:
        return value + 1

    @durable
    async def doze(ctx: Context, given: NodeInput) -> int:
        await ctx.sleep(1.5)
        await ctx.sleep(1.5)
        return await ctx.step(plus, 1)

    def lasting(seconds: float) -> Callable[[NodeInput], Awaitable[None]]:
        async def work(given: NodeInput) -> None:
            await trio.sleep(seconds)

        return work

    graph = Graph("g")
    graph.node("doze", doze)
    for name, seconds in (("one", 1), ("two", 1), ("long", 10)):
        graph.node(name, lasting(seconds))
    graph.edge("one", "two")
    graph.edge("two", "long")

    async def scenario(runtime: Runtime) -> Any:
        return await (await runtime.submit(graph, key="k", run_id="r")).result()

    points = 0
    for point in crash_points():
        assert await point.run(scenario, workflows=[graph]) == {"doze": 2, "long": None}
        points += 1
    assert points > 15
