"""Handlers that wait for each other: a cycle is refused to whoever would close it."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun.actors import ActorSystem, AskTimeout, WouldDeadlock
from tests.actors.scripted import Act, Gate, World, sleeping

System = ActorSystem[str, Any, Any]


def asks(system: System, key: str, message: Any, timeout: float | None = None) -> Act:
    """A message whose handler asks `key`, and answers with what it was told, or the error."""

    async def ask() -> Any:
        try:
            return await system.ask(key, message, timeout)
        except (WouldDeadlock, AskTimeout) as error:
            return error

    return ask


async def test_handlers_that_ask_each_other_are_told_of_the_cycle(world: World) -> None:
    async with world.system() as system:
        error = await system.ask("a", asks(system, "b", asks(system, "a", 1)))
        assert isinstance(error, WouldDeadlock)
        assert str(error) == (
            "ask on key 'a' from the handler of key 'b' would wait forever: 'b' would wait for "
            "'a', which waits for 'b'; use tell instead of ask in one of them, or wait with a "
            "timeout"
        )
        assert (error.key, error.cycle) == ("a", ("a", "b"))
        assert await system.ask("a", "goes on") == "goes on"
    assert world.log == ["goes on"]


async def test_a_cycle_of_any_length_is_found(world: World) -> None:
    async with world.system() as system:
        message: Any = "never handled"
        for key in "aedcb":
            message = asks(system, key, message)
        error = await system.ask("a", message)
        assert error.cycle == ("a", "b", "c", "d", "e")
        assert "'e' would wait for 'a', which waits for 'b', which waits for 'c'" in str(error)
        assert world.log == []


async def test_the_cycle_is_found_from_nurseries_of_the_handlers(world: World) -> None:
    def in_a_nursery(act: Act) -> Act:
        async def spread() -> Any:
            answers: list[Any] = []

            async def one() -> None:
                answers.append(await act())

            async with trio.open_nursery() as nursery:
                nursery.start_soon(one)
                nursery.start_soon(trio.lowlevel.checkpoint)
            return answers[0]

        return spread

    async with world.system() as system:
        back = in_a_nursery(asks(system, "a", 1))
        error = await system.ask("a", in_a_nursery(asks(system, "b", back)))
        assert error.cycle == ("a", "b")


@pytest.mark.parametrize("call", ["stop", "tell"])
async def test_a_stop_and_a_tell_that_waits_for_room_may_close_a_cycle_too(
    world: World, call: str
) -> None:
    async def close() -> Any:
        try:
            await (system.stop("a") if call == "stop" else system.tell("a", "waits for room"))
        except WouldDeadlock as error:
            return str(error)

    async with world.system(mailbox_capacity=1) as system, trio.open_nursery() as nursery:
        gate = Gate()

        async def ask_b() -> Any:
            await gate()
            return await system.ask("b", close)

        async def ask_a() -> None:
            world.log.append(await system.ask("a", ask_b))

        nursery.start_soon(ask_a)
        await gate.entered.wait()
        system.tell_nowait("a", "fills the mailbox")
        gate.opened.set()
    assert world.log[0] == "fills the mailbox"
    assert world.log[1].startswith(f"{call} on key 'a' from the handler of key 'b' would wait")


async def test_a_handler_that_waits_for_a_stop_is_part_of_a_cycle(world: World) -> None:
    gate = Gate()

    async def stop_b() -> None:
        await system.stop("b")

    async def ask_back() -> None:
        await gate()
        world.log.append(await asks(system, "a", 1)())

    async with world.system() as system:
        system.tell_nowait("b", ask_back)
        await gate.entered.wait()
        system.tell_nowait("a", stop_b)
        await wait_all_tasks_blocked()
        gate.opened.set()
    (error,) = world.log
    assert error.cycle == ("a", "b")


async def test_an_ask_that_waits_for_room_is_part_of_a_cycle(world: World) -> None:
    gate = Gate()

    async def ask_back() -> None:
        await gate()
        world.log.append(await asks(system, "a", 1)())

    async with world.system(mailbox_capacity=1) as system:
        system.tell_nowait("b", ask_back)
        await gate.entered.wait()
        system.tell_nowait("b", 1)
        system.tell_nowait("a", asks(system, "b", 2))
        await wait_all_tasks_blocked()
        assert system.statistics().waiting_tellers == 1
        gate.opened.set()
    assert world.log[0].cycle == ("a", "b")
    assert world.log[1:] == [1, 2]


async def test_a_wait_with_a_deadline_closes_no_cycle(
    world: World, autojump_clock: MockClock
) -> None:
    async def ask_with_a_deadline() -> Any:
        with trio.move_on_after(1):
            await system.ask("b", asks(system, "a", "in the end"))
        return "gave up"

    async with world.system() as system:
        assert await system.ask("a", ask_with_a_deadline) == "gave up"
        await system.drain()
        assert world.log == ["in the end"]
        error = await system.ask("a", asks(system, "b", asks(system, "a", "again"), timeout=1))
        assert isinstance(error, AskTimeout)
    assert world.log == ["in the end", "again"]


async def test_an_ask_back_is_refused_however_long_it_would_wait(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.system() as system:
        error = await system.ask("a", asks(system, "b", asks(system, "a", 1, timeout=5)))
        assert isinstance(error, WouldDeadlock)
        assert trio.current_time() == 0


async def test_what_is_answered_is_no_part_of_a_cycle_any_more(world: World) -> None:
    """B answers A and goes on, before A has run again, with a message that asks A."""
    async with world.system() as system:
        gate = Gate()
        system.tell_nowait("b", gate)
        await gate.entered.wait()
        system.tell_nowait("a", asks(system, "b", "answered"))
        await wait_all_tasks_blocked()
        system.tell_nowait("b", asks(system, "a", "asked back"))
        gate.opened.set()
    assert world.log == ["answered", "asked back"]


async def test_an_ask_that_was_cancelled_is_no_part_of_a_cycle_any_more(world: World) -> None:
    scope = trio.CancelScope()
    gate = Gate()

    async def ask_b() -> None:
        with scope:
            await system.ask("b", "handled all the same")

    async def cancel_and_ask_a() -> None:
        await gate()
        scope.cancel()
        world.log.append(await system.ask("a", "a goes on"))

    async with world.system() as system:
        system.tell_nowait("b", cancel_and_ask_a)
        await gate.entered.wait()
        system.tell_nowait("a", ask_b)
        await wait_all_tasks_blocked()
        gate.opened.set()
    assert world.log == ["a goes on", "a goes on", "handled all the same"]


async def test_waiting_for_a_key_that_waits_for_another_is_no_cycle(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.system() as system:
        system.tell_nowait("a", asks(system, "b", sleeping(1)))
        await wait_all_tasks_blocked()
        assert await system.ask("c", asks(system, "a", "at last")) == "at last"
        assert trio.current_time() == 1
        assert not system._waits._under_way
