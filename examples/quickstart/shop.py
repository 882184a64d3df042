"""A small shop: the finished program of docs/quickstart.md.

An order is charged with retries. It waits for an address, and for a manager if it is expensive. It
is packed for a second and shipped. Points for each order are kept in an entity. Kill the program
at any time and start it again: every order resumes where it stopped.
"""

import trio

import keyrun
from keyrun import (
    ApprovalRejected,
    Context,
    Entity,
    Retry,
    Runtime,
    SignalTimeout,
    State,
    TransientError,
    current_step,
    entity,
    step,
    workflow,
)

DAY = 86_400


@step(timeout=5, retry=Retry.exponential(max_attempts=4, base=0.1))
async def charge(order: str, amount: int) -> str:
    """Charge the customer. The bank is busy at the first attempt."""
    if current_step().attempt == 1:
        raise TransientError("the bank is busy")
    return f"receipt for {amount}"


@step
async def refund(receipt: str) -> None:
    """Return the money. A real shop would pass `current_step().idempotency_key` to the bank."""


@step
async def ship(order: str, address: str) -> str:
    """Ship the parcel."""
    return f"{order} shipped to {address}"


@workflow
async def checkout(ctx: Context, amount: int) -> str:
    """Charge, wait for the address and for the approval of a large order, pack and ship."""
    order = ctx.run_id
    receipt = await ctx.step(charge, order, amount)
    try:
        address = await ctx.wait_signal("address", timeout=7 * DAY)
        if amount > 1000:
            await ctx.approval("manager", timeout=DAY)
    except SignalTimeout:
        await ctx.step(refund, receipt)
        return f"{order} refunded: no answer"
    except ApprovalRejected as error:
        await ctx.step(refund, receipt)
        return f"{order} refunded: {error.comment}"
    await ctx.sleep(1)
    return await ctx.step(ship, order, address)


@entity
class Points(Entity):
    """The points of one customer."""

    async def add(self, points: int) -> int:
        """Add `points` and return the new total."""
        total: int = self.state.get("total", 0) + points
        self.state["total"] = total
        return total


async def approve_when_asked(rt: Runtime, run_id: str) -> None:
    """Approve a run, as a manager does who sees it in a list."""
    while (status := await rt.status(run_id)) is not None and not status.state.terminal:
        if status.state is State.WAITING and status.waiting_on == "approval manager":
            await rt.approve(run_id, "manager", by="ann", comment="known customer")
        await trio.sleep(0.1)


async def sell(rt: Runtime, customer: str, order: str, amount: int) -> None:
    """Take an order, answer its questions, and print how it ended."""
    run = await rt.submit(checkout, amount, key=customer, run_id=order)
    # The id makes a repeat harmless when the program is started again.
    await rt.signal(order, "address", "1 Main Street", signal_id=f"{order}-address")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(approve_when_asked, rt, order)
        print(await run.result())
    points = rt.entity(Points, customer, request_id=order)
    print(customer, "has", await points.add(amount // 10), "points")


async def main() -> None:
    """Sell two orders to one customer."""
    async with keyrun.open_runtime("state", workflows=[checkout], entities=[Points]) as rt:
        await sell(rt, "alice", "order-1", 50)
        await sell(rt, "alice", "order-2", 5000)


if __name__ == "__main__":
    trio.run(main)
