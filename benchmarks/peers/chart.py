"""The chart: a panel per line with a bar per peer, as SVG that needs nothing to be shown."""

from xml.sax.saxutils import escape

from benchmarks.peers.comparison import Cell, cells, lines
from benchmarks.peers.record import Record
from benchmarks.peers.work import Line
from benchmarks.report import number

SHOWN = ("W1-256", "W1-64", "W2", "W3", "W4", "W5", "W5-disk", "A1")
COLUMNS = 2
PANEL_WIDTH = 460
MARGIN = 24
LABEL_WIDTH = 130
VALUE_WIDTH = 90
HEADER = 44
BAR = 16
PITCH = 22
OURS, THEIRS, INK, FAINT = "#0b6e4f", "#9fb3c8", "#1f2933", "#616e7c"
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"


def chart(record: Record) -> str:
    """The whole picture."""
    panels = []
    for line in lines(record):
        shown = [cell for cell in cells(record, line) if cell.value is not None]
        if line.name in SHOWN and len(shown) > 1:
            panels.append((line, shown))
    parts, top = [], MARGIN
    for start in range(0, len(panels), COLUMNS):
        row = panels[start : start + COLUMNS]
        for column, (line, shown) in enumerate(row):
            left = MARGIN + column * (PANEL_WIDTH + MARGIN)
            parts += _panel(line, shown, left, top)
        top += HEADER + PITCH * max(len(shown) for _, shown in row) + MARGIN
    width = MARGIN + COLUMNS * (PANEL_WIDTH + MARGIN)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}"'
            f' viewBox="0 0 {width} {top}" font-family="{FONT}" font-size="12" role="img"'
            ' aria-label="Keyrun beside its peers">',
            f'<rect width="{width}" height="{top}" fill="#ffffff"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(line: Line, shown: list[Cell], left: int, top: int) -> list[str]:
    most = max(cell.value or 0.0 for cell in shown) or 1.0
    room = PANEL_WIDTH - LABEL_WIDTH - VALUE_WIDTH
    parts = [
        _text(left, top + 12, line.title, color=INK, weight=600),
        _text(left, top + 29, f"{line.unit}, {line.better} is better", color=FAINT),
    ]
    for at, cell in enumerate(shown):
        y = top + HEADER + at * PITCH
        ours = cell.title.startswith("Keyrun")
        length = max(1.0, (cell.value or 0.0) / most * room)
        label = number(cell.value or 0.0) + ("*" if cell.why else "")
        parts += [
            _text(
                left + LABEL_WIDTH - 8,
                y + 12,
                cell.title,
                color=INK,
                anchor="end",
                weight=600 if ours else 400,
            ),
            f'<rect x="{left + LABEL_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR}" rx="2"'
            f' fill="{OURS if ours else THEIRS}"/>',
            _text(left + LABEL_WIDTH + length + 6, y + 12, label, color=INK),
        ]
    return parts


def _text(
    x: float, y: float, text: str, *, color: str, anchor: str = "start", weight: int = 400
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" fill="{color}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{escape(text)}</text>'
    )
