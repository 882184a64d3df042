import gc
import tracemalloc

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from keyrun.actors import (
    Actor,
    ActorSystem,
    MailboxFull,
    WouldDeadlock,
)
from keyrun.actors.directory import MAX_SPARE
from tests.actors.scripted import Gate, World


class Small(Actor[int, int]):
    __slots__ = ("n",)

    def __init__(self, key: str) -> None:
        self.n = 0

    async def receive(self, message: int) -> int:
        self.n += message
        return self.n


@pytest.mark.parametrize("idle_timeout", [None, 3600.0])
async def test_an_idle_key_takes_at_most_500_bytes(idle_timeout: float | None) -> None:
    keys = 20_000
    async with ActorSystem(Small, idle_timeout=idle_timeout) as system:
        await system.ask("warm", 1)
        gc.collect()
        tracemalloc.start()
        for n in range(keys):
            system.tell_nowait(f"customer-{n}", 1)
            if n % 100 == 0:
                await system.drain()
        await system.drain()
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert system.statistics().keys == keys + 1
        assert await system.ask("customer-7", 1) == 2
    assert taken / keys <= 500


async def test_a_burst_of_active_keys_leaves_few_mailboxes_behind() -> None:
    async with ActorSystem(Small) as system:
        for n in range(5000):
            system.tell_nowait(f"{n}", 1)
        await system.drain()
        assert len(system._directory.spare) <= MAX_SPARE


async def test_a_thousand_tellers_that_wait_at_one_mailbox_all_get_in() -> None:
    async with ActorSystem(Small, mailbox_capacity=1, max_workers=1) as system:
        system.tell_nowait("a", 1)
        async with trio.open_nursery() as nursery:
            for _ in range(1000):
                nursery.start_soon(system.tell, "a", 1)
        assert await system.ask("a", 0) == 1001


async def test_a_full_mailbox_refuses_tell_nowait(world: World) -> None:
    gate = Gate()
    async with world.system(mailbox_capacity=2) as system:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        system.tell_nowait("a", 1)
        system.tell_nowait("a", 2)
        with pytest.raises(MailboxFull, match=r"key 'a' is full \(2 messages\)"):
            system.tell_nowait("a", 3)
        gate.opened.set()
    assert world.log == [1, 2]


async def test_a_full_mailbox_blocks_the_teller_only(world: World) -> None:
    gate = Gate()
    async with world.system(mailbox_capacity=1) as system, trio.open_nursery() as nursery:
        system.tell_nowait("full", gate)
        await gate.entered.wait()
        await system.tell("full", 1)
        nursery.start_soon(system.tell, "full", 2)
        await wait_all_tasks_blocked()
        assert system.statistics().waiting_tellers == 1
        assert await system.ask("other", "answer") == "answer"
        gate.opened.set()
    assert world.log == ["answer", 1, 2]


async def test_waiting_tellers_are_let_in_first_come_first_served_before_newcomers(
    world: World,
) -> None:
    gate = Gate()
    late: list[str] = []

    async def barge_in() -> None:
        try:
            system.tell_nowait("a", "newcomer")
        except MailboxFull:
            late.append("refused")

    async with world.system(mailbox_capacity=2) as system, trio.open_nursery() as nursery:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        system.tell_nowait("a", barge_in)
        system.tell_nowait("a", 0)
        for n in (1, 2, 3):
            nursery.start_soon(system.tell, "a", n)
            await wait_all_tasks_blocked()
        gate.opened.set()
    assert late == ["refused"]
    assert world.log == [0, 1, 2, 3]


async def test_a_teller_that_is_cancelled_while_it_waits_has_sent_nothing(world: World) -> None:
    gate = Gate()
    async with world.system(mailbox_capacity=1) as system:
        system.tell_nowait("a", gate)
        await gate.entered.wait()
        system.tell_nowait("a", 1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(system.tell, "a", "cancelled")
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        gate.opened.set()
    assert world.log == [1]
    assert world.letters == []


async def test_a_handler_that_fills_its_own_mailbox_gets_an_error_instead_of_waiting(
    world: World,
) -> None:
    async def talk_to_myself() -> None:
        await system.tell("a", 1)
        with pytest.raises(WouldDeadlock, match="tell on key 'a' from its own handler"):
            await system.tell("a", 2)

    async with world.system(mailbox_capacity=1) as system:
        await system.tell("a", talk_to_myself)
    assert world.log == [1]
