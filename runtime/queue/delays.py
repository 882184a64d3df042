"""Delays: runs that were submitted for later and get their place in the queue when they are due.

When a run is due is a time of the steady clock. A wall clock that is set forward is followed, and
one that is set back makes no delay longer, also over a restart.
"""

from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.host.due_loop import DueLoop
from keyrun.runtime.records.submission import Standing, Submission
from keyrun.runtime.records.tables import placed, sealed
from keyrun.runtime.waiting.timers import LOOK
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.storage.group import Group


class Delays:
    """Knows which delayed runs are due when."""

    def __init__(self, partition: "PartitionState", runs: "RunTable", queues: "KeyQueues") -> None:
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._heap: list[tuple[float, int]] = []
        """When each run is due, and its number."""
        self._loop = DueLoop(self._place_due)

    def stage(self, group: "Group", submission: Submission) -> None:
        """Write down when a run is due, counted from when it was submitted."""
        partition, key = self._partition, self._record(submission)
        due = submission.submitted_at + partition.steady() - partition.wall() + submission.delay
        group.put("delayed", key, sealed("delayed", key, due))
        partition.keep_time()
        group.when_durable(self._admit, submission, due)

    def remove(self, group: "Group", submission: Submission) -> None:
        """A run will never get a place."""
        self._runs.end_delay(submission.number)
        group.delete("delayed", self._record(submission))

    def _record(self, submission: Submission) -> bytes:
        due = submission.submitted_at + submission.delay
        return self._partition.ledger.timed(due, submission.number)

    def _admit(self, submission: Submission, due: float) -> None:
        self._runs.begin_delay(submission)
        heappush(self._heap, (due, submission.number))
        self._loop.wake()

    async def recover(self) -> None:
        """Take up what an earlier process left."""
        ledger, steady = self._partition.ledger, self._partition.steady
        for key, raw in await self._partition.store.scan("delayed", prefix=ledger.prefix):
            due, number = ledger.split_timed(key)
            with suppress(StoreCorrupt):
                # Earlier versions stored nothing here.
                due = next(iter(unseal("delayed", key, raw)), due)
            try:
                submission = await ledger.submission(number)
            except StoreCorrupt as error:
                await self._queues.set_aside(number, error)
                continue
            if submission is not None:
                self._queues.enter(submission.key)
                # It was at least as late when the run was submitted, whatever the clock says today.
                steady.at_least(due - submission.delay)
                self._admit(submission, due)

    async def run(self) -> None:
        """Give each run its place when it is due."""
        await self._loop.run()

    async def _place_due(self) -> float:
        """Give a place to the runs that are due. Return when the next one is due, or when to look
        at the wall clock again."""
        while self._heap:
            rest = self._heap[0][0] - self._partition.steady()
            # What is less than the clock can tell is no time.
            if rest > 1e-5:
                self._partition.keep_time_if_set_back()
                return trio.current_time() + min(rest, max(LOOK, rest / 100))
            number = heappop(self._heap)[1]
            if self._runs.delayed(number) is not None:
                try:
                    standing = await self._standing(number)
                except StoreCorrupt as error:
                    await self._queues.set_aside(number, error)
                    continue
                submission = self._runs.end_delay(number)
                if submission is not None:
                    self._place(submission, standing)
        return inf

    async def _standing(self, number: int) -> Standing:
        """How the run stands: somebody may have paused it."""
        resting = self._runs.at_rest(number)
        if resting is not None:
            return resting.standing
        return await self._partition.ledger.standing(number) or Standing()

    def _admit_placed(self, key: str, place: int, number: int) -> None:
        self._queues.of(key).admit_stored(place, number)

    def _place(self, submission: Submission, standing: Standing) -> None:
        partition, ledger = self._partition, self._partition.ledger
        # A number of its own: it comes after everything that was admitted before it was due.
        place = standing.place = partition.take_number()
        group = partition.store.open_group()
        group.delete("delayed", self._record(submission))
        queued = ledger.place(submission.key, place)
        number = submission.number
        group.put("queue", queued, sealed("queue", queued, *placed(submission)))
        status = ledger.number(number)
        group.put("status", status, sealed("status", status, *standing.fields()))
        group.when_durable(self._admit_placed, submission.key, place, number)
        partition.store.hasten()
