import copy
import typing
from collections.abc import Iterable, Mapping, MutableSet, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    Optional,
    Union,
)

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keyrun.storage.payload import (
    PayloadCodec,
    PayloadMismatch,
    PayloadTypeError,
)
from tests.storage.models import (
    LINE,
    MIXED,
    ORDER,
    Bare,
    BigOrderLine,
    Box,
    Colour,
    Converted,
    Crossed,
    Derived,
    IntBox,
    Lazy,
    LazyOpen,
    Level,
    Line,
    Loose,
    Maybe,
    Mixed,
    Mode,
    Movie,
    Order,
    Pair,
    Paths,
    Place,
    Point,
    Private,
    Rights,
    Scene,
    Sets,
    Strict,
    T,
    UserId,
    WithInitVar,
    deep_same,
)
from tests.storage.values import scalars, values

codec = PayloadCodec()

GOOD: list[tuple[Any, Any]] = [
    (LINE, Line),
    (ORDER, Order),
    (MIXED, Mixed),
    (Bare([None], 5), Bare),
    ([LINE], list[Line]),
    ([], list[Line]),
    ([LINE], typing.List[Line]),  # noqa: UP006
    ((LINE, LINE), tuple[Line, ...]),
    ((LINE, 1, Level.LOW), tuple[Line, int, Level]),
    ((), tuple[()]),
    ((1, "a"), typing.Tuple),  # noqa: UP006
    ((), tuple[Line, ...]),
    ({"b": LINE, "a": LINE}, dict[str, Line]),
    ({Mode.SLOW: 1, Mode.FAST: 2}, dict[Mode, int]),
    ({"a": 1}, Mapping[str, int]),
    ({"a": 1}, Mapping),
    ([LINE], Sequence[Line]),
    ((LINE,), Sequence[Line]),
    ((1, 2), Iterable[int]),
    ([1, (2,)], Sequence),
    (LINE, Line | None),
    (None, Line | None),
    (None, Optional[Line]),  # noqa: UP045
    (LINE, Union[Line, Order]),  # noqa: UP007
    (ORDER, Line | Order),
    (None, Line | Order | None),
    (LINE, Line | dict),
    ({"name": "pen"}, Line | dict),
    ([LINE], list[Line] | Line),
    (LINE, list[Line] | Line),
    ([Strict(a=1)], list[Line] | list[Strict]),
    ([], list[Line] | list[Strict]),
    (Level.LOW, Level | int),
    (1, Level | int),
    (True, Level | bool | int),
    ("red", Colour | str),
    (Colour.RED, Colour | str),
    (None, Maybe | None),
    (Maybe.NOTHING, Maybe | None),
    (Maybe.SOMETHING, Maybe | None),
    (LINE, Line | Any),
    ({1: 2}.popitem(), Line | Any),
    ([1], Optional[Any]),  # noqa: UP045
    (Colour.PAIR, Colour),
    (Level.HIGH, Level),
    (Mode.FAST, Mode),
    (Rights.READ | Rights.WRITE, Rights),
    (Rights(0), Rights),
    (Mode.FAST, Literal[Mode.FAST, Mode.SLOW]),
    (Mode.FAST, Literal[Mode.FAST] | None),
    ("a", Literal["a", "b"] | None),
    (None, Literal["a", None] | None),
    (Maybe.NOTHING, Literal[Maybe.NOTHING] | None),
    (UserId(5), UserId),
    (None, UserId | None),
    (5, Annotated[int, ["unhashable"]]),
    (None, Annotated[Line, "x"] | None),
    (None, None),
    (5, float),
    (True, int),
    (True, float),
    (datetime(2024, 1, 1, tzinfo=UTC), date),
    (2**64 - 1, int),
    ([1, "a"], list[Any]),
    ([1, "a"], list[T]),  # type: ignore[valid-type]
    ({"title": "M"}, Movie),
    (Private(1, 2, 3), Private),
    (Derived(5), Derived),
    (Strict(a=1, b="x"), Strict),
    (WithInitVar(base=5), WithInitVar),
    (Converted("abc"), Converted),
    (Box(1, [2], 3), Box[int]),
    (Box(LINE, [LINE]), Box[Line]),
    (Box(1, ["x"]), Box),
    (Box([LINE], [[LINE]]), Box[list[Line]]),
    (IntBox(1, [2], None, "l"), IntBox),
    (Crossed(1, [2], None, LINE), Crossed[Line]),
    (Pair(LINE, Box(Level.LOW, [Level.HIGH])), Pair[Line, Level]),
    (BigOrderLine("n", 1.0, (), 5), BigOrderLine),
    (Lazy(2), Lazy),
    ({3, 1, 2}, set[int]),
    (set(), set[int]),
    ({1, "a", (1, 2), None}, set),
    (frozenset({"b", "a"}), frozenset[str]),
    (frozenset({1}), frozenset),
    ({LINE, Line("ink", 7)}, set[Line]),
    ({frozenset({LINE}), frozenset()}, set[frozenset[Line]]),
    ({Level.HIGH, "a"}, set[Level | str]),
    ({1}, AbstractSet[int]),
    (frozenset({1}), AbstractSet[int]),
    ({1}, MutableSet[int]),
    ({1}, set[int] | frozenset[int]),
    (frozenset({1}), set[int] | frozenset[int]),
    (None, set[int] | None),
    (Sets({1, 2}), Sets),
    ({"title": "M", "year": 5, "more": [1]}, Movie),
    (None, Movie | None),
    ({"props": [LINE], "line": LINE, "tags": frozenset("ab")}, Scene[Line]),
    ({"props": [], "next": {"next": None, "props": [Level.LOW]}}, Scene[Level]),
    (Point(1), Point),
    (Place(Point(1), LINE, (Place(Point(2), LINE),)), Place[Line]),
    (Loose([1], {"a": 2}), Loose),
    ([Point(1), (1,)], list[Point | tuple[int]]),
    ({"a": 1}, dict[str | int, int]),
]


@pytest.mark.parametrize(("value", "declared"), GOOD)
def test_a_value_at_a_typed_place_comes_back_the_same(value: Any, declared: Any) -> None:
    before = copy.deepcopy(value)
    data = codec.encode(value, declared)
    assert deep_same(codec.decode(data, declared), value)
    assert deep_same(value, before)
    assert PayloadCodec().encode(value, declared) == data
    assert PayloadCodec().encode(PayloadCodec().decode(data, declared), declared) == data


orders = st.recursive(
    st.builds(
        Order,
        st.lists(st.builds(Line, st.text("abc"), st.floats(allow_nan=False) | st.integers(0, 9))),
        st.sampled_from(Colour),
        values,
    ),
    lambda inner: st.builds(Order, st.just([]), st.sampled_from(Colour), scalars, inner),
    max_leaves=4,
)


@given(orders)
def test_any_order_comes_back_the_same(order: Order) -> None:
    data = codec.encode(order, Order)
    assert deep_same(codec.decode(data, Order), order)
    assert codec.encode(order, Order) == data


@given(st.lists(orders | st.builds(Strict, a=st.integers(0, 9)) | st.none(), max_size=4))
def test_any_union_comes_back_the_same(items: list[Any]) -> None:
    declared = list[Order | Strict | None]
    assert deep_same(codec.decode(codec.encode(items, declared), declared), items)


def test_the_canonical_form_covers_fields() -> None:
    left = Order([], Colour.RED, {"a": 1, "b": 2})
    right = Order([], Colour.RED, {"b": 2, "a": 1})
    assert codec.canonical(left, Order) == codec.canonical(right, Order)
    assert codec.encode(left, Order) != codec.encode(right, Order)


def test_a_class_comes_back_without_running_its_code() -> None:
    value = Converted("abc")
    assert codec.decode(codec.encode(value, Converted), Converted).text == "<abc>"


def test_a_computed_cached_property_is_no_hindrance() -> None:
    slotted, opened = Lazy(2), LazyOpen(2)
    assert slotted.double == opened.double == 4
    assert codec.decode(codec.encode(slotted, Lazy), Lazy).double == 4
    assert codec.decode(codec.encode(opened, LazyOpen), LazyOpen).double == 4


def test_a_generic_instance_made_with_its_arguments_is_fine() -> None:
    value = Pair[int, int](1, Box(2, []))
    assert codec.decode(codec.encode(value, Pair[int, int]), Pair[int, int]) == value


@attrs.define
class Line2:
    name: str
    price: float
    tags: tuple[str, ...]
    weight: int = 7
    notes: list[str] = attrs.field(factory=list)
    label: str = attrs.field(default=attrs.Factory(lambda self: self.name.upper(), takes_self=True))


@dataclass
class Line3:
    name: str
    price: float
    tags: tuple[str, ...]
    weight: int = 7
    notes: list[str] = field(default_factory=list)


def test_new_fields_get_their_defaults() -> None:
    assert codec.decode(codec.encode({"a": 1}), Loose) == Loose(1, 3)
    data = codec.encode(LINE, Line)
    assert codec.decode(data, Line2) == Line2("pen", 2.5, ("a", "b"), 7, [], "PEN")
    assert codec.decode(data, Line3) == Line3("pen", 2.5, ("a", "b"), 7, [])
    assert codec.decode(data, Line3).notes is not codec.decode(data, Line3).notes


@pytest.mark.parametrize(
    ("value", "written", "read", "message"),
    [
        (LINE, Line, Strict, "value.a: Strict needs the field 'a', which is not in what is stored"),
        (Strict(a=1), Strict, Box[int], "value.item: Box needs the field 'item'"),
        (Line2("a", 1, ()), Line2, Line, "value: Line has no field 'label', which is in what is"),
        (LINE, Line, Line | Order, "value: what is stored is no member of Line | Order"),
        ([[], 1], list, Line | Order, "value: what is stored is no member of Line | Order"),
        (LINE, Line | Order, Order | Strict, "value: what is stored is no member of Order | Stri"),
        (["5"], list[str], list[int], "value[0]: expected int, got a str"),
        ((1, 2), tuple[int, ...], tuple[int], "value: expected tuple[int], got a tuple of 2"),
        (1, int, Line, "value: expected Line, got an int"),
        ("blue", str, Colour, "value: no member of Colour has the stored value"),
        ([[1]], Any, list[Colour], "value[0]: no member of Colour has the stored value"),
        (True, bool, Level, "value: no member of Level has the stored value"),
        (1.0, float, Level, "value: no member of Level has the stored value"),
        ("c", str, Literal["a"], "value: expected Literal['a'], got a str"),
        ("slow", str, Literal[Mode.FAST], "value: expected Literal"),
        ({"k": 1}, dict[str, int], dict[Mode, int], 'value["k"]: no member of Mode'),
        ([1, 1], list[int], set[int], "value: two members of the stored set are equal"),
        ([1], list[int], frozenset[int], "value: expected frozenset[int], got a list"),
        (Point(1), Point, Loose, "value.a: Loose needs the field 'a'"),
        ({"name": "x"}, dict, Movie, "value: Movie requires the item 'title'"),
    ],
)
def test_data_that_does_not_fit_today_is_a_clear_error(
    value: Any, written: Any, read: Any, message: str
) -> None:
    data = codec.encode(value, written)
    with pytest.raises(PayloadMismatch, match=r"what is stored does not fit .* today: ") as caught:
        codec.decode(data, read)
    assert message in str(caught.value)


def test_none_may_be_added_later() -> None:
    assert codec.decode(codec.encode(LINE, Line), Line | None) == LINE


def test_a_default_that_fails_is_a_mismatch_with_its_cause() -> None:
    def fail() -> int:
        raise ZeroDivisionError("boom")

    late = attrs.make_class(
        "Late", {"name": attrs.field(type=str), "late": attrs.field(type=int, factory=fail)}
    )
    early = attrs.make_class("Late", {"name": attrs.field(type=str)})
    with pytest.raises(PayloadMismatch, match="boom") as caught:
        codec.decode(codec.encode(early("x"), early), late)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_decoding_as_a_type_that_cannot_be_stored_is_a_type_error() -> None:
    with pytest.raises(PayloadTypeError, match="no value can be stored as Path"):
        codec.decode(codec.encode([1]), Path)
    with pytest.raises(PayloadTypeError, match=r"value\.values: no value can be stored as Path"):
        codec.decode(codec.encode({"values": [1]}), Paths)


# Written by the first release and readable for ever.
LINE_HEX = "83a46e616d65a370656ea57072696365cb4004000000000000a47461677393c70001a161a162"
GOLDEN: list[tuple[str, Any, Any]] = [
    (LINE_HEX, Line, LINE),
    ("c0", Line | None, None),
    (
        "92a44c696e65" + LINE_HEX,
        Line | Order,
        LINE,
    ),
    (
        "92aa6c6973745b4c696e655d91" + LINE_HEX,
        list[Line] | Line | None,
        [LINE],
    ),
    ("02", Level, Level.HIGH),
    ("93c70001a17002", Colour, Colour.PAIR),
    ("92a3696e7403", Level | int, 3),
    ("92a655736572496403", Line | UserId | None, UserId(3)),
    ("92a74c69746572616ca161", Literal["a"] | Line, "a"),
    ("93010203", set[int], {3, 2, 1}),
    ("93c70001a161a162", frozenset[str], frozenset({"b", "a"})),
    ("81a17801", Point, Point(1)),
]


@pytest.mark.parametrize(("data", "declared", "value"), GOLDEN)
def test_golden_typed_payloads_stay_readable(data: str, declared: Any, value: Any) -> None:
    assert deep_same(codec.decode(bytes.fromhex(data), declared), value)
    assert codec.encode(value, declared) == bytes.fromhex(data)
