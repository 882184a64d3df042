import gc
import weakref
from collections.abc import Generator
from contextvars import ContextVar
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from keyrun.actors import Actor, ActorSystem
from keyrun.actors.pool import MAX_IDLE, PASS
from tests.actors.scripted import GIVE_UP, Gate, Scripted, World, sleeping

request: ContextVar[str] = ContextVar("request", default="none")


class PassCounter(trio.abc.Instrument):
    """Counts the passes of the Trio loop."""

    passes = 0

    def before_io_wait(self, timeout: float) -> None:
        self.passes += 1


async def test_handlers_that_do_not_wait_are_served_by_one_worker(world: World) -> None:
    async with world.system() as system:
        for n in range(10_000):
            system.tell_nowait(str(n % 1000), n)
        await system.drain()
        assert system.statistics().workers == 1
    assert len(world.log) == 10_000


async def test_five_thousand_keys_that_wait_50_ms_each_wait_at_the_same_time(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    counter = PassCounter()
    async with world.system() as system:
        trio.lowlevel.add_instrument(counter)
        for n in range(5000):
            system.tell_nowait(str(n), sleeping(0.05))
        await system.drain()
        trio.lowlevel.remove_instrument(counter)
        assert trio.current_time() == pytest.approx(0.05)
        assert system.statistics().handled == 5000
    # One pass per worker that is woken; a pass costs some 50 us.
    assert counter.passes < 6000


async def test_workers_that_are_not_needed_any_more_go_home(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with world.system() as system:
        for n in range(MAX_IDLE + 100):
            system.tell_nowait(str(n), sleeping(1))
        await trio.sleep(0.5)
        assert system.statistics().workers == MAX_IDLE + 100
        await system.drain()
        now = system.statistics()
        assert (now.workers, now.idle_workers) == (MAX_IDLE, MAX_IDLE)
        assert await system.ask("a", "still served") == "still served"


async def test_a_key_that_blocks_for_ever_does_not_slow_the_others(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    gate = Gate()
    async with world.system() as system:
        system.tell_nowait("stuck", gate)
        system.tell_nowait("stuck", "after")
        for n in range(1000):
            system.tell_nowait(str(n % 10), n)
        await wait_all_tasks_blocked()
        assert sorted(world.log) == list(range(1000))
        assert trio.current_time() == 0
        gate.opened.set()
    assert world.log[-1] == "after"


async def test_max_workers_bounds_how_many_handlers_wait_at_the_same_time(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async with world.system(max_workers=4) as system:
        for n in range(12):
            system.tell_nowait(str(n), sleeping(1))
        await trio.sleep(0.5)
        assert system.statistics().running == 4
        await system.drain()
        assert trio.current_time() == 3
        assert system.statistics().workers == 4


async def test_a_key_with_much_to_do_gives_way_after_its_fairness_budget(world: World) -> None:
    async with world.system(fairness=3) as system:
        for n in range(7):
            system.tell_nowait("busy", n)
        system.tell_nowait("other", "other")
    assert world.log == [0, 1, 2, "other", 3, 4, 5, 6]


@pytest.mark.parametrize("changes_context", [False, True])
async def test_a_flood_lets_other_tasks_run_every_now_and_then(
    world: World, changes_context: bool
) -> None:
    seen: list[int] = []

    async def handle() -> None:
        if changes_context:
            request.set("changed")
        world.log.append(None)

    async def look() -> None:
        while len(world.log) < 10 * PASS:
            seen.append(len(world.log))
            await trio.lowlevel.checkpoint()

    async with world.system() as system, trio.open_nursery() as nursery:
        for n in range(10 * PASS):
            system.tell_nowait(str(n), handle)
        nursery.start_soon(look)
    # Both run once per pass of the loop, in any order: between two looks there are two at most.
    assert max(after - before for before, after in pairwise(seen)) <= 2 * PASS


async def test_a_worker_that_rests_keeps_no_message_alive(world: World) -> None:
    async def handle() -> None: ...

    kept = weakref.ref(handle)
    async with world.system() as system:
        system.tell_nowait("a", handle)
        await system.drain()
        assert system.statistics().idle_workers == 1
        del handle
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize("suspends", [False, True])
async def test_a_context_variable_set_by_one_message_is_not_seen_by_the_next(
    world: World, suspends: bool
) -> None:
    async def look(name: str) -> None:
        world.log.append(request.get())
        request.set(name)
        if suspends:
            await trio.lowlevel.checkpoint()
        assert request.get() == name

    async with world.system() as system:
        for n in range(6):
            name = f"{n}"
            system.tell_nowait("ab"[n % 2], lambda name=name: look(name))
    assert world.log == ["none"] * 6


async def test_a_context_variable_whose_values_cannot_be_compared_is_not_seen_either(
    world: World,
) -> None:
    class Proud:
        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        __hash__ = None  # type: ignore[assignment]

    async def replace() -> None:
        world.log.append(array.get() is original)
        array.set(Proud())

    array: ContextVar[Proud] = ContextVar("array")
    original = Proud()
    array.set(original)
    async with world.system() as system:
        for n in range(4):
            system.tell_nowait("ab"[n % 2], replace)
    assert world.log == [True] * 4
    assert world.letters == []


async def test_a_context_variable_set_to_an_equal_value_is_not_seen_either(world: World) -> None:
    @attrs.define
    class User:
        name: str
        cart: list[str] = attrs.field(factory=list, eq=False)

    async def shop() -> None:
        world.log.append(user.get() is original)
        user.set(User("alice", ["a secret"]))

    user: ContextVar[User] = ContextVar("user")
    original = User("alice")
    user.set(original)
    async with world.system() as system:
        for n in range(4):
            system.tell_nowait("ab"[n % 2], shop)
    assert world.log == [True] * 4


async def test_handlers_see_the_context_the_system_was_opened_in_not_the_tellers(
    world: World,
) -> None:
    async def look() -> str:
        return request.get()

    token = request.set("opened")
    async with world.system() as system:
        request.set("told")
        assert await system.ask("a", look) == "opened"
        assert request.get() == "told"
    request.reset(token)


async def test_cancel_scopes_and_nurseries_work_in_handlers(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async def structured() -> str:
        with trio.move_on_after(1) as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.sleep_forever)
        assert scope.cancelled_caught
        with trio.CancelScope(shield=True):
            await trio.sleep(1)
        return "done"

    async with world.system() as system:
        assert await system.ask("a", structured) == "done"
        assert trio.current_time() == 2


async def test_an_error_thrown_into_a_waiting_handler_arrives_there(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    async def clean_up() -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await trio.sleep(1)
            world.log.append("cleaned up")

    with trio.move_on_after(1):
        async with world.system() as system:
            system.tell_nowait("a", clean_up)
    assert world.log == ["cleaned up"]
    assert trio.current_time() == 2
    assert world.dead() == [clean_up]


async def test_a_system_that_is_cancelled_strands_no_key_and_no_message(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    """Workers in every situation at once: waiting, woken, idle, in the middle of a flood."""
    told = 0
    with trio.move_on_after(1):
        async with world.system(max_workers=20) as system:
            for n in range(40):
                system.tell_nowait(str(n), sleeping(0.05 * (n % 3) + 0.9))
                system.tell_nowait(str(n), f"after {n}")
                told += 2
            await trio.sleep(0.999)
            for n in range(3 * PASS):
                system.tell_nowait(f"flood {n}", n)
                told += 1
            await trio.sleep_forever()
    now = system.statistics()
    assert now.handled + now.dead_letters == told
    assert now.dead_letters == len(world.letters) > 0
    assert (now.workers, now.idle_workers, now.ready, now.running) == (0, 0, 0, 0)


async def test_a_handler_that_swallows_its_cancellation_does_not_keep_the_system_alive(
    world: World,
) -> None:
    class Stubborn(Scripted):
        async def receive(self, message: Any) -> None:
            try:
                await trio.sleep_forever()
            except trio.Cancelled:
                world.log.append(message)

    with trio.CancelScope() as scope:
        async with world.system(Stubborn) as system:
            for n in range(3):
                system.tell_nowait("a", n)
            await wait_all_tasks_blocked()
            scope.cancel()
    assert world.log + world.dead() == [0, 1, 2]


async def test_a_handler_that_awaits_something_foreign_crashes_alone(world: World) -> None:
    class Foreign:
        def __await__(self) -> Generator[str, None, None]:
            yield "what another library would yield"

    async def confused() -> None:
        await Foreign()

    async with world.system(supervision=GIVE_UP) as system:
        system.tell_nowait("a", confused)
        system.tell_nowait("a", "next")
        system.tell_nowait("b", "other")
    assert sorted(world.log) == ["next", "other"]
    (letter,) = world.letters
    assert isinstance(letter.error, TypeError)
    assert "unrecognized yield" in str(letter.error)


async def test_a_small_pass_size_lets_other_tasks_run_between_messages() -> None:
    class Plain(Actor[int, None]):
        async def receive(self, message: int) -> None:
            handled.append(message)

    handled: list[int] = []
    seen: list[int] = []
    async with ActorSystem[str, int, None](lambda key: Plain(), pass_size=3) as system:
        for number in range(30):
            await system.tell(f"key-{number}", number)
        while len(handled) < 30:
            seen.append(len(handled))
            await trio.lowlevel.checkpoint()
    assert sorted(handled) == list(range(30))
    steps = [after - before for before, after in pairwise(seen)]
    assert max(steps) <= 6
