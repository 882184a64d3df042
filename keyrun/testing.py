"""For tests of workflows: a runtime on memory and virtual time that can be crashed and reopened.

Use it with Trio's `MockClock(autojump_threshold=0)` (pytest-trio's `autojump_clock`): a workflow
that sleeps for a day is tested in a millisecond. `crash_points` tries a scenario with a crash at
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
"""What the wall clock says when virtual time begins."""


def virtual_wall() -> float:
    """A wall clock that goes with Trio's clock."""
    return EPOCH + trio.current_time()


class RecordingHook:
    """A terminal hook that keeps what it is told; with `failures` it raises that often first."""

    def __init__(self, failures: int = 0) -> None:
        self.outcomes: list[RunOutcome] = []
        self.calls = 0
        self._failures = failures

    async def __call__(self, outcome: RunOutcome) -> None:
        """What `on_terminal` calls."""
        self.calls += 1
        if self._failures:
            self._failures -= 1
            raise RuntimeError("the hook was told to fail")
        self.outcomes.append(outcome)

    def of(self, run_id: str) -> list[RunOutcome]:
        """What it was told about one run: at least one outcome per generation that has ended."""
        return [outcome for outcome in self.outcomes if outcome.run_id == run_id]


class RuntimeOptions(TypedDict, total=False):
    """What `open_runtime` takes besides the store."""

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
    """`open_runtime` on a `MemoryStore` (or your store) and on virtual time. If the store is
    crashed inside the block, the block ends quietly: everything in it is cancelled."""
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
    """Commits since the store was made, those of the crash included."""

    def crash_at(self, commits: int, *, applied: bool) -> None:
        """Crash at the commit that is so many ahead, 1 for the next. If `applied`, its records are
        kept, as if the process had been killed just before it could act on them."""
        if commits < 1:
            raise ValueError(f"commits must be at least 1, got {commits}")
        self._until, self._applied = commits, applied

    async def _commit(self, tables: Tables) -> None:
        self.commits += 1
        self._until -= 1
        if self._until == 0 and not self._applied:
            raise StoreCrashed("the store crashed at a commit, and nothing of that was kept")
        await super()._commit(tables)  # type: ignore[safe-super]
        if self._until == 0:
            raise StoreCrashed("the store crashed when a commit was done and nobody knew")


class CrashingMemoryStore(_Crashing, MemoryStore):
    """A `MemoryStore` that can crash at a commit."""


class CrashingLmdbStore(_Crashing, LmdbStore):
    """An `LmdbStore` that can crash at a commit."""


CrashingStore = CrashingMemoryStore | CrashingLmdbStore


class CrashPoint:
    """One commit to crash at; `crash_points` makes it."""

    def __init__(self, store: CrashingStore, number: int, *, applied: bool, crashes: int) -> None:
        self.store = store
        self.number = number
        self.applied = applied
        self.crashes = 0
        """How many crashes there have been."""
        self._wanted = crashes

    async def run(
        self, scenario: Callable[[Runtime], Awaitable[T]], **options: Unpack[RuntimeOptions]
    ) -> T:
        """What `scenario` returns, called again with a new runtime after each crash. It must do the
        same each time: submit with ids of its own, and wait for results."""
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
    """The commits of a scenario, one after the other, each with a new store: first with a crash
    before the commit is applied, then with one after. It ends when a scenario ended without a
    crash. `crashes` is how often it crashes there, counted anew from each restart; `every=5` takes
    only every fifth commit, for scenarios that are long.

        for point in crash_points():
            assert await point.run(scenario, workflows=[checkout]) == "the receipt"
    """
    for applied in (False, True):
        for number in count(1, every):
            point = CrashPoint(store(), number, applied=applied, crashes=crashes)
            yield point
            if not point.crashes:
                break
