"""No condition ends or stalls the process: it is invalid, refused, or answered in time."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from keyrun import Graph
from keyrun.errors import InvalidGraph
from keyrun.runtime.graphs.cel.syntax import DEEPEST
from keyrun.runtime.graphs.condition import Condition
from tests.runtime.graphs import hostile_conditions
from tests.runtime.graphs.hostile_conditions import nothing

SECONDS = 2
"""CPU time of one condition."""
MEGABYTES = 200
"""Growth of the process."""


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
    large = len(hostile_conditions.SLOW) + len(hostile_conditions.LARGE)
    assert len(found) == shaped + large + hostile_conditions.RANDOM
    assert [each for each in found if each["outcome"].startswith("escaped")] == []
    assert [each for each in found if each["seconds"] > SECONDS] == []
    assert found[-1]["peak_mb"] - found[0]["peak_mb"] < MEGABYTES


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
    assert Condition("output" + ".a" * dots + " == 1").holds(value, None, {})


def test_brackets_that_are_nested_too_deep_are_an_error_of_the_graph() -> None:
    graph = Graph("g")
    graph.node("a", nothing)
    graph.node("b", nothing)
    graph.edge("a", "b", when="(" * 90 + "true" + ")" * 90)
    with pytest.raises(
        InvalidGraph, match=f"column 25: brackets are nested more than {DEEPEST} deep"
    ):
        graph.validate()
    quoted = "output.a == '" + "(" * 90 + "'"
    assert not Condition(quoted).holds({"a": "("}, None, {})


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
    assert Condition(condition).holds(None, about, {})
