"""Crashes of an unusual kind: none may end the system or lose a message."""

import asyncio
from collections import deque
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun.actors import Actor, ActorFailed, ActorSystem, Directive, Supervision
from tests.actors.scripted import AT_ONCE, Attentive, Boom, World, boom


class Shy(Exception):
    """An error, and a key, that refuses to be shown."""

    def __repr__(self) -> str:
        raise Boom

    __str__ = __repr__


class Echo(Actor[Any, Any]):
    """Raises a message that is an error, returns any other."""

    async def receive(self, message: Any) -> Any:
        if isinstance(message, BaseException):
            raise message
        return message


@pytest.mark.parametrize("base", [2, 20])
async def test_a_message_that_always_crashes_is_quarantined_however_long_the_backoff(
    world: World, autojump_clock: MockClock, base: float
) -> None:
    supervision = Supervision(base=base)
    async with world.system(supervision=supervision) as system:
        system.tell_nowait("a", boom)
        await system.drain()
        assert system.quarantined() == ["a"]
        assert system.statistics().restarts == supervision.max_restarts
        delays = [supervision.delay_for("a", n + 1) for n in range(supervision.max_restarts)]
        assert trio.current_time() == pytest.approx(sum(delays))
    assert world.dead() == [boom]


async def test_restarts_expire_in_spite_of_a_backoff(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(base=2, jitter=0.0, window=10, max_restarts=1)
    left = 2

    async def crash_once() -> None:
        nonlocal left
        left -= 1
        if left % 2:
            raise Boom

    async with world.system(supervision=supervision) as system:
        for _ in range(2):
            left = 2
            system.tell_nowait("a", crash_once)
            await trio.sleep(12.5)  # the backoff and a little more than the window
        assert system.quarantined() == []
        assert system.statistics().restarts == 2


@pytest.mark.parametrize("directive", Directive)
async def test_a_key_and_an_error_that_cannot_be_shown_crash_one_actor_only(
    autojump_clock: MockClock, directive: Directive
) -> None:
    key = Shy()
    supervision = Supervision(directives={Shy: directive}, max_restarts=1)
    system: ActorSystem[Any, Any, Any] = ActorSystem(lambda _: Echo(), supervision=supervision)
    async with system:
        system.tell_nowait(key, Shy())
        await system.drain()
        assert len(system.quarantined()) == (directive is Directive.RESTART)
        assert await system.ask("b", "b") == "b"
    assert system.statistics().dead_letters == 1


@pytest.mark.parametrize(
    "error",
    [
        asyncio.CancelledError(),
        BaseExceptionGroup("", [asyncio.CancelledError(), ValueError()]),
    ],
)
async def test_a_cancellation_of_another_library_crashes_one_actor_only(
    world: World, error: BaseException
) -> None:
    async def cancelled() -> None:
        raise error

    supervision = Supervision(directives={asyncio.CancelledError: Directive.STOP})
    async with world.system(supervision=supervision) as system:
        with pytest.raises(ActorFailed) as caught:
            await system.ask("a", cancelled)
        assert caught.value.__cause__ is error
        assert await system.ask("a", "fresh") == "fresh"
    assert world.dead() == [cancelled]


async def test_an_exit_inside_a_group_still_ends_the_system(world: World) -> None:
    async def leave() -> None:
        raise BaseExceptionGroup("", [ValueError(), SystemExit(3)])

    with pytest.raises(BaseExceptionGroup) as caught:
        async with world.system() as system:
            system.tell_nowait("a", leave)
    assert caught.group_contains(SystemExit)
    assert world.dead() == [leave]


async def test_a_cancellation_of_another_library_in_a_hook_is_logged(
    world: World, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    class Cancelled(Attentive):
        async def on_passivate(self) -> None:
            raise asyncio.CancelledError

        async def on_stop(self) -> None:
            raise asyncio.CancelledError

    async with world.system(Cancelled, supervision=AT_ONCE, idle_timeout=1.0) as system:
        assert await system.ask("a", 1) == 1
        await trio.sleep(1.5)
    assert [record.getMessage() for record in caplog.records] == [
        "on_passivate of key 'a' failed: the actor stays",
        "on_stop of key 'a' failed",
    ]


@pytest.mark.parametrize("hook", ["on_passivate", "on_stop"])
async def test_an_exit_in_a_hook_ends_the_system(
    world: World, autojump_clock: MockClock, hook: str
) -> None:
    async def leave(_: object) -> None:
        raise SystemExit(3)

    kind = type("Leaving", (Attentive,), {hook: leave})
    with pytest.raises(BaseExceptionGroup) as caught:
        async with world.system(kind, idle_timeout=1.0) as system:
            assert await system.ask("a", 1) == 1
            await trio.sleep(1.5 if hook == "on_passivate" else 0.5)
    assert caught.group_contains(SystemExit)


async def test_a_keyboard_interrupt_right_after_a_message_was_taken_does_not_lose_it(
    world: World,
) -> None:
    class Interrupted(deque[Any]):
        def popleft(self) -> Any:
            super().popleft()
            raise KeyboardInterrupt

    with pytest.raises(BaseExceptionGroup) as caught:
        async with world.system() as system:
            system._directory.spare.append(Interrupted())
            system.tell_nowait("a", 1)
            system.tell_nowait("a", 2)
    assert caught.group_contains(KeyboardInterrupt)
    assert world.dead() == [1, 2]
