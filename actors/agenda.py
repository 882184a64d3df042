"""Cells that are due at a time.

One task serves them all and sleeps until the earliest. It is started with the first entry and
sleeps without a deadline when there is none, so a virtual clock is never kept ticking.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio

from keyrun.actors.cell import Cell
from keyrun.actors.pool import Pool


class Agenda:
    """Calls `callback(cell)` when the time of a cell has come, in order of time."""

    def __init__(self, pool: Pool, callback: Callable[[Cell], None]) -> None:
        self._pool = pool
        self._callback = callback
        self._heap: list[tuple[float, int, Cell]] = []
        self._ties = count()
        self._scope: trio.CancelScope | None = None

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, due: float, cell: Cell) -> None:
        """Have `cell` called at `due`."""
        heapq.heappush(self._heap, (due, next(self._ties), cell))
        if self._scope is None:
            self._scope = trio.CancelScope(deadline=due)
            self._pool.spawn(self._run)
        elif due < self._scope.deadline:
            self._scope.deadline = due

    def hasten(self) -> None:
        """Have every cell called as soon as may be, in the order in which they are due."""
        self._heap = [(-math.inf, next(self._ties), cell) for *_, cell in sorted(self._heap)]
        if self._scope is not None and self._heap:
            self._scope.deadline = -math.inf

    def keep(self, wanted: Callable[[Cell], bool]) -> None:
        """Forget every cell that is not `wanted` any more."""
        self._heap = [entry for entry in self._heap if wanted(entry[2])]
        heapq.heapify(self._heap)

    async def _run(self) -> None:
        while True:
            assert self._scope is not None
            with self._scope:
                await trio.sleep_forever()
            now = trio.current_time()
            self._scope = trio.CancelScope(deadline=math.inf)
            while self._heap and self._heap[0][0] <= now:
                self._callback(heapq.heappop(self._heap)[2])
            if self._heap:
                self._scope.deadline = self._heap[0][0]
