"""Durations: how long earlier runs of a workflow took, from the index of ended runs."""

from typing import TYPE_CHECKING

import attrs

from keyrun.runtime.values import State
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.records.tables import Ledger

LOOK_AT = 100
"""The number of runs that are read, the ones that ended last."""
ENOUGH = 10
"""The number of runs of the workflow that are averaged."""
FRESH = 5.0
"""Seconds for which a result is used again."""


@attrs.frozen(kw_only=True)
class DurationStatistics:
    """The average number of steps, at least one, and of seconds from start to end."""

    steps: float
    seconds: float


class RunDurations:
    """Computes the duration statistics of workflows, and caches them."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._known: dict[tuple[str, int], tuple[float, DurationStatistics | None]] = {}

    async def of(self, workflow: str, version: int, now: float) -> DurationStatistics | None:
        """Return the statistics of the latest runs of a workflow that succeeded. None if there are
        none."""
        at, known = self._known.get((workflow, version), (float("-inf"), None))
        if not 0 <= now - at < FRESH:
            known = await self._look(workflow, version)
            self._known[workflow, version] = now, known
        return known

    async def _look(self, workflow: str, version: int) -> DurationStatistics | None:
        ledger = self._ledger
        steps, seconds = [], []
        rows = await ledger.store.scan("ended", prefix=ledger.prefix, limit=LOOK_AT, reverse=True)
        for key, _ in rows:
            number = ledger.split_timed(key)[1]
            try:
                submission = await ledger.submission(number)
                status = await ledger.status(number)
            except StoreCorrupt:
                continue
            if submission is None or status is None or status.state is not State.SUCCEEDED:
                continue
            if (submission.workflow, submission.version) != (workflow, version):
                continue
            if status.started_at is not None and status.ended_at is not None:
                steps.append(status.steps_done)
                seconds.append(max(0.0, status.ended_at - status.started_at))
                if len(steps) == ENOUGH:
                    break
        if not steps:
            return None
        mean = sum(steps) / len(steps)
        return DurationStatistics(steps=max(1.0, mean), seconds=sum(seconds) / len(seconds))
