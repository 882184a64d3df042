"""The comparison: figures of a record as ratios to Keyrun's, and the bars that it must reach."""

from typing import Literal

import attrs

from benchmarks.figure import Bar
from benchmarks.peers.catalogue import PEERS, keyrun_for
from benchmarks.peers.peer import Peer
from benchmarks.peers.record import Record
from benchmarks.peers.work import LINES, Line

State = Literal["measured", "unlike", "lacking", "failed", "missing", "absent"]

BARS = {
    "W1-256": Bar(value=20),
    "W1-64": Bar(value=15),
    "W2": Bar(value=0.5, better="lower"),
    "W3": Bar(value=15),
    "W3-runs": Bar(value=15),
    "W4": Bar(value=5),
    "W4-again": Bar(value=0, better="lower", absolute=True),
    "W5": Bar(value=1, better="lower"),
    "W5-disk": Bar(value=2000, better="lower", absolute=True),
}
"""What Keyrun must reach: as a ratio to the best peer, or by itself."""

BLEMISHES = {
    "disordered": "{count} keys out of order",
    "lost": "{count} runs lost",
    "again": "{count} finished steps ran again",
}
"""Facts that ought to be zero."""


@attrs.frozen(kw_only=True)
class Cell:
    """A figure of one peer, or why there is none."""

    peer: str
    title: str
    state: State
    value: float | None = None
    ratio: float | None = None
    """To Keyrun, which is 1."""
    why: str = ""
    """Why there is no figure, or why it is not compared, or what went wrong while it was taken."""


@attrs.frozen(kw_only=True)
class Verdict:
    """A bar, what was reached and beside whom."""

    line: Line
    bar: Bar
    reached: float
    best: str

    @property
    def met(self) -> bool:
        """Whether it was."""
        if self.bar.better == "higher":
            return self.reached >= self.bar.value
        return self.reached <= self.bar.value


def lines(record: Record) -> list[Line]:
    """The lines that have anything to show."""
    return [line for line in LINES if line.task in record.facts]


def cells(record: Record, line: Line) -> list[Cell]:
    """Keyrun first, then its peers in the order of the catalogue; those that the line is not for
    are left out."""
    own = keyrun_for(line.task)
    base = record.figure(line, own.name)
    found = [_cell(record, line, own, base)]
    theirs = attrs.evolve(line, task=line.beside) if line.beside else line
    for peer in PEERS:
        if not _stranger(peer, line) and _took_part(record, peer):
            found.append(_cell(record, theirs, peer, base))
    return found


def verdicts(record: Record) -> list[Verdict]:
    """The bars of the lines that were measured."""
    found = []
    for line in lines(record):
        bar = BARS.get(line.name)
        own = cells(record, line)[0]
        if bar is None or own.value is None:
            continue
        if bar.absolute:
            found.append(Verdict(line=line, bar=bar, reached=own.value, best=""))
            continue
        best = best_rival(record, line)
        if best is not None:
            assert best.value is not None
            found.append(
                Verdict(line=line, bar=bar, reached=own.value / best.value, best=best.title)
            )
    return found


def best_rival(record: Record, line: Line) -> Cell | None:
    """Return the best figure of a peer, or None if no peer has one that can be compared."""
    rivals = [cell for cell in cells(record, line)[1:] if cell.state == "measured" and cell.value]
    ordered = sorted(rivals, key=lambda cell: cell.value or 0.0)
    if not ordered:
        return None
    return ordered[-1] if line.better == "higher" else ordered[0]


def _stranger(peer: Peer, line: Line) -> bool:
    """Whether a peer is of the other kind: actors among durable ones, or the other way round."""
    return (peer.durability == "none: in memory") is not (line.work == "A")


def _took_part(record: Record, peer: Peer) -> bool:
    return peer.name in record.versions or peer.name in record.missing


def _cell(record: Record, line: Line, peer: Peer, base: float | None) -> Cell:
    value = record.figure(line, peer.name)
    state: State = "absent"
    why = ""
    if peer.name in record.missing:
        state, why = "missing", f"missing: {record.missing[peer.name]}"
    elif line.task in peer.lacks:
        state, why = "lacking", peer.lacks[line.task]
    elif peer.name in record.failed.get(line.task, {}):
        state, why = "failed", record.failed[line.task][peer.name]
    elif value is not None:
        state = "unlike" if line.task in peer.unlike else "measured"
        why = peer.unlike.get(line.task) or _blemishes(record, line, peer)
    ratio = value / base if value is not None and base else None
    return Cell(peer=peer.name, title=peer.title, state=state, value=value, ratio=ratio, why=why)


def _blemishes(record: Record, line: Line, peer: Peer) -> str:
    """What was done wrongly in a task that was done."""
    said = []
    for fact, text in BLEMISHES.items():
        if line.fact != fact and (count := record.fact(line.task, peer.name, fact)):
            said.append(text.format(count=round(count)))
    # Rates do not depend on the size, but memory does: the figure is then the least that it can be.
    asleep = record.fact(line.task, peer.name, "asleep")
    own = record.fact(line.task, keyrun_for(line.task).name, "asleep")
    if asleep and own and asleep < own:
        said.append(f"with {asleep:,.0f} asleep instead of {own:,.0f}")
    return ", ".join(said)
