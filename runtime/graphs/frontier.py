"""The frontier of a graph: decides which nodes may run.

It depends on the order of the outcomes only, and has no clock, no tasks and no store. For the same
ends in the same order it activates the same nodes in the same order. This makes a graph replay.

1. An edge is open until its source has ended. Then it fires, or is dead, or is broken. It is broken
   if its source failed, or was skipped because of a failure, and no edge handled the failure.
2. A node that joins "all" waits until all its edges are decided. It runs if one of them fired since
   its last turn and none is broken, else it is skipped; one that joins "any" runs with the first
   edge that fires. Skipping a node decides its edges.
3. A back edge that fires begins the next turn of its loop. The turn begins when no node after its
   target is active, and none of them has a failure that no edge handles. Then all edges of these
   nodes are open again.
4. An edge out of a loop that does not fire is dead only when the loop is over: a later turn may
   fire it.
"""

from collections import Counter, deque
from collections.abc import Mapping
from enum import Enum, auto
from heapq import heapify, heappop, heappush
from typing import Any

from keyrun.runtime.errors import ConditionError
from keyrun.runtime.graphs.activation import Activation, NodeEnd
from keyrun.runtime.graphs.condition import NO_FAILURES
from keyrun.runtime.graphs.edge import Link, On
from keyrun.runtime.graphs.node_input import NodeInputRecord
from keyrun.runtime.graphs.plan import GraphPlan, Station
from keyrun.runtime.values import Failure
from keyrun.storage.group import Group


class EdgeState(Enum):
    """The state of an edge."""

    OPEN = auto()
    FIRED = auto()
    DEAD = auto()
    BROKEN = auto()


class TooManyIterations(Exception):
    """A back edge fired more often than it may."""


_SKIPPED = NodeEnd(None)
_BROKEN = NodeEnd(None, broken=True)


class Frontier:
    """The progress of a run of a graph."""

    def __init__(
        self,
        plan: GraphPlan,
        run_input: Any,
        *,
        max_concurrency: int | None = None,
        waves: bool = False,
        staged: Group | None = None,
    ) -> None:
        self.plan = plan
        self.run_input = run_input
        self.outputs: dict[str, Any] = {}
        self.ends: dict[str, NodeEnd] = {}
        """How each node ended the last time that it ran, or that it was skipped."""
        self.failed: list[tuple[Activation, NodeEnd]] = []
        """Failures that no edge handled, in order."""
        self.picked: deque[Activation] = deque()
        """The nodes to begin next, in order. They count as active."""
        self.active: dict[str, Activation] = {}
        self.turns: dict[str, int] = {}
        """How often each node was activated."""
        self.ways = [EdgeState.OPEN] * len(plan.links)
        self.taken: set[int] = set()
        """Edges that fired at any time."""
        self.fired: set[int] = set()
        """Edges that fired when the last node ended."""
        self._most = max_concurrency
        self._waves = waves
        self.is_narrow = waves or max_concurrency is not None or bool(plan.loops)
        """Whether a waiting node may delay nodes that do not come after it."""
        self.staged = staged
        """The group with the outcomes that lead to the next activations."""
        self._levels: Counter[int] = Counter()
        """The number of active nodes of each level, if the graph runs in waves."""
        self._ready: list[tuple[int, Activation]] = []
        self._waiting: set[str] = set()
        """Nodes that are ready and not active."""
        self._tokens: dict[int, tuple[int, NodeEnd]] = {}
        """Ends that fired an edge and have led to no activation yet, with a number that grows."""
        self._count = 0
        self._entered: set[str] = set()
        """Nodes that were activated or skipped in this turn of their loop."""
        self._returns: list[tuple[Link, NodeEnd]] = []
        self._over: set[int] = set()
        """Back edges that did not fire when their source ended."""
        self._held: list[tuple[Link, EdgeState]] = []
        """Edges out of loops that did not fire so far."""
        self._fired_back: dict[int, int] = {}
        for station in plan.entries:
            self._activate(station, _SKIPPED, None)
        self._fill()

    def end(self, activation: Activation, end: NodeEnd) -> NodeEnd:
        """Record that an active node has ended, and return how: one that left by a failure port
        which no edge takes has failed."""
        name = activation.station.node.id
        del self.active[name]
        if self._waves:
            level = activation.station.level
            self._levels[level] -= 1
            if not self._levels[level]:
                del self._levels[level]
        if end.otherwise is not None and not self._fired(activation, end):
            end = end.otherwise
        if end.on is On.COMPLETE:
            self.outputs[name] = end.output
        self._settle(activation.station, end, activation)
        if self._returns:
            self._turn()
        self._fill()
        return end

    def _settle(self, station: Station, end: NodeEnd, activation: Activation | None) -> None:
        """Decide the edges of a node that has ended, and of the nodes that it causes to be
        skipped."""
        left = deque([(station, end)])
        while left:
            station, end = left.popleft()
            if end.on is not None or station.node.id not in self.turns:
                self.ends[station.node.id] = end
            if not station.outgoing and not station.returning and end.failure is None:
                continue
            for target in self._leave(station, end, activation):
                skipped = self._consider(target)
                if skipped is not None:
                    left.append((target, skipped))

    def _leave(
        self, station: Station, end: NodeEnd, activation: Activation | None
    ) -> list[Station]:
        """Decide the edges that leave a node. Return the targets of the decided edges."""
        fired = set[int]()
        if end.on is not None:
            assert activation is not None
            fired = self._fired(activation, end)
        broken = end.broken
        if end.failure is not None and not fired:
            assert activation is not None
            self.failed.append((activation, end))
            broken = True
        self.taken.update(fired)
        for link in station.returning:
            if link.index in fired:
                self._returns.append((link, end))
            else:
                self._over.add(link.index)
        touched = []
        for link in station.outgoing:
            if link.index in fired:
                # A node that began with its first edge ignores the later ones.
                if link.edge.target not in self._entered:
                    self._count += 1
                    self._tokens[link.index] = (self._count, end)
                touched.append(self._decide(link, EdgeState.FIRED))
            elif self._over.issuperset(link.loops):
                touched.append(self._decide(link, EdgeState.BROKEN if broken else EdgeState.DEAD))
            else:
                self._held.append((link, EdgeState.BROKEN if broken else EdgeState.DEAD))
        if self._held and station.returning:
            held, self._held = self._held, []
            for link, way in held:
                if self._over.issuperset(link.loops):
                    touched.append(self._decide(link, way))
                else:
                    self._held.append((link, way))
        return touched

    def _fired(self, activation: Activation, end: NodeEnd) -> set[int]:
        """Return the edges that are taken for this end of a node."""
        on, port = end.on, end.port
        fired: set[int] = set()
        for link in activation.station.leaving:
            if link.on is not on and (link.on is not On.ALL or on is On.OPEN):
                continue
            if link.port != port and (link.port is not None or end.otherwise is not None):
                continue
            condition = link.condition
            if condition is not None:
                try:
                    failures = activation.given.failures
                    holds = condition.holds(
                        end.output, self.run_input, self.outputs, end.failure, failures
                    )
                    if not holds:
                        continue
                except ConditionError as error:
                    said = f"the condition of edge {link.edge} of the graph: {error}"
                    raise ConditionError(said, step=link.edge.source) from error
            fired.add(link.index)
        self.fired = fired
        return fired

    def _decide(self, link: Link, way: EdgeState) -> Station:
        self.ways[link.index] = way
        return self.plan.stations[link.edge.target]

    def _consider(self, station: Station) -> NodeEnd | None:
        """Activate a node if its edges allow it. Return the end of the node if they never will."""
        name = station.node.id
        if name in self._entered:
            return None
        ways, tokens = self.ways, self._tokens
        fresh = None
        undecided = broken = False
        for link in station.incoming:
            way = ways[link.index]
            if way is EdgeState.OPEN:
                undecided = True
            elif way is EdgeState.BROKEN:
                broken = True
            elif link.index in tokens:
                fresh = link
        if station.node.join == "any":
            if fresh is not None:
                self._take(station)
                return None
        elif not undecided and not broken and fresh is not None:
            self._take(station)
            return None
        if undecided:
            return None
        self._entered.add(name)
        return _BROKEN if broken else _SKIPPED

    def _take(self, station: Station) -> None:
        """Activate a node with the latest of the ends that led to it."""
        tokens, latest = self._tokens, None
        failures = NO_FAILURES
        for link in station.incoming:
            token = tokens.pop(link.index, None)
            if token is None:
                continue
            if latest is None or token[0] > latest[0]:
                latest, way = token, link
            if token[1].failure is not None:
                failures = {**failures, link.edge.source: token[1].failure}
        assert latest is not None
        self._activate(station, latest[1], way, failures)

    def _activate(
        self,
        station: Station,
        end: NodeEnd,
        link: Link | None,
        failures: Mapping[str, Failure] = NO_FAILURES,
    ) -> None:
        name = station.node.id
        number = self.turns[name] = self.turns.get(name, 0) + 1
        port = None if link is None else link.edge.to_port or link.edge.port
        given = NodeInputRecord(
            self.run_input, end.output, dict(self.outputs), port, end.failure, number, failures
        )
        ident = name if number == 1 else f"{name}#{number}"
        self._entered.add(name)
        self._waiting.add(name)
        activation = Activation(station, ident, given, self.staged)
        heappush(self._ready, (station.level if self._waves else 0, activation))

    def _turn(self) -> None:
        """Begin the next turn of each loop in whose region no node is active."""
        for link, end in list(self._returns):
            loop = self.plan.loops[link.index]
            if any(map(self.under_way, loop.region)):
                continue
            if any(each.station.node.id in loop.region for each, _ in self.failed):
                continue
            self._returns.remove((link, end))
            turns = self._fired_back[link.index] = self._fired_back.get(link.index, 0) + 1
            most = link.edge.max_iterations
            if most is not None and turns >= most:
                raise TooManyIterations(
                    f"the loop of edge {link.edge} exceeded its max_iterations of {most}"
                )
            for name in loop.region:
                self._entered.discard(name)
                for each in self.plan.stations[name].outgoing:
                    self.ways[each.index] = EdgeState.OPEN
                    self._tokens.pop(each.index, None)
                for each in self.plan.stations[name].returning:
                    self._over.discard(each.index)
            for index in loop.inner:
                self._fired_back.pop(index, None)
            self._held = [(e, way) for e, way in self._held if e.edge.source not in loop.region]
            failures = {} if end.failure is None else {link.edge.source: end.failure}
            self._activate(self.plan.stations[link.edge.target], end, link, failures)

    def _fill(self) -> None:
        """Pick the nodes that may begin."""
        ready = self._ready
        while ready and (self._most is None or len(self.active) < self._most):
            level, activation = ready[0]
            if self._levels and level > min(self._levels):
                return
            heappop(ready)
            self._pick(activation)

    def _pick(self, activation: Activation) -> None:
        if self._waves:
            self._levels[activation.station.level] += 1
        name = activation.station.node.id
        self._waiting.discard(name)
        self.active[name] = activation
        self.picked.append(activation)

    def recall(self, ident: str) -> Activation | None:
        """Pick a node that the journal knows to have begun, before its turn. A failure had made
        room for it, and a redrive has removed that failure. With an empty `ident`, pick workflow
        code, which may lead to that node."""
        for at, (_, activation) in enumerate(self._ready):
            if activation.ident == ident or (ident == "" and activation.station.step is None):
                del self._ready[at]
                heapify(self._ready)
                self._pick(activation)
                return activation
        return None

    def under_way(self, name: str) -> bool:
        """Return whether a node is active, or ready to begin."""
        return name in self.active or name in self._waiting
