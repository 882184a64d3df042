"""Virtual time of `keyrun.testing` stands still while code outside of Trio is at work."""

import asyncio
import threading
import time
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Retry,
    RunFailed,
    RunOutcome,
    State,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, AsyncioHost, SyncHost, open_test_runtime
from tests.faults.soaking import amount
from tests.hosting.hosts import GUEST

HOUR = 3600


@step(timeout=5)
def in_thread(number: int) -> int:
    time.sleep(0.005)
    return number + 1


@step(timeout=5, asyncio=True)
async def on_loop(number: int) -> int:
    await asyncio.sleep(0.005)
    return number + 10


@workflow
async def slow(ctx: Context, number: int) -> int:
    await ctx.sleep(HOUR)
    number = await ctx.step(in_thread, number)
    number = await ctx.step(on_loop, number)
    await ctx.sleep(HOUR)
    return number


@step(timeout=3 * HOUR)
def asks_in_thread() -> int:
    return int(current_step().runtime.submit(slow, 0, key="of a thread").result())


@step(timeout=3 * HOUR, asyncio=True)
async def asks_on_loop() -> int:
    return int(await (await current_step().runtime.submit(slow, 0, key="of the loop")).result())


@workflow
async def asking(ctx: Context) -> int:
    return await ctx.step(asks_in_thread) + await ctx.step(asks_on_loop)


WORKFLOWS: list[Workflow[Any, Any]] = [slow, asking]
RUNS = range(5)
RESULTS = [number + 11 for number in RUNS]


@pytest.mark.parametrize("turn", range(amount(8, 1600)))
async def test_a_sync_step_does_not_run_out_of_virtual_time(
    turn: int, autojump_clock: MockClock
) -> None:
    async with open_test_runtime(workflows=WORKFLOWS) as rt:
        runs = [await rt.submit(slow, number, key=f"k{number}") for number in RUNS]
        assert [await run.result() for run in runs] == RESULTS
        assert 2 * HOUR <= trio.current_time() < 2 * HOUR + 1
        assert await (await rt.submit(asking, key="k")).result() == 22


async def test_with_real_threads_virtual_time_passes_beside_a_sync_step(
    autojump_clock: MockClock,
) -> None:
    released = threading.Event()

    @step(timeout=5)
    def hangs() -> None:
        released.wait()

    @workflow
    async def hanging(ctx: Context) -> None:
        await ctx.step(hangs.options(retry=Retry.none()))

    async with open_test_runtime(workflows=[hanging], threads="real") as rt:
        run = await rt.submit(hanging, key="k")
        await trio.sleep(60)
        released.set()
        with pytest.raises(RunFailed, match="timeout"):
            await run.result()


async def test_a_sync_hook_does_not_run_out_of_virtual_time(autojump_clock: MockClock) -> None:
    ended = []

    def hook(outcome: RunOutcome) -> None:
        time.sleep(0.005)
        ended.append(outcome.run_id)

    async with open_test_runtime(workflows=WORKFLOWS, on_terminal=hook, hook_timeout=0.001) as rt:
        await (await rt.submit(slow, 1, key="k", run_id="r")).result()
    assert ended == ["r"]


def test_an_async_hook_on_the_loop_does_not_run_out_of_virtual_time() -> None:
    host = AsyncioHost()
    ended = []

    async def hook(outcome: RunOutcome) -> None:
        await asyncio.sleep(0.005)
        ended.append(outcome.run_id)

    async def main() -> None:
        async with host.open_test_runtime(
            workflows=WORKFLOWS, on_terminal=hook, hook_timeout=0.001
        ) as rt:
            await (await rt.submit(slow, 1, key="k", run_id="r")).result()

    GUEST.run(main())
    assert ended == ["r"]


async def test_threads_that_are_neither_inline_nor_real_are_refused(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(ValueError, match="threads must be 'inline' or 'real', got 'fake'"):
        async with open_test_runtime(threads="fake"):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("turn", range(amount(3, 200)))
def test_a_plain_test_has_virtual_time_only_while_it_waits(turn: int) -> None:
    host = SyncHost()
    with host.open_test_runtime(workflows=WORKFLOWS) as rt:
        runs = [rt.submit(slow, number, key=f"k{number}") for number in RUNS]
        time.sleep(0.01)
        assert host.wall() < EPOCH + 1
        host.sleep(HOUR - 10)
        assert runs[0].status().state is State.WAITING
        assert [run.result() for run in runs] == RESULTS
        assert 2 * HOUR <= host.wall() - EPOCH < 2 * HOUR + 1
        assert rt.submit(asking, key="k").result() == 22


@pytest.mark.parametrize("turn", range(amount(3, 200)))
def test_a_test_on_asyncio_has_virtual_time_only_while_it_waits(turn: int) -> None:
    host = AsyncioHost()

    async def main() -> None:
        async with host.open_test_runtime(workflows=WORKFLOWS) as rt:
            runs = [await rt.submit(slow, number, key=f"k{number}") for number in RUNS]
            await asyncio.sleep(0.01)
            assert host.wall() < EPOCH + 1
            await host.sleep(HOUR - 10)
            assert (await runs[0].status()).state is State.WAITING
            assert await asyncio.gather(*[run.result() for run in runs]) == RESULTS
            assert 2 * HOUR <= host.wall() - EPOCH < 2 * HOUR + 1
            assert await (await rt.submit(asking, key="k")).result() == 22

    GUEST.run(main())


def test_a_cancelled_call_does_not_let_time_pass() -> None:
    host = AsyncioHost()

    async def main() -> None:
        async with host.open_test_runtime(workflows=WORKFLOWS) as rt:
            run = await rt.submit(slow, 1, key="k")
            waiting = asyncio.create_task(run.result())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            before = host.wall()
            await asyncio.sleep(0.01)
            assert host.wall() == before

    GUEST.run(main())


def test_a_plain_test_can_crash_the_store_and_open_it_again() -> None:
    host, store = SyncHost(), MemoryStore()
    with host.open_test_runtime(store, workflows=WORKFLOWS) as rt:
        rt.submit(slow, 1, key="k", run_id="r")
        host.sleep(HOUR / 2)
        host.crash(store)
    host.sleep(60)
    with host.open_test_runtime(store, workflows=WORKFLOWS) as rt:
        assert rt.run("r").result() == 12
    assert 2 * HOUR <= host.wall() - EPOCH < 2 * HOUR + 1
    with pytest.raises(RuntimeError, match="nothing can crash"):
        host.crash(store)


def test_a_test_on_asyncio_can_crash_the_store_and_open_it_again() -> None:
    host, store = AsyncioHost(), MemoryStore()

    async def main() -> None:
        async with host.open_test_runtime(store, workflows=WORKFLOWS) as rt:
            await rt.submit(slow, 1, key="k", run_id="r")
            await host.sleep(HOUR / 2)
            store.crash()
            await asyncio.sleep(HOUR)
        await host.sleep(60)
        async with host.open_test_runtime(store, workflows=WORKFLOWS) as rt:
            assert await rt.run("r").result() == 12

    GUEST.run(main())


def test_one_loop_has_one_clock() -> None:
    async def main() -> None:
        async with AsyncioHost().open_test_runtime():
            with pytest.raises(RuntimeError, match="on another clock"):
                async with AsyncioHost().open_test_runtime():
                    pass

    GUEST.run(main())


def test_a_sync_host_opens_one_runtime_at_a_time() -> None:
    host = SyncHost()
    with host.open_test_runtime():
        with pytest.raises(RuntimeError, match="is open: leave its block first"):
            with host.open_test_runtime():
                pass
        host.sleep(1)
