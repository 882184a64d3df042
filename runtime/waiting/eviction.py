"""Eviction: remove waiting runs from memory, and wake them when they have something to do.

1. A run is evicted if all its branches have waited for `evict_after` seconds, or if too many runs
   wait in memory. Its coroutine is cancelled as in a drain. One commit, which nothing waits for,
   stages that its place is evicted, what the run waits for in its status, and a timer if it waits
   for a time.
2. A timer, a signal on a channel that it waits on, the end of a child, or a resume wakes the run.
   The record of its place is staged as not evicted. When that is durable, the actor of its key
   drives the run from its journal.
3. After a crash in between, the run is either evicted, with a timer that may be over, or awake.
   Both are consistent.

An evicted run keeps its place. Unless its workflow yields, no other run of its key starts, and only
the name of the key is in memory.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Protocol

import trio

from keyrun.runtime.host.due_loop import DueLoop
from keyrun.runtime.pass_end import Unwind
from keyrun.runtime.records.submission import EvictedWait
from keyrun.runtime.records.tables import Evicted, at_place, placed, sealed
from keyrun.runtime.run.run import Location, Run
from keyrun.runtime.run.wait import BACKOFF, Eviction
from keyrun.runtime.values import State

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.services import KeyQueueOfRun
    from keyrun.runtime.runs import RunTable
    from keyrun.storage.group import Group


class EvictedQueues(Protocol):
    """The key queues that evicted runs come back to."""

    def get(self, key: str) -> "KeyQueueOfRun | None":
        """Return the queue of a key if it is in memory."""

    def wake_up(self, key: str, place: int, number: int) -> None:
        """Put an evicted run back into its queue, durably."""


class Evictor:
    """Knows the runs that wait in memory, and evicts them."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        queues: EvictedQueues,
        *,
        evict_after: float,
        max_in_memory: int,
        evicted: Callable[[float, float, int, str, int], None],
    ) -> None:
        """`evicted` sets the timer of a run that was evicted."""
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._evict_after = evict_after
        self._max_in_memory = max_in_memory
        self._set_timer = evicted
        self._since: dict[Run, float] = {}
        """The runs that wait, and since when, the longest wait first."""
        self._loop = DueLoop(self._evict_due)

    def consider(self, run: Run) -> None:
        """Check whether a run may be evicted, because one of its branches began to wait or
        ended."""
        if not run.idle:
            return
        self._since.pop(run, None)
        if self._yields(run) and run.queue.others:
            self.evict(run)
        elif self._evict_after < inf:
            self._since[run] = trio.current_time()
            self._loop.wake()

    def overtake(self, run: Run) -> None:
        """Evict a waiting run that yields its key, because another run has come behind it."""
        if self._yields(run):
            self.evict(run)

    async def run(self) -> None:
        """Evict runs that have waited long enough, until cancelled."""
        await self._loop.run()

    async def _evict_due(self) -> float:
        """Evict the runs that have waited long enough. Return when the next run is due."""
        while self._since:
            run, since = next(iter(self._since.items()))
            crowded = len(self._since) > self._max_in_memory
            if not crowded and since + self._evict_after > trio.current_time():
                return since + self._evict_after
            del self._since[run]
            if crowded or self._until(run) - trio.current_time() > self._evict_after:
                self.evict(run)
        return inf

    def evict(self, run: Run) -> None:
        """Cancel the coroutine of a run so that it leaves memory, if all its branches still
        wait."""
        partition, status = self._partition, run.status
        if self._runs.find(run.number) is not run or not run.idle or partition.draining:
            return
        if run.queue.paused or partition.paused or status.place is None or run.undoing:
            return
        held = not run.waits
        if held and not status.paused:
            # The pause has ended, and the run is about to resume.
            return
        dues = [wait.due for wait in run.waits]
        dues += [scope.due for scope in run.journal.scopes.values()]
        dues.append(inf if status.deadline is None else status.deadline)
        due = min(dues)
        channels = {wait.channel for wait in run.waits if wait.channel is not None}
        run.eviction = Eviction(
            evicted_wait=EvictedWait(None if due == inf else due, tuple(sorted(channels))),
            until=self._until(run),
            waiting_on=status.waiting_on,
            evicted=Evicted.YIELDS if self._yields(run) else Evicted.HOLDS,
            sent=0 if run.inbox is None else run.inbox.last(),
            held=held,
        )
        self._runs.move(run, Location.EVICTING)
        run.unwind(Unwind.EVICT)

    def _until(self, run: Run) -> float:
        late = trio.current_time() - self._partition.steady()
        ends = [wait.until for wait in run.waits]
        ends += [scope.due + late for scope in run.journal.scopes.values()]
        return min([run.deadline, *ends])

    def _yields(self, run: Run) -> bool:
        if run.workflow.while_waiting == "hold" or run.status.paused:
            return False
        return bool(run.waits) and all(wait.label != BACKOFF for wait in run.waits)

    def keep_in_memory(self, run: Run) -> None:
        """Keep a run in memory that was about to leave, because it ends."""
        if run.eviction is not None:
            run.eviction = None
            self._runs.move(run, Location.LIVE)

    def leave_memory(self, run: Run) -> bool | None:
        """Stage that a run is evicted, after its coroutine was cancelled. Return whether its key
        continues with the next run, or None if the run has something to do after all."""
        partition, status = self._partition, run.status
        leave, run.eviction = run.eviction, None
        assert leave is not None
        sent = () if run.inbox is None else run.inbox.signals
        resumed = leave.held and not status.paused
        news = (one.channel for one in sent if one.sequence > leave.sent)
        if resumed or any(channel in leave.evicted_wait.channels for channel in news):
            self._runs.move(run, Location.LIVE)
            run.rewind()
            return None
        place, due = status.place, leave.evicted_wait.due
        assert place is not None
        status.state = State.WAITING
        status.waiting_on = leave.waiting_on
        status.evicted_wait = leave.evicted_wait
        with partition.together() as group:
            run.store_status(partition.services.summarize(run))
            partition.keep_time()
            run.put("queue", run.queue.place(place), *placed(run.submission, leave.evicted))
            if due is not None:
                length = max(0.0, leave.until - trio.current_time())
                timer = partition.ledger.timed(due, run.number)
                run.put("timers", timer, run.key, place, due, length)
            run.submission.at_hand = False
            run.begin()
            self._runs.move(run, Location.EVICTED)
            group.when_durable(self._evicted, run, group, leave)
        if leave.evicted is Evicted.YIELDS:
            return True
        run.queue.evict_head(run)
        return False

    def _evicted(self, run: Run, group: "Group", leave: Eviction) -> None:
        if run.staged is group:
            self._runs.remove(run)
        if leave.until < inf:
            due, place = leave.evicted_wait.due or 0.0, run.status.place or 0
            self._set_timer(leave.until, due, run.number, run.key, place)
        if leave.evicted is Evicted.HOLDS:
            queue = self._queues.get(run.key)
            if queue is not None and not queue.awake:
                queue.release_memory()

    async def wake(
        self, number: int, key: str, place: int | None, due: float | None
    ) -> "Group | None":
        """Stage that an evicted run is awake. Return None if it was not evicted. Nothing is awaited
        after the staging."""
        partition = self._partition
        if place is None or self._runs.is_waking(number) or self._runs.live(number):
            return None
        record = partition.ledger.place(key, place)
        raw = self._leaving_now(number, record)
        if raw is None:
            staged = self._staged(number)
            while staged is not None:
                # When this is durable, the place exists or is gone. The run may end meanwhile.
                await partition.store.durable(staged)
                staged = self._staged(number)
            raw = await partition.store.get("queue", record)
        if raw is None or self._runs.is_waking(number) or self._runs.live(number):
            return None
        there = at_place(record, raw, place)
        if there.number != number or there.evicted is Evicted.NO:
            return None
        with partition.together() as group:
            group.put("queue", record, sealed("queue", record, number, int(there.priority)))
            if due is not None:
                group.delete("timers", partition.ledger.timed(due, number))
            group.when_durable(self._woken, number, key, place)
            self._runs.begin_waking(number)
        return group

    def _staged(self, number: int) -> "Group | None":
        """Return the group with a change of a run at rest that is not durable yet."""
        resting = self._runs.at_rest(number)
        staged = None if resting is None else resting.staged
        return None if staged is None or staged.durable else staged

    def _leaving_now(self, number: int, record: bytes) -> bytes | None:
        """Return the record of the place of a run whose eviction is staged in the open group. Then
        the wake-up is in the same commit."""
        resting, group = self._runs.at_rest(number), self._partition.commits.group
        if resting is None or resting.staged is not group:
            return None
        return group.tables.get("queue", {}).get(record)

    def _woken(self, number: int, key: str, place: int) -> None:
        if self._runs.end_waking(number):
            self._queues.wake_up(key, place, number)

    async def is_evicted(self, number: int, key: str, place: int | None) -> bool:
        """Return whether a run that is not driven is evicted, so that it does not count as waiting
        to be started."""
        if self._runs.is_waking(number):
            return True
        if place is None:
            return False
        record = self._partition.ledger.place(key, place)
        raw = await self._partition.store.get("queue", record)
        return raw is not None and at_place(record, raw, place).evicted is not Evicted.NO
