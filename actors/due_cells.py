"""Due cells: cells that are due at a time.

One task serves all of them, and sleeps until the earliest is due. It is started with the first
entry. Without entries it sleeps without a deadline, so that it never keeps a virtual clock running.
"""

import heapq
import math
from collections.abc import Callable
from itertools import count

import trio

from keyrun.actors.cell import Cell
from keyrun.actors.pool import Pool


class DueCells:
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
        """Call the callback with `cell` at `due`."""
        heapq.heappush(self._heap, (due, next(self._ties), cell))
        if self._scope is None:
            self._scope = trio.CancelScope(deadline=due)
            self._pool.spawn(self._run)
        elif due < self._scope.deadline:
            self._scope.deadline = due

    def hasten(self) -> None:
        """Call the callback for every cell as soon as possible, in the order in which they are
        due."""
        self._heap = [(-math.inf, next(self._ties), cell) for *_, cell in sorted(self._heap)]
        if self._scope is not None and self._heap:
            self._scope.deadline = -math.inf

    def keep(self, wanted: Callable[[Cell], bool]) -> None:
        """Remove every cell that is not `wanted`."""
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
