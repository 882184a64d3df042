"""The overview: the numbers that the first screen of the web page draws, in one answer.

It may be asked once a second by several pages. The runs in memory, and the oldest run that has not
started, take time to find if there are many. So these numbers are kept for a hundred times as long
as they took.
"""

from collections import Counter
from time import perf_counter

import attrs

from keyrun.runtime.inspect.measure import Distribution, oldest_pending, runs_by_state
from keyrun.runtime.inspect.statistics import RuntimeStatistics
from keyrun.runtime.partition import Partition
from keyrun.runtime.records.run_counts import stored_counts
from keyrun.runtime.records.submission import ASIDE, EVICTED
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.values import State

KEPT = 100
"""How many times as long as a search took its answer is kept."""


@attrs.frozen(kw_only=True)
class Overview:
    """Hold the numbers of a runtime that change all the time. Counters count since the runtime was
    opened. What is not known of a store that no process has open is None."""

    runs: dict[State, int] | None
    """The number of unfinished runs by state, without states that no run has."""
    dead_letters: int | None
    """The number of dead letters."""
    paused: bool
    """Whether all runs are paused."""
    ended: dict[State, int] | None = None
    """A counter of the runs that have ended, by state."""
    attempts: int | None = None
    """A counter of the attempts of steps that have ended."""
    oldest_pending: float | None = None
    """Seconds since the oldest run that has not started could have. None if there is none."""
    slots: int | None = None
    """The number of steps that may run at once."""
    commit_seconds: Distribution | None = None
    """How long commits took."""
    statistics: RuntimeStatistics | None = None
    """Queue depths, slots, commits and other counters."""


class OverviewReader:
    """Reads the overview of a runtime."""

    def __init__(self, partition: Partition) -> None:
        self._partition = partition
        self._runs: dict[State, int] = {}
        self._oldest: float | None = None
        self._searched_at = self._took = 0.0

    async def read(self, statistics: RuntimeStatistics) -> Overview:
        """Return the overview."""
        now = perf_counter()
        if now - self._searched_at > KEPT * self._took:
            await self._search()
            self._searched_at, self._took = now, perf_counter() - now
        state = self._partition.state
        metrics, oldest = state.metrics, self._oldest
        ended: Counter[State] | None = None
        attempts: int | None = None
        if metrics is not None:
            ended, attempts = Counter(), 0
            for workflow in metrics.workflows.values():
                ended[State.SUCCEEDED] += workflow.succeeded
                for (name, _), number in workflow.ended.items():
                    ended[State(name)] += number
                attempts += sum(each.seconds.count() for each in workflow.steps.values())
        return Overview(
            runs=self._runs,
            dead_letters=sum(state.counts.dead_letters.values()),
            paused=state.paused,
            ended=ended,
            attempts=attempts,
            oldest_pending=None if oldest is None else max(0.0, state.wall() - oldest),
            slots=state.slots.total,
            commit_seconds=Distribution.of(state.commits.durations),
            statistics=statistics,
        )

    async def _search(self) -> None:
        measured = self._partition.measured()
        found: Counter[State] = Counter()
        for (_, name), runs in runs_by_state(measured).items():
            found[State(name)] += runs
        self._runs = dict(found)
        if self._partition.state.metrics is not None:
            self._oldest = await oldest_pending(measured)


async def stored_overview(ledger: Ledger) -> Overview:
    """Return what the store knows of the overview, while no runtime has it open."""
    counts = await stored_counts(ledger)
    runs: Counter[State] = Counter()
    if counts is not None:
        for (_, _, name), number in counts.by_state.items():
            state = State.QUARANTINED if name == ASIDE else State(name.removesuffix(EVICTED))
            runs[state] += number
    return Overview(
        runs=None if counts is None else dict(runs),
        dead_letters=None if counts is None else sum(counts.dead_letters.values()),
        paused=await ledger.store.get("held", ledger.name("")) is not None,
    )
