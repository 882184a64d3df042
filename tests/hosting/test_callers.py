"""A runtime that is called from the wrong place says which import is right."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

import keyrun
import keyrun.asyncio
import keyrun.sync
from keyrun import Context, Retry, RunFailed, step, workflow
from keyrun.storage import MemoryStore
from tests.hosting.hosts import GUEST, Host
from tests.hosting.workflows import ALL, Counter, one

HINT = r"in a step, use current_step\(\)\.runtime"
ONCE = Retry.none()


def uses(call: Callable[[], Awaitable[Any]], *, asyncio: bool = False) -> Any:
    """Return a workflow with one step that makes a call."""

    @step(retry=ONCE, asyncio=asyncio)
    async def calls() -> None:
        await call()

    @workflow
    async def calling(ctx: Context) -> None:
        await ctx.step(calls)

    return calling


@pytest.mark.parametrize("call", ["submit", "statistics", "signal", "watch"])
def test_a_trio_step_that_calls_the_asyncio_runtime_fails_with_a_hint(
    call: str, host: Host
) -> None:
    runtime: keyrun.asyncio.Runtime

    async def make_call() -> object:
        match call:
            case "submit":
                return await runtime.submit(one, 1, key="other")
            case "signal":
                return await runtime.signal("r", "go")
            case "watch":
                return await anext(runtime.watch("r"))
            case _:
                return runtime.statistics()

    calling = uses(make_call)

    async def body(rt: keyrun.asyncio.Runtime) -> None:
        nonlocal runtime
        runtime = rt
        run = await rt.submit(calling, key="k", run_id="r")
        with pytest.raises(RunFailed, match=rf"runs on Trio: {HINT}"):
            await asyncio.wait_for(run.result(), 5)

    host.run_with_runtime(body, workflows=[*ALL, calling])


def test_workflow_code_that_calls_the_asyncio_runtime_fails_with_a_hint(host: Host) -> None:
    runtime: keyrun.asyncio.Runtime

    @workflow
    async def calling(ctx: Context) -> None:
        await runtime.submit(one, 1, key="other")

    async def body(rt: keyrun.asyncio.Runtime) -> None:
        nonlocal runtime
        runtime = rt
        run = await rt.submit(calling, key="k", run_id="r")
        with pytest.raises(RunFailed, match=r"runs on Trio: .*in a workflow, call ctx"):
            await asyncio.wait_for(run.result(), 5)

    host.run_with_runtime(body, workflows=[one, calling])


@pytest.mark.parametrize("call", ["submit", "result", "signal", "entity", "pause", "events"])
async def test_an_asyncio_step_that_calls_the_trio_runtime_fails_and_harms_nothing(
    call: str,
) -> None:
    async def make_call() -> object:
        match call:
            case "submit":
                return await rt.submit(one, 1, key="other")
            case "result":
                return await current.result()
            case "signal":
                return await rt.signal("r", "go")
            case "entity":
                return await rt.entity(Counter, "c").add(1)
            case "pause":
                await rt.pause_key("k")
            case _:
                async with rt.events() as events:
                    return await anext(events)
        return None

    calling = uses(make_call, asyncio=True)
    async with keyrun.open_runtime(
        MemoryStore(), workflows=[*ALL, calling], entities=[Counter]
    ) as rt:
        current = await rt.submit(calling, key="k", run_id="r")
        with trio.fail_after(5), pytest.raises(RunFailed, match=rf"runs on asyncio: {HINT}"):
            await current.result()
        assert await (await rt.submit(one, 1, key="k")).result() == 2


def test_another_loop_and_a_thread_without_one_may_not_call_an_asyncio_runtime(host: Host) -> None:
    async def body(rt: keyrun.asyncio.Runtime) -> None:
        def on_another_loop() -> None:
            GUEST.run(rt.submit(one, 1, key="k"))

        def without_a_loop() -> None:
            rt.statistics()

        with pytest.raises(RuntimeError, match="on another event loop: call it on that loop"):
            await asyncio.to_thread(on_another_loop)
        with pytest.raises(RuntimeError, match=r"with keyrun\.sync\.open_runtime") as refused:
            await asyncio.to_thread(without_a_loop)
        assert "in an endpoint of a web framework, write `async def`" in str(refused.value)

        def beside_the_loop() -> int:
            submitted = asyncio.run_coroutine_threadsafe(rt.submit(one, 1, key="k"), loop)
            return asyncio.run_coroutine_threadsafe(submitted.result().result(), loop).result()

        loop = asyncio.get_running_loop()
        assert await asyncio.to_thread(beside_the_loop) == 2

    host.run_with_runtime(body)


async def test_asyncio_in_another_thread_may_not_call_a_trio_runtime() -> None:
    async with keyrun.open_runtime(MemoryStore(), workflows=ALL) as rt:
        with pytest.raises(RuntimeError, match=r"with keyrun\.asyncio\.open_runtime"):
            await trio.to_thread.run_sync(lambda: GUEST.run(rt.submit(one, 1, key="k")))


def test_a_trio_step_that_calls_the_blocking_runtime_fails_with_a_hint() -> None:
    async def make_call() -> object:
        return rt.submit(one, 1, key="other")

    calling = uses(make_call)
    with keyrun.sync.open_runtime(MemoryStore(), workflows=[*ALL, calling]) as rt:
        with pytest.raises(RunFailed, match=r"current_step\(\)\.runtime"):
            rt.submit(calling, key="k").result(timeout=5)
