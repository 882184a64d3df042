"""Entities in random worlds: calls with and without request ids beside runs of the same keys, with
callers that leave, pauses, drains, restarts and a crash at any commit.

`KEYRUN_SOAK=1` plays many more worlds, `KEYRUN_SEED=n` just one.
"""

import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from random import seed as seed_all
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Backpressure,
    CallFailed,
    CallTimeout,
    Context,
    Entity,
    PermanentError,
    Retry,
    RunCancelled,
    RunEnded,
    RunFailed,
    Runtime,
    StepFailed,
    TransientError,
    current_step,
    entity,
    step,
    workflow,
)
from keyrun.errors import CallCycle
from keyrun.runtime.tuning import Tuning
from keyrun.storage import PayloadError, PayloadTypeError, StoreClosed, StoreError
from keyrun.testing import CrashingMemoryStore, open_test_runtime
from tests.faults.soaking import amount

SEEDS = range(amount(16, 2000))
KEYS = ("a", "b", "c")
LONG = 2000.0

SMALL = {
    "queue_window": (1, 3),
    "startup_page": (1, 4),
    "pooled_queues": (1, 3),
    "calls_per_turn": (1, 4),
    "entity_cache_bytes": (1, 2000),
}


class World:
    """What was asked for, what came of it, and what the code did."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.store = CrashingMemoryStore(
            latency=self.random.choice((0.0, 0.0, 0.01)),
            apply_first=self.random.random() < 0.5,
        )
        self.rt: Runtime | None = None
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()
        self.busy: Counter[str] = Counter()
        self.answers: dict[str, Any] = {}
        """What calls came to, by what they add; with a request id that is for good."""
        self.asked: dict[str, tuple[type, str, str, str | None]] = {}
        self.ordered: list[tuple[type, str, str, set[str]]] = []
        """Class, key and name of each call that was answered, and what had been answered before it
        was made."""
        self.submitted: dict[str, str] = {}
        """Runs that were submitted and not known to have ended, and their keys."""
        self.over: set[str] = set()
        """Runs whose workflow has come to its end."""
        self.looks: list[tuple[type, str, list[str]]] = []
        """What somebody saw of a class and key."""
        self.before: dict[str, list[str]] = {}
        """Runs of the same key that were there when a call was made."""
        self.dirty: set[str] = set()
        """Runs that somebody cancelled, or that yield."""
        self.count = 0

    def name(self) -> str:
        self.count += 1
        return f"n{self.count}"

    @asynccontextmanager
    async def alone(self, key: str) -> AsyncIterator[None]:
        """Be what a key does."""
        if self.busy[key]:
            self.wrong.append(f"two things at once under {key}")
        self.busy[key] += 1
        try:
            yield
        finally:
            self.busy[key] -= 1


world = World(0)


class Methods(Entity):
    async def add(self, name: str, nap: float, *then: Any) -> int:
        early = [run for run in world.before.get(name, ()) if run not in world.over | world.dirty]
        if early:
            world.wrong.append(f"{name} began before {early}")
        if type(self) is Book:
            await self._gated(name)
        async with world.alone(self.key):
            self.state.setdefault("log", []).append(name)
            if nap:
                await trio.sleep(nap)
            if then:
                key, request_id, *rest = then
                assert world.rt is not None
                try:
                    called = world.rt.entity(Book, key, request_id=request_id)
                    await called.add(*rest)
                except CallCycle:
                    world.seen["cycle"] += 1
                except CallFailed as error:
                    if "CallCycle" not in str(error):
                        raise
            return len(self.state["log"])

    async def _gated(self, name: str) -> None:
        """What has effects begins when the runs before it have ended durably."""
        assert world.rt is not None
        ledger = world.rt._partition.state.ledger
        for run in world.before.get(name, ()):
            number = await ledger.find(run)
            status = None if number is None else await ledger.status(number)
            if run not in world.dirty and not (status and status.state.terminal):
                world.wrong.append(f"{name} began before the end of {run} was durable")

    async def fail(self, name: str, nap: float) -> int:
        async with world.alone(self.key):
            self.state.setdefault("log", []).append(name)
            if nap:
                await trio.sleep(nap)
            raise ValueError("no")

    async def waver(self, name: str, nap: float) -> int:
        async with world.alone(self.key):
            self.state.setdefault("log", []).append(name)
            if nap:
                await trio.sleep(nap)
            if world.random.random() < 0.5:
                raise TransientError("ask again")
            return len(self.state["log"])

    async def spoil(self, name: str, nap: float) -> int:
        async with world.alone(self.key):
            self.state.setdefault("log", []).append(name)
            self.state["log"].append(object())
            return 0

    async def look(self) -> list[str]:
        async with world.alone(self.key):
            return list(self.state.get("log", []))


@entity
class Book(Methods): ...


@entity(effects=False)
class Slate(Methods): ...


@step(retry=Retry.fixed(max_attempts=3, delay=1))
async def work(nap: float, then: list[Any] | None) -> None:
    here = current_step()
    async with world.alone(here.key):
        if nap:
            await trio.sleep(nap)
        if then is not None:
            assert world.rt is not None
            called = world.rt.entity(Book, then[0], request_id=here.idempotency_key)
            try:
                await called.add(f"{here.run_id}/{here.step}", 0.1)
            except CallCycle as error:
                raise PermanentError("a cycle") from error


async def story(ctx: Context, acts: list[Any]) -> None:
    try:
        for what, value in acts:
            if what == "work":
                await ctx.step(work, *value)
            elif what == "sleep":
                await ctx.sleep(value)
            else:
                await ctx.child(hold, value[1], key=value[0])
    except (StepFailed, RunFailed):
        world.seen["failed run"] += 1
    except RunCancelled as error:
        world.wrong.append(f"{ctx.run_id} has lost a child: {error}")
    world.over.add(ctx.run_id)


hold = workflow(name="hold")(story)
give_way = workflow(name="give_way", while_waiting="yield")(story)
EXPECTED = (StoreClosed, StoreError, Backpressure, CallTimeout, TransientError)


async def call(name: str) -> None:
    """Make a call, perhaps only for a while."""
    cls, key, method, request_id = world.asked[name]
    random, rt = world.random, world.rt
    assert rt is not None
    nap = random.choice((0.0, 0.0, 0.5, 3.0)) if request_id is None else 0.25
    before = {one for one in world.answers if not isinstance(world.answers[one], BaseException)}
    args: tuple[Any, ...] = (name, nap)
    if request_id is None and method == "add" and random.random() < 0.3:
        args += (random.choice(KEYS), random.choice((None, f"then-{name}")), f"{name}-then", 0.1)
    timeout = random.choice((None, None, 1.0))
    if request_id is None:
        world.before[name] = [run for run, of in world.submitted.items() if of == key]
    with trio.move_on_after(random.choice((0.3, 2.0, LONG, LONG))):
        try:
            answer = await rt.call(cls, key, method, *args, request_id=request_id, timeout=timeout)
        except EXPECTED as error:
            world.seen[type(error).__name__] += 1
        except (ValueError, CallFailed, PayloadTypeError, PayloadError) as error:
            if method in ("fail", "spoil"):
                world.answers[name] = error
                world.seen["failed"] += 1
            elif "CallCycle" not in str(error):
                world.wrong.append(f"{name} of {method}: {error!r}")
        else:
            if world.answers.setdefault(name, answer) != answer:
                world.wrong.append(f"{name} was answered with {world.answers[name]}, then {answer}")
            world.ordered.append((cls, key, name, before))
            world.seen["answered" if request_id is None else "answered with id"] += 1


async def client(random: Random, nursery: trio.Nursery) -> None:
    """Ask for something now and then."""
    while True:
        await trio.sleep(random.choice((0.0, 0.1, 0.7)))
        rt, key = world.rt, random.choice(KEYS)
        assert rt is not None
        match random.choice(
            ["call"] * 8 + ["again", "look"] * 3 + ["run"] * 3 + ["cancel", "pause"]
        ):
            case "call":
                name = world.name()
                cls = random.choice((Book, Slate))
                method = random.choice(("add", "add", "add", "fail", "waver", "spoil"))
                request_id = f"id-{name}" if random.random() < 0.5 else None
                world.asked[name] = cls, key, method, request_id
                nursery.start_soon(call, name)
            case "look":
                nursery.start_soon(look, random.choice((Book, Slate)), key)
            case "again":
                known = [name for name, asked in world.asked.items() if asked[3]]
                if known:
                    nursery.start_soon(call, random.choice(known))
            case "run":
                nursery.start_soon(submit, random, key)
            case "cancel":
                if world.submitted:
                    run_id = random.choice(sorted(world.submitted))
                    world.dirty.add(run_id)
                    nursery.start_soon(quietly, rt.cancel(run_id))
            case "pause":
                nursery.start_soon(pause, random, key)


async def look(cls: type, key: str) -> None:
    assert world.rt is not None
    try:
        world.looks.append((cls, key, await world.rt.call(cls, key, "look")))
    except EXPECTED as error:
        world.seen[type(error).__name__] += 1


async def submit(random: Random, key: str) -> None:
    assert world.rt is not None
    acts: list[Any] = []
    for _ in range(random.randint(1, 3)):
        other = random.choice(KEYS)
        acts.append(
            random.choice(
                (
                    ("work", (random.choice((0.0, 0.5)), None)),
                    ("work", (0.1, [other])),
                    ("sleep", random.choice((0.5, 3.0))),
                    ("child", (other, [("work", (0.1, None))])),
                )
            )
        )
    which = random.choice((hold, hold, give_way))
    run_id = world.name()
    if which is give_way:
        world.dirty.add(run_id)
    if await quietly(world.rt.submit(which, acts, key=key, run_id=run_id)):
        world.submitted[run_id] = key


async def pause(random: Random, key: str) -> None:
    rt = world.rt
    assert rt is not None
    if random.random() < 0.2:
        await quietly(rt.pause_all())
        await trio.sleep(2)
        await quietly(rt.resume_all())
    else:
        await quietly(rt.pause_key(key))
        await trio.sleep(random.choice((0.1, 3.0)))
        await quietly(rt.resume_key(key))


async def quietly(call: Any) -> bool:
    """Say whether a call was answered, other than that all ends."""
    try:
        await call
    except (*EXPECTED, RunEnded):
        return False
    return True


async def sit(random: Random, options: dict[str, Any]) -> None:
    """Open the runtime, and have it left or killed after a while."""
    if random.random() < 0.6:
        world.store.crash_at(random.randint(1, 60), applied=random.random() < 0.5)
    world.busy.clear()
    with trio.move_on_after(1000) as patience:
        async with trio.open_nursery() as nursery:
            async with open_test_runtime(world.store, **options) as rt:
                world.rt = rt
                for _ in range(4):
                    nursery.start_soon(client, random, nursery)
                await trio.sleep(random.choice((1.0, 5.0, 20.0)))
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
    world.busy.clear()
    async with open_test_runtime(world.store, **options) as rt:
        world.rt = rt
        await rt.resume_all()
        for key in KEYS:
            await rt.resume_key(key)
        for name, (_, _, _, request_id) in world.asked.items():
            for _ in range(60):
                if request_id is None or name in world.answers:
                    break
                with trio.move_on_after(LONG) as patience:
                    await call(name)
                if patience.cancelled_caught:
                    world.wrong.append(f"{name} was not answered")
        for run_id in world.submitted:
            if await rt.status(run_id) is not None:
                with trio.move_on_after(LONG) as patience:
                    while (status := await rt.status(run_id)) and not status.state.terminal:
                        await trio.sleep(20)
                if patience.cancelled_caught:
                    world.wrong.append(f"the run {run_id} did not end: {await rt.status(run_id)}")
        await check(rt)


async def check(rt: Runtime) -> None:
    for cls in (Book, Slate):
        for key in KEYS:
            with trio.move_on_after(LONG) as patience:
                check_log(cls, key, await rt.call(cls, key, "look"))
            if patience.cancelled_caught:
                world.wrong.append(f"the key {key} hangs")
    check_order()
    check_rest(rt)


def check_log(cls: type, key: str, log: list[str]) -> None:
    """What an entity has is what its calls came to."""
    of = f"{cls.__name__} {key}: {log}"
    for whose, under, seen in world.looks:
        if (whose, under) == (cls, key) and seen != log[: len(seen)]:
            world.wrong.append(f"somebody saw {seen} of {of}")
    counts = Counter(log)
    twice = [name for name, times in counts.items() if times > 1]
    if twice:
        world.wrong.append(f"{twice} were added twice to {of}")
    for name, (whose, under, method, _) in world.asked.items():
        if (whose, under) != (cls, key):
            continue
        answer = world.answers.get(name)
        if isinstance(answer, int):
            if log[answer - 1 : answer] != [name]:
                world.wrong.append(f"{name} was answered with {answer} by {of}")
        elif name in counts and (isinstance(answer, Exception) or method == "spoil"):
            world.wrong.append(f"{name} failed and is in {of}")


def check_order() -> None:
    """What was answered before something was asked for came before it."""
    for cls, key, name, before in world.ordered:
        for other in before:
            whose, under, _, request_id = world.asked[other]
            plain = request_id is None and world.asked[name][3] is None
            same = plain and (whose, under) == (cls, key)
            if same and world.answers[other] > world.answers[name]:
                world.wrong.append(f"{other} was answered before {name} was made")


def check_rest(rt: Runtime) -> None:
    """Nothing is left in memory, and in the store the answers of requests alone."""
    statistics = rt.statistics()
    left = (statistics.running_steps, statistics.waiting_for_slot, statistics.backlog.pending)
    if left != (0, 0, 0):
        world.wrong.append(f"left: {left}")
    dispatcher = rt._partition.dispatcher
    services, waits = dispatcher._services, dispatcher.waits
    if services.requested or services.running or waits._called or waits._waiting:
        world.wrong.append("the dispatcher remembers something")
    tables = {name: len(table.keys) for name, table in world.store._tables.items()}
    requests, answered = tables.get("requests", 0), tables.get("answered", 0)
    settled = sum(1 for name in world.answers if world.asked[name][3])
    if requests != answered or requests < settled:
        world.wrong.append(f"{requests} answers of {settled}, and {answered} times")


def played(seed: int, monkeypatch: pytest.MonkeyPatch) -> World:
    global world
    random = Random(seed)
    with monkeypatch.context() as patch:
        patch.setattr("trio._core._run._r", Random(seed))  # whom the scheduler lets run first
        seed_all(seed)  # how long runs wait before they try again
        world = World(seed)
        options = {
            "entities": [Book, Slate],
            "workflows": [hold, give_way],
            "max_concurrent_steps": random.choice((1, 2, 10)),
            "max_pending_per_key": random.choice((2, 100)),
            "backpressure_timeout": 5.0,
            "drain_timeout": random.choice((0.0, 2.0)),
            "evict_after": random.choice((0.2, 1.0, float("inf"))),
            "tuning": Tuning(
                **{name: random.randint(least, most) for name, (least, most) in SMALL.items()}
            ),
        }
        trio.run(play, options, clock=MockClock(autojump_threshold=0))
    return world


@pytest.mark.parametrize("part", range(4))
def test_accounts_are_right_in_random_worlds(
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
