"""Tasks of an asyncio program call the runtime and are cancelled at random times.

What was acknowledged has happened. What was not has happened completely or not at all. The runtime
serves the next call.
"""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

import attrs
import pytest

from keyrun import UnknownRun
from keyrun.asyncio import Runtime, open_runtime
from keyrun.storage import MemoryStore
from tests.faults.soaking import amount
from tests.hosting.hosts import HOSTS
from tests.hosting.workflows import ALL, Counter, adding, one, waits

CALLS = 40
KEYS = 5


@attrs.define
class Calls:
    """The calls of one program. `acknowledged` has the runs whose submit returned, and
    `signalled` the runs whose signal was accepted."""

    rt: Runtime
    acknowledged: set[str] = attrs.Factory(set)
    signalled: set[str] = attrs.Factory(set)
    counted: set[str] = attrs.Factory(set)

    def of(self, number: int) -> Coroutine[Any, Any, None]:
        """Return the call with a number, which is one of six kinds."""
        kinds = (self.result, self.timeout, self.signal, self.count, self.listen, self.watch)
        return kinds[number % len(kinds)](f"call-{number}", f"k{number % KEYS}")

    async def result(self, name: str, key: str) -> None:
        run = await self.rt.submit(adding, 1, key=key, run_id=name)
        self.acknowledged.add(name)
        assert await run.result() == 112

    async def timeout(self, name: str, key: str) -> None:
        run = await self.rt.submit(adding, 1, key=key, run_id=name)
        self.acknowledged.add(name)
        with suppress(TimeoutError):
            assert await run.result(timeout=0.002) == 112

    async def signal(self, name: str, key: str) -> None:
        run = await self.rt.submit(waits, key=name, run_id=name)
        self.acknowledged.add(name)
        await self.rt.signal(name, "go", "on", signal_id="first")
        self.signalled.add(name)
        assert await run.result() == "on"

    async def count(self, name: str, key: str) -> None:
        await self.rt.entity(Counter, "c", request_id=name).add(1)
        self.counted.add(name)

    async def listen(self, name: str, key: str) -> None:
        async with self.rt.events(run_id=name) as events:
            run = await self.rt.submit(one, 1, key=key, run_id=name)
            self.acknowledged.add(name)
            kind = (await anext(events)).kind
            assert kind == "run_submitted" or not run.newly_submitted
            async for event in events:
                if event.kind == "run_succeeded":
                    break

    async def watch(self, name: str, key: str) -> None:
        await self.rt.submit(one, 1, key=key, run_id=name)
        self.acknowledged.add(name)
        states = [progress.state async for progress in self.rt.watch(name)]
        assert states[-1] == "succeeded"


async def cancel_at_random(choices: random.Random, call: Coroutine[Any, Any, None]) -> None:
    """Await a call in a task, and cancel the task up to twice."""
    task = asyncio.ensure_future(call)
    for _ in range(choices.randint(0, 2)):
        for _ in range(choices.randint(0, 6)):
            await asyncio.sleep(choices.choice((0, 0, 0.001, 0.005)))
        task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def check(rt: Runtime, calls: Calls) -> None:
    """Check that all calls have happened completely or not at all."""
    for number in range(CALLS):
        name = f"call-{number}"
        try:
            is_waiting = (await rt.run(name).status()).workflow == "waits"
            if is_waiting and name not in calls.signalled:
                await rt.signal(name, "go", "on", signal_id="first")
            async with asyncio.timeout(30):
                assert await rt.run(name).result() in (112, 2, "on")
        except UnknownRun:
            assert name not in calls.acknowledged
    counts = [f"call-{number}" for number in range(3, CALLS, 6)]
    assert len(calls.counted) <= await rt.call(Counter, "c", "add", 0) <= len(counts)
    for name in counts:
        await rt.entity(Counter, "c", request_id=name).add(1)
    assert await rt.call(Counter, "c", "add", 0) == len(counts)


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("seed", range(amount(2, 200)))
def test_calls_that_are_cancelled_at_random_lose_nothing(name: str, seed: int) -> None:
    choices = random.Random(seed)

    async def body(rt: Runtime) -> None:
        calls = Calls(rt)
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            for number in range(CALLS):
                own = random.Random(choices.random())
                tasks.create_task(cancel_at_random(own, calls.of(number)))
        await check(rt, calls)

    HOSTS[name].run_with_runtime(body, entities=[Counter])


@pytest.mark.parametrize("name", HOSTS)
@pytest.mark.parametrize("seed", range(amount(2, 200)))
def test_blocks_that_are_cancelled_at_random_lose_nothing(name: str, seed: int) -> None:
    host, choices = HOSTS[name], random.Random(seed)
    store = MemoryStore()

    async def program(all_calls: list[Calls], first: int) -> None:
        async with open_runtime(
            store, workflows=ALL, entities=[Counter], thread=host.thread, drain_timeout=1
        ) as rt:
            all_calls.append(Calls(rt))
            async with asyncio.TaskGroup() as tasks:
                for number in range(first, CALLS):
                    tasks.create_task(all_calls[-1].of(number))
                    await asyncio.sleep(choices.choice((0, 0, 0.001)))

    async def main() -> None:
        all_calls: list[Calls] = []
        for first in (0, 10, 20):
            async with asyncio.timeout(60):
                task = asyncio.ensure_future(program(all_calls, first))
                await asyncio.sleep(choices.random() * 0.2)
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        async with open_runtime(store, workflows=ALL, entities=[Counter], thread=host.thread) as rt:
            union = Calls(rt)
            for each in all_calls:
                union.acknowledged |= each.acknowledged
                union.signalled |= each.signalled
                union.counted |= each.counted
            await check(rt, union)

    host.run(main())
