"""Timers: when the runs are due that have left memory.

They stand in the store, in the order of their times. Of these the first few are in memory; when
their time has come the next are read. Inside the process the clock that does not jump counts. A
wall clock that is set forward is followed, so that what is due by it is due; one that is set back
makes nothing wait longer than it was meant to.
"""

from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush, nsmallest
from math import inf
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.host.due_loop import DueLoop
from keyrun.runtime.logger import logger
from keyrun.runtime.records.damage import trace
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.storage.group import Group

LOOK = 10.0
"""Seconds after which somebody looks whether the wall clock was set forward, at least, and a
hundredth of the time until the next is due."""

Timer = tuple[float, int, str, int, float]
"""When it is due on Trio's clock, the number of the run, its key and place, and when it is due on
the wall clock."""


class Timers:
    """The index of timers, and who is woken next."""

    wake_run: "Callable[[int, str, int | None, float | None], Awaitable[Group | None]]"
    """Wakes an evicted run. The wiring sets it."""

    def __init__(self, partition: "PartitionState", runs: "RunTable", *, window: int) -> None:
        self._partition = partition
        self._runs = runs
        self._window = window
        self._heap: list[Timer] = []
        self._beyond = inf
        """When those may be due, on Trio's clock, that are not in memory."""
        self._loop = DueLoop(self._wake_due)
        self._ahead = 0.0
        """How far the wall clock was ahead of Trio's when somebody last looked."""

    def add(self, until: float, due: float, number: int, key: str, place: int) -> None:
        """One more, which is durable."""
        if until >= self._beyond:
            return
        heappush(self._heap, (until, number, key, place, due))
        if len(self._heap) > 10 * self._window:
            self._heap = nsmallest(5 * self._window, self._heap)
            self._beyond = self._heap[-1][0]
        if until <= self._heap[0][0]:
            self._loop.wake()

    def recover(self) -> None:
        """Know that there may be some in the store."""
        self._ahead = self._partition.steady() - trio.current_time()
        self._beyond = -inf

    async def run(self) -> None:
        """Wake each run when it is due."""
        await self._loop.run()

    async def _wake_due(self) -> float:
        """Wake the runs that are due. Return when the next one is due, or when to look at the wall
        clock again."""
        while True:
            if self._beyond < inf and (not self._heap or self._heap[0][0] > self._beyond):
                await self._read()
            if not self._heap:
                return inf
            now = self._follow()
            until = min(self._heap[0][0], self._beyond)
            if until > now:
                return min(until, now + max(LOOK, (until - now) / 100))
            await self._fire(now)

    def _follow(self) -> float:
        """Now, on Trio's clock. If the wall clock was set forward, all are due sooner; if it was
        set back, how late it really is must be known to the next process, too."""
        now, wall = trio.current_time(), self._partition.steady()
        self._partition.keep_time_if_set_back()
        jump = wall - now - self._ahead
        if jump > 0.001:
            self._ahead += jump
            sooner = [(min(timer[0], now + timer[4] - wall), *timer[1:]) for timer in self._heap]
            heapify(sooner)
            self._heap = sooner
            self._beyond -= jump
        return now

    async def _fire(self, now: float) -> None:
        partition = self._partition
        while self._heap and self._heap[0][0] <= now:
            _, number, key, place, due = heappop(self._heap)
            if await self._later(number, due):
                # It has been woken since, and sleeps again for longer.
                continue
            woken = await self.wake_run(number, key, place, due)
            if woken is None and self._runs.live(number) is None:
                partition.store.open_group().delete("timers", partition.ledger.timed(due, number))
        partition.store.hasten()

    async def _later(self, number: int, due: float) -> bool:
        """Whether a run waits for a later time than the one that has come. That is due, whatever
        the clock says, which may have been set back."""
        resting = self._runs.at_rest(number)
        try:
            standing = (
                resting.standing if resting else await self._partition.ledger.standing(number)
            )
        except StoreCorrupt:
            # It is set aside when its turn has come.
            return False
        wait = None if standing is None else standing.evicted_wait
        if wait is None:
            return False
        return wait.due is None or wait.due > due + 0.001

    async def _read(self) -> None:
        """Read the first of those in the store, and know no others."""
        partition = self._partition
        await partition.store.durable()
        rows = await partition.store.scan(
            "timers", prefix=partition.ledger.prefix, limit=self._window
        )
        found: list[tuple[int, str, int, float]] = []
        for record, raw in rows:
            due, number = partition.ledger.split_timed(record)
            try:
                key, place, due, length = unseal("timers", record, raw)
                # It was that late when the run left memory, whatever the clock says today.
                partition.steady.at_least(due - length)
            except StoreCorrupt as error:
                key, place = await self._search(number, error)
            found.append((number, key, place, due))
        late = trio.current_time() - partition.steady()
        self._heap = [(due + late, number, key, place, due) for number, key, place, due in found]
        heapify(self._heap)
        self._beyond = max(self._heap)[0] if len(rows) == self._window else inf

    async def _search(self, number: int, error: StoreCorrupt) -> tuple[str, int]:
        """Key and place of a run whose timer is damaged."""
        logger.warning("a timer is damaged: %s", error)
        known = await trace(self._partition.ledger, number)
        return known.key or "", known.place or 0
