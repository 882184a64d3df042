"""No condition stops the process for long, however long the lists that it is given."""

from typing import Any

import pytest

from keyrun import Graph, NodeInput
from keyrun.errors import ConditionError
from keyrun.runtime.graphs.condition import Condition
from tests.runtime.graphs.nodes import Log, failure_of

LISTED = '"a.map(x, y)" in output.l && output.l.all(x, x >= 0)'


def _holds(source: str, items: int) -> bool:
    about: dict[str, Any] = {"input": None, "outputs": {}, "error": None}
    return Condition.compile(source).holds({"output": {"l": list(range(items))}, **about})


@pytest.mark.parametrize(
    ("source", "few", "many"),
    [
        ("output.l.all(x, output.l.exists(y, y == x))", 200, 2000),
        ("output.l.exists(a, output.l.all(b, output.l.all(c, c < 99)))", 20, 200),
        ("size(output.l.filter(x, x > 1)) > 0", 500, 50_000),
        ("size(output.l.map(x, output.l)) > 0", 30, 3000),
        ("output.l.all(x, x in output.l)", 500, 50_000),
        ("output.l.all(x, output.l == output.l)", 500, 50_000),
        ("(output.l + output.l).all(x, (output.l + output.l).exists(y, y == x))", 50, 1500),
    ],
)
def test_a_loop_in_a_loop_is_for_short_lists(source: str, few: int, many: int) -> None:
    assert _holds(source, few)
    with pytest.raises(ConditionError, match=r"turns for lists of .* work it out in a node"):
        _holds(source, many)


@pytest.mark.parametrize(
    "source",
    [
        "output.l.all(x, x >= 0)",
        "output.l.exists(x, x == 99)",
        "99 in output.l && size(output.l) > 9",
    ],
)
def test_one_loop_is_for_lists_of_any_length(source: str) -> None:
    assert _holds(source, 100_000)


def test_a_text_is_no_loop() -> None:
    assert not _holds(LISTED, 50_000)


def test_literals_count_too() -> None:
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    deep = "true"
    for name in "abcdefgh":
        deep = f"{ten}.all({name}, {deep})"
    with pytest.raises(ConditionError, match="turns"):
        _holds(deep, 1)


async def test_an_edge_says_which_condition_it_is() -> None:
    log = Log()

    async def many(given: NodeInput) -> list[int]:
        return list(range(5000))

    graph = Graph("g")
    graph.node("many", many)
    graph.node("next", log.node())
    graph.edge("many", "next", when="output.all(x, output.exists(y, y == x))")
    failure = await failure_of(graph)
    assert "edge 'many' -> 'next'" in failure.reason
    assert "turns for lists of 5,000 items" in failure.reason
