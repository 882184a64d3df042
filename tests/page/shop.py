"""The application that the tests of the web page look at: `keyrun serve shop:app`.

`tests/page/scene.py` starts its runs, one for each state and each thing that a run can wait for.
"""

from pathlib import Path
from typing import Any, Literal

import attrs
import trio

from keyrun import (
    App,
    Context,
    Entity,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    Retry,
    TransientError,
    Workflow,
    current_step,
    entity,
    step,
    workflow,
)
from keyrun.policies import CircuitBreaker, EverySteps, RateLimit, Resources
from keyrun.schedules import Cron, Every, Schedule
from keyrun.types import StepFunction

FOREVER = 10_000.0
SLOTS = 24
SLOW = 3600.0
"""Seconds of a timer or a backoff that does not end while a test looks at it."""
REPAIRED = Path("repaired")
"""The service of `payment` works as soon as this file exists."""


class CardDeclined(PermanentError):
    """Raised if a bank says no."""


async def _forever() -> None:
    await trio.sleep(FOREVER)


busy = step(name="busy", timeout=None)(_forever)
limited = step(name="limited", timeout=None, rate=RateLimit(1, per=FOREVER))(_forever)
narrow = step(name="narrow", timeout=None, max_concurrent=1)(_forever)
large = step(name="large", timeout=None, resources=Resources(cpu=1))(_forever)


@step(
    breaker=CircuitBreaker(failure_rate=0.5, minimum_calls=1, open_for=FOREVER),
    retry=Retry.none(),
)
async def broken() -> None:
    raise ConnectionError("the stock service does not answer")


@step(retry=Retry.fixed(max_attempts=2, delay=SLOW, jitter=0))
async def flaky() -> None:
    raise TransientError("the carrier is busy")


@step
async def remember() -> int:
    state = current_step().state
    state["visits"] = state.get("visits", 0) + 1
    return int(state["visits"])


STEPS: dict[str, StepFunction[..., Any]] = {
    "busy": busy,
    "limited": limited,
    "narrow": narrow,
    "large": large,
    "broken": broken,
    "flaky": flaky,
    "remember": remember,
}


@workflow
async def call(ctx: Context, name: str) -> Any:
    """Call one step by its name."""
    return await ctx.step(STEPS[name])


@attrs.frozen
class Item:
    """One line of an order."""

    sku: str
    quantity: int = 1


@attrs.frozen(kw_only=True)
class Order:
    """What a customer has ordered."""

    customer: str
    items: list[Item]
    amount: float
    express: bool = False
    payment: Literal["card", "invoice"] = "card"
    note: str | None = None


@step
async def reserve(order: Order) -> int:
    return sum(each.quantity for each in order.items)


@step(retry=Retry.exponential(max_attempts=5, base=0.05, jitter=0))
async def charge(order: Order) -> str:
    if current_step().attempt < 3:
        raise TransientError("the bank is busy")
    return f"receipt for {order.customer}"


@step
async def ship(order: Order) -> dict[str, Any]:
    return {"carrier": "express" if order.express else "parcel", "items": len(order.items)}


@workflow
async def checkout(ctx: Context, order: Order) -> dict[str, Any]:
    """Reserve, charge and ship an order. The first two attempts of the charge fail."""
    await ctx.step(reserve, order)
    receipt = await ctx.step(charge, order)
    return {"receipt": receipt, **await ctx.step(ship, order)}


@step(retry=Retry.fixed(max_attempts=2, delay=0.05, jitter=0))
async def fail_as(kind: str, text: str) -> None:
    if kind == "declined":
        raise CardDeclined(text)
    if kind == "busy":
        raise ConnectionError(text)
    raise ValueError(text)


@workflow
async def refund(ctx: Context, failure: dict[str, str]) -> None:
    """Fail, with an error of one's choice."""
    await ctx.step(fail_as, failure["kind"], failure["text"])


@step(retry=Retry.none())
async def pay_out(amount: float) -> str:
    if not REPAIRED.exists():
        raise ConnectionError("the bank does not answer")
    return f"paid {amount}"


@workflow
async def payment(ctx: Context, amount: float) -> str:
    """Fail until the bank is repaired."""
    return await ctx.step(pay_out, amount)


@workflow
async def nap(ctx: Context, seconds: float) -> None:
    """Wait for a timer."""
    await ctx.sleep(seconds)


@workflow
async def listen(ctx: Context) -> Any:
    """Wait for the signal `paid`."""
    return await ctx.wait_signal("paid", timeout=SLOW)


@workflow
async def ask(ctx: Context, about: str) -> str:
    """Wait for the decision of a manager."""
    decision = await ctx.approval("manager")
    return f"{about}: {decision.comment}"


@workflow
async def parent(ctx: Context, key: str) -> str:
    """Wait for a child under another key."""
    return await ctx.child(ask, "discount", key=key)


@workflow(instances=1)
async def single(ctx: Context) -> None:
    """Wait, one run at a time."""
    await ctx.sleep(FOREVER)


@step
async def echo(value: Any) -> Any:
    return value


@workflow
async def show(ctx: Context, value: Any) -> Any:
    """Return the input, by way of a step."""
    return await ctx.step(echo, value)


@workflow(checkpoint=EverySteps(500), limits=Limits(max_iterations=100_000))
async def count(ctx: Context, steps: int) -> int:
    """Run many steps, for a long journal."""
    for number in range(steps):
        await ctx.step(echo, number)
    return steps


@step
async def tick() -> None:
    await trio.sleep(0.007)


@workflow(checkpoint=EverySteps(50), limits=Limits(max_iterations=10_000_000))
async def clock(ctx: Context) -> None:
    """Make about 250 events per second."""
    while True:
        await ctx.step(tick)


@workflow(version=2)
async def monthly(ctx: Context, month: str) -> str:
    """Write the invoice of a month. Version 1 is not registered any more."""
    return f"billed {month}"


async def _produce(given: NodeInput) -> None: ...


async def _consume(given: NodeInput) -> None:
    await trio.sleep(FOREVER)


crowded = Graph("crowded")
crowded.node("produce", _produce)
crowded.node("consume", _consume, max_concurrent=1, max_waiting=1, timeout=None)
crowded.edge("produce", "consume")


async def _take(given: NodeInput) -> Any:
    return given.run_input


async def _refuse(given: NodeInput) -> None:
    raise PermanentError("the card has expired")


async def _note(given: NodeInput) -> str:
    return "done"


fulfilment = Graph("fulfilment")
fulfilment.node("validate", _take)
fulfilment.node("reserve", _note)
fulfilment.node("charge", _refuse)
fulfilment.node("alert", _note)
fulfilment.node("pack", _note)
fulfilment.node("ship", _consume, timeout=None)
fulfilment.edge("validate", "reserve")
fulfilment.edge("validate", "charge")
fulfilment.edge("charge", "alert", on="fail")
fulfilment.edge("charge", "pack")
fulfilment.edge("reserve", "ship")


@entity(name="Account")
class Account(Entity):
    """The account of a customer."""

    async def deposit(self, amount: int) -> int:
        balance: int = self.state.get("balance", 0) + amount
        self.state["balance"] = balance
        return balance


WORKFLOWS: list[Workflow[Any, Any]] = [
    ask,
    call,
    checkout,
    clock,
    count,
    crowded,
    fulfilment,
    listen,
    monthly,
    nap,
    parent,
    payment,
    refund,
    show,
    single,
]
NIGHTLY = Cron("30 3 * * *", "Europe/Berlin")
app = App(
    workflows=WORKFLOWS,
    entities=[Account],
    schedules=[
        Schedule(
            "nightly", show, "report", key="reports", when=Cron("30 3 * * *", "Europe/Berlin")
        ),
        Schedule("pulse", show, "beat", key="pulse", when=Every(SLOW)),
    ],
    max_concurrent_steps=SLOTS,
    resources=Resources(cpu=1),
    drain_timeout=0,
)
