"""The progress of the check: bars on a terminal, and a line every 2 seconds elsewhere."""

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

EVERY = 2.0
"""Seconds between plain lines."""


class SteadyConsole(Console):
    """A console that never hides the cursor. A process that is killed could not restore it."""

    def show_cursor(self, show: bool = True) -> bool:
        """Leave the cursor as it is."""
        return False


class Checking:
    """Show how much was checked, in 60 columns. Call it to report progress."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._printed = float("-inf")

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bars = Progress(
                TextColumn("{task.description}"),
                BarColumn(bar_width=14),
                TextColumn("{task.fields[count]}", justify="right"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bars.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, what: str, done: int, total: int | None) -> None:
        """Report that `done` of `total` were checked. None means that the total is not known."""
        new = what not in self._tasks
        count = "" if total is None else f"{done:,}"
        if self._bars is not None:
            if new:
                self._tasks[what] = self._bars.add_task(what, total=None, count="")
            self._bars.update(self._tasks[what], completed=done, total=total, count=count)
        elif new or monotonic() - self._printed >= EVERY:
            self._tasks[what] = TaskID(0)
            self._printed = monotonic()
            share = "" if total is None else f": {done:,} of {total:,}"
            self._console.print(f"Checking {what}{share}", soft_wrap=True)
