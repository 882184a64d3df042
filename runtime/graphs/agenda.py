"""The agenda of a graph: what may be begun next, in the graph itself and in the bodies of its maps.

All frontiers of a run share one agenda, so the limits of the graph hold for all of its nodes.
"""

from collections import Counter, deque
from heapq import heapify, heappop, heappush

from keyrun.runtime.graphs.activation import Activation
from keyrun.runtime.graphs.item_tally import ItemTally, NodeTally
from keyrun.storage.group import Group


class Agenda:
    """The nodes of a run that are ready, and those that are active."""

    __slots__ = (
        "_levels",
        "_limit",
        "_ready",
        "count",
        "dropped",
        "inner",
        "is_narrow",
        "items",
        "nodes",
        "picked",
        "staged",
        "taken",
        "waves",
    )

    def __init__(self, limit: int | None, *, waves: bool, staged: Group | None) -> None:
        self.picked: deque[Activation] = deque()
        """The nodes that may begin, in this order. They count as active."""
        self.count = 0
        """The number of active nodes. A map whose items are under way does not count."""
        self.inner: dict[str, Activation] = {}
        """The active nodes in bodies of maps, by the name of their turn."""
        self.dropped: list[Activation] = []
        """Active nodes that a failed map has cut off, until they are taken."""
        self.items: dict[str, ItemTally] = {}
        """The items of each map."""
        self.taken: set[tuple[str, int]] = set()
        """The edges in bodies of maps that fired for any item: their source and their index."""
        self.nodes: dict[str, NodeTally] = {}
        """The turns of each node in the body of a map."""
        self.waves = waves
        self.staged = staged
        """The group with what led to the next activations."""
        self.is_narrow = waves or limit is not None
        """Whether a node that is active may keep any other from beginning."""
        self._limit = limit
        self._levels: Counter[int] = Counter()
        """The number of active nodes of each level, if there are waves."""
        self._ready: list[tuple[int, Activation]] = []

    def offer(self, level: int, activation: Activation) -> None:
        """Add a node that is ready."""
        heappush(self._ready, (level, activation))

    def fill(self) -> None:
        """Pick what may be begun."""
        ready = self._ready
        while ready and (self._limit is None or self.count < self._limit):
            level, activation = ready[0]
            if self._levels and level > min(self._levels):
                return
            heappop(ready)
            self._pick(activation)

    def _pick(self, activation: Activation) -> None:
        owner = activation.owner
        if self.waves:
            self._levels[owner.level_of(activation.planned)] += 1
        self.count += 1
        owner.picked(activation)
        self.picked.append(activation)

    def leave(self, activation: Activation) -> None:
        """Record that a node is not active any more."""
        if self.waves:
            level = activation.owner.level_of(activation.planned)
            self._levels[level] -= 1
            if not self._levels[level]:
                del self._levels[level]

    def drop(self, activations: list[Activation], waiting: set[str]) -> None:
        """Cut off active nodes, and forget the turns that are only ready."""
        for activation in activations:
            activation.is_dropped = True
            self.inner.pop(activation.ident, None)
            if activation in self.picked:
                self.picked.remove(activation)
            self.dropped.append(activation)
            self.leave(activation)
        if waiting:
            self._ready = [each for each in self._ready if each[1].ident not in waiting]
            heapify(self._ready)

    def take_dropped(self) -> list[Activation]:
        """Return the nodes that were cut off since the last call."""
        dropped, self.dropped = self.dropped, []
        return dropped

    def recall(self, ident: str) -> Activation | None:
        """Pick what is known to have begun, though its turn has not come: a failure that made room
        for it was taken back by a redrive. No name asks for workflow code, which may lead there."""
        for at, (_, activation) in enumerate(self._ready):
            if activation.ident == ident or (ident == "" and activation.planned.step is None):
                del self._ready[at]
                heapify(self._ready)
                self._pick(activation)
                return activation
        return None
