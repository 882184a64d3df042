"""Damaged runs: quarantine a run whose records fail their check, and readmit it after a repair.

A damaged run releases its place, so that its key continues, and stays visible as quarantined until
an operator acts on it. A submission that cannot be read is kept undecoded, as the input of a
stand-in. A run that has ended is left as it is: it can only be forgotten.
"""

from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.events.logs import log_key, title
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.logger import logger
from keyrun.runtime.records.damage import PAGE, Trace, stand_in, trace
from keyrun.runtime.records.journal_entry import Redriven, decode
from keyrun.runtime.records.submission import DAMAGED, SALVAGED, StatusRecord, Submission
from keyrun.runtime.records.tables import sealed
from keyrun.runtime.values import State
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable


class DamagedRuns:
    """Sets damaged runs aside, and readmits runs that can be read again."""

    def __init__(self, partition: "PartitionState", runs: "RunTable", queues: "KeyQueues") -> None:
        self._partition = partition
        self._runs = runs
        self._queues = queues
        self.lock = trio.Lock()
        """Held while a damaged run is set aside or readmitted."""

    async def set_aside(
        self,
        number: int,
        error: StoreCorrupt,
        *,
        key: str | None = None,
        place: int | None = None,
    ) -> None:
        """Quarantine a run because of `error` and release its place, unless the run has ended or is
        already set aside. Without `key` and `place`, search for them in the indexes.

        If `error` is about a place in the queue of another key, and the run has ended or has a
        place in the queue of its own key, delete the damaged place and leave the run alone."""
        if error.key is None:
            # The error is not about a record of this run.
            raise error
        async with self.lock:
            ledger, record = self._partition.ledger, self._partition.ledger.number(number)
            raw = await self._partition.store.get("runs", record)
            status = await self._status(number)
            misplaced = error.table == "queue"
            if misplaced and key is not None and await self._is_placed(number, status):
                if await self._partition.store.get("queue", error.key) is not None:
                    # The damaged place was another run's.
                    group = self._partition.store.open_group()
                    group.delete("queue", error.key)
                    self._queues.of(key).started()
                    logger.error(
                        "a queue record is damaged, and its run is unknown: %s",
                        error,
                        extra={"event": "queue_damaged"},
                    )
                    await self._partition.store.durable(group)
                return
            if raw is None or (status is not None and _is_done(status)):
                return
            submission = await self._submission(number)
            known = Trace(key=key, place=place)
            if submission is None or place is None:
                known = await trace(ledger, number)
            elif key is not None:
                known.indexed.append(("queue", ledger.place(key, place)))
            if known.ended_at is not None or self._runs.live(number):
                return
            delayed = self._runs.end_delay(number)
            known.key = known.key or key or (None if delayed is None else delayed.key)
            with self._partition.together() as group:
                if submission is None or status is None:
                    self._partition.counts.doubt()
                else:
                    self._partition.counts.leave(submission, status)
                if submission is None:
                    submission = stand_in(number, known, raw)
                    group.put("runs", record, sealed("runs", record, *submission.fields()))
                    name = ledger.run_id(submission.run_id)
                    group.put("ids", name, sealed("ids", name, number))
                aside = attrs.evolve(
                    status or StatusRecord(),
                    state=State.QUARANTINED,
                    reason=str(error),
                    quarantine=DAMAGED,
                    place=None,
                    cancel_requested=False,
                    paused=False,
                )
                group.put("status", record, sealed("status", record, *aside.fields()))
                self._partition.counts.enter(submission, aside)
                group.when_durable(self._runs.report_end, number, aside)
                for table, indexed in known.indexed:
                    group.delete(table, indexed)
                if known.place is not None or delayed is not None:
                    # A damaged place was counted in the queue of the key that it names.
                    queue = self._queues.of(known.key or submission.key)
                    queue.remove(number)
                    queue.started()
                if self._partition.feed is not None:
                    kind = EventKind.RUN_QUARANTINED
                    emitter.run_changed(
                        self._partition.feed, group, kind, submission, aside, str(error)
                    )
            run_id, key, workflow = submission.about
            said = f"{title(run_id, key, workflow)} is damaged and set aside: {error}"
            log_key(key, "run_quarantined", said, run_id=run_id, workflow=workflow)
            await self._partition.store.durable(group)

    async def _is_placed(self, number: int, status: StatusRecord | None) -> bool:
        """Return whether a run is set aside, has ended, or has a place in the queue of its key."""
        submission, status = await self._submission(number), status or StatusRecord()
        if submission is None or _is_done(status):
            return True
        place = self._partition.ledger.place(submission.key, status.place or number)
        return await self._partition.store.get("queue", place) is not None

    async def set_aside_unplaced(self) -> None:
        """Quarantine the unfinished runs that have no place in the queue of their key, because the
        record of that place was damaged. This reads all runs, so it is done only after damage."""
        partition, ledger = self._partition, self._partition.ledger
        async for rows in ledger.pages("runs", size=PAGE):
            for record, _ in rows:
                number = ledger.split_number(record)[0]
                if number >= partition.opened_at:
                    return
                try:
                    status = await ledger.status(number)
                except StoreCorrupt:
                    continue
                if self._runs.find(number) or self._runs.delayed(number):
                    continue
                if not await self._is_placed(number, status):
                    said = "the record of its place in table 'queue' is damaged"
                    await self.set_aside(number, StoreCorrupt(said, table="queue", key=record))

    async def _submission(self, number: int) -> Submission | None:
        try:
            return await self._partition.ledger.submission(number)
        except StoreCorrupt:
            return None

    async def _status(self, number: int) -> StatusRecord | None:
        try:
            return await self._partition.ledger.status(number)
        except StoreCorrupt:
            return None

    async def remains(self, number: int, error: StoreCorrupt) -> tuple[Submission, StatusRecord]:
        """Set aside a run that cannot be read because of `error`, and return what is left of it. A
        run that has ended has no place to release. Only the time of its end is known."""
        await self._partition.counted.wait()
        await self.set_aside(number, error)
        submission = await self._submission(number)
        status = await self._status(number)
        if submission is None or status is None:
            known = await trace(self._partition.ledger, number)
            if submission is None:
                submission = stand_in(number, known, b"")
            lost = StatusRecord(
                state=State.QUARANTINED,
                reason=str(error),
                quarantine=DAMAGED,
                place=known.place,
                ended_at=known.ended_at,
            )
            status = status or lost
        return submission, status

    async def readmit(self, submission: Submission, status: StatusRecord) -> StatusRecord:
        """Return the status of a run that was set aside and can be read again, with a place at the
        end of its key's queue. Raise `StoreCorrupt` if it cannot be read."""
        ledger, number = self._partition.ledger, submission.number
        generation = status.generation
        if status.ended_at is not None:
            raise _beyond_repair(submission, "it has ended, and its end is lost")
        try:
            for _, fields in await ledger.scan("journal", ledger.number(number)):
                entry = decode(fields)
                if isinstance(entry, Redriven):
                    generation = max(generation, entry.generation)
            await ledger.scan("memo", ledger.number(number))
        except StoreCorrupt as error:
            if error.key is None:
                raise
            raise _beyond_repair(submission, str(error)) from error
        fresh = attrs.evolve(status, generation=generation, place=self._partition.take_number())
        fresh.lift_quarantine()
        return fresh


def _is_done(status: StatusRecord) -> bool:
    aside = status.state is State.QUARANTINED and status.place is None
    return aside or status.state.terminal


def check_submitted(submission: Submission) -> None:
    """Raise `StoreCorrupt` if the submission is lost."""
    if submission.origin == SALVAGED:
        raise _beyond_repair(submission, "its submission is lost")


def _beyond_repair(submission: Submission, why: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the run {submission.run_id!r} cannot resume, because it is damaged: {why}; restore the "
        f"store from a backup, or forget({submission.run_id!r}) and submit it again"
    )
