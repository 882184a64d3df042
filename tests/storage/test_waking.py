"""What wakes those who waited for a commit."""

from collections.abc import AsyncGenerator, Generator

import trio

from keyrun.storage.waking import GO_ON, Told


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
            trio.lowlevel.reschedule(task, GO_ON)
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
    assert [next(one), Told(7).send(one)] == ["first", "second"]
    assert [await anext(other), await GO_ON.asend(other)] == ["first", "second"]
    await other.aclose()
