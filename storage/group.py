"""Group commit: everything staged since the last commit goes into one transaction and one sync.

The protocol, with what always holds:

1. Records are staged into the *open* group. There is one, and it is in memory only.
2. The driver closes the group when somebody waits for it, or `LINGER` seconds after its first
   record, and commits it; where many wait, it lets more come in first, for a few passes of the
   loop. What is staged meanwhile goes into the next group.
3. Groups are committed one at a time, in order. So whoever waits for a group knows that every
   group before it is durable, too.
4. A group is done when its commit has returned, and only then are its waiters woken.
5. The first error ends it: the group that failed, what was staged behind it, and everything that
   is staged later raise that error. Nothing is retried, since after a failed sync nobody knows
   what the disk holds; opening the store again does.

Leaving while waiting changes nothing for the group: a commit belongs to nobody's cancel scope.
"""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from time import perf_counter
from typing import Any

import attrs
import trio
from outcome import Error

from keyrun.storage.batch import Batch, Tables, check_table
from keyrun.storage.errors import StoreClosed, StoreError, TooManyTables
from keyrun.waking import GO_ON, Seat

LINGER = 0.05

PASSES = 8
"""Passes of the loop that a group may wait for more records while more and more tasks want it."""


class _Tables(dict[str, dict[bytes, bytes | None]]):
    """The tables of a group. What is asked for the first time is looked at, and nothing after it:
    to put into a table that the group has is as fast as a dict."""

    __slots__ = ("_admit",)

    def __init__(self, admit: Callable[[Iterable[str]], None]) -> None:
        self._admit = admit

    def __missing__(self, table: str) -> dict[bytes, bytes | None]:
        check_table(table)
        self._admit((table,))
        operations = self[table] = {}
        return operations


class Group(Batch):
    """Records that become durable together: a batch that anybody may add to while it is open.

    Whoever makes sound keys by construction may put into `tables[table]` without `put`.
    """

    __slots__ = ("_callbacks", "_commits", "_settled", "_waiting", "durable", "wanted")

    def __init__(self, commits: "GroupCommit") -> None:
        super().__init__()
        self.tables = _Tables(commits.admit)
        self._commits = commits
        self.wanted = False
        self.durable = False
        """Whether the records of this group are on the disk."""
        self._settled = False
        self._waiting: dict[trio.lowlevel.Task, None] = {}
        self._callbacks: list[Any] = []
        """Each followed by its arguments. Pairs would be objects of their own, for Python's garbage
        collector to look at until the commit."""

    def when_durable(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` once the group is durable, before anybody who waits is woken, in the
        order of these calls. It is not called if the commit fails, and must not raise."""
        callbacks = self._callbacks
        callbacks.append(callback)
        callbacks.append(args)

    def merge(self, tables: Tables) -> None:
        """Lay `tables` on top, all of them or, if one is refused, none."""
        self._commits.admit(tables)
        own = self.tables
        for table, operations in tables.items():
            own[table].update(operations)

    def _add(self, table: str) -> dict[bytes, bytes | None]:
        return self.tables[table]

    @property
    def waiting(self) -> int:
        """How many tasks wait for it."""
        return len(self._waiting)

    def hasten(self) -> None:
        """Have it committed as soon as may be."""
        self.wanted = True
        commits = self._commits
        if commits.sleeping is not None:
            commits.wake()

    def wait(self) -> Awaitable[None]:
        """To be awaited at once: returns when the group is durable, or raises what its commit
        failed with. An Event would do; this is on the path of every step."""
        if self._settled:
            return self._outcome()
        self.wanted = True
        if self._commits.sleeping is not None:
            self._commits.wake()
        task = trio.lowlevel.current_task()
        waiting = self._waiting
        waiting[task] = None
        # A closure takes longer to make.
        return trio.lowlevel.wait_task_rescheduled(partial(_leave, waiting, task))  # noqa: ASYNC105

    def wait_in(self, seat: Seat) -> Awaitable[None]:
        """Like `wait`, for the task of a seat: that takes half the time."""
        if self._settled:
            return self._outcome()
        self.wanted = True
        if self._commits.sleeping is not None:
            self._commits.wake()
        return seat.wait(self._waiting)

    def adopt(self, task: trio.lowlevel.Task) -> None:
        """Have a task wait for this group that is blocked elsewhere: it is woken as by `wait`, and
        whoever learns that it is cancelled calls `leave`."""
        self.wanted = True
        if self._commits.sleeping is not None:
            self._commits.wake()
        self._waiting[task] = None

    def leave(self, task: trio.lowlevel.Task) -> None:
        """A task that was adopted does not wait any more."""
        del self._waiting[task]

    async def _outcome(self) -> None:
        if not self.durable:
            raise self._commits.refusal()

    def settle(self, *, durable: bool) -> None:
        """Wake everybody; a durable group has let go of its records."""
        self._settled = True
        if durable:
            self.durable = True
            self.tables = _Tables(_too_late)
            # Callbacks lead to whatever staged the records, and that leads here.
            callbacks, self._callbacks = self._callbacks, []
            each = iter(callbacks)
            for callback in each:
                callback(*next(each))
        waiting, self._waiting = self._waiting, {}
        reschedule = trio.lowlevel.reschedule
        for task in waiting:
            reschedule(task, GO_ON if durable else Error(self._commits.refusal()))


def _too_late(tables: Iterable[str]) -> None:
    raise StoreError("this group is durable already; ask for open_group() again after each await")


def _leave(
    waiting: dict[trio.lowlevel.Task, None], task: trio.lowlevel.Task, _: object
) -> trio.lowlevel.Abort:
    """What Trio calls when a task that waits for a group is cancelled."""
    del waiting[task]
    return trio.lowlevel.Abort.SUCCEEDED


@attrs.frozen(kw_only=True)
class CommitStatistics:
    """What group commit has done since the store was opened."""

    commits: int
    records: int
    largest: int
    staged: int
    seconds: float
    longest: float


class GroupCommit:
    """Collects staged records and commits them in groups, by a task of its own.

    `tables` are those that the store has, and `max_tables` how many it may have.
    """

    def __init__(
        self,
        commit: Callable[[Tables], Awaitable[None]],
        *,
        tables: Iterable[str] = (),
        max_tables: int = 128,
    ) -> None:
        self._commit = commit
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

    def open_group(self) -> Group:
        """The group that is open, for records to be put into it right away."""
        if self.attentive:
            if self.failure is not None:
                raise self.refusal()
            if self._closing:
                raise StoreClosed("the store is being closed; stage before its block is left")
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
            return StoreError("this was staged before the store was opened, and is lost")
        # One exception per raise: a shared one would collect the tracebacks of all.
        refusal = type(self.failure)(str(self.failure))
        refusal.__cause__ = self.failure
        return refusal

    async def _drive(self) -> None:
        try:
            while self.failure is None:
                if not self.group.tables:
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
        for _ in range(PASSES):
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
        group, self.group = self.group, Group(self)
        self._crowd = max(group.waiting, self._crowd // 2)
        self._busy = group
        started = perf_counter()
        try:
            await self._commit(group.tables)
            self._count(group, perf_counter() - started)
            group.settle(durable=self.failure is None)
        except StoreError as error:
            self.fail(error)
        except Exception as error:
            failure = StoreError(f"the commit failed: {error}; open the store again to go on")
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
