"""Parking: runs that wait leave memory, and come back when there is something to do.

1. A run all of whose branches wait, for `patience` seconds or since too many others do, is unwound
   as in a drain. Its place in line says that it sleeps, its status what it waits for, and if that
   is a time, the index of timers when: one commit, for which nobody waits.
2. It is woken by its time, by what it is sent on a channel that it waits on, or by whoever resumes
   it. Its place says that it is awake; when that is durable its line drives it from its journal.
3. A crash in between finds it asleep, with a timer that may be over, or awake: both end well.

While it sleeps it still has its place. Unless its workflow yields, nobody of its key goes ahead,
and of the key there is nothing in memory but its name.
"""

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Protocol

import trio

from keyrun.runtime.host.due_loop import DueLoop
from keyrun.runtime.records.submission import EvictedWait
from keyrun.runtime.records.tables import Sleep, at_place, placed, sealed
from keyrun.runtime.run.eviction import Eviction
from keyrun.runtime.run.location import Location
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.wait import BACKOFF
from keyrun.runtime.unwinding import Unwind
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
    """Knows the runs that wait in memory, and sends them away."""

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
        """Runs that wait, those that do so for the longest time first."""
        self._loop = DueLoop(self._evict_due)

    def consider(self, run: Run) -> None:
        """A branch of a run has begun to wait, or has ended while others wait."""
        if not run.idle:
            return
        self._since.pop(run, None)
        if self._yields(run) and run.queue.others:
            self.evict(run)
        elif self._evict_after < inf:
            self._since[run] = trio.current_time()
            self._loop.wake()

    def overtake(self, run: Run) -> None:
        """Another run came behind one that waits: it may go ahead if the workflow says so."""
        if self._yields(run):
            self.evict(run)

    async def run(self) -> None:
        """Send runs away that wait for long enough."""
        await self._loop.run()

    async def _evict_due(self) -> float:
        """Evict the runs that have waited for long enough. Return when the next one has."""
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
        """Have a run leave memory, if all of it still waits."""
        partition, standing = self._partition, run.standing
        if self._runs.find(run.number) is not run or not run.idle or partition.draining:
            return
        if run.queue.paused or partition.paused or standing.place is None or run.undoing:
            return
        held = not run.waits
        if held and not standing.paused:
            # What held it is over, and it will hear of that at once.
            return
        dues = [wait.due for wait in run.waits]
        dues += [scope.due for scope in run.journal.scopes.values()]
        dues.append(inf if standing.deadline is None else standing.deadline)
        due = min(dues)
        channels = {wait.channel for wait in run.waits if wait.channel is not None}
        run.eviction = Eviction(
            evicted_wait=EvictedWait(None if due == inf else due, tuple(sorted(channels))),
            until=self._until(run),
            waiting_on=standing.waiting_on,
            sleep=Sleep.YIELDS if self._yields(run) else Sleep.HOLDS,
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
        if run.workflow.while_waiting == "hold" or run.standing.paused:
            return False
        return bool(run.waits) and all(wait.label != BACKOFF for wait in run.waits)

    def stay(self, run: Run) -> None:
        """A run that was about to leave ends instead."""
        if run.eviction is not None:
            run.eviction = None
            self._runs.move(run, Location.LIVE)

    def left(self, run: Run) -> bool | None:
        """The workflow of a run was unwound: stage that it sleeps. Says whether its line goes on
        with the next; None if there is something to do after all."""
        partition, standing = self._partition, run.standing
        leave, run.eviction = run.eviction, None
        assert leave is not None
        sent = () if run.inbox is None else run.inbox.signals
        resumed = leave.held and not standing.paused
        news = (one.channel for one in sent if one.sequence > leave.sent)
        if resumed or any(channel in leave.evicted_wait.channels for channel in news):
            self._runs.move(run, Location.LIVE)
            run.rewind()
            return None
        place, due = standing.place, leave.evicted_wait.due
        assert place is not None
        standing.state = State.WAITING
        standing.waiting_on = leave.waiting_on
        standing.evicted_wait = leave.evicted_wait
        run.store_standing(partition.services.summarize(run))
        partition.keep_time()
        run.put("queue", run.queue.place(place), *placed(run.submission, leave.sleep))
        if due is not None:
            length = max(0.0, leave.until - trio.current_time())
            timer = partition.ledger.timed(due, run.number)
            run.put("timers", timer, run.key, place, due, length)
        group = run.staged
        assert group is not None
        run.submission.at_hand = False
        run.begin()
        self._runs.move(run, Location.EVICTED)
        group.when_durable(self._asleep, run, group, leave)
        if leave.sleep is Sleep.YIELDS:
            return True
        run.queue.evict_head(run)
        return False

    def _asleep(self, run: Run, group: "Group", leave: Eviction) -> None:
        if run.staged is group:
            self._runs.remove(run)
        if leave.until < inf:
            due, place = leave.evicted_wait.due or 0.0, run.standing.place or 0
            self._set_timer(leave.until, due, run.number, run.key, place)
        if leave.sleep is Sleep.HOLDS:
            queue = self._queues.get(run.key)
            if queue is not None and not queue.awake:
                queue.release_memory()

    async def wake(
        self, number: int, key: str, place: int | None, due: float | None
    ) -> "Group | None":
        """Stage that a run is awake; None if it was not asleep. Nothing is awaited after that."""
        partition = self._partition
        if place is None or self._runs.is_waking(number) or self._runs.live(number):
            return None
        record = partition.ledger.place(key, place)
        raw = self._leaving_now(number, record)
        if raw is None:
            staged = self._staged(number)
            while staged is not None:
                # Its place is there or gone when that is durable; meanwhile somebody may end it.
                await partition.store.durable(staged)
                staged = self._staged(number)
            raw = await partition.store.get("queue", record)
        if raw is None or self._runs.is_waking(number) or self._runs.live(number):
            return None
        there = at_place(record, raw, place)
        if there.number != number or there.sleep is Sleep.NO:
            return None
        self._runs.begin_waking(number)
        group = partition.store.open_group()
        group.put("queue", record, sealed("queue", record, number, int(there.priority)))
        if due is not None:
            group.delete("timers", partition.ledger.timed(due, number))
        group.when_durable(self._awake, number, key, place)
        return group

    def _staged(self, number: int) -> "Group | None":
        """What was changed of a run at rest and is not durable yet."""
        resting = self._runs.at_rest(number)
        staged = None if resting is None else resting.staged
        return None if staged is None or staged.durable else staged

    def _leaving_now(self, number: int, record: bytes) -> bytes | None:
        """The place of a run that leaves memory in the group that is open: what wakes it goes into
        the same commit."""
        resting, group = self._runs.at_rest(number), self._partition.commits.group
        if resting is None or resting.staged is not group:
            return None
        return group.tables.get("queue", {}).get(record)

    def _awake(self, number: int, key: str, place: int) -> None:
        if self._runs.end_waking(number):
            self._queues.wake_up(key, place, number)

    async def sleeps(self, number: int, key: str, place: int | None) -> bool:
        """Whether a run that is not driven sleeps, so that it does not count as one that waits to
        be started."""
        if self._runs.is_waking(number):
            return True
        if place is None:
            return False
        record = self._partition.ledger.place(key, place)
        raw = await self._partition.store.get("queue", record)
        return raw is not None and at_place(record, raw, place).sleep is not Sleep.NO
