from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun.actors import Actor, ActorSystem, FailedMessage, KeyQuarantined, Supervision
from keyrun.actors.passivation import SLACK
from tests.actors.scripted import Gate, Scripted, World, boom, sleeping


async def test_an_idle_actor_is_dropped_exactly_at_its_timeout(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.system(idle_timeout=10) as system:
        await system.ask("a", 1)
        await trio.sleep(3)
        await system.ask("b", 1)
        await trio.sleep(6.999)
        assert system.statistics().keys == 2
        await trio.sleep(0.002)
        assert system.statistics().keys == 1
        await trio.sleep(3)
        assert system.statistics().keys == 0
        assert system.statistics().passivations == 2


async def test_every_message_starts_the_count_again(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.attentive_system(idle_timeout=10) as system:
        for _ in range(5):
            await system.ask("a", "message")
            await trio.sleep(7)
        assert "passivate" not in world.log
        await trio.sleep(2.9)
        assert "passivate" not in world.log
        await trio.sleep(0.2)
        assert world.log[-1] == "passivate"
        assert system.statistics().keys == 0


async def test_a_passivated_actor_comes_back_with_the_next_message(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.attentive_system(idle_timeout=1) as system:
        await system.ask("a", 1)
        await trio.sleep(2)
        await system.ask("a", 2)
    assert world.log == ["start", 1, "passivate", "start", 2, "stop"]


async def test_messages_that_come_during_passivation_are_for_the_next_actor(
    world: World, autojump_clock: MockClock
) -> None:
    gate = Gate()

    class Slow(Scripted):
        async def on_passivate(self) -> None:
            await gate()

    async with world.system(Slow, idle_timeout=1) as system:
        await system.ask("a", 1)
        await gate.entered.wait()
        system.tell_nowait("a", 2)
        system.tell_nowait("b", "meanwhile")
        await wait_all_tasks_blocked()
        assert world.log == [1, "meanwhile"]
        gate.opened.set()
        await system.drain()
    assert world.log == [1, "meanwhile", 2]


async def test_an_actor_whose_passivation_fails_stays(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Clinging(Actor[str, int]):
        def __init__(self, key: str) -> None:
            self.messages = 0
            self.failures = 0

        async def receive(self, message: str) -> int:
            self.messages += 1
            return self.messages

        async def on_passivate(self) -> None:
            self.failures += 1
            if self.failures == 1:
                raise RuntimeError("not yet")

    async with ActorSystem(Clinging, idle_timeout=10) as system:
        assert await system.ask("a", "x") == 1
        await trio.sleep(15)
        assert "on_passivate of key 'a' failed: the actor stays" in caplog.text
        assert system.statistics().keys == 1
        await trio.sleep(4.9)
        assert system.statistics().passivations == 0
        await trio.sleep(0.2)
        assert (system.statistics().keys, system.statistics().passivations) == (0, 1)
        assert await system.ask("a", "x") == 1


async def test_an_actor_that_works_is_not_idle(world: World, autojump_clock: MockClock) -> None:
    async with world.attentive_system(idle_timeout=1) as system:
        await system.ask("a", "warm")
        await system.ask("a", sleeping(10))
        assert world.log == ["start", "warm"]
        await trio.sleep(1.1)
        assert world.log == ["start", "warm", "passivate"]


async def test_a_quarantined_key_is_not_passivated_and_keeps_no_clock_ticking(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(max_restarts=0)
    async with world.system(idle_timeout=1, supervision=supervision) as system:
        await system.ask("a", 1)
        system.tell_nowait("a", boom)
        with pytest.raises(KeyQuarantined):
            await system.ask("a", 2)
        await trio.sleep(1000)
        assert system.quarantined() == ["a"]
    assert trio.current_time() == 1000


async def test_crashes_that_still_count_survive_the_passivation(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(
        base=0.0, max_restarts=2, window=100.0, failed_message=FailedMessage.DEAD_LETTER
    )
    async with world.system(idle_timeout=1, supervision=supervision) as system:
        for _ in range(2):
            await system.ask("a", "well")
            system.tell_nowait("a", boom)
            await trio.sleep(10)
        assert system.statistics().keys == 1
        system.tell_nowait("a", boom)
        await system.drain()
        assert system.quarantined() == ["a"]
        system.release("a")
        system.tell_nowait("b", boom)
        await trio.sleep(200)
        assert system.statistics().keys == 0


async def test_an_idle_system_lets_a_virtual_clock_rest(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.system(idle_timeout=1) as system:
        await system.ask("a", 1)
        with trio.move_on_after(10**6):
            await trio.sleep_forever()
    assert trio.current_time() == 10**6


async def test_keys_that_come_and_go_leave_nothing_among_the_due_cells(world: World) -> None:
    async with world.system(idle_timeout=3600) as system:
        due: Any = system._directory.on_idle.__self__._timers  # type: ignore[union-attr]
        for n in range(3 * SLACK):
            await system.ask("a", n)
            await system.stop("a")
        assert len(due) <= SLACK + 4


async def test_actors_are_stopped_not_passivated_at_the_end(
    world: World, autojump_clock: MockClock
) -> None:
    class SlowStop(Scripted):
        async def on_stop(self) -> None:
            await trio.sleep(10)
            world.log.append("stop")

    class Quick(Scripted):
        async def on_passivate(self) -> None:
            world.log.append("passivate")

    def factory(key: str) -> Scripted:
        return SlowStop(key, world) if key == "slow" else Quick(key, world)

    async with ActorSystem(factory, idle_timeout=1) as system:
        system.tell_nowait("slow", 1)
        system.tell_nowait("quick", 2)
    assert world.log == [1, 2, "stop"]
