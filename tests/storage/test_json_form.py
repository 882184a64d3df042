"""JSON at untyped places keeps types, and JSON at typed places becomes what the type says."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, NewType, TypedDict
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import pytest
from hypothesis import given
from pydantic import BaseModel, Field

from keyrun.storage import PayloadCodec
from keyrun.storage.json_form import from_json, to_json
from keyrun.storage.misfit import PayloadError
from tests.storage.models import Colour
from tests.storage.values import same, values

CODEC = PayloadCodec()


def wire(value: Any) -> Any:
    """What another program gets and sends back."""
    return json.loads(json.dumps(to_json(value), allow_nan=False))


def without_zone_names(value: Any) -> Any:
    """Leave out what the JSON form does not keep."""
    if isinstance(value, list | tuple):
        return type(value)(map(without_zone_names, value))
    if isinstance(value, dict):
        return {key: without_zone_names(item) for key, item in value.items()}
    if isinstance(value, datetime) and not isinstance(value.tzinfo, ZoneInfo):
        return datetime.fromisoformat(value.isoformat())
    return value


def moments(value: Any) -> Any:
    """Leave the zone of a time out, whose offset may be ambiguous."""
    if isinstance(value, list | tuple):
        return type(value)(map(moments, value))
    if isinstance(value, dict):
        return {key: moments(item) for key, item in value.items()}
    if isinstance(value, datetime) and isinstance(value.tzinfo, ZoneInfo):
        return (value.tzinfo.key, value.timestamp() if value.year > 1 else None)
    return value


@given(values)
def test_each_plain_value_comes_back_with_its_type(value: Any) -> None:
    expected = without_zone_names(value)
    assert same(moments(without_zone_names(from_json(wire(value)))), moments(expected))


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (b"\x00\xff", {"$bytes": "AP8="}),
        ((1, "a"), {"$tuple": [1, "a"]}),
        (2**53, 2**53),
        (2**53 + 1, {"$int": "9007199254740993"}),
        (-(2**60), {"$int": "-1152921504606846976"}),
        (math.inf, {"$float": "inf"}),
        (Decimal("1.20"), {"$decimal": "1.20"}),
        (date(2026, 1, 31), {"$date": "2026-01-31"}),
        (datetime(2026, 1, 31, tzinfo=UTC), {"$datetime": "2026-01-31T00:00:00+00:00"}),
        (
            datetime(2026, 7, 1, tzinfo=ZoneInfo("Europe/Berlin")),
            {"$datetime": "2026-07-01T00:00:00+02:00[Europe/Berlin]"},
        ),
        (UUID(int=1), {"$uuid": "00000000-0000-0000-0000-000000000001"}),
        ({"$bytes": "x"}, {"$dict": {"$bytes": "x"}}),
        ({"$bytes": 1, "b": 2}, {"$bytes": 1, "b": 2}),
        ({"$other": 1}, {"$other": 1}),
        ({"$dict": {"a": 1}}, {"$dict": {"$dict": {"a": 1}}}),
    ],
)
def test_what_json_does_not_have_is_an_object_with_one_key(value: Any, form: Any) -> None:
    assert to_json(value) == form
    assert same(from_json(form), value)


@attrs.frozen
class Line:
    sku: str
    price: Decimal
    _hidden: int = 0

    def __attrs_post_init__(self) -> None:
        if self.price < 0:
            raise ValueError("a price is never negative")


@dataclass
class Order:
    lines: list[Line]
    at: datetime
    day: date | None = None
    raw: bytes = b""
    weight: float = 0.0
    tags: frozenset[str] = frozenset()
    extra: dict[str, UUID] | None = None
    colour: Colour = Colour.RED


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Movie(TypedDict):
    title: str
    seen: date


class Kind(Enum):
    SMALL = Decimal(1)
    LARGE = "large"


class Model(BaseModel):
    at: datetime
    amount: Annotated[Decimal, Field(gt=0)]


UserId = NewType("UserId", int)
AT = datetime(2026, 1, 31, 14, tzinfo=UTC)

TYPED = [
    (int, 5, 5),
    (float, 5, 5.0),
    (float, {"$float": "nan"}, math.nan),
    (str, "x", "x"),
    (bytes, "AP8=", b"\x00\xff"),
    (bytes, {"$bytes": "AP8="}, b"\x00\xff"),
    (datetime, "2026-01-31T14:00:00Z", AT),
    (date, "2026-01-31", date(2026, 1, 31)),
    (Decimal, "1.20", Decimal("1.20")),
    (UUID, "00000000-0000-0000-0000-000000000001", UUID(int=1)),
    (datetime | None, "2026-01-31T14:00:00Z", AT),
    (datetime | None, None, None),
    (datetime | str, "2026-01-31T14:00:00Z", "2026-01-31T14:00:00Z"),
    (int | None, None, None),
    (list, [1, {"$bytes": "AP8="}], [1, b"\x00\xff"]),
    (list[Decimal], ["1", "2"], [Decimal(1), Decimal(2)]),
    (Sequence[int], [1], [1]),
    (tuple, [1, 2], (1, 2)),
    (tuple[int, ...], [1, 2], (1, 2)),
    (tuple[int, Decimal], [1, "2"], (1, Decimal(2))),
    (tuple[int, Decimal], {"$tuple": [1, "2"]}, (1, Decimal(2))),
    (set[int], [2, 1], {1, 2}),
    (frozenset[date], ["2026-01-31"], frozenset({date(2026, 1, 31)})),
    (dict[str, bytes], {"a": "AP8="}, {"a": b"\x00\xff"}),
    (Mapping[Colour, int], {}, {}),
    (Literal["a", 1], "a", "a"),
    (Kind, "1", Kind.SMALL),
    (Kind, "large", Kind.LARGE),
    (UserId, 7, 7),
    (Annotated[Decimal, "price"], "7", Decimal(7)),
    (Line, {"sku": "pen", "price": "2.50", "_hidden": 3}, Line("pen", Decimal("2.50"), 3)),
    (Point, {"x": 1, "y": 2}, Point(1, 2.0)),
    (Point, {"x": 1}, Point(1)),
    (Movie, {"title": "M", "seen": "2026-01-31"}, Movie(title="M", seen=date(2026, 1, 31))),
    (Line | Point, {"x": 1}, Point(1)),
    (Line | Point, ["Point", {"x": 1}], Point(1)),
    (Any, {"$float": "5"}, 5.0),
    (float, {"$float": "-1.5e-7"}, -1.5e-7),
    (Order | None, None, None),
    (
        Order,
        {"lines": [{"sku": "pen", "price": "1"}], "at": "2026-01-31T14:00:00Z", "tags": ["b", "a"]},
        Order([Line("pen", Decimal(1))], AT, tags=frozenset({"a", "b"})),
    ),
    (
        Model,
        {"at": "2026-01-31T14:00:00Z", "amount": "1.20"},
        Model(at=AT, amount=Decimal("1.20")),
    ),
    (Any, {"a": {"$decimal": "1"}}, {"a": Decimal(1)}),
]


@pytest.mark.parametrize(("declared", "data", "value"), TYPED, ids=lambda each: str(each)[:30])
def test_json_at_a_typed_place_is_the_same_input_as_the_value(
    declared: Any, data: Any, value: Any
) -> None:
    read = CODEC.read(json.loads(json.dumps(data)), declared)
    assert type(read) is type(value)
    assert CODEC.canonical(read, declared) == CODEC.canonical(value, declared)


@pytest.mark.parametrize(
    ("declared", "data", "said"),
    [
        (int, "5", "value: expected int, got a str"),
        (int, 5.5, "value: expected int, got a float"),
        (str, 5, "value: expected str, got an int"),
        (bytes, "not base64!", "value: 'not base64!' is not the text of a bytes"),
        (datetime, "2026-01-31T14:00:00", "requires a time zone"),
        (datetime, "soon", "value: 'soon' is not the text of a datetime"),
        (datetime, "2026-01-31T14:00:00Z[Nowhere/Else]", "time zone 'Nowhere/Else' is unknown"),
        (Decimal, "one", "value: 'one' is not the text of a Decimal: it is not a decimal number"),
        (list[int], [1, "x"], "value[1]: expected int, got a str"),
        (list[int], {"a": 1}, "value: expected an array for list[int]"),
        (tuple[int, int], [1], "value: expected tuple[int, int], got an array of 1"),
        (dict[str, int], [], "value: expected dict[str, int], got a list"),
        (dict[str, int], {"a": "x"}, 'value["a"]: expected int, got a str'),
        (Literal["a"], "b", "value: expected Literal['a'], got a str"),
        (Kind, "medium", "value: expected one of {'$decimal': '1'}, 'large', got 'medium'"),
        (Line, {"sku": "pen"}, "value.price: this field is required"),
        (Line, {"sku": "a", "price": "1", "skew": 1}, "no field 'skew'; its fields are sku, price"),
        (Line, {"sku": "a", "price": "-1"}, "rejects these fields: a price is never negative"),
        (Line, "pen", "value: expected an object for Line, got 'pen'"),
        (Order, {"lines": [{"sku": 1, "price": "1"}]}, "value.lines[0].sku: expected str"),
        (Movie, {"title": "M"}, "value: Movie requires the item 'seen', which is missing"),
        (Movie, {"title": "M", "seen": "x"}, "value[\"seen\"]: 'x' is not the text of a date"),
        (Model, {"at": "2026-01-31T14:00:00Z", "amount": "0"}, "value.amount: Input should be"),
        (Line | Point, {"x": 1, "y": "2"}, "value"),
        (int | list[int], ["1"], "value[0]: expected int, got a str"),
        (Any, [{"$int": "x"}], "value[0][\"$int\"]: 'x' is not the text of a int"),
        (Any, {"$tuple": 5}, 'value["$tuple"]: expected an array, got 5'),
        (Any, {"$bytes": 5}, 'value["$bytes"]: expected the text of a bytes, got 5'),
        (Any, {"a": {"$float": "1_0"}}, "it must be a number, 'nan', 'inf' or '-inf'"),
        (Any, {"$float": "1e999"}, "it must be a number, 'nan', 'inf' or '-inf'"),
        (Any, {"$int": " 5"}, "it must be an integer of at most 20 digits"),
        (Line | Point, ["Line", {"sku": "a"}], "value[1].price: this field is required"),
        (None, 5, "value: expected None, got an int"),
    ],
)
def test_json_that_does_not_fit_is_refused_with_its_place(
    declared: Any, data: Any, said: str
) -> None:
    with pytest.raises(PayloadError) as refused:
        CODEC.read(data, declared)
    assert said in str(refused.value)


def test_json_that_nests_too_deep_is_refused() -> None:
    data: Any = []
    for _ in range(100_000):
        data = [data]
    with pytest.raises(PayloadError, match="nests too deep"):
        CODEC.read(data)


def test_fixed_offsets_keep_their_offset() -> None:
    moment = datetime(2026, 1, 31, tzinfo=timezone(timedelta(hours=5, minutes=45), "here"))
    assert from_json(wire(moment)) == moment
