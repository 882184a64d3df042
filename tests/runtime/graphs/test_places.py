"""Nodes that are held back by `max_waiting` all get their turn, whatever the graph looks like."""

from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun.runtime import Graph, NodeInput
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
