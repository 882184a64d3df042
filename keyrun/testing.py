"""Test tools: a runtime in memory and on virtual time that a test can crash and reopen.

`open_test_runtime` is for tests that run on Trio with `MockClock(autojump_threshold=0)` (the
`autojump_clock` of pytest-trio): a workflow that sleeps for a day is tested in a millisecond.
`AsyncioHost` and `SyncHost` do the same for tests on asyncio and for tests that are plain
functions. With pytest they are the fixtures `keyrun_asyncio` and `keyrun_sync`.

`crash_points` runs a scenario with a crash at each of its commits. `replay` checks that changed
code still fits the runs of earlier code.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    ExitStack,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from itertools import count
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, cast

import trio
from trio.testing import MockClock

from keyrun import App, Limits, Retention, RunOutcome, Runtime, Workflow, open_runtime
from keyrun.hosting.app import with_app
from keyrun.hosting.virtual_time import Threads, TimeWatch
from keyrun.policies import Resources
from keyrun.runtime.host.lifespan import Lifespan
from keyrun.runtime.host.tracing import TracerSource
from keyrun.runtime.inspect.replay import Replayed, replay
from keyrun.runtime.redaction import Redact
from keyrun.runtime.schedules.declared import Schedule
from keyrun.runtime.tuning import Tuning
from keyrun.storage import LmdbStore, MemoryStore, Store, StoreCrashed
from keyrun.storage.batch import Tables
from keyrun.storage.payload import Transform

if TYPE_CHECKING:
    import keyrun.asyncio
    import keyrun.sync
    from keyrun.runtime.host.lifespan import AnyLifespan

__all__ = [
    "EPOCH",
    "AsyncioHost",
    "CrashPoint",
    "CrashingLmdbStore",
    "CrashingMemoryStore",
    "CrashingStore",
    "RecordingHook",
    "Replayed",
    "RuntimeOptions",
    "SyncHost",
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

    app: App | None
    workflows: Iterable[Workflow[Any, Any]]
    entities: Iterable[type]
    schedules: Iterable[Schedule[Any]]
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
    redact: Redact | None
    wall: Callable[[], float]
    max_restarts: int
    restart_window: float
    resources: Resources | None
    evict_after: float
    tracing: TracerSource | None
    tuning: Tuning


def open_test_runtime(
    store: Store | None = None,
    *,
    lifespan: Lifespan | None = None,
    threads: Threads = "inline",
    **options: Unpack[RuntimeOptions],
) -> AbstractAsyncContextManager[Runtime, bool]:
    """Open a runtime on virtual time, on a new `MemoryStore` or on `store`. The options are those
    of `open_runtime`, and:

    - `threads`: With `"inline"`, virtual time stands still while a sync step or a sync hook runs in
      its thread, as if it ran inside the loop. With `"real"`, virtual time passes beside them, for
      tests of steps that take too long.

    If the test crashes the store inside the block, everything in the block is cancelled, and the
    block ends without an error."""
    block = _open_test_runtime(
        MemoryStore() if store is None else store, threads, lifespan, options
    )
    return cast(AbstractAsyncContextManager[Runtime, bool], block)


@asynccontextmanager
async def _open_test_runtime(
    store: Store, threads: Threads, lifespan: Lifespan | None, options: RuntimeOptions
) -> AsyncIterator[Runtime]:
    opened = False
    try:
        async with AsyncExitStack() as stack:
            with _watching_trio(threads):
                runtime = await stack.enter_async_context(
                    open_runtime(store, **_on_virtual_time(options, lifespan))
                )
            opened = True
            yield runtime
    except StoreCrashed:
        if not opened:
            raise


def _watching_trio(threads: Threads) -> AbstractContextManager[None]:
    """Watch the runtime that is opened in the block, if the test runs on virtual time."""
    clock = trio.lowlevel.current_clock()
    if not isinstance(clock, MockClock):
        return nullcontext()
    return TimeWatch(clock, threads).watching()


class _HostOutsideOfTrio:
    """Virtual time for a test that does not run on Trio. The test itself is at work, except while
    it waits for a call of a runtime."""

    def __init__(self) -> None:
        self._clock = MockClock(autojump_threshold=0)
        TimeWatch(self._clock).begin(None)

    def wall(self) -> float:
        """Return the time of the wall clock: `EPOCH`, and the virtual time that has passed."""
        return EPOCH + self._clock.current_time()

    def _on_virtual_time(self, options: RuntimeOptions, lifespan: object) -> dict[str, Any]:
        merged = with_app({"wall": self.wall, **_with_lifespan(options, lifespan)})
        return {"lifespan": None, "on_terminal": None, **merged}


class SyncHost(_HostOutsideOfTrio):
    """Open runtimes of `keyrun.sync` on virtual time. The fixture `keyrun_sync` is a new one.

    Virtual time passes only while the test waits for a call of the runtime, such as
    `run.result()`, or for `sleep`. It stands still while the code of the test runs."""

    def __init__(self) -> None:
        super().__init__()
        self._runtime: keyrun.sync.Runtime | None = None

    def open_test_runtime(
        self,
        store: Store | None = None,
        *,
        lifespan: "AnyLifespan | None" = None,
        threads: Threads = "inline",
        **options: Unpack[RuntimeOptions],
    ) -> "AbstractContextManager[keyrun.sync.Runtime, bool]":
        """Open a runtime on virtual time, one at a time. The arguments are those of
        `keyrun.testing.open_test_runtime`.

        If the store crashes in the block, all calls raise, and the block ends without an error."""
        block = self._opened(MemoryStore() if store is None else store, lifespan, threads, options)
        return cast("AbstractContextManager[keyrun.sync.Runtime, bool]", block)

    @contextmanager
    def _opened(
        self,
        store: Store,
        lifespan: "AnyLifespan | None",
        threads: Threads,
        options: RuntimeOptions,
    ) -> "Iterator[keyrun.sync.Runtime]":
        from keyrun.hosting.sync_host import opened

        if self._runtime is not None:
            raise RuntimeError("a runtime of this SyncHost is open: leave its block first")
        try:
            with ExitStack() as stack:
                with TimeWatch(self._clock, threads).watching():
                    self._runtime = stack.enter_context(
                        opened(store, **self._on_virtual_time(options, lifespan))
                    )
                yield self._runtime
        except StoreCrashed:
            if self._runtime is None:
                raise
        finally:
            self._runtime = None

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        if self._runtime is None:
            self._clock.jump(seconds)
        else:
            self._runtime._bridge.call(trio.sleep, seconds)

    def crash(self, store: MemoryStore) -> None:
        """Crash the store of the open runtime. `store.crash()` is only for the thread in which the
        runtime runs."""
        if self._runtime is None:
            raise RuntimeError("no runtime of this SyncHost is open, so nothing can crash")
        self._runtime._bridge.now(store.crash)


class AsyncioHost(_HostOutsideOfTrio):
    """Open runtimes of `keyrun.asyncio` on virtual time. The fixture `keyrun_asyncio` is a new one.

    Virtual time passes only while the test awaits a call of a runtime, such as `run.result()`, or
    `sleep`. It stands still while other code of the test runs, and while a step runs on the loop
    of the test. The loop itself has real time: `asyncio.sleep` takes as long as it says."""

    def __init__(self) -> None:
        super().__init__()
        self._runtimes: list[keyrun.asyncio.Runtime] = []

    def open_test_runtime(
        self,
        store: Store | None = None,
        *,
        lifespan: Lifespan | None = None,
        threads: Threads = "inline",
        **options: Unpack[RuntimeOptions],
    ) -> "AbstractAsyncContextManager[keyrun.asyncio.Runtime, bool]":
        """Open a runtime on virtual time. The arguments are those of
        `keyrun.testing.open_test_runtime`.

        If the store crashes in the block, the block is cancelled and ends without an error."""
        block = self._opened(MemoryStore() if store is None else store, lifespan, threads, options)
        return cast("AbstractAsyncContextManager[keyrun.asyncio.Runtime, bool]", block)

    @asynccontextmanager
    async def _opened(
        self, store: Store, lifespan: Lifespan | None, threads: Threads, options: RuntimeOptions
    ) -> "AsyncIterator[keyrun.asyncio.Runtime]":
        from keyrun.hosting.asyncio_host import opened

        given = self._on_virtual_time(options, lifespan)
        is_open = False
        try:
            async with AsyncExitStack() as stack:
                with TimeWatch(self._clock, threads).watching():
                    runtime = await stack.enter_async_context(opened(store, thread=False, **given))
                is_open = True
                self._runtimes.append(runtime)
                stack.callback(self._runtimes.remove, runtime)
                yield runtime
        except StoreCrashed:
            if not is_open:
                raise

    async def sleep(self, seconds: float) -> None:
        """Let virtual time pass."""
        if self._runtimes:
            await self._runtimes[0]._bridge.call(trio.sleep, seconds)
        else:
            self._clock.jump(seconds)


def _on_virtual_time(options: RuntimeOptions, lifespan: object = None) -> dict[str, Any]:
    clock = trio.lowlevel.current_clock()  # steps in threads ask for the time, too
    return {
        "wall": lambda: EPOCH + clock.current_time(),
        **_with_lifespan(options, lifespan),
    }


def _with_lifespan(options: RuntimeOptions, lifespan: object) -> dict[str, Any]:
    """Return options with a lifespan. An `App` among the options may have one of its own."""
    return {**options} if lifespan is None else {**options, "lifespan": lifespan}


class _Crashing(Store):
    """A store that crashes at a commit: before it is applied, or before its tasks resume."""

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
