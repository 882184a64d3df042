"""Waits between keys: the calls of `ask` and `stop` that handlers wait for.

A handler that waits for another key holds its own. If that key waits for the first one, directly or
through other keys, none of them can ever resume. The call that would close such a cycle raises
`WouldDeadlock`.
"""

import math
from collections import deque
from collections.abc import Hashable

import trio

from keyrun.actors.cell import Cell, Envelope
from keyrun.actors.errors import WouldDeadlock
from keyrun.actors.pool import Pool


class Waits:
    """Knows which cells the handler of each cell waits for."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._under_way: dict[Cell, dict[Envelope, Cell]] = {}

    def refuse_cycle(self, call: str, target: Cell) -> list[Cell]:
        """Raise `WouldDeadlock` if `target` cannot continue before the calling handler returns.
        Return the cells whose handlers the caller is part of."""
        above = list(self._pool.cells_above())
        if above and (target in above or target in self._under_way):
            path = self._path(target, above)
            if path:
                raise WouldDeadlock(call, target.key, path)
        return above

    def enter(self, above: list[Cell], envelope: Envelope, target: Cell) -> None:
        """Record that the cells `above` wait until `target` has settled `envelope`. A wait with a
        deadline is not recorded, because it ends by itself and so closes no cycle."""
        if trio.current_effective_deadline() == math.inf:
            for cell in above:
                self._under_way.setdefault(cell, {})[envelope] = target

    def leave(self, above: list[Cell], envelope: Envelope) -> None:
        """Record that the cells `above` do not wait for `envelope` any more."""
        for cell in above:
            envelopes = self._under_way.get(cell)
            if envelopes is not None:
                envelopes.pop(envelope, None)
                if not envelopes:
                    del self._under_way[cell]

    def _path(self, start: Cell, ends: list[Cell]) -> list[Hashable]:
        """Return the keys from `start` to one of `ends`, each of which waits for the next. The list
        is empty if there is no such path."""
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
