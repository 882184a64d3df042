"""python -m benchmarks.compare BASE NEW: is one checkout of Keyrun slower than another?

Both are measured with the benchmark files of the checkout that this runs in, in processes that take
turns, so that a change of the machine's load meets both. The result is the median, over all pairs,
of NEW's speed divided by BASE's, with a 95 % interval, for wall time and for CPU time. CPU time is
the one to trust on a machine that does other things. A figure is lower if its whole interval is
below 0.97.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import comb, exp, inf, log
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import NamedTuple

LOWER = 0.97
"""An interval that lies below this shows a loss."""
ENOUGH = 0.99
"""What the geometric mean over all workloads must reach."""
HERE = Path(__file__).parent.parent
PACKAGES = ("actors", "runtime", "storage")


class Cost(NamedTuple):
    """Seconds that one process took for one workload."""

    wall: float
    cpu: float


class Interval(NamedTuple):
    """A median, and the range that holds the true one with a probability of 95 %."""

    low: float
    middle: float
    high: float

    def __str__(self) -> str:
        return f"{self.middle:.3f} [{self.low:.3f}, {self.high:.3f}]"


def median_interval(values: list[float]) -> Interval:
    """Return the median with an interval between two of the values, from the binomial
    distribution. Fewer than six values give no such interval."""
    ordered, count = sorted(values), len(values)
    below, rank = 0.0, 0
    while rank < count // 2:
        below += comb(count, rank) / 2**count
        if below > 0.025:
            break
        rank += 1
    if rank == 0:
        return Interval(-inf, median(ordered), inf)
    return Interval(ordered[rank - 1], median(ordered), ordered[count - rank])


def _runs(scale: float) -> None:
    from benchmarks.workload import steps_per_second

    steps_per_second("inline", 256, max(1, round(40 * scale)), 256)


def _entities(scale: float) -> None:
    from benchmarks.entities import calls_per_second

    calls_per_second(1000, max(1, round(40 * scale)), requests=False)
    calls_per_second(1000, max(1, round(20 * scale)), requests=True)


def _graphs(scale: float) -> None:
    from benchmarks.graphs import LAYERS, WIDTH, chain, layered, nodes_per_second

    nodes_per_second(layered, LAYERS * WIDTH, 32, max(1, round(12 * scale)))
    nodes_per_second(partial(chain, 200), 200, 4, max(1, round(10 * scale)))


def _recovery(scale: float) -> None:
    from benchmarks.recovery import killed_and_recovered

    killed_and_recovered(max(10, round(4000 * scale)))


def _signals(scale: float) -> None:
    from benchmarks.signals import signals

    signals(max(5, round(400 * scale)), inf)
    signals(max(5, round(200 * scale)), 0.0)


WORKLOADS: dict[str, Callable[[float], None]] = {
    "runs": _runs,
    "entities": _entities,
    "graphs": _graphs,
    "recovery": _recovery,
    "signals": _signals,
}


@contextmanager
def importable(checkout: Path) -> Iterator[Path]:
    """A folder with nothing but the `keyrun` of a checkout, to import that from. It is on the disk
    that holds the sources, since the workloads put their stores there."""
    if not (checkout / "keyrun" / "__init__.py").is_file():
        raise SystemExit(f"{checkout} is not a checkout of Keyrun: it has no keyrun/__init__.py")
    with TemporaryDirectory(dir=HERE, prefix=".bench-") as made:
        package = Path(made) / "keyrun"
        if (checkout / "keyrun" / "runtime").exists():
            package.symlink_to(checkout / "keyrun")
        else:  # an older checkout, whose folders are not linked into one package
            package.mkdir()
            parts = [*(checkout / "keyrun").iterdir(), *(checkout / name for name in PACKAGES)]
            for part in parts:
                (package / part.name).symlink_to(part)
        yield Path(made)


def measure(workload: str, scale: float, path: Path) -> Cost:
    """Run a workload once in a process of its own, with the `keyrun` that is in `path`."""
    code = "import sys, benchmarks.compare as c; c.child(sys.argv[1], float(sys.argv[2]))"
    done = subprocess.run(
        [sys.executable, "-c", code, workload, str(scale)],
        cwd=path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(path), str(HERE)])},
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise SystemExit(f"{workload} failed with the keyrun of {path}:\n{done.stderr}")
    origin, wall, cpu = json.loads(done.stdout.splitlines()[-1])
    assert Path(origin).is_relative_to(path), f"{origin} was measured instead of {path}"
    return Cost(wall, cpu)


def child(workload: str, scale: float) -> None:
    """Run a workload and print what it cost."""
    import keyrun.runtime

    work = WORKLOADS[workload]
    work(scale / 10)  # what is imported and compiled late is not measured
    wall, cpu = perf_counter(), process_time()
    work(scale)
    print(json.dumps([keyrun.runtime.__file__, perf_counter() - wall, process_time() - cpu]))


def compare(
    base: Path, new: Path, names: list[str], pairs: int, scale: float
) -> dict[str, tuple[Interval, Interval]]:
    """Measure both checkouts in turns. Returns the intervals of wall and CPU time by workload."""
    found = {}
    with importable(base) as first, importable(new) as second:
        for name in names:
            ratios: list[Cost] = []
            for pair in range(pairs):
                order = [first, second] if pair % 2 == 0 else [second, first]
                costs = {path: measure(name, scale, path) for path in order}
                before, after = costs[first], costs[second]
                ratios.append(Cost(before.wall / after.wall, before.cpu / after.cpu))
                if sys.stderr.isatty():
                    print(f"\r{name}: pair {pair + 1} of {pairs}", end="", file=sys.stderr)
            wall = median_interval([ratio.wall for ratio in ratios])
            cpu = median_interval([ratio.cpu for ratio in ratios])
            found[name] = wall, cpu
            if sys.stderr.isatty():
                print("\r", end="", file=sys.stderr)
            print(f"{name:<10}  {wall!s:<24}  {cpu!s}{_verdict(cpu)}", flush=True)
    return found


def _verdict(cpu: Interval) -> str:
    return "  LOWER" if cpu.high < LOWER else ""


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if NEW is slower."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.compare",
        description="Compare the speed of two checkouts of Keyrun, measured in turns.",
    )
    parser.add_argument("base", type=Path, metavar="BASE", help="the checkout to compare with")
    parser.add_argument("new", type=Path, metavar="NEW", help="the checkout that may be slower")
    parser.add_argument(
        "names", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default all"
    )
    parser.add_argument("--pairs", type=int, default=15, metavar="N", help="pairs; default 15")
    parser.add_argument(
        "--scale", type=float, default=1.0, metavar="X", help="how much work; default 1"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in WORKLOADS:
            parser.error(f"no workload is called {name!r}; there are {', '.join(WORKLOADS)}")
    if options.pairs < 1:
        parser.error(f"--pairs must be at least 1, got {options.pairs}")
    if not options.scale > 0:
        parser.error(f"--scale must be positive, got {options.scale}")
    print("speed of NEW divided by the speed of BASE, with 95 % intervals")
    print(f"{'workload':<10}  {'wall time':<24}  CPU time", flush=True)
    base, new = options.base.resolve(), options.new.resolve()
    found = compare(base, new, options.names or list(WORKLOADS), options.pairs, options.scale)
    mean = exp(sum(log(cpu.middle) for _, cpu in found.values()) / len(found))
    print(f"geometric mean of the CPU times: {mean:.3f} (enough: {ENOUGH})")
    lower = any(cpu.high < LOWER for _, cpu in found.values())
    return 1 if lower or mean < ENOUGH else 0


if __name__ == "__main__":
    sys.exit(main())
