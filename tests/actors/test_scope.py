"""The scope that a handler borrows from its worker, and that the next one gets clean."""

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun.actors import ActorSystem
from tests.actors.scripted import AT_ONCE, GIVE_UP, Act, Gate, World, sleeping

System = ActorSystem[str, object, object]


def overrunning(system: System, *, renew: bool = True, deadline: float = 1) -> Act:
    """A message whose handler is cancelled by a deadline of its own, and returns."""

    async def overrun() -> float:
        scope = system.scope()
        scope.deadline = trio.current_time() + deadline
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            assert scope.cancel_called
        if renew:
            system.renew_scope()
        return trio.current_time()

    return overrun


@pytest.mark.parametrize("renew", [True, False])
async def test_a_handler_that_was_cancelled_through_its_scope_returns_as_any_other(
    world: World, autojump_clock: MockClock, renew: bool
) -> None:
    async with world.system(max_workers=1) as system:
        overrun = overrunning(system, renew=renew)
        for turn in (1, 2, 3):
            assert await system.ask("a", overrun) == turn
            await system.ask("a", sleeping(0))
            await system.ask("b", sleeping(0))
        assert system.statistics().workers == 1
        assert system.statistics().restarts == 0
    assert world.letters == []
    assert world.made == 2


@pytest.mark.parametrize("renew", [True, False])
async def test_a_cancelled_scope_is_not_that_of_messages_that_were_already_there(
    world: World, autojump_clock: MockClock, renew: bool
) -> None:
    async def note() -> None:
        await trio.sleep(1)
        world.log.append(trio.current_time())

    async with world.system(max_workers=1) as system:
        system.tell_nowait("a", overrunning(system, renew=renew))
        for key in "aabc":
            system.tell_nowait(key, note)
    assert world.log == [2, 3, 4, 5]
    assert world.letters == []


async def test_a_deadline_that_was_not_reached_ends_with_its_handler(
    world: World, autojump_clock: MockClock
) -> None:
    async def leave_a_deadline() -> None:
        system.scope().deadline = trio.current_time() + 1

    async def crash_with_a_deadline() -> None:
        await leave_a_deadline()
        raise ValueError

    async with world.system(max_workers=1, supervision=GIVE_UP) as system:
        for message in (leave_a_deadline, crash_with_a_deadline):
            system.tell_nowait("a", message)
            assert await system.ask("a", sleeping(5)) is None
            system.tell_nowait("a", message)
            assert await system.ask("b", sleeping(5)) is None
    assert world.dead() == [crash_with_a_deadline] * 2


async def test_a_handler_that_cancels_itself_and_waits_for_nothing_disturbs_nobody(
    world: World,
) -> None:
    async def cancel() -> None:
        system.scope().cancel()

    async with world.system(max_workers=1) as system:
        for n in range(3):
            system.tell_nowait("a", cancel)
            system.tell_nowait("a", n)
            system.tell_nowait("b", sleeping(0))
        await system.drain()
        assert system.statistics().handled == 9
    assert world.log == [0, 1, 2]


@pytest.mark.parametrize("nursery", [True, False])
async def test_to_let_the_cancellation_out_is_a_crash_that_the_worker_survives(
    world: World, autojump_clock: MockClock, nursery: bool
) -> None:
    crashes = 0

    async def let_it_out() -> None:
        nonlocal crashes
        if crashes < 2:
            crashes += 1
            system.scope().deadline = trio.current_time() + 1
        if nursery:
            async with trio.open_nursery() as inner:
                inner.start_soon(trio.sleep, 5)
                inner.start_soon(trio.sleep, 5)
        else:
            await trio.sleep(5)
        world.log.append(trio.current_time())

    async with world.attentive_system(max_workers=1, supervision=AT_ONCE) as system:
        system.tell_nowait("a", let_it_out)
        system.tell_nowait("a", "next")
        await system.drain()
        assert system.statistics().restarts == 2
        assert system.statistics().workers == 1
    kind = "BaseExceptionGroup" if nursery else "Cancelled"
    assert world.log == ["start", *[f"restart after {kind}"] * 2, 7, "next", "stop"]


async def test_a_cancellation_that_is_let_out_is_given_up_if_so_configured(
    world: World, autojump_clock: MockClock
) -> None:
    async def let_it_out() -> None:
        system.scope().cancel()
        await trio.lowlevel.checkpoint()

    async with world.system(max_workers=1, supervision=GIVE_UP) as system:
        system.tell_nowait("a", let_it_out)
        system.tell_nowait("a", sleeping(1))
        system.tell_nowait("b", "other")
    (letter,) = world.letters
    assert letter.message is let_it_out
    assert isinstance(letter.error, trio.Cancelled)
    assert world.log == ["other"]
    assert system.statistics().handled == 2


async def test_handlers_that_wait_at_the_same_time_have_scopes_of_their_own(
    world: World, autojump_clock: MockClock
) -> None:
    async def note() -> None:
        await trio.sleep(3)
        world.log.append("undisturbed")

    async with world.system() as system:
        for n in range(10):
            system.tell_nowait(f"cancelled {n}", overrunning(system, deadline=1 + n % 3))
            system.tell_nowait(f"other {n}", note)
    assert world.log == ["undisturbed"] * 10
    assert system.statistics().handled == 20


async def test_a_scope_is_only_for_a_handler_and_only_in_its_own_task(world: World) -> None:
    def ask_for_it(who: str) -> None:
        for call in (system.scope, system.renew_scope):
            with pytest.raises(RuntimeError, match="only a handler has a scope, in the task"):
                call()
        world.log.append(who)

    async def child() -> None:
        ask_for_it("child")

    async def in_a_nursery() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(child)

    async def of_another_system() -> None:
        ask_for_it("other")

    async with world.system() as system, world.system() as other:
        ask_for_it("outside")
        await system.ask("a", in_a_nursery)
        await other.ask("a", of_another_system)
        assert await system.ask("a", "goes on") == "goes on"
        assert not system._pool.spent
    assert world.log == ["outside", "child", "other", "goes on"]


async def test_a_scope_that_is_not_cancelled_may_be_renewed(world: World) -> None:
    scopes: list[trio.CancelScope] = []

    async def renew() -> None:
        scopes.append(system.scope())
        system.renew_scope()

    async with world.system(max_workers=1) as system:
        for key in "aab":
            system.tell_nowait(key, renew)
        await system.drain()
        assert len(set(map(id, scopes))) == 3
        for scope in scopes:
            scope.cancel()
        assert await system.ask("a", "undisturbed") == "undisturbed"


async def test_a_handler_that_keeps_its_scope_as_it_was_looks_after_it_itself(
    world: World, autojump_clock: MockClock
) -> None:
    scopes: list[trio.CancelScope] = []

    async def wait_and_clear() -> None:
        scopes.append(scope := system.scope(kept=True))
        scope.deadline = trio.current_time() + 1
        await trio.sleep(0.5)
        scope.deadline = trio.current_time() + 10**9

    async def cancelled() -> None:
        scopes.append(scope := system.scope(kept=True))
        scope.cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            system.renew_scope()

    async with world.system(max_workers=1) as system:
        for act in (wait_and_clear, cancelled, wait_and_clear):
            await system.ask("a", act)
        assert await system.ask("a", sleeping(2)) is None
    assert scopes[0] is scopes[1] is not scopes[2]


async def test_a_scope_that_was_kept_and_cancelled_later_does_not_stop_the_pool(
    world: World,
) -> None:
    kept: list[trio.CancelScope] = []

    async def keep() -> None:
        kept.append(system.scope())

    async with world.system(max_workers=1) as system:
        for _ in range(3):
            await system.ask("a", keep)
            await wait_all_tasks_blocked()
            kept.pop().cancel()
            await wait_all_tasks_blocked()
            now = system.statistics()
            assert (now.workers, now.idle_workers) == (1, 1)
            for key in "abc":
                assert await system.ask(key, sleeping(0)) is None
        assert system._pool.seeking == 0


@pytest.mark.parametrize("lets_out", [True, False])
async def test_a_system_ends_while_scopes_are_cancelled(
    world: World, autojump_clock: MockClock, lets_out: bool
) -> None:
    async def clean_up_slowly() -> None:
        system.scope().cancel()
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            with trio.CancelScope(shield=True):
                await trio.sleep(2)
            world.log.append("cleaned up")
            if lets_out:
                raise

    with trio.move_on_after(1) as outer:
        async with world.system(supervision=AT_ONCE) as system:
            for key in "abc":
                system.tell_nowait(key, clean_up_slowly)
                system.tell_nowait(key, Gate())
            await trio.sleep_forever()
    assert outer.cancelled_caught
    assert trio.current_time() == 2
    now = system.statistics()
    assert (now.workers, now.running, now.queued, now.backoff) == (0, 0, 0, 0)
    assert now.handled + now.dead_letters == 6
    assert now.handled == (0 if lets_out else 3)
    assert world.log == ["cleaned up"] * 3


async def test_leaving_the_block_waits_for_handlers_whose_scope_is_cancelled(
    world: World, autojump_clock: MockClock
) -> None:
    async with world.attentive_system() as system:
        for key in "abc":
            system.tell_nowait(key, overrunning(system, renew=False))
            system.tell_nowait(key, key)
    assert sorted(world.log) == ["a", "b", "c", *["start"] * 3, *["stop"] * 3]
    assert world.letters == []
