"""The record: all evidence that the campaign has read so far, line by line."""

import attrs

from keyrun.stress.acting import Planner
from keyrun.stress.evidence import Line, Mark
from keyrun.stress.plan import PlannedPause


@attrs.define
class CampaignRecord:
    """All evidence so far, and its summary for the next process."""

    planner: Planner
    keys: int
    lines: list[Line] = attrs.field(factory=list)
    begun: list[int] = attrs.field(init=False)
    """The number of acknowledged runs of each key."""
    reported: set[int] = attrs.field(factory=set)
    """The runs whose end the hook received."""
    attempts: int = 0
    lives: int = 0
    kills: int = 0
    """The number of killed processes. Each was followed by another process."""
    stops: int = 0
    """The number of processes that were asked to stop and have left the runtime."""
    stopped: bool = False
    """Whether the latest process was asked to stop, and has left the runtime."""
    ready: bool = False
    done: bool = False
    last_at: float = 0.0
    """The time of the last line that is not a count of commits."""
    _commits: list[tuple[int, int]] = attrs.field(factory=list)
    _cancels: dict[int, None] = attrs.field(factory=dict)
    _paused: dict[PlannedPause, None] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        self.begun = [0] * self.keys

    @property
    def acknowledged(self) -> int:
        """Return the number of acknowledged submits."""
        return sum(self.begun)

    @property
    def commits(self) -> int:
        """Return the number of commits of all processes."""
        return sum(commits for commits, _ in self._commits)

    @property
    def records(self) -> int:
        """Return the number of records in these commits."""
        return sum(records for _, records in self._commits)

    @property
    def cancels(self) -> list[int]:
        """Return the runs whose `cancel` was called and has not returned."""
        return list(self._cancels)

    @property
    def paused(self) -> list[PlannedPause]:
        """Return the pauses that may still hold."""
        return list(self._paused)

    def seconds(self) -> float:
        """Return for how many seconds processes were alive."""
        total = began = last = 0.0
        for line in self.lines:
            if line.mark is Mark.LIFE:
                total += last - began
                began = line.at
            last = line.at
        return total + last - began

    def note(self, line: Line) -> None:
        """Add a line."""
        self.lines.append(line)
        if line.mark is not Mark.COMMITS:
            self.last_at = line.at
        match line.mark:
            case Mark.LIFE:
                self.kills += self.lives > 0 and not self.stopped
                self.lives += 1
                self.ready = self.stopped = False
                self._commits.append((0, 0))
            case Mark.READY:
                self.ready = True
            case Mark.ACKNOWLEDGED:
                key = line.run % self.keys
                if line.run // self.keys >= self.begun[key]:
                    self.begun[key] = line.run // self.keys + 1
                    if self.planner.plan(line.run).cancel_after is not None:
                        self._cancels[line.run] = None
            case Mark.CANCELLED:
                self._cancels.pop(line.run, None)
            case Mark.PAUSE | Mark.RESUMED:
                pause = PlannedPause(number=line.run, whole_key=line.fields[1] == "1", seconds=0.0)
                if line.mark is Mark.PAUSE:
                    self._paused[pause] = None
                else:
                    self._paused.pop(pause, None)
            case Mark.HOOK:
                self.reported.add(line.run)
            case Mark.BEGUN:
                self.attempts += 1
            case Mark.COMMITS:
                self._commits[-1] = (int(line.fields[0]), int(line.fields[1]))
            case Mark.STOPPED:
                self.stops += 1
                self.stopped = True
            case Mark.DONE:
                self.done = True
