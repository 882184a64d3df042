"""python -m benchmarks.peers: measure Keyrun beside its peers, and write what was found."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from benchmarks.peers.campaign import Campaign
from benchmarks.peers.catalogue import NAMES, PEERS
from benchmarks.peers.chart import chart
from benchmarks.peers.child import ROOT
from benchmarks.peers.environment import cache_folder
from benchmarks.peers.page import CHART, RECORD, SUMMARY, page
from benchmarks.peers.record import Record
from benchmarks.peers.summary import summary
from benchmarks.peers.table import table
from benchmarks.peers.turns import shorten
from benchmarks.peers.work import WORKS, tasks_of

PAGE = "benchmarks.md"


def main() -> int:
    """Returns 0; whether the bars are met stands in the table."""
    options = _options()
    # The blocks that kill what was started are left as on Ctrl-C.
    signal.signal(signal.SIGTERM, _leave)
    if options.record:
        record = Record.read(options.record)
    else:
        works = frozenset(options.work)
        record = Campaign(
            peers=[peer for peer in PEERS if not options.only or peer.name in options.only],
            tasks=tasks_of(works),
            cache=cache_folder(),
            quick=options.quick,
            short_turns=shorten(),
        ).run()
    print(table(record))
    if options.json:
        record.write(options.json)
        print(f"\nwritten to {options.json}")
    partial = options.quick or options.only or options.work
    out = options.out or (None if partial else ROOT / "docs")
    if out:
        write(record, out)
        print(f"\nwritten to {out}")
    return 0


def write(record: Record, out: Path) -> None:
    """Write the page, its chart, the chart of the README, and the record behind them."""
    out.mkdir(parents=True, exist_ok=True)
    (out / PAGE).write_text(page(record))
    (out / CHART).write_text(chart(record))
    (out / SUMMARY).write_text(summary(record))
    record.write(out / RECORD)


def _options() -> argparse.Namespace:
    works = "\n".join(f"  {name:<3} {text}" for name, text in WORKS.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.peers",
        description="Keyrun beside its peers, on the same work in one run. Each peer is installed "
        "in an environment of its own.",
        epilog=f"work:\n{works}\n\npeers: {', '.join(NAMES)}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="see whether it works, in a minute")
    parser.add_argument(
        "--only", action="append", default=[], choices=NAMES, metavar="PEER", help="this peer"
    )
    parser.add_argument(
        "--work", action="append", default=[], choices=WORKS, metavar="WORK", help="this work"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found to FILE")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write the page there; a full run: to docs/"
    )
    parser.add_argument(
        "--record", type=Path, metavar="FILE", help="measure nothing, take what was found before"
    )
    return parser.parse_args()


def _leave(number: int, _: object) -> NoReturn:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
