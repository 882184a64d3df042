"""What the tests of blocks with a time limit share: steps, and a way to see a block replayed."""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import trio

from keyrun import Context, PermanentError, Workflow, current_step, step, workflow
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

ran: list[str] = []
"""The steps that were begun."""


@step
async def after(seconds: float, value: Any = None) -> Any:
    ran.append(current_step().step)
    await trio.sleep(seconds)
    return value


@step
async def quick(value: Any = None) -> Any:
    """Waits for nothing, so that it costs no checkpoint."""
    ran.append(current_step().step)
    return value


@step
async def refuse(seconds: float = 0) -> None:
    ran.append(current_step().step)
    await trio.sleep(seconds)
    raise PermanentError("refused")


async def stop(store: MemoryStore, crash: bool) -> None:
    """Leave the block, by a crash or by a drain."""
    if crash:
        store.crash()
        await trio.sleep_forever()


Body = Callable[[Context], Awaitable[Any]]


async def replayed(body: Body) -> Any:
    """What `body` returns, and asserts that it returns it again when it is replayed, also when all
    of it has been too late for long, with no step run again."""
    told: list[Any] = []

    @workflow
    async def flow(ctx: Context) -> Any:
        told.append(await body(ctx))
        await ctx.sleep(10_000)
        return told[-1]

    for crash in (False, True):
        told.clear()
        store = MemoryStore()
        async with open_test_runtime(store, workflows=[flow], evict_after=inf) as runtime:
            await runtime.submit(flow, key="k", run_id="r")
            await trio.sleep(5000)
            await stop(store, crash)
        (live,) = told
        before = list(ran)
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            run = await runtime.submit(flow, key="k", run_id="r")
            await run.result()
            events = [each.event for each in await runtime.history("r")]
            assert "interrupted" not in events
        # Once more after the restart, and once when it has left memory and is due.
        assert told == [live] * 3
        assert ran == before
        if not crash:
            ran.clear()
    return live


async def ends(flow: Workflow[Any, Any], **options: Any) -> Any:
    async with open_test_runtime(workflows=[flow], **options) as runtime:
        return await (await runtime.submit(flow, key="k", run_id="r")).result()


async def fetch(ctx: Context) -> str:
    return str(await ctx.step(after, 1, "fetched") + await ctx.step(after, 100, "never"))


async def wait(ctx: Context) -> str:
    await ctx.sleep(2)
    await ctx.step(after.options(name="between"), 0.5)
    await ctx.sleep(100)
    return "never"
