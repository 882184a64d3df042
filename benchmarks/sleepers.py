"""Runs that sleep: what each costs in memory and on the disk, and how late they wake."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import trio

from benchmarks.backlog import anonymous
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun import Context, Runtime, open_runtime, step, workflow
from keyrun.status import RuntimeStatistics

AT_ONCE = 2000
SAMPLE = 5000
"""How many of them wake, one after the other."""
RATE = 500
"""How many of those in a second."""
DAY = 86_400.0

late: list[float] = []


@step
async def wake(due: float) -> None:
    """Says how late it is."""
    late.append(time.time() - due)


@workflow
async def sleeper(ctx: Context, due: float) -> None:
    """Sleeps until a time of the wall clock; how long that is counts when it is first reached."""
    await ctx.sleep(max(0.0, due - time.time()))
    await ctx.step(wake, due)


async def submit(runtime: Runtime, prefix: str, dues: list[float]) -> None:
    """Start runs that sleep, one of a key, and return when they have left memory."""

    async def part(first: int) -> None:
        for number in range(first, len(dues), AT_ONCE):
            await runtime.submit(sleeper, dues[number], key=f"{prefix}-{number}")

    async with trio.open_nursery() as nursery:
        for first in range(min(AT_ONCE, len(dues))):
            nursery.start_soon(part, first)
    while not _asleep(runtime.statistics()):
        await trio.sleep(0.05)


def _asleep(now: RuntimeStatistics) -> bool:
    """Whether all have left memory, durably."""
    return not (now.live or now.backlog.pending or now.commits.staged)


async def sleep(path: str, runs: int) -> None:
    """Print bytes in memory and on the disk for each run, and how late a sample of them woke."""
    async with open_runtime(
        path, workflows=[sleeper], max_pending=runs + SAMPLE + 1, evict_after=0.0
    ) as runtime:
        # What the first ones need once and for all is not theirs.
        await submit(runtime, "warm", [time.time() + DAY] * AT_ONCE)
        before, stored = anonymous(), on_disk(path)
        await submit(runtime, "key", [time.time() + DAY] * runs)
        memory, disk = anonymous() - before, on_disk(path) - stored
        start = time.time() + 10.0
        await submit(runtime, "soon", [start + number / RATE for number in range(SAMPLE)])
        while len(late) < SAMPLE:
            await trio.sleep(0.05)
        ordered = sorted(late)
        p50, p99 = ordered[SAMPLE // 2], ordered[round(SAMPLE * 0.99)]
        print(memory * 1024 * 1024 / runs, disk / runs, p50 * 1000, p99 * 1000, flush=True)


def on_disk(path: str) -> int:
    """Bytes of the files of a store."""
    return sum(file.stat().st_blocks * 512 for file in Path(path).iterdir() if file.is_file())


def sleepers(runs: int) -> dict[str, float]:
    """In a process of its own, so that nothing else is in its memory."""
    with folder() as path:
        command = [sys.executable, "-m", "benchmarks.sleepers", str(path), str(runs)]
        memory, disk, p50, p99 = map(float, subprocess.check_output(command, text=True).split())
    return {"memory": memory, "disk": disk, "late, p50": p50, "late, p99": p99}


def run(bench: Bench) -> None:
    """Measure."""
    bench.repeat = 1 if bench.long else min(bench.repeat, 3)
    runs = bench.size(100_000, 10_000, 1_000_000)
    name = f"{runs:,} runs"
    bench.survey(
        "asleep",
        {name: partial(sleepers, runs)},
        metrics={
            "memory": Metric(
                unit="bytes each",
                better="lower",
                bars={name: Bar(value=1024, better="lower", absolute=True)},
            ),
            "disk": Metric(unit="bytes each", better="lower"),
            "late, p50": Metric(unit="ms", better="lower"),
            "late, p99": Metric(unit="ms", better="lower"),
        },
        warm_up=False,
    )


if __name__ == "__main__":
    trio.run(sleep, sys.argv[1], int(sys.argv[2]))
