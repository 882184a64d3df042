"""The JSON Schema of a declared type takes the JSON that is read as this type."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import BaseModel, Field

from keyrun.storage import PayloadCodec
from keyrun.storage.json_form import PARSERS, to_json
from keyrun.storage.misfit import PayloadError, PayloadTypeError
from tests.storage.values import aware_datetimes, same, values

CODEC = PayloadCodec()
T = TypeVar("T")


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mode(StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Mixed(Enum):
    PRICE = Decimal("1.20")
    RAW = b"\x00\xff"
    PAIR = ("p", 2)


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Row(TypedDict):
    name: str
    at: NotRequired[date]


@attrs.frozen
class Line:
    """One line of an order.

    The second paragraph is not part of the schema."""

    sku: str
    price: Decimal
    _note: str | None = None
    total: float = attrs.field(init=False, default=1.5)


@dataclass
class Tree(Generic[T]):
    value: T
    children: "list[Tree[T]]" = field(default_factory=list)


class Item(BaseModel):
    sku: str
    count: int = Field(gt=0)


class Bag(BaseModel):
    items: list[Item] = []
    colour: Mode = Mode.FAST


Name = NewType("Name", str)

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="$"), max_size=8)
numbers = st.integers(-(2**63), 2**64 - 1)
plain = numbers | text | st.binary(max_size=5) | st.dates()
lines = st.builds(Line, sku=text, price=st.decimals(allow_nan=False), note=st.none() | text)
trees: Any = st.recursive(
    st.builds(Tree, value=numbers, children=st.just([])),
    lambda inner: st.builds(Tree, value=numbers, children=st.lists(inner, max_size=3)),
    max_leaves=5,
)
items = st.builds(Item, sku=text, count=st.integers(1, 99))
bags = st.builds(Bag, items=st.lists(items, max_size=3), colour=st.sampled_from(Mode))

TYPES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (None, st.none()),
    (bool, st.booleans()),
    (int, numbers),
    (float, st.floats()),
    (str, text),
    (bytes, st.binary(max_size=20)),
    (datetime, aware_datetimes),
    (date, st.dates()),
    (Decimal, st.decimals()),
    (UUID, st.uuids()),
    (int | None, st.none() | numbers),
    (int | str | Decimal, numbers | text | st.decimals()),
    (date | None, st.none() | st.dates()),
    (Any, values),
    (list, st.lists(plain, max_size=3)),
    (tuple, st.lists(plain, max_size=3).map(tuple)),
    (Sequence[int], st.lists(numbers, max_size=3)),
    (list[Decimal], st.lists(st.decimals(allow_nan=False), max_size=3)),
    (tuple[int, ...], st.lists(numbers, max_size=3).map(tuple)),
    (tuple[int, str], st.tuples(numbers, text)),
    (set[str], st.sets(text, max_size=3)),
    (frozenset[date], st.frozensets(st.dates(), max_size=3)),
    (dict[str, bytes], st.dictionaries(text, st.binary(max_size=5), max_size=3)),
    (dict[Mode, int], st.dictionaries(st.sampled_from(Mode), numbers, max_size=2)),
    (Mapping[str, Line], st.dictionaries(text, lines, max_size=2)),
    (Level, st.sampled_from(Level)),
    (Mode, st.sampled_from(Mode)),
    (Mixed, st.sampled_from(Mixed)),
    (Literal["a", 1, True, None], st.sampled_from(["a", 1, True, None])),
    (Literal[Mode.FAST], st.just(Mode.FAST)),
    (Name, text.map(Name)),
    (Annotated[int, "a number"], numbers),
    (Point, st.builds(Point, x=numbers, y=st.floats(allow_nan=False))),
    (Row, st.fixed_dictionaries({"name": text}, optional={"at": st.dates()})),
    (Line, lines),
    (Tree[int], trees),
    (list[Line | Point], st.lists(lines | st.builds(Point, x=numbers), max_size=3)),
    (Line | None, st.none() | lines),
    (Item, items),
    (Bag, bags),
    (list[Bag], st.lists(bags, max_size=2)),
]
TEXTS = {kind: f"${kind.__name__.lower()}" for kind in PARSERS}


def written(value: Any, declared: Any) -> Any:
    """Return the JSON that a person or a program writes for a value."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Enum):
        return to_json(value.value)
    if attrs.has(type(value)):
        return {
            each.name: written(getattr(value, each.name), each.type)
            for each in attrs.fields(type(value))
            if each.init
        }
    if isinstance(value, Tree):
        return {
            "value": written(value.value, Any),
            "children": [written(child, Any) for child in value.children],
        }
    if isinstance(value, Point):
        return {"x": written(value.x, int), "y": written(value.y, float)}
    if declared in (Any, list, tuple):
        return to_json(value)
    if isinstance(value, dict):
        return {written(key, str): written(item, None) for key, item in value.items()}
    if isinstance(value, list | tuple | AbstractSet):
        return [written(item, None) for item in value]
    plain = to_json(value)
    if type(value) in PARSERS and isinstance(plain, dict) and type(declared) is type:
        # At a typed place people write the text alone.
        ((_, said),) = plain.items()
        return said
    return plain


@pytest.mark.parametrize(("declared", "strategy"), TYPES, ids=[str(each) for each, _ in TYPES])
@settings(max_examples=25)
@given(data=st.data())
def test_written_values_fit_the_schema_and_are_read_back(
    declared: Any, strategy: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    schema = json.loads(json.dumps(CODEC.schema(declared)))
    Draft202012Validator.check_schema(schema)
    value = data.draw(strategy)
    sent = json.loads(json.dumps(written(value, declared), allow_nan=False))
    Draft202012Validator(schema).validate(sent)
    read = CODEC.read(sent, declared)
    if declared is Any or isinstance(value, float | Decimal | datetime):
        assert type(read) is type(value)
        assert same(read, value) or isinstance(value, datetime) or declared is Any
    elif read != value:
        # A value with a NaN inside equals nothing.
        assert repr(read) == repr(value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
)
CHECKED_BY_THE_CLASS = (Bag, list[Bag], Item)
"""The schema of a model is the one of Pydantic, which converts some values."""


@pytest.mark.parametrize(
    "declared", [each for each, _ in TYPES if each not in CHECKED_BY_THE_CLASS], ids=str
)
@settings(max_examples=25)
@given(sent=json_values)
def test_json_that_does_not_fit_the_schema_is_not_read(declared: Any, sent: Any) -> None:
    schema = CODEC.schema(declared)
    try:
        CODEC.read(sent, declared)
    except PayloadError:
        return
    if isinstance(sent, bool) or any(isinstance(each, bool) for each in _inside(sent)):
        return  # where a number is declared, a bool is taken, too
    Draft202012Validator(schema).validate(sent)


def _inside(value: Any) -> list[Any]:
    found = value if isinstance(value, list) else value.values() if isinstance(value, dict) else []
    return [value, *(deep for each in found for deep in _inside(each))]


@pytest.mark.parametrize(
    ("declared", "sent"),
    [
        (int, "1"),
        (int, 1.5),
        (float, "nan"),
        (Level, 3),
        (tuple[int, str], [1]),
        (tuple[int, str], [1, "a", 2]),
        (dict[Mode, int], {"slowly": 1}),
        (Line, {"sku": "tea"}),
        (Line, {"sku": "tea", "price": "1.20", "colour": "red"}),
        (Line, {"sku": "tea", "price": "1.20", "total": 3.0}),
        (Row, {"at": "2026-01-02"}),
        (Item, {"sku": "tea", "count": 0}),
        (Literal["a"], "b"),
    ],
    ids=str,
)
def test_both_the_schema_and_the_reader_reject(declared: Any, sent: Any) -> None:
    assert not Draft202012Validator(CODEC.schema(declared)).is_valid(sent)
    with pytest.raises(PayloadError):
        CODEC.read(sent, declared)


def test_the_schema_of_a_class_has_its_name_and_the_first_paragraph_of_its_docstring() -> None:
    schema = CODEC.schema(list[Line])
    assert schema["items"] == {"$ref": "#/$defs/Line"}
    line = schema["$defs"]["Line"]
    assert (line["title"], line["description"]) == ("Line", "One line of an order.")
    assert line["required"] == ["sku", "price"]
    assert list(line["properties"]) == ["sku", "price", "_note"]
    assert "description" not in CODEC.schema(Tree[int])["$defs"]["Tree_int"]


def test_classes_of_one_name_have_definitions_of_their_own() -> None:
    def make(kind: type) -> Any:
        return attrs.make_class("Line", {"amount": attrs.field(type=kind)})

    pair: Any = tuple.__class_getitem__((make(int), make(str)))
    valid = Draft202012Validator(CODEC.schema(pair)).is_valid
    assert valid([{"amount": 1}, {"amount": "one"}])
    assert not valid([{"amount": "one"}, {"amount": 1}])


def test_models_that_share_a_model_share_no_definition_by_mistake() -> None:
    class Other(BaseModel):
        items: list[Item]

    @attrs.frozen
    class Both:
        bag: Bag
        other: Other

    schema = CODEC.schema(Both)
    valid = Draft202012Validator(schema).is_valid
    assert valid({"bag": {}, "other": {"items": [{"sku": "tea", "count": 1}]}})
    assert not valid({"bag": {}, "other": {"items": [{"sku": "tea", "count": 0}]}})


def test_a_type_that_cannot_be_stored_has_no_schema() -> None:
    with pytest.raises(PayloadTypeError, match="no value can be stored as complex"):
        CODEC.schema(complex)
