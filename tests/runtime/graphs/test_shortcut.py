"""Shortcuts answer as CEL does, or not at all."""

from random import Random
from typing import Any

import pytest

from keyrun.errors import ConditionError
from keyrun.runtime.graphs.condition import Condition
from keyrun.runtime.graphs.shortcut import shortcut

VALUES: list[Any] = [
    *(1, 0, -1, 2**53, 2**53 + 1, 2**63, 10**30),
    *(1.5, -0.0, 2.0, float("nan"), float("inf")),
    *("a", "", "b'", True, False, None, b"x"),
    *([], [1], {}, {"v": 1, "w": "a"}),
]
LITERALS = (
    *("1", "0", "-1", "- 1", "1.5", "2.0", "007", "9007199254740993", "1u", "1e3", "0x1"),
    *("'a'", '"b"', "''", "r'a'", "true", "false", "null"),
)


def _path(random: Random) -> str:
    fields = "".join(f".{random.choice('vwx')}" for _ in range(random.choice([0, 1, 1, 1, 2])))
    return random.choice(["output", "input", "outputs"]) + fields


def _simple(random: Random) -> str:
    path, literal = _path(random), random.choice(LITERALS)
    sign = random.choice(["==", "!=", "<", "<=", ">", ">="])
    simple = [f"{path} {sign} {literal}", f"{literal} {sign} {path}", f"{path} {sign} {path}"]
    return random.choices([*simple, f"has({path})", path, literal], [6, 2, 1, 2, 2, 1])[0]


def _expression(random: Random, depth: int) -> str:
    if depth == 0 or random.random() < 0.35:
        return _simple(random)
    one, other = _expression(random, depth - 1), _expression(random, depth - 1)
    shapes = [f"{one} && {other}", f"{one} || {other}", f"!{one}", f"({one})", f"{one} == {other}"]
    return random.choices(shapes, [6, 6, 4, 3, 1])[0]


def _data(random: Random) -> Any:
    nested = [{"v": random.choice(VALUES)}, *random.choices(VALUES, k=3)]
    return {name: random.choice(nested) for name in "vwx" if random.random() < 0.8}


@pytest.mark.parametrize("seed", range(4))
def test_where_both_answer_they_agree(seed: int) -> None:
    random = Random(seed)
    answered = 0
    for _ in range(1500):
        source = _expression(random, 3)
        try:
            condition = Condition.compile(source)
        except ValueError:
            continue
        answer, condition.shortcut = condition.shortcut, None
        if answer is None:
            continue
        for _ in range(4):
            values = {name: _data(random) for name in ("output", "input", "outputs")}
            values["output"] = random.choice([values["output"], random.choice(VALUES)])
            try:
                quick = answer(*values.values())
            except Exception:
                continue
            answered += 1
            try:
                assert condition.holds({**values, "error": None}) is quick, (source, values)
            except ConditionError:
                pytest.fail(f"{source} of {values} has no answer, and was answered {quick}")
    assert answered > 200


@pytest.mark.parametrize(
    "source",
    [
        'output.status == "success" && output.amount > 100',
        "output < 3",
        "100 >= input.total || !(outputs.fetch.ok)",
        "has(output.error) && output.error != null",
        "output.ratio <= 0.5",
    ],
)
def test_usual_conditions_have_one(source: str) -> None:
    assert shortcut(source) is not None


@pytest.mark.parametrize(
    "source",
    [
        *("size(output.items) > 1", "output.a == output.b", 'output["a"] == 1'),
        *("output.a in [1, 2]", "output.items.all(x, x > 1)", "output.a + 1 > 2"),
        *("error.kind == 'x'", r"output.a == 'a\n'", "output.a == 1u", "output.a > 1 == true"),
        *("true", "!output.a == true", "(" * 23 + "output.a" + ")" * 23, "!" * 30 + "output.a"),
    ],
)
def test_what_is_unusual_has_none(source: str) -> None:
    Condition.compile(source)
    assert shortcut(source) is None


def test_what_python_and_cel_see_differently_is_left_to_cel() -> None:
    condition = Condition.compile("output.n > 1")
    about: dict[str, Any] = {"input": None, "outputs": {}, "error": None}
    assert condition.holds({"output": {"n": 2**63}, **about})
    with pytest.raises(ConditionError, match=r"no 'n' in 'output\.n > 1'; guard it with has"):
        condition.holds({"output": {}, **about})
    with pytest.raises(ConditionError, match="cannot be answered"):
        condition.holds({"output": {"n": True}, **about})
