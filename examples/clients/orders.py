"""The application that the clients of this directory call."""

from decimal import Decimal

import attrs
import trio

from keyrun import App, Context, step, workflow


@attrs.frozen
class Order:
    number: int
    item: str
    price: Decimal


@step
async def charge(order: Order) -> str:
    await trio.sleep(0.2)
    return f"{order.price} for {order.item}"


@workflow
async def checkout(ctx: Context, order: Order) -> dict[str, object]:
    receipt = await ctx.step(charge, order)
    if order.price > 100:
        await ctx.approval("manager")
    return {"number": order.number, "receipt": receipt}


app = App(workflows=[checkout])
