"""A crash of the store ends the block of a test quietly, whatever user code makes of it."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, Runtime, open_runtime, step, workflow
from keyrun.graphs import durable
from keyrun.storage import MemoryStore, StoreCrashed
from keyrun.testing import crash_points, open_test_runtime


@step
async def quick() -> int:
    return 1


@step
async def slow() -> None:
    await trio.sleep(5)


@workflow(name="a nursery around the steps")
async def around(ctx: Context) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep_forever)
        await ctx.step(quick)
        await ctx.step(slow)
        nursery.cancel_scope.cancel()


@workflow(name="nested nurseries")
async def nested(ctx: Context) -> None:
    async with trio.open_nursery(), trio.open_nursery() as inner:
        inner.start_soon(trio.sleep, 1)
        await ctx.step(slow)
        await ctx.sleep(5)


@step
async def in_nursery() -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(trio.sleep, 5)


@workflow(name="branches")
async def branches(ctx: Context) -> None:
    async def branch(ctx: Context) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            await ctx.step(in_nursery)

    await ctx.gather(branch, ctx.step(slow))


@workflow(name="a group of its own")
async def regrouped(ctx: Context) -> None:
    try:
        await ctx.step(slow)
    except Exception as error:
        raise ExceptionGroup("mine", [error, ValueError("and this")]) from None


def graph() -> Graph:
    @durable
    async def code(ctx: Context, given: NodeInput) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 1)
            await ctx.step(slow)

    made = Graph("a graph")
    made.node("code", code)
    return made


FLOWS = [around, nested, branches, regrouped, graph()]


async def crash_in_block(flow: Any, after: float, latency: float) -> None:
    store = MemoryStore(latency=latency)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(after)
        store.crash()
        await trio.sleep(100)
        raise AssertionError("the block was not cancelled")
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await (await runtime.submit(flow, key="k", run_id="r")).result()


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_a_crash_ends_the_block_quietly_wherever_the_run_is(
    flow: Any, autojump_clock: MockClock
) -> None:
    for after in (0.001, 0.01, 1.0, 4.999, 5.001, 5.5):
        for latency in (0.0, 0.002):
            await crash_in_block(flow, after, latency)


async def test_a_crash_ends_a_block_with_a_nursery_quietly(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[around]) as runtime:

        async def client(key: str) -> None:
            await (await runtime.submit(around, key=key)).result()

        async with trio.open_nursery() as nursery:
            for key in "abc":
                nursery.start_soon(client, key)
            await trio.sleep(1)
            store.crash()


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_crash_points_take_a_scenario_through_every_crash(
    flow: Any, autojump_clock: MockClock
) -> None:
    async def scenario(runtime: Runtime) -> str:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait_for, runtime, flow)
        return "done"

    tried = 0
    for point in crash_points():
        assert await point.run(scenario, workflows=[flow]) == "done"
        tried += 1
    assert tried > 4


async def wait_for(runtime: Runtime, flow: Any) -> None:
    await (await runtime.submit(flow, key="k", run_id="r")).result()


async def test_the_error_of_the_store_is_the_error_of_the_block(autojump_clock: MockClock) -> None:
    """Without the helpers for tests a caller gets the error itself, not a group."""
    store = MemoryStore()
    with pytest.raises(StoreCrashed):
        async with open_runtime(store, workflows=[around]) as runtime:
            await runtime.submit(around, key="k")
            await trio.sleep(1)
            store.crash()
            await trio.sleep(100)
