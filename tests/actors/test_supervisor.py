from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun.actors import (
    ActorFailed,
    ActorStopped,
    FailedMessage,
    KeyQuarantined,
    Supervision,
)
from tests.actors.scripted import (
    AT_ONCE,
    GIVE_UP,
    QUARANTINE,
    Boom,
    Gate,
    World,
    boom,
    fatal,
)


class Once:
    """A message that crashes its actor the first few times."""

    def __init__(self, world: World, crashes: int = 1) -> None:
        self.world = world
        self.left = crashes

    async def __call__(self) -> str:
        if self.left:
            self.left -= 1
            raise Boom
        self.world.log.append("worked")
        return "worked"


async def test_a_crashed_actor_is_replaced_and_told_why(world: World) -> None:
    async with world.attentive_system(supervision=AT_ONCE) as system:
        system.tell_nowait("a", Once(world))
        system.tell_nowait("a", "next")
    assert world.log == ["start", "restart after Boom", "worked", "next", "stop"]
    assert world.made == 2
    assert system.statistics().restarts == 1


async def test_a_failed_message_is_retried_before_any_other(world: World) -> None:
    async with world.system(supervision=AT_ONCE) as system:
        system.tell_nowait("a", Once(world, crashes=3))
        for n in range(3):
            system.tell_nowait("a", n)
    assert world.log == ["worked", 0, 1, 2]
    assert world.letters == []


async def test_a_failed_message_is_given_up_if_so_configured(world: World) -> None:
    async with world.attentive_system(supervision=GIVE_UP) as system:
        system.tell_nowait("a", boom)
        system.tell_nowait("a", "next")
    assert world.log == ["start", "restart after Boom", "next", "stop"]
    (letter,) = world.letters
    assert (letter.key, letter.message) == ("a", boom)
    assert isinstance(letter.error, Boom)


async def test_a_restart_waits_for_its_backoff_and_holds_no_worker(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(base=1.0, jitter=0.5)
    delays = [supervision.delay_for("a", n) for n in (1, 2)]
    async with world.system(supervision=supervision) as system:
        system.tell_nowait("a", Once(world, crashes=2))
        await wait_all_tasks_blocked()
        now = system.statistics()
        assert (now.backoff, now.running, now.queued) == (1, 0, 1)
        assert now.workers == now.idle_workers == 1
        await system.drain()
        assert trio.current_time() == pytest.approx(sum(delays))
    assert world.log == ["worked"]


async def test_a_key_in_backoff_takes_messages_and_disturbs_nobody(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(base=1.0, jitter=0.0)
    async with world.system(supervision=supervision, mailbox_capacity=2) as system:
        system.tell_nowait("a", Once(world))
        await wait_all_tasks_blocked()
        system.tell_nowait("a", 1)
        assert await system.ask("b", "b") == "b"
        assert trio.current_time() == 0
    assert world.log == ["b", "worked", 1]


async def test_a_drain_waits_for_a_backoff_also_if_nothing_is_left_to_do_after_it(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(base=1.0, jitter=0.0, failed_message=FailedMessage.DEAD_LETTER)
    async with world.system(supervision=supervision) as system:
        system.tell_nowait("a", boom)
        await system.drain()
        assert trio.current_time() == 1


async def test_a_backoff_that_was_added_later_may_end_earlier(
    world: World, autojump_clock: MockClock
) -> None:
    async def note(key: str) -> None:
        world.log.append((key, trio.current_time()))

    async def crash(key: str, at: set[str]) -> None:
        if key not in at:
            at.add(key)
            raise Boom
        await note(key)

    supervision = Supervision(base=1.0, factor=8.0, jitter=0.0, max_restarts=3)
    crashed: set[str] = set()
    async with world.system(supervision=supervision) as system:
        system.tell_nowait("slow", Once(world, crashes=2))
        await trio.sleep(2)
        system.tell_nowait("quick", lambda: crash("quick", crashed))
    assert world.log == [("quick", 3.0), "worked"]
    assert trio.current_time() == 9.0


async def test_too_many_crashes_put_the_key_into_quarantine_with_its_mailbox(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    supervision = Supervision(base=0.0, max_restarts=2)
    async with world.system(supervision=supervision) as system:
        poison = Once(world, crashes=3)
        system.tell_nowait("a", poison)
        system.tell_nowait("a", 1)
        await system.drain()
        assert system.quarantined() == ["a"]
        assert "key 'a' is quarantined after 2 restarts within 60 s" in caplog.text
        system.tell_nowait("a", 2)
        await system.drain()
        now = system.statistics()
        assert (now.quarantined, now.queued, now.restarts, now.handled) == (1, 3, 2, 0)
        assert await system.ask("b", "b") == "b"
        assert system.release("a") is True
        assert system.release("a") is False
        await system.drain()
        assert world.log == ["b", "worked", 1, 2]
        assert system.quarantined() == []


async def test_a_release_forgets_the_crashes(world: World) -> None:
    supervision = Supervision(base=0.0, max_restarts=1)
    async with world.attentive_system(supervision=supervision) as system:
        system.tell_nowait("a", Once(world, crashes=3))
        await system.drain()
        assert system.quarantined() == ["a"]
        assert system.release("a")
        await system.drain()
    assert world.log == ["start", *["restart after Boom"] * 3, "worked", "stop"]


async def test_crashes_outside_the_window_do_not_count(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(base=0.0, max_restarts=2, window=10.0)
    async with world.system(supervision=supervision) as system:
        for _ in range(6):
            system.tell_nowait("a", Once(world))
            await trio.sleep(5)
        assert system.quarantined() == []
        for _ in range(3):
            system.tell_nowait("a", Once(world))
            await trio.sleep(3)
        assert system.quarantined() == ["a"]


async def test_a_full_quarantined_mailbox_lets_tellers_wait_until_the_release(
    world: World,
) -> None:
    async with world.system(supervision=QUARANTINE, mailbox_capacity=1) as system:
        async with trio.open_nursery() as nursery:
            system.tell_nowait("a", Once(world))
            await wait_all_tasks_blocked()
            nursery.start_soon(system.tell, "a", 1)
            await wait_all_tasks_blocked()
            assert system.statistics().waiting_tellers == 1
            system.release("a")
    assert world.log == ["worked", 1]


async def test_a_quarantined_key_without_messages_is_idle_after_its_release(
    world: World,
) -> None:
    supervision = Supervision(max_restarts=0, failed_message=FailedMessage.DEAD_LETTER)
    async with world.attentive_system(supervision=supervision) as system:
        system.tell_nowait("a", boom)
        await system.drain()
        assert system.quarantined() == ["a"]
        assert system.release("a")
        assert await system.ask("a", "again") == "again"
    assert world.log == ["start", "restart after Boom", "again", "stop"]


async def test_an_ask_of_a_quarantined_key_is_refused_at_once_and_sends_nothing(
    world: World,
) -> None:
    async with world.system(supervision=QUARANTINE) as system:
        system.tell_nowait("a", Once(world))
        await system.drain()
        with pytest.raises(KeyQuarantined, match=r"not sent, and release\('a'\) lets") as caught:
            await system.ask("a", "asked")
        assert (caught.value.key, caught.value.accepted) == ("a", False)
        assert isinstance(caught.value.__cause__, Boom)
        system.tell_nowait("a", "told")
        system.release("a")
        assert await system.ask("a", "asked after the release") == "asked after the release"
    assert world.log == ["worked", "told", "asked after the release"]


async def test_askers_are_told_of_a_quarantine_and_their_messages_stay(world: World) -> None:
    accepted: dict[Any, bool] = {}
    gate = Gate()

    async def ask(message: Any) -> None:
        with pytest.raises(KeyQuarantined) as caught:
            await system.ask("a", message)
        accepted[message] = caught.value.accepted
        assert isinstance(caught.value.__cause__, Boom)

    async def tell(message: Any) -> None:
        await system.tell("a", message)

    async with world.system(supervision=QUARANTINE, mailbox_capacity=2) as system:
        async with trio.open_nursery() as nursery:
            system.tell_nowait("a", gate)
            await gate.entered.wait()
            crash = Once(world)
            for kind, message in ((ask, crash), (ask, 1), (ask, 2), (tell, 3), (ask, 4)):
                nursery.start_soon(kind, message)
                await wait_all_tasks_blocked()
            gate.opened.set()
            await wait_all_tasks_blocked()
            # The crash made room for one, and is back at the head.
            assert accepted == {crash: True, 1: True, 2: True, 4: False}
            assert system.statistics().waiting_tellers == 1
            system.release("a")
    assert world.log == ["worked", 1, 2, 3]


async def test_stopping_a_quarantined_key_gives_up_its_mailbox(world: World) -> None:
    gate = Gate()
    async with world.system(supervision=QUARANTINE, mailbox_capacity=2) as system:
        async with trio.open_nursery() as nursery:
            system.tell_nowait("a", boom)
            system.tell_nowait("a", 1)
            await system.drain()
            nursery.start_soon(system.tell, "a", gate)
            await wait_all_tasks_blocked()
            await system.stop("a")
            await gate.entered.wait()
            gate.opened.set()
        assert world.dead() == [boom, 1]
        assert all(isinstance(letter.error, ActorStopped) for letter in world.letters)
        assert isinstance(world.letters[0].error.__cause__, Boom)
        await system.stop("a")
        assert system.statistics().keys == 0


async def test_a_stop_that_is_queued_when_the_key_is_quarantined_is_not_left_waiting(
    world: World,
) -> None:
    gate = Gate()
    async with world.system(supervision=QUARANTINE) as system, trio.open_nursery() as nursery:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        system.tell_nowait("a", boom)
        system.tell_nowait("a", "lost")
        nursery.start_soon(system.stop, "a")
        await wait_all_tasks_blocked()
        system.tell_nowait("a", "for the successor")
        gate.opened.set()
    assert world.dead() == [boom, "lost"]
    assert world.log == ["for the successor"]


async def test_a_quarantined_mailbox_goes_to_the_dead_letters_at_the_end(world: World) -> None:
    async with world.system(supervision=QUARANTINE) as system:
        system.tell_nowait("a", boom)
        system.tell_nowait("a", 1)
        system.tell_nowait("b", 2)
    assert world.dead() == [boom, 1]
    assert world.log == [2]


async def test_an_actor_is_stopped_if_the_error_says_so(world: World) -> None:
    async with world.attentive_system(supervision=AT_ONCE) as system:
        system.tell_nowait("a", fatal)
        system.tell_nowait("a", "rest")
        await system.drain()
        assert system.statistics().keys == 0
        assert world.dead() == [fatal, "rest"]
        assert all(isinstance(letter.error, ActorStopped) for letter in world.letters)
        assert await system.ask("a", "fresh") == "fresh"
    assert world.log == ["start", "start", "fresh", "stop"]
    assert system.statistics().restarts == 0


async def test_askers_of_a_stopped_actor_learn_who_failed_and_who_was_only_in_line(
    world: World,
) -> None:
    caught: list[str] = []

    async def asker(message: Any) -> None:
        try:
            await system.ask("a", message)
        except (ActorFailed, ActorStopped) as error:
            caught.append(f"{type(error).__name__} {type(error.__cause__).__name__}")

    gate = Gate()
    async with world.system(supervision=AT_ONCE) as system, trio.open_nursery() as nursery:
        system.tell_nowait("a", gate)
        for message in (fatal, "in line"):
            await wait_all_tasks_blocked()
            nursery.start_soon(asker, message)
        await wait_all_tasks_blocked()
        gate.opened.set()
    assert sorted(caught) == ["ActorFailed Fatal", "ActorStopped Fatal"]


async def test_crashes_of_one_key_do_not_disturb_another(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.system(supervision=Supervision(max_restarts=3)) as system:
        for n in range(50):
            system.tell_nowait("bad", boom)
            system.tell_nowait("good", n)
            await trio.sleep(0.01)
        assert world.log == list(range(50))
        await system.drain()
        assert system.quarantined() == ["bad"]


async def test_a_quarantine_is_told_with_the_key_and_the_last_error(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, BaseException]] = []

    def tell(key: str, error: BaseException) -> None:
        told.append((key, error))
        raise ValueError("nobody listens")

    async with world.system(supervision=QUARANTINE, on_quarantine=tell) as system:
        system.tell_nowait("a", boom)
        system.tell_nowait("b", "fine")
        await wait_all_tasks_blocked()
        assert [(key, type(error)) for key, error in told] == [("a", Boom)]
        assert system.quarantined() == ["a"]
        system.release("a")
        await wait_all_tasks_blocked()
        assert len(told) == 2
    assert "on_quarantine failed for key 'a'" in caplog.text
    assert world.log == ["fine"]
    with pytest.raises(TypeError, match="on_quarantine must be callable"):
        world.system(on_quarantine=7)


async def test_hasten_ends_every_backoff_in_the_order_of_their_ends(
    world: World, autojump_clock: MockClock
) -> None:
    supervision = Supervision(base=100, jitter=0, max_delay=1000)
    async with world.system(supervision=supervision) as system:
        system.hasten()
        for key, crashes in (("twice", 2), ("once", 1)):
            system.tell_nowait(key, Once(world, crashes))
            system.tell_nowait(key, key)
        await trio.sleep(150)
        assert system.statistics().backoff == 1
        assert world.log == ["worked", "once"]
        system.tell_nowait("late", Once(world))
        system.tell_nowait("late", "late")
        await wait_all_tasks_blocked()
        assert system.statistics().backoff == 2
        system.hasten()
        await wait_all_tasks_blocked()
        assert system.statistics().backoff == 0
        assert world.log == ["worked", "once", "worked", "late", "worked", "twice"]
        assert trio.current_time() == 150
        system.tell_nowait("again", Once(world))
        await trio.sleep(99)
        assert system.statistics().backoff == 1


async def test_an_error_that_is_neither_true_nor_false_is_supervised_like_any_other(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    class Undecided(Exception):
        def __bool__(self) -> bool:
            raise ValueError("no bool")

    async def crash() -> None:
        raise Undecided

    caplog.set_level("INFO")
    async with world.system(supervision=AT_ONCE) as system:
        system.tell_nowait("a", crash)
        system.tell_nowait("b", "fine")
        await wait_all_tasks_blocked()
        assert system.quarantined() == ["a"]
    assert world.log == ["fine"]
