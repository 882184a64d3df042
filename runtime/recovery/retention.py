"""Retention: ended runs are kept for a while, so that a repeat of a submit finds them."""

from math import inf
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.host.due_loop import NOW, DueLoop
from keyrun.runtime.records.submission import Standing, Submission
from keyrun.storage import StoreCorrupt

if TYPE_CHECKING:
    from keyrun.runtime.operations.damaged_runs import DamagedRuns
    from keyrun.runtime.operations.redrive import Redrive
    from keyrun.runtime.queue.outbox import Outbox
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable

PAGE = 200


def _positive(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    if isinstance(value, bool) or not value > 0:
        raise ValueError(f"{attribute.name} must be positive, got {value!r}")


@attrs.frozen(kw_only=True)
class Retention:
    """How long ended runs are kept: `age` seconds, and the latest `count` of them. Dead letters
    stay until they are redriven or forgotten."""

    age: float = attrs.field(default=7 * 86_400.0, validator=_positive)
    count: float = attrs.field(default=1_000_000, validator=_positive)


class Sweeper:
    """Removes ended runs when their time is over."""

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
        """Whether nothing can become due before another run has ended."""
        self._changing: set[bytes] = set()
        """Of the oldest ends, those that are due and whose run is being redriven or
        forgotten."""

    def run_ended(self) -> None:
        """One more run has ended."""
        self._ended += 1
        if self._idle or self._ended > self._retention.count:
            self._loop.wake()

    async def counts(self, number: int, standing: Standing) -> bool:
        """Whether a run counts as an ended run that is kept. A dead letter whose time is over does
        not."""
        if standing.ended_at is None:
            return False
        key = self._partition.ledger.timed(standing.ended_at, number)
        return await self._partition.store.get("ended", key) is not None

    def removed(self) -> None:
        """A run that counted was forgotten or redriven."""
        self._ended -= 1

    async def run(self) -> None:
        """Sweep for ever."""
        await self._outbox.converted()
        ended = await self._count()
        # Not in one line: more may have ended meanwhile.
        self._ended += ended
        await self._loop.run()

    async def _sweep_due(self) -> float:
        """Remove the runs whose time is over. Return when the next one's may be."""
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
            submission, standing = await self._read(number)
            kept = await partition.store.get("dead", partition.ledger.number(number)) is not None
            if submission is not None and not kept:
                await self.redrive.erase(number, submission, standing or Standing())
            # A dead letter leaves the index, too, or it would be looked at again and again.
            partition.store.open_group().delete("ended", key)
            self._ended -= 1
            swept += 1
        if swept:
            await partition.store.durable()
        return swept

    async def _read(self, number: int) -> tuple[Submission | None, Standing | None]:
        ledger = self._partition.ledger
        try:
            return await ledger.submission(number), await ledger.standing(number)
        except StoreCorrupt as error:
            return await self._damaged.remains(number, error)

    async def _count(self) -> int:
        total = 0
        async for rows in self._partition.ledger.pages("ended", size=5000):
            total += len(rows)
        return total
