"""Instances: how many runs of a workflow are under way at a time."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Backpressure, Context, Graph, NodeInput, State, step, workflow
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

inside: list[int] = [0, 0]
order: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    inside[:] = [0, 0]
    order.clear()


@step
async def work(name: str) -> None:
    order.append(name)
    inside[0] += 1
    inside[1] = max(inside)
    try:
        await trio.sleep(1)
    finally:
        inside[0] -= 1


def limited(**options: Any) -> Any:
    @workflow(name="limited", **options)
    async def flow(ctx: Context, name: str) -> str:
        await ctx.step(work, name)
        await ctx.sleep(1)
        return name

    return flow


def _in_twos(names: list[str]) -> list[set[str]]:
    """Those that are let in by the same commit begin in any order."""
    return [set(names[at : at + 2]) for at in range(0, len(names), 2)]


async def test_no_more_than_allowed_are_under_way_and_the_others_wait_in_order(
    autojump_clock: MockClock,
) -> None:
    flow = limited(instances=2)
    async with open_test_runtime(workflows=[flow]) as runtime:
        runs = [await runtime.submit(flow, str(n), key=f"k{n}") for n in range(7)]
        for run in runs:
            await run.result()
        assert trio.current_time() == 8
    assert inside[1] == 2
    assert _in_twos(order) == _in_twos([str(n) for n in range(7)])


async def test_other_workflows_do_not_wait(autojump_clock: MockClock) -> None:
    flow = limited(instances=1)

    @workflow
    async def other(ctx: Context) -> str:
        return "free"

    async with open_test_runtime(workflows=[flow, other]) as runtime:
        for n in range(5):
            await runtime.submit(flow, str(n), key=f"k{n}")
        assert await (await runtime.submit(other, key="x")).result() == "free"
        assert trio.current_time() == 0


async def test_when_full_it_may_refuse(autojump_clock: MockClock) -> None:
    flow = limited(instances=2, when_full="reject")
    async with open_test_runtime(workflows=[flow]) as runtime:
        runs = [await runtime.submit(flow, str(n), key=f"k{n}", run_id=f"r{n}") for n in range(2)]
        with pytest.raises(Backpressure, match="2 runs of 'limited' are active"):
            await runtime.submit(flow, "more", key="k")
        again = await runtime.submit(flow, "0", key="k0", run_id="r0")
        assert not again.newly_submitted
        await runs[0].result()
        await (await runtime.submit(flow, "more", key="k")).result()


async def test_those_that_go_on_after_a_restart_count(autojump_clock: MockClock) -> None:
    flow = limited(instances=2)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        for n in range(5):
            await runtime.submit(flow, str(n), key=f"k{n}", run_id=f"r{n}")
        await trio.sleep(1.5)
        store.crash()
        await trio.sleep_forever()
    assert order == ["0", "1"]
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        for n in range(5):
            run = await runtime.submit(flow, str(n), key=f"k{n}", run_id=f"r{n}")
            await run.result()
    assert order[:2] == ["0", "1"]
    assert sorted(order) == [str(n) for n in range(5)]
    assert inside[1] == 2


async def test_those_that_sleep_through_a_restart_count(autojump_clock: MockClock) -> None:
    @workflow(instances=1)
    async def flow(ctx: Context, name: str) -> None:
        await ctx.step(work, name)
        await ctx.sleep(1000)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], evict_after=1) as runtime:
        for n in range(2):
            await runtime.submit(flow, str(n), key=f"k{n}", run_id=f"r{n}")
        await trio.sleep(100)
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[flow], evict_after=1) as runtime:
        await trio.sleep(100)
        assert order == ["0"]
        await (await runtime.submit(flow, "1", key="k1", run_id="r1")).result()
    assert order == ["0", "1"]


async def test_a_run_that_waits_for_its_turn_can_be_cancelled(autojump_clock: MockClock) -> None:
    flow = limited(instances=1)
    async with open_test_runtime(workflows=[flow]) as runtime:
        runs = [await runtime.submit(flow, str(n), key=f"k{n}", run_id=f"r{n}") for n in range(3)]
        await trio.sleep(0.5)
        assert await runs[1].cancel()
        await runs[2].result()
        status = await runs[1].status()
        assert status is not None
        assert status.state is State.CANCELLED
    assert order == ["0", "2"]


async def test_a_graph_has_instances_too(autojump_clock: MockClock) -> None:
    async def node(given: NodeInput) -> None:
        await work.function(str(given.run_input))

    graph = Graph("g", instances=1)
    graph.node("a", node)
    graph.node("b", node)
    graph.edge("a", "b")
    async with open_test_runtime(workflows=[graph]) as runtime:
        runs = [await runtime.submit(graph, n, key=f"k{n}") for n in range(3)]
        for run in runs:
            await run.result()
    assert order == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize("options", [{"instances": 0}, {"instances": True}, {"when_full": "cry"}])
def test_odd_limits_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        limited(**options)
