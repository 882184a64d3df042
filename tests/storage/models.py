"""Classes of every make, for the tests of typed places."""

import dataclasses
from collections import namedtuple
from dataclasses import KW_ONLY, InitVar, dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum, StrEnum, auto
from functools import cached_property
from pathlib import Path
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    Protocol,
    Required,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import attrs

from tests.storage.values import same

T = TypeVar("T")
K = TypeVar("K")


class Colour(Enum):
    RED = "red"
    PAIR = ("p", 2)


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Mode(StrEnum):
    FAST = "fast"
    SLOW = "slow"


class Rights(Flag):
    READ = auto()
    WRITE = auto()


class Maybe(Enum):
    NOTHING = None
    SOMETHING = 1


@attrs.frozen
class Line:
    name: str
    price: float
    tags: tuple[str, ...] = ()


@dataclass
class Order:
    lines: list[Line]
    colour: Colour
    extra: Any = None
    parent: "Order | None" = None
    by_name: dict[str, Line] = field(default_factory=dict)


@attrs.define
class BigOrderLine(Line):
    size: int = 0


@attrs.define
class Private:
    _secret: int
    __mangled: int = attrs.field(default=3, alias="mangled")
    renamed: int = attrs.field(default=1, alias="other")


@attrs.frozen
class Derived:
    first: int
    total: int = attrs.field(init=False)
    by_self: int = attrs.field(default=attrs.Factory(lambda self: self.first, takes_self=True))

    def __attrs_post_init__(self) -> None:
        object.__setattr__(self, "total", self.first * 2)


@dataclass(frozen=True, slots=True)
class Strict:
    _: KW_ONLY
    a: int
    b: str = "b"
    derived: int = field(init=False, default=0)
    kind: ClassVar[str] = "strict"


@dataclass
class WithInitVar:
    total: int = field(init=False)
    base: InitVar[int] = 0

    def __post_init__(self, base: int) -> None:
        self.total = base + 1


def bracketed(text: str) -> str:
    return f"<{text}>"


@attrs.define
class Converted:
    """Its converter and validator would refuse or change what they made before."""

    text: str = attrs.field(converter=bracketed, validator=attrs.validators.max_len(5))


@attrs.define
class Box(Generic[T]):
    item: T
    items: list[T]
    maybe: T | None = None


@attrs.define
class IntBox(Box[int]):
    label: str = ""


@attrs.define
class Crossed(Box[int], Generic[T]):
    """Its own T is another one than that of Box."""

    other: T | None = None


@dataclass
class Pair(Generic[K, T]):
    key: K
    box: Box[T]


@attrs.define
class Lazy:
    x: int

    @cached_property
    def double(self) -> int:
        return self.x * 2


@dataclass
class LazyOpen:
    x: int

    @cached_property
    def double(self) -> int:
        return self.x * 2


@attrs.define
class Mixed:
    anything: Any
    thing: object
    bare_list: list  # type: ignore[type-arg]
    bare_dict: dict  # type: ignore[type-arg]
    bare_tuple: tuple  # type: ignore[type-arg]
    raw: bytes
    when: datetime
    day: date
    amount: Decimal
    uuid: UUID
    nothing: None
    literal: Literal["a", 1, None]
    mode: Literal[Mode.FAST]
    union: int | str | None
    either: Line | Strict | None
    annotated: Annotated[int, "metres"]
    constant: Final[int]
    bare_final: Final = (7,)


@attrs.define
class Bare:  # type: ignore[no-untyped-def]
    """attrs does without annotations if all fields do."""

    anything = attrs.field()  # type: ignore[var-annotated]
    number = attrs.field(type=int)


MIXED = Mixed(
    anything={"a": (1, [2])},
    thing=(),
    bare_list=[1, (2,)],
    bare_dict={"b": [1], "a": 2},
    bare_tuple=(1, "x"),
    raw=b"\x00",
    when=datetime(2024, 1, 1, tzinfo=UTC),
    day=date(2024, 1, 1),
    amount=Decimal("1.50"),
    uuid=UUID(int=1),
    nothing=None,
    literal="a",
    mode=Mode.FAST,
    union=None,
    either=Strict(a=1),
    annotated=5,
    constant=6,
)

UserId = NewType("UserId", int)
LINE = Line("pen", 2.5, ("a", "b"))
ORDER = Order([LINE, Line("ink", 7)], Colour.PAIR, {"k": (1,)}, Order([], Colour.RED), {"x": LINE})


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Scene(TypedDict, Generic[T], total=False):
    """An item has the type of another class, and one is of this class."""

    line: Line
    props: "Required[list[T]]"
    next: "Scene[T] | None"
    tags: "NotRequired[frozenset[str]]"


def deep_same(left: Any, right: Any) -> bool:
    """`same`, also for instances: by class and by every field."""
    if type(left) is not type(right):
        return False
    if dataclasses.is_dataclass(left):
        names = [item.name for item in dataclasses.fields(left)]
    elif attrs.has(type(left)):
        names = [item.name for item in attrs.fields(type(left))]
    elif isinstance(left, set | frozenset):
        return len(left) == len(right) and all(any(deep_same(a, b) for b in right) for a in left)
    elif isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(deep_same, left, right))
    elif isinstance(left, dict):
        return deep_same(list(left.items()), list(right.items()))
    else:
        return same(left, right)
    return all(deep_same(getattr(left, name), getattr(right, name)) for name in names)


class Point(NamedTuple):
    x: int


class Place(NamedTuple, Generic[T]):
    at: "Point"
    what: T
    around: "tuple[Place[T], ...]" = ()


Loose = namedtuple("Loose", ["a", "b"], defaults=[3])


class Speaks(Protocol):
    def speak(self) -> str: ...


class Broken(dict[str, int]):
    pass


@dataclass
class Sets:
    values: set[int]


@dataclass
class Paths:
    values: set[Path]


@dataclass
class Unresolved:
    other: "Nowhere"  # type: ignore[name-defined]  # noqa: F821


@dataclass
class Trouble(Exception):
    code: int


@attrs.frozen(cache_hash=True)
class Hashed:
    x: int


class Slots:
    __slots__ = ("hidden",)


@dataclass(slots=True)
class Hidden(Slots):
    x: int


@attrs.define
class Unset:
    x: int = attrs.field(init=False)


@dataclass
class Open:
    x: int

    def __post_init__(self) -> None:
        self.cache = {"x": self.x}


class NotANumber(Enum):
    NAN = float("nan")
    SET = frozenset({1})


@dataclass
class Node:
    next: "Node | None" = None


LOOP = Node()
LOOP.next = LOOP
OTHER_LINE = type("Line", (), {})
