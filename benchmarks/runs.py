"""Durable steps per second beside the record-only loop, and the latency of one run at a time."""

from functools import partial
from statistics import median
from time import perf_counter

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.record_only import record_only
from benchmarks.workload import latencies, steps_per_second
from keyrun.storage import writer
from keyrun.storage.lmdb_store import CommitterName


def four_commits(turns: int) -> dict[str, float]:
    """Milliseconds for four bare LMDB commits of a small record each."""
    taken = []
    with folder() as path, writer.open_environment(str(path), map_size=1 << 30) as environment:
        table = environment.open_db(b"table")
        for turn in range(turns):
            started = perf_counter()
            for part in range(4):
                with environment.begin(write=True) as transaction:
                    transaction.put(b"%d.%d" % (turn, part), bytes(100), db=table)
            taken.append((perf_counter() - started) * 1000)
    return _percentiles(sorted(taken))


def one_at_a_time(committer: CommitterName, runs: int) -> dict[str, float]:
    """Milliseconds from submit to result."""
    return _percentiles(latencies(committer, runs))


def _percentiles(ordered: list[float]) -> dict[str, float]:
    last = len(ordered) - 1
    return {
        "p50": median(ordered),
        "p95": ordered[round(last * 0.95)],
        "p99": ordered[round(last * 0.99)],
    }


def run(bench: Bench) -> None:
    """Measure."""
    for keys in (1, 64, 256, 1000):
        runs = max(4, bench.size(12_000, 3_000) // max(keys, 24))
        bench.group(
            f"{keys} keys",
            {
                "record-only loop": partial(record_only, keys, runs),
                "inline": partial(steps_per_second, "inline", keys, runs, keys),
                "process": partial(steps_per_second, "process", keys, runs, keys),
            },
            unit="steps/s",
            limit="record-only loop",
            bars={"inline": Bar(value=0.4)} if keys == 256 else None,
        )
    turns = bench.size(400, 100)
    bench.survey(
        "one run at a time",
        {
            "four bare commits": partial(four_commits, turns),
            "inline": partial(one_at_a_time, "inline", turns),
            "process": partial(one_at_a_time, "process", turns),
        },
        metrics={
            "p50": Metric(
                unit="ms", better="lower", bars={"inline": Bar(value=2.5, better="lower")}
            ),
            "p95": Metric(unit="ms", better="lower"),
            "p99": Metric(unit="ms", better="lower"),
        },
        limit="four bare commits",
    )
