import math
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from keyrun.actors import (
    ActorStopped,
    ActorSystem,
    SystemClosed,
    WouldDeadlock,
)
from tests.actors.scripted import Boom, Gate, World, sleeping


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mailbox_capacity": 0}, "mailbox_capacity must be at least 1, got 0"),
        ({"fairness": 0}, "fairness must be at least 1, got 0"),
        ({"idle_timeout": 0}, "idle_timeout must be positive, got 0"),
        ({"idle_timeout": -1.5}, "idle_timeout must be at least 0, got -1.5"),
        ({"idle_timeout": math.nan}, "idle_timeout must be at least 0, got nan"),
        ({"max_workers": 0}, "max_workers must be at least 1, got 0"),
    ],
)
def test_a_wrong_value_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ActorSystem(World().factory, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"factory": 7}, "factory must be callable, got 7"),
        ({"fairness": 2.5}, "fairness must be an integer, got 2.5"),
        ({"mailbox_capacity": True}, "mailbox_capacity must be an integer, got True"),
        ({"idle_timeout": "1"}, "idle_timeout must be a number, got '1'"),
        ({"supervision": None}, "supervision must be a Supervision, got None"),
        ({"on_dead_letter": "log"}, "on_dead_letter must be callable, got 'log'"),
    ],
)
def test_a_wrong_type_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        ActorSystem(**{"factory": World().factory, **options})


async def test_messages_of_a_key_are_handled_in_the_order_they_were_told(world: World) -> None:
    async with world.system() as system:
        for n in range(500):
            system.tell_nowait("a", n)
    assert world.log == list(range(500))
    assert world.made == 1


async def test_a_key_that_cannot_be_hashed_is_refused(world: World) -> None:
    async with world.system() as system:
        with pytest.raises(TypeError, match="unhashable"):
            system.tell_nowait([], 1)  # type: ignore[arg-type]


async def test_a_handler_that_would_wait_for_itself_gets_an_error(world: World) -> None:
    caught: list[str] = []

    async def try_everything() -> None:
        for call in (
            lambda: system.ask("a", 1),
            lambda: system.tell("a", 2),
            lambda: system.stop("a"),
            lambda: system.drain(),
        ):
            try:
                await call()
            except WouldDeadlock as error:
                caught.append(str(error).split()[0])

    async def in_a_nursery() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_everything)

    async with world.system(mailbox_capacity=1) as system:
        await system.tell("a", in_a_nursery)
        await system.drain()
        assert caught == ["ask", "stop", "drain"]
        assert world.log == [2]
        system.tell_nowait("a", lambda: system.tell("a", try_everything))
        await system.drain()
    assert caught[3:] == ["ask", "stop", "drain"]


async def test_handlers_may_ask_each_other(world: World) -> None:
    async def ask_b() -> Any:
        return await system.ask("b", "from b")

    async with world.system() as system:
        assert await system.ask("a", ask_b) == "from b"


async def test_leaving_the_block_handles_everything_and_then_stops_every_actor(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async def slowly() -> None:
        await trio.sleep(5)
        system.tell_nowait("c", "a consequence")

    async with world.attentive_system() as system:
        system.tell_nowait("a", slowly)
        system.tell_nowait("b", "quick")
    assert world.log[:2] == ["start", "start"]
    assert world.log[2:] == ["quick", "start", "a consequence", "stop", "stop", "stop"]
    assert system.statistics().keys == 0


async def test_a_system_that_is_not_open_takes_nothing(world: World) -> None:
    system = world.system()
    with pytest.raises(SystemClosed, match="async with"):
        system.tell_nowait("a", 1)
    async with system:
        pass
    with pytest.raises(SystemClosed):
        system.tell_nowait("a", 1)
    with pytest.raises(SystemClosed):
        await system.tell("a", 1)
    with pytest.raises(SystemClosed):
        await system.ask("a", 1)
    await system.stop("a")
    await system.drain()
    assert system.release("a") is False


async def test_a_system_can_be_opened_only_once(world: World) -> None:
    async with world.system() as system:
        with pytest.raises(RuntimeError, match="only once"):
            await system.__aenter__()


async def test_an_exception_in_the_block_comes_out_as_it_is(world: World) -> None:
    with pytest.raises(Boom):
        async with world.system() as system:
            system.tell_nowait("a", Gate())
            raise Boom


async def test_what_a_cancelled_system_did_not_finish_goes_to_the_dead_letters(
    world: World,
) -> None:
    gate = Gate()
    failures: list[BaseException] = []

    async def asker() -> None:
        try:
            await system.ask("a", "asked")
        except ActorStopped as error:
            failures.append(error)

    async def teller() -> None:
        try:
            await system.tell("a", "waiting")
        except SystemClosed as error:
            failures.append(error)

    async with trio.open_nursery() as nursery:
        with trio.CancelScope() as scope:
            async with world.attentive_system(mailbox_capacity=2) as system:
                system.tell_nowait("b", "done")
                system.tell_nowait("a", gate)
                await gate.entered.wait()
                nursery.start_soon(asker)
                await wait_all_tasks_blocked()
                system.tell_nowait("a", "told")
                nursery.start_soon(teller)
                nursery.start_soon(system.drain)
                nursery.start_soon(system.stop, "a")
                await wait_all_tasks_blocked()
                scope.cancel()
                await trio.sleep_forever()
        assert world.dead() == [gate, "asked", "told"]
    assert all(isinstance(letter.error, ActorStopped) for letter in world.letters)
    assert sorted(type(error).__name__ for error in failures) == ["ActorStopped", "SystemClosed"]
    assert "stop" not in world.log
    with pytest.raises(SystemClosed):
        system.tell_nowait("a", 1)


async def test_a_drain_that_is_cancelled_gives_up_the_rest(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    with trio.move_on_after(3) as scope:
        async with world.system() as system:
            gate = Gate()
            system.tell_nowait("a", gate)
            system.tell_nowait("a", "rest")
    assert scope.cancelled_caught
    assert world.dead() == [gate, "rest"]


async def test_an_exception_that_is_none_of_the_supervisors_business_ends_the_system(
    world: World,
) -> None:
    async def leave() -> None:
        raise SystemExit(3)

    with pytest.raises(BaseExceptionGroup) as caught:
        async with world.system() as system:
            system.tell_nowait("a", "first")
            system.tell_nowait("a", leave)
            system.tell_nowait("a", "rest")
            await trio.sleep_forever()
    assert caught.group_contains(SystemExit)
    assert world.log == ["first"]
    assert world.dead() == [leave, "rest"]
    assert system.statistics().handled == 1


async def test_drain_waits_for_everything_told_so_far(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with world.system() as system:
        await system.drain()
        for n in range(3):
            system.tell_nowait("a", sleeping(1))
            system.tell_nowait(str(n), sleeping(2))
        await system.drain()
        assert trio.current_time() == 3
        assert system.statistics().handled == 6


async def test_statistics_say_what_is_going_on(world: World) -> None:
    gate = Gate()
    async with world.system(max_workers=1) as system:
        assert system.statistics().workers == 0
        system.tell_nowait("a", gate)
        system.tell_nowait("a", 1)
        system.tell_nowait("b", 2)
        await gate.entered.wait()
        now = system.statistics()
        assert (now.keys, now.ready, now.running, now.queued) == (2, 1, 1, 2)
        assert (now.workers, now.idle_workers, now.handled) == (1, 0, 0)
        gate.opened.set()
        await system.drain()
        now = system.statistics()
        assert (now.keys, now.ready, now.running, now.queued) == (2, 0, 0, 0)
        assert (now.workers, now.idle_workers, now.handled) == (1, 1, 3)
        with pytest.raises(AttributeError):
            now.handled = 4  # type: ignore[misc]
