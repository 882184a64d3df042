"""Gates that wait for a decision are found over all runs, whether the run is in memory, evicted, or
live in another process."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Reader, open_reader, step, workflow
from keyrun.status import ApprovalPage
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, open_test_runtime
from tests.runtime.inspect.test_pages import MOST, CountingStore, ended_runs


@step
async def quick(number: int) -> int:
    return number


@workflow
async def refund(ctx: Context, seconds: float | None) -> None:
    await ctx.step(quick, 1)
    await ctx.approval("manager", timeout=seconds)
    await ctx.sleep(1000)


@workflow
async def several(ctx: Context) -> None:
    def at_gate(at: int) -> Callable[[Context], Awaitable[object]]:
        return lambda ctx: ctx.approval(f"gate-{at}")

    await ctx.gather(*map(at_gate, range(5)), lambda ctx: ctx.wait_signal("go"))


@workflow
async def other(ctx: Context) -> None:
    await ctx.wait_signal("approval of the owner")


async def gates(source: Reader, **options: Any) -> list[tuple[str, str]]:
    page = await source.find_approvals(**options)
    assert page.cursor is None
    return [(each.run_id, each.gate) for each in page.approvals]


@pytest.mark.parametrize("evict_after", [0, 1e9])
async def test_open_gates_are_found_in_memory_evicted_and_from_another_process(
    autojump_clock: MockClock, evict_after: float
) -> None:
    store = MemoryStore()
    async with open_test_runtime(
        store, workflows=[refund, several, other], evict_after=evict_after
    ) as rt:
        await trio.sleep(5)
        await rt.submit(refund, 60.0, key="a", run_id="a-1")
        await rt.submit(refund, None, key="a", run_id="a-2")
        await rt.submit(refund, None, key="bb", run_id="b-1")
        await rt.submit(several, key="c", run_id="c-1")
        await rt.submit(other, key="d", run_id="d-1")
        await trio.sleep(1)
        async with open_reader(store) as reader:
            for source in (rt, reader):
                many = [("c-1", f"g1.{at}/gate-{at}") for at in range(5)]
                assert await gates(source) == [
                    ("a-1", "manager"),
                    *many,
                    ("b-1", "manager"),
                ]
                first = (await source.find_approvals(key="a")).approvals[0]
                assert (first.key, first.workflow, first.version) == ("a", "refund", 1)
                assert first.since == EPOCH + 5
                assert first.deadline == EPOCH + 65
                assert await gates(source, key="c", workflow="refund") == []
                assert await gates(source, workflow="several") == many
            await rt.approve("a-1", "manager", by="ann")
            await rt.reject("c-1", "g1.2/gate-2", by="ann")
            await rt.cancel("b-1")
            await trio.sleep(0.5)
            for source in (rt, reader):
                assert await gates(source) == []
            await trio.sleep(2000)
            for source in (rt, reader):
                assert await gates(source) == [("a-2", "manager")]


async def test_gates_are_paged_and_a_run_stays_on_one_page(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[refund, several], evict_after=0) as rt:
        for at in range(7):
            await rt.submit(several if at == 3 else refund, None, key=f"k{at}", run_id=f"r{at}")
        await trio.sleep(1)
        found: list[list[str]] = []
        cursor = None
        while True:
            page: ApprovalPage = await rt.find_approvals(limit=2, cursor=cursor)
            found.append([each.run_id for each in page.approvals])
            cursor = page.cursor
            if cursor is None:
                break
            # A cursor stays valid when its run ends.
            await rt.cancel(found[-1][-1])
        assert [sorted(set(each)) for each in found] == [
            ["r0", "r1"],
            ["r2", "r3"],
            ["r4", "r5"],
            ["r6"],
        ]
        assert len(found[1]) == 6


async def test_ended_runs_are_not_read(autojump_clock: MockClock) -> None:
    store = CountingStore()
    await ended_runs(store, 3000)
    async with open_test_runtime(store, workflows=[refund]) as rt:
        await rt.submit(refund, None, key="a", run_id="a-1")
        await trio.sleep(1)
        store.read = 0
        assert await gates(rt) == [("a-1", "manager")]
        assert store.read < 20


async def test_a_page_over_many_waiting_runs_is_bounded(autojump_clock: MockClock) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[other, refund], evict_after=0) as rt:
        runs = 3000
        for at in range(runs):
            await rt.submit_nowait(other, key=f"k{at:05}", run_id=f"r{at}")
        await rt.submit(refund, None, key="z", run_id="z")
        await rt.submit(refund, None, key="z00000", run_id="last")
        await trio.sleep(1)
        async with open_reader(store) as reader:
            found, examined, cursor = [], 0, None
            while True:
                store.read = 0
                page = await reader.find_approvals(cursor=cursor)
                assert store.read < MOST
                found += [each.run_id for each in page.approvals]
                examined += page.examined
                cursor = page.cursor
                if cursor is None:
                    break
            assert found == ["z", "last"]
            assert examined == runs + 2
