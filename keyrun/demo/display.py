"""The display: the service at work, as a live picture on a terminal and as lines elsewhere."""

from collections import deque
from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from keyrun.stress.campaign import Campaign
from keyrun.stress.evidence import Mark
from keyrun.stress.record import CampaignRecord

EVERY = 2.0
"""Seconds between plain lines."""
WIDTH = 60
LATEST = 6
STOPPING = "Stopping. Running steps finish first; Ctrl-C kills them."
STYLES = {"succeeded": "green", "failed": "red", "cancelled": "yellow"}


class Pace:
    """The growth of a count per second, over the last 2 seconds."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def of(self, count: int) -> float:
        """Return the growth per second. `count` is the count now."""
        now = monotonic()
        self._seen.append((now, count))
        while now - self._seen[0][0] > 2.0:
            self._seen.popleft()
        began, before = self._seen[0]
        return (count - before) / (now - began) if now > began else 0.0


class DemoDisplay:
    """Show a service at work, in 60 columns."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._said = monotonic()
        self._attempts, self._commits = Pace(), Pace()
        self._read = 0
        self._latest: deque[tuple[int, str]] = deque(maxlen=LATEST)
        self._retries = 0

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._console.is_dumb_terminal:
            self._live = Live(console=self._console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, campaign: Campaign) -> None:
        """Show the current state."""
        record = campaign.record
        self._follow(record)
        attempts, commits = self._attempts.of(record.attempts), self._commits.of(record.commits)
        if self._live is not None:
            self._live.update(self._picture(campaign, attempts, commits))
        elif campaign.stopping:
            self._console.print(STOPPING, soft_wrap=True)
        elif monotonic() - self._said >= EVERY:
            self._said = monotonic()
            self._console.print(
                f"{campaign.elapsed:5.1f} s {len(record.reported):>6,} orders "
                f"{attempts:>5,.0f} attempts/s {record.kills} kills",
                soft_wrap=True,
            )

    def _follow(self, record: CampaignRecord) -> None:
        for line in record.lines[self._read :]:
            if line.mark is Mark.HOOK:
                self._latest.append((line.run, line.fields[1]))
            elif line.mark is Mark.BEGUN:
                self._retries += line.fields[2] != "1"
        self._read = len(record.lines)

    def _picture(self, campaign: Campaign, attempts: float, commits: float) -> Group:
        record, seconds = campaign.record, campaign.assignment.seconds
        table = Table.grid(padding=(0, 2))
        table.add_column(justify="right", width=9)
        table.add_column()
        placed, done = record.acknowledged, len(record.reported)
        for count, words in (
            (placed, f"orders of {campaign.assignment.keys:,} customers"),
            (done, f"of them finished, {max(0, placed - done):,} unfinished"),
            (record.attempts, f"attempts of steps, {attempts:,.0f} per second"),
            (self._retries, "of them repeat a step"),
            (record.commits, f"commits, {commits:,.0f} per second"),
            (record.kills, "times killed and restarted"),
            (record.stops, "times stopped and restarted"),
        ):
            table.add_row(f"{count:,}", words)
        over = campaign.elapsed >= seconds
        share = done / max(placed, 1) if over else campaign.elapsed / seconds
        words = "finishing the orders" if over else f"{campaign.elapsed:.0f} of {seconds:g} s"
        bar = Table.grid(padding=(0, 2))
        bar.add_row(
            ProgressBar(total=1.0, completed=min(share, 1.0), width=WIDTH - 32),
            Text(words, style="dim"),
        )
        latest = [self._end(record, number, state) for number, state in self._latest]
        return Group(
            table,
            Text(),
            *latest,
            *[Text()] * (LATEST - len(latest)),
            Text(),
            Text(STOPPING) if campaign.stopping else bar,
        )

    def _end(self, record: CampaignRecord, number: int, state: str) -> Text:
        key = record.planner.plan(number).key
        text = Text(f"  order {number} of {key} ", no_wrap=True, overflow="ellipsis")
        return text.append(state, STYLES.get(state, ""))
