"""The chart of the README: five figures of Keyrun, each beside the best other system."""

from xml.sax.saxutils import escape

from benchmarks.peers.comparison import Cell, best_rival, cells, lines
from benchmarks.peers.record import Record
from benchmarks.peers.work import Line
from benchmarks.report import number

SHOWN = {
    "W1-64": ("Steps per second", "64 runs at a time, each step is on disk before the next one"),
    "W2": ("Milliseconds for a run of three steps", "from submit to result, one run at a time"),
    "W3-runs": ("Messages per second", "to 1,000 keys, handled in order for each key"),
    "W4": ("Runs finished per second after kill -9", "including the start of the new process"),
    "W5": ("Megabytes of memory for sleeping runs", "10,000 runs that sleep for an hour"),
}
"""The lines of the table that the chart shows, with words that need no other page."""

WIDTH = 760
MARGIN = 20
NAME_WIDTH = 150
VALUE_WIDTH = 290
HEADER = 46
BAR = 16
PITCH = 22
GAP = 18
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
# The card has its own background, so that it can be read whatever the page around it looks like.
STYLE = """
.card { fill: #ffffff; stroke: #d0d7de; } .ink { fill: #1f2328; } .faint { fill: #59636e; }
.ours { fill: #1a7f37; } .theirs { fill: #9aa4af; }
@media (prefers-color-scheme: dark) {
.card { fill: #0d1117; stroke: #3d444d; } .ink { fill: #f0f6fc; } .faint { fill: #9198a1; }
.ours { fill: #3fb950; } .theirs { fill: #656c76; }
}
"""


def summary(record: Record) -> str:
    """Return the chart as SVG."""
    parts: list[str] = []
    top = MARGIN
    for line in lines(record):
        rival = best_rival(record, line)
        own = cells(record, line)[0]
        if line.name in SHOWN and own.value and rival is not None:
            parts += _panel(line, own, rival, top)
            top += HEADER + 2 * PITCH + GAP
    height = top + MARGIN - GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}"'
            f' viewBox="0 0 {WIDTH} {height}" font-family="{FONT}" font-size="13" role="img"'
            ' aria-label="Keyrun beside the best other system">',
            f"<style>{STYLE}</style>",
            f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}"'
            ' rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _panel(line: Line, own: Cell, rival: Cell, top: int) -> list[str]:
    title, detail = SHOWN[line.name]
    most = max(own.value or 0.0, rival.value or 0.0)
    room = WIDTH - 2 * MARGIN - NAME_WIDTH - VALUE_WIDTH
    parts = [
        _text(MARGIN, top + 13, title, "ink", weight=600),
        _text(MARGIN, top + 31, f"{detail}; {line.better} is better", "faint"),
    ]
    for at, cell in enumerate((own, rival)):
        y = top + HEADER + at * PITCH
        left = MARGIN + NAME_WIDTH
        length = max(1.0, (cell.value or 0.0) / most * room)
        value = number(cell.value or 0.0) + (f" ({cell.why})" if cell.why else "")
        bold = 600 if cell is own else 400
        parts += [
            _text(left - 8, y + 13, cell.title, "ink", anchor="end", weight=bold),
            f'<rect class="{"ours" if cell is own else "theirs"}" x="{left}" y="{y}"'
            f' width="{length:.1f}" height="{BAR}" rx="2"/>',
            _text(left + length + 6, y + 13, value, "ink", weight=bold),
        ]
    return parts


def _text(
    x: float, y: float, text: str, kind: str, *, anchor: str = "start", weight: int = 400
) -> str:
    return (
        f'<text class="{kind}" x="{x:.1f}" y="{y}" text-anchor="{anchor}"'
        f' font-weight="{weight}">{escape(text)}</text>'
    )
