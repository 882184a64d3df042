"""Tables that fit the screen, printed while what stands in them is being read.

How wide the columns are is decided when the first rows are known. What comes later and does not
fit is cut, or wrapped if it is to be whole; where the output is no terminal it just sticks out.
"""

import os
import sys
from collections.abc import Iterable

import attrs

from keyrun.cli.screen import UNLIMITED, visible, width

GAP = 2
WHOLE = 27
"""So much of a column that is to be whole stands on one line, also on a narrow screen: a run id
that Keyrun made has 22 letters and those of its number."""
LOOK_AT = 500
"""Rows that decide how wide the columns are."""

_BOLD = "1"
_STYLES = {
    "succeeded": "32",
    "failed": "31",
    "quarantined": "1;31",
    "cancelled": "33",
    "cancelling": "33",
    "paused": "33",
    "running": "36",
    "waiting": "34",
}


@attrs.frozen
class Column:
    """A column. It is at least `least` wide and gets more if there is room; on a narrow screen
    those with the lowest `worth` are left out."""

    title: str
    least: int
    worth: int = 9
    whole: bool = False
    """Wrapped rather than cut: what somebody will want to copy."""


class Table:
    """A table with a line of titles; give it rows, and end it."""

    def __init__(self, columns: list[Column]) -> None:
        terminal = sys.stdout.isatty()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
        self._columns = columns
        self._room = width(terminal)
        self._coloured = terminal and not plain
        self._first: list[list[tuple[str, str]]] = []
        self._widths: dict[int, int] | None = None

    def add(self, row: Iterable[object]) -> None:
        """Print a row, or keep it until enough are known."""
        cells = [_cell(value) for value in row]
        if self._widths is not None:
            self._print(cells)
            return
        self._first.append(cells)
        if len(self._first) == LOOK_AT:
            self._begin(more=True)

    def end(self) -> None:
        """There are no more rows."""
        if self._widths is None:
            self._begin(more=False)

    def _begin(self, *, more: bool) -> None:
        needs = [
            max((_length(cells[at][0]) for cells in self._first), default=0)
            for at in range(len(self._columns))
        ]
        if more:
            # Nobody knows whether a column stays empty.
            needs = [max(need, 1) for need in needs]
        self._widths = fit(self._columns, needs, self._room)
        self._print([(column.title, _BOLD) for column in self._columns])
        for cells in self._first:
            self._print(cells)
        self._first = []

    def _print(self, cells: list[tuple[str, str]]) -> None:
        assert self._widths is not None
        rest: dict[int, str] = {}
        parts = []
        for at, size in self._widths.items():
            text, style = cells[at]
            if len(text) > size or not text.isascii():
                text, rest[at] = self._cut(at, text, size)
            padding = " " * (size - _length(text))
            parts.append(
                (f"\x1b[{style}m{text}\x1b[0m" if style and self._coloured else text) + padding
            )
        print((" " * GAP).join(parts).rstrip())
        if any(rest.values()):
            self._print([(rest.get(at, ""), style) for at, (_, style) in enumerate(cells)])

    def _cut(self, at: int, text: str, size: int) -> tuple[str, str]:
        """What fits of a text, and what stands on the next line."""
        if _length(text) <= size or self._room == UNLIMITED:
            return text, ""
        whole = self._columns[at].whole
        room, end = (size, 0) if whole else (size - 1, 0)
        while end < len(text) and _length(text[: end + 1]) <= room:
            end += 1
        return (text[:end], text[end:]) if whole else (text[:end] + "\N{HORIZONTAL ELLIPSIS}", "")


def table(columns: list[Column], rows: Iterable[Iterable[object]]) -> None:
    """Print a table of rows that are at hand."""
    drawn = Table(columns)
    for row in rows:
        drawn.add(row)
    drawn.end()


def _cell(value: object) -> tuple[str, str]:
    """A value as it stands in a table, and how it looks."""
    if value is None:
        return "", ""
    text = visible(value)
    return text, "" if type(value) is str else _STYLES.get(text, "")


def _length(text: str) -> int:
    """How many places on the screen a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def fit(columns: list[Column], needs: list[int], room: int) -> dict[int, int]:
    """How wide each column is that has something in it and that there is room for: first the
    least, then what is left goes to those that need more, the most modest first."""
    needs = [need and max(need, len(columns[at].title)) for at, need in enumerate(needs)]
    widths = {
        at: min(needs[at], WHOLE if column.whole else max(column.least, len(column.title)))
        for at, column in enumerate(columns)
        if needs[at]
    }
    while len(widths) > 1 and sum(widths.values()) + GAP * (len(widths) - 1) > room:
        del widths[min(widths, key=lambda at: (columns[at].worth, -at))]
    left = max(0, room - sum(widths.values()) - GAP * (len(widths) - 1))
    wanting = sorted((needs[at] - size, at) for at, size in widths.items())
    for place, (more, at) in enumerate(wanting):
        given = min(more, left // (len(wanting) - place))
        widths[at] += given
        left -= given
    return widths
