"""From a signal to the step that waits for it, for runs in memory and for those that have left it,
beside a bare commit."""

from functools import partial
from math import inf
from statistics import median
from time import perf_counter

import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from keyrun import Context, Runtime, open_runtime, step, workflow
from keyrun.storage import writer

began = 0.0
stepped = trio.Event()


@step
async def react() -> None:
    """Notes when it began."""
    global began
    began = perf_counter()
    stepped.set()


@workflow
async def reacting(ctx: Context) -> None:
    """One step for each signal, at a constant cost."""
    await ctx.wait_signal("go")
    await ctx.step(react)
    ctx.continue_as()


def one_commit(turns: int) -> dict[str, float]:
    """Milliseconds for a bare LMDB commit of a small record."""
    taken = []
    with folder() as path, writer.open_environment(str(path), map_size=1 << 30) as environment:
        table = environment.open_db(b"table")
        for turn in range(turns):
            started = perf_counter()
            with environment.begin(write=True) as transaction:
                transaction.put(b"%d" % turn, bytes(100), db=table)
            taken.append((perf_counter() - started) * 1000)
    return _percentiles(taken)


def signals(turns: int, evict_after: float) -> dict[str, float]:
    """Milliseconds from `signal` to the first line of the step, one signal at a time."""

    async def main() -> list[float]:
        global stepped
        taken = []
        with folder() as path:
            async with open_runtime(path, workflows=[reacting], evict_after=evict_after) as runtime:
                await runtime.submit(reacting, key="key", run_id="run")
                for _ in range(turns):
                    while not await _waits(runtime, evict_after):
                        await trio.sleep(0.0005)
                    await trio.sleep(0.002)  # what it has staged is durable
                    stepped = trio.Event()
                    started = perf_counter()
                    await runtime.signal("run", "go")
                    await stepped.wait()
                    taken.append((began - started) * 1000)
                await runtime.cancel("run")
        return taken

    return _percentiles(trio.run(main))


class Reactions:
    """The steps that signals have caused, out of those that are expected."""

    def __init__(self) -> None:
        self.expected = 0
        self.met = trio.Event()

    def expect(self, count: int) -> None:
        self.expected, self.met = count, trio.Event()

    def add(self) -> None:
        self.expected -= 1
        if self.expected == 0:
            self.met.set()


reactions = Reactions()


@step
async def react_together() -> None:
    """Counts a reaction."""
    reactions.add()


@workflow
async def reacting_often(ctx: Context, turns: int) -> None:
    """One step for each signal."""
    for _ in range(turns):
        await ctx.wait_signal("go")
        await ctx.step(react_together)


def exchange(keys: int, turns: int, *, evicted: bool) -> None:
    """Signal `keys` waiting runs at once, and wait until all have reacted, `turns` times. The work
    does not depend on how long anything takes."""

    async def main() -> None:
        with folder() as path:
            evict_after = 0.0 if evicted else inf
            async with open_runtime(
                path, workflows=[reacting_often], evict_after=evict_after
            ) as runtime:
                for number in range(keys):
                    await runtime.submit(
                        reacting_often, turns, key=f"key-{number}", run_id=f"run-{number}"
                    )
                for _ in range(turns):
                    while evicted and runtime.statistics().live:
                        await trio.sleep(0.05)
                    reactions.expect(keys)
                    async with trio.open_nursery() as nursery:
                        for number in range(keys):
                            nursery.start_soon(runtime.signal, f"run-{number}", "go")
                    await reactions.met.wait()

    trio.run(main)


async def _waits(runtime: Runtime, evict_after: float) -> bool:
    """Whether the run waits, in memory or out of it as it should."""
    status = await runtime.status("run")
    waits = status is not None and status.waiting_on == "signal go"
    return waits and (evict_after == inf) == (runtime.statistics().live == 1)


def _percentiles(taken: list[float]) -> dict[str, float]:
    return {"p50": median(taken), "p99": sorted(taken)[round((len(taken) - 1) * 0.99)]}


def run(bench: Bench) -> None:
    """Measure."""
    turns = bench.size(1000, 200)
    bench.survey(
        "signal to step",
        {
            "one bare commit": partial(one_commit, turns),
            "in memory": partial(signals, turns, inf),
            "evicted": partial(signals, turns, 0.0),
        },
        metrics={
            "p50": Metric(
                unit="ms",
                better="lower",
                bars={
                    "in memory": Bar(value=3, better="lower"),
                    "evicted": Bar(value=5, better="lower"),
                },
            ),
            "p99": Metric(unit="ms", better="lower"),
        },
        limit="one bare commit",
    )
