"""What the programs of all three faces use: workflows, steps and an entity."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, assert_type

from keyrun import Context, Entity, Workflow, entity, step, workflow
from keyrun.groups import Member


@dataclass
class Order:
    item: str


@dataclass
class GiftOrder(Order):
    to: str


@step
async def charge(order: Order) -> str:
    return order.item


@step(timeout=5)
def label(order: Order, *, copies: int = 1) -> bytes:
    return order.item.encode() * copies


def weigh(order: Order, scale: str = "kg") -> float:
    return 1.5


async def pick(order: Order) -> list[str]:
    return [order.item]


class Shop:
    def price(self, order: Order) -> int:
        return 5


@workflow
async def checkout(ctx: Context, order: Order) -> str:
    assert_type(await ctx.step(charge, order), str)
    assert_type(await ctx.step(label, order, copies=2), bytes)
    assert_type(await ctx.step(label.options(timeout=3), order), bytes)
    assert_type(await ctx.step(weigh, order, scale="g"), float)
    assert_type(await ctx.step(pick, order), list[str])
    assert_type(await ctx.step(Shop().price, order), int)
    calls = ctx.gather(ctx.step(weigh, order), ctx.step(charge, order))
    assert_type(await calls, tuple[float, str])
    assert_type(await ctx.child(reconcile), int)
    assert_type(await ctx.child(maybe), bool)
    assert_type(await ctx.child(maybe, order, key="k"), bool)
    return "done"


@workflow
async def reconcile(ctx: Context) -> int:
    return 1


@workflow(version=2)
async def maybe(ctx: Context, order: Order | None = None) -> bool:
    return order is not None


@entity
class Account(Entity):
    async def deposit(self, amount: int, note: str = "") -> int:
        return amount


EVERY: Sequence[Workflow[Any, Any]] = [checkout, reconcile, maybe]
MEMBERS = [
    Member(checkout, Order("tea"), key="a", tags=["gift"]),
    Member(checkout, GiftOrder("tea", "ann"), key="b"),
    Member(reconcile, key="c", member_id="nightly", delay=5),
]
