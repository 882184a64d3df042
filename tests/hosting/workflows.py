"""Workflows and steps for the tests of hosts."""

import asyncio
import contextvars
import threading
from typing import Any

from keyrun import Context, Entity, Workflow, current_step, entity, step, workflow

caller: contextvars.ContextVar[str] = contextvars.ContextVar("caller", default="nobody")


@step
async def add_one(number: int) -> int:
    return number + 1


@step(asyncio=True)
async def add_on_loop(number: int) -> int:
    await asyncio.sleep(0)
    return number + 10


@step
def add_in_thread(number: int) -> int:
    return number + 100


@workflow
async def adding(ctx: Context, number: int) -> int:
    number = await ctx.step(add_one, number)
    number = await ctx.step(add_on_loop, number)
    return await ctx.step(add_in_thread, number)


@workflow
async def one(ctx: Context, number: int) -> int:
    return await ctx.step(add_one, number)


@workflow
async def waits(ctx: Context) -> str:
    return str(await ctx.wait_signal("go"))


@workflow
async def fails(ctx: Context) -> None:
    raise ValueError("no")


@step(asyncio=True)
async def loop_of() -> int:
    return id(asyncio.get_running_loop())


@workflow
async def tells_loop(ctx: Context) -> int:
    return await ctx.step(loop_of)


@step
async def resources_on_trio() -> str:
    return str(current_step().resources)


@step(asyncio=True)
async def resources_on_loop() -> str:
    return str(current_step().resources)


@step
def resources_in_thread() -> str:
    return f"{current_step().resources}"


@workflow
async def uses_resources(ctx: Context) -> list[str]:
    return [
        await ctx.step(resources_on_trio),
        await ctx.step(resources_on_loop),
        await ctx.step(resources_in_thread),
    ]


@step
async def submits_on_trio() -> int:
    run = await current_step().runtime.submit(one, 1, key="other")
    return int(await run.result())


@step(asyncio=True)
async def submits_on_loop() -> int:
    run = await current_step().runtime.submit(one, 2, key="other")
    return int(await run.result())


@step
def submits_in_thread() -> int:
    return int(current_step().runtime.submit(one, 3, key="other").result())


@workflow
async def submits(ctx: Context) -> list[int]:
    return [
        await ctx.step(submits_on_trio),
        await ctx.step(submits_on_loop),
        await ctx.step(submits_in_thread),
    ]


@entity
class Counter(Entity):
    async def add(self, number: int) -> int:
        self.state["count"] = self.state.get("count", 0) + number
        return int(self.state["count"])


ALL: list[Workflow[Any, Any]] = [adding, one, waits, fails, tells_loop, uses_resources, submits]


def keyrun_threads() -> list[str]:
    """Return the threads that a runtime left behind."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("keyrun")]
