"""Experience: what earlier runs of a workflow took, from the index of those that have ended."""

from typing import TYPE_CHECKING

import attrs

from keyrun.runtime.values import State
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.records.tables import Ledger

LOOK_AT = 100
"""How many of the runs that ended last are looked at."""
ENOUGH = 10
FRESH = 5.0
"""Seconds that an answer is good for."""


@attrs.frozen(kw_only=True)
class DurationStatistics:
    """On average: steps that were done, at least one, and seconds from start to end."""

    steps: float
    seconds: float


class StepDurations:
    """Remembers for a while what it found."""

    def __init__(self, ledger: "Ledger") -> None:
        self._ledger = ledger
        self._known: dict[tuple[str, int], tuple[float, DurationStatistics | None]] = {}

    async def of(self, workflow: str, version: int, now: float) -> DurationStatistics | None:
        """What the latest runs of a workflow that succeeded took; None if there are none."""
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
                standing = await ledger.standing(number)
            except StoreCorrupt:
                continue
            if submission is None or standing is None or standing.state is not State.SUCCEEDED:
                continue
            if (submission.workflow, submission.version) != (workflow, version):
                continue
            if standing.started_at is not None and standing.ended_at is not None:
                steps.append(standing.steps_done)
                seconds.append(max(0.0, standing.ended_at - standing.started_at))
                if len(steps) == ENOUGH:
                    break
        if not steps:
            return None
        mean = sum(steps) / len(steps)
        return DurationStatistics(steps=max(1.0, mean), seconds=sum(seconds) / len(seconds))
