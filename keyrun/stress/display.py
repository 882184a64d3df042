"""The display: a progress bar on a terminal, and a line every 2 seconds elsewhere."""

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from keyrun.stress.campaign import Campaign

EVERY = 2.0
"""Seconds between plain lines."""


class CampaignDisplay:
    """Show a campaign in 60 columns."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bar: Progress | None = None
        self._said = monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._bar = Progress(
                TextColumn("{task.fields[kills]} kills"),
                BarColumn(bar_width=None),
                TaskProgressColumn(),
                TextColumn("{task.description}"),
                console=self._console,
                transient=True,
            )
            self._bar.add_task("", total=1.0, kills=0)
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, campaign: Campaign) -> None:
        """Show the current state."""
        record, assignment = campaign.record, campaign.assignment
        reported = len(record.reported)
        # The number of runs is known when the time is over.
        over = campaign.elapsed >= assignment.seconds
        total = record.acknowledged if over else assignment.runs
        share = max(reported / max(total, 1), 0 if over else campaign.elapsed / assignment.seconds)
        words = f"{reported:,} runs, {record.attempts:,} attempts"
        if self._bar is not None:
            task = self._bar.task_ids[0]
            self._bar.update(
                task, completed=min(share, 1.0), description=words, kills=campaign.kills
            )
        elif monotonic() - self._said >= EVERY:
            self._said = monotonic()
            self._console.print(
                f"{campaign.elapsed:5.1f} s  {words}, {campaign.kills} kills", highlight=False
            )
