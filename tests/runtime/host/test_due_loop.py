"""The due loop calls its work when it is due and when it is woken, and at no other time."""

from math import inf

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun.runtime.host.due_loop import NOW, DueLoop


class Diary:
    """Work that answers with the given times, and remembers when it was called."""

    def __init__(self, *answers: float) -> None:
        self.answers = list(answers)
        self.calls: list[float] = []
        self.loop = DueLoop(self.work)

    async def work(self) -> float:
        self.calls.append(trio.current_time() - self.began)
        return self.began + self.answers.pop(0) if self.answers else inf

    async def run(self) -> None:
        self.began = trio.current_time()
        await self.loop.run()


async def test_the_work_is_called_at_once_and_then_when_it_said(autojump_clock: MockClock) -> None:
    diary = Diary(5, 7, 7.5)
    with trio.move_on_after(100):
        await diary.run()
    assert diary.calls == [0, 5, 7, 7.5]


async def test_work_that_is_due_at_no_time_waits_for_a_wake_up(autojump_clock: MockClock) -> None:
    diary = Diary()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(diary.run)
        await trio.sleep(50)
        assert diary.calls == [0]
        diary.loop.wake()
        await trio.sleep(1)
        assert diary.calls == [0, 50]
        nursery.cancel_scope.cancel()


async def test_a_wake_up_comes_before_the_time_that_the_work_said(
    autojump_clock: MockClock,
) -> None:
    diary = Diary(10, 4)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(diary.run)
        await trio.sleep(3)
        diary.loop.wake()
        await trio.sleep(20)
        assert diary.calls == [0, 3, 4]
        nursery.cancel_scope.cancel()


async def test_a_wake_up_while_the_work_runs_calls_it_once_more(autojump_clock: MockClock) -> None:
    calls = []

    async def work() -> float:
        calls.append(trio.current_time() - began)
        await trio.sleep(2)
        return inf

    began = trio.current_time()
    loop = DueLoop(work)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop.run)
        await trio.sleep(1)
        loop.wake()
        loop.wake()
        await trio.sleep(50)
        assert calls == [0, 2]
        nursery.cancel_scope.cancel()


async def test_many_wake_ups_at_once_are_one_call() -> None:
    diary = Diary()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(diary.run)
        await wait_all_tasks_blocked()
        for _ in range(10):
            diary.loop.wake()
        await wait_all_tasks_blocked()
        assert len(diary.calls) == 2
        nursery.cancel_scope.cancel()


async def test_other_tasks_run_between_two_calls_that_are_due_now() -> None:
    calls = 0

    async def work() -> float:
        nonlocal calls
        calls += 1
        return NOW

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(DueLoop(work).run)
            while calls < 3:
                await trio.lowlevel.checkpoint()
            scope.cancel()
    assert calls >= 3


async def test_an_error_of_the_work_ends_the_loop() -> None:
    async def work() -> float:
        raise LookupError("lost")

    with pytest.raises(LookupError, match="lost"):
        await DueLoop(work).run()
