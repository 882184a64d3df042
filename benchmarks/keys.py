"""What more keys cost: the time per step from 100 to 100,000 keys at equal numbers in flight."""

from functools import partial

from benchmarks.figure import Bar
from benchmarks.harness import Bench
from benchmarks.workload import steps_per_second

IN_FLIGHT = 100


def run(bench: Bench) -> None:
    """Measure."""
    sizes = (100, 1_000, 10_000, 100_000) if not bench.quick else (100, 10_000)
    runs = bench.size(1000, 100)

    def cost(keys: int) -> float:
        return 1e6 / steps_per_second("inline", keys, runs, IN_FLIGHT)

    most = sizes[-1]
    bench.group(
        "cost per step",
        {f"{size} keys": partial(cost, size) for size in sizes},
        unit="us",
        better="lower",
        limit=f"{sizes[0]} keys",
        bars={f"{most} keys": Bar(value=2.0, better="lower")},
    )
