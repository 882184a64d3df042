"""A world: clients that ask a runtime for random things, while it is left, killed and reopened.

What they see goes into the evidence. What a call came to that was cut off is found out when the
runtime is open again, before anybody asks for anything else.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from keyrun import RunOutcome, Runtime, State
from keyrun.runtime.tuning import Tuning
from keyrun.storage import StoreCrashed, StoreError
from keyrun.testing import CrashingMemoryStore, open_test_runtime
from tests.faults.clients import Clients
from tests.faults.evidence import Evidence
from tests.faults.plan import Life, Told, living, reciting
from tests.faults.verdict import judge

ENDS = ("succeeded", "failed", "cancelled")

LONG = 2_000.0
"""Virtual seconds within which everything must have ended."""


class World(Clients):
    """One of them, made up from a seed."""

    def __init__(self, seed: int, sizes: Tuning) -> None:
        super().__init__(seed)
        self._sizes = sizes
        Told.evidence = self.evidence
        self.store = CrashingMemoryStore(
            latency=self.random.choice([0, 0, 0.001, 0.05]),
            apply_first=self.random.random() < 0.5,
        )
        self._reliable = False

    async def play(self) -> Evidence:
        """Let it go on for a while, and then to its end."""
        async with trio.open_nursery() as nursery:
            self.watchers = nursery
            for _ in range(self.random.randint(1, 4)):
                await self._sit()
                await trio.sleep(self.random.choice([0, 0, 1, 20]))
            await self._finish()
            nursery.cancel_scope.cancel()
        judge(self.evidence)
        return self.evidence

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Runtime]:
        random = self.random
        limit = random.choice([1000, 1000, 4])
        async with open_test_runtime(
            self.store,
            workflows=[living, reciting],
            max_concurrent_steps=random.randint(1, 3),
            max_pending_per_key=1000 if self._reliable else limit,
            backpressure_timeout=1.0,
            drain_timeout=random.choice([0, 1, 100]),
            on_terminal=self._hook,
            tuning=self._sizes,
        ) as runtime:
            self.since = trio.current_time()
            self.runtime = runtime
            try:
                yield runtime
            finally:
                self.runtime = None

    async def _sit(self) -> None:
        """Open the runtime, ask for things, and leave it, or kill it."""
        random = self.random
        if random.random() < 0.3:
            self.store.crash_at(random.randint(1, 60), applied=random.random() < 0.5)
        failures: list[StoreError] = []
        try:
            async with self._open() as runtime:
                self.store.when_failed(failures.append)
                await self.look_up(runtime)
                with trio.move_on_after(random.uniform(0.1, 20)):
                    async with trio.open_nursery() as nursery:
                        for _ in range(3):
                            nursery.start_soon(self.client, runtime)
                if random.random() < 0.5:
                    self.store.crash()
                    await trio.sleep_forever()
        except StoreCrashed as error:  # while it was opened
            failures.append(error)
        self.evidence.crashed(killed=bool(failures))
        self.store.crash_at(1_000_000, applied=True)

    async def _finish(self) -> None:
        """Let go of all that is held, and see everything end."""
        evidence = self.evidence
        self._reliable = True
        async with self._open() as runtime:
            await self.look_up(runtime)
            await self.ask("resume", "all", runtime.resume_all)
            for key in self.keys:
                await self.ask("resume", f"key {key}", partial(runtime.resume_key, key))
            for life in self.lives.values():
                await self.ask("resume", f"run {life}", partial(runtime.resume, life.run_id))
            with trio.move_on_after(LONG) as scope:
                while unfinished := [
                    life for life in self.lives.values() if not await self._over(life)
                ]:
                    await trio.sleep(5)
            if scope.cancelled_caught:
                for life in unfinished:
                    evidence.complain(f"{life} never ended: {await runtime.status(life.run_id)}")
                return
            for life in self.lives.values():
                if evidence.is_there(life):
                    await self._check_story(runtime, life)
            for key in self.keys:
                evidence.notes[key] = await (await runtime.submit(reciting, key=key)).result()
            for left_over in await runtime.keys():
                evidence.complain(f"a key is left over: {left_over}")
            partition = runtime._partition
            left = (
                bool(partition.runs),
                bool(partition.queues.at_gate or partition.queues.evicted),
                partition.queues.gate.queued,
                partition.queues.gate.under_way,
                partition.backlog.pending,
                partition.state.slots.total - partition.state.slots.free,
            )
            if any(left):
                evidence.complain(f"something is left over: {left}")

    async def _over(self, life: Life) -> bool:
        """Whether a run has ended, and the hook knows."""
        runtime = self.runtime
        assert runtime is not None
        if not self.evidence.is_there(life):
            return True
        status = await runtime.status(life.run_id)
        if status is None:
            self.evidence.complain(f"{life} is lost")
            return True
        if status.state is State.QUARANTINED:
            self.evidence.complain(f"{life} is quarantined: {status.reason}")
            return True
        sittings = self.evidence.sittings[str(life)]
        return status.state.terminal and all(one.told for one in sittings)

    async def _check_story(self, runtime: Runtime, life: Life) -> None:
        """Every generation has its end in the history, and one start if it had a step."""
        story = await runtime.history(life.run_id)
        times = [one.at for one in story]
        if times != sorted(times):
            self.evidence.complain(f"the history of {life} is out of order: {list(story)}")
        parts: list[list[str]] = [[]]
        for one in story:
            if one.event == "redriven":
                parts.append([])
            parts[-1].append(one.event)
        for sitting, part in zip(self.evidence.sittings[str(life)], parts, strict=True):
            starts, ends = part.count("started"), [one for one in part if one in ENDS]
            if ends != part[-1:] or starts > 1 or starts < bool(sitting.begins[sitting.cut_off :]):
                self.evidence.complain(f"the history of {sitting} has gaps: {part}")

    async def _hook(self, outcome: RunOutcome) -> None:
        if outcome.workflow != "living":
            return
        if not self._reliable:
            await trio.sleep(self.random.choice([0, 0, 0.2, 3]))
            if self.random.random() < 0.2:
                raise RuntimeError("the hook does not feel like it")
        self.evidence.told(outcome)
        life = self.lives[outcome.run_id]
        self.evidence.over(life)
