"""Evidence: an append-only file in which the process under test writes what it does, as it does it.

The process writes each line with one system call, so a kill right after the call loses nothing. The
file does not depend on the store. The order of the lines is the order of what happened, over all
processes that wrote to the file one after the other.
"""

import fcntl
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import NamedTuple


class Mark(StrEnum):
    """The kind of a line. Each comment names the fields that follow."""

    LIFE = "L"
    """A process begins: its number, from 1."""
    READY = "O"
    """The runtime is open."""
    SUBMIT = "Q"
    """`submit` was called for a run that begins later: run."""
    ACKNOWLEDGED = "A"
    """`submit` returned: run, 1 if newly submitted."""
    BEGUN = "B"
    """A step began: run, step, attempt."""
    LEFT = "E"
    """A step returned or raised: run, step, attempt."""
    HOOK = "H"
    """The hook was called: run, state, generation."""
    RESULT = "V"
    """`result()` returned or raised: run, state."""
    CANCEL = "C"
    """`cancel` was called: run."""
    CANCELLED = "c"
    """`cancel` returned: run, 1 for True."""
    PAUSE = "P"
    """`pause` was called: run, 1 for the whole key."""
    PAUSED = "p"
    """`pause` returned: run, 1 for the whole key, 1 for True."""
    RESUME = "R"
    """`resume` was called: run, 1 for the whole key."""
    RESUMED = "r"
    """`resume` returned: run, 1 for the whole key."""
    REDRIVE = "X"
    """`redrive` was called: run."""
    COMMITS = "S"
    """Commits and records since the process began."""
    STOPPED = "T"
    """The process was asked to stop, and has left the runtime."""
    DONE = "D"
    """Everything has ended, and the runtime was left."""


_MARKS = {str(mark): mark for mark in Mark}


class Line(NamedTuple):
    """One line: its kind, its time on the monotonic clock of the machine, and its fields."""

    mark: Mark
    at: float
    fields: tuple[str, ...]

    @property
    def run(self) -> int:
        """Return the number of the run that the line is about."""
        return int(self.fields[0])


class Log:
    """Writes the file. One process at a time has it open. Others wait until that process has
    ended."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, mark: Mark, *fields: object) -> None:
        """Append one line."""
        text = " ".join([mark, f"{monotonic():.6f}", *map(str, fields)])
        os.write(self._file, text.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class Tail:
    """Reads the lines that were added since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> Iterator[Line]:
        """Yield the new lines. A line that a kill cut short is left out."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            data = file.read()
        whole = data.rfind(b"\n") + 1
        self._at += whole
        for text in data[:whole].decode(errors="replace").splitlines():
            line = _parse(text)
            if line is not None:
                yield line


def _parse(text: str) -> Line | None:
    mark, *fields = text.split(" ")
    if mark not in _MARKS or not fields:
        return None
    try:
        return Line(_MARKS[mark], float(fields[0]), tuple(fields[1:]))
    except ValueError:
        return None
