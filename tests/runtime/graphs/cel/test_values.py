"""Conditions read Python values of many types as data."""

import dataclasses
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any

import attrs
import pytest

from keyrun.errors import ConditionError
from keyrun.runtime.graphs.condition import Condition


@attrs.frozen
class Order:
    amount: int
    tags: tuple[str, ...] = ()


@dataclasses.dataclass
class Item:
    price: float


class Colour(Enum):
    RED = "red"


class Size(StrEnum):
    LARGE = "large"


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("output.amount == 7 && 'new' in output.tags", Order(7, ("new",))),
        ("output.items[0].price < 2.5", {"items": [Item(2.0)]}),
        ("output.all(x, x.amount > 1)", [Order(2), Order(3)]),
        ("output == 'red'", Colour.RED),
        ("output.size == 'large'", {"size": Size.LARGE}),
        ("output.a == 1", OrderedDict(a=1)),
        ("output.a == 1", MappingProxyType({"a": 1})),
        ("output == [1, 2]", (1, 2)),
        ("3 in output", {3}),
        ("output > 1", 2**70),
        ("output.n == 9223372036854775808u", {"n": 2**63}),
        ("output < 2.5", Decimal("1.5")),
        ("output > timestamp('2024-01-01T00:00:00Z')", datetime(2024, 1, 2)),
        ("output.getFullYear() == 2024", datetime(2024, 1, 2, tzinfo=UTC)),
        ("output > duration('1h')", timedelta(hours=2)),
        ("size(output) == 2", bytearray(b"ab")),
    ],
)
def test_a_condition_reads_python_values(source: str, output: Any) -> None:
    assert Condition(source).holds(output, None, {})


@pytest.mark.parametrize(
    ("source", "output", "said"),
    [
        ("output.n > 1", {}, "there is no 'n' in 'output.n > 1'; guard it with has(...)"),
        ("output.n > 1", {"n": True}, "'>' is not defined for bool and int; convert one of them"),
        ("output.n > 1", 5, "a value of type int has no field 'n'"),
        ("output.n > 1", None, "output is null here"),
        ("output.n", {"n": 1}, "gave 1, but a condition must be true or false"),
        ("output.n && true", {"n": 1}, "'&&' requires true or false, got int"),
        ("!output.n", {"n": "a"}, "'!' requires true or false, got string"),
        ("output[3] == 1", [1], "the index 3 is out of range of a list with 1 items"),
        ("output.n / 0 == 1", {"n": 1}, "division by zero"),
        ("output.n * 2 == 1", {"n": 2**62}, "the result 9223372036854775808 is out of the range"),
        ("output.all(x, x)", [1], "all() requires true or false, got int"),
        ("output.all(x, x)", "a", "'all()' is not defined for string"),
        ("int(output) == 1", "x", "'x' cannot be converted to int"),
        ("int(output) == 1", "1" * 500, "a string of 500 characters cannot be converted to int"),
        ("output == 1", object(), "a value of type object cannot be used in a condition"),
        ("'a'.matches(output)", "(", "the pattern '(' has an unclosed '('"),
        ("{1.5: 1} == {}", None, "a map key must be a string or an int, got double"),
    ],
)
def test_an_error_names_the_expression_and_the_reason(source: str, output: Any, said: str) -> None:
    with pytest.raises(ConditionError) as caught:
        Condition(source).holds(output, None, {})
    assert said in str(caught.value)
    assert repr(source) in str(caught.value)
