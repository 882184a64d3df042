"""Evidence: an append-only file in which the process under test writes what it does, as it does it.

Each line is written with one call to the system, so it is there when the process is killed a
moment later; what is in it owes nothing to the store. The order of the lines is the order in which
things happened, over all processes that wrote into the file one after the other.
"""

import fcntl
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from time import monotonic
from typing import NamedTuple


class Mark(StrEnum):
    """What a line says; the fields that follow are named in the comment."""

    LIFE = "L"
    """A process begins: its number, from 1."""
    READY = "O"
    """The runtime is open."""
    SUBMIT = "Q"
    """A submit of a run that is to begin later: run."""
    ACKNOWLEDGED = "A"
    """A submit returned: run, 1 if newly submitted."""
    BEGUN = "B"
    """A step began: run, step, attempt."""
    LEFT = "E"
    """It returned or raised: run, step, attempt."""
    TOLD = "H"
    """The hook was called: run, state, generation."""
    RESULT = "V"
    """`result()` answered: run, state."""
    CANCEL = "C"
    """A cancel is asked for: run."""
    CANCELLED = "c"
    """It was answered: run, 1 for True."""
    PAUSE = "P"
    """A pause is asked for: run, 1 for the whole key."""
    PAUSED = "p"
    """It was answered: run, 1 for the whole key, 1 for True."""
    RESUME = "R"
    """A resume is asked for: run, 1 for the whole key."""
    RESUMED = "r"
    """It was answered: run, 1 for the whole key."""
    REDRIVE = "X"
    """A redrive is asked for: run."""
    COMMITS = "S"
    """Commits and records since the process began."""
    STOPPED = "T"
    """The process was asked to stop, and has left the runtime."""
    DONE = "D"
    """Everything has ended, and the runtime was left."""


_MARKS = {str(mark): mark for mark in Mark}


class Line(NamedTuple):
    """One line: what, when on the machine's clock that does not jump, and its fields."""

    mark: Mark
    at: float
    fields: tuple[str, ...]

    @property
    def run(self) -> int:
        """The number of the run that it is about."""
        return int(self.fields[0])


class Log:
    """The writing side: one process at a time, others wait until it has ended."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, mark: Mark, *fields: object) -> None:
        """Append one line."""
        text = " ".join([mark, f"{monotonic():.6f}", *map(str, fields)])
        os.write(self._file, text.encode() + b"\n")

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._file)


class Tail:
    """The reading side: gives what was added since it last looked."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> Iterator[Line]:
        """Whole lines that are new. One that a kill cut short is no evidence and left out."""
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
