"""An application whose store is operated from outside, by tests of the command line."""

import sys
from typing import Any

import attrs

import keyrun.sync
from keyrun import App, Context, Entity, Limits, PermanentError, Workflow, entity, step, workflow


@step
async def breaks() -> None:
    raise PermanentError("no")


@workflow
async def order(ctx: Context, order: dict[str, int]) -> Any:
    paid = await ctx.wait_signal("paid")
    await ctx.approval("manager")
    return paid


@workflow
async def nap(ctx: Context, seconds: float) -> None:
    await ctx.sleep(seconds)


@workflow
async def gated(ctx: Context, _: None) -> None:
    await ctx.approval("manager")


@workflow
async def fails(ctx: Context, _: None) -> None:
    await ctx.step(breaks)


@attrs.frozen
class Parcel:
    """An input of a class."""

    weight: float
    sizes: set[int]


@workflow
async def send(ctx: Context, parcel: Parcel) -> float:
    return parcel.weight


@entity
class Account(Entity):
    async def deposit(self, amount: int, note: str = "") -> str:
        self.state["balance"] = self.state.get("balance", 0) + amount
        return f"{self.state['balance']} {note}"


WORKFLOWS: list[Workflow[Any, Any]] = [order, nap, gated, fails, send]
app = App(workflows=WORKFLOWS, limits=Limits(run_timeout=77))
OPTIONS: dict[str, Any] = {"workflows": WORKFLOWS, "entities": [Account]}


def main() -> None:
    """Have a store open until the standard input ends."""
    with keyrun.sync.open_runtime(sys.argv[1], control=True, **OPTIONS):
        print("open", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()
