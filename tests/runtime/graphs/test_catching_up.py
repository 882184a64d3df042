"""A graph that is driven again: several nodes have begun, and others wait until those are there."""

from collections.abc import Awaitable, Callable
from random import Random

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Graph,
    NodeInput,
    Retry,
    RunStatus,
    Runtime,
    State,
    TransientError,
)
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
