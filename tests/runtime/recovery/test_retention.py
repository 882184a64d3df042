"""Ended runs are kept by age since the end and by count; dead letters stay."""

from collections.abc import Collection
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, PermanentError, Retention, RunFailed, State, step, workflow
from keyrun.groups import Member
from keyrun.storage import MemoryStore, StoreError
from keyrun.testing import RecordingHook, open_test_runtime


@step
async def work(seconds: float) -> None:
    await trio.sleep(seconds)


@workflow
async def job(ctx: Context, seconds: float) -> None:
    await ctx.step(work, seconds)


@step
async def broken() -> None:
    raise PermanentError("no")


@workflow
async def doomed(ctx: Context) -> None:
    await ctx.step(broken)


async def test_a_run_is_swept_exactly_so_long_after_its_end(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[job], retention=Retention(age=100)) as runtime:
        run = await runtime.submit(job, 50, key="k", run_id="r")
        await run.result()
        await trio.sleep(99.9)
        assert await runtime.status("r") is not None
        await trio.sleep(0.2)
        assert await runtime.status("r") is None


async def test_only_so_many_ended_runs_are_kept(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], retention=Retention(count=3)) as runtime:
        for number in range(5):
            run = await runtime.submit(job, 1, key="k", run_id=f"r{number}")
            await run.result()
        await trio.sleep(1)
        assert [status.run_id for status in await runtime.runs()] == ["r2", "r3", "r4"]
    async with open_test_runtime(store, workflows=[job], retention=Retention(count=1)) as runtime:
        await trio.sleep(1)
        assert [status.run_id for status in await runtime.runs()] == ["r4"]
        assert len(await store.scan("journal")) == 1


async def test_dead_letters_stay_until_they_are_forgotten(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[doomed], retention=Retention(age=10)) as runtime:
        run = await runtime.submit(doomed, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await trio.sleep(1000)
        assert len(await runtime.dead_letters()) == 1
        await runtime.forget("r")
        assert await runtime.dead_letters() == []


async def test_a_repeat_within_the_retention_is_the_same_run_and_after_it_a_new_one(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[job], retention=Retention(age=100)) as runtime:
        await (await runtime.submit(job, 1, key="k", run_id="r")).result()
        assert not (await runtime.submit(job, 1, key="k", run_id="r")).newly_submitted
        await trio.sleep(200)
        assert (await runtime.submit(job, 1, key="k", run_id="r")).newly_submitted


@pytest.mark.parametrize("field", ["age", "count"])
def test_a_retention_that_keeps_nothing_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be positive, got 0"):
        Retention(**{field: 0})


async def test_what_the_hook_was_not_told_is_not_swept(autojump_clock: MockClock) -> None:
    hook = RecordingHook(failures=12)
    async with open_test_runtime(
        workflows=[job], on_terminal=hook, retention=Retention(age=60, count=3)
    ) as rt:
        for number in range(20):
            await (await rt.submit(job, 0.0, key="k", run_id=f"r{number}")).result()
        await trio.sleep(10_000)
        assert [outcome.run_id for outcome in hook.outcomes] == [f"r{n}" for n in range(20)]
        assert await rt.runs() == []


class Unreadable(MemoryStore):
    """A store of which some tables cannot be read for a while."""

    tables: Collection[str] = ()

    async def _get(self, table: str, key: bytes) -> bytes | None:
        self._check(table)
        return await super()._get(table, key)

    async def _scan(self, table: str, *where: Any) -> list[tuple[bytes, bytes]]:
        self._check(table)
        return await super()._scan(table, *where)

    def _check(self, table: str) -> None:
        if table in self.tables:
            raise StoreError("the disk gave up")


@pytest.mark.parametrize("table", ["ids", "sent", "former", "members"])
async def test_a_run_that_cannot_be_read_is_not_forgotten_by_halves(
    autojump_clock: MockClock, table: str
) -> None:
    store = Unreadable()
    async with open_test_runtime(store, workflows=[job]) as runtime:
        members = [Member(job, 1, key="k", member_id="m")]
        await (await runtime.submit_group("g", members)).results()
        known = await runtime.status("g-m")
        story = await runtime.history("g-m")
        store.tables = [table]
        with pytest.raises(StoreError, match="gave up"):
            await runtime.forget("g-m")
        store.tables = ()
        await trio.sleep(1)
        assert await runtime.status("g-m") == known
        assert await runtime.history("g-m") == story
        await runtime.forget("g-m")
        assert await runtime.status("g-m") is None
        assert await runtime.group("g") is None
        again = await (await runtime.submit_group("g", members)).results()
        assert again["m"].state is State.SUCCEEDED


async def test_forgotten_and_redriven_runs_do_not_count_as_kept(autojump_clock: MockClock) -> None:
    async with open_test_runtime(
        workflows=[job, doomed], retention=Retention(age=1000, count=3)
    ) as rt:
        for number in range(5):
            await (await rt.submit(job, 0.0, key="k", run_id=f"old-{number}")).result()
            await rt.forget(f"old-{number}")
        with pytest.raises(RunFailed):
            await (await rt.submit(doomed, key="k", run_id="dead")).result()
        for _ in range(5):
            await rt.redrive("dead")
            await trio.sleep(1)
        await rt.forget("dead")
        for number in range(3):
            await (await rt.submit(job, 0.0, key="k", run_id=f"new-{number}")).result()
        await trio.sleep(1)
        assert [run.run_id for run in await rt.runs()] == ["new-0", "new-1", "new-2"]


async def test_a_run_is_swept_in_time_after_others_were_forgotten(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[job], retention=Retention(age=100)) as rt:
        await (await rt.submit(job, 0.0, key="k", run_id="forgotten")).result()
        await rt.forget("forgotten")
        await trio.sleep(200)
        await (await rt.submit(job, 0.0, key="k", run_id="r")).result()
        await trio.sleep(99)
        assert await rt.status("r") is not None
        await trio.sleep(2)
        assert await rt.status("r") is None
