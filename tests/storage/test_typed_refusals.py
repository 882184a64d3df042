from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import (
    Any,
    Final,
    Literal,
    NoReturn,
    Union,
)

import attrs
import pytest

from keyrun.storage.payload import (
    PayloadCodec,
    PayloadError,
    PayloadTypeError,
)
from tests.storage.models import (
    LINE,
    LOOP,
    OTHER_LINE,
    BigOrderLine,
    Box,
    Broken,
    Colour,
    Crossed,
    Hashed,
    Hidden,
    IntBox,
    Level,
    Line,
    Mode,
    Movie,
    Node,
    NotANumber,
    Open,
    Order,
    Paths,
    Point,
    Speaks,
    Trouble,
    Unresolved,
    Unset,
)

codec = PayloadCodec()

BAD_LINE = Line("a", 1, ("x", 2))  # type: ignore[arg-type]
BAD: list[tuple[Any, Any, str]] = [
    ("5", int, "value: expected int, got a str"),
    (5, str, "value: expected str, got an int"),
    (1.5, int, "value: expected int, got a float"),
    (1, bool, "value: expected bool, got an int"),
    (None, int, "value: expected int, got None"),
    (date(2024, 1, 1), datetime, "value: expected datetime, got a date"),
    (Level.LOW, int, "value: expected exactly int, got its subclass Level"),
    (1, Level, "value: expected Level, got an int"),
    ("red", Colour, "value: expected Colour, got a str"),
    (Level.LOW, Colour, "value: expected Colour, got a Level"),
    (Level.LOW, Enum, "expected exactly Enum, got its subclass Level.*declare Level here"),
    ((1,), list[int], r"value: expected list\[int\], got a tuple"),
    ([1], tuple[int, ...], r"value: expected tuple\[int, \.\.\.\], got a list"),
    ([1], tuple[int], r"value: expected tuple\[int\], got a list"),
    ((1, 2), tuple[int], r"value: expected tuple\[int\], got a tuple of 2"),
    ((1,), tuple[()], r"value: expected tuple, got a tuple of 1"),
    ("ab", Sequence[str], r"value: expected Sequence\[str\], got a str"),
    (OrderedDict(a=1), dict[str, int], r"expected exactly dict\[str, int\], got its subclass Ord"),
    ([1, "a"], list[int], r"value\[1\]: expected int, got a str"),
    ((1, "a"), tuple[int, int], r"value\[1\]: expected int, got a str"),
    ({"a": [LINE, None]}, dict[str, list[Line]], r'value\["a"\]\[1\]: expected Line, got None'),
    ({"a": 1}, dict[int, Line], r"as dict\[int, Line\], because keys must be str; declare str k"),
    ({"a": 1}, dict[int | Level, int], "because keys must be str; declare str keys, or a list of"),
    ({None: 1}, dict[str | None, int], r"value\[None\]: this key is a NoneType, and keys must"),
    ({1: 1}, dict[str, int], r"value\[1\]: expected str, got an int"),
    ({1: 1}, dict, "value: the key 1 is an int"),
    ([LINE], list, r"value\[0\]: cannot store a Line; annotate"),
    ([LINE], list[Any], r"value\[0\]: cannot store a Line; annotate"),
    (LINE, Any, "value: cannot store a Line; annotate"),
    (LINE, Final, "value: cannot store a Line; annotate"),
    ([1], Line, "value: expected Line, got a list"),
    ({"name": "a", "price": 1.0}, Line, "value: expected Line, got a dict"),
    (BigOrderLine("n", 1.0), Line, "got its subclass BigOrderLine, which would come back as Line"),
    ([BigOrderLine("n", 1)], list[Line | Order], r"value\[0\]: expected Line \| Order, got a Big"),
    (Line("a", "b"), Line, r"value\.price: expected float, got a str"),  # type: ignore[arg-type]
    (Order([LINE, BAD_LINE], Colour.RED), Order, r"value\.lines\[1\]\.tags\[1\]: expected str"),
    (Order([], Colour.RED, {"a": [{1}]}), Order, r'value\.extra\["a"\]\[0\]: cannot store a set'),
    (Order([], Colour.RED, LINE), Order, r"value\.extra: cannot store a Line; annotate"),
    (Order([], Colour.RED, datetime(2024, 1, 1)), Order, r"value\.extra: .*without a time zone"),
    (Order([], Colour.RED, Order([], Colour.RED)), Line | Order, r"value\.extra: cannot store an"),
    (Box(1, ["a"]), Box[int], r"value\.items\[0\]: expected int, got a str"),
    (Box("a", []), Box[int], r"value\.item: expected int, got a str"),
    (IntBox("a", []), IntBox, r"value\.item: expected int"),  # type: ignore[arg-type]
    (Crossed("a", [], None, LINE), Crossed[Line], r"value\.item: expected int"),  # type: ignore[arg-type]
    ("c", Literal["a", "b"], r"value: expected Literal\['a', 'b'\], got a str"),
    (True, Literal[1], r"value: expected Literal\[1\], got a bool"),
    ([], Literal[1], r"value: expected Literal\[1\], got a list"),
    (Mode.SLOW, Literal[Mode.FAST], "value: expected Literal"),
    ("fast", Literal[Mode.FAST], "value: expected Literal"),
    (1, Literal[Mode.FAST, 1], "it mixes an Enum with other constants"),
    (1.5, int | str | None, r"value: expected int \| str \| None, got a float"),
    ([1], set[int], r"value: expected set\[int\], got a list"),
    ({1}, frozenset[int], r"value: expected frozenset\[int\], got a set"),
    ({1}, list[int], r"value: expected list\[int\], got a set"),
    ({1, "a"}, set[int], r"value \(member \"a\"\): expected int, got a str"),
    ({(1, 2), (1, "a")}, set[tuple[int, int]], r"value \(member \(1, 'a'\)\)\[1\]: expected int"),
    ({object}, set[Any], r"value \(member <class 'object'>\): cannot store a type"),
    ({1}, Any, r"cannot store a set; annotate this place with set\[\.\.\.\], or use a list"),
    (Paths({Path("x")}), Paths, r"value\.values: no value can be stored as Path"),
    (Paths({Path("x")}), Line | Paths, r"value\.values: no value can be stored as Path"),
    (Point(1), tuple[int], "expected exactly tuple.int., got its subclass Point"),
    (Point("a"), Point, r"value\.x: expected int, got a str"),  # type: ignore[arg-type]
    (Point(1), Any, "value: cannot store a Point; annotate this place with Point"),
    ([1], Movie, "value: expected Movie, got a list"),
    ({"title": 1}, Movie, r'value\["title"\]: expected str, got an int'),
    ({"year": 1}, Movie, "value: Movie requires the item 'title', which is missing"),
    ({"title": "a", "other": LINE}, Movie, r'value\["other"\]: cannot store a Line; annotate'),
    (Path("x"), Path, "no value can be stored as Path"),
    (1, NoReturn, "value: expected NoReturn, got an int"),
    (Broken(), Broken, "no value can be stored as Broken"),
    (1, Speaks, "no value can be stored as Speaks"),
    (1, "Line", "no value can be stored as 'Line'"),
    ([LINE], list["Line"], "no value can be stored as"),
    (Unresolved(1), Unresolved, "cannot store Unresolved: its annotations .*'Nowhere'"),
    (Unresolved(1), Line | Unresolved, "cannot store Unresolved: its annotations"),
    (Trouble(1), Trouble, "cannot store Trouble: it cannot be rebuilt"),
    (Hashed(1), Hashed, "cannot store Hashed: its slot '_attrs_cached_hash' is no field"),
    (Hidden(1), Hidden, "cannot store Hidden: its slot 'hidden' is no field"),
    (Unset(), Unset, "value: the field 'x' of Unset has no value"),
    (Open(1), Open, "value: the attribute 'cache' is no field of Open and would be lost"),
    ([NotANumber.NAN], list[NotANumber], r"value\[0\]: <NotANumber.NAN: nan> cannot be found"),
    (NotANumber.SET, NotANumber, "value: cannot store a frozenset; .* use a list"),
    (LINE, Union[Line, OTHER_LINE], "no value can be stored as Line"),  # noqa: UP007
]


@pytest.mark.parametrize(("value", "declared", "message"), BAD)
def test_what_would_not_come_back_the_same_is_refused(
    value: Any, declared: Any, message: str
) -> None:
    with pytest.raises(TypeError, match=message) as caught:
        codec.encode(value, declared)
    assert isinstance(caught.value, PayloadTypeError)


def test_members_of_a_union_need_different_names() -> None:
    twin = attrs.make_class("Line", {"x": attrs.field(type=int)})
    with pytest.raises(TypeError, match="two of its members have the same name"):
        codec.encode(LINE, Union[Line, twin])  # noqa: UP007


def test_values_that_contain_themselves_are_refused_at_typed_places() -> None:
    with pytest.raises(PayloadError, match="nests deeper than 64 levels, or contains itself"):
        codec.encode(LOOP, Node)


def test_typed_nesting_is_limited() -> None:
    chain = None
    for _ in range(64):
        chain = Node(chain)
    assert codec.decode(codec.encode(chain, Node), Node) == chain
    with pytest.raises(PayloadError, match="value: nests deeper than 64 levels"):
        codec.encode(Node(chain), Node)


def test_limits_hold_at_typed_places() -> None:
    with pytest.raises(PayloadError, match=r"value\.name: the str holds a lone surrogate"):
        codec.encode(Line("\ud800", 1), Line)
    with pytest.raises(PayloadError, match=r"value\.price: the int does not fit into 64 bits"):
        codec.encode(Line("a", 2**64), Line)
    with pytest.raises(PayloadError, match=r"value: takes 1.. bytes, and a payload may have 100"):
        PayloadCodec(max_size=100).encode(Line("x" * 100, 1), Line)


def test_an_error_in_the_users_code_is_a_refusal_with_its_cause() -> None:
    @dataclass
    class Explosive:
        x: int

        def __getattribute__(self, name: str) -> Any:
            return object.__getattribute__(self, name) if name != "x" else 1 // 0

    with pytest.raises(PayloadTypeError, match="stored as Explosive: ZeroDivisionError") as caught:
        codec.encode(Explosive(1), Explosive)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
