"""Recovery: thousands of runs killed in a blocking second step, and how fast they finish after."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun import Context, Runtime, current_step, open_runtime, step, workflow

blocking = {"second": False}
ran: list[tuple[str, str]] = []


@step
async def first() -> None:
    """Finished before the kill; must never run again."""
    ran.append((current_step().run_id, "first"))


@step
async def second() -> None:
    """Blocks until the process is killed, and returns at once after the restart."""
    ran.append((current_step().run_id, "second"))
    if blocking["second"]:
        await trio.sleep_forever()


@step
async def third() -> None:
    """Only after the restart."""
    ran.append((current_step().run_id, "third"))


@workflow
async def job(ctx: Context) -> None:
    """What is killed in its middle."""
    await ctx.step(first)
    await ctx.step(second)
    await ctx.step(third)


async def submit_all(runtime: Runtime, runs: int) -> None:
    """Submit as many runs as there are keys, a thousand at a time."""
    limit = trio.CapacityLimiter(1000)

    async def one(number: int) -> None:
        async with limit:
            await runtime.submit(job, key=f"key-{number}", run_id=f"run-{number}")

    async with trio.open_nursery() as nursery:
        for number in range(runs):
            nursery.start_soon(one, number)


async def victim(path: str, runs: int) -> None:
    """The process that is killed: prints a line when every run is in its second step."""
    blocking["second"] = True
    async with open_runtime(path, workflows=[job], max_concurrent_steps=runs) as runtime:
        await submit_all(runtime, runs)
        while sum(name == "second" for _, name in ran) < runs:
            await trio.sleep(0.05)
        await trio.sleep(0.2)
        print("ready", flush=True)
        await trio.sleep_forever()


def killed_and_recovered(runs: int) -> dict[str, float]:
    """Kill the victim, open its store, wait for every run."""
    with folder() as path:
        command = [sys.executable, "-m", "benchmarks.recovery", str(path), str(runs)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == "ready"
            os.kill(child.pid, signal.SIGKILL)
        return trio.run(_recover, path, runs)


async def _recover(path: Path, runs: int) -> dict[str, float]:
    ran.clear()
    started = perf_counter()
    async with open_runtime(path, workflows=[job], max_concurrent_steps=runs) as runtime:
        opened = perf_counter() - started
        async with trio.open_nursery() as nursery:
            for number in range(runs):
                nursery.start_soon(_finished, runtime, number)
        seconds = perf_counter() - started
    again = sum(name == "first" for _, name in ran)
    assert again == 0, f"{again} finished steps ran again"
    assert len(ran) == 2 * runs, "not every step ran once"
    return {"steps": 2 * runs / seconds, "opened": opened * 1000}


async def _finished(runtime: Runtime, number: int) -> None:
    run = await runtime.submit(job, key=f"key-{number}", run_id=f"run-{number}")
    assert not run.newly_submitted
    await run.result()


def uninterrupted(runs: int) -> dict[str, float]:
    """The same runs with nobody killed."""

    async def main() -> dict[str, float]:
        with folder() as path:
            async with open_runtime(path, workflows=[job], max_concurrent_steps=runs) as runtime:
                started = perf_counter()
                await submit_all(runtime, runs)
                async with trio.open_nursery() as nursery:
                    for number in range(runs):
                        nursery.start_soon(_finished, runtime, number)
                return {"steps": 3 * runs / (perf_counter() - started), "opened": 0.0}

    return trio.run(main)


def run(bench: Bench) -> None:
    """Measure."""
    runs = bench.size(10_000, 1_000)
    bench.survey(
        f"{runs} runs killed in their second step",
        {
            "uninterrupted": lambda: uninterrupted(runs),
            "recovered": lambda: killed_and_recovered(runs),
        },
        metrics={
            "steps": Metric(unit="steps/s", bars={"recovered": Bar(value=0.8)}),
            "opened": Metric(unit="ms", better="lower"),
        },
        limit="uninterrupted",
        warm_up=False,
    )


if __name__ == "__main__":
    trio.run(victim, sys.argv[1], int(sys.argv[2]))
