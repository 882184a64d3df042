"""No condition ends or stalls the process: it is invalid, refused, or answered in time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from keyrun import Graph
from keyrun.errors import InvalidGraph
from keyrun.runtime.graphs.condition import DEEPEST, Condition
from tests.runtime.graphs import hostile_conditions
from tests.runtime.graphs.hostile_conditions import nothing

SECONDS = 10


def test_no_condition_ends_or_stalls_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.graphs.hostile_conditions"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    shaped = len(list(hostile_conditions.shaped()))
    assert len(found) == shaped + len(hostile_conditions.SLOW) + hostile_conditions.RANDOM
    assert [each for each in found if each["outcome"].startswith("escaped")] == []
    assert [each for each in found if each["seconds"] > SECONDS] == []


@pytest.mark.parametrize("dots", [50, 99, 100, 250, 490])
def test_a_path_may_be_as_long_as_a_condition(dots: int) -> None:
    graph = Graph("g")
    graph.node("a", nothing)
    graph.node("b", nothing)
    graph.edge("a", "b", when="output" + ".a" * dots + " == 1")
    graph.validate()
    value: object = 1
    for _ in range(dots):
        value = {"a": value}
    condition = Condition.compile("output" + ".a" * dots + " == 1")
    assert condition.holds({"output": value, "input": None, "outputs": {}, "error": None})


def test_brackets_that_are_nested_too_deep_are_an_error_of_the_graph() -> None:
    graph = Graph("g")
    graph.node("a", nothing)
    graph.node("b", nothing)
    graph.edge("a", "b", when="(" * 90 + "true" + ")" * 90)
    with pytest.raises(InvalidGraph, match=f"nested 90 deep, and may be nested {DEEPEST} deep"):
        graph.validate()
    quoted = "output.a == '" + "(" * 90 + "'"
    assert not Condition.compile(quoted).holds(
        {"output": {"a": "("}, "input": None, "outputs": {}, "error": None}
    )


@pytest.mark.parametrize(
    "condition",
    [
        "input.words.exists(x, x.matches('^w[0-9]+$'))",
        "input.words.all(x, x.startsWith('w'))",
        "input.words.exists(x, x == input.wanted)",
        "size(input.words) > 100 && input.wanted in input.words",
        "input.a + input.a > 1",
        r"input.wanted.matches('^\\w+$')",
    ],
)
def test_conditions_of_the_usual_kind_are_answered(condition: str) -> None:
    words = [f"w{at}" for at in range(1000)]
    about = {"words": words, "wanted": "w7", "a": 1}
    answer = Condition.compile(condition)
    assert answer.holds({"output": None, "input": about, "outputs": {}, "error": None})
