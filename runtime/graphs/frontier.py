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
4. A map is active until all of its items have ended. Each item has a frontier of its own for the
   body of the map, with the same agenda.
5. An edge out of a loop that does not fire is dead only when the loop is over: a later turn may
   fire it.
"""

from collections import deque
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from keyrun.runtime.errors import ConditionError
from keyrun.runtime.graphs.activation import Activation, NodeEnd
from keyrun.runtime.graphs.agenda import Agenda
from keyrun.runtime.graphs.condition import NO_FAILURES
from keyrun.runtime.graphs.edge import Link, On
from keyrun.runtime.graphs.item_tally import ItemTally, NodeTally
from keyrun.runtime.graphs.map_items import MapItems
from keyrun.runtime.graphs.node_input import Item, NodeInputRecord
from keyrun.runtime.graphs.plan import GraphPlan, PlannedNode, item_of, node_of, turn_of
from keyrun.runtime.values import Failure


class EdgeState(Enum):
    """The state of an edge."""

    OPEN = auto()
    FIRED = auto()
    DEAD = auto()
    BROKEN = auto()


# Looking a member up in its enum takes as long as a call.
_COMPLETE = On.COMPLETE
_WAY_OPEN, _WAY_FIRED, _WAY_BROKEN = EdgeState.OPEN, EdgeState.FIRED, EdgeState.BROKEN


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
        agenda: Agenda,
        *,
        of: MapItems | None = None,
        item: Item | None = None,
    ) -> None:
        """Begin with the entries of a graph, or those of the body of a map for one item of it."""
        self.plan = plan
        self.run_input = run_input
        self.agenda = agenda
        self.is_narrow = agenda.is_narrow or bool(plan.loops)
        """Whether a node that waits may keep others from beginning that do not come after it."""
        self.item = item
        self._of = of
        """The items that this one belongs to."""
        self.cancels: bool = of is not None and (of.fails_fast or of.activation.owner.cancels)
        """Whether its nodes may be cut off by a map that they are in."""
        self.suffix = ""
        """Distinguishes the names of turns from those of other items, as `#[7]`."""
        self._level = 0
        """The level of the map that its nodes are in."""
        self._rank: tuple[int, ...] = ()
        """The first part of the rank of its nodes, which orders the items."""
        self.outputs: dict[str, Any] = {}
        self.ends: dict[str, NodeEnd] = {}
        """How each node ended the last time that it ran, or that it was skipped."""
        self.failed: list[tuple[Activation, NodeEnd]] = []
        """Failures that no edge handled, in order."""
        self.active: dict[str, Activation] = {}
        """The nodes that are picked or under way."""
        self.maps: dict[str, MapItems] = {}
        """The maps whose items are under way."""
        self.turns: dict[str, int] = {}
        """How often each node was activated."""
        self.ways = [EdgeState.OPEN] * len(plan.links)
        self.taken: set[int] = set()
        """Edges that fired at any time."""
        self.fired: set[int] = set()
        """Edges that fired when the last node ended."""
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
        first = _SKIPPED
        if of is not None:
            assert item is not None
            first = NodeEnd(None, output=item.value)
            self._enter(of.activation, item)
        for planned in plan.entries:
            self._activate(planned, first, None)
        if of is None:
            agenda.fill()

    def _enter(self, activation: Activation, item: Item) -> None:
        """Take over what is known where the map is."""
        owner, given = activation.owner, activation.given
        self.outputs = dict(given.outputs)
        self.suffix = item_of(owner.suffix, given.iteration, item.at)
        self._level = owner.level_of(activation.planned)
        self._rank = (*activation.rank[1:], item.at)

    def inside(self, of: MapItems, plan: GraphPlan, item: Item) -> "Frontier":
        """Return the frontier of an item of a map that is one of these nodes."""
        return Frontier(plan, self.run_input, self.agenda, of=of, item=item)

    def level_of(self, planned: PlannedNode) -> int:
        """Return the level of a node. All nodes in the body of a map have the level of the map."""
        return planned.level if self._of is None else self._level

    def tally(self, activation: Activation) -> ItemTally:
        """Return the tally of the items of a map."""
        return self.agenda.items.setdefault(activation.planned.node.id, ItemTally())

    def end(self, activation: Activation, end: NodeEnd) -> NodeEnd:
        """Record that an active node has ended, and return how: one that left by a failure port
        which no edge takes has failed. A map ends when its items have ended: the function of the
        node gives only the list."""
        plan = activation.planned.map
        if plan is None or end.on is not On.COMPLETE:
            end = self._end(activation, end)
        else:
            self.agenda.count -= 1
            items = MapItems(self, activation, plan, end.output)
            self.maps[activation.planned.node.id] = items
            over = items.fill()
            if over is not None:
                self._end(activation, over)
        self.agenda.fill()
        return end

    def _end(self, activation: Activation, end: NodeEnd) -> NodeEnd:
        name, agenda = activation.planned.node.id, self.agenda
        del self.active[name]
        if agenda.waves:
            agenda.leave(activation)
        if self.maps.pop(name, None) is None:
            agenda.count -= 1
        if end.otherwise is not None and not self._fired(activation, end):
            end = end.otherwise
        if end.on is _COMPLETE:
            self.outputs[name] = end.output
        self._settle(activation.planned, end, activation)
        if self._returns:
            self._turn()
        if self._of is not None:
            self._end_inside(self._of, activation, end)
        return end

    def _end_inside(self, of: MapItems, activation: Activation, end: NodeEnd) -> None:
        """Record the end of a node in the body of a map. It may be the end of the item, and that
        may be the end of the map."""
        self.agenda.inner.pop(activation.ident, None)
        tally = self.agenda.nodes[activation.planned.node.id]
        tally.active -= 1
        if end.on is On.COMPLETE:
            tally.done += 1
        else:
            tally.failed += 1
        if (self.failed and of.fails_fast) or not (self.active or self._waiting):
            over = of.ended(self)
            if over is not None:
                of.activation.owner._end(of.activation, over)

    def drop(self) -> None:
        """Cut off everything that is under way, because the map has failed."""
        for items in self.maps.values():
            items.drop()
        cut = [each for name, each in self.active.items() if name not in self.maps]
        self.agenda.count -= len(cut)
        for name in (*self.active, *self._waiting):
            self.agenda.nodes[name].active -= 1
        waiting = {self._ident(name) for name in self._waiting}
        self.agenda.drop(cut, waiting)
        for name in self.maps:
            self.agenda.leave(self.active[name])
            self.agenda.inner.pop(self.active[name].ident, None)
        self.active.clear()
        self.maps.clear()
        self._waiting.clear()

    def _settle(self, planned: PlannedNode, end: NodeEnd, activation: Activation | None) -> None:
        """Decide the edges of a node that has ended, and of the nodes that it causes to be
        skipped."""
        left = deque([(planned, end)])
        while left:
            planned, end = left.popleft()
            if end.on is not None or planned.node.id not in self.turns:
                self.ends[planned.node.id] = end
            if not planned.outgoing and not planned.returning and end.failure is None:
                continue
            for target in self._leave(planned, end, activation):
                skipped = self._consider(target)
                if skipped is not None:
                    left.append((target, skipped))

    def _leave(
        self, planned: PlannedNode, end: NodeEnd, activation: Activation | None
    ) -> list[PlannedNode]:
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
        if self._of is not None and fired:
            self.agenda.taken.update((planned.node.id, index) for index in fired)
        for link in planned.returning:
            if link.index in fired:
                self._returns.append((link, end))
            else:
                self._over.add(link.index)
        touched = []
        for link in planned.outgoing:
            if link.index in fired:
                # A node that began with its first edge ignores the later ones.
                if link.edge.target not in self._entered:
                    self._count += 1
                    self._tokens[link.index] = (self._count, end)
                touched.append(self._decide(link, _WAY_FIRED))
            elif self._over.issuperset(link.loops):
                touched.append(self._decide(link, EdgeState.BROKEN if broken else EdgeState.DEAD))
            else:
                self._held.append((link, EdgeState.BROKEN if broken else EdgeState.DEAD))
        if self._held and planned.returning:
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
        for link in activation.planned.leaving:
            if link.on is not on and (link.on is not On.ALL or on is On.OPEN):
                continue
            if link.port != port and (link.port is not None or end.otherwise is not None):
                continue
            condition = link.condition
            if condition is not None:
                try:
                    failures = activation.given.failures
                    holds = condition.holds(
                        *(end.output, self.run_input, self.outputs, end.failure, failures),
                        item=activation.given.item,
                    )
                    if not holds:
                        continue
                except ConditionError as error:
                    said = f"the condition of edge {link.edge} of the graph: {error}"
                    raise ConditionError(said, step=link.edge.source) from error
            fired.add(link.index)
        self.fired = fired
        return fired

    def _decide(self, link: Link, way: EdgeState) -> PlannedNode:
        self.ways[link.index] = way
        return self.plan.planned_nodes[link.edge.target]

    def _consider(self, planned: PlannedNode) -> NodeEnd | None:
        """Activate a node if its edges allow it. Return the end of the node if they never will."""
        name = planned.node.id
        if name in self._entered:
            return None
        ways, tokens = self.ways, self._tokens
        fresh = None
        undecided = broken = False
        for link in planned.incoming:
            way = ways[link.index]
            if way is _WAY_OPEN:
                undecided = True
            elif way is _WAY_BROKEN:
                broken = True
            elif link.index in tokens:
                fresh = link
        if planned.node.join == "any":
            if fresh is not None:
                self._take(planned)
                return None
        elif not undecided and not broken and fresh is not None:
            self._take(planned)
            return None
        if undecided:
            return None
        self._entered.add(name)
        return _BROKEN if broken else _SKIPPED

    def _take(self, planned: PlannedNode) -> None:
        """Activate a node with the latest of the ends that led to it."""
        tokens, latest = self._tokens, None
        failures = NO_FAILURES
        for link in planned.incoming:
            token = tokens.pop(link.index, None)
            if token is None:
                continue
            if latest is None or token[0] > latest[0]:
                latest, way = token, link
            if token[1].failure is not None:
                failures = {**failures, link.edge.source: token[1].failure}
        assert latest is not None
        self._activate(planned, latest[1], way, failures)

    def _activate(
        self,
        planned: PlannedNode,
        end: NodeEnd,
        link: Link | None,
        failures: Mapping[str, Failure] = NO_FAILURES,
    ) -> None:
        name = planned.node.id
        number = self.turns[name] = self.turns.get(name, 0) + 1
        port = None if link is None else link.edge.to_port or link.edge.port
        given = NodeInputRecord(
            self.run_input,
            end.output,
            dict(self.outputs),
            port,
            end.failure,
            number,
            failures,
            self.item,
            link is None or link.is_stored,
        )
        self._entered.add(name)
        self._waiting.add(name)
        rank: tuple[int, ...] = planned.rank
        if self._of is not None:
            rank = (rank[0], *self._rank, rank[1])
            tally = self.agenda.nodes.setdefault(name, NodeTally())
            tally.turns += 1
            tally.active += 1
        agenda = self.agenda
        ident = name if number == 1 and not self.suffix else self._ident(name)
        activation = Activation(self, planned, ident, given, rank, agenda.staged)
        agenda.offer(self.level_of(planned) if agenda.waves else 0, activation)

    def _ident(self, name: str) -> str:
        return turn_of(name, self.turns[name], self.suffix)

    def _turn(self) -> None:
        """Begin the next turn of each loop in whose region no node is active."""
        for link, end in list(self._returns):
            loop = self.plan.loops[link.index]
            if any(map(self.under_way, loop.region)):
                continue
            if any(each.planned.node.id in loop.region for each, _ in self.failed):
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
                for each in self.plan.planned_nodes[name].outgoing:
                    self.ways[each.index] = EdgeState.OPEN
                    self._tokens.pop(each.index, None)
                for each in self.plan.planned_nodes[name].returning:
                    self._over.discard(each.index)
            for index in loop.inner:
                self._fired_back.pop(index, None)
            self._held = [(e, way) for e, way in self._held if e.edge.source not in loop.region]
            failures = {} if end.failure is None else {link.edge.source: end.failure}
            self._activate(self.plan.planned_nodes[link.edge.target], end, link, failures)

    def picked(self, activation: Activation) -> None:
        """Record that a node that was ready is active."""
        name = activation.planned.node.id
        self._waiting.discard(name)
        self.active[name] = activation
        if self._of is not None:
            self.agenda.inner[activation.ident] = activation

    def find(self, ident: str) -> Activation | None:
        """Return an active node by the name of its turn. See `Agenda.recall` for one that is not
        active."""
        found = self.active.get(node_of(ident)) or self.agenda.inner.get(ident)
        found = found or self.agenda.recall(ident)
        return found if found is not None and found.ident == ident else None

    def all_active(self) -> list[Activation]:
        """Return the active nodes of the graph and of the bodies of its maps."""
        return [*self.active.values(), *self.agenda.inner.values()]

    def under_way(self, name: str) -> bool:
        """Return whether a node is active, or ready to begin."""
        return name in self.active or name in self._waiting
