"""Pydantic models at typed places."""

import copy
import subprocess
import sys
from datetime import UTC, date, datetime, timezone
from decimal import Decimal
from enum import Enum
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, Optional, TypeVar
from uuid import UUID, uuid4

import pydantic
import pytest
from pydantic import (
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    FutureDate,
    PrivateAttr,
    RootModel,
    computed_field,
    field_validator,
    model_validator,
)
from pydantic.dataclasses import dataclass as checked_dataclass
from typing_extensions import TypedDict

from keyrun.storage.payload import (
    PayloadCodec,
    PayloadError,
    PayloadMismatch,
    PayloadTypeError,
)

codec = PayloadCodec()
T = TypeVar("T")
numbers = count()


class Size(Enum):
    SMALL = "s"
    LARGE = "l"


class Item(BaseModel):
    model_config = ConfigDict(frozen=True)
    sku: str
    price: Decimal = Decimal(1)


class Note(TypedDict):
    text: str
    by: NotRequired[str]


class Spot(NamedTuple):
    x: int
    y: int


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    tricks: list[str] = []


class Everything(BaseModel):
    at: datetime
    day: date
    seen: AwareDatetime
    due: FutureDate
    amount: Decimal
    id: UUID
    size: Size
    raw: bytes
    ratio: float
    items: list[Item]
    by_sku: dict[str, Item]
    tags: set[str]
    parts: frozenset[int]
    pair: tuple[int, Item]
    maybe: Optional[Item]  # noqa: UP045
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    either: int | Item | list[Item]
    note: Note
    spot: Spot
    positive: Annotated[int, Field(gt=0)]
    anything: Any = None


class Page(BaseModel, Generic[T]):
    rows: list[T]
    next: int | None = None


class Endless(BaseModel, Generic[T]):
    next: "Endless[T] | None" = None


class Renamed(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    order_id: int = Field(alias="orderId")
    total: int = Field(alias="sum", serialization_alias="SUM")
    secret: int = Field(default=1, exclude=True)


class Changing(BaseModel):
    """Its validators would change or refuse what they made before."""

    text: str
    count: int = 0

    @field_validator("text")
    @classmethod
    def bracketed(cls, text: str) -> str:
        assert len(text) < 3
        return f"<{text}>"

    @model_validator(mode="after")
    def counted(self) -> "Changing":
        self.count += 1
        return self


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class OpenTyped(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, Item]
    a: int = 1


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Computed(BaseModel):
    side: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def area(self) -> int:
        return self.side**2

    @cached_property
    def cube(self) -> int:
        return self.side**3


class Hidden(BaseModel):
    a: int
    _number: int = PrivateAttr(default_factory=lambda: next(numbers))
    _item: "Item | None" = None
    _never: str = PrivateAttr()


class Patch(BaseModel):
    name: str | None = None
    age: int | None = None


class Event(BaseModel):
    at: datetime


class Tree(BaseModel):
    children: "list[Tree]" = []
    parent_id: UUID = Field(default_factory=uuid4)


class Names(RootModel[list[str]]):
    pass


@checked_dataclass
class Checked:
    a: int
    b: int = Field(default=3, gt=1)
    c: list[int] = Field(default_factory=list)


NOW = datetime(2026, 1, 2, tzinfo=UTC)
ITEM = Item(sku="tea", price=Decimal("2.50"))
EVERYTHING = Everything(
    at=NOW,
    day=date(2026, 1, 2),
    seen=NOW,
    due=date(9999, 1, 1),
    amount=Decimal("1.10"),
    id=UUID(int=7),
    size=Size.LARGE,
    raw=b"\x00",
    ratio=2,
    items=[ITEM],
    by_sku={"tea": ITEM},
    tags={"b", "a"},
    parts=frozenset({2, 1}),
    pair=(1, ITEM),
    maybe=None,
    pet=Dog(tricks=["sit"]),
    either=[ITEM],
    note={"text": "hello"},
    spot=Spot(1, 2),
    positive=5,
)
VIEWED = Computed(side=3)
assert VIEWED.cube == 27
ASSIGNED = Open(a=1)
ASSIGNED.b = [1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "declared"),
    [
        (ITEM, Item),
        (EVERYTHING, Everything),
        ([ITEM], list[Item]),
        ({"a": ITEM}, dict[str, Item]),
        ({ITEM, Item(sku="ink")}, set[Item]),
        (ITEM, Item | None),
        (None, Item | None),
        (Cat(lives=9), Cat | Dog),
        (Dog(), Annotated[Cat | Dog, Field(discriminator="kind")]),
        (Page[Item](rows=[ITEM], next=1), Page[Item]),
        (Page[list[int]](rows=[[1]]), Page[list[int]]),
        (Page(rows=[1, "a"]), Page),
        (Renamed(orderId=1, sum=2), Renamed),
        (Changing(text="ab"), Changing),
        (Open(a=1, zz={"y": 2}), Open),  # type: ignore[call-arg]
        (Open(a=1), Open),
        (ASSIGNED, Open),
        (OpenTyped(x=ITEM), OpenTyped),  # type: ignore[call-arg]
        (Closed(a=1), Closed),
        (VIEWED, Computed),
        (Hidden(a=1), Hidden),
        (Patch(), Patch),
        (Patch(age=None), Patch),
        (Tree(children=[Tree()]), Tree),
        (Names(["a"]), Names),
        (RootModel[dict[str, Item]]({"a": ITEM}), RootModel[dict[str, Item]]),
        (Checked(a=1), Checked),
        (Checked(a=1, b=2, c=[3]), Checked),
        (Item.model_construct(sku="tea", price=Decimal(1)), Item),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
def test_a_model_comes_back_the_same(value: Any, declared: Any) -> None:
    before = copy.deepcopy(value)
    data = codec.encode(value, declared)
    back = codec.decode(data, declared)
    assert type(back) is type(value)
    assert back == value == before
    assert PayloadCodec().encode(back, declared) == data
    if isinstance(value, BaseModel):
        assert back.model_fields_set == value.model_fields_set
        assert back.model_extra == value.model_extra
        assert back.__pydantic_private__ == value.__pydantic_private__
        assert back.model_dump(exclude_unset=True) == value.model_dump(exclude_unset=True)


def test_a_field_that_was_not_set_stays_unset() -> None:
    """A PATCH request would overwrite it otherwise."""
    back = codec.decode(codec.encode(Patch(age=None), Patch), Patch)
    assert back.model_dump(exclude_unset=True) == {"age": None}


@pytest.mark.parametrize("offset", ["Z", "+02:00", "-03:30"])
def test_a_time_that_pydantic_parsed_comes_back_with_a_time_zone_of_python(offset: str) -> None:
    text = f"2026-01-02T03:04:05{offset}"
    value = Event.model_validate_json(f'{{"at": "{text}"}}')
    assert type(value.at.tzinfo) is not timezone
    back = codec.decode(codec.encode(value, Event), Event)
    assert back == value
    assert type(back.at.tzinfo) is timezone
    assert back.at.utcoffset() == value.at.utcoffset()
    assert codec.encode(back, Event) == codec.encode(value, Event)
    assert back.model_dump_json() == value.model_dump_json() == f'{{"at":"{text}"}}'


def test_a_model_that_came_back_still_validates() -> None:
    back = codec.decode(codec.encode(ITEM, Item), Item)
    with pytest.raises(pydantic.ValidationError, match="frozen"):
        back.sku = "ink"
    assert back.model_copy(update={"sku": "ink"}) == Item(sku="ink", price=Decimal("2.50"))


@pytest.mark.parametrize(
    ("value", "declared", "plain"),
    [
        (ITEM, Item, {"sku": "tea", "price": Decimal("2.50")}),
        (Item(sku="tea"), Item, {"sku": "tea", "price": Decimal(1), "(unset)": ["price"]}),
        (Renamed(orderId=1, sum=2, secret=3), Renamed, {"order_id": 1, "total": 2, "secret": 3}),
        (Closed(a=1), Item | Closed, ["Closed", {"a": 1}]),
        (Open(a=1, b=2), Open, {"a": 1, "(extra)": {"b": 2}}),  # type: ignore[call-arg]
        (Names(["a"]), Names, {"root": ["a"]}),
        (Computed(side=2), Computed, {"side": 2}),
    ],
)
def test_what_is_stored_of_a_model_is_plain_data(value: Any, declared: Any, plain: Any) -> None:
    assert codec.decode(codec.encode(value, declared)) == plain


def test_what_is_stored_of_a_model_does_not_change() -> None:
    data = "82a3736b75a3746561a57072696365d604322e3530"
    assert codec.encode(ITEM, Item).hex() == data
    assert codec.decode(bytes.fromhex(data), Item) == ITEM


def test_what_is_stored_is_read_without_pydantic() -> None:
    code = """
import sys
from keyrun.storage.payload import PayloadCodec
print(PayloadCodec().decode(bytes.fromhex(sys.argv[1])), "pydantic" in sys.modules)
"""
    data = codec.encode(Page[Item](rows=[ITEM]), Page[Item]).hex()
    done = subprocess.run([sys.executable, "-c", code, data], capture_output=True, text=True)
    rows = "[{'sku': 'tea', 'price': Decimal('2.50')}]"
    assert done.stdout == f"{{'rows': {rows}, 'next': None, '(unset)': ['next']}} False\n"


def test_the_canonical_form_ignores_the_order_of_mappings_in_a_model() -> None:
    one, other = (Open(a=1, d=d) for d in ({"x": 1, "y": 2}, {"y": 2, "x": 1}))  # type: ignore[call-arg]
    assert codec.encode(one, Open) != codec.encode(other, Open)
    assert codec.canonical(one, Open) == codec.canonical(other, Open)


class Item2(BaseModel):
    sku: str
    price: Decimal
    count: int = 7
    tags: list[str] = Field(default_factory=list)
    label: str = Field(default_factory=lambda before: before["sku"].upper())
    _cache: int = 5


def test_new_fields_of_a_model_get_their_defaults() -> None:
    back = codec.decode(codec.encode(ITEM, Item), Item2)
    assert back.model_dump() == {**ITEM.model_dump(), "count": 7, "tags": [], "label": "TEA"}
    assert back.model_fields_set == {"sku", "price"}
    assert back._cache == 5


@pytest.mark.parametrize(
    ("value", "written", "read", "message"),
    [
        (ITEM, Item, Closed, "value.a: Closed needs the field 'a'"),
        (Item2(sku="a", price=Decimal(1)), Item2, Item, "Item has no field 'count'"),
        ({"sku": 5, "price": Decimal(1)}, dict, Item, "value.sku: expected str, got an int"),
        ([1], list, Item, "value: expected Item, got a list"),
    ],
)
def test_a_model_that_does_not_fit_today_is_a_clear_error(
    value: Any, written: Any, read: Any, message: str
) -> None:
    data = codec.encode(value, written)
    with pytest.raises(PayloadMismatch, match="what is stored does not fit") as caught:
        codec.decode(data, read)
    assert message in str(caught.value)


class Unstorable(BaseModel):
    where: list[Path]


class Unfinished(BaseModel):
    other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


class Heavy(BaseModel):
    a: int
    _lock: Any = PrivateAttr(default_factory=object)


class SubItem(Item):
    size: int = 0


WRONG = Item.model_construct(sku=5, price=Decimal(1))


@pytest.mark.parametrize(
    ("value", "declared", "message"),
    [
        (ITEM, Any, "value: cannot store an Item; annotate this place with Item"),
        ([ITEM], list, r"value\[0\]: cannot store an Item; annotate"),
        (ITEM, Closed, "value: expected Closed, got an Item"),
        (SubItem(sku="a"), Item, "got its subclass SubItem, which would come back as Item"),
        ([WRONG], list[Item], r"value\[0\]\.sku: expected str, got an int"),
        (Item.model_construct(sku="a", price=1), Item, r"value\.price: expected Decimal, got an"),
        (Unstorable(where=[]), Unstorable, r"value\.where: no value can be stored as Path"),
        (Heavy(a=1), Heavy, r'value\["_lock"\]: cannot store an object'),
        (ITEM, BaseModel, "no value can be stored as BaseModel"),
        (ITEM, Unfinished, "expected Unfinished, got an Item"),
        (Unfinished.model_construct(other=1), Unfinished, "its annotations cannot be resolved"),
        (Endless[int](), Endless[int], r"value\.next: a generic Pydantic model that mentions its"),
        (Page(rows=[1]), Page[int], "expected Page.int., got a Page"),
    ],
)
def test_a_model_that_would_not_come_back_the_same_is_refused(
    value: Any, declared: Any, message: str
) -> None:
    with pytest.raises(PayloadTypeError, match=message):
        codec.encode(value, declared)


def test_limits_hold_inside_of_models() -> None:
    tree = Tree()
    for _ in range(40):
        tree = Tree(children=[tree])
    with pytest.raises(PayloadError, match="nests deeper than 64 levels"):
        codec.encode(tree, Tree)
