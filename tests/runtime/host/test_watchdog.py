"""The watchdog on a loop of Trio."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Retry, open_runtime, step, workflow
from keyrun.runtime.host.watchdog import WatchedLoop, calls_a_step
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from tests.hosting.blocking import SOON, noticed


class FakeAttempt:
    """An attempt with a timeout of one second that began at 0."""

    step, attempt, begun, timeout = "work", 1, 0.0, 1.0
    progress = None
    over = False

    def __init__(self) -> None:
        self.until: float | None = 1.0
        self.expired: list[float] = []

    def elapsed(self) -> float:
        return 0.0

    def expire(self, now: float) -> None:
        self.expired.append(now)

    def extend(self, seconds: float) -> None:
        assert self.until is not None
        self.until += seconds


class FakeRun:
    feed = None

    class submission:  # noqa: N801
        about = ("run", "key", "workflow")


class Busy:
    """A thread that runs a step, or nothing."""

    def __init__(self) -> None:
        self._next: Callable[[], object] = lambda: None
        self._ready, self._go = threading.Event(), threading.Event()
        self._is_over = False
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        while not self._is_over:
            self._go.wait()
            self._go.clear()
            self._next()

    def begin(self, attempt: FakeAttempt) -> Callable[[], None]:
        """Let the thread run a step until the returned function is called."""
        inside, leave, left = threading.Event(), threading.Event(), threading.Event()

        @calls_a_step
        async def call(run: Any, current: Any) -> None:
            inside.set()
            leave.wait()

        def step_once() -> None:
            with pytest.raises(StopIteration):
                call(FakeRun, attempt).send(None)
            left.set()

        self._next = step_once
        self._go.set()
        inside.wait()

        def end() -> None:
            leave.set()
            left.wait()

        return end

    def close(self) -> None:
        self._is_over = True
        self._next = lambda: None
        self._go.set()
        self.thread.join()


class Watched:
    """A loop whose clock and answers the test controls."""

    def __init__(self, clock: MockClock) -> None:
        self.clock = clock
        self.busy = Busy()
        self.answers: list[Callable[[], object]] = []
        assert self.busy.thread.ident is not None
        self.loop = WatchedLoop(self.busy.thread.ident, self.answers.append, Tuning(), log_lag=True)

    def look_for(self, seconds: float) -> None:
        """Let the watchdog look five times per second."""
        for _ in range(round(seconds * 5)):
            self.clock.jump(0.2)
            now = trio.current_time()
            self.loop.look(now, now)

    def answer(self) -> None:
        self.answers.pop()()


async def test_a_step_that_gives_the_loop_a_pass_in_between_is_not_blamed(
    mock_clock: MockClock,
) -> None:
    watched, attempt = Watched(mock_clock), FakeAttempt()
    with noticed() as logged:
        end = watched.busy.begin(attempt)
        watched.look_for(0.8)
        watched.loop.passes += 1
        watched.look_for(0.8)
        end()
        watched.answer()
    watched.busy.close()
    assert logged.steps == []
    assert watched.loop.longest_lag == pytest.approx(1.4)


async def test_the_time_that_one_step_holds_the_loop_is_added_to_the_timeouts_of_the_others(
    mock_clock: MockClock,
) -> None:
    watched, holder, other = Watched(mock_clock), FakeAttempt(), FakeAttempt()
    with noticed() as logged:
        end = watched.busy.begin(holder)
        watched.look_for(3)
        for _ in range(2):  # nothing is added twice
            watched.loop.credit([holder, other])
        end()
        watched.answer()
    watched.busy.close()
    assert holder.until == 1.0
    assert other.until == pytest.approx(4.0)
    assert holder.expired
    assert holder.expired[0] == pytest.approx(1.0, abs=0.21)
    assert logged.steps == ["work"]


async def test_an_idle_loop_is_asked_and_not_reported(mock_clock: MockClock) -> None:
    watched = Watched(mock_clock)
    with noticed() as logged:
        for _ in range(20):
            watched.look_for(0.2)
            watched.answer()
    watched.busy.close()
    assert logged.records == []
    assert watched.loop.longest_lag == 0


def _watchdogs() -> list[str]:
    return [each.name for each in threading.enumerate() if each.name == "keyrun watchdog"]


async def test_there_is_no_watchdog_on_a_virtual_clock(autojump_clock: MockClock) -> None:
    async with open_runtime(MemoryStore()) as rt:
        assert _watchdogs() == []
        assert rt.statistics().loop.longest_lag == 0


async def test_the_watchdog_ends_with_the_runtime() -> None:
    async with open_runtime(MemoryStore()):
        assert _watchdogs() == ["keyrun watchdog"]
    assert _watchdogs() == []


async def test_a_thread_whose_result_arrives_late_because_of_another_step_keeps_it() -> None:
    begun, may_end = trio.Event(), threading.Event()

    @step(retry=Retry.none(), timeout=0.5)
    def in_thread() -> str:
        trio.from_thread.run_sync(begun.set)
        may_end.wait(20)
        return "kept"

    @step(retry=Retry.none())
    async def holds() -> None:
        may_end.set()
        logged.hold_the_loop()

    @workflow
    async def threaded(ctx: Context) -> str:
        return await ctx.step(in_thread)

    @workflow
    async def holding(ctx: Context) -> None:
        await ctx.step(holds)

    tuning = Tuning(watchdog_period=SOON.watchdog_period, watchdog_limit=0.8)
    with noticed() as logged:
        async with open_runtime(MemoryStore(), workflows=[threaded, holding], tuning=tuning) as rt:
            run = await rt.submit(threaded, key="thread")
            await begun.wait()
            await rt.submit(holding, key="holds")
            assert await run.result() == "kept"
    assert logged.steps == ["holds"]


async def test_trio_calls_the_watchdog_only_while_the_loop_is_late() -> None:
    def instruments() -> int:
        return len(trio.lowlevel.current_task()._runner.instruments["_all"])

    before = instruments()

    @step(retry=Retry.none())
    async def holds() -> int:
        logged.hold_the_loop()
        return instruments()

    @workflow
    async def holding(ctx: Context) -> int:
        return await ctx.step(holds)

    with noticed() as logged:
        async with open_runtime(MemoryStore(), workflows=[holding], tuning=SOON) as rt:
            assert instruments() == before
            assert await (await rt.submit(holding, key="k")).result() == before + 1
            while instruments() > before:
                await trio.sleep(0.01)
            time.sleep(0.1)  # late again when the runtime closes
        assert instruments() == before
