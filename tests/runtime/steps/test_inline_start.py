"""Steps, nodes and entity methods that are started inline and take a slot when they suspend."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Entity, Graph, Limits, NodeInput, RunFailed, entity, step, workflow
from keyrun.graphs import durable
from keyrun.runtime.steps.current_step import CurrentStep
from keyrun.testing import open_test_runtime


@step
async def quick() -> str:
    return "quick"


@step
async def slow() -> str:
    await trio.sleep(10)
    return "slow"


@workflow
async def steps(ctx: Context) -> str:
    return await ctx.step(quick) + await ctx.step(slow)


async def slow_node(given: NodeInput) -> str:
    await trio.sleep(10)
    return "slow"


graph = Graph("graph")
graph.node("slow", slow_node)


@entity
class Desk(Entity):
    async def work(self) -> str:
        await trio.sleep(10)
        return "slow"


@pytest.mark.parametrize("flow", [steps, graph, Desk])
async def test_a_function_takes_a_slot_while_it_waits_and_gives_it_back(
    autojump_clock: MockClock, flow: Any
) -> None:
    async with (
        open_test_runtime(workflows=[steps, graph], entities=[Desk]) as runtime,
        trio.open_nursery() as nursery,
    ):
        if flow is Desk:
            nursery.start_soon(runtime.entity(Desk, "k").work)
        else:
            await runtime.submit(flow, key="k")
        await trio.sleep(5)
        assert runtime.statistics().running_steps == 1
        await trio.sleep(10)
        assert runtime.statistics().running_steps == 0


@pytest.mark.parametrize("flow", [steps, graph])
async def test_an_internal_error_while_a_step_takes_its_slot_does_not_cost_the_slot(
    autojump_clock: MockClock, flow: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark, errors = CurrentStep.mark, [RuntimeError("a bug")]

    def fail_once(current: CurrentStep) -> None:
        if errors:
            raise errors.pop()
        mark(current)

    monkeypatch.setattr(CurrentStep, "mark", fail_once)
    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        assert (await run.result()).endswith("slow")
        assert runtime.statistics().running_steps == 0


async def in_a_step(ctx: Context) -> str:
    return await ctx.step(slow)


async def in_a_branch(ctx: Context) -> str:
    (value,) = await ctx.gather(ctx.step(slow))
    return str(value)


@pytest.mark.parametrize("call", [in_a_step, in_a_branch])
async def test_a_node_begins_while_the_workflow_code_of_the_first_node_waits(
    autojump_clock: MockClock, call: Callable[[Context], Awaitable[str]]
) -> None:
    begun: list[float] = []

    @durable
    async def first(ctx: Context, given: NodeInput) -> str:
        return await call(ctx)

    async def second(given: NodeInput) -> None:
        begun.append(trio.current_time())

    flow = Graph("flow")
    flow.node("first", first)
    flow.node("second", second)
    async with open_test_runtime(workflows=[flow]) as runtime:
        before = trio.current_time()
        run = await runtime.submit(flow, key="k")
        await run.result()
    assert begun == [before]


@pytest.mark.parametrize("kind", ["steps", "nodes"])
async def test_max_iterations_counts_steps_and_nodes_in_the_same_way(
    autojump_clock: MockClock, kind: str
) -> None:
    async def node(given: NodeInput) -> None: ...

    nodes = Graph("nodes")
    for name in "abc":
        nodes.node(name, node)

    @workflow
    async def loop(ctx: Context) -> None:
        for _ in range(3):
            await ctx.step(quick)

    flow: Any = loop if kind == "steps" else nodes
    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", limits=Limits(max_iterations=2))
        with pytest.raises(RunFailed, match="the run called step 3, but max_iterations is 2"):
            await run.result()
        run = await runtime.submit(flow, key="k", limits=Limits(max_iterations=3))
        await run.result()
