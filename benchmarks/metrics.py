"""The cost of metrics: of counting in the engine, and of scraping it.

Two runtimes, one that counts and one that does not, take turns on the same work, because the speed
of a machine varies more from minute to minute than the counters cost.
"""

from functools import partial
from statistics import median
from time import perf_counter

import trio

from benchmarks import backlog
from benchmarks.events import Taken, work
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.workload import three_steps
from keyrun import open_runtime
from keyrun.metrics import AnyRuntime, exposition
from keyrun.runtime.tuning import Tuning


async def _scraped(runtime: AnyRuntime) -> None:
    """Scrape a runtime once a second."""
    while True:
        exposition(runtime)
        await trio.sleep(1)


def with_and_without(keys: int, runs: int, pairs: int, scrape: bool) -> dict[str, float]:
    """Return the speed with metrics divided by the speed without, and the CPU time that they add to
    a step."""

    async def main() -> dict[str, float]:
        taken: list[tuple[Taken, Taken]] = []
        with folder() as counting, folder() as bare:
            async with (
                open_runtime(counting, workflows=[three_steps]) as counts,
                open_runtime(
                    bare, workflows=[three_steps], tuning=Tuning(metric_names=0)
                ) as does_not,
                trio.open_nursery() as nursery,
            ):
                if scrape:
                    nursery.start_soon(_scraped, counts)
                await work(counts, keys, runs)
                await work(does_not, keys, runs)
                for pair in range(pairs):
                    # Neither is always the second.
                    if pair % 2:
                        first = await work(counts, keys, runs)
                        taken.append((await work(does_not, keys, runs), first))
                    else:
                        first = await work(does_not, keys, runs)
                        taken.append((first, await work(counts, keys, runs)))
                nursery.cancel_scope.cancel()
        return {
            "speed left": median(off.seconds / on.seconds for off, on in taken),
            "CPU speed left": median(off.busy / on.busy for off, on in taken),
            "busy per step": median((on.busy - off.busy) * 1e6 for off, on in taken),
        }

    return trio.run(main)


def scrape_of_backlog(keys: int, runs: int) -> dict[str, float]:
    """Return the time of one scrape of a store with many runs that wait to start."""

    async def main() -> float:
        with folder() as path:
            await backlog.fill(path, keys, runs)
            total = keys * runs
            async with open_runtime(
                path,
                workflows=[backlog.job],
                max_pending=total + 1,
                max_pending_per_key=runs + 1,
                drain_timeout=0,
            ) as runtime:
                while runtime.statistics().backlog.pending < total - 1000:
                    await trio.sleep(0.1)
                exposition(runtime)
                times = []
                for _ in range(11):
                    started = perf_counter()
                    exposition(runtime)
                    times.append(perf_counter() - started)
                    await trio.sleep(0.01)
                return median(times) * 1000

    return {"scrape": trio.run(main)}


def run(bench: Bench) -> None:
    """Measure."""
    for keys in (64, 256):
        runs = max(2, bench.size(2_000, 1_000) // keys)
        pairs = bench.size(20, 10)
        for scrape, bar in ((False, 0.98), (True, 0.97)):
            case = "one scrape per second" if scrape else "counting"
            bench.survey(
                f"{case}, {keys} keys",
                {"pairs": partial(with_and_without, keys, runs, pairs, scrape)},
                metrics={
                    "speed left": Metric(unit="", bars={"pairs": Bar(value=bar, absolute=True)}),
                    "CPU speed left": Metric(unit=""),
                    "busy per step": Metric(unit="us", better="lower"),
                },
                warm_up=False,
            )
    keys = bench.size(100_000, 10_000)
    bench.survey(
        f"a scrape with {10 * keys:,} runs under {keys:,} keys",
        {"exposition": partial(scrape_of_backlog, keys, 10)},
        metrics={
            "scrape": Metric(
                unit="ms",
                better="lower",
                bars={"exposition": Bar(value=20, better="lower", absolute=True)},
            )
        },
        warm_up=False,
    )
