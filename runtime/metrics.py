"""Metrics: plain counters and histograms of one partition, which monitoring reads.

Code that is on the path of every run adds to them directly. Nothing is computed before somebody
reads them, and reading them does not read the store.

Their labels are names from code: workflows and steps. A program may make names at run time, so each
label keeps its first values, and all others count as `OTHER`.
"""

from collections import defaultdict

from keyrun._histogram import FOLD, Histogram
from keyrun.runtime.logger import logger
from keyrun.runtime.saturation import Saturation

OTHER = "_other"
"""The value of a label that stands for all values beyond the limit."""

STEP_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0)
RUN_SECONDS = (0.01, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 600.0, 3600.0, 86400.0, 604800.0)
LAG_SECONDS = (0.001, 0.01, 0.1, 0.5, 1.0, 5.0, 30.0, 60.0, 600.0, 3600.0)

BUCKET = 10
"""Numbers of runs that share their leading bits are counted together while they are pending: as
many as these bits can tell apart."""


class StepMetrics:
    """The counters of one step of one workflow."""

    __slots__ = ("attempts", "seconds", "slot_wait")

    def __init__(self) -> None:
        self.seconds = Histogram(STEP_SECONDS)
        """The time of every attempt."""
        self.attempts: dict[str, int] = defaultdict(int)
        """Attempts that have not completed, by their outcome."""
        self.slot_wait = Histogram(LAG_SECONDS)
        """How long attempts have waited for a slot, if none was free."""


class WorkflowMetrics:
    """The counters of one workflow."""

    __slots__ = (
        "_metrics",
        "_pending",
        "backpressure",
        "ended",
        "held",
        "seconds",
        "start_delay",
        "steps",
        "submitted",
        "succeeded",
    )

    def __init__(self, metrics: "Metrics") -> None:
        self._metrics = metrics
        self._pending = metrics.pending
        self.submitted = 0
        self.start_delay = Histogram(LAG_SECONDS)
        """The time from the moment at which a run may start to its start."""
        self.seconds = Histogram(RUN_SECONDS)
        """The time from the start of a run to its end."""
        self.succeeded = 0
        self.ended: dict[tuple[str, str], int] = defaultdict(int)
        """Runs that have ended and not succeeded, by state and by the kind of their failure."""
        self.backpressure = Histogram(LAG_SECONDS)
        """How long submits have waited for room."""
        self.held: dict[str, Saturation[None]] = {}
        """The periods in which nodes waited, by the node after them that had no room."""
        self.steps: dict[str, StepMetrics] = {}

    def started(self, number: int, delay: float) -> None:
        """Count a run that starts for the first time, `delay` seconds after it could have."""
        self.start_delay.add(delay if delay > 0 else 0.0)
        pending, bucket = self._pending, number >> BUCKET
        left = pending[bucket] - 1
        if left > 0:
            pending[bucket] = left
        else:
            del pending[bucket]

    def completed(self, step: str, seconds: float) -> None:
        """Count an attempt that completed its step."""
        found = self.steps.get(step)
        if found is None:
            found = self.step(step)
        # As in `Histogram.add`, without a call.
        kept = found.seconds.kept
        kept.append(seconds)
        if len(kept) >= FOLD:
            found.seconds.fold()

    def attempted(self, step: str, outcome: str, seconds: float) -> None:
        """Count an attempt with another outcome."""
        found = self.step(step)
        found.seconds.add(seconds)
        found.attempts[outcome] += 1

    def step(self, name: str) -> StepMetrics:
        """Return the counters of a step."""
        found = self.steps.get(name)
        if found is None:
            known = self._metrics.label("step", name)
            found = self.steps.setdefault(known, StepMetrics())
        return found

    def holding(self, node: str) -> Saturation[None]:
        """Return the periods in which nodes waited for room at a node."""
        known = self._metrics.label("step", node)
        found = self.held.get(known)
        if found is None:
            found = self.held[known] = Saturation()
        return found


class Metrics:
    """The counters of one partition. `most_names` values of each label are counted apart."""

    def __init__(self, most_names: int) -> None:
        self._most_names = most_names
        self.pending: dict[int, int] = defaultdict(int)
        """How many runs have not started, by the leading bits of their numbers. Runs that left
        without a start may still be counted: `oldest_pending` corrects that when it looks at
        them."""
        self.workflows: dict[str, WorkflowMetrics] = {}
        self.interruptions = 0
        """Attempts that the end of the last process cut off."""
        self.timer_lag = Histogram(LAG_SECONDS)
        """How late runs were woken that waited for a time."""
        self.hook_calls: dict[str, int] = defaultdict(int)
        """Calls of the terminal hook, by outcome."""
        self.hook_lag = Histogram(LAG_SECONDS)
        """The time from the end of a run to the return of the terminal hook."""
        self._names: dict[str, set[str]] = defaultdict(set)

    def of(self, workflow: str) -> WorkflowMetrics:
        """Return the counters of a workflow."""
        found = self.workflows.get(workflow)
        if found is None:
            known = self.label("workflow", workflow)
            found = self.workflows.setdefault(known, WorkflowMetrics(self))
        return found

    def label(self, label: str, value: str) -> str:
        """Return the value of a label that a name counts as."""
        names = self._names[label]
        if value in names:
            return value
        if len(names) < self._most_names:
            names.add(value)
            return value
        if OTHER not in names:
            names.add(OTHER)
            logger.warning(
                "metrics have more than %d names of a %s: %r and all further names count as %r; "
                "do not make names at run time",
                self._most_names,
                label,
                value,
                OTHER,
                extra={"event": "names_limited"},
            )
        return OTHER

    def entered(self, number: int) -> None:
        """Count a run that may start now."""
        self.pending[number >> BUCKET] += 1
