"""The screen: tables that fit it, colours only if it is a terminal.

Where the output is no terminal and COLUMNS is not set nothing is cut, so that what comes after
the pipe gets all of it.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

import attrs

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

GAP = 2
UNLIMITED = 10_000
WHOLE = 24
"""So much of a column that is to be whole stands on one line, also on a narrow screen: a run id
that Keyrun made has 22 letters."""

_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "quarantined": "bold red",
    "cancelled": "yellow",
    "cancelling": "yellow",
    "paused": "yellow",
    "running": "cyan",
    "waiting": "blue",
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


def console(stream: TextIO | None = None) -> "Console":
    """Where to draw."""
    from rich.console import Console

    stream = sys.stdout if stream is None else stream
    terminal = stream.isatty()
    coloured = terminal and not os.environ.get("NO_COLOR")
    return Console(
        file=stream,
        force_terminal=terminal,
        color_system="auto" if coloured else None,
        width=width(terminal),
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=False,
    )


def width(terminal: bool) -> int:
    """How many columns there are."""
    if not terminal and not os.environ.get("COLUMNS", "").isdecimal():
        return UNLIMITED
    return max(20, shutil.get_terminal_size().columns)


def visible(text: object) -> str:
    """Text on one line, in which nothing can move the cursor or change a colour."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in str(text))


def cell(value: object) -> "Text":
    """A value as it stands in a table."""
    from rich.text import Text

    text = "" if value is None else visible(value)
    return Text(text, style=_STYLES.get(text, "") if type(value) is not str else "")


def table(columns: list[Column], rows: Iterable[Iterable[object]]) -> None:
    """Print a table, with a line of titles."""
    from rich.table import Table

    screen = console()
    body = [[cell(value) for value in row] for row in rows]
    needs = [max((row[at].cell_len for row in body), default=0) for at in range(len(columns))]
    widths = _fit(columns, needs, screen.width)
    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for at, size in widths.items():
        drawn.add_column(
            columns[at].title,
            width=size,
            no_wrap=not columns[at].whole,
            overflow="fold" if columns[at].whole else "ellipsis",
        )
    for row in body:
        drawn.add_row(*(row[at] for at in widths))
    _print(screen, drawn)


def _fit(columns: list[Column], needs: list[int], room: int) -> dict[int, int]:
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


def _print(screen: "Console", drawn: "Table") -> None:
    with screen.capture() as captured:
        screen.print(drawn)
    for line in captured.get().splitlines():
        print(line.rstrip())


def sheet(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one under the other; those without a value are left out."""
    from rich.table import Table

    drawn = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=False)
    drawn.add_column(style="bold", no_wrap=True)
    drawn.add_column(overflow="fold")
    for name, value in fields:
        if value not in (None, "", (), {}):
            drawn.add_row(name, cell(value))
    _print(console(), drawn)


def say(text: str) -> None:
    """A remark, where it is not in the way of the output."""
    print(text, file=sys.stderr, flush=True)
