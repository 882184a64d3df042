import math
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from keyrun._errors import KeyrunError
from keyrun.actors import (
    ActorFailed,
    AskTimeout,
)
from tests.actors.scripted import AT_ONCE, GIVE_UP, Boom, Gate, World, boom


async def test_an_ask_returns_what_the_handler_returned(world: World) -> None:
    async with world.system() as system:
        assert await system.ask("a", "hello") == "hello"
        gate = Gate()
        gate.opened.set()
        assert await system.ask("a", gate, timeout=1) == "through"


async def test_an_ask_that_gets_no_answer_in_time_names_the_key_and_the_limit(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with world.system() as system:
        gate = Gate()
        with pytest.raises(AskTimeout, match=r"key 'a' did not answer within 2\.5 s") as caught:
            await system.ask("a", gate, timeout=2.5)
        assert trio.current_time() == 2.5
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, KeyrunError)
        assert caught.value.accepted
        assert "will still be handled" in str(caught.value)
        gate.opened.set()


async def test_an_ask_that_found_no_room_in_time_says_that_nothing_was_sent(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    gate = Gate()
    async with world.system(mailbox_capacity=1) as system:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        system.tell_nowait("a", "fills the mailbox")
        with pytest.raises(AskTimeout, match="was not sent") as caught:
            await system.ask("a", "late", timeout=1)
        assert not caught.value.accepted
        gate.opened.set()
    assert world.log == ["fills the mailbox"]


@pytest.mark.parametrize("timeout", [-1, math.nan])
async def test_a_wrong_timeout_is_refused(world: World, timeout: float) -> None:
    async with world.system() as system:
        with pytest.raises(ValueError, match="timeout must be at least 0"):
            await system.ask("a", 1, timeout=timeout)
    assert world.log == []


async def test_an_abandoned_ask_is_handled_in_its_turn_and_leaves_nothing(world: World) -> None:
    gate = Gate()
    async with world.system() as system:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(system.ask, "a", "abandoned")
            await wait_all_tasks_blocked()
            system.tell_nowait("a", "later")
            nursery.cancel_scope.cancel()
        gate.opened.set()
        await system.drain()
        assert world.log == ["abandoned", "later"]
        assert system.statistics().queued == 0
        assert await system.ask("a", "next") == "next"


async def test_the_error_of_a_handler_reaches_the_asker_with_its_cause(world: World) -> None:
    async with world.system(supervision=GIVE_UP) as system:
        with pytest.raises(ActorFailed, match="the actor of key 'a' failed: Boom") as caught:
            await system.ask("a", boom)
        assert isinstance(caught.value.__cause__, Boom)
    assert world.dead() == [boom]


async def test_an_ask_that_is_retried_gets_the_answer_of_the_attempt_that_worked(
    world: World,
) -> None:
    attempts = []

    async def third_time_lucky() -> int:
        attempts.append(1)
        if len(attempts) < 3:
            raise Boom
        return len(attempts)

    async with world.system(supervision=AT_ONCE) as system:
        assert await system.ask("a", third_time_lucky) == 3
    assert world.letters == []


async def test_an_ask_may_be_answered_as_soon_as_it_is_let_in(world: World) -> None:
    gate = Gate()
    answers: list[Any] = []

    async def asker() -> None:
        answers.append(await system.ask("a", "asked"))

    async with world.system(mailbox_capacity=1) as system, trio.open_nursery() as nursery:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        system.tell_nowait("a", 1)
        nursery.start_soon(asker)
        await wait_all_tasks_blocked()
        gate.opened.set()
    assert answers == ["asked"]
