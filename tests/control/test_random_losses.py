"""Random losses of ownership under load: nothing acknowledged is lost, and the order of keys holds.

Several members share a database on virtual time. At random moments they are cut off from the
database or from each other, lose answers, or leave and come back. The steps write down when they
begin, in which process, and whether that process owned the store then.
"""

import random
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Retry, current_step, step, workflow
from tests.control.joiners import Account
from tests.control.leased_places import Resident, Town, until

STEPS = 3
KEYS = 6


class Begun(NamedTuple):
    """A step that has begun."""

    key: str
    run: int
    step: int
    epoch: int
    member: str


@attrs.define
class World:
    """What the steps and the members write down."""

    town: Town = attrs.field(factory=Town)
    begun: list[Begun] = attrs.field(factory=list)
    wrong: list[str] = attrs.field(factory=list)
    lifespans: dict[str, int] = attrs.field(factory=lambda: defaultdict(int))
    hooks: list[str] = attrs.field(factory=list)
    acknowledged: dict[str, int] = attrs.field(factory=dict)
    results: dict[str, Any] = attrs.field(factory=dict)
    deposits: int = 0


world = World()


def begins(what: str) -> None:
    """Check that a process that begins something owns the store."""
    database = world.town.database
    current = current_step()
    name = current.resources
    if current.epoch != database.epoch:
        world.wrong.append(f"{what} began with epoch {current.epoch}, not {database.epoch}")
    if database.holder is None or database.holder.name != name:
        world.wrong.append(f"{what} began in {name}, but {database.holder} owns the store")
    elif not database.holder.is_trusted():
        world.wrong.append(f"{what} began in {name} while it was not trusted")


@step(retry=Retry.fixed(max_attempts=2, delay=0.5))
async def work(run: int, number: int) -> int:
    current = current_step()
    begins(f"step {number} of run {run}")
    world.begun.append(Begun(current.key, run, number, current.epoch, current.resources))
    await trio.sleep(random.random() * 4)
    return number


@step
async def instant(run: int, number: int) -> int:
    current = current_step()
    begins(f"instant step {number} of run {run}")
    world.begun.append(Begun(current.key, run, number, current.epoch, current.resources))
    return number


@workflow
async def job(ctx: Context, run: int) -> int:
    for number in range(STEPS):
        await ctx.step(instant if number % 2 else work, run, number)
    if run % 5 == 0:
        await ctx.wait_signal("go")
    await ctx.step(instant, run, STEPS)
    return run


def options_of(name: str) -> dict[str, Any]:
    @asynccontextmanager
    async def lifespan() -> AsyncIterator[str]:
        world.lifespans[name] += 1
        assert world.lifespans[name] == 1
        try:
            yield name
        finally:
            world.lifespans[name] -= 1

    async def hook(outcome: Any) -> None:
        holder = world.town.database.holder
        if holder is None or holder.name != name or not holder.is_trusted():
            world.wrong.append(f"the hook began in {name}, but {holder} owns the store")
        world.hooks.append(outcome.run_id)

    return {
        "lifespan": lifespan,
        "on_terminal": hook,
        "workflows": [job],
        "lock_timeout": 10_000,
        "drain_timeout": 3,
    }


async def load(member: Resident, runs: "list[int]") -> None:
    """Submit runs, wait for their ends, send signals and call an entity, in one process."""

    async def one(run: int) -> None:
        run_id = f"r{run}" if run % 2 else None
        handle = await member.rt.submit(job, run, key=f"k{run % KEYS}", run_id=run_id)
        assert handle.run_id not in world.acknowledged
        world.acknowledged[handle.run_id] = run
        if run % 5 == 0:
            await member.rt.signal(handle.run_id, "go", None, signal_id="go")
        await member.rt.entity(Account, "account").deposit(1)
        world.deposits += 1
        world.results[handle.run_id] = await handle.result()

    async with trio.open_nursery() as nursery:
        for run in runs:
            nursery.start_soon(one, run)
            await trio.sleep(random.random() * 6)


async def disturb(residents: list[Resident], rounds: int) -> None:
    """Let one owner lose the store for certain, and then do something bad every few seconds."""
    database = world.town.database
    first = next(each for each in residents if each.owns)
    first.store.cut()
    await until(lambda: database.epoch > 1, seconds=300)
    first.store.mend()
    for _ in range(rounds):
        await trio.sleep(random.random() * 10)
        victim, other = random.sample(residents, 2)
        owners = [each for each in residents if each.owns]
        if owners and random.random() < 0.7:
            victim = owners[0]
        match random.choice(["cut", "cut", "part", "answers", "down"]):
            case "cut":
                victim.store.cut()
                await trio.sleep(random.random() * 30)
            case "part":
                world.town.cut(victim.store, other.store)
                await trio.sleep(random.random() * 10)
            case "answers":
                victim.store.loses_answers = True
                await trio.sleep(random.random())
                victim.store.cut()
                await trio.sleep(random.random() * 30)
            case "down":
                for each in residents:
                    each.store.cut()
                await trio.sleep(random.random() * 25)
        for each in residents:
            each.store.loses_answers = False
            each.store.mend()
        world.town.mend()


@pytest.mark.parametrize("seed", range(6))
async def test_random_losses(autojump_clock: MockClock, seed: int) -> None:
    global world
    world = World()
    random.seed(seed)
    runs = list(range(60))
    async with trio.open_nursery() as nursery:
        residents = [
            await Resident(world.town, name, nursery, **options_of(name)).enter() for name in "abc"
        ]
        async with trio.open_nursery() as working:
            for at, each in enumerate(residents):
                working.start_soon(load, each, runs[at::3])
            working.start_soon(disturb, residents, 25)
        heir = residents[0]
        assert await heir.rt.entity(Account, "account").deposit(0) == world.deposits
        await until(lambda: set(world.hooks) == set(world.acknowledged), seconds=300)
        for each in residents:
            await each.leave()
    assert world.wrong == []
    assert world.results == world.acknowledged
    assert sorted(world.acknowledged.values()) == runs
    check_order(world.begun)
    assert world.town.database.commits == sorted(world.town.database.commits)
    assert set(world.lifespans.values()) == {0}


def check_order(begun: list[Begun]) -> None:
    """Check that no step begins after its successor, nor a run after the next run of its key."""
    epochs = [each.epoch for each in begun]
    assert epochs == sorted(epochs)
    last: dict[int, int] = {}
    order: dict[str, list[int]] = defaultdict(list)
    for each in begun:
        assert each.step >= last.get(each.run, 0), f"{each} began after step {last[each.run]}"
        last[each.run] = each.step
        if not order[each.key] or order[each.key][-1] != each.run:
            order[each.key].append(each.run)
    for key, found in order.items():
        assert len(found) == len(set(found)), f"runs of {key} were mixed: {found}"
