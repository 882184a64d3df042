"""Group commit: everything staged since the last commit goes into one transaction and one sync.

The protocol, with what always holds:

1. Records are staged into the *open* group. There is one, and it is in memory only.
2. The driver closes the group when somebody waits for it, or `LINGER` seconds after its first
   record, and commits it; where many wait, it lets more come in first, for a few passes of the
   loop. What is staged meanwhile goes into the next group.
3. Groups are committed one at a time, in order. So whoever waits for a group knows that every
   group before it is durable, too.
4. When the commit of a group has returned, its records become readable, its callbacks run and
   its waiters are woken. No other task runs in between: whatever can be read is known to be
   durable.
5. The first error ends it: the group that failed, what was staged behind it, and everything that
   is staged later raise that error. Nothing is retried, since after a failed sync nobody knows
   what the disk holds; opening the store again does.

Leaving while waiting changes nothing for the group: a commit belongs to nobody's cancel scope.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from time import perf_counter

import attrs
import trio

from keyrun._waking import WAKE
from keyrun.storage.batch import Tables
from keyrun.storage.errors import StoreClosed, StoreError, TooManyTables
from keyrun.storage.group import Group

LINGER = 0.05

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


class Slices:
    """Wakes tasks a few at a time, in consecutive passes of the loop."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._waiting: deque[dict[trio.lowlevel.Task, None]] = deque()
        self._is_running = False

    def add(self, waiting: dict[trio.lowlevel.Task, None]) -> None:
        """Wake these tasks, after those that were added before. A task leaves the dict when it is
        woken."""
        self._waiting.append(waiting)
        if not self._is_running and not self._wake_slice():
            self._is_running = True
            trio.lowlevel.spawn_system_task(self._run, name="keyrun.storage.Slices")

    def _wake_slice(self) -> bool:
        """Wake the next tasks, and return whether these were the last."""
        left = self.size
        while self._waiting:
            tasks = self._waiting[0]
            while tasks:
                if not left:
                    return False
                left -= 1
                task = next(iter(tasks))
                del tasks[task]
                trio.lowlevel.reschedule(task, WAKE)
            self._waiting.popleft()
        return True

    async def _run(self) -> None:
        try:
            await trio.lowlevel.cancel_shielded_checkpoint()
            while not self._wake_slice():
                await trio.lowlevel.cancel_shielded_checkpoint()
        finally:
            self._is_running = False


class GroupCommit:
    """Collects staged records and commits them in groups, by a task of its own.

    `tables` are those that the store has, and `max_tables` how many it may have.
    """

    def __init__(
        self,
        commit: Callable[[Tables], Awaitable[None]],
        publish: Callable[[Tables], None],
        *,
        tables: Iterable[str] = (),
        max_tables: int = 128,
    ) -> None:
        self._commit = commit
        self._publish = publish
        self._tables = set(tables)
        self._max_tables = max_tables
        self.group = Group(self)
        """The group that is open; to be had through `open_group` while the driver is attentive."""
        self._busy: Group | None = None
        self.sleeping: trio.Event | None = None
        """What wakes the driver, while it sleeps."""
        self.attentive = False
        """Whether more records make a difference: to a driver that has nothing to do, or since
        nothing can be written any more."""
        self._closing = False
        self._stopped = trio.Event()
        self.failure: StoreError | None = None
        self.on_failure: list[Callable[[StoreError], None]] = []
        """Called with the first failure; must not raise."""
        self.on_commit: list[Callable[[Group], None]] = []
        """Called with a group that is about to be committed, to add the latest records; must not
        raise."""
        self.slices: Slices | None = None
        """Wakes the tasks that wait for a commit a few at a time, if that is asked for."""
        self._crowd = 0
        """How many waited for the last group, or for those before if that was few."""
        self._commits = self._records = self._largest = 0
        self._seconds = self._longest = 0.0

    def start(self, failure: StoreError | None = None) -> None:
        """Start the driver, or refuse everything with `failure`. A system task: the store may be
        shared by blocks that end in any order, so none of their nurseries can own it."""
        self.failure = failure
        self.attentive = failure is not None
        trio.lowlevel.spawn_system_task(self._drive, name="keyrun.storage.GroupCommit")

    def wake_in_slices(self, size: int) -> None:
        """From now on, wake at most `size` of the tasks that wait for a commit in each pass of the
        loop. A host that shares its loop with Trio gets its turn in between."""
        self.slices = self.slices or Slices(size)

    def open_group(self) -> Group:
        """The group that is open, for records to be put into it right away."""
        if self.attentive:
            if self.failure is not None:
                raise self.refusal()
            if self._closing:
                raise StoreClosed("the store is closing; stage records before you leave its block")
            self.wake()
        return self.group

    def admit(self, tables: Iterable[str]) -> None:
        """Make sure that the store may have all of `tables`: a commit must not fail over that."""
        if self._tables.issuperset(tables):
            return
        wanted = self._tables.union(tables)
        if len(wanted) > self._max_tables:
            raise TooManyTables(
                next(table for table in tables if table not in self._tables), self._max_tables
            )
        self._tables = wanted

    def wake(self) -> None:
        """Have the driver look at the open group."""
        self.attentive = self._closing or self.failure is not None
        if self.sleeping is not None:
            self.sleeping.set()
            self.sleeping = None

    async def durable(self, group: Group | None = None) -> None:
        """Return when `group`, by default everything staged before this call, is durable."""
        if group is None or group is self.group:
            group = self.group if self.group.tables else self._busy
            if group is None:
                if self.failure is not None:
                    raise self.refusal()
                await trio.lowlevel.checkpoint()
                return
        await group.wait()

    def fail(self, error: StoreError) -> None:
        """Refuse everything from here on, and tell all who wait."""
        self.attentive = True
        if self.failure is None:
            self.failure = error
            for callback in self.on_failure:
                callback(error)
        for group in (self._busy, self.group):
            if group is not None:
                group.settle(durable=False)
        self.group = Group(self)

    def disown(self, error: StoreError) -> None:
        """Refuse everything from here on in a forked child, whose copies of the tasks that wait
        are not to be woken."""
        self.attentive = True
        self.failure = error

    async def stop(self) -> None:
        """Take no more, commit what is staged, then end the driver."""
        self._closing = True
        self.wake()
        await self._stopped.wait()

    def statistics(self) -> CommitStatistics:
        """A snapshot of the counters."""
        return CommitStatistics(
            commits=self._commits,
            records=self._records,
            largest=self._largest,
            staged=sum(map(len, self.group.tables.values())),
            seconds=self._seconds,
            longest=self._longest,
        )

    def refusal(self) -> StoreError:
        """What somebody gets whose records cannot become durable."""
        if self.failure is None:
            return StoreError("these records were staged before the store was opened and are lost")
        # One exception per raise: a shared one would collect the tracebacks of all.
        refusal = type(self.failure)(str(self.failure))
        refusal.__cause__ = self.failure
        return refusal

    async def _drive(self) -> None:
        try:
            while self.failure is None:
                if not self.group.tables:
                    if self.group.waiting:
                        # What it had was dropped, and all groups before it are durable.
                        group, self.group = self.group, Group(self)
                        group.settle(durable=True)
                        continue
                    if self._closing:
                        return
                    self.attentive = True
                    await self._sleep()
                    continue
                if not self.group.wanted and not self._closing:
                    # Woken by whoever wants the group, not by more records.
                    with trio.move_on_after(LINGER):
                        await self._sleep()
                if self._crowd > 1:
                    await self._assemble()
                if self.failure is None:
                    await self._commit_group()
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
        """Let those stage their records who are about to: whoever waits for a group has often woken
        others on the way, and one sync is cheaper than two. Nobody does this for one alone."""
        seen, stalled = 0, False
        passes = PASSES
        if self.slices is not None:
            passes += self._crowd // self.slices.size
        for _ in range(passes):
            waiting = self.group.waiting
            if waiting == seen:
                # Those who are missing may come in the rest of this pass.
                if stalled or waiting >= self._crowd:
                    return
                stalled = True
            else:
                seen, stalled = waiting, False
            await trio.lowlevel.cancel_shielded_checkpoint()

    async def _commit_group(self) -> None:
        for add in self.on_commit:
            add(self.group)
        group, self.group = self.group, Group(self)
        self._crowd = max(group.waiting, self._crowd // 2)
        self._busy = group
        started = perf_counter()
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
            self._busy = None

    def _count(self, group: Group, seconds: float) -> None:
        records = sum(map(len, group.tables.values()))
        self._commits += 1
        self._records += records
        self._largest = max(self._largest, records)
        self._seconds += seconds
        self._longest = max(self._longest, seconds)
