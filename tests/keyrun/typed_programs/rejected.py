"""Each line that ends with `# wrong` is an error to a type checker."""

import keyrun
from keyrun import Context, workflow
from keyrun.groups import Member
from keyrun.schedules import Every
from tests.keyrun.typed_programs.definitions import (
    Account,
    Order,
    charge,
    checkout,
    label,
    reconcile,
    weigh,
)


@workflow
async def careless(ctx: Context, order: Order) -> None:
    await ctx.step(charge, "tea")  # wrong
    await ctx.step(charge)  # wrong
    await ctx.step(label, order, pages=2)  # wrong
    await ctx.step(weigh, order, 5)  # wrong
    await ctx.child(checkout)  # wrong
    await ctx.child(checkout, "tea")  # wrong


async def main() -> None:
    async with keyrun.open_runtime("state", workflows=[checkout, main]):  # wrong
        pass
    async with keyrun.open_runtime("state", workflows=[checkout]) as rt:
        await rt.submit(checkout, key="k")  # wrong
        await rt.submit(checkout, None, key="k")  # wrong
        await rt.submit(checkout, "tea", key="k")  # wrong
        await rt.submit(reconcile, Order("tea"), key="k")  # wrong
        await rt.submit(checkout, Order("tea"))  # wrong
        await rt.submit(checkout, Order("tea"), key="k", runid="r")  # wrong
        await rt.submit_nowait(checkout, key="k")  # wrong
        await rt.submit_nowait(checkout, 5, key="k")  # wrong
        await rt.submit_or_signal(checkout, key="k", run_id="r", name="paid")  # wrong
        await rt.submit_or_signal(reconcile, key="k", name="paid")  # wrong
        await rt.schedule("s", checkout, key="k", when=Every(5))  # wrong
        await rt.schedule("s", reconcile, key="k")  # wrong
        Member(checkout, "tea", key="k")  # wrong
        Member(checkout, key="k")  # wrong
        Member(reconcile, Order("tea"), key="k")  # wrong
        Member(checkout, Order("tea"))  # wrong
        await rt.entity(Account, "ann").deposit("5")  # wrong
        await rt.entity(Account, "ann").withdraw(5)  # wrong
        await rt.call(Account, "ann", Account.deposit, "5")  # wrong
        await rt.call(Account, "ann", Account.deposit)  # wrong
        await rt.call(Order, "ann", Account.deposit, 5)  # wrong
        run = await rt.submit(checkout, Order("tea"), key="k")
        (await run.result()).keys()  # wrong
    async with keyrun.connect(5):  # wrong
        pass
    async with keyrun.connect("state", tokens="secret"):  # wrong
        pass
    async with keyrun.connect("state") as client:
        await client.submit(checkout, "tea", key="k")  # wrong
        await client.call(Account, "ann", Account.deposit, "5")  # wrong
