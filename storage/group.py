"""A group: records that become durable together, and the tasks that wait for that."""

from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio
from outcome import Error

from keyrun._waking import WAKE, WaitSlot
from keyrun.storage.batch import Batch, Tables, check_table
from keyrun.storage.errors import StoreError

if TYPE_CHECKING:
    from keyrun.storage.group_commit import GroupCommit


Section = tuple[dict[str, dict[bytes, bytes | None]], list[Any], list[Any] | None]
"""The tables of a group, its callbacks, and the callbacks that take changes back."""


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

    __slots__ = (
        "_commits",
        "_listeners",
        "_settled",
        "_undo",
        "_waiting",
        "callbacks",
        "durable",
        "wanted",
    )

    def __init__(self, commits: "GroupCommit") -> None:
        super().__init__()
        self.tables = _Tables(commits.admit)
        self._commits = commits
        self.wanted = False
        self.durable = False
        """Whether the records of this group are on the disk."""
        self._undo: list[Any] | None = None
        """What `when_dropped` adds to; None outside of a block."""
        self._settled = False
        self._listeners: list[Callable[[StoreError | None], None]] = []
        self._waiting: dict[trio.lowlevel.Task, None] = {}
        self.callbacks: list[Any] = []
        """What `when_durable` adds to: each callback followed by its arguments. Pairs would be
        objects of their own, for Python's garbage collector to look at until the commit."""

    def when_durable(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` once the group is durable, before anybody who waits is woken, in the
        order of these calls. It is not called if the commit fails, and must not raise."""
        callbacks = self.callbacks
        callbacks.append(callback)
        callbacks.append(args)

    def when_dropped(self, callback: Callable[..., object], *args: Any) -> None:
        """Call `callback` if the block of `together` that this is called in raises, to take back a
        change in memory that belongs to the records of the block. It must not raise."""
        if self._undo is not None:
            self._undo += (callback, args)

    def notify(self, callback: Callable[[StoreError | None], None]) -> None:
        """Call `callback` with None when the group is durable, or with the error that its commit
        failed with. A way to wait for the group without a task. It must not raise."""
        if self._settled:
            callback(None if self.durable else self._commits.refusal())
            return
        self._listeners.append(callback)
        self.hasten()

    def together(self) -> "Together":
        """Return a block that stages all of its records and callbacks, or none if it raises. In the
        block the group has only what the block has staged. Nothing may be awaited in it."""
        return Together(self)

    @property
    def in_block(self) -> bool:
        """Whether a block of `together` is being staged."""
        return self._undo is not None

    def merge(self, tables: Tables) -> None:
        """Lay `tables` on top, all of them or, if one is refused, none."""
        self._commits.admit(tables)
        own = self.tables
        for table, operations in tables.items():
            own[table].update(operations)

    def _add(self, table: str) -> dict[bytes, bytes | None]:
        return self.tables[table]

    def begin_section(self) -> Section:
        """Collect what is staged from now on apart. Return what was staged before."""
        before = self.tables, self.callbacks, self._undo
        self.tables, self.callbacks, self._undo = _Tables(self._commits.admit), [], []
        return before

    def end_section(self, before: Section, *, keep: bool) -> None:
        """Add what was staged since `begin_section` to what was staged before, or drop it."""
        staged, called, undo = self.tables, self.callbacks, self._undo
        self.tables, self.callbacks, self._undo = tables, callbacks, outer = before
        if keep:
            for table, operations in staged.items():
                tables[table].update(operations)
            callbacks += called
            if outer is not None:
                outer += undo or ()
        elif undo:
            for at in range(len(undo) - 2, -1, -2):
                undo[at](*undo[at + 1])

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

    def wait_in(self, seat: WaitSlot) -> Awaitable[None]:
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
            callbacks, self.callbacks = self.callbacks, []
            each = iter(callbacks)
            for callback in each:
                callback(*next(each))
        slices = self._commits.slices
        if slices is not None and durable:
            # The tasks leave the dict when they are woken, so one that is cancelled before can go.
            slices.add(self._waiting)
        else:
            waiting, self._waiting = self._waiting, {}
            reschedule = trio.lowlevel.reschedule
            for task in waiting:
                reschedule(task, WAKE if durable else Error(self._commits.refusal()))
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(None if durable else self._commits.refusal())


class Together:
    """A block whose records are staged as a whole; see `Group.together`."""

    __slots__ = ("_before", "_group")

    def __init__(self, group: Group) -> None:
        self._group = group

    def __enter__(self) -> Group:
        self._before = self._group.begin_section()
        return self._group

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._group.end_section(self._before, keep=kind is None)


def _too_late(tables: Iterable[str]) -> None:
    raise StoreError("this group is durable already; call open_group() again after each await")


def _leave(
    waiting: dict[trio.lowlevel.Task, None], task: trio.lowlevel.Task, _: object
) -> trio.lowlevel.Abort:
    """What Trio calls when a task that waits for a group is cancelled."""
    del waiting[task]
    return trio.lowlevel.Abort.SUCCEEDED
