"""Validation: all that is wrong with a graph is said at once, before any run begins."""

import sys
from itertools import pairwise
from typing import Any

import pytest

from keyrun import Graph, NodeInput
from keyrun.errors import InvalidGraph
from keyrun.runtime.graphs.condition import Condition
from keyrun.testing import open_test_runtime


async def node(given: NodeInput) -> None:
    """Does nothing."""


def errors_of(graph: Graph) -> list[str]:
    with pytest.raises(InvalidGraph) as caught:
        graph.validate()
    assert isinstance(caught.value, ValueError)
    for error in caught.value.errors:
        assert error in str(caught.value)
    return list(caught.value.errors)


def chain(*names: str) -> Graph:
    graph = Graph("g")
    for name in names:
        graph.node(name, node)
    for source, target in pairwise(names):
        graph.edge(source, target)
    return graph


async def test_an_invalid_graph_is_refused_where_it_is_registered() -> None:
    graph = chain("a")
    graph.edge("a", "b")
    with pytest.raises(InvalidGraph, match="there is no node 'b'"):
        async with open_test_runtime(workflows=[graph]):
            pass


def test_all_errors_are_reported_at_once() -> None:
    graph = chain("a", "b")
    graph.node("a", node)
    graph.edge("a", "nowhere")
    graph.edge("a", "b", port="left")
    graph.edge("a", "b", when="output ==")
    graph.node("odd", "no function")
    errors = errors_of(graph)
    assert len(errors) == 5
    assert "node 'a': 2 nodes have this name; give each node its own name" in errors
    assert any("there is no node 'nowhere'" in error for error in errors)
    assert any("has no port 'left'" in error for error in errors)
    assert any("line 1, column 10" in error for error in errors)
    assert any("requires a function" in error for error in errors)


def test_a_cycle_is_shown_with_the_way_around() -> None:
    graph = chain("a", "b", "c")
    graph.edge("c", "b")
    graph.node("d", node)
    graph.edge("c", "d")
    errors = errors_of(graph)
    assert errors == [
        "edge 'c' -> 'b': 'b' -> 'c' -> 'b' is a cycle; add back=True to the edge that begins the "
        "next turn",
        "node 'd': it cannot be reached: the cycle 'b' -> 'c' -> 'b' is before it",
    ]


def test_a_node_that_leads_to_itself_is_a_cycle() -> None:
    graph = chain("a")
    graph.edge("a", "a")
    assert errors_of(graph)[0].startswith("edge 'a' -> 'a': 'a' -> 'a' is a cycle")


def test_a_back_edge_must_lead_back() -> None:
    graph = chain("a", "b")
    graph.edge("a", "b", back=True)
    (error,) = errors_of(graph)
    assert "no path leads from 'b' to 'a'" in error


def test_an_empty_graph_cannot_be_run() -> None:
    assert "no nodes" in errors_of(Graph("g"))[0]


@pytest.mark.parametrize("limit", [0, -1])
def test_limits_must_be_positive(limit: int) -> None:
    graph = Graph("g", max_concurrency=limit)
    graph.node("a", node, timeout=limit)
    graph.edge("a", "a", back=True, max_iterations=limit)
    errors = errors_of(graph)
    assert f"max_concurrency must be at least 1, got {limit}" in errors
    assert f"node 'a': timeout must be positive, got {limit}" in errors
    assert any(f"max_iterations must be at least 1, got {limit}" in error for error in errors)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("output.status ==", "line 1, column 17"),
        ("1 +* 2", "line 1, column 4"),
        ("output.a &&\n  (output.b ==", "line 2, column 15"),
        ("status == 1", "line 1, column 1: there is no name 'status'; a condition can use output"),
        ("output.a.exists(x, x == y)", "line 1, column 25: there is no name 'y'"),
    ],
)
def test_a_bad_expression_is_shown_with_its_position(when: str, said: str) -> None:
    graph = chain("a")
    graph.node("b", node)
    graph.edge("a", "b", when=when)
    errors = errors_of(graph)
    assert all("edge 'a' -> 'b'" in error for error in errors)
    assert any(said in error for error in errors), errors


@pytest.mark.parametrize("name", ["", "a/b", "a#2", "a()", "x" * 201])
def test_a_node_needs_a_name_that_a_step_can_have(name: str) -> None:
    graph = Graph("g")
    graph.node(name, node)
    assert "name must be 1 to 200 bytes" in errors_of(graph)[0]


def test_functions_must_take_what_they_are_given() -> None:
    async def nothing() -> None:
        pass

    async def named(a: int) -> None:
        pass

    graph = Graph("g")
    graph.node("nothing", nothing)
    graph.node("named", named, args={"b": 1})
    errors = errors_of(graph)
    assert "called with one NodeInput" in errors[0]
    assert "called with the arguments in args" in errors[1]


def test_a_failing_node_leaves_by_no_port() -> None:
    graph = Graph("g")
    graph.node("a", node, ports=("p",))
    graph.node("b", node)
    graph.edge("a", "b", on="fail", port="p")
    assert "leaves by no port" in errors_of(graph)[0]


def test_the_same_edge_twice_is_an_error() -> None:
    graph = chain("a", "b")
    graph.edge("a", "b")
    assert "declared 2 times" in errors_of(graph)[0]


def test_a_condition_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cel", None)
    graph = chain("a")
    graph.node("b", node)
    graph.edge("a", "b", when="output.n > 1")
    graph.validate()


async def test_a_graph_in_use_does_not_change() -> None:
    graph = chain("a")
    async with open_test_runtime(workflows=[graph]):
        pass
    with pytest.raises(RuntimeError, match="in use"):
        graph.node("b", node)


@pytest.mark.parametrize("limit", ["2", 1.5, True])
def test_limits_must_be_whole_numbers(limit: Any) -> None:
    graph = Graph("g", max_concurrency=limit, max_output=limit)
    graph.node("a", node)
    graph.edge("a", "a", back=True, max_iterations=limit)
    errors = errors_of(graph)
    assert f"max_concurrency must be a whole number, got {limit!r}" in errors
    assert f"max_output must be a whole number, got {limit!r}" in errors
    assert any(f"max_iterations must be a whole number, got {limit!r}" in e for e in errors)


def test_what_is_of_another_type_is_refused_where_it_is_said() -> None:
    with pytest.raises(TypeError, match="resources must be a Resources, got 5"):
        Graph("g", resources=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="retry must be a Retry, got 3"):
        Graph("g", retry=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="instances must be a whole number"):
        Graph("g", instances="2")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="ports must be a list of names, got 'yes'"):
        chain("a").node("b", node, ports="yes")


def test_odd_words_are_refused_where_they_are_said() -> None:
    with pytest.raises(ValueError, match="schedule must be"):
        Graph("g", schedule="sometimes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on must be"):
        chain("a").edge("a", "b", on="open")  # type: ignore[arg-type]


def test_conditions_are_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    initialize = Condition.__init__

    def counted(condition: Condition, source: str) -> None:
        compiled.append(source)
        initialize(condition, source)

    monkeypatch.setattr(Condition, "__init__", counted)
    graph = chain("a")
    graph.node("b", node)
    graph.edge("a", "b", when="true")
    graph.registered(None)
    at_first = len(compiled)
    _ = graph.plan, graph.plan
    graph.registered(None)
    assert len(compiled) == at_first
