"""A group: records that become durable together, and the tasks that wait for that."""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any

import trio
from outcome import Error
from trio.lowlevel import current_task, reschedule, wait_task_rescheduled

from keyrun._waking import WAKE, WaitSlot
from keyrun.storage.batch import Batch, Tables, check_table
from keyrun.storage.errors import StoreError

if TYPE_CHECKING:
    from keyrun.storage.group_commit import GroupCommit

Section = tuple[dict[str, dict[bytes, bytes | None]], list[Any], list[Any] | None]
"""The tables of a group, its callbacks, and the callbacks that take changes back."""


class Group(Batch):
    """Records that become durable together: a batch to which any code may add while it is open.

    Code whose keys are always valid may add to `table(name)` without `put`, which checks them.
    """

    __slots__ = (
        "_commits",
        "_listeners",
        "_measured",
        "_settled",
        "_size",
        "_undo",
        "_waiting",
        "callbacks",
        "durable",
        "wanted",
    )

    def __init__(self, commits: "GroupCommit") -> None:
        super().__init__()
        self._commits = commits
        self.wanted = False
        self.durable = False
        """Whether the records of this group are on the disk."""
        self._undo: list[Any] | None = None
        """The callbacks of `when_dropped`, each followed by its arguments. None outside of a
        block."""
        self._settled = False
        self._measured: dict[str, int] = {}
        """The number of records of each table that `_size` has."""
        self._size = 0
        self._listeners: list[Callable[[StoreError | None], None]] = []
        self._waiting: dict[trio.lowlevel.Task, None] = {}
        self.callbacks: list[Any] = []
        """The callbacks of `when_durable`, each followed by its arguments. Pairs would be more
        objects, which Python's garbage collector visits until the commit."""

    def when_durable(self, callback: Callable[..., None], *args: Any) -> None:
        """Call `callback` when the group is durable, before the waiting tasks resume, in the order
        of these calls. It is not called if the commit fails, and must not raise."""
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
        failed with. This waits for the group without a task. The callback must not raise."""
        if self._settled:
            callback(None if self.durable else self._commits.refusal())
            return
        self._listeners.append(callback)
        self.hasten()

    def together(self) -> "Together":
        """Return a block that stages all of its records and callbacks, or none if it raises. In the
        block the group has only what the block has staged. Nothing may be awaited in it."""
        return Together(self)

    def in_block(self) -> bool:
        """Return whether a block of `together` is being staged."""
        return self._undo is not None

    def measure(self) -> int:
        """Return the bytes of the records. A value that replaced another is not counted again. Do
        not call this while a block is being staged."""
        measured = self._measured
        for table, operations in self.tables.items():
            count = len(operations)
            new = count - measured.get(table, 0)
            if new:
                measured[table] = count
                for key, value in islice(reversed(operations.items()), new):
                    self._size += len(key) + (0 if value is None else len(value))
        return self._size

    def merge(self, tables: Tables) -> None:
        """Add all records of `tables`. Add none if a table is rejected."""
        self._commits.admit(tables)
        for table, operations in tables.items():
            self.table(table).update(operations)

    def table(self, name: str) -> dict[bytes, bytes | None]:
        """Return the operations on a table, to add to."""
        try:
            return self.tables[name]
        except KeyError:
            return self._add(name)

    def _add(self, table: str) -> dict[bytes, bytes | None]:
        if self.durable:
            raise StoreError(
                "this group is durable already; call open_group() again after each await"
            )
        if table not in self._commits.tables:
            check_table(table)
            self._commits.admit((table,))
        operations = self.tables[table] = {}
        return operations

    def begin_section(self) -> Section:
        """Collect the records staged from now on separately. Return the records staged before."""
        before = self.tables, self.callbacks, self._undo
        self.tables, self.callbacks, self._undo = {}, [], []
        return before

    def end_section(self, before: Section, *, keep: bool) -> None:
        """Add the records staged since `begin_section` to those staged before, or drop them."""
        staged, called, undo = self.tables, self.callbacks, self._undo
        self.tables, self.callbacks, self._undo = tables, callbacks, outer = before
        if keep:
            for table, operations in staged.items():
                known = tables.get(table)
                if known is None:
                    tables[table] = operations
                else:
                    known.update(operations)
            callbacks += called
            if outer is not None:
                outer += undo or ()
        elif undo:
            for at in range(len(undo) - 2, -1, -2):
                undo[at](*undo[at + 1])

    def count_waiting(self) -> int:
        """Return how many wait for the group: tasks, and callbacks of `notify`."""
        return len(self._waiting) + len(self._listeners)

    def hasten(self) -> None:
        """Let the group be committed as soon as possible."""
        self.wanted = True
        commits = self._commits
        if commits.sleeping is not None:
            commits.wake()

    def wait(self) -> Awaitable[None]:
        """Return an awaitable that ends when the group is durable, or raises the error of its
        commit. Await it at once. It is faster than an event, because every step needs it."""
        if self._settled:
            return self._outcome()
        self.wanted = True
        if self._commits.sleeping is not None:
            self._commits.wake()
        task = current_task()
        waiting = self._waiting
        waiting[task] = None
        # A closure takes longer to make.
        return wait_task_rescheduled(partial(_leave, waiting, task))  # noqa: ASYNC105

    def wait_in(self, slot: WaitSlot) -> Awaitable[None]:
        """Do the same as `wait`, for the task of a wait slot, in half the time."""
        if self._settled:
            return self._outcome()
        self.wanted = True
        if self._commits.sleeping is not None:
            self._commits.wake()
        return slot.wait(self._waiting)

    def adopt(self, task: trio.lowlevel.Task) -> None:
        """Let a suspended task wait for this group: it resumes as after `wait`. The abort function
        of the task has to call `leave`."""
        self.wanted = True
        if self._commits.sleeping is not None:
            self._commits.wake()
        self._waiting[task] = None

    def leave(self, task: trio.lowlevel.Task) -> None:
        """Record that a task passed to `adopt` does not wait any more."""
        del self._waiting[task]

    async def _outcome(self) -> None:
        if not self.durable:
            raise self._commits.refusal()

    def settle(self, *, durable: bool) -> None:
        """Wake the waiting tasks. A durable group drops its records first."""
        self._settled = True
        if durable:
            self.durable = True
            self.tables = {}
            # Callbacks refer to objects that refer to this group.
            callbacks, self.callbacks = self.callbacks, []
            each = iter(callbacks)
            for callback in each:
                callback(*next(each))
        slices = self._commits.slices
        if slices is not None and durable:
            # A task is in the dict until it is woken, so that a cancellation can remove it before.
            slices.add(self._waiting)
        else:
            waiting, self._waiting = self._waiting, {}
            for task in waiting:
                reschedule(task, WAKE if durable else Error(self._commits.refusal()))
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(None if durable else self._commits.refusal())


class Together:
    """A block whose records are staged as a whole. `Group.together` returns it."""

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


def _leave(
    waiting: dict[trio.lowlevel.Task, None], task: trio.lowlevel.Task, _: object
) -> trio.lowlevel.Abort:
    """Remove a task that waits for a group. Trio calls this when the task is cancelled."""
    del waiting[task]
    return trio.lowlevel.Abort.SUCCEEDED
