"""submit_or_signal in random worlds: messages that race with each other, with the same id that is
submitted, cancelled, forgotten, redriven and paused, over eviction, drains and crashes.

`KEYRUN_SOAK=1` plays many more worlds, `KEYRUN_SEED=n` just one.
"""

import os
from collections import Counter
from random import Random
from random import seed as seed_all
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Backpressure,
    Context,
    PermanentError,
    RunEnded,
    RunHandle,
    Runtime,
    SignalTimeout,
    State,
    step,
    workflow,
)
from keyrun.runtime.tuning import Tuning
from keyrun.storage import StoreClosed, StoreError
from keyrun.testing import CrashingMemoryStore, open_test_runtime
from tests.faults.soaking import amount

SEEDS = range(amount(16, 2000))
IDS = ("a", "b", "c")
LONG = 2000.0

SMALL = {
    "queue_window": (1, 3),
    "startup_page": (1, 4),
    "pooled_queues": (1, 3),
    "waiting_in_memory": (1, 5),
}


class World:
    """What was sent to whom, and what became of it."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = CrashingMemoryStore(
            latency=self.random.choice((0.0, 0.0, 0.01)),
            apply_first=self.random.random() < 0.5,
        )
        self.rt: Runtime | None = None
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self.sent: dict[int, list[str]] = {}
        """What was acknowledged, by the number of the run."""
        self.begun: Counter[int] = Counter()
        """How often somebody was told to have started a run."""
        self.results: dict[int, list[str]] = {}
        """What runs have taken that succeeded."""
        self.failed: set[str] = set()
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"m{self.count}"


world = World(0)
ENDS = (StoreClosed, StoreError, Backpressure)


@step
async def handle(what: str) -> str:
    if what.endswith("!") and what not in world.failed:
        world.failed.add(what)
        raise PermanentError("not yet")
    return what


async def listen(ctx: Context, taken: list[str], most: int | None) -> list[str]:
    """Take messages until there was none for a while."""
    while most is None or len(taken) < most:
        try:
            what = await ctx.wait_signal("say", timeout=4.0)
        except SignalTimeout:
            return taken
        taken = [*taken, await ctx.step(handle, what)]
    return ctx.continue_as(taken)


@workflow
async def chat(ctx: Context, taken: list[str]) -> list[str]:
    return await listen(ctx, taken, None)


@workflow(while_waiting="yield")
async def rounds(ctx: Context, taken: list[str]) -> list[str]:
    return await listen(ctx, taken, len(taken) + 2)


WORKFLOWS = {"a": chat, "b": rounds, "c": chat}
KEYS = {"a": "k", "b": "k", "c": "l"}


def met(run: RunHandle[list[str]]) -> int:
    """The number of the run that somebody was told of."""
    assert not isinstance(run._about, str)
    number = run._about.number
    if run.newly_submitted:
        world.begun[number] += 1
        if world.begun[number] > 1:
            world.wrong.append(f"{number} was started twice")
    return number


async def say(random: Random, run_id: str) -> None:
    """Send a message until somebody has it."""
    what = world.name() + random.choice(("", "", "", "", "!"))
    signal_id = random.choice((None, f"id-{what}"))
    while True:
        rt = world.rt
        assert rt is not None
        with trio.move_on_after(random.choice((0.1, LONG, LONG))) as patience:
            try:
                run = await rt.submit_or_signal(
                    WORKFLOWS[run_id],
                    [],
                    key=KEYS[run_id],
                    run_id=run_id,
                    name="say",
                    payload=what,
                    signal_id=signal_id,
                )
            except RunEnded:
                world.seen["refused"] += 1
                return
            except ENDS:
                world.seen["cut off"] += 1
                return
            world.seen["started" if run.newly_submitted else "reached"] += 1
            world.sent.setdefault(met(run), []).append(what)
            if random.random() < 0.8:
                return
        if patience.cancelled_caught or signal_id is None:
            return


async def submit(run_id: str) -> None:
    rt = world.rt
    assert rt is not None
    try:
        met(await rt.submit(WORKFLOWS[run_id], [], key=KEYS[run_id], run_id=run_id))
    except ENDS:
        world.seen["cut off"] += 1


async def quietly(call: Any) -> None:
    try:
        await call
    except (*ENDS, RunEnded, LookupError, RuntimeError):
        world.seen["no"] += 1


async def remember(rt: Runtime, run_id: str) -> None:
    """Keep what a run has taken, before it is forgotten."""
    number = await rt._partition.state.ledger.find(run_id)
    status = None if number is None else await rt.status(run_id)
    if status is not None and number is not None and status.state is State.SUCCEEDED:
        world.results[number] = status.result


async def forget(rt: Runtime, run_id: str) -> None:
    status = await rt.status(run_id)
    if status is not None and status.state.terminal:
        await remember(rt, run_id)
        await quietly(rt.forget(run_id))


async def pause(random: Random, run_id: str) -> None:
    rt = world.rt
    assert rt is not None
    held = rt.pause(run_id) if random.random() < 0.5 else rt.pause_key(KEYS[run_id])
    await quietly(held)
    await trio.sleep(random.choice((0.1, 3.0)))
    await quietly(rt.resume(run_id))
    await quietly(rt.resume_key(KEYS[run_id]))


async def client(random: Random, nursery: trio.Nursery) -> None:
    while True:
        await trio.sleep(random.choice((0.0, 0.05, 1.0, 3.0)))
        rt, run_id = world.rt, random.choice(IDS)
        assert rt is not None
        match random.choice(
            ["say"] * 10 + ["forget"] * 3 + ["submit", "cancel", "redrive", "pause"]
        ):
            case "say":
                for _ in range(random.choice((1, 1, 3))):
                    nursery.start_soon(say, random, run_id)
            case "forget":
                nursery.start_soon(forget, rt, run_id)
            case "submit":
                nursery.start_soon(submit, run_id)
            case "cancel":
                nursery.start_soon(quietly, rt.cancel(run_id))
            case "redrive":
                nursery.start_soon(quietly, rt.redrive(run_id))
            case "pause":
                nursery.start_soon(pause, random, run_id)


async def sit(random: Random, options: dict[str, Any]) -> None:
    """Open the runtime, and have it left or killed after a while."""
    if random.random() < 0.6:
        world.store.crash_at(random.randint(1, 80), applied=random.random() < 0.5)
    with trio.move_on_after(1000) as patience:
        async with trio.open_nursery() as nursery:
            async with open_test_runtime(world.store, **options) as rt:
                world.rt = rt
                for _ in range(3):
                    nursery.start_soon(client, random, nursery)
                await trio.sleep(random.choice((2.0, 10.0, 40.0)))
            nursery.cancel_scope.cancel()
    if patience.cancelled_caught:
        world.wrong.append("a sitting did not end")


async def play(options: dict[str, Any]) -> None:
    random = world.random
    for _ in range(random.randint(1, 5)):
        try:
            await sit(random, options)
        except* StoreError:
            world.seen["killed while opening"] += 1
    world.store.crash_at(10**9, applied=False)
    async with open_test_runtime(world.store, **options) as rt:
        world.rt = rt
        for run_id in IDS:
            await rt.resume_key(KEYS[run_id])
            if await rt.status(run_id) is not None:
                await rt.resume(run_id)
        for run_id in IDS:
            with trio.move_on_after(LONG) as patience:
                while (status := await rt.status(run_id)) and not status.state.terminal:
                    await trio.sleep(20)
                await remember(rt, run_id)
            if patience.cancelled_caught:
                world.wrong.append(f"{run_id} did not end: {await rt.status(run_id)}")
            if await rt.status(run_id) is not None:
                await rt.forget(run_id)
        await trio.sleep(1)
        left = rt.statistics().backlog.pending, rt.statistics().live, rt.statistics().keys
        if left != (0, 0, 0):
            world.wrong.append(f"left: {left}")
    await check()


async def check() -> None:
    for number, taken in world.results.items():
        twice = [what for what, times in Counter(taken).items() if times > 1]
        sent = Counter(world.sent.get(number, ()))
        for what in twice:
            if sent[what] < 2:
                world.wrong.append(f"{what} was taken twice by {number}: {taken}")
        lost = [what for what in sent if what not in taken and not world.failed & set(taken)]
        if lost:
            world.wrong.append(f"{lost} were sent to {number}, which took {taken}")
    tables = {name: len(table.keys) for name, table in world.store._tables.items()}
    kept = {
        name: tables[name]
        for name in ("signals", "sent", "queue", "runs", "timer_window", "ids", "journal")
        if tables.get(name)
    }
    if kept:
        world.wrong.append(f"the store keeps {kept}")


def played(seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    global world
    random = Random(seed)
    with monkeypatch.context() as patch:
        patch.setattr("trio._core._run._r", Random(seed))  # whom the scheduler lets run first
        seed_all(seed)
        world = World(seed)
        options = {
            "tuning": Tuning(
                **{name: random.randint(least, most) for name, (least, most) in SMALL.items()}
            ),
            "workflows": [chat, rounds],
            "max_pending_per_key": random.choice((1, 100)),
            "backpressure_timeout": 5.0,
            "drain_timeout": random.choice((0.0, 2.0)),
            "evict_after": random.choice((0.01, 0.5, float("inf"))),
        }
        trio.run(play, options, clock=MockClock(autojump_threshold=0))
    return world


@pytest.mark.parametrize("part", range(4))
def test_messages_arrive_once_or_are_refused_in_random_worlds(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: int
) -> None:
    seed = os.environ.get("KEYRUN_SEED")
    for number in SEEDS[part::4] if seed is None else [int(seed)]:
        caplog.clear()
        wrong = played(number, monkeypatch).wrong
        wrong += [
            record.getMessage()
            for record in caplog.records
            if record.__dict__.get("event") in ("key_crashed", "run_quarantined")
        ]
        assert not wrong, f"KEYRUN_SEED={number}:\n" + "\n".join(wrong)
