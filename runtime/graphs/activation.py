"""Activations: one turn of a node, and its end."""

from typing import TYPE_CHECKING, Any, NamedTuple

import trio

from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.node_input import NodeInputRecord
from keyrun.runtime.graphs.plan import PlannedNode
from keyrun.runtime.values import Failure
from keyrun.storage.group import Group

if TYPE_CHECKING:
    from keyrun.runtime.graphs.frontier import Frontier


class NodeEnd(NamedTuple):
    """The end of a node. `on` is None if the node was skipped. If the node failed and no edge
    handles the failure, the run raises `error`."""

    on: On | None
    port: str | None = None
    output: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    broken: bool = False
    """Whether the node was skipped because a node before it failed and no edge handled the
    failure."""
    otherwise: "NodeEnd | None" = None
    """The end of the node if no edge takes its port. Only an edge that names the port can take
    it."""
    afresh: bool = False
    """Whether a redrive runs the whole node again, and not only the call in it that failed."""
    inside: "tuple[Activation, NodeEnd] | None" = None
    """The failed node in the body of a failed map, with its failure. A redrive runs it again."""


class Activation:
    """One turn of a node. The second is called `node#2`."""

    __slots__ = ("gate", "given", "ident", "is_dropped", "owner", "planned", "rank", "scope")

    def __init__(
        self,
        owner: "Frontier",
        planned: PlannedNode,
        ident: str,
        given: NodeInputRecord,
        rank: tuple[int, ...],
        gate: Group | None = None,
    ) -> None:
        self.owner = owner
        """The frontier of the graph, or of the item, that it belongs to."""
        self.planned = planned
        self.ident = ident
        self.given = given
        self.rank = rank
        """Which of the nodes that are ready go first."""
        self.scope: trio.CancelScope | None = None
        """The cancel scope of the node while it runs, if anything may cancel the node alone."""
        self.is_dropped = False
        """Whether it was cut off."""
        self.gate = gate
        """The group with the outcomes that led to this turn. The turn begins when it is durable."""

    def __lt__(self, other: "Activation") -> bool:
        # Never equal in rank: a node has one turn at a time for each item.
        return self.rank < other.rank

    def __repr__(self) -> str:
        return f"<activation {self.ident}>"
