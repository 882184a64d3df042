"""Delayed runs get their place in line when they are due."""

import pytest
import trio

from keyrun import Context, State, Workflow, step, workflow
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, open_test_runtime
from tests.runtime.fragile import FragileStore


class Log:
    """A workflow that writes down when which run was executed."""

    def __init__(self) -> None:
        self.begun: dict[str, float] = {}
        self.names: list[str] = []

        @step
        async def note(name: str) -> None:
            self.names.append(name)
            self.begun[name] = trio.current_time()
            await trio.sleep(1)

        @workflow
        async def job(ctx: Context, name: str) -> str:
            await ctx.step(note, name)
            return name

        self.job: Workflow[str, str] = job


@pytest.fixture
def log() -> Log:
    return Log()


async def test_a_delayed_run_begins_when_it_is_due(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        late = await rt.submit(log.job, "late", key="a", delay=100)
        early = await rt.submit(log.job, "early", key="b", delay=10.5)
        status = await late.status()
        assert status is not None
        assert status.state is State.PENDING
        assert await late.result() == "late"
        assert await early.result() == "early"
    assert log.begun == pytest.approx({"early": 10.5, "late": 100}, abs=0.1)


async def test_a_delayed_run_comes_after_what_was_submitted_before_it_was_due(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        delayed = await rt.submit(log.job, "delayed", key="k", delay=2.5)
        for name in ("a", "b", "c", "d"):
            await rt.submit(log.job, name, key="k")
        await trio.sleep(3)
        last = await rt.submit(log.job, "last", key="k")
        await delayed.result()
        await last.result()
    assert log.names == ["a", "b", "c", "d", "delayed", "last"]


async def test_runs_with_the_same_delay_keep_the_order_of_their_submission(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        for n in range(20):
            await rt.submit(log.job, str(n), key="k", delay=5)
        await trio.sleep(100)
    assert log.names == [str(n) for n in range(20)]


@pytest.mark.parametrize("crash", [True, False])
async def test_after_a_restart_only_the_rest_of_the_delay_is_waited_for(
    autojump_clock: trio.testing.MockClock, log: Log, crash: bool
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.submit(log.job, "rest", key="k", run_id="rest", delay=100)
        await rt.submit(log.job, "passed", key="k", run_id="passed", delay=40)
        await trio.sleep(30)
        if crash:
            store.crash()
    await trio.sleep(20)
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await (await rt.submit(log.job, "rest", key="k", run_id="rest")).result()
    assert log.begun == pytest.approx({"passed": 50, "rest": 100}, abs=0.1)


async def test_a_run_that_got_its_place_keeps_it_over_a_restart(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.pause_all()
        await rt.submit(log.job, "delayed", key="k", delay=10)
        await rt.submit(log.job, "first", key="k")
        await trio.sleep(20)
        await rt.submit(log.job, "last", key="k")
        store.crash()
    assert store.keys("delayed") == []
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.resume_all()
        await trio.sleep(10)
    assert log.names == ["first", "delayed", "last"]


@pytest.mark.parametrize("crash_after", range(1, 5))
async def test_a_crash_around_the_due_time_neither_loses_the_run_nor_runs_it_twice(
    autojump_clock: trio.testing.MockClock, log: Log, crash_after: int
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.submit(log.job, "delayed", key="k", run_id="r", delay=10)
        store.crash_at = store.commits + crash_after
        await trio.sleep(100)
        store.crash()
    store.crash_at = None
    for _ in range(2):
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            assert await (await rt.submit(log.job, "delayed", key="k", run_id="r")).result()
            await trio.sleep(100)
            assert rt.statistics().backlog.pending == 0
    assert 1 <= len(log.names) <= 2
    assert store.keys("queue") == store.keys("delayed") == []


async def test_a_clock_that_jumps_back_does_not_make_the_delay_longer(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    jump = 0.0

    def wall() -> float:
        return EPOCH + trio.current_time() + jump

    async with open_test_runtime(store, workflows=[log.job], wall=wall) as rt:
        await rt.submit(log.job, "a", key="a", run_id="a", delay=10)
        await rt.submit(log.job, "b", key="b", run_id="b", delay=50)
        jump = -100_000.0
        await trio.sleep(20)
        assert log.names == ["a"]
        store.crash()
    async with open_test_runtime(store, workflows=[log.job], wall=wall) as rt:
        await (await rt.submit(log.job, "b", key="b", run_id="b")).result()
    # The clock was last stored up to 10 s before the crash.
    assert 50 <= log.begun["b"] <= 60


async def test_a_delayed_run_is_the_same_run_when_it_is_submitted_again(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.submit(log.job, "x", key="k", run_id="r", delay=10)
        again = await rt.submit(log.job, "x", key="k", run_id="r")
        assert not again.newly_submitted
        assert await again.result() == "x"
    assert log.names == ["x"]
