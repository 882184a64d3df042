"""Types that can never be stored are rejected before anything runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import time
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NewType,
    NoReturn,
    TypedDict,
)

import attrs
import pytest
from pydantic import BaseModel
from trio.testing import MockClock

from keyrun import (
    Context,
    RunFailed,
    RunQuarantined,
    State,
    Workflow,
    entity,
    open_reader,
    step,
    workflow,
)
from keyrun.status import QuarantineCause
from keyrun.storage import LmdbStore, MemoryStore, PayloadTypeError
from keyrun.testing import open_test_runtime

if TYPE_CHECKING:
    from fractions import Fraction


@dataclass
class Opening:
    at: time


class Shop(BaseModel):
    name: str
    openings: list[Opening] = []


class Row(TypedDict):
    shops: dict[str, Shop]


NAMED_IN_TEXTS = (Annotated, Literal, Sequence)
Ids = NewType("Ids", list[int])


@attrs.frozen
class Basket:
    items: set[Mutable]


@dataclass
class Mutable:
    x: int


class Fixed(BaseModel, frozen=True):
    x: int


class Corner(NamedTuple):
    row: Row


@attrs.frozen
class Chain:
    """It mentions a class that is defined below."""

    links: list[Link]


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ("range", "no value can be stored as range"),
        ("list[Path]", "no value can be stored as Path; declare one of None, bool"),
        ("dict[str, tuple[int, Path]]", "no value can be stored as Path"),
        ("dict[int, str]", r"dict\[int, str\], because keys must be str; declare str keys, or a"),
        ("Opening", r"Opening\.at: no value can be stored as time; declare"),
        ("list[Opening | None]", r"Opening\.at: no value can be stored as time"),
        ("Shop", r"Opening\.at: no value can be stored as time"),
        ("Row", r"Opening\.at: no value can be stored as time"),
        ("set[Corner]", r"Opening\.at: no value can be stored as time"),
        ("set[list[int]]", r"set\[list\[int\]\], because members must be hashable; declare tup"),
        ("frozenset[dict[str, int]]", "because members must be hashable"),
        ("set[set[int]]", "because members must be hashable"),
        ("list[set[tuple[str, list[int]]]]", "because members must be hashable"),
        ("set[Annotated[list[int], 'x'] | dict[str, int]]", "because members must be hashable"),
        ("set[Ids]", "because members must be hashable"),
        ("set[Shop]", "because members must be hashable"),
        ("set[Row]", "because members must be hashable"),
        ("Basket", r"Basket\.items: .* because members must be hashable"),
        ("dict[list[int], str]", "because keys must be str; declare str keys"),
        ("dict[frozenset[str], str]", "because keys must be str; declare str keys"),
    ],
)
def test_a_type_that_can_never_be_stored_is_rejected_where_it_is_declared(
    declared: str, message: str
) -> None:
    async def load(ctx: Any, given: Any = None) -> Any: ...

    load.__annotations__ = {"return": declared}
    with pytest.raises(
        PayloadTypeError, match=f"the result of the step 'load' cannot be .*{message}"
    ):
        step(load)
    with pytest.raises(PayloadTypeError, match="the result of the step 'other' cannot"):
        step(name="other")(load)
    with pytest.raises(TypeError, match=f"the result of <workflow load v1> cannot .*{message}"):
        workflow(load)

    async def method(self: Any, given: Any = None) -> Any: ...

    method.__annotations__ = {"return": declared}
    with pytest.raises(PayloadTypeError, match=f"the result of the method .*method.*{message}"):
        entity(type("Account", (), {"method": method}))
    load.__annotations__ = {"given": declared}
    with pytest.raises(PayloadTypeError, match=f"the input of <workflow load v1> .*{message}"):
        workflow(load)


@pytest.mark.parametrize(
    "declared",
    [
        *("NoReturn", "None", "Any", "Chain", "Chain | None", "int | str", "NotDefined"),
        *("Fraction", "set", "set[Any]", "set[Sequence[int]]", "set[list[int] | None]"),
        *("set[frozenset[Fixed]]", "set[tuple[()]]", "set[Literal[1]]", "frozenset[Chain]"),
    ],
)
def test_other_types_are_accepted(declared: str) -> None:
    """Also types that cannot be resolved, or not yet."""

    async def load() -> None: ...

    load.__annotations__ = {"return": declared}
    assert step(load).set.name == "load"


async def test_a_plain_function_is_rejected_before_it_is_called(autojump_clock: MockClock) -> None:
    called = []

    async def load() -> Path:
        called.append(1)
        return Path()

    @workflow
    async def run(ctx: Context) -> None:
        await ctx.step(load)

    async with open_test_runtime(MemoryStore(), workflows=[run]) as rt:
        with pytest.raises(RunFailed, match="the result of the step 'load' cannot be stored"):
            await (await rt.submit(run, key="k")).result()
    assert not called


@dataclass
class Parcel:
    item: str


@workflow
async def deliver(ctx: Fraction, parcel: Parcel) -> Parcel:
    """Only the type checker knows the type of its context."""
    return parcel


def test_one_annotation_that_cannot_be_resolved_does_not_hide_the_others() -> None:
    assert deliver.input_type is Parcel
    assert deliver.result_type is Parcel


@dataclass
class Broken:
    other: NotDefined  # type: ignore[name-defined]  # noqa: F821


async def test_a_class_that_cannot_be_resolved_is_rejected_when_the_runtime_is_opened(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def run(ctx: Context, given: Broken) -> None: ...

    message = "the input of <workflow run v1> cannot be stored: cannot store Broken: its annotatio"
    with pytest.raises(PayloadTypeError, match=message):
        async with open_test_runtime(MemoryStore(), workflows=[run]):
            pass


@attrs.frozen
class Link:
    """See `Chain`."""


async def test_a_class_that_mentions_a_later_one_is_fine(autojump_clock: MockClock) -> None:
    @workflow
    async def run(ctx: Context, given: Chain) -> Chain:
        return given

    async with open_test_runtime(MemoryStore(), workflows=[run]) as rt:
        handle = await rt.submit(run, Chain([Link()]), key="k")
        assert await handle.result() == Chain([Link()])


class OldOrder(BaseModel):
    sku: str


class NewOrder(BaseModel):
    sku: str
    count: int


def checkout_of(model: type[BaseModel]) -> Workflow[Any, Any]:
    async def checkout(ctx: Context, order: Any) -> Any:
        await ctx.wait_signal("paid")
        return order

    checkout.__annotations__ = {"order": model, "return": model}
    return workflow(checkout)


async def test_a_model_that_no_longer_reads_what_is_stored_quarantines_the_run(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    old, new = checkout_of(OldOrder), checkout_of(NewOrder)
    async with open_test_runtime(LmdbStore(tmp_path), workflows=[old]) as rt:
        await rt.submit(old, OldOrder(sku="tea"), key="k", run_id="r")
    async with open_test_runtime(LmdbStore(tmp_path), workflows=[new]) as rt:
        with pytest.raises(RunQuarantined, match="NewOrder needs the field 'count'") as caught:
            await rt.run("r").result()
        assert caught.value.cause is QuarantineCause.INPUT
    async with open_test_runtime(LmdbStore(tmp_path), workflows=[old]) as rt:
        await rt.signal("r", "paid")
        assert await rt.run("r").result() == OldOrder(sku="tea")
    async with open_reader(tmp_path) as reader:
        status = await reader.status("r")
        assert status is not None
        assert status.state is State.SUCCEEDED
        assert status.result == {"sku": "tea"}


SUBMIT = """
import sys
from collections.abc import Sequence
from dataclasses import dataclass
import trio
from pydantic import BaseModel
from keyrun import Context, open_runtime, workflow

@dataclass(frozen=True)
class Tag:
    name: str

class Order(BaseModel):
    tags: set[str]
    parts: frozenset[Tag]

@workflow
async def checkout(ctx: Context, order: Order) -> None: ...

names = [f"name {n}" for n in range(50)]
order = Order(tags=set(names), parts=frozenset(map(Tag, names)))

async def main() -> None:
    async with open_runtime(sys.argv[1], workflows=[checkout]) as rt:
        run = await rt.submit(checkout, order, key="k", run_id="order-7")
        print(run.newly_submitted, list(order.tags) == names)

trio.run(main)
"""


def test_sets_are_the_same_input_in_every_process(tmp_path: Path) -> None:
    """Two processes have the members of a set in another order."""

    def submit(seed: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", SUBMIT, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        return done.stdout

    assert submit("1") == "True False\n"
    assert submit("2") == "False False\n"


def test_a_method_is_no_step() -> None:
    with pytest.raises(TypeError, match=r"cannot decorate the method .*Bank\.pay, because a step"):

        class Bank:
            @step
            async def pay(self, amount: int) -> None: ...


class Teller:
    def __init__(self, rate: int) -> None:
        self.rate = rate

    async def pay(self, amount: int) -> int:
        return amount * self.rate

    @staticmethod
    @step
    async def greet(name: str) -> str:
        return f"hello {name}"


async def test_a_bound_method_is_a_step(autojump_clock: MockClock) -> None:
    teller = Teller(3)
    patient = step(timeout=5)(teller.pay)

    @workflow
    async def run(ctx: Context) -> tuple[int, int, str]:
        greeting = await ctx.step(Teller.greet, "ann")
        return await ctx.step(teller.pay, 2), await ctx.step(patient, 4), greeting

    async with open_test_runtime(MemoryStore(), workflows=[run]) as rt:
        assert await (await rt.submit(run, key="k")).result() == (6, 12, "hello ann")


def test_a_step_that_never_returns_may_say_so() -> None:
    @step
    async def give_up() -> NoReturn:
        raise RuntimeError

    assert give_up.declared is NoReturn
