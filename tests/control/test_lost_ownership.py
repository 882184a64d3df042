"""A process loses the store that it shares, and owns it again, in one block."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, State, step, workflow
from keyrun.errors import NoOwner
from keyrun.events import EventKind, Missed
from keyrun.groups import Member
from tests.control.joiners import Account, hold, tell_resources, wait_for_go
from tests.control.leased_places import Town, residents, until


async def test_an_owner_that_is_cut_off_becomes_a_client_and_an_owner_again(
    autojump_clock: MockClock,
) -> None:
    town = Town()
    async with residents(town, "a", "b") as (a, b):
        assert (a.owns, b.owns) == (True, False)
        a.store.cut()
        await until(lambda: b.owns, seconds=30)
        assert town.database.epoch == 2
        # It does not know that it has lost the store, and begins nothing.
        assert not a.store.is_trusted()
        a.store.mend()
        await until(lambda: not a.owns, seconds=30)
        run = await a.rt.submit(wait_for_go, key="k")
        await b.rt.signal(run.run_id, "go", 1)
        assert await run.result() == "1"
        await b.leave()
        await until(lambda: a.owns, seconds=30)
        assert await a.rt.run(run.run_id).result() == "1"
        assert town.database.epoch == 3


async def test_all_calls_of_the_owner_live_through_the_loss(autojump_clock: MockClock) -> None:
    found: dict[str, Any] = {"events": []}
    town = Town()
    async with residents(town, "a", "b") as (a, b):
        rt = a.rt
        run = await rt.submit(wait_for_go, key="k", run_id="r")
        generated = await rt.submit(wait_for_go, key="k2")
        group = await rt.submit_group(
            "g", [Member(wait_for_go, None, key=f"g{at}", member_id=str(at)) for at in range(3)]
        )
        account = rt.entity(Account, "account")
        assert await account.deposit(1) == 1
        begun = trio.Event()

        async def follow() -> None:
            async with rt.events(run_id="r") as events:
                begun.set()
                async for event in events:
                    found["events"].append(event)
                    if event.kind is EventKind.RUN_SUCCEEDED:
                        return

        async def watch() -> None:
            found["watch"] = [each.state async for each in rt.watch("r")]

        async def iterate() -> None:
            found["group"] = sorted([each.member_id async for each in group])

        async def wait() -> None:
            found["result"] = await run.result()

        async def wait_for_generated() -> None:
            found["generated"] = await generated.result()

        async def call() -> None:
            found["balance"] = await account.deposit(1)

        async def submit() -> None:
            found["late"] = await rt.submit(hold, 0.0, key="late")

        async with trio.open_nursery() as nursery:
            for each in (follow, watch, iterate, wait, wait_for_generated):
                nursery.start_soon(each)
            await begun.wait()
            await trio.sleep(1)
            a.store.cut()
            await trio.sleep(1)
            # These commits do not return before the store is lost.
            nursery.start_soon(call)
            nursery.start_soon(submit)
            await until(lambda: b.owns, seconds=30)
            a.store.mend()
            await until(lambda: any(isinstance(each, Missed) for each in found["events"]))
            await until(lambda: len(found) == 3)
            for run_id in ("g-0", "g-1", "g-2", "r", generated.run_id):
                await rt.signal(run_id, "go", run_id)
        assert (await run.status()).state is State.SUCCEEDED
        assert await found["late"].result() is None
        assert found["late"].newly_submitted
    assert found["result"] == "r"
    assert found["generated"] == generated.run_id
    assert found["watch"][-1] is State.SUCCEEDED
    assert found["group"] == ["0", "1", "2"]
    assert found["balance"] == 2


@pytest.mark.parametrize("given", ["given", None])
async def test_a_submit_that_was_stored_before_the_loss_is_not_stored_again(
    autojump_clock: MockClock, given: str | None
) -> None:
    handles = []
    town = Town()
    async with residents(town, "a", "b") as (a, b):

        async def submit() -> None:
            handles.append(await a.rt.submit(wait_for_go, key="k", run_id=given))

        a.store.loses_answers = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(submit)
            await trio.sleep(1)
            assert not handles
            a.store.cut()
            await until(lambda: b.owns, seconds=30)
            assert len(await b.rt.runs()) == 1
            a.store.mend()
        assert len(await b.rt.runs()) == 1
        assert handles[0].newly_submitted or given
        await a.rt.signal(handles[0].run_id, "go", 1)
        assert await handles[0].result() == "1"


async def test_the_lifespan_is_entered_by_each_owner_and_left_when_its_engine_has_ended(
    autojump_clock: MockClock,
) -> None:
    log: list[str] = []

    def lifespan_of(name: str) -> Any:
        @asynccontextmanager
        async def lifespan() -> AsyncIterator[str]:
            log.append(f"{name} entered")
            try:
                yield name
            finally:
                log.append(f"{name} left")

        return lifespan

    town = Town()
    async with (
        residents(town, "a", lifespan=lifespan_of("a")) as (a,),
        residents(town, "b", lifespan=lifespan_of("b")) as (b,),
    ):
        for owner, other in ((a, b), (b, a), (a, b)):
            run = await other.rt.submit(tell_resources, key="k")
            assert await run.result() == owner.store.name
            owner.store.cut()
            await until(lambda other=other: other.owns, seconds=30)
            owner.store.mend()
            await until(lambda owner=owner: not owner.owns, seconds=30)
        await b.leave()
        await until(lambda: a.owns, seconds=30)
    assert [line for line in log if line.endswith("entered")] == [
        f"{name} entered" for name in "ababa"
    ]
    for name, times in (("a", 3), ("b", 2)):
        mine = [line.split()[1] for line in log if line.startswith(name)]
        assert mine == ["entered", "left"] * times


async def test_a_database_that_is_away_for_long_delays_everything_and_loses_nothing(
    autojump_clock: MockClock,
) -> None:
    town = Town()
    answers: list[Any] = []
    async with residents(town, "a", "b") as (a, b):

        async def submit(member: Any, at: int) -> None:
            run = await member.rt.submit(wait_for_go, key=f"k{at}", run_id=f"r{at}")
            await member.rt.signal(run.run_id, "go", at)
            answers.append(await run.result())

        async with trio.open_nursery() as nursery:
            for at in range(20):
                nursery.start_soon(submit, (a, b)[at % 2], at)
                if at == 10:
                    for each in (a, b):
                        each.store.cut()
            await trio.sleep(40)
            assert len(answers) < 20
            for each in (a, b):
                each.store.mend()
        assert sorted(map(int, answers)) == list(range(20))
        assert a.owns != b.owns


async def test_a_process_claims_again_only_when_the_threads_of_its_steps_have_ended(
    autojump_clock: MockClock,
) -> None:
    may_end = threading.Event()
    begun: list[str] = []

    @step
    def work() -> str:
        begun.append("work")
        may_end.wait(30)
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(work)

    town = Town()
    async with residents(town, "a", workflows=[job, wait_for_go]) as (a,):
        run = await a.rt.submit(job, key="k")
        await until(lambda: begun)
        a.store.lose()
        await until(lambda: not a.owns)
        # Nobody owns the store, and this process may not.
        await trio.sleep(30)
        assert not a.owns
        async with residents(town, "b", workflows=[wait_for_go]) as (b,):
            assert b.owns
            # It is a client of the next owner meanwhile.
            other = await a.rt.submit(wait_for_go, key="k2")
            await a.rt.signal(other.run_id, "go", 1)
            assert await other.result() == "1"
        assert begun == ["work"]
        may_end.set()
        await until(lambda: a.owns)
        assert await run.result() == "done"
    assert begun == ["work", "work"]


async def test_a_call_that_finds_no_owner_in_time_says_so(autojump_clock: MockClock) -> None:
    town = Town()
    async with residents(town, "a", lock_timeout=5) as (a,):
        rival = town.store("rival")
        a.store.cut()
        await until(town.database.is_free)
        async with rival:
            a.store.mend()
            await until(lambda: not a.owns)
            with pytest.raises(NoOwner):
                await a.rt.status("none")
        await until(lambda: a.owns)
        assert await a.rt.status("none") is None


async def test_an_entity_call_is_applied_once_through_losses(autojump_clock: MockClock) -> None:
    town = Town()
    async with residents(town, "a", "b") as (a, b):
        acknowledged = 0

        async def deposit(member: Any) -> None:
            nonlocal acknowledged
            for _ in range(30):
                await member.rt.entity(Account, "k").deposit(1)
                acknowledged += 1
                await trio.sleep(1)

        async def lose() -> None:
            for each in (a, b) * 3:
                await trio.sleep(7)
                each.store.loses_answers = True
                await trio.sleep(0.5)
                each.store.cut()
                await trio.sleep(15)
                each.store.loses_answers = False
                each.store.mend()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(deposit, a)
            nursery.start_soon(deposit, b)
            nursery.start_soon(lose)
        assert acknowledged == 60
        assert await a.rt.entity(Account, "k").deposit(0) == 60


async def test_a_block_that_is_left_while_the_store_is_lost_ends(autojump_clock: MockClock) -> None:
    town = Town()
    async with residents(town, "a", "b") as (a, b):
        run = await a.rt.submit(hold, 100.0, key="k")
        await trio.sleep(1)
        a.store.lose()
        await trio.lowlevel.checkpoint()
        with trio.fail_after(20):
            await a.leave()
        await until(lambda: b.owns)
        assert await b.rt.run(run.run_id).result() is None
