"""The `switch` node: the first case that is true, in code and in files."""

from collections.abc import Callable
from typing import Any

import pytest

from keyrun import Graph, NodeInput, Runtime
from keyrun.flows import parse, switch
from keyrun.testing import crash_points, open_test_runtime
from tests.flows.test_files import run_flow

done: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


async def same(given: NodeInput) -> Any:
    done.append(given.port or "same")
    return given.output


CASES = {"large": "output > 100", "small": "output > 10", "even": "output % 2 == 0"}


def in_python() -> Graph:
    graph = Graph("sizes")
    graph.node("give", give)
    graph.node("size", switch(CASES))
    graph.edge("give", "size")
    for port in (*CASES, "default"):
        graph.node(port, same)
        graph.edge("size", port, port=port)
    return graph


def in_yaml() -> Graph:
    cases = "".join(f"\n      - {{port: {port}, when: {when}}}" for port, when in CASES.items())
    ports = (*CASES, "default")
    nodes = "".join(f"\n  {port}: {{kind: call, function: same}}" for port in ports)
    edges = "".join(f"\n  - {{from: size, to: {port}, port: {port}}}" for port in ports)
    return parse(
        "name: sizes\nnodes:\n  give: {kind: call, function: give}"
        f"\n  size:\n    kind: switch\n    cases:{cases}{nodes}"
        f"\nedges:\n  - {{from: give, to: size}}{edges}",
        functions=[give, same],
    )


async def give(given: NodeInput) -> Any:
    return given.run_input


@pytest.mark.parametrize(
    ("value", "port"), [(200, "large"), (50, "small"), (4, "even"), (5, "default")]
)
@pytest.mark.parametrize("made", [in_python, in_yaml])
async def test_the_first_case_that_is_true_is_taken(
    made: Callable[[], Graph], value: int, port: str
) -> None:
    assert await run_flow(made(), value) == {port: value}
    assert done == [port]


async def test_a_condition_that_fails_fails_the_node_and_names_what_is_missing() -> None:
    graph = Graph("missing")
    graph.node("size", switch({"large": "input.total > 100"}))
    with pytest.raises(Exception, match="total") as caught:
        await run_flow(graph, {})
    assert "size" in str(caught.value)


@pytest.mark.parametrize(
    ("cases", "expected"),
    [
        ({}, "cases must have at least one port"),
        ({"default": "true"}, "the port 'default' is taken if no condition is true"),
        ({"a": "output >"}, "output >"),
    ],
)
def test_wrong_cases_are_refused(cases: dict[str, str], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        switch(cases)


async def test_a_crash_at_any_commit_takes_the_same_port(autojump_clock: object) -> None:
    graph = in_yaml()

    async def scenario(runtime: Runtime) -> Any:
        return await (await runtime.submit(graph, 50, key="k", run_id="r")).result()

    points = 0
    for point in crash_points():
        points += 1
        done.clear()
        assert await point.run(scenario, workflows=[graph]) == {"small": 50}, point
        assert len(done) <= 1 + point.crashes
    assert points > 5


async def test_the_edges_of_the_port_are_drawn_as_taken() -> None:
    graph = in_yaml()
    async with open_test_runtime(workflows=[graph]) as runtime:
        await (await runtime.submit(graph, 50, key="k", run_id="r")).result()
        drawn = await runtime.execution_graph("r")
    assert drawn is not None
    taken = {edge.target for edge in drawn.edges if edge.source == "size" and edge.taken}
    assert taken == {"small"}
