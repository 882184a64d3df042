"""The page of the documentation that shows the latest record, written by the command itself."""

from collections.abc import Iterator
from pathlib import Path
from string import Template

from benchmarks.peers.catalogue import KEYRUN, KEYRUN_ACTORS, PEERS
from benchmarks.peers.comparison import Cell, cells, lines, verdicts
from benchmarks.peers.peer import Peer
from benchmarks.peers.record import Record
from benchmarks.peers.table import figure, ratio
from benchmarks.peers.work import LINES, TASKS, Line
from benchmarks.report import number

CHART = "benchmarks.svg"
SUMMARY = "summary.svg"
RECORD = "benchmarks.json"

TEMPLATE = Path(__file__).parent / "page.md"


def page(record: Record) -> str:
    """The whole page."""
    return Template(TEMPLATE.read_text()).substitute(
        measured_on=_measured_on(record),
        figures="\n\n".join(_tables(record)),
        bars=_bars(record),
        peers=_peers(record),
    )


def _measured_on(record: Record) -> str:
    machine = record.machine
    where = (
        "in namespaces with only the loopback interface"
        if record.isolated
        else "bound to 127.0.0.1"
    )
    told = (
        f"Measured on {machine['date'][:10]} on {machine['cores']} cores, {machine['system']}, "
        f"Python {machine['python']}, in {record.seconds / 60:.0f} minutes, each system "
        f"{where}."
    )
    if record.sync_ms:
        least, most = min(record.sync_ms), max(record.sync_ms)
        told += f" A write of 4 kB with its fsync took {number(least)} to {number(most)} ms."
    if record.load > record.machine["cores"] / 2:
        told += (
            f" Other work ran on the machine (load {record.load:.1f} before the start), so "
            "these are figures of a busy machine. On a quiet one they differ."
        )
    if record.short_turns:
        told += (
            " Every process asked the scheduler for short time slices, so that other work on the "
            "machine delays it less."
        )
    return f"{told} **It was a quick run: its figures mean nothing.**" if record.quick else told


def _tables(record: Record) -> Iterator[str]:
    for actors in (False, True):
        shown = [line for line in lines(record) if (line.work == "A") is actors]
        if shown:
            yield _table(record, shown)
            if notes := _notes(record, shown):
                yield "\n".join(notes)


def _table(record: Record, shown: list[Line]) -> str:
    columns = [cell.title for cell in cells(record, shown[0])]
    rows = [f"| | | {' | '.join(columns)} |", f"|---|---|{'---:|' * len(columns)}"]
    for line in shown:
        row = " | ".join(_told(cell) for cell in cells(record, line))
        rows.append(f"| {line.name.partition('-')[0]} | {line.title}, {line.unit} | {row} |")
    return "\n".join(rows)


def _told(cell: Cell) -> str:
    if cell.value is None:
        return {"lacking": "none", "failed": "failed"}.get(cell.state, "-")
    text = f"**{figure(cell)}**" if cell.title.startswith("Keyrun") else figure(cell)
    mark = "*" if cell.why else ""
    share = ratio(cell)
    return f"{text}{mark} ({share})" if share and cell.ratio != 1 else f"{text}{mark}"


def _notes(record: Record, shown: list[Line]) -> list[str]:
    said = [
        f"- {line.name}, {cell.title}: {cell.why}."
        for line in shown
        for cell in cells(record, line)
        if cell.why and cell.state != "missing"
    ]
    here = {cell.peer for cell in cells(record, shown[0])}
    return said + [
        f"- {peer.title} is missing: {record.missing[peer.name]}."
        for peer in PEERS
        if peer.name in record.missing and peer.name in here
    ]


def _bars(record: Record) -> str:
    rows = ["## Goals\n", "The goals of Keyrun, each compared with the best other system.\n"]
    rows += ["| | | goal | reached | compared with | |", "|---|---|---:|---:|---|---|"]
    for verdict in verdicts(record):
        told = f"{number(verdict.reached)}{'' if verdict.bar.absolute else 'x'}"
        rows.append(
            f"| {verdict.line.name} | {verdict.line.title} | {verdict.bar} | {told} | "
            f"{verdict.best or verdict.line.unit} | {'met' if verdict.met else '**missed**'} |"
        )
    return "\n".join(rows)


def _peers(record: Record) -> str:
    rows = ["## The systems\n", "| | versions | durability |", "|---|---|---|"]
    there = [peer for peer in (KEYRUN, KEYRUN_ACTORS, *PEERS) if peer.name in record.versions]
    for peer in there:
        versions = ", ".join(f"{name} {is_}" for name, is_ in record.versions[peer.name].items())
        rows.append(f"| {peer.title} | {versions or 'part of Python'} | {peer.durability} |")
    rows.append("")
    for peer in there:
        remarks = [*peer.remarks, *_sizes(peer)]
        if remarks:
            rows.append(f"- **{peer.title}**: {' '.join(remarks)}")
    return "\n".join(rows)


def _sizes(peer: Peer) -> list[str]:
    """What was asked of a peer in a smaller size than of Keyrun."""
    smaller = []
    for task in TASKS:
        sized = peer.task(task)
        work = next(line.work for line in LINES if line.task == task.name)
        for name in ("runs", "keys"):
            if getattr(sized, name) < getattr(task, name):
                smaller.append(f"{work} with {getattr(sized, name):,} {name}")
    return [f"It had less to do than Keyrun: {', '.join(smaller)}."] if smaller else []
