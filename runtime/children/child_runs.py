"""Child runs: admit children under other keys, notify their parents, and cancel orphans.

| table    | key                   | contents                                                 |
|----------|-----------------------|----------------------------------------------------------|
| children | number of the parent, | id and key of the child, whether it has ended, and whether |
|          | number of the child   | it is an orphan: its parent no longer waits for it       |

The record exists from the admission of the child until its parent has received its end. So after a
crash, evicted parents are woken and orphans are cancelled.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import trio

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.records.ids import number_in
from keyrun.runtime.records.journal_entry import CHILD, CallKind, CallRecord, WaitBegan
from keyrun.runtime.records.submission import Parent, StatusRecord, Submission, write_failure
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import Failure, FailureKind, Priority
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.children.cycles import Cycles
    from keyrun.runtime.limits import Limits
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.runtime.waiting.eviction import Evictor
    from keyrun.runtime.waiting.signals import Signals
    from keyrun.storage.group import Group

PAGE = 500


class ChildAdmission(Protocol):
    """Admits runs."""

    def describe(
        self,
        workflow: Workflow[Any, Any],
        input_: Any,
        key: str,
        run_id: str | None,
        headers: Mapping[str, str] | None,
        tags: Iterable[str],
        priority: Priority,
        limits: "Limits | None",
        delay: float,
    ) -> Submission:
        """Return a checked submission."""

    def admit(self, submission: Submission) -> "Group":
        """Stage a run with its place."""


class ChildControl(Protocol):
    """Ends runs from outside."""

    async def cancel(self, run_id: str) -> bool:
        """Cancel a run. Return whether it had not ended."""

    async def fail_at_rest(self, run_id: str, failure: Failure) -> None:
        """Fail a run that no actor drives."""


class Children:
    """The children of a partition that run under other keys."""

    admission: ChildAdmission
    control: ChildControl
    """The wiring sets both: they need children themselves."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        *,
        signals: "Signals",
        eviction: "Evictor",
        cycles: "Cycles",
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._signals = signals
        self._eviction = eviction
        self._cycles = cycles
        self.used = False
        """Whether any run has children under other keys."""
        self._ended_children: deque[tuple[int, str]] = deque()
        """Parents to wake, and the channel of the child that has ended."""
        self._orphans: deque[tuple[int, str]] = deque()
        """Children to cancel: the number of the parent and the id of the child."""
        self._orphaned: set[str] = set()
        """Children whose end is not sent to their parent."""
        self._unchecked: set[int] = set()
        """Children that may close a cycle and have not been checked."""
        self._news = trio.Event()

    async def admit(
        self,
        run: Run,
        ident: str,
        memory: CallRecord,
        workflow: Workflow[Any, Any],
        input_: Any,
        key: str,
        depth: int,
    ) -> None:
        """Start a child in one commit with the parent's journal entry."""
        partition, status = self._partition, run.status
        headers = {
            name: value
            for name, value in run.submission.headers.items()
            if not name.startswith("keyrun.")
        }
        priority: Priority = run.submission.priority
        described = self.admission.describe(
            workflow, input_, key, None, headers, (), priority, None, 0
        )
        if partition.tracer is not None:
            described.headers = partition.tracer.child_headers(run, headers)
        described.origin = f"child:{run.run_id}"
        described.parent = Parent(run.number, run.key, status.place or 0, depth)
        self.used = True
        with partition.together() as group:
            self.admission.admit(described)
            channel = memory.channel = CHILD + described.run_id
            memory.call = CallKind.CHILD
            at = run.partition.wall()
            run.write(WaitBegan(ident, at, CallKind.CHILD, channel, None, memory.child))
            memory.rank = run.journal.next - 1
            self._put(group, run.number, described.number, described.run_id, key)
        self._unchecked.add(described.number)
        await partition.store.durable(group)

    async def check_cycle(self, run: Run, child_id: str, key: str) -> None:
        """Fail a child that would close a cycle, before its parent waits for it. A child that was
        checked in this process is not checked again. A crash, or another pass of the parent, may
        have cut off an earlier check."""
        number = number_in(child_id)
        if number is None or not (number in self._unchecked or number < self._partition.opened_at):
            return
        await self._refuse_cycle(run, child_id, number, key)
        self._unchecked.discard(number)

    def _put(
        self,
        group: "Group",
        parent: int,
        child: int,
        run_id: str,
        key: str,
        *,
        ended: bool = False,
        orphaned: bool = False,
    ) -> None:
        record = self._partition.ledger.sequenced(parent, child)
        group.put("children", record, sealed("children", record, run_id, key, ended, orphaned))

    def ended(
        self, about: Submission, status: StatusRecord, group: "Group"
    ) -> "Callable[[], object] | None":
        """Stage the message to the parent of a child, in the group that has the child's end. Return
        a function that passes the message to the parent, to be called when the whole end is staged.
        None if the parent is not in memory."""
        partition, parent = self._partition, about.parent
        assert parent is not None
        if about.run_id in self._orphaned:
            self._orphaned.discard(about.run_id)
            group.when_dropped(self._orphaned.add, about.run_id)
            group.delete("children", partition.ledger.sequenced(parent.number, about.number))
            return None
        outcome = [
            str(status.state),
            status.result,
            write_failure(status.failure),
            status.reason,
        ]
        signal = self._signals.stage(group, parent.number, CHILD + about.run_id, outcome)
        self._put(group, parent.number, about.number, about.run_id, about.key, ended=True)
        live = self._runs.live(parent.number)
        if live is not None and not live.status.state.terminal:
            return partial(live.deliver, signal)
        group.when_durable(self._notify_parent, parent.number, CHILD + about.run_id)
        return None

    def _notify_parent(self, parent: int, channel: str) -> None:
        self._ended_children.append((parent, channel))
        self._news.set()

    def end_received(self, run: Run, child_id: str) -> None:
        """Stage that a parent has received the end of a child."""
        number = number_in(child_id)
        if number is not None:
            run.delete("children", self._partition.ledger.sequenced(run.number, number))

    def orphan(self, run: Run, child_id: str) -> None:
        """Cancel a child that its parent no longer waits for, also if this process is killed."""
        number = number_in(child_id)
        if number is None:
            return
        with self._partition.together() as group:
            run.staged = group
            if self._signals.discard(run, CHILD + child_id):
                # The child has ended, and its parent had not received that.
                run.delete("children", self._partition.ledger.sequenced(run.number, number))
            else:
                self.stage_orphan(group, run.number, number, child_id)

    def stage_orphan(self, group: "Group", parent: int, child: int, child_id: str) -> None:
        """Stage that a child is an orphan, and cancel it when that is durable."""
        self._orphaned.add(child_id)
        group.when_dropped(self._orphaned.discard, child_id)
        self._put(group, parent, child, child_id, "", orphaned=True)
        group.when_durable(self._cancel, parent, child_id)

    async def of(self, parent: int) -> list[tuple[int, str]]:
        """Return the numbers and ids of the children of a run that have not ended."""
        found = []
        for record, raw in await self._partition.store.scan(
            "children", prefix=self._partition.ledger.number(parent)
        ):
            child = await self._read(record, raw)
            if child is not None and not child[1]:
                found.append((int.from_bytes(record[-8:], "big"), child[0]))
        return found

    def _cancel(self, parent: int, child_id: str) -> None:
        self._orphans.append((parent, child_id))
        self._news.set()

    def cancel_children(self, run: Run) -> None:
        """Cancel the children of a run that ends before them."""
        for memory in run.journal.memories.values():
            if memory.call is CallKind.CHILD and memory.outcome is None and memory.rank:
                self.orphan(run, (memory.channel or "").removeprefix(CHILD))

    async def recover(self) -> None:
        """Find out whether the store has children."""
        prefix = self._partition.ledger.prefix
        self.used = bool(await self._partition.store.scan("children", prefix=prefix, limit=1))

    async def run(self) -> None:
        """Wake parents whose children have ended, and cancel orphans, until cancelled."""
        await self._partition.counted.wait()
        await self._recover_records()
        async with trio.open_nursery() as nursery:
            while True:
                while self._ended_children:
                    await self._wake(*self._ended_children.popleft())
                while self._orphans:
                    nursery.start_soon(self._end, *self._orphans.popleft())
                self._news = trio.Event()
                await self._news.wait()

    async def _end(self, parent: int, child_id: str) -> None:
        """Cancel an orphan."""
        partition, number = self._partition, number_in(child_id)
        if not await self.control.cancel(child_id) and number is not None:
            # The child had ended before.
            self._orphaned.discard(child_id)
            partition.store.open_group().delete(
                "children", partition.ledger.sequenced(parent, number)
            )

    async def _wake(self, number: int, channel: str) -> None:
        partition = self._partition
        if self._runs.live(number) is not None:
            return
        resting = self._runs.at_rest(number)
        try:
            submission = await partition.ledger.submission(number)
            status = resting.status if resting else await partition.ledger.status(number)
        except StoreCorrupt:
            return  # the run is set aside when it is loaded
        if submission is None or (status is not None and status.state.terminal):
            await self._forget(number, channel)
        elif status is None:
            # An internal error or a kill came before the parent stored its first status. The
            # parent receives the message when it is loaded.
            return
        elif status.evicted_wait is not None and channel in status.evicted_wait.channels:
            key, place = submission.key, status.place
            await self._eviction.wake(number, key, place, status.evicted_wait.due)
            partition.store.hasten()

    async def _forget(self, number: int, channel: str) -> None:
        """Remove the message about the end of a child whose parent has ended, too."""
        partition = self._partition
        group = partition.store.open_group()
        for signal in await self._signals.stored(number):
            if signal.channel == channel:
                group.delete("signals", partition.ledger.sequenced(number, signal.sequence))
        child = await partition.ledger.find(channel.removeprefix(CHILD))
        if child is not None:
            group.delete("children", partition.ledger.sequenced(number, child))

    async def _recover_records(self) -> None:
        """Notify parents and cancel orphans that an earlier process has left."""
        ledger = self._partition.ledger
        async for rows in ledger.pages("children", size=PAGE):
            for record, raw in rows:
                child = await self._read(record, raw)
                parent = ledger.split_number(record)[0]
                if child is None:
                    continue
                run_id, ended, orphaned = child
                if ended:
                    self._ended_children.append((parent, CHILD + run_id))
                elif orphaned or await self._has_ended(parent):
                    self._orphaned.add(run_id)
                    self._orphans.append((parent, run_id))

    async def _read(self, record: bytes, raw: bytes) -> tuple[str, bool, bool] | None:
        try:
            run_id, _, ended, orphaned = unseal("children", record, raw)
        except StoreCorrupt:
            number = int.from_bytes(record[-8:], "big")
            submission = await self._partition.ledger.submission(number)
            return None if submission is None else (submission.run_id, True, False)
        return run_id, ended, orphaned

    async def _has_ended(self, number: int) -> bool:
        try:
            status = await self._partition.ledger.status(number)
        except StoreCorrupt:
            return False
        return status is not None and status.state.terminal

    async def _refuse_cycle(self, run: Run, child_id: str, number: int, key: str) -> None:
        """Fail a child that would wait for its own parent, if it is the youngest in the cycle."""
        found = await self._cycles.find(run.number, (key, number))
        if found is None:
            return
        # Before that, it is unknown whether the child has been counted as waiting to be started.
        await self._partition.counted.wait()
        keys = " -> ".join([run.key, *(key for key, _ in found)])
        reason = f"children that wait for each other's keys would wait forever: {keys}"
        failure = Failure(kind=FailureKind.CHILD_FAILED, reason=reason)
        await self.control.fail_at_rest(child_id, failure)
