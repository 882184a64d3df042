"""Timers: wake evicted runs when they are due.

The timers are in the store, ordered by their due times. The first few are in memory, and the next
ones are read when those are due. Inside the process, Trio's clock counts. If the wall clock is set
forward, timers are due earlier. If it is set back, no wait becomes longer.
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
"""The wall clock is read again after this many seconds, or after a hundredth of the time until the
next timer, if that is longer."""

RunTimer = tuple[float, int, str, int, float]
"""The due time on Trio's clock, the number of the run, its key and place, and the due time on the
wall clock."""


class Timers:
    """The timers of a partition."""

    wake_run: "Callable[[int, str, int | None, float | None], Awaitable[Group | None]]"
    """Wakes an evicted run. The wiring sets it."""

    def __init__(self, partition: "PartitionState", runs: "RunTable", *, window: int) -> None:
        self._partition = partition
        self._runs = runs
        self._window = window
        self._heap: list[RunTimer] = []
        self._beyond = inf
        """The earliest due time, on Trio's clock, of a timer that is not in memory."""
        self._loop = DueLoop(self._wake_due)
        self._ahead = 0.0
        """The seconds by which the wall clock was ahead of Trio's clock when it was last read."""

    def add(self, until: float, due: float, number: int, key: str, place: int) -> None:
        """Add a timer that is durable."""
        if until >= self._beyond:
            return
        heappush(self._heap, (until, number, key, place, due))
        if len(self._heap) > 10 * self._window:
            self._heap = nsmallest(5 * self._window, self._heap)
            self._beyond = self._heap[-1][0]
        if until <= self._heap[0][0]:
            self._loop.wake()

    def recover(self) -> None:
        """Read the timers of earlier processes when the loop starts."""
        self._ahead = self._partition.steady() - trio.current_time()
        self._beyond = -inf

    async def run(self) -> None:
        """Wake each run when it is due, until cancelled."""
        await self._loop.run()

    async def _wake_due(self) -> float:
        """Wake the runs that are due. Return when the next run is due, or when to read the wall
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
        """Return the time on Trio's clock. If the wall clock was set forward, make all timers due
        earlier. If it was set back, store the time for the next process."""
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
                # The run was woken since, and was evicted again with a later timer.
                continue
            if partition.metrics is not None:
                partition.metrics.timer_lag.add(max(0.0, partition.steady() - due))
            woken = await self.wake_run(number, key, place, due)
            if woken is None and self._runs.live(number) is None:
                partition.store.open_group().delete("timers", partition.ledger.timed(due, number))
        partition.store.hasten()

    async def _later(self, number: int, due: float) -> bool:
        """Return whether a run waits for a later time than `due`. A timer that fires is due, even
        if the wall clock was set back."""
        resting = self._runs.at_rest(number)
        try:
            status = resting.status if resting else await self._partition.ledger.status(number)
        except StoreCorrupt:
            # The run is set aside when it is loaded.
            return False
        wait = None if status is None else status.evicted_wait
        if wait is None:
            return False
        return wait.due is None or wait.due > due + 0.001

    async def _read(self) -> None:
        """Replace the timers in memory with the first ones of the store."""
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
                # The clock must not be before the time at which the run was evicted.
                partition.steady.at_least(due - length)
            except StoreCorrupt as error:
                key, place = await self._search(number, error)
            found.append((number, key, place, due))
        late = trio.current_time() - partition.steady()
        self._heap = [(due + late, number, key, place, due) for number, key, place, due in found]
        heapify(self._heap)
        self._beyond = max(self._heap)[0] if len(rows) == self._window else inf

    async def _search(self, number: int, error: StoreCorrupt) -> tuple[str, int]:
        """Return the key and the place of a run whose timer is damaged."""
        logger.warning("a timer is damaged: %s", error, extra={"event": "timer_damaged"})
        known = await trace(self._partition.ledger, number)
        return known.key or "", known.place or 0
