"""Delays: runs that were submitted for later and get their place in line when they are due."""

from heapq import heappop, heappush
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.ledger import placed, sealed
from keyrun.runtime.records import Standing, Submission
from keyrun.runtime.recovery.salvage import set_aside
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.engine import Engine
    from keyrun.storage.group import Group


class Delays:
    """Knows which delayed runs are due when."""

    def __init__(self, engine: "Engine") -> None:
        self._engine = engine
        self._heap: list[tuple[float, int]] = []
        self._changed = trio.Event()

    def stage(self, group: "Group", submission: Submission) -> None:
        """Write down when a run is due."""
        key = self._record(submission)
        group.put("delayed", key, sealed("delayed", key))

    def remove(self, group: "Group", submission: Submission) -> None:
        """A run will never get a place."""
        self._engine.runs.end_delay(submission.number)
        group.delete("delayed", self._record(submission))

    def _record(self, submission: Submission) -> bytes:
        due = submission.submitted_at + submission.delay
        return self._engine.ledger.timed(due, submission.number)

    def admit(self, submission: Submission) -> None:
        """A delayed run is durable; its time is counted from when it was submitted."""
        due = submission.submitted_at + submission.delay
        rest = min(due - self._engine.wall(), submission.delay)
        self._engine.runs.begin_delay(submission)
        heappush(self._heap, (trio.current_time() + rest, submission.number))
        self._changed.set()

    async def recover(self) -> None:
        """Take up what an earlier process left."""
        ledger = self._engine.ledger
        for key, _ in await self._engine.store.scan("delayed", prefix=ledger.prefix):
            number = ledger.split_timed(key)[1]
            try:
                submission = await ledger.submission(number)
            except StoreCorrupt as error:
                await set_aside(self._engine, number, error)
                continue
            if submission is not None:
                self._engine.enter(submission.key)
                self.admit(submission)

    async def run(self) -> None:
        """Give each run its place when it is due."""
        while True:
            self._changed = trio.Event()
            if not self._heap:
                await self._changed.wait()
                continue
            due = self._heap[0][0]
            if due > trio.current_time():
                with trio.move_on_at(due):
                    await self._changed.wait()
                continue
            number = heappop(self._heap)[1]
            if self._engine.runs.delayed(number) is not None:
                try:
                    standing = await self._standing(number)
                except StoreCorrupt as error:
                    await set_aside(self._engine, number, error)
                    continue
                submission = self._engine.runs.end_delay(number)
                if submission is not None:
                    self._place(submission, standing)

    async def _standing(self, number: int) -> Standing:
        """How the run stands: somebody may have paused it."""
        resting = self._engine.runs.at_rest(number)
        if resting is not None:
            return resting.standing
        return await self._engine.ledger.standing(number) or Standing()

    def _place(self, submission: Submission, standing: Standing) -> None:
        engine, ledger = self._engine, self._engine.ledger
        # A number of its own: it comes after everything that was admitted before it was due.
        place = standing.place = engine.take_number()
        group = engine.store.open_group()
        group.delete("delayed", self._record(submission))
        queued = ledger.place(submission.key, place)
        number = submission.number
        group.put("queue", queued, sealed("queue", queued, *placed(submission)))
        status = ledger.number(number)
        group.put("status", status, sealed("status", status, *standing.fields()))
        group.when_durable(lambda: engine.line(submission.key).admit_stored(place, number))
        engine.store.hasten()
