"""The screen: its width, colours, and text that is wrapped to fit.

Colours and widths are for terminals. If the output is not a terminal, lines have no limit, so that
`grep` finds every value on one line. COLUMNS is the width of a terminal: pytest-xdist and CI
services set it for processes whose output is a pipe.
"""

import os
import shlex
import sys
from collections.abc import Iterable
from typing import TextIO

import attrs

GAP = 2
"""Spaces between two columns."""
UNLIMITED = 10_000
NARROWEST = 20
DEFAULT_WIDTH = 80

BOLD = "1"
DIM = "2"
_STATE_STYLES = {
    "succeeded": "32",
    "failed": "31",
    "quarantined": "1;31",
    "cancelled": "33",
    "cancelling": "33",
    "paused": "33",
    "running": "36",
    "waiting": "34",
}


@attrs.frozen(kw_only=True)
class Screen:
    """An output stream with its width."""

    stream: TextIO
    width: int
    terminal: bool
    coloured: bool

    @classmethod
    def of(cls, stream: TextIO) -> "Screen":
        """Return the screen that `stream` writes to."""
        terminal = stream.isatty()
        plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") in ("dumb", "unknown")
        width = max(NARROWEST, _columns_of(stream)) if terminal else UNLIMITED
        return cls(stream=stream, width=width, terminal=terminal, coloured=terminal and not plain)

    @property
    def limited(self) -> bool:
        """Return whether lines have to fit a width."""
        return self.width != UNLIMITED

    def styled(self, text: str, style: str) -> str:
        """Return `text` in a style, an ANSI code such as "1;31", if the screen has colours."""
        return f"\x1b[{style}m{text}\x1b[0m" if style and self.coloured else text

    def print(self, text: str, style: str = "", *, hang: str = "") -> None:
        """Print a text of one line, wrapped between words. Later lines begin with `hang`.

        A word that is longer than the screen is not broken, so that it can be copied. Letters that
        would move the cursor are escaped.
        """
        for line in self.wrap(visible(text), hang=hang):
            print(self.styled(line, style), file=self.stream, flush=True)

    def wrap(self, text: str, *, hang: str = "") -> list[str]:
        """Return the lines that `print` writes."""
        if not self.limited:
            return [text]
        indent = text[: len(text) - len(text.lstrip(" "))]
        first, *rest = wrap(text.lstrip(" "), self.width - len(indent)) or [""]
        if rest:
            rest = wrap(" ".join(rest), self.width - len(indent + hang))
        return [indent + first, *(indent + hang + line for line in rest)]


def _columns_of(terminal: TextIO) -> int:
    """Return the width of a terminal: COLUMNS if it is set, or what the terminal says."""
    asked = os.environ.get("COLUMNS", "")
    if asked.isdecimal() and int(asked):
        return int(asked)
    try:
        return os.get_terminal_size(terminal.fileno()).columns or DEFAULT_WIDTH
    except OSError:
        return DEFAULT_WIDTH


def wrap(text: str, room: int) -> list[str]:
    """Return `text` as lines of at most `room` columns, broken at spaces. Longer words stay whole.

    Spaces inside of a line are kept.
    """
    lines: list[str] = []
    line = ""
    for word in text.split(" "):
        longer = f"{line} {word}" if line else word
        if line and columns(longer) > room:
            lines.append(line.rstrip(" "))
            line = word
        else:
            line = longer
    if line.strip(" "):
        lines.append(line.rstrip(" "))
    return lines


def fold(text: str, room: int) -> list[str]:
    """Return `text` as lines of at most `room` columns, broken anywhere, with nothing left out."""
    if columns(text) <= room:
        return [text]
    lines, start, used = [], 0, 0
    for at, letter in enumerate(text):
        size = columns(letter)
        if used + size > room and at > start:
            lines.append(text[start:at])
            start, used = at, 0
        used += size
    return [*lines, text[start:]]


def columns(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def visible(text: object) -> str:
    """Return a text on one line, with escapes for letters that would move the cursor, begin a
    control sequence, or change the direction of the text."""
    shown = str(text)
    if shown.isprintable():
        return shown
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in shown)


def print_block(text: str, stream: TextIO | None = None) -> None:
    """Print a text of several lines, such as a traceback, as it is, with escapes for letters that
    would control the terminal."""
    for line in text.expandtabs().split("\n"):
        print(visible(line), file=stream)


def shell_word(word: object) -> str:
    """Return a word of a command to paste. Letters that would control the terminal are escaped in
    the way of bash."""
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    letters = (
        f"\\{letter}"
        if letter in "\\'"
        else letter
        if letter.isprintable()
        else f"\\U{ord(letter):08x}"
        for letter in text
    )
    return f"$'{''.join(letters)}'"


def state_style(value: object) -> str:
    """Return the style of a state; of other values, and of plain strings, none."""
    return "" if type(value) is str else _STATE_STYLES.get(str(value), "")


def print_fields(fields: Iterable[tuple[str, object]]) -> None:
    """Print names and values in two columns. Fields without a value are left out."""
    screen = Screen.of(sys.stdout)
    shown = [(name, value) for name, value in fields if value not in (None, "", (), {})]
    size = max((len(name) for name, _ in shown), default=0)
    room = screen.width - size - GAP
    for name, value in shown:
        style = state_style(value)
        text = visible(value)
        lines = [part for line in wrap(text, room) for part in fold(line, room)]
        for at, line in enumerate(lines if screen.limited else [text]):
            title = screen.styled(name, BOLD) + " " * (size - len(name)) if not at else " " * size
            print((title + " " * GAP + screen.styled(line, style)).rstrip())


def say(text: str, *, hang: str = "") -> None:
    """Print a text of one line on stdout, wrapped at the width of the terminal."""
    Screen.of(sys.stdout).print(text, hang=hang)


def note(text: str, *, hang: str = "") -> None:
    """Print a remark on stderr, wrapped at the width of the terminal. Stdout is for answers."""
    Screen.of(sys.stderr).print(text, hang=hang)


class ProgressLine:
    """One line on a terminal that is replaced. Nothing is shown anywhere else."""

    def __init__(self) -> None:
        self._screen = Screen.of(sys.stderr)
        self._shown = False

    def show(self, text: str) -> None:
        """Replace the line."""
        if self._screen.terminal:
            shown = fold(visible(text), self._screen.width - 1)[0]
            print(f"\r\x1b[K{shown}", end="", file=sys.stderr, flush=True)
            self._shown = True

    def clear(self) -> None:
        """Remove the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._shown = False
