"""The counts of unfinished runs agree with the runs of the store at every commit."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Limits, PermanentError, Retry, Runtime, Workflow, step, workflow
from keyrun.runtime.records.run_counts import count, stored_counts
from keyrun.runtime.records.tables import Ledger
from keyrun.storage import MemoryStore, Store
from keyrun.storage.batch import Batch
from keyrun.testing import crash_points, open_test_runtime
from tests.runtime.fragile import FragileStore

broken = True


@step(retry=Retry.none())
async def work() -> None:
    await trio.sleep(0.1)


@step(retry=Retry.none())
async def breaks() -> None:
    if broken:
        raise PermanentError("broken")


@workflow
async def short(ctx: Context) -> None:
    await ctx.step(work)


@workflow
async def waits(ctx: Context) -> None:
    await ctx.step(work)
    await ctx.wait_signal("go")


@workflow
async def fails(ctx: Context) -> None:
    await ctx.step(breaks)


@workflow
async def loops(ctx: Context, left: int) -> None:
    await ctx.step(work)
    if left:
        ctx.continue_as(left - 1)


@workflow
async def parent(ctx: Context) -> None:
    await ctx.child(short, key="child")


ALL: list[Workflow[Any, Any]] = [short, waits, fails, loops, parent]


async def audit(store: Store) -> dict[tuple[str, int], int]:
    """The counts of a store that is closed, by workflow and version, checked against its runs."""
    async with store:
        ledger = Ledger(store.namespace("default"))
        kept = await stored_counts(ledger)
        if kept is None:
            return {}
        assert kept.all == await count(ledger)
        return kept.by_version


async def everything(runtime: Runtime) -> None:
    """Runs in every location, some of which end."""
    await runtime.submit(short, key="a", run_id="short")
    await runtime.submit(waits, key="b", run_id="waits")
    await runtime.submit(waits, key="b", run_id="queued", limits=Limits(run_timeout=1e6))
    await runtime.submit(short, key="c", run_id="delayed", delay=1e6)
    await runtime.submit(short, key="c", run_id="cancelled", delay=1e6)
    await runtime.submit(fails, key="d", run_id="fails")
    await runtime.submit(loops, 2, key="e", run_id="loops")
    await runtime.submit(parent, key="f", run_id="parent")
    await trio.sleep(5)
    await runtime.cancel("cancelled")
    status = await runtime.status("fails")
    assert status is not None
    if status.generation == 1:
        await runtime.redrive("fails")
    await trio.sleep(5)


async def test_counts_are_exact_whatever_commit_a_crash_comes_at(
    autojump_clock: MockClock,
) -> None:
    for point in crash_points(every=3):
        await point.run(everything, workflows=ALL)
        assert await audit(point.store) == {("waits", 1): 2, ("short", 1): 1}


async def test_a_store_that_has_no_counts_is_counted_when_it_is_opened(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=ALL) as runtime:
        await everything(runtime)
    async with store:
        space = store.namespace("default")
        batch = Batch()
        batch.delete("counter", space.full(b"unfinished"))
        for key, _ in await store.scan("unfinished"):
            batch.delete("unfinished", key)
        await store.commit(batch)
    async with open_test_runtime(store, workflows=ALL) as runtime:
        await runtime.submit(waits, key="z")
    assert await audit(store) == {("waits", 1): 3, ("short", 1): 1}


async def test_a_quarantined_run_counts_until_it_is_forgotten(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=ALL) as runtime:
        await runtime.submit(waits, key="a", run_id="one")
        await runtime.submit(waits, key="b", run_id="two")
        await trio.sleep(1)
    async with open_test_runtime(store) as runtime:
        await runtime.signal("one", "go")
        await runtime.signal("two", "go")
        await trio.sleep(1)
        await runtime.forget("one")
        await runtime.cancel("two")
    assert await audit(store) == {}


async def test_a_run_that_is_redriven_with_another_version_counts_there(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[waits]) as runtime:
        await runtime.submit(waits, key="a", run_id="one")
        await trio.sleep(1)
    later = workflow(name="waits", version=2)(waits.function)
    async with open_test_runtime(store, workflows=[later]) as runtime:
        await runtime.signal("one", "other")
        await runtime.pause("one")
        await runtime.resume("one")
        await trio.sleep(1)
        await runtime.redrive("one")
        await trio.sleep(1)
    assert await audit(store) == {("waits", 2): 1}


@pytest.mark.parametrize("table", ["runs", "status", "journal"])
async def test_a_run_that_is_lost_to_damage_does_not_count(
    autojump_clock: MockClock, table: str
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=ALL) as runtime:
        await runtime.submit(waits, key="a")
        await runtime.submit(waits, key="b")
        await trio.sleep(1)
    store.damage(table, store.keys(table)[0])
    for _ in range(2):
        async with open_test_runtime(store, workflows=ALL) as runtime:
            for status in await runtime.runs():
                await runtime.pause(status.run_id)
            await trio.sleep(1)
    assert await audit(store) == {("waits", 1): 1}
    async with open_test_runtime(store, workflows=ALL) as runtime:
        for status in await runtime.runs():
            await runtime.cancel(status.run_id)
    assert await audit(store) == {}
