"""Nodes that are held back by `max_waiting` all get their turn, whatever the graph looks like."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, Runtime
from keyrun.events import BackpressureEvent, EventKind
from keyrun.graphs import durable
from keyrun.testing import open_test_runtime

SOON = 1000.0


def _lasting(seconds: float) -> Any:
    async def work(given: NodeInput) -> None:
        await trio.sleep(seconds)

    return work


async def _all_end(graph: Graph, runs: int) -> None:
    async with open_test_runtime(workflows=[graph]) as runtime:
        handles = [await runtime.submit(graph, key=f"k{number}") for number in range(runs)]
        with trio.fail_after(SOON):
            for handle in handles:
                await handle.result()


async def test_two_nodes_that_lead_to_the_same_two_are_let_go_together(
    autojump_clock: MockClock,
) -> None:
    graph = Graph("g")
    graph.node("first", _lasting(0.1))
    graph.node("second", _lasting(0.1))
    for name in ("left", "right"):
        graph.node(name, _lasting(1), max_concurrent=1, max_waiting=1)
        graph.edge("first", name)
        graph.edge("second", name)
    await _all_end(graph, 8)


@pytest.mark.parametrize("most", [None, 1])
async def test_a_node_may_lead_to_more_than_may_wait(
    most: int | None, autojump_clock: MockClock
) -> None:
    graph = Graph("g", max_concurrency=most)
    consume = _lasting(1)
    for source in ("first", "second"):
        graph.node(source, _lasting(0))
        for number in range(3):
            graph.node(f"{source}-{number}", consume, max_concurrent=1, max_waiting=2)
            graph.edge(source, f"{source}-{number}")
    await _all_end(graph, 3)


@pytest.mark.parametrize("seed", [4, 7, 17, 33, 138, 143, 146, 148, 227, 344])
async def test_runs_do_not_wait_for_each_others_places(
    seed: int, autojump_clock: MockClock
) -> None:
    random = Random(seed)
    sources, targets = random.randint(2, 4), random.randint(2, 3)
    graph = Graph("g", max_concurrency=random.choice([None, None, 1, 2]))
    for number in range(sources):
        graph.node(f"s{number}", _lasting(random.choice([0, 0.1, 1, 3])))
    for number in range(targets):
        seconds, most = random.choice([0.5, 1, 2]), random.choice([1, 1, 2])
        join: Any = random.choice(["all", "all", "any"])
        work = _lasting(seconds)
        graph.node(f"x{number}", work, max_concurrent=1, max_waiting=most, join=join)
    for number in range(targets):
        for source in random.sample(range(sources), random.randint(1, sources)):
            graph.edge(f"s{source}", f"x{number}")
    if random.random() < 0.5:
        graph.node("z", _lasting(0.7), max_concurrent=1, max_waiting=1)
        for number in random.sample(range(targets), random.randint(1, targets)):
            graph.edge(f"x{number}", "z")
    await _all_end(graph, 10)


@asynccontextmanager
async def _listening(runtime: Runtime) -> AsyncIterator[list[BackpressureEvent]]:
    heard: list[BackpressureEvent] = []
    kinds = [EventKind.BACKPRESSURE_BEGAN, EventKind.BACKPRESSURE_ENDED]

    async def listen(task_status: "trio.TaskStatus[None]") -> None:
        async with runtime.events(kinds=kinds) as events:
            task_status.started()
            async for event in events:
                assert isinstance(event, BackpressureEvent)
                heard.append(event)

    async with trio.open_nursery() as nursery:
        await nursery.start(listen)
        yield heard
        await trio.sleep(1)
        nursery.cancel_scope.cancel()


@durable
async def _code(ctx: Context, given: NodeInput) -> None:
    await ctx.sleep(0.01)


def _two(up: Any, down: Any) -> Graph:
    graph = Graph("flow")
    graph.node("up", up)
    graph.node("down", down, max_concurrent=1, max_waiting=3)
    graph.edge("up", "down")
    return graph


@pytest.mark.parametrize("up", [_lasting(0.01), _code])
async def test_a_node_that_is_held_back_tells_of_backpressure_once_until_none_is(
    autojump_clock: MockClock, up: Any
) -> None:
    graph = _two(up, _lasting(40))
    async with open_test_runtime(workflows=[graph]) as runtime, _listening(runtime) as heard:
        runs = [await runtime.submit(graph, key=f"k{n}", run_id=f"r{n}") for n in range(12)]
        await trio.sleep(0.1)
        (began,) = heard
        assert began.kind is EventKind.BACKPRESSURE_BEGAN
        assert (began.run_id, began.key, began.workflow) == ("r3", "k3", "flow")
        assert (began.step, began.held) == ("down", "up")
        assert (began.depth, began.waited, began.duration) == (3, 0.0, None)
        await trio.sleep(99.9)
        status = next(each for each in runtime.statistics().gates if each.step == "down")
        assert (status.running, status.held, status.saturations) == (1, 6, 1)
        assert status.seconds_saturated == pytest.approx(100, abs=0.2)
        assert runtime.statistics().backlog.saturations == 0
        for run in runs:
            await run.result()
        _, ended = heard
        assert ended.kind is EventKind.BACKPRESSURE_ENDED
        assert (ended.workflow, ended.step, ended.held) == ("flow", "down", "up")
        # The first of 12 calls begins at once, and four are past "up" then.
        assert ended.duration == pytest.approx(8 * 40, abs=1)
        assert ended.waited == pytest.approx(8 * 40, abs=1)
        status = next(each for each in runtime.statistics().gates if each.step == "down")
        assert status.held == 0
        assert status.seconds_saturated == pytest.approx(ended.duration)


async def test_backpressure_of_a_node_is_over_when_the_run_that_is_held_back_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    graph = _two(_lasting(0.01), _lasting(40))
    async with open_test_runtime(workflows=[graph]) as runtime, _listening(runtime) as heard:
        runs = [await runtime.submit(graph, key=f"k{n}") for n in range(5)]
        await trio.sleep(5)
        assert await runs[4].cancel()
        await trio.sleep(1)
    assert [event.kind for event in heard] == [
        EventKind.BACKPRESSURE_BEGAN,
        EventKind.BACKPRESSURE_ENDED,
    ]


async def test_nobody_is_told_of_backpressure_where_all_have_room(
    autojump_clock: MockClock,
) -> None:
    graph = _two(_lasting(0.01), _lasting(40))
    async with open_test_runtime(workflows=[graph]) as runtime, _listening(runtime) as heard:
        for run in [await runtime.submit(graph, key=f"k{n}") for n in range(3)]:
            await run.result()
    assert heard == []
