"""python -m benchmarks [NAME ...]: run benchmarks and print a table."""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks import report
from benchmarks.figure import Figure
from benchmarks.harness import Bench

SUITES = {
    "store": "group commit beside bare py-lmdb, both committers, with a busy loop",
    "actors": "messages per second beside other actor designs, memory, restarts",
    "runs": "durable steps per second beside the record-only loop, latency of one run",
    "events": "the cost of a step while a listener reads all events",
    "tracing": "the cost of a step while spans of it are exported, and while they are not sampled",
    "control": "submits through the socket and over HTTP beside submits in the process",
    "subscribers": "the speed of the engine while 200 clients read its events over HTTP",
    "page": "the web page: first answers with a million runs, polling, and live events",
    "metrics": "the cost of counting, and of a scrape with a million runs",
    "keys": "the cost of a step from 100 to 100,000 keys",
    "backlog": "a million runs that wait: memory, and the time to the first step",
    "outbox": "a million ends that wait for the hook: memory, and the time to the first step",
    "sleepers": "100,000 runs that sleep, with --long 1,000,000: memory, disk, lateness",
    "signals": "from a signal to the step that waits for it, in memory and evicted",
    "graphs": "nodes of graphs beside plain steps; what conditions and policies cost",
    "entities": "calls of entities per second beside the record-only loop",
    "hosts": "asyncio and threads beside Trio, a shared store, an endpoint beside a busy Keyrun",
    "postgres": "steps, latency and opening of a store in PostgreSQL beside LMDB on the same disk",
    "recovery": "10,000 runs killed with SIGKILL in a step, and how fast they finish",
}


def main() -> int:
    """Returns 0, or 1 if --check was given and a bar was missed or a figure got worse."""
    suites = "\n".join(f"  {name:<11} {text}" for name, text in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Every figure is a ratio to a limit that is measured in the same run.",
        epilog=f"benchmarks:\n{suites}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; all by default")
    parser.add_argument("--quick", action="store_true", help="less work, fewer rounds")
    parser.add_argument("--long", action="store_true", help="much more work where there is any")
    parser.add_argument("--repeat", type=int, metavar="N", help="rounds; default 5, quick 3")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to FILE")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="hold them against FILE")
    parser.add_argument("--check", action="store_true", help="fail on a missed bar or a loss")
    options = parser.parse_args()
    for name in options.names:
        if name not in SUITES:
            parser.error(f"no benchmark is called {name!r}; there are {', '.join(SUITES)}")
    if options.repeat is not None and options.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {options.repeat}")
    if options.compare and not options.compare.is_file():
        parser.error(f"--compare: there is no file {options.compare}")
    figures: list[Figure] = []
    for name in options.names or SUITES:
        repeat = options.repeat or (3 if options.quick else 5)
        bench = Bench(name, repeat=repeat, quick=options.quick, long=options.long)
        import_module(f"benchmarks.{name}").run(bench)
        figures += bench.figures
    print(report.table(figures))
    worse = False
    if options.compare:
        text, worse = report.compare(figures, options.compare)
        print(f"\nagainst {options.compare}:\n{text}")
    if options.json:
        report.write(options.json, figures)
        print(f"\nwritten to {options.json}")
    missed = [figure for figure in figures if figure.bar and not figure.bar.met(figure)]
    return 1 if options.check and (missed or worse) else 0


if __name__ == "__main__":
    sys.exit(main())
