"""What it costs to be listened to: nothing while nobody does, and little while one does.

Pairs are measured in turns in one runtime, since a machine that is a little faster in one minute
than in the next would say more than the events do.
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

CHECKS = 1 + 3 / STEPS
"""How often a step of these runs asks whether anybody listens, its share of its run included."""


class Taken(NamedTuple):
    """Seconds for one step, submit and result included: by the clock, and of this process."""

    seconds: float
    busy: float


async def _work(runtime: Runtime, keys: int, runs: int) -> Taken:
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
    """The same while somebody reads every event."""
    heard = 0

    async def listen() -> None:
        nonlocal heard
        async with runtime.events(buffer=100_000) as events:
            async for _ in events:
                heard += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await trio.lowlevel.checkpoint()
        taken = await _work(runtime, keys, runs)
        nursery.cancel_scope.cancel()
    expected = keys * runs * (2 * STEPS + 3)
    if heard != expected:
        raise AssertionError(f"{heard} events were heard, and {expected} happened")
    return taken


def with_and_without(keys: int, runs: int, pairs: int) -> dict[str, float]:
    """How much of the speed is left, and how much longer a step keeps the process busy."""

    async def main() -> dict[str, float]:
        taken: list[tuple[Taken, Taken]] = []
        with folder() as path:
            async with open_runtime(LmdbStore(path), workflows=[three_steps]) as runtime:
                await _work(runtime, keys, runs)
                for pair in range(pairs):
                    # Neither is always the second.
                    if pair % 2:
                        heard = await _heard(runtime, keys, runs)
                        taken.append((await _work(runtime, keys, runs), heard))
                    else:
                        alone = await _work(runtime, keys, runs)
                        taken.append((alone, await _heard(runtime, keys, runs)))
        return {
            "speed left": median(alone.seconds / heard.seconds for alone, heard in taken),
            "busy per step": median((heard.busy - alone.busy) * 1e6 for alone, heard in taken),
        }

    return trio.run(main)


def nobody_listens(turns: int) -> float:
    """Microseconds per step for asking whether anybody listens."""

    async def main() -> float:
        with folder() as path:
            async with open_runtime(LmdbStore(path), workflows=[three_steps]) as runtime:
                partition = runtime._partition
                started = perf_counter()
                for _ in range(turns):
                    pass
                empty = perf_counter() - started
                started = perf_counter()
                for _ in range(turns):
                    if partition.state.feed is not None:
                        raise AssertionError("somebody listens")
                return (perf_counter() - started - empty) / turns * CHECKS * 1e6

    return trio.run(main)


def run(bench: Bench) -> None:
    """Measure."""
    bench.group(
        "nobody listens",
        {"per step": partial(nobody_listens, bench.size(3_000_000, 1_000_000))},
        unit="us",
        better="lower",
        bars={"per step": Bar(value=0.5, better="lower", absolute=True)},
    )
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
