"""The cost of a step while a listener reads all events.

Runs with and without a listener take turns in one runtime, because the speed of a machine varies
more from minute to minute than the events cost. Without a listener, the check for one is part of
every other benchmark.
"""

from functools import partial
from statistics import median
from time import perf_counter, process_time
from typing import NamedTuple

import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.workload import STEPS, three_steps
from keyrun import Runtime, open_runtime
from keyrun.storage import LmdbStore


class Taken(NamedTuple):
    """Seconds for one step, submit and result included: wall time, and CPU time of this process."""

    seconds: float
    busy: float


async def work(runtime: Runtime, keys: int, runs: int) -> Taken:
    """Runs of no-op steps, one after the other for each key."""

    async def client(number: int) -> None:
        for _ in range(runs):
            await (await runtime.submit(three_steps, key=f"key-{number}")).result()

    started, busy = perf_counter(), process_time()
    async with trio.open_nursery() as nursery:
        for number in range(keys):
            nursery.start_soon(client, number)
    steps = keys * runs * STEPS
    return Taken((perf_counter() - started) / steps, (process_time() - busy) / steps)


async def _heard(runtime: Runtime, keys: int, runs: int) -> Taken:
    """Do the same while a listener reads every event."""
    heard = 0

    async def listen() -> None:
        nonlocal heard
        async with runtime.events(buffer=100_000) as events:
            async for _ in events:
                heard += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.lowlevel.checkpoint()
        taken = await work(runtime, keys, runs)
        nursery.cancel_scope.cancel()
    expected = keys * runs * (2 * STEPS + 3)
    if heard != expected:
        raise AssertionError(f"the listener received {heard} of {expected} events")
    return taken


def with_and_without(keys: int, runs: int, pairs: int) -> dict[str, float]:
    """Return the speed with a listener divided by the speed without, and the CPU time that it adds
    to a step."""

    async def main() -> dict[str, float]:
        taken: list[tuple[Taken, Taken]] = []
        with folder() as path:
            async with open_runtime(LmdbStore(path), workflows=[three_steps]) as runtime:
                await work(runtime, keys, runs)
                for pair in range(pairs):
                    # Neither is always the second.
                    if pair % 2:
                        heard = await _heard(runtime, keys, runs)
                        taken.append((await work(runtime, keys, runs), heard))
                    else:
                        alone = await work(runtime, keys, runs)
                        taken.append((alone, await _heard(runtime, keys, runs)))
        return {
            "speed left": median(alone.seconds / heard.seconds for alone, heard in taken),
            "busy per step": median((heard.busy - alone.busy) * 1e6 for alone, heard in taken),
        }

    return trio.run(main)


def run(bench: Bench) -> None:
    """Measure."""
    for keys in (64, 256):
        runs = max(2, bench.size(2_000, 1_000) // keys)
        pairs = bench.size(20, 10)
        bench.survey(
            f"one listener, {keys} keys",
            {"pairs": partial(with_and_without, keys, runs, pairs)},
            metrics={
                "speed left": Metric(unit="", bars={"pairs": Bar(value=0.95, absolute=True)}),
                "busy per step": Metric(unit="us", better="lower"),
            },
            warm_up=False,
        )
