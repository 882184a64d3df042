"""Backpressure between nodes: a node waits while too many runs wait for the node after it.

A node that leads to a node with `max_waiting` starts only when it has a place in the queue of that
node. It takes all places that it needs, or none. A run may still hold places that it took for an
earlier node, and runs that wait for the places of each other would wait forever. So the nodes that
such places depend on wait only for gates further on, and exceed the limit elsewhere.
"""

from collections import Counter
from contextlib import nullcontext

from keyrun.runtime.graphs.activation import Activation
from keyrun.runtime.graphs.frontier import Frontier
from keyrun.runtime.host.step_gates import HeldNode, StepGate
from keyrun.runtime.run.run import Run
from keyrun.runtime.values import Obstacle


class PlaceReservations:
    """The places that one run holds."""

    def __init__(self, run: Run, frontier: Frontier) -> None:
        self._run = run
        self._frontier = frontier
        self._taken: dict[str, StepGate] = {}
        self._awaited: Counter[StepGate] = Counter()

    def reserve(self, activation: Activation) -> bool:
        """Take the places that a node needs before it begins. Return False if one is missing."""
        if self._lacking(activation) is not None:
            return False
        for name in activation.planned.crowded:
            if name not in self._taken:
                gate = self._taken[name] = self._gate(name)
                gate.keep((self._run.number, name))
        # Now that the run holds these places, its other nodes may exceed the limit.
        for each in +self._awaited:
            each.recheck()
        return True

    async def wait(self, activation: Activation) -> None:
        """Return when the node has the places that it needs."""
        while not self.reserve(activation):
            lacking = self._lacking(activation)
            assert lacking is not None
            self._awaited[lacking] += 1
            self._run.block(activation.ident, Obstacle.MAX_WAITING)
            try:
                # Several waits for the same gate are one saturation.
                held, metrics = self._held(activation, lacking), self._run.metrics
                with (
                    lacking.saturation.wait(held),
                    nullcontext() if metrics is None else metrics.holding(held.full).wait(None),
                ):
                    while self._lacking(activation) is lacking:
                        await lacking.wait_for_place()
            finally:
                self._run.unblock(activation.ident)
                self._awaited[lacking] -= 1

    def _held(self, activation: Activation, lacking: StepGate) -> HeldNode:
        full = (name for name in activation.planned.crowded if self._gate(name) is lacking)
        return HeldNode(self._run, activation.ident, next(full))

    def _lacking(self, activation: Activation) -> StepGate | None:
        """Return the gate that a node has to wait for, because it has no room for the node."""
        crowded = activation.planned.crowded
        needs = Counter(self._gate(name) for name in crowded if name not in self._taken)
        for gate, count in needs.items():
            if not gate.has_room(count) and not self._is_ahead(activation, gate):
                return gate
        return None

    def _is_ahead(self, activation: Activation, gate: StepGate) -> bool:
        """Return whether the run holds a place at this gate or further on that depends on this
        node."""
        plan, name = self._frontier.plan, activation.planned.node.id
        here = self._rank(gate)
        return any(
            held.keeps((self._run.number, target))
            and self._rank(held) >= here
            and (self._frontier.is_narrow or name in plan.before(target))
            for target, held in self._taken.items()
        )

    def _rank(self, gate: StepGate) -> tuple[int, int]:
        """Return the position of a gate in the graph, which is the same for all runs."""
        return min(
            (planned.level, planned.rank[1])
            for name, planned in self._frontier.plan.planned_nodes.items()
            if planned.is_crowded and self._gate(name) is gate
        )

    def _gate(self, name: str) -> StepGate:
        step = self._frontier.plan.planned_nodes[name].step
        assert step is not None
        return self._run.partition.host.gates.of(step)

    def review(self) -> None:
        """Give up the places of nodes that will not be reached again: the node has ended, and no
        active node leads to it."""
        for name in list(self._taken):
            planned = self._frontier.plan.planned_nodes[name]
            before = (link.edge.source for link in planned.incoming)
            if not self._frontier.under_way(name) and not any(
                map(self._frontier.under_way, before)
            ):
                self._vacate(name)

    def clear(self) -> None:
        """Give up all places."""
        for name in list(self._taken):
            self._vacate(name)

    def _vacate(self, name: str) -> None:
        self._taken.pop(name).vacate((self._run.number, name))
