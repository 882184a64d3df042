"""Passivation: drop actors that have received no message for a while.

A cell is in the heap of due cells at most once, from the first time that it becomes idle. When it
becomes idle again, only the time is recorded, and its entry is moved when it is due. So the cost is
one heap operation per key and idle timeout, not per message, and the time is exact.
"""

from trio import current_time

from keyrun.actors.cell import IDLE, Cell, Envelope, Order
from keyrun.actors.directory import Directory
from keyrun.actors.due_cells import DueCells
from keyrun.actors.lifecycle import Lifecycle, passivates_silently
from keyrun.actors.pool import Pool

SLACK = 1024
"""Entries of dropped cells that may be among the due cells before they are removed."""


class Passivation:
    """Watches idle cells, and has their actors dropped after `timeout` seconds."""

    def __init__(
        self,
        timeout: float,
        window: float,
        pool: Pool,
        directory: Directory,
        lifecycle: Lifecycle,
    ) -> None:
        self._timeout = timeout
        self._window = window
        self._directory = directory
        self._lifecycle = lifecycle
        self._timers = DueCells(pool, self._due)

    def watch(self, cell: Cell) -> None:
        """Record that `cell` has become idle now."""
        now = current_time()
        if cell.idle_since is None:
            if len(self._timers) > 2 * len(self._directory.cells) + SLACK:
                self._timers.keep(self._is_current)
            self._timers.add(now + self._timeout, cell)
        cell.idle_since = now

    def _is_current(self, cell: Cell) -> bool:
        return self._directory.cells.get(cell.key) is cell

    def _due(self, cell: Cell) -> None:
        assert cell.idle_since is not None
        now = current_time()
        due = cell.idle_since + self._timeout
        cell.idle_since = None
        if cell.state is not IDLE or not self._is_current(cell):
            return
        if due > now:
            cell.idle_since = due - self._timeout
            self._timers.add(due, cell)
        elif passivates_silently(cell):
            self._lifecycle.passivations += cell.actor is not None
            cell.actor = None
            self._forget(cell, now)
        else:
            self._directory.post(cell, Envelope(Order.PASSIVATE))

    def _forget(self, cell: Cell, now: float) -> None:
        """Drop a cell without an actor, unless its crashes still count."""
        if cell.crashes is not None:
            cell.crashes.forget(now - self._window)
            if cell.crashes.times:
                self.watch(cell)
                return
        self._directory.drop(cell)
