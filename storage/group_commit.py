"""Group commit: commit all records staged since the last commit in one transaction with one sync.

The protocol and its invariants:

1. Records are staged in the *open* group. There is one open group, in memory only.
2. The driver closes the group when a task waits for it, or `LINGER` seconds after its first record,
   and commits it. If many tasks wait, it first lets more records come in: until all tasks that the
   last commit wakes have resumed, and for a few passes of the loop. Records that are staged during
   the commit are in the next group.
3. Groups are committed one at a time, in order. When a group is durable, every group before it is
   durable, too.
4. When the commit of a group has returned, its records become readable, its callbacks run and its
   waiting tasks are woken. No other task runs in between, so every record that can be read is
   durable.
5. The first error is final: the failed group, the groups after it, and everything that is staged
   later raise this error. Nothing is retried, because after a failed sync the contents of the disk
   are unknown. Opening the store again finds out.

A store may limit the bytes of a group. If a group is full when another task begins to stage, it is
closed, and later records are in the next one. Full groups are committed one after the other.

If a waiting task is cancelled, the group is committed nevertheless.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter

import attrs
import trio

from keyrun._histogram import Histogram
from keyrun._waking import WAKE
from keyrun.storage.batch import Tables
from keyrun.storage.errors import StoreClosed, StoreError, TooManyTables
from keyrun.storage.group import Group

LINGER = 0.05

DURATIONS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SIZES = (1.0, 10.0, 100.0, 1000.0, 10_000.0)

PASSES = 8
"""Passes of the loop that a group may wait for more records while more and more tasks want it."""


@attrs.frozen(kw_only=True)
class CommitStatistics:
    """Count the commits of a store since it was opened."""

    commits: int
    """The number of commits."""
    records: int
    """The number of records in all commits."""
    largest: int
    """The number of records in the largest commit."""
    staged: int
    """The number of records that are staged and not committed yet."""
    seconds: float
    """Seconds that all commits took."""
    longest: float
    """Seconds that the longest commit took."""
    failures: int
    """1 if a commit has failed, which ends the runtime, and otherwise 0."""
    last_at: float | None
    """When the last commit returned, on Trio's clock. None before the first commit."""


class Slices:
    """Wakes tasks a few at a time, in consecutive passes of the loop."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.is_waking = False
        """Whether tasks that were added have not resumed yet, if they are more than a slice."""
        self._waiting: deque[dict[trio.lowlevel.Task, None]] = deque()

    def add(self, waiting: dict[trio.lowlevel.Task, None]) -> None:
        """Wake these tasks, after those that were added before. A task leaves the dict when it is
        woken."""
        self._waiting.append(waiting)
        if not self.is_waking:
            self._wake_slice()
            if self._waiting:
                self.is_waking = True
                trio.lowlevel.spawn_system_task(self._run, name="keyrun.storage.Slices")

    def _wake_slice(self) -> None:
        left = self.size
        while self._waiting:
            tasks = self._waiting[0]
            while tasks:
                if not left:
                    return
                left -= 1
                task = next(iter(tasks))
                del tasks[task]
                trio.lowlevel.reschedule(task, WAKE)
            self._waiting.popleft()

    async def _run(self) -> None:
        try:
            while self._waiting:
                self._wake_slice()
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self.is_waking = False


class GroupCommit:
    """Collects staged records and commits them in groups, by a task of its own.

    `tables` are those that the store has, and `max_tables` how many it may have. A group that has
    `full_bytes` is closed.
    """

    def __init__(
        self,
        commit: Callable[[Tables], Awaitable[None]],
        publish: Callable[[Tables], None],
        *,
        tables: Iterable[str] = (),
        max_tables: int = 128,
        full_bytes: int | None = None,
    ) -> None:
        self._commit = commit
        self._publish = publish
        self.tables = set(tables)
        """The tables that the store has, or will have with the groups that are staged."""
        self._max_tables = max_tables
        self._full_bytes = full_bytes
        self._full: deque[Group] = deque()
        """Groups that are closed because they are full, the oldest first."""
        self._stager: trio.lowlevel.Task | None = None
        """The task that staged last, if the size of a group is limited."""
        self.group = Group(self)
        """The open group. While `attentive` is set, use `open_group` instead."""
        self._busy: Group | None = None
        self.sleeping: trio.Event | None = None
        """The event that wakes the driver. None while it does not sleep."""
        self._idle = False
        """Whether the driver has nothing to do."""
        self.attentive = full_bytes is not None
        """Whether the next record has to be noticed: the driver has nothing to do, records cannot
        be committed any more, or the size of a group is limited."""
        self._closing = False
        self._stopped = trio.Event()
        self.failure: StoreError | None = None
        self.on_failure: list[Callable[[StoreError], None]] = []
        """Callbacks that receive the first failure. They must not raise."""
        self.on_commit: list[Callable[[Group], None]] = []
        """Callbacks that receive a group right before its commit, and may add records. They must
        not raise."""
        self.slices: Slices | None = None
        """Wakes the tasks that wait for a commit a few at a time. None if they are woken at
        once."""
        self._crowd = 0
        """How many tasks and callbacks waited for the last group, but at least half the number
        before."""
        self._largest = 0
        self._longest = 0.0
        self._last_at: float | None = None
        self._began: float | None = None
        """When the commit that is under way began. None between two commits."""
        self.durations = Histogram(DURATIONS)
        """Seconds that commits took."""
        self.sizes = Histogram(SIZES)
        """Records in a commit."""

    def start(self, failure: StoreError | None = None) -> None:
        """Start the driver, or reject everything with `failure`. The driver is a system task,
        because blocks that end in any order may share the store, so no nursery of theirs can own
        it."""
        self.failure = failure
        self.attentive = failure is not None or self._full_bytes is not None
        trio.lowlevel.spawn_system_task(self._drive, name="keyrun.storage.GroupCommit")

    def wake_in_slices(self, size: int) -> None:
        """Wake, from now on, at most `size` of the tasks that wait for a commit in each pass of the
        loop. A host that shares its loop with Trio gets its turn in between."""
        self.slices = self.slices or Slices(size)

    def open_group(self) -> Group:
        """Return the open group. Add records before the next `await`."""
        if self.attentive:
            if self.failure is not None:
                raise self.refusal()
            if self._closing:
                raise StoreClosed("the store is closing; stage records before you leave its block")
            if self._full_bytes is not None:
                self._limit(self._full_bytes)
            if self._idle:
                self.wake()
        return self.group

    def _limit(self, full_bytes: int) -> None:
        """Close the open group if it is full. What one task stages without an `await` in between
        shares a commit, so this happens only where another task begins to stage."""
        task = trio.lowlevel.current_task()
        if task is not self._stager:
            self._stager = task
            if self.group.measure() >= full_bytes:
                self._full.append(self._close_group())
                self.wake()

    def admit(self, tables: Iterable[str]) -> None:
        """Raise `TooManyTables` if the store cannot have all of `tables`, so that no commit fails
        because of it."""
        if self.tables.issuperset(tables):
            return
        wanted = self.tables.union(tables)
        if len(wanted) > self._max_tables:
            raise TooManyTables(
                next(table for table in tables if table not in self.tables), self._max_tables
            )
        self.tables = wanted

    def wake(self) -> None:
        """Let the driver check the open group."""
        self._idle = False
        self.attentive = self._closing or self.failure is not None or self._full_bytes is not None
        if self.sleeping is not None:
            self.sleeping.set()
            self.sleeping = None

    async def durable(self, group: Group | None = None) -> None:
        """Return when `group`, by default everything staged before this call, is durable."""
        if group is None or group is self.group:
            last = self._full[-1] if self._full else self._busy
            group = self.group if self.group.tables else last
            if group is None:
                if self.failure is not None:
                    raise self.refusal()
                await trio.lowlevel.checkpoint()
                return
        await group.wait()

    def fail(self, error: StoreError) -> None:
        """Reject everything from here on, and raise the error in all waiting tasks."""
        self.attentive = True
        if self.failure is None:
            self.failure = error
            for callback in self.on_failure:
                callback(error)
        for group in (self._busy, *self._full, self.group):
            if group is not None:
                group.settle(durable=False)
        self._full.clear()
        self.group = Group(self)

    def disown(self, error: StoreError) -> None:
        """Reject everything from here on in a forked child, whose copies of waiting tasks must not
        be woken."""
        self.attentive = True
        self.failure = error

    async def stop(self) -> None:
        """Accept no more records, commit the staged ones, then end the driver."""
        self._closing = True
        self.wake()
        await self._stopped.wait()

    @property
    def is_closing(self) -> bool:
        """Whether the store is being closed: what is staged is committed, and nothing more."""
        return self._closing

    def statistics(self) -> CommitStatistics:
        """Return a snapshot of the counters."""
        return CommitStatistics(
            commits=self.durations.count(),
            records=int(self.sizes.sum),
            largest=self._largest,
            staged=sum(map(len, (*self._full, self.group))),
            seconds=self.durations.sum,
            longest=self._longest,
            failures=int(self.failure is not None),
            last_at=self._last_at,
        )

    def committing_for(self) -> float:
        """Return how long the commit that is under way takes so far. 0 if there is none. May be
        called in any thread."""
        began = self._began
        return 0.0 if began is None else perf_counter() - began

    def refusal(self) -> StoreError:
        """Return the error for records that cannot become durable."""
        if self.failure is None:
            return StoreError("these records were staged before the store was opened and are lost")
        # One exception per raise: a shared one would collect the tracebacks of all.
        refusal = type(self.failure)(str(self.failure))
        refusal.__cause__ = self.failure
        return refusal

    async def _drive(self) -> None:
        try:
            while self.failure is None:
                if self._full:
                    await self._commit_group(self._full.popleft())
                    continue
                if not self.group.tables:
                    if self.group.count_waiting():
                        # Its records were dropped, and all groups before it are durable.
                        group, self.group = self.group, Group(self)
                        group.settle(durable=True)
                        continue
                    if self._closing:
                        return
                    self._idle = self.attentive = True
                    await self._sleep()
                    continue
                if not self.group.wanted and not self._closing:
                    # A task that waits for the group ends the sleep, more records do not.
                    with trio.move_on_after(LINGER):
                        await self._sleep()
                if self._crowd > 1:
                    await self._assemble()
                if self.failure is None and not self._full:
                    await self._commit_group(self._close_group())
                    if self.slices is not None and not self.group.tables:
                        # Without this pass Trio, the guest of a loop, would wait for I/O in a
                        # thread before the loop has called those that the commit notified, and
                        # their records would end that wait.
                        await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self.sleeping = None
            self._stopped.set()

    async def _sleep(self) -> None:
        self.sleeping = event = trio.Event()
        try:
            await event.wait()
        finally:
            self.sleeping = None

    async def _assemble(self) -> None:
        """Let tasks stage their records that are about to, because one sync is cheaper than two: a
        task that waits for a group has often woken others, and slices of tasks that the last commit
        wakes come one after the other. For a single waiting task this is not called."""
        seen, stalled = 0, False
        passes = PASSES
        if self.slices is not None:
            while self.slices.is_waking:
                await trio.lowlevel.cancel_shielded_checkpoint()
            passes += self._crowd // self.slices.size
        for _ in range(passes):
            waiting = self.group.count_waiting()
            if waiting == seen:
                # More tasks may come in the rest of this pass.
                if stalled or waiting >= self._crowd:
                    return
                stalled = True
            else:
                seen, stalled = waiting, False
            await trio.lowlevel.cancel_shielded_checkpoint()

    def _close_group(self) -> Group:
        """Return the open group, and open the next one."""
        for add in self.on_commit:
            add(self.group)
        group, self.group = self.group, Group(self)
        return group

    async def _commit_group(self, group: Group) -> None:
        self._crowd = max(group.count_waiting(), self._crowd // 2)
        self._busy = group
        started = self._began = perf_counter()
        try:
            await self._commit(group.tables)
            self._count(group, perf_counter() - started)
            durable = self.failure is None
            if durable:
                self._publish(group.tables)
            group.settle(durable=durable)
        except StoreError as error:
            self.fail(error)
        except Exception as error:
            failure = StoreError(f"the commit failed: {error}; open the store again to continue")
            failure.__cause__ = error
            self.fail(failure)
        finally:
            self._busy = self._began = None

    def _count(self, group: Group, seconds: float) -> None:
        records = sum(map(len, group.tables.values()))
        self.durations.add(seconds)
        self.sizes.add(records)
        self._largest = max(self._largest, records)
        self._longest = max(self._longest, seconds)
        self._last_at = trio.current_time()
