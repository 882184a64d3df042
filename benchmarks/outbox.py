"""A long outbox: memory and time to the first step with a million ends that wait for the hook."""

import subprocess
import sys
from functools import partial
from pathlib import Path
from time import perf_counter

import trio

from benchmarks.backlog import anonymous
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun import Context, RunOutcome, State, open_runtime, step, workflow
from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.queue.outbox import Outbox
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.values import Priority
from keyrun.storage import LmdbStore
from keyrun.storage.payload import PayloadCodec

PAGE = 10_000
SECONDS = 3.0


@step
async def work() -> None:
    """The first step."""


@workflow
async def job(ctx: Context) -> None:
    """What runs beside the delivery."""
    await ctx.step(work)


async def fill(path: Path, keys: int, ends: int) -> None:
    """Leave `ends` undelivered ends of each of `keys` keys behind. Their runs are gone, as if
    retention had removed them."""
    async with LmdbStore(path) as store:
        outbox = Outbox(Ledger(store.namespace("default")))
        await outbox.open(hook=True)
        status = StatusRecord(
            state=State.SUCCEEDED, ended_at=1.7e9, result=PayloadCodec().encode(None)
        ).fields()
        for first in range(0, keys * ends, PAGE):
            group = store.open_group()
            for number in range(first, min(first + PAGE, keys * ends)):
                outbox.put(group, ended(number + 1, f"key-{number % keys}"), status)
            await store.durable(group)


def ended(number: int, key: str) -> Submission:
    """A run that has ended."""
    return Submission(
        number=number,
        run_id=f"run-{number}",
        key=key,
        workflow="job",
        version=1,
        input=b"",
        digest=None,
        headers={},
        tags=(),
        priority=Priority.NORMAL,
        limits=ResolvedLimits.of(),
        submitted_at=1.7e9,
        delay=0.0,
        origin="submit",
    )


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


def measure(keys: int, ends: int, mode: str) -> dict[str, float]:
    """Fill a store in this process and open it in another."""
    with folder() as path:
        trio.run(fill, path, keys, ends)
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
    modes = {"": "working", ", hook fails": "failing", ", no hook": "none"}
    cases = {
        name + text: partial(measure, *shape, mode)
        for name, shape in shapes.items()
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
