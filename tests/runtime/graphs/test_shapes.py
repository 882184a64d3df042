"""Shapes of graphs: what runs, in which order, and what it is told."""

import trio
from trio.testing import MockClock

from keyrun import Graph, Priority
from tests.runtime.graphs.nodes import SOON, Log, failure_of, result_of


async def test_a_single_node_gives_its_output() -> None:
    log = Log()
    graph = Graph("g")
    graph.node("only", log.node())
    assert await result_of(graph, {"id": 7}) == "only"
    given = log.given["only"]
    assert given.run_input == {"id": 7}
    assert given.output is None
    assert given.outputs == {}
    assert given.iteration == 1


async def test_a_chain_hands_outputs_on() -> None:
    log = Log()
    graph = Graph("g")
    for name in "abc":
        graph.node(name, log.node())
    graph.edge("a", "b")
    graph.edge("b", "c")
    assert await result_of(graph) == "c"
    assert log.begun == ["a", "b", "c"]
    assert log.given["c"].output == "b"
    assert log.given["c"].outputs == {"a": "a", "b": "b"}


def diamond(log: Log, **options: object) -> Graph:
    graph = Graph("diamond", **options)  # type: ignore[arg-type]
    graph.node("start", log.node())
    graph.node("left", log.node(2))
    graph.node("right", log.node(5))
    graph.node("end", log.node())
    graph.edge("start", "left")
    graph.edge("start", "right")
    graph.edge("left", "end")
    graph.edge("right", "end")
    return graph


async def test_a_diamond_runs_its_sides_at_once(autojump_clock: MockClock) -> None:
    log = Log()
    began = trio.current_time()
    assert await result_of(diamond(log)) == "end"
    assert trio.current_time() - began == 5
    assert log.begun == ["start", "left", "right", "end"]
    assert log.given["end"].output == "right"
    assert log.given["end"].outputs["left"] == "left"


async def test_a_fork_with_two_ends_gives_both(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("a", log.node())
    graph.node("b", log.node(1))
    graph.node("c", log.node(2))
    graph.edge("a", "b")
    graph.edge("a", "c")
    assert await result_of(graph) == {"b": "b", "c": "c"}


async def test_an_any_join_starts_with_the_first_and_runs_once(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("slow", log.node(5))
    graph.node("fast", log.node(1))
    graph.node("end", log.node(), join="any")
    graph.edge("slow", "end")
    graph.edge("fast", "end")
    assert await result_of(graph) == "end"
    assert log.lines == ["+slow", "+fast", "-fast", "+end", "-end", "-slow"]
    assert log.given["end"].output == "fast"


async def test_eager_starts_a_node_as_soon_as_its_edges_allow(autojump_clock: MockClock) -> None:
    log = Log()
    await result_of(_two_lanes(log, Graph("g")))
    assert log.at["a2"] == 1
    assert log.at["b2"] == 5
    assert log.at["a3"] == 2


async def test_waves_wait_for_the_whole_level(autojump_clock: MockClock) -> None:
    log = Log()
    await result_of(_two_lanes(log, Graph("g", schedule="waves")))
    assert log.at["a2"] == log.at["b2"] == 5
    assert log.at["a3"] == log.at["b3"] == 10


def _two_lanes(log: Log, graph: Graph) -> Graph:
    for lane, seconds in (("a", 1), ("b", 5)):
        for number in (1, 2, 3):
            graph.node(f"{lane}{number}", log.node(seconds))
        graph.edge(f"{lane}1", f"{lane}2")
        graph.edge(f"{lane}2", f"{lane}3")
    return graph


async def test_one_at_a_time_is_in_order_of_declaration(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g", max_concurrency=1)
    for name in ("d", "c", "b", "a"):
        graph.node(name, log.node(1))
    graph.edge("c", "d")
    await result_of(graph)
    assert log.lines == ["+c", "-c", "+d", "-d", "+b", "-b", "+a", "-a"]


async def test_one_at_a_time_waits_for_retries(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g", max_concurrency=1)
    graph.node("a", log.flaky(2), retry=SOON)
    graph.node("b", log.node(1))
    await result_of(graph)
    assert log.lines == ["+a", "+a", "+a", "-a", "+b", "-b"]
    assert log.at["b"] == 2


async def test_no_more_nodes_than_allowed_are_under_way(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g", max_concurrency=3)
    for number in range(10):
        graph.node(f"n{number}", log.node(1 + number % 3))
    await result_of(graph)
    under_way = most = 0
    for line in log.lines:
        under_way += 1 if line[0] == "+" else -1
        most = max(most, under_way)
    assert most == 3


async def test_nodes_of_higher_priority_go_first() -> None:
    log = Log()
    graph = Graph("g", max_concurrency=1)
    graph.node("low", log.node(), priority=Priority.LOW)
    graph.node("normal", log.node())
    graph.node("high", log.node(), priority=Priority.HIGH)
    await result_of(graph)
    assert log.begun == ["high", "normal", "low"]


async def test_sync_functions_are_nodes_too() -> None:
    def double(given: object) -> int:
        return 2 * given.run_input  # type: ignore[attr-defined, no-any-return]

    graph = Graph("g")
    graph.node("double", double)
    assert await result_of(graph, 21) == 42


async def test_literal_arguments_are_passed_by_name() -> None:
    async def add(a: int, b: int) -> int:
        return a + b

    graph = Graph("g")
    graph.node("add", add, args={"a": 1, "b": 2})
    assert await result_of(graph) == 3


async def test_a_node_has_a_timeout_of_its_own(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("slow", log.node(100), timeout=2, retry=SOON)
    graph.node("beside", log.node(3))
    failure = await failure_of(graph)
    assert failure.kind == "step_timeout"
    assert failure.step == "slow"
    assert log.begun == ["slow", "beside", "slow", "slow"]
    assert log.at["slow"] == 2 * 2 + 2 * 1
