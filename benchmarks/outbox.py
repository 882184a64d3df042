"""A long outbox: memory and time to the first step with a million ends that wait for the hook."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from shutil import copytree
from time import perf_counter

import trio

from benchmarks.backlog import anonymous
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun import Context, Retention, RunOutcome, open_runtime, step, workflow

AT_ONCE = 2000
SECONDS = 3.0


@step
async def work() -> None:
    """The first step."""


@workflow
async def job(ctx: Context) -> None:
    """Run beside the delivery."""
    await ctx.step(work)


@workflow
async def empty(ctx: Context) -> None:
    """End at once."""


async def fill(path: Path, keys: int, ends: int) -> None:
    """Leave `ends` undelivered ends of each of `keys` keys behind, of runs that retention has
    removed."""
    total = keys * ends

    async def block(outcome: RunOutcome) -> None:
        await trio.sleep_forever()

    async with open_runtime(
        path,
        workflows=[job, empty],
        on_terminal=block,
        retention=Retention(count=1),
        drain_timeout=0,
        max_pending=AT_ONCE + 1,
    ) as runtime:

        async def part(first: int) -> None:
            for number in range(first, total, AT_ONCE):
                await (await runtime.submit(empty, key=f"key-{number % keys}")).result()

        async with trio.open_nursery() as nursery:
            for first in range(min(AT_ONCE, total)):
                nursery.start_soon(part, first)
        while len(await runtime.runs(limit=2)) > 1:
            await trio.sleep(0.01)
        if (waiting := (await runtime.outbox()).waiting) != total:
            raise AssertionError(f"{waiting} ends wait for the hook, and {total} runs have ended")


async def reopen(path: str, mode: str) -> None:
    """Open what was left, with a hook that works, with a hook that fails, or without a hook. Print
    seconds to the first step, the most megabytes, and delivered ends per second."""
    import logging

    logging.disable(logging.CRITICAL)
    calls = 0

    async def hook(outcome: RunOutcome) -> None:
        nonlocal calls
        calls += 1
        if mode == "failing":
            raise RuntimeError("not now")

    before, started = anonymous(), perf_counter()
    async with open_runtime(
        path,
        workflows=[job],
        on_terminal=None if mode == "none" else hook,
        drain_timeout=0,
    ) as runtime:
        await (await runtime.submit(job, key="new")).result()
        first = perf_counter() - started
        most = anonymous()
        while perf_counter() - started < SECONDS:
            await trio.sleep(0.01)
            most = max(most, anonymous())
        rate = calls / (perf_counter() - started)
        print(first, most - before, rate, flush=True)


def measure(store: Path, mode: str) -> dict[str, float]:
    """Open a copy of a filled store in another process."""
    with folder() as path:
        copytree(store, path, dirs_exist_ok=True)
        command = [sys.executable, "-m", "benchmarks.outbox", str(path), mode]
        first, most, rate = map(float, subprocess.check_output(command, text=True).split())
    return {"first": first, "memory": most, "delivered": rate}


def run(bench: Bench) -> None:
    """Measure."""
    thousands = bench.size(1000, 20)
    shapes = {
        f"1,000 keys x {thousands}": (1000, thousands),
        f"{thousands * 1000:,} keys x 1": (1000 * thousands, 1),
    }
    with folder() as stores:
        for name, (keys, ends) in shapes.items():
            trio.run(fill, stores / name, keys, ends)
        _survey(bench, {name: stores / name for name in shapes})


def _survey(bench: Bench, stores: dict[str, Path]) -> None:
    modes = {"": "working", ", hook fails": "failing", ", no hook": "none"}
    cases = {
        name + text: partial(measure, store, mode)
        for name, store in stores.items()
        for text, mode in modes.items()
    }
    bench.survey(
        "outbox",
        cases,
        metrics={
            "first": Metric(
                unit="s",
                better="lower",
                bars={name: Bar(value=2.0, better="lower", absolute=True) for name in cases},
            ),
            "memory": Metric(
                unit="MB",
                better="lower",
                bars={name: Bar(value=50, better="lower", absolute=True) for name in cases},
            ),
            "delivered": Metric(unit="ends/s", better="higher"),
        },
        limit=None,
        warm_up=False,
    )


if __name__ == "__main__":
    trio.run(reopen, sys.argv[1], sys.argv[2])
