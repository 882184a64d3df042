"""An account as an entity, which tests of entities share, and what its methods were called with."""

from contextlib import AbstractAsyncContextManager
from typing import Any, Unpack

import trio

from keyrun import (
    Context,
    Entity,
    Limits,
    Runtime,
    TransientError,
    Workflow,
    entity,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import RuntimeOptions, open_test_runtime

ran: list[str] = []
"""Methods and steps, in the order in which they began."""


@entity(limits=Limits(step_timeout=100))
class Account(Entity):
    async def deposit(self, amount: int) -> int:
        ran.append(f"{self.key}+{amount}")
        balance: int = self.state.get("balance", 0) + amount
        self.state["balance"] = balance
        return balance

    async def slow_deposit(self, amount: int, seconds: float = 10) -> int:
        ran.append(f"{self.key}+{amount} begins")
        await trio.sleep(seconds)
        balance = await self.deposit(amount)
        ran.append(f"{self.key}+{amount} ends")
        return balance

    async def balance(self) -> int:
        return int(self.state.get("balance", 0))

    async def overdraw(self) -> None:
        ran.append(f"{self.key} overdraws")
        self.state["balance"] = -1
        self.state.setdefault("log", []).append("overdrawn")
        raise ValueError("not with us")

    async def waver(self) -> None:
        ran.append(f"{self.key} wavers")
        self.state["balance"] = -1
        raise TransientError("ask again")

    async def close(self) -> None:
        self.state.clear()

    async def about(self) -> dict[str, Any]:
        told = [self.idempotency_key, self.idempotency_key]
        return {"key": self.key, "request": self.request_id, "told": told}


@step
async def note(what: str) -> str:
    ran.append(what)
    return what


@step
async def slow_note(what: str) -> str:
    ran.append(what)
    await trio.sleep(10)
    return what


@workflow
async def noted(ctx: Context, what: str) -> str:
    return await ctx.step(note, what)


@workflow
async def slowly_noted(ctx: Context, what: str) -> str:
    return await ctx.step(slow_note, what)


@workflow
async def napping(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return await ctx.step(note, "awake")


@workflow(while_waiting="yield")
async def polite(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return await ctx.step(note, "awake")


WORKFLOWS: list[Workflow[Any, Any]] = [noted, slowly_noted, napping, polite]


def opened(
    store: MemoryStore | None = None, *more: type, **options: Unpack[RuntimeOptions]
) -> AbstractAsyncContextManager[Runtime, bool]:
    """A test runtime with accounts, and `more` entities."""
    options.setdefault("workflows", WORKFLOWS)
    options["entities"] = [Account, *more]
    return open_test_runtime(store, **options)
