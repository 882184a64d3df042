"""Delays: give runs that were submitted with a delay their place in the queue when they are due.

The due time is a time of the steady clock: a wall clock that is set forward makes a run due
earlier, and a wall clock that is set back makes no delay longer, also over a restart.
"""

from contextlib import suppress
from heapq import heappop, heappush
from math import inf
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.host.due_loop import DueLoop
from keyrun.runtime.records.submission import StatusRecord, Submission
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
    """The delayed runs of a partition."""

    def __init__(self, partition: "PartitionState", runs: "RunTable", queues: "KeyQueues") -> None:
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self._heap: list[tuple[float, int]] = []
        """The due time and the number of each run."""
        self._loop = DueLoop(self._place_due)

    def stage(self, group: "Group", submission: Submission) -> None:
        """Stage the due time of a run, counted from its submission."""
        partition, key = self._partition, self._record(submission)
        due = submission.submitted_at + partition.steady() - partition.wall() + submission.delay
        group.put("delayed", key, sealed("delayed", key, due))
        partition.keep_time()
        group.when_durable(self._admit, submission, due)

    def remove(self, group: "Group", submission: Submission) -> None:
        """Stage that a delayed run will not get a place."""
        group.delete("delayed", self._record(submission))
        if self._runs.end_delay(submission.number) is not None:
            group.when_dropped(self._runs.begin_delay, submission)

    def _record(self, submission: Submission) -> bytes:
        due = submission.submitted_at + submission.delay
        return self._partition.ledger.timed(due, submission.number)

    def _admit(self, submission: Submission, due: float) -> None:
        self._runs.begin_delay(submission)
        heappush(self._heap, (due, submission.number))
        self._loop.wake()

    async def recover(self) -> None:
        """Read the delayed runs of earlier processes."""
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
                # The clock must not be before the time at which the run was submitted.
                steady.at_least(due - submission.delay)
                self._admit(submission, due)

    async def run(self) -> None:
        """Give each run its place when it is due, until cancelled."""
        await self._loop.run()

    async def _place_due(self) -> float:
        """Give a place to the runs that are due. Return when the next run is due, or when to read
        the wall clock again."""
        while self._heap:
            rest = self._heap[0][0] - self._partition.steady()
            # Smaller differences are below the resolution of the clock.
            if rest > 1e-5:
                self._partition.keep_time_if_set_back()
                return trio.current_time() + min(rest, max(LOOK, rest / 100))
            number = heappop(self._heap)[1]
            if self._runs.delayed(number) is not None:
                try:
                    status = await self._status(number)
                except StoreCorrupt as error:
                    await self._queues.set_aside(number, error)
                    continue
                submission = self._runs.end_delay(number)
                if submission is not None:
                    self._place(submission, status)
        return inf

    async def _status(self, number: int) -> StatusRecord:
        """Return the status of a run, which may have been paused."""
        resting = self._runs.at_rest(number)
        if resting is not None:
            return resting.status
        return await self._partition.ledger.status(number) or StatusRecord()

    def _admit_placed(self, key: str, place: int, number: int) -> None:
        self._queues.of(key).admit_stored(place, number)

    def _place(self, submission: Submission, status: StatusRecord) -> None:
        partition, ledger = self._partition, self._partition.ledger
        # A new number, because the run comes after all runs that were admitted before it was due.
        place = status.place = partition.take_number()
        with partition.together() as group:
            group.delete("delayed", self._record(submission))
            queued = ledger.place(submission.key, place)
            number = submission.number
            group.put("queue", queued, sealed("queue", queued, *placed(submission)))
            record = ledger.number(number)
            group.put("status", record, sealed("status", record, *status.fields()))
            group.when_durable(self._admit_placed, submission.key, place, number)
        if partition.metrics is not None and status.generation == 1:
            partition.metrics.entered(number)
        partition.store.hasten()
