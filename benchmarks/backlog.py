"""A long backlog: how much memory it takes to open it, and how soon the first step runs."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun import Context, open_runtime, step, workflow

AT_ONCE = 2000


@step
async def block() -> None:
    """Block. The first runs hold all slots."""
    await trio.sleep_forever()


@workflow
async def job(ctx: Context) -> None:
    """Wait in the backlog."""
    await ctx.step(block)


async def fill(path: Path, keys: int, runs: int) -> None:
    """Leave `runs` runs of each of `keys` keys behind."""
    total = keys * runs
    async with open_runtime(
        path, workflows=[job], max_pending=total + 1, max_pending_per_key=runs + 1
    ) as runtime:
        await runtime.pause_all()

        async def part(first: int) -> None:
            for number in range(first, total, AT_ONCE):
                await runtime.submit(job, key=f"key-{number % keys}")

        async with trio.open_nursery() as nursery:
            for first in range(min(AT_ONCE, total)):
                nursery.start_soon(part, first)
        await runtime.resume_all()


async def reopen(path: str, total: int) -> None:
    """Open a store with `total` runs. Print seconds to the first step, and megabytes when all runs
    are counted."""
    before, started = anonymous(), perf_counter()
    async with open_runtime(
        path, workflows=[job], max_pending=1 << 40, max_pending_per_key=1 << 40, drain_timeout=0
    ) as runtime:
        while not runtime.statistics().running_steps:
            await trio.sleep(0.001)
        first = perf_counter() - started
        most = anonymous()
        while (now := runtime.statistics()).backlog.pending + now.running_steps < total:
            await trio.sleep(0.01)
            most = max(most, anonymous())
        print(first, max(most, anonymous()) - before, flush=True)


def anonymous() -> float:
    """Return the megabytes of memory without files: the mapping of LMDB does not count."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("/proc/self/status has no RssAnon on this system")


def backlog(keys: int, runs: int) -> dict[str, float]:
    """Fill a store in this process and open it in another."""
    with folder() as path:
        trio.run(fill, path, keys, runs)
        command = [sys.executable, "-m", "benchmarks.backlog", str(path), str(keys * runs)]
        first, most = subprocess.check_output(command, text=True).split()
    return {"first": float(first), "memory": float(most)}


def run(bench: Bench) -> None:
    """Measure."""
    thousands = bench.size(1000, 20)
    deep, wide = f"1,000 keys x {thousands}", f"{thousands * 1000:,} keys x 1"
    bench.survey(
        "reopened",
        {
            deep: partial(backlog, 1000, thousands),
            wide: partial(backlog, 1000 * thousands, 1),
        },
        metrics={
            "first": Metric(
                unit="s",
                better="lower",
                bars={name: Bar(value=2.0, better="lower", absolute=True) for name in (deep, wide)},
            ),
            "memory": Metric(
                unit="MB",
                better="lower",
                bars={
                    deep: Bar(value=200, better="lower", absolute=True),
                    wide: Bar(value=400, better="lower", absolute=True),
                },
            ),
        },
        limit=None,
        warm_up=False,
    )


if __name__ == "__main__":
    trio.run(reopen, sys.argv[1], int(sys.argv[2]))
