"""An evaluation stops when its budget of operations is used up, whatever uses it up."""

from typing import Any

import pytest

from keyrun import Graph, NodeInput
from keyrun.errors import ConditionError
from keyrun.runtime.graphs.condition import Condition
from tests.runtime.graphs.nodes import Log, failure_of


def _holds(source: str, items: int) -> bool:
    output: Any = {"l": list(range(items)), "t": "é" * items, "p": "(é|b)" * min(items, 150)}
    return Condition(source).holds(output, None, {})


@pytest.mark.parametrize(
    ("source", "few", "many"),
    [
        ("output.l.all(x, output.l.exists(y, y == x))", 200, 2000),
        ("output.l.all(x, output.l.exists_one(y, y == x))", 200, 2000),
        ("output.l.all(a, output.l.all(b, output.l.all(c, c >= 0)))", 20, 200),
        ("output.l.all(x, size(output.l.filter(y, y > 1)) > 0)", 200, 2000),
        ("output.l.all(x, size(output.l.map(y, [y])) > 0)", 200, 2000),
        ("output.l.all(x, x in output.l)", 500, 5000),
        ("output.l.all(x, output.l == output.l)", 500, 5000),
        ("output.l.all(x, {'a': output.l} == {'a': output.l})", 500, 5000),
        ("output.l.all(x, size(output.l + output.l) > 0)", 500, 5000),
        ("output.l.all(x, size(output.t + output.t) > 0)", 500, 50_000),
        ("output.l.all(x, output.t == output.t)", 500, 50_000),
        ("output.l.all(x, output.t <= output.t)", 500, 50_000),
        ("output.l.all(x, output.t.contains('éb') || true)", 500, 50_000),
        ("output.l.all(x, output.t.startsWith(output.t))", 500, 50_000),
        ("output.l.all(x, output.t.endsWith(output.t))", 500, 50_000),
        ("output.l.all(x, size(bytes(output.t)) > 0)", 500, 50_000),
        ("output.l.all(x, output.t.matches('^é*$'))", 100, 5000),
        ("output.l.all(x, 'é'.matches(output.p) || true)", 20, 5000),
    ],
)
def test_work_that_grows_faster_than_the_data_is_for_small_data(
    source: str, few: int, many: int
) -> None:
    assert _holds(source, few)
    with pytest.raises(ConditionError, match=r"more than 3,000,000 operations .* in a node"):
        _holds(source, many)


@pytest.mark.parametrize(
    "source",
    [
        "output.l.all(x, x >= 0)",
        "output.l.exists(x, x == 99)",
        "99 in output.l && size(output.l) > 9",
        "size(output.l.filter(x, x % 2 == 0)) > 9",
        "size(output.l.map(x, x + 1)) > 9",
    ],
)
def test_a_single_loop_is_for_long_lists(source: str) -> None:
    assert _holds(source, 100_000)


def test_the_conversion_of_a_tuple_counts() -> None:
    condition = Condition("output.a.all(x, output.a[0] == 0)")
    assert condition.holds({"a": (0,) * 500}, None, {})
    with pytest.raises(ConditionError, match="operations"):
        condition.holds({"a": (0,) * 5000}, None, {})


def test_only_the_operations_that_run_count() -> None:
    assert _holds("output.l.exists(x, output.l.exists(y, y == x))", 100_000)


def test_lists_in_the_expression_count_too() -> None:
    deep = "true"
    for name in "abcdefgh":
        deep = f"[0, 1, 2, 3, 4, 5, 6, 7, 8, 9].all({name}, {deep})"
    with pytest.raises(ConditionError, match="operations"):
        _holds(deep, 1)


def test_an_operator_does_not_hide_that_the_budget_is_used_up() -> None:
    with pytest.raises(ConditionError, match="operations"):
        _holds("output.l.all(x, output.l.all(y, y >= 0)) || true", 3000)


async def test_the_error_names_the_edge() -> None:
    log = Log()

    async def many(given: NodeInput) -> list[int]:
        return list(range(5000))

    graph = Graph("g")
    graph.node("many", many)
    graph.node("next", log.node())
    graph.edge("many", "next", when="output.all(x, output.exists(y, y == x))")
    failure = await failure_of(graph)
    assert "edge 'many' -> 'next'" in failure.reason
    assert "more than 3,000,000 operations" in failure.reason
