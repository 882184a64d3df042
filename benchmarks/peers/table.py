"""The table on the screen: every figure with its ratio to Keyrun's, then the bars."""

from benchmarks.peers.comparison import Cell, Verdict, cells, lines, verdicts
from benchmarks.peers.record import Record
from benchmarks.report import aligned, number


def table(record: Record) -> str:
    """All of it."""
    rows = [("", "", "figure", "unit", "Keyrun = 1", "")]
    for line in lines(record):
        for at, cell in enumerate(cells(record, line)):
            name = f"{line.name}  {line.title}" if at == 0 else ""
            rows.append((name, cell.title, figure(cell), line.unit, ratio(cell), cell.why))
    text = aligned(rows, right={2, 4})
    judged = verdicts(record)
    return f"{text}\n\n{bars(judged)}" if judged else text


def bars(judged: list[Verdict]) -> str:
    """What Keyrun must reach, and whether it does."""
    rows = [("bar", "", "must be", "is", "beside", "")]
    for verdict in judged:
        rows.append(
            (
                verdict.line.name,
                verdict.line.title,
                str(verdict.bar),
                number(verdict.reached),
                verdict.best or verdict.line.unit,
                "ok" if verdict.met else "MISSED",
            )
        )
    return aligned(rows, right={3})


def figure(cell: Cell) -> str:
    """The figure, or a dash."""
    return "-" if cell.value is None else number(cell.value)


def ratio(cell: Cell) -> str:
    """The ratio, if it means anything."""
    if cell.ratio is None or cell.state == "unlike":
        return ""
    return f"{cell.ratio:.3f}" if cell.ratio < 0.1 else f"{cell.ratio:.2f}"
