from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from keyrun.actors import (
    ActorSystem,
)
from tests.actors.scripted import (
    GIVE_UP,
    QUARANTINE,
    Attentive,
    Boom,
    Gate,
    Scripted,
    World,
)


async def test_a_factory_that_fails_counts_as_a_crash_and_loses_nothing(world: World) -> None:
    attempts = []

    def factory(key: str) -> Scripted:
        attempts.append(key)
        if len(attempts) < 3:
            raise Boom
        return Attentive(key, world)

    async with ActorSystem(
        factory, supervision=GIVE_UP, on_dead_letter=world.letters.append
    ) as system:
        system.tell_nowait("a", 1)
        assert await system.ask("a", 2) == 2
    assert world.log == ["restart after Boom", 1, 2, "stop"]
    assert world.letters == []


async def test_a_factory_that_makes_no_actor_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def factory(key: str) -> Any:
        return key

    async with ActorSystem(factory, supervision=QUARANTINE) as system:
        system.tell_nowait("a", 1)
        await system.drain()
        assert system.quarantined() == ["a"]
    assert "factory('a') must return an Actor, got 'a'" in caplog.text


async def test_an_actor_that_cannot_start_counts_as_a_crash_and_loses_nothing(
    world: World,
) -> None:
    class Late(Scripted):
        async def on_start(self) -> None:
            if world.made < 3:
                raise Boom

    async with world.system(Late, supervision=GIVE_UP) as system:
        assert await system.ask("a", "at last") == "at last"
    assert world.log == ["at last"]
    assert world.made == 3


async def test_an_error_in_a_stop_hook_is_logged_and_the_actor_dropped(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Clumsy(Scripted):
        async def on_stop(self) -> None:
            raise Boom

    async with world.system(Clumsy) as system:
        await system.ask("a", 1)
        await system.stop("a")
        assert system.statistics().keys == 0
    assert "on_stop of key 'a' failed" in caplog.text


async def test_a_stop_comes_after_what_was_told_before_and_before_what_is_told_later(
    world: World,
) -> None:
    gate = Gate()
    async with world.attentive_system() as system, trio.open_nursery() as nursery:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        system.tell_nowait("a", "before")
        nursery.start_soon(system.stop, "a")
        await wait_all_tasks_blocked()
        system.tell_nowait("a", "after")
        gate.opened.set()
    assert world.log == ["start", "before", "stop", "start", "after", "stop"]


async def test_a_stopped_key_is_forgotten(world: World) -> None:
    async with world.system() as system:
        await system.ask("a", 1)
        assert system.statistics().keys == 1
        await system.stop("a")
        assert system.statistics().keys == 0
        await system.stop("a")
        await system.stop("never seen")
        await system.ask("a", 2)
    assert world.made == 2


async def test_an_idle_actor_with_a_hook_is_stopped_through_its_hook(world: World) -> None:
    async with world.attentive_system() as system:
        await system.ask("a", 1)
        await system.stop("a")
        assert world.log == ["start", 1, "stop"]
        assert system.statistics().keys == 0


async def test_giving_up_the_wait_for_a_stop_does_not_take_it_back(world: World) -> None:
    gate = Gate()
    async with world.attentive_system() as system:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(system.stop, "a")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        gate.opened.set()
        await system.drain()
        assert world.log == ["start", "stop"]


async def test_stop_hooks_at_the_end_run_beside_each_other(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    class Slow(Scripted):
        async def on_stop(self) -> None:
            await trio.sleep(1)

    async with world.system(Slow) as system:
        for n in range(100):
            system.tell_nowait(str(n), n)
    assert len(world.log) == 100
    assert trio.current_time() == 1


async def test_an_actor_cannot_tell_anything_while_the_system_stops(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Chatty(Scripted):
        async def on_stop(self) -> None:
            system.tell_nowait("other", "too late")

    async with world.system(Chatty) as system:
        system.tell_nowait("a", 1)
    assert world.log == [1]
    assert "on_stop of key 'a' failed" in caplog.text
    assert "SystemClosed" in caplog.text
