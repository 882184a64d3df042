"""Test tools: a runtime in memory and on virtual time that a test can crash and reopen.

Use it with Trio's `MockClock(autojump_threshold=0)` (pytest-trio's `autojump_clock`): a workflow
that sleeps for a day is tested in a millisecond. `crash_points` runs a scenario with a crash at
each of its commits. `replay` checks that changed code still fits the runs of earlier code.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from itertools import count
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast

import trio

from keyrun import Limits, Retention, RunOutcome, Runtime, Workflow, open_runtime
from keyrun.policies import Resources
from keyrun.runtime.inspect.replay import Replayed, replay
from keyrun.runtime.tuning import Tuning
from keyrun.storage import LmdbStore, MemoryStore, Store, StoreCrashed
from keyrun.storage.batch import Tables
from keyrun.storage.payload import Transform

__all__ = [
    "EPOCH",
    "CrashPoint",
    "CrashingLmdbStore",
    "CrashingMemoryStore",
    "CrashingStore",
    "RecordingHook",
    "Replayed",
    "RuntimeOptions",
    "crash_points",
    "open_test_runtime",
    "replay",
    "virtual_wall",
]

T = TypeVar("T")

EPOCH = 1_700_000_000.0
"""The time of the wall clock when virtual time begins, in seconds since the epoch."""


def virtual_wall() -> float:
    """Return the time of a wall clock that follows Trio's clock."""
    return EPOCH + trio.current_time()


class RecordingHook:
    """Record the outcomes that a terminal hook receives: `open_test_runtime(on_terminal=hook)`.

    With `failures` the first calls raise an error."""

    def __init__(self, failures: int = 0) -> None:
        self.outcomes: list[RunOutcome] = []
        """The outcomes of the calls that did not raise, in order."""
        self.calls = 0
        """The number of calls."""
        self._failures = failures

    async def __call__(self, outcome: RunOutcome) -> None:
        """Record an outcome. Keyrun calls this as `on_terminal`."""
        self.calls += 1
        if self._failures:
            self._failures -= 1
            raise RuntimeError("the hook fails, as the test asked it to")
        self.outcomes.append(outcome)

    def of(self, run_id: str) -> list[RunOutcome]:
        """Return the outcomes of one run, at least one for each generation that has ended."""
        return [outcome for outcome in self.outcomes if outcome.run_id == run_id]


class RuntimeOptions(TypedDict, total=False):
    """Type the options of `open_runtime` besides the store."""

    workflows: Iterable[Workflow[Any, Any]]
    entities: Iterable[type]
    namespace: str
    limits: Limits
    max_concurrent_steps: int
    max_pending: int
    max_pending_per_key: int
    backpressure_timeout: float
    drain_timeout: float
    on_terminal: Callable[[RunOutcome], object] | None
    hook_timeout: float
    retention: Retention
    on_unregistered: Literal["hold", "refuse"]
    when_locked: Literal["fail", "wait"]
    lock_timeout: float
    transform: Transform | None
    wall: Callable[[], float]
    max_restarts: int
    restart_window: float
    resources: Resources | None
    evict_after: float
    tuning: Tuning


def open_test_runtime(
    store: Store | None = None, **options: Unpack[RuntimeOptions]
) -> AbstractAsyncContextManager[Runtime, bool]:
    """Open a runtime on virtual time, on a new `MemoryStore` or on `store`. The options are those
    of `open_runtime`.

    If the test crashes the store inside the block, everything in the block is cancelled, and the
    block ends without an error."""
    block = _open_test_runtime(MemoryStore() if store is None else store, options)
    return cast(AbstractAsyncContextManager[Runtime, bool], block)


@asynccontextmanager
async def _open_test_runtime(store: Store, options: RuntimeOptions) -> AsyncIterator[Runtime]:
    opened = False
    try:
        async with open_runtime(store, **_on_virtual_time(options)) as runtime:
            opened = True
            yield runtime
    except StoreCrashed:
        if not opened:
            raise


def _on_virtual_time(options: RuntimeOptions) -> RuntimeOptions:
    return {"wall": virtual_wall, **options}


class _Crashing(Store):
    """A store that crashes at a commit, before it is applied or before anybody hears of it."""

    _until = 0
    _applied = False
    commits = 0
    """The number of commits since the store was created, those of crashes included."""

    def crash_at(self, commits: int, *, applied: bool) -> None:
        """Crash at a later commit: 1 for the next one, 2 for the one after it.

        With `applied=True` the records of that commit are kept, as if the process had been killed
        just before it could act on them. Otherwise they are lost."""
        if commits < 1:
            raise ValueError(f"commits must be at least 1, got {commits}")
        self._until, self._applied = commits, applied

    async def _commit(self, tables: Tables) -> None:
        self.commits += 1
        self._until -= 1
        if self._until == 0 and not self._applied:
            raise StoreCrashed("the store crashed at a commit and kept none of its records")
        await super()._commit(tables)  # type: ignore[safe-super]
        if self._until == 0:
            raise StoreCrashed("the store crashed after a commit and before it was acknowledged")


class CrashingMemoryStore(_Crashing, MemoryStore):
    """Keep records like a `MemoryStore`, and crash at a chosen commit."""


class CrashingLmdbStore(_Crashing, LmdbStore):
    """Keep records like an `LmdbStore`, and crash at a chosen commit."""


CrashingStore = CrashingMemoryStore | CrashingLmdbStore
"""Either of the two stores that can crash."""


class CrashPoint:
    """Describe one commit at which a scenario crashes. `crash_points` yields these."""

    def __init__(self, store: CrashingStore, number: int, *, applied: bool, crashes: int) -> None:
        self.store = store
        """The store that crashes."""
        self.number = number
        """The number of the commit, from 1, counted from each start of the scenario."""
        self.applied = applied
        """Whether the records of that commit are kept."""
        self.crashes = 0
        """The number of crashes so far."""
        self._wanted = crashes

    async def run(
        self, scenario: Callable[[Runtime], Awaitable[T]], **options: Unpack[RuntimeOptions]
    ) -> T:
        """Run `scenario(rt)` with a new runtime after each crash, and return its value.

        The scenario must do the same each time: submit runs with ids of its own, and wait for their
        results. The options are those of `open_runtime`."""
        while True:
            if self.crashes < self._wanted:
                self.store.crash_at(self.number, applied=self.applied)
            try:
                async with open_runtime(self.store, **_on_virtual_time(options)) as runtime:
                    return await scenario(runtime)
            except StoreCrashed:
                self.crashes += 1

    def __repr__(self) -> str:
        when = "after" if self.applied else "before"
        return f"<crash {when} commit {self.number}>"


def crash_points(
    store: Callable[[], CrashingStore] = CrashingMemoryStore, *, crashes: int = 1, every: int = 1
) -> Iterator[CrashPoint]:
    """Yield one `CrashPoint` for each commit of a scenario, each with a new store:

        for point in crash_points():
            assert await point.run(scenario, workflows=[checkout]) == "the receipt"

    First the crashes come before the commits are applied, then after. The iteration ends when a
    scenario has ended without a crash.

    - `store`: returns a new store.
    - `crashes`: the number of crashes at each point, counted from each restart.
    - `every`: With `every=5`, take only every fifth commit of a long scenario.
    """
    for applied in (False, True):
        for number in count(1, every):
            point = CrashPoint(store(), number, applied=applied, crashes=crashes)
            yield point
            if not point.crashes:
                break
