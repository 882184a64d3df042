"""Retention: remove ended runs after a while. Until then a repeat of a submit finds them."""

from math import inf
from typing import TYPE_CHECKING

import attrs
import trio

from keyrun.runtime.host.due_loop import NOW, DueLoop
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.validators import positive
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.operations.damaged_runs import DamagedRuns
    from keyrun.runtime.operations.redrive import Redrive
    from keyrun.runtime.queue.outbox import Outbox
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable

PAGE = 200


@attrs.frozen(kw_only=True)
class Retention:
    """Set how long ended runs are kept. Keyrun removes a run as soon as one of the limits is
    exceeded. Dead letters stay until they are redriven or forgotten."""

    age: float = attrs.field(default=7 * 86_400.0, validator=positive)
    """Seconds after the end of a run. Default: 7 days."""
    count: float = attrs.field(default=1_000_000, validator=positive)
    """The number of ended runs that are kept. The latest ones stay."""


class Sweeper:
    """Removes ended runs that exceed the retention."""

    redrive: "Redrive"
    """Removes the records of runs. The wiring sets it."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        outbox: "Outbox",
        damaged: "DamagedRuns",
        retention: Retention,
    ) -> None:
        self._partition = partition
        self._runs = runs
        self._outbox = outbox
        self._damaged = damaged
        self._retention = retention
        self._ended = 0
        self._loop = DueLoop(self._sweep_due)
        self._idle = False
        """Whether no run can become due before another run has ended."""
        self._changing: set[bytes] = set()
        """The oldest ends that are due and whose run is being redriven or forgotten."""

    def run_ended(self) -> None:
        """Count one more ended run."""
        self._ended += 1
        if self._idle or self._ended > self._retention.count:
            self._loop.wake()

    async def counts(self, number: int, status: StatusRecord) -> bool:
        """Return whether a run counts as an ended run that is kept. A dead letter that has exceeded
        the retention does not count."""
        if status.ended_at is None:
            return False
        key = self._partition.ledger.timed(status.ended_at, number)
        return await self._partition.store.get("ended", key) is not None

    def removed(self) -> None:
        """Count one ended run fewer, because it was forgotten or redriven."""
        self._ended -= 1

    async def run(self) -> None:
        """Remove runs until cancelled."""
        await self._outbox.converted()
        ended = await self._count()
        # In a second statement, because more runs may have ended during the first.
        self._ended += ended
        await self._loop.run()

    async def _sweep_due(self) -> float:
        """Remove the runs that exceed the retention. Return when the next run may exceed it."""
        ledger = self._partition.ledger
        rows = await self._partition.store.scan("ended", prefix=ledger.prefix, limit=PAGE)
        oldest = [key for key, _ in rows]
        if await self._sweep(oldest):
            return NOW
        kept = [key for key in oldest if key not in self._changing]
        self._idle = not kept
        if not kept:
            return inf
        ended_at = ledger.split_timed(kept[0])[0]
        return trio.current_time() + (ended_at + self._retention.age - self._partition.wall())

    async def _sweep(self, oldest: list[bytes]) -> int:
        partition, now = self._partition, self._partition.wall()
        swept = 0
        self._changing.clear()
        for key in oldest:
            ended_at, number = partition.ledger.split_timed(key)
            late = self._ended - len(self._changing) > self._retention.count
            if ended_at + self._retention.age > now and not late:
                break
            if self._runs.changing(number) is not None:
                self._changing.add(key)
                continue
            submission, status = await self._read(number)
            kept = await partition.store.get("dead", partition.ledger.number(number)) is not None
            if submission is not None and not kept:
                await self.redrive.erase(number, submission, status or StatusRecord())
            # A dead letter leaves the index, too, so that it is not read again and again.
            partition.store.open_group().delete("ended", key)
            self._ended -= 1
            swept += 1
        if swept:
            await partition.store.durable()
        return swept

    async def _read(self, number: int) -> tuple[Submission | None, StatusRecord | None]:
        ledger = self._partition.ledger
        try:
            return await ledger.submission(number), await ledger.status(number)
        except StoreCorrupt as error:
            return await self._damaged.remains(number, error)

    async def _count(self) -> int:
        total = 0
        async for rows in self._partition.ledger.pages("ended", size=5000):
            total += len(rows)
        return total
