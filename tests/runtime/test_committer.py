"""With committer="process" a run can be on the disk before its runtime knows that it is there."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import trio

from keyrun import Context, RunCancelled, Runtime, State, UnknownRun, Workflow, step, workflow
from keyrun.storage import LmdbStore
from keyrun.storage.committer import ProcessCommitter
from keyrun.testing import RecordingHook, open_test_runtime

ran: list[str] = []


@step
async def work(run_id: str) -> None:
    ran.append(run_id)


@workflow
async def working(ctx: Context) -> None:
    await ctx.step(work, ctx.run_id)
    await ctx.step(work, ctx.run_id)


@workflow
async def listening(ctx: Context) -> list[int]:
    return [await ctx.wait_signal("news") for _ in range(2)]


class Answers:
    """Holds back the answers of a committer's child, as a busy loop does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._take = ProcessCommitter._answer
        self._free: trio.Event | None = None
        self.arrived = trio.Event()
        answers = self

        async def take(self: ProcessCommitter) -> None:
            await answers._take(self)
            if answers._free is not None:
                answers.arrived.set()
                await answers._free.wait()

        monkeypatch.setattr(ProcessCommitter, "_answer", take)

    def hold(self) -> None:
        self._free, self.arrived = trio.Event(), trio.Event()

    def release(self) -> None:
        assert self._free is not None
        self._free.set()
        self._free = None


@pytest.fixture
async def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    ran.clear()
    return Answers(monkeypatch)


async def asked_during_submit(
    rt: Runtime,
    answers: Answers,
    flow: Workflow[None, object],
    call: Callable[[], Awaitable[object]],
) -> None:
    """Submit the run "r", and make a call when its commit is applied and not answered. Where the
    run is not known yet, make the call again when the submit has returned."""
    known: list[object] = []

    async def ask() -> None:
        try:
            known.append(await call())
        except UnknownRun:
            known.append(False)

    async with trio.open_nursery() as nursery:
        answers.hold()
        nursery.start_soon(lambda: rt.submit(flow, key="k", run_id="r"))
        await answers.arrived.wait()
        nursery.start_soon(ask)
        await trio.testing.wait_all_tasks_blocked()
        answers.release()
    if not known[0]:
        assert await call()


@pytest.fixture
def store(tmp_path: Path) -> LmdbStore:
    return LmdbStore(tmp_path, committer="process")


async def test_a_cancel_while_a_submit_is_under_way_holds_once_it_is_accepted(
    store: LmdbStore, answers: Answers
) -> None:
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=[working], on_terminal=hook) as rt:
        await asked_during_submit(rt, answers, working, lambda: rt.cancel("r"))
        before = ran.count("r")
        await (await rt.submit(working, key="other")).result()
        with pytest.raises(RunCancelled):
            await (await rt.submit(working, key="k", run_id="r")).result()
        assert ran.count("r") == before
    assert [outcome.state for outcome in hook.of("r")] == [State.CANCELLED]


async def test_a_pause_while_a_submit_is_under_way_holds_once_it_is_accepted(
    store: LmdbStore, answers: Answers
) -> None:
    async with open_test_runtime(store, workflows=[working]) as rt:
        await asked_during_submit(rt, answers, working, lambda: rt.pause("r"))
        before = ran.count("r")
        await (await rt.submit(working, key="other")).result()
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.PAUSED
        assert ran.count("r") == before


async def test_signals_while_a_submit_is_under_way_arrive_in_order_once_they_are_accepted(
    store: LmdbStore, answers: Answers
) -> None:
    async with open_test_runtime(store, workflows=[listening]) as rt:
        await asked_during_submit(rt, answers, listening, lambda: rt.signal("r", "news", 1))
        await rt.signal("r", "news", 2)
        with trio.fail_after(5):
            assert await (await rt.submit(listening, key="k", run_id="r")).result() == [1, 2]


async def test_a_run_is_unknown_while_its_submit_is_under_way(
    store: LmdbStore, answers: Answers
) -> None:
    async with open_test_runtime(store, workflows=[working]) as rt, trio.open_nursery() as nursery:
        answers.hold()
        nursery.start_soon(lambda: rt.submit(working, key="k", run_id="r"))
        await answers.arrived.wait()
        try:
            assert await rt.status("r") is None
            assert await rt.runs() == []
            assert await rt.keys() == []
            assert not await rt.cancel("r")
            with pytest.raises(UnknownRun):
                await rt.signal("r", "news")
        finally:
            answers.release()
