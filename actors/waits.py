"""Who waits for whom: the asks and stops under way in handlers.

A handler that waits for another key holds its own. If that key, perhaps through others, waits for
the first one, none of them can ever go on: such a cycle is refused to whoever would close it.
"""

import math
from collections import deque
from collections.abc import Hashable

import trio

from keyrun.actors.cell import Cell, Envelope
from keyrun.actors.errors import WouldDeadlock
from keyrun.actors.pool import Pool


class Waits:
    """Knows what each cell's handler waits for."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._under_way: dict[Cell, dict[Envelope, Cell]] = {}

    def refuse_cycle(self, call: str, target: Cell) -> list[Cell]:
        """Raise if `target` can go on only after the calling handler. Returns the cells that the
        caller is a handler of, if it is one."""
        above = list(self._pool.cells_above())
        if above and (target in above or target in self._under_way):
            path = self._path(target, above)
            if path:
                raise WouldDeadlock(call, target.key, path)
        return above

    def enter(self, above: list[Cell], envelope: Envelope, target: Cell) -> None:
        """The cells `above` wait until `target` has settled `envelope`. One that waits no longer
        than some deadline closes no cycle, since the others go on after it."""
        if trio.current_effective_deadline() == math.inf:
            for cell in above:
                self._under_way.setdefault(cell, {})[envelope] = target

    def leave(self, above: list[Cell], envelope: Envelope) -> None:
        """They do not wait for it any more."""
        for cell in above:
            envelopes = self._under_way.get(cell)
            if envelopes is not None:
                envelopes.pop(envelope, None)
                if not envelopes:
                    del self._under_way[cell]

    def _path(self, start: Cell, ends: list[Cell]) -> list[Hashable]:
        """The keys from `start` to one of `ends`, each waiting for the next; none if there is no
        way."""
        paths = {start: [start.key]}
        queue = deque([start])
        while queue:
            cell = queue.popleft()
            if cell in ends:
                return paths[cell]
            for envelope, target in self._under_way.get(cell, {}).items():
                if envelope.is_awaited and target not in paths:
                    paths[target] = [*paths[cell], target.key]
                    queue.append(target)
        return []
