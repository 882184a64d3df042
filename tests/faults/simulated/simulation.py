"""A simulation: a whole runtime in a world of chance, the same again for the same seed.

Runs made up at random are submitted, cancelled, paused and redriven on a store in memory and on
virtual time, while the process is killed, left and started again and the clock is set. The order in
which Trio runs its tasks comes from the seed, too. There are no threads in it.
"""

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from math import inf
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

import attrs
import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from keyrun import (
    GateNotWaiting,
    Limits,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunOutcome,
    Runtime,
    State,
    UnknownRun,
    open_runtime,
)
from keyrun.runtime.tuning import Tuning
from keyrun.storage import StoreCrashed
from keyrun.testing import EPOCH
from tests.faults.simulated.acting import scene
from tests.faults.simulated.affairs import Book, affairs_at_random
from tests.faults.simulated.audit import audit
from tests.faults.simulated.casting import WORKFLOWS, Role, cast, yielding
from tests.faults.simulated.guards import POOL
from tests.faults.simulated.stores import WitnessedStore
from tests.faults.simulated.world import World

ENOUGH: tuple[str, ...] = ()
"""A world ends with the first broken promise of which one of these is said."""
FOREVER = 20_000.0
"""Virtual seconds that no world needs."""
SMALL = {
    "queue_window": (1, 2, 3),
    "startup_page": (1, 2, 3),
    "gate_slack": (0, 1, 64),
    "gate_window": (0, 1, 10_000),
    "keyrun.actors.pool.PASS": (1, 2, 256),
    "hook_calls": (1, 2, 16),
    "hook_window": (1, 2, 256),
    "hook_backoffs": (0, 1, 10_000),
}
"""Sizes that are too large to matter in a small world, and what they are there instead."""


@attrs.frozen(kw_only=True)
class Life:
    """One process: how long it lives, and whether it is killed (at the commit that is so many
    ahead, or at the end of its time), or left in good order."""

    seconds: float
    commits: int | None
    applied: bool
    killed: bool


class Simulation:
    """One world. `play` makes one and runs it."""

    def __init__(self, seed: int, store: WitnessedStore | None = None) -> None:
        random = self._chance = Random(seed)
        self.slots = random.choice((1, 2, 3, 8))
        slow = random.random() < 0.7
        self.store = store or WitnessedStore(Random(seed) if slow else None)
        self.world = self.store.world = World(self.store, slots=self.slots, wall=self.wall)
        span = random.choice((0.5, 5.0, 15.0))
        self.roles = cast(random, runs=random.randint(2, 12), keys=random.randint(1, 4), span=span)
        self.lives = [self._life(random, span) for _ in range(random.choice((0, 1, 2, 5)))]
        self.jumps = [
            (random.uniform(0.0, span), random.choice((-7200.0, -3.0, 2.0, 3600.0)))
            for _ in range(random.choice((0, 0, 0, 1, 2)))
        ]
        self.world.steady = not self.jumps
        small = {name: random.choice(sizes) for name, sizes in SMALL.items()}
        self.constants = {n: size for n, size in small.items() if n.startswith("keyrun.")}
        self.tuning = {n: size for n, size in small.items() if n not in self.constants}
        self.crowded = random.random() < 0.2
        self.evict_after = random.choice((0.0, 0.1, 1.0, inf))
        self.hook_fails = random.choice((0.0, 0.0, 0.3))
        self.affairs = affairs_at_random(random, span)
        self.offset = 0.0
        self.done: dict[str, State] = {}
        self.redriven: set[str] = set()
        self.asked: set[str] = set()
        """Runs whose cancel was asked for, answered or not."""
        self.take(self.roles)

    def take(self, roles: list[Role]) -> None:
        """Play these runs."""
        self.roles = roles
        self._hands = {role.key: trio.Lock() for role in roles}

    @staticmethod
    def _life(random: Random, span: float) -> Life:
        return Life(
            seconds=random.uniform(0.0, span),
            commits=random.randint(1, 40) if random.random() < 0.6 else None,
            applied=random.random() < 0.5,
            killed=random.random() < 0.8,
        )

    def wall(self) -> float:
        """The clock on the wall, which somebody sets now and then."""
        return EPOCH + trio.current_time() + self.offset

    async def run(self) -> None:
        """All lives, the last of which lasts until all is done."""
        with trio.move_on_after(FOREVER) as patience:
            if ENOUGH:
                self.world.ends_at_once, self.world.enough = patience, ENOUGH
            async with trio.open_nursery() as nursery:
                for at, by in self.jumps:
                    nursery.start_soon(self._jump, at, by)
                for life in [*self.lives, None]:
                    with suppress(StoreCrashed):
                        await self.live(life)
                    self.world.restarted()
                nursery.cancel_scope.cancel()
        if patience.cancelled_caught:
            left = [role.run_id for role in self.roles if role.run_id not in self.done]
            self.world.breach(f"nothing goes on any more; unfinished: {left}")
            return
        audit(self)

    async def _jump(self, at: float, by: float) -> None:
        await trio.sleep(at)
        self.world.note(f"clock {by}")
        self.offset += by

    async def live(self, life: Life | None) -> None:
        """One process, until it is killed or left, or without `life` until all is done."""
        if life is not None and life.killed and life.commits is not None:
            self.store.crash_at(life.commits, applied=life.applied)
        else:
            self.store.crash_at(1_000_000_000, applied=False)
        async with open_runtime(
            self.store,
            workflows=WORKFLOWS,
            max_concurrent_steps=self.slots,
            max_pending=3 if self.crowded else 100,
            max_pending_per_key=2 if self.crowded else 50,
            backpressure_timeout=FOREVER,
            drain_timeout=self._chance.choice((0.0, 1.0, 100.0)),
            limits=Limits(max_interruptions=1000),
            on_terminal=self._hook,
            wall=self.wall,
            evict_after=self.evict_after,
            resources=POOL,
            entities=[Book],
            tuning=Tuning(**self.tuning),
        ) as runtime:
            with trio.move_on_after(FOREVER if life is None else life.seconds):
                await self._direct(runtime)
            if life is not None and life.killed:
                self.store.crash()
                await trio.sleep_forever()

    async def _direct(self, runtime: Runtime) -> None:
        async with trio.open_nursery() as nursery:
            for role in self.roles:
                nursery.start_soon(self._play, runtime, role)
                if role.cancel_at is not None:
                    nursery.start_soon(self._cancel, runtime, role)
                if role.pause_at is not None:
                    nursery.start_soon(self._pause, runtime, role)
                for message in role.messages:
                    nursery.start_soon(self._send, runtime, role, message)
            for affair in self.affairs:
                nursery.start_soon(affair.play, runtime)
        while self.world.peek.unfinished():
            await trio.sleep(1.0)

    async def _play(self, runtime: Runtime, role: Role) -> None:
        run_id, world = role.run_id, self.world
        await trio.sleep_until(role.at)
        if run_id in world.forgotten and await runtime.status(run_id) is None:
            return
        yields = role.workflow is yielding
        world.submitting(run_id, role.key, delayed=role.delay > 0, yields=yields)
        run = await runtime.submit(
            role.workflow,
            role.input,
            key=role.key,
            run_id=run_id,
            limits=role.limits,
            priority=role.priority,
            delay=role.delay,
        )
        world.submitted(run_id, newly=run.newly_submitted)
        state = await self._result(run)
        world.result(run_id, state)
        # What a run was sent and did not take is gone when it ends.
        again = role.redrives and not (role.undoes or role.messages) and role.foreseen().dead
        if state is State.FAILED and again:
            status = await run.status()
            assert status is not None
            if status.failure is not None and status.failure.kind is role.foreseen().kind:
                self.redriven.add(run_id)
                if status.generation == 1:
                    world.note(f"redrive {run_id}")
                    await runtime.redrive(run_id)
                    state = await self._result(run)
        self.done[run_id] = state
        if role.forgets:
            number = world.peek.number(run_id)
            assert number is not None
            world.forgotten[run_id] = number
            world.note(f"forget {run_id}")
            await runtime.forget(run_id)

    async def _result(self, run: Any) -> State:
        try:
            await run.result()
        except RunFailed:
            return State.FAILED
        except RunCancelled:
            return State.CANCELLED
        return State.SUCCEEDED

    async def _cancel(self, runtime: Runtime, role: Role) -> None:
        assert role.cancel_at is not None
        await trio.sleep_until(role.cancel_at)
        known = self.world.runs.get(role.run_id)
        if known is None or known.cancelled:
            return
        self.asked.add(role.run_id)
        self.world.note(f"cancel {role.run_id}")
        self.world.cancelled(role.run_id, await runtime.cancel(role.run_id))

    async def _send(self, runtime: Runtime, role: Role, message: Any) -> None:
        """Send a signal, again in each life; or approve, when that is waited for."""
        kind, name, after, *rest = message
        await trio.sleep_until(role.at + after)
        while role.run_id not in self.done:
            with suppress(UnknownRun, GateNotWaiting):
                try:
                    if kind == "signal":
                        await runtime.signal(role.run_id, name, rest[0], signal_id=name)
                    else:
                        await runtime.approve(role.run_id, name, by="somebody", comment="fine")
                except RunEnded:
                    return
                self.world.note(f"sent {role.run_id} {name}")
                if kind == "signal":
                    return
            await trio.sleep(0.3)

    async def _pause(self, runtime: Runtime, role: Role) -> None:
        """Hold it for a while; what an earlier life held is let go."""
        assert role.pause_at is not None
        world, run_id = self.world, role.run_id
        await trio.sleep_until(role.pause_at)
        if role.pause_key:
            # Of a pause and a resume at the same time nobody knows which comes first.
            async with self._hands[role.key]:
                await runtime.pause_key(role.key)
                world.note(f"paused {role.key}")
                world.held_keys.add(role.key)
            await trio.sleep_until(role.pause_at + role.pause_for)
            async with self._hands[role.key]:
                world.held_keys.discard(role.key)
                await runtime.resume_key(role.key)
        elif run_id in world.runs:
            if await runtime.pause(run_id):
                world.note(f"paused {run_id}")
                world.runs[run_id].held = True
            await trio.sleep_until(role.pause_at + role.pause_for)
            world.runs[run_id].held = False
            await runtime.resume(run_id)

    async def _hook(self, outcome: RunOutcome) -> None:
        self.world.hooked(outcome)
        if self._chance.random() < self.hook_fails:
            raise RuntimeError("the hook fails, as planned")


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Have Trio run tasks in an order that comes from the seed. The two names are private to Trio:
    a test sees to it that they still do what they do here."""
    trio_run._r.seed(seed)
    with patch.object(trio_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True):
        yield


S = TypeVar("S", bound=Simulation)


def play(seed: int) -> Simulation:
    """Play one world."""
    return played(Simulation(seed), seed)


def played(simulation: S, seed: int) -> S:
    """Play this world, in the order that comes from the seed."""
    scene.world = simulation.world
    logger = logging.getLogger("keyrun")
    with ExitStack() as stack:
        # Not by its attribute: loggers remember what they were told to let through.
        stack.callback(logger.setLevel, logger.level)
        logger.setLevel(logging.CRITICAL + 1)
        stack.enter_context(seeded(seed))
        # Else ids that are made would not be the same again.
        stack.enter_context(
            patch("keyrun.runtime.records.ids.token_hex", lambda size: "0" * 2 * size)
        )
        for name, size in simulation.constants.items():
            stack.enter_context(patch(name, size))
        trio.run(simulation.run, clock=MockClock(autojump_threshold=0))
    return simulation
