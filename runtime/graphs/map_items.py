"""The items of a map: which of them are under way, and what came of the others.

Each item has a frontier of its own, for the nodes of the body. They share the agenda of the run. So
a map is decided by the order of outcomes alone, like everything else in a graph.
"""

from typing import TYPE_CHECKING, Any

from keyrun.runtime.graphs.activation import Activation, NodeEnd
from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.node_input import Item
from keyrun.runtime.graphs.plan import MapPlan
from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.graphs.frontier import Frontier


class MapItems:
    """The items of one turn of a map."""

    __slots__ = (
        "_failures",
        "_items",
        "_next",
        "_parent",
        "_plan",
        "_results",
        "activation",
        "open",
    )

    def __init__(
        self, parent: "Frontier", activation: Activation, plan: MapPlan, items: list[Any]
    ) -> None:
        self.activation = activation
        self.open: dict[int, Frontier] = {}
        """The frontiers of the items that are under way."""
        self._parent = parent
        self._plan = plan
        self._items = items
        self._next = 0
        self._results: list[Any] = [None] * len(items)
        self._failures: list[tuple[int, Failure]] = []
        parent.tally(activation).total += len(items)

    def fill(self) -> NodeEnd | None:
        """Begin items while there is room. Return how the map ends, if none are left."""
        while self._next < len(self._items) and len(self.open) < self._plan.max_concurrency:
            index = self._next
            self._next += 1
            self._parent.tally(self.activation).running += 1
            item = Item(index, self._items[index])
            self.open[index] = self._parent.inside(self, self._plan.plan, item)
        return None if self.open else self._end()

    def ended(self, frontier: "Frontier") -> NodeEnd | None:
        """Record that nothing of an item can run any more, or that one of its nodes has failed.
        Return how the map ends, if that ends it."""
        assert frontier.item is not None
        index, tally = frontier.item.at, self._parent.tally(self.activation)
        tally.running -= 1
        del self.open[index]
        if not frontier.failed:
            tally.done += 1
            self._results[index] = self._plan.plan.result(frontier.outputs)
            return self.fill()
        tally.failed += 1
        activation, end = frontier.failed[0]
        assert end.failure is not None
        if self._plan.fail_fast:
            frontier.drop()
            self.drop()
            return NodeEnd(On.FAIL, None, None, end.failure, end.error, inside=(activation, end))
        self._failures.append((index, end.failure))
        return self.fill()

    def drop(self) -> None:
        """Cut off all items that are under way."""
        self._parent.tally(self.activation).running -= len(self.open)
        for frontier in self.open.values():
            frontier.drop()
        self.open.clear()

    @property
    def fails_fast(self) -> bool:
        """Return whether the first item that fails ends the map."""
        return self._plan.fail_fast

    def _end(self) -> NodeEnd:
        failures = [
            {
                "index": index,
                "step": failure.step,
                "kind": str(failure.kind),
                "reason": failure.reason,
                "error_type": failure.error_type,
            }
            for index, failure in sorted(self._failures, key=lambda each: each[0])
        ]
        return NodeEnd(On.COMPLETE, None, {"results": self._results, "failures": failures})
