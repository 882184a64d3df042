"""Children of other keys: who started whom, who waits for whom, and who is left alone.

| table    | key                   | what                                                     |
|----------|-----------------------|----------------------------------------------------------|
| children | number of the parent, | id and key of the child, whether it has ended, and whether |
|          | number of the child   | nobody waits for it any more                             |

The record is there from the child's admission until its parent was told, so that after a crash
parents that sleep are woken, and children that nobody waits for are cancelled.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import trio

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.records.ids import number_in
from keyrun.runtime.records.journal_entry import CHILD, CallKind, CallRecord, WaitBegan
from keyrun.runtime.records.submission import Parent, Standing, Submission, write_failure
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
    """The families of a runtime."""

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
        self._told: deque[tuple[int, str]] = deque()
        """Parents to be woken, and by whose end."""
        self._orphans: deque[tuple[int, str]] = deque()
        """Children to be cancelled, and by whom they were started."""
        self._alone: set[str] = set()
        """Children whose end nobody wants to be told."""
        self._unchecked: set[int] = set()
        """Children that may close a circle, and nobody has looked yet."""
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
        """Start a child, in one commit with what its parent remembers of it."""
        partition, standing = self._partition, run.standing
        headers = {
            name: value
            for name, value in run.submission.headers.items()
            if not name.startswith("keyrun.")
        }
        priority: Priority = run.submission.priority
        described = self.admission.describe(
            workflow, input_, key, None, headers, (), priority, None, 0
        )
        described.origin = f"child:{run.run_id}"
        described.parent = Parent(run.number, run.key, standing.place or 0, depth)
        self.used = True
        group = self.admission.admit(described)
        channel = memory.channel = CHILD + described.run_id
        memory.call = CallKind.CHILD
        at = run.partition.wall()
        run.write(WaitBegan(ident, at, CallKind.CHILD, channel, None, memory.child))
        memory.rank = run.journal.next - 1
        self._put(group, run.number, described.number, described.run_id, key)
        self._unchecked.add(described.number)
        await partition.store.durable(group)

    async def look_again(self, run: Run, child_id: str, key: str) -> None:
        """A parent is about to wait for a child: end the child if that closes a circle, unless
        somebody has looked for that since it was admitted. Whoever was to may have been cut off, by
        a crash or since the parent was driven anew."""
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

    def ended(self, about: Submission, standing: Standing, group: "Group") -> None:
        """The end of a child is staged in `group`: so is what its parent is sent of it."""
        partition, parent = self._partition, about.parent
        assert parent is not None
        if about.run_id in self._alone:
            self._alone.discard(about.run_id)
            group.delete("children", partition.ledger.sequenced(parent.number, about.number))
            return
        outcome = [
            str(standing.state),
            standing.result,
            write_failure(standing.failure),
            standing.reason,
        ]
        signal = self._signals.stage(group, parent.number, CHILD + about.run_id, outcome)
        self._put(group, parent.number, about.number, about.run_id, about.key, ended=True)
        live = self._runs.live(parent.number)
        if live is not None and not live.standing.state.terminal:
            live.open_inbox.put(signal, live.journal)
        else:
            group.when_durable(self._tell, parent.number, CHILD + about.run_id)

    def _tell(self, parent: int, channel: str) -> None:
        self._told.append((parent, channel))
        self._news.set()

    def heard(self, run: Run, child_id: str) -> None:
        """A parent has taken what it was sent of a child."""
        number = number_in(child_id)
        if number is not None:
            run.delete("children", self._partition.ledger.sequenced(run.number, number))

    def orphan(self, run: Run, child_id: str) -> None:
        """Nobody waits for a child any more: it is cancelled, also if this process is killed."""
        group = run.staged = self._partition.commits.open_group()
        number = number_in(child_id)
        if number is None:
            return
        if self._signals.discard(run, CHILD + child_id):
            # It has ended, and nobody was told yet.
            run.delete("children", self._partition.ledger.sequenced(run.number, number))
            return
        self.leave_alone(group, run.number, number, child_id)

    def leave_alone(self, group: "Group", parent: int, child: int, child_id: str) -> None:
        """Stage that nobody waits for a child, and cancel it when that is durable."""
        self._alone.add(child_id)
        self._put(group, parent, child, child_id, "", orphaned=True)
        group.when_durable(self._cancel, parent, child_id)

    async def of(self, parent: int) -> list[tuple[int, str]]:
        """Numbers and ids of a run's children that have not ended."""
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

    def left_alone(self, run: Run) -> None:
        """A run ends: those of its children that have not are cancelled."""
        for memory in run.journal.memories.values():
            if memory.call is CallKind.CHILD and memory.outcome is None and memory.rank:
                self.orphan(run, (memory.channel or "").removeprefix(CHILD))

    async def recover(self) -> None:
        """Look whether there are any."""
        prefix = self._partition.ledger.prefix
        self.used = bool(await self._partition.store.scan("children", prefix=prefix, limit=1))

    async def run(self) -> None:
        """Wake parents whose children have ended, and cancel children that are left alone."""
        await self._partition.counted.wait()
        await self._take_up()
        async with trio.open_nursery() as nursery:
            while True:
                while self._told:
                    await self._wake(*self._told.popleft())
                while self._orphans:
                    nursery.start_soon(self._end, *self._orphans.popleft())
                self._news = trio.Event()
                await self._news.wait()

    async def _end(self, parent: int, child_id: str) -> None:
        """Cancel a child that nobody waits for."""
        partition, number = self._partition, number_in(child_id)
        if not await self.control.cancel(child_id) and number is not None:
            # It had ended before.
            self._alone.discard(child_id)
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
            standing = resting.standing if resting else await partition.ledger.standing(number)
        except StoreCorrupt:
            return  # it is set aside when its turn comes
        if submission is None or standing is None or standing.state.terminal:
            await self._forget(number, channel)
        elif standing.evicted_wait is not None and channel in standing.evicted_wait.channels:
            key, place = submission.key, standing.place
            await self._eviction.wake(number, key, place, standing.evicted_wait.due)
            partition.store.hasten()

    async def _forget(self, number: int, channel: str) -> None:
        """A child has ended whose parent has, too: nobody wants to know."""
        partition = self._partition
        group = partition.store.open_group()
        for signal in await self._signals.stored(number):
            if signal.channel == channel:
                group.delete("signals", partition.ledger.sequenced(number, signal.sequence))
        child = await partition.ledger.find(channel.removeprefix(CHILD))
        if child is not None:
            group.delete("children", partition.ledger.sequenced(number, child))

    async def _take_up(self) -> None:
        """Take up what an earlier process left."""
        ledger = self._partition.ledger
        async for rows in ledger.pages("children", size=PAGE):
            for record, raw in rows:
                child = await self._read(record, raw)
                parent = ledger.split_number(record)[0]
                if child is None:
                    continue
                run_id, ended, orphaned = child
                if ended:
                    self._told.append((parent, CHILD + run_id))
                elif orphaned or await self._over(parent):
                    self._alone.add(run_id)
                    self._orphans.append((parent, run_id))

    async def _read(self, record: bytes, raw: bytes) -> tuple[str, bool, bool] | None:
        try:
            run_id, _, ended, orphaned = unseal("children", record, raw)
        except StoreCorrupt:
            number = int.from_bytes(record[-8:], "big")
            submission = await self._partition.ledger.submission(number)
            return None if submission is None else (submission.run_id, True, False)
        return run_id, ended, orphaned

    async def _over(self, number: int) -> bool:
        try:
            standing = await self._partition.ledger.standing(number)
        except StoreCorrupt:
            return False
        return standing is not None and standing.state.terminal

    async def _refuse_cycle(self, run: Run, child_id: str, number: int, key: str) -> None:
        """End a child that would wait for its own parent, if it is the youngest in the circle: who
        came before it could not know."""
        found = await self._cycles.find(run.number, (key, number))
        if found is None:
            return
        # Before, one could not tell whether the child has been counted as waiting.
        await self._partition.counted.wait()
        keys = " -> ".join([run.key, *(key for key, _ in found)])
        reason = f"children that wait for each other's keys would wait for ever: {keys}"
        failure = Failure(kind=FailureKind.CHILD_FAILED, reason=reason)
        await self.control.fail_at_rest(child_id, failure)
