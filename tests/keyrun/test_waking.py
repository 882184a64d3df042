"""How tasks wait, and what wakes them."""

from collections.abc import AsyncGenerator, Callable, Generator

import pytest
import trio
from outcome import Error

from keyrun._waking import WAKE, WaiterPool, WaitSlot, WakeValue


async def test_any_number_of_tasks_can_be_woken_with_it() -> None:
    """Unlike Trio's own outcomes, which can be looked at once."""
    woken = []
    sleepers: list[trio.lowlevel.Task] = []

    async def sleep() -> None:
        sleepers.append(trio.lowlevel.current_task())
        woken.append(
            await trio.lowlevel.wait_task_rescheduled(lambda _: trio.lowlevel.Abort.FAILED)
        )

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(sleep)
        await trio.testing.wait_all_tasks_blocked()
        for task in sleepers:
            trio.lowlevel.reschedule(task, WAKE)
    assert woken == [None, None, None]


async def test_it_lets_generators_of_both_kinds_go_on() -> None:
    """It is an outcome like any other, of any value."""

    def plain() -> Generator[str, int, None]:
        assert (yield "first") == 7
        yield "second"

    async def asynchronous() -> AsyncGenerator[str, None]:
        assert (yield "first") is None
        yield "second"

    one, other = plain(), asynchronous()
    assert [next(one), WakeValue(7).send(one)] == ["first", "second"]
    assert [await anext(other), await WAKE.asend(other)] == ["first", "second"]
    await other.aclose()


async def test_a_task_can_wait_in_its_slot_again_and_again() -> None:
    place: dict[trio.lowlevel.Task, None] = {}
    turns = []

    async def wait() -> None:
        slot = WaitSlot(trio.lowlevel.current_task())
        for turn in range(3):
            await slot.wait(place)
            turns.append(turn)
        with pytest.raises(ValueError, match="the news"):
            await slot.wait(place)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        for told in (WAKE, WAKE, WAKE, Error(ValueError("the news"))):
            await trio.testing.wait_all_tasks_blocked()
            task, _ = place.popitem()
            trio.lowlevel.reschedule(task, told)
    assert turns == [0, 1, 2]
    assert not place


async def test_who_is_cancelled_leaves_the_place_where_it_waits() -> None:
    first: dict[trio.lowlevel.Task, None] = {}
    second: dict[trio.lowlevel.Task, None] = {}
    slot = WaitSlot(trio.lowlevel.current_task())
    for place in (first, second, first):
        with trio.CancelScope() as scope:
            scope.cancel()
            await slot.wait(place)
        assert scope.cancelled_caught
        assert (first, second) == ({}, {})


async def test_one_task_after_the_other_waits_in_a_pool() -> None:
    pool = WaiterPool()
    waiting: list[trio.lowlevel.Task] = []
    left = []

    def leave(name: str) -> Callable[[object], trio.lowlevel.Abort]:
        def left_by(_: object) -> trio.lowlevel.Abort:
            left.append(name)
            return trio.lowlevel.Abort.SUCCEEDED

        return left_by

    async def wait(name: str) -> None:
        waiting.append(trio.lowlevel.current_task())
        await pool.wait(leave(name))

    for turn in range(3):
        async with trio.open_nursery() as nursery:
            for number in range(3):
                nursery.start_soon(wait, f"{turn}.{number}")
            await trio.testing.wait_all_tasks_blocked()
            for task in waiting:
                trio.lowlevel.reschedule(task, WAKE)
            waiting.clear()
    assert left == []
    with trio.move_on_after(0) as scope:
        await wait("cancelled")
    assert scope.cancelled_caught
    assert left == ["cancelled"]

    async def wait_for_news() -> None:
        with pytest.raises(ValueError, match="the news"):
            await wait("told")

    waiting.clear()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_news)
        await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.reschedule(waiting.pop(), Error(ValueError("the news")))
    assert left == ["cancelled"]
