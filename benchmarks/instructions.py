"""python -m benchmarks.instructions OLD NEW: how many machine instructions does a run take?

Both checkouts run the same workloads under `valgrind --tool=cachegrind`, with a fixed hash seed.
Each workload runs in two sizes, and the figure is the difference for one more unit, without imports
and without the open of the store. The ratio is OLD's figure divided by NEW's: below 1 means that
NEW takes more instructions. The workloads run on virtual time, without the watchdog of the event
loop, so the figures hardly depend on what else the machine does. But instructions are not time:
confirm a loss with `benchmarks.compare`.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from math import exp, log
from pathlib import Path
from typing import NamedTuple

from benchmarks.compare import ENOUGH, HERE, importable

CONCURRENT = 32
"""Runs that are under way at the same time, each under its own key."""


class Workload(NamedTuple):
    """Work that takes a number of units, and the two numbers that are measured."""

    unit: str
    work: Callable[[int], object]
    few: int
    many: int


def _runs(units: int) -> None:
    from benchmarks.workload import steps_per_second

    steps_per_second("inline", CONCURRENT, units // CONCURRENT, CONCURRENT)


def _entities(units: int) -> None:
    from benchmarks.entities import calls_per_second

    calls_per_second(CONCURRENT, units // CONCURRENT // 2, requests=False)
    calls_per_second(CONCURRENT, units // CONCURRENT // 2, requests=True)


def _graphs(units: int) -> None:
    from benchmarks.graphs import LAYERS, WIDTH, layered, nodes_per_second

    nodes_per_second(layered, LAYERS * WIDTH, 8, units // 8)


def _recovery(units: int) -> None:
    from benchmarks.recovery import killed_and_recovered

    killed_and_recovered(units)


def _signals(units: int) -> None:
    from benchmarks.signals import exchange

    exchange(CONCURRENT, units // CONCURRENT // 2, evicted=False)
    exchange(CONCURRENT, units // CONCURRENT // 2, evicted=True)


WORKLOADS = {
    "runs": Workload("run of three steps", _runs, 320, 1600),
    "entities": Workload("entity call", _entities, 640, 6400),
    "graphs": Workload("graph of 50 nodes", _graphs, 16, 80),
    "recovery": Workload("recovered run", _recovery, 100, 600),
    "signals": Workload("signal", _signals, 128, 640),
}


def child(name: str, units: int) -> None:
    """Run a workload on virtual time, so that it does not depend on time what Keyrun does. Valgrind
    cannot map the address space that a store asks for by default."""
    import trio
    from trio.testing import MockClock

    from keyrun.storage import LmdbStore

    vars(trio)["run"] = partial(trio.run, clock=MockClock(autojump_threshold=0))
    (LmdbStore.__init__.__kwdefaults__ or {})["map_size"] = 1 << 30
    WORKLOADS[name].work(units)


def counted(name: str, units: int, path: Path) -> int:
    """Return how many instructions a process takes for a workload."""
    code = f"import benchmarks.instructions as i; i.child({name!r}, {units})"
    command = ["valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]
    done = subprocess.run(
        [*command, sys.executable, "-c", code],
        cwd=path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(path), str(HERE)]),
            "PYTHONHASHSEED": "0",
        },
        capture_output=True,
        text=True,
    )
    found = re.search(r"I\s+refs:\s+([\d,]+)", done.stderr)
    if done.returncode or found is None:
        raise SystemExit(f"{name} failed with the keyrun of {path}:\n{done.stderr}")
    return int(found[1].replace(",", ""))


def per_unit(name: str, path: Path) -> float:
    """Return the instructions that one more unit of a workload takes."""
    measured = partial(counted, name, path=path)
    few, many = WORKLOADS[name].few, WORKLOADS[name].many
    return (measured(many) - measured(few)) / (many - few)


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 1 if the geometric mean of the ratios is below 0.99."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.instructions",
        description="Count the instructions that two checkouts of Keyrun take for the same work.",
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="the checkout to compare with")
    parser.add_argument("new", type=Path, metavar="NEW", help="the checkout that may be slower")
    parser.add_argument(
        "names", nargs="*", metavar="WORKLOAD", help=f"of {', '.join(WORKLOADS)}; default all"
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if name not in WORKLOADS:
            parser.error(f"no workload is called {name!r}; there are {', '.join(WORKLOADS)}")
    print(f"{'workload':<10}  {'OLD':>12}  {'NEW':>12}  ratio  instructions for one", flush=True)
    ratios = []
    with importable(options.old.resolve()) as old, importable(options.new.resolve()) as new:
        for name in options.names or WORKLOADS:
            before, after = per_unit(name, old), per_unit(name, new)
            ratios.append(before / after)
            print(
                f"{name:<10}  {before:>12,.0f}  {after:>12,.0f}  {ratios[-1]:.3f}  "
                f"{WORKLOADS[name].unit}",
                flush=True,
            )
    mean = exp(sum(map(log, ratios)) / len(ratios))
    print(f"geometric mean of the ratios: {mean:.3f} (enough: {ENOUGH})")
    return 1 if mean < ENOUGH else 0


if __name__ == "__main__":
    sys.exit(main())
