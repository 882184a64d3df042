"""Callers that wait for the end of a run are notified once, however the run comes to its end."""

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, State, step, workflow
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.runs import Change, End, NoEnd, RunTable
from keyrun.storage import MemoryStore, StoreClosed
from keyrun.testing import open_test_runtime


@workflow
async def nap(ctx: Context) -> str:
    await ctx.sleep(10)
    return ctx.run_id


@step
async def work() -> None:
    await trio.sleep(10)


@workflow
async def job(ctx: Context) -> None:
    await ctx.step(work)


async def test_a_callback_is_called_once_and_a_cancelled_callback_never() -> None:
    reports: list[tuple[str, int, End]] = []
    async with MemoryStore() as store:
        runs = RunTable(Ledger(store.namespace("default")))

        def kept(number: int, end: End) -> None:
            reports.append(("kept", number, end))

        def cancelled(number: int, end: End) -> None:
            reports.append(("cancelled", number, end))

        runs.when_ended(1, kept)
        runs.when_ended(1, cancelled)
        runs.when_ended(2, cancelled)
        runs.ignore_end(1, cancelled)
        runs.ignore_end(2, cancelled)
        runs.ignore_end(2, cancelled)
        for _ in range(2):
            runs.report_end(1, NoEnd.FORGOTTEN)
            runs.report_end(2, NoEnd.FORGOTTEN)
        assert reports == [("kept", 1, NoEnd.FORGOTTEN)]


async def test_leaving_the_runtime_notifies_every_callback_and_takes_no_more() -> None:
    reports: list[tuple[int, End]] = []

    def report(number: int, end: End) -> None:
        reports.append((number, end))

    async with MemoryStore() as store:
        runs = RunTable(Ledger(store.namespace("default")))
        for number in (1, 1, 2):
            runs.when_ended(number, report)
        runs.close()
        assert reports == [(1, NoEnd.CLOSED), (1, NoEnd.CLOSED), (2, NoEnd.CLOSED)]
        with pytest.raises(StoreClosed):
            runs.when_ended(1, report)


async def test_all_tasks_that_wait_for_a_result_get_it_and_a_cancelled_one_does_not(
    autojump_clock: MockClock,
) -> None:
    results: list[str] = []
    async with open_test_runtime(workflows=[nap]) as rt:
        run = await rt.submit(nap, key="k", run_id="r")

        async def wait(seconds: float) -> None:
            with trio.move_on_after(seconds):
                results.append(await run.result())

        async with trio.open_nursery() as nursery:
            for seconds in (5, 20, 6, 20):
                nursery.start_soon(wait, seconds)
        assert results == ["r", "r"]


async def test_a_watch_ends_when_its_quarantined_run_is_forgotten(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], drain_timeout=0) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
    states: list[str] = []
    async with (
        open_test_runtime(store) as rt,
        trio.open_nursery() as nursery,
    ):

        async def watch() -> None:
            async for progress in rt.watch("r"):
                states.append(progress.state)

        await trio.sleep(1)
        nursery.start_soon(watch)
        await trio.sleep(1)
        await rt.forget("r")
        with trio.fail_after(5):
            while nursery.child_tasks:
                await trio.sleep(1)
    assert states == ["quarantined"]


async def test_a_later_change_of_a_quarantined_run_does_not_change_what_its_callers_receive(
    autojump_clock: MockClock,
) -> None:
    """Callers resume later than the callback, and another task may cancel the run before that."""
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[nap]) as rt:
        await rt.submit(nap, key="k", run_id="r")
    ends: list[End] = []
    async with open_test_runtime(store) as rt:
        rt._run_table.when_ended(1, lambda _, end: ends.append(end))
        await trio.sleep(1)
        assert await rt.cancel("r")
    (end,) = ends
    assert isinstance(end, StatusRecord)
    assert end.state is State.QUARANTINED


async def test_a_change_whose_records_were_dropped_is_not_waited_for() -> None:
    async with MemoryStore() as store:
        runs = RunTable(Ledger(store.namespace("default")))
        with pytest.raises(ValueError, match="dropped"), store.open_group().together() as group:
            runs.begin_change(1, Change.REDRIVE, group)
            assert runs.changing(1) is Change.REDRIVE
            raise ValueError("dropped")
        assert runs.changing(1) is None
