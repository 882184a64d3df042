"""The screen: how wide it is, and colours only if it is a terminal.

Where the output is no terminal and COLUMNS is not set nothing is cut, so that what comes after
the pipe gets all of it.
"""

import os
import shutil
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

GAP = 2
UNLIMITED = 10_000
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
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


def cell(value: object) -> "Text":
    """A value as it stands in a table."""
    from rich.text import Text

    text = "" if value is None else visible(value)
    return Text(text, style=_STYLES.get(text, "") if type(value) is not str else "")


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
