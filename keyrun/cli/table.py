"""Tables that fit the screen and are printed while their rows are read.

The first rows decide the widths of the columns. On a narrow screen the columns with the lowest
priority are left out. A value that is wider than its column continues on the next line. If the
output is not a terminal, the value is printed on one line.
"""

import sys
from collections.abc import Iterable
from itertools import zip_longest

import attrs

from keyrun.cli.screen import BOLD, GAP, Screen, columns, fold, state_style, visible, wrap

RUN_ID = 27
"""The least width of a column of run ids. An id that Keyrun made has 22 or 23 letters."""
SAMPLE = 500
"""Rows that decide the widths of the columns."""
ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@attrs.frozen
class Column:
    """A column. It is at least `least` wide, or as wide as its values if they are shorter."""

    title: str
    least: int
    priority: int = 9
    id: bool = False
    """Ids and names are always complete: they are broken anywhere, over any number of lines."""
    lines: int = 3
    """A text is broken between words, and cut after this number of lines."""


class Table:
    """A table with a line of titles. Add rows, then end it."""

    def __init__(self, layout: list[Column]) -> None:
        self._columns = layout
        self._screen = Screen.of(sys.stdout)
        self._sample: list[list[tuple[str, str]]] = []
        self._widths: dict[int, int] | None = None

    def add(self, row: Iterable[object]) -> None:
        """Print a row, or keep it until the widths are decided."""
        cells = [("" if value is None else visible(value), state_style(value)) for value in row]
        if self._widths is not None:
            self._print(cells)
            return
        self._sample.append(cells)
        if len(self._sample) == SAMPLE:
            self._begin(more=True)

    def end(self) -> None:
        """Print the rows that are left."""
        if self._widths is None:
            self._begin(more=False)

    def _begin(self, *, more: bool) -> None:
        needs = [
            max((columns(cells[at][0]) for cells in self._sample), default=0)
            for at in range(len(self._columns))
        ]
        if more:
            # A later row may have a value in a column that is empty so far.
            needs = [max(need, 1) for need in needs]
        self._widths = fit(self._columns, needs, self._screen.width)
        self._print([(column.title, BOLD) for column in self._columns])
        for cells in self._sample:
            self._print(cells)
        self._sample = []

    def _print(self, cells: list[tuple[str, str]]) -> None:
        assert self._widths is not None
        parts = [self._lines(at, cells[at][0], size) for at, size in self._widths.items()]
        styles = [cells[at][1] for at in self._widths]
        for line in zip_longest(*parts, fillvalue=""):
            shown = [
                self._screen.styled(text, style if text else "") + " " * (size - columns(text))
                for text, style, size in zip(line, styles, self._widths.values(), strict=True)
            ]
            print((" " * GAP).join(shown).rstrip())

    def _lines(self, at: int, text: str, size: int) -> list[str]:
        """Return a value as the lines of its column."""
        if (len(text) <= size and text.isascii()) or not self._screen.limited:
            return [text]
        column = self._columns[at]
        if column.id:
            return fold(text, size)
        lines = [part for line in wrap(text, size) for part in fold(line, size)]
        if len(lines) > column.lines:
            lines = lines[: column.lines]
            lines[-1] = fold(lines[-1], size - 1)[0] + ELLIPSIS
        return lines


def print_table(layout: list[Column], rows: Iterable[Iterable[object]]) -> None:
    """Print a table of rows."""
    table = Table(layout)
    for row in rows:
        table.add(row)
    table.end()


def fit(layout: list[Column], needs: list[int], room: int) -> dict[int, int]:
    """Return the widths of the columns that are shown, by position.

    Columns without a value are left out. So are the columns with the lowest priority until the
    others have room for their least width. The room that is left goes to the columns that need
    more, the smallest need first.
    """
    needs = [need and max(need, len(layout[at].title)) for at, need in enumerate(needs)]
    widths = {
        at: min(needs[at], max(column.least, len(column.title)))
        for at, column in enumerate(layout)
        if needs[at]
    }
    while len(widths) > 1 and sum(widths.values()) + GAP * (len(widths) - 1) > room:
        del widths[min(widths, key=lambda at: (layout[at].priority, -at))]
    left = max(0, room - sum(widths.values()) - GAP * (len(widths) - 1))
    wanting = sorted((needs[at] - size, at) for at, size in widths.items())
    for place, (more, at) in enumerate(wanting):
        given = min(more, left // (len(wanting) - place))
        widths[at] += given
        left -= given
    return widths
