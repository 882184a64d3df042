"""Activations: one turn of a node, and its end."""

from typing import Any, NamedTuple

from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.node_input import NodeInputRecord
from keyrun.runtime.graphs.plan import Station
from keyrun.runtime.values import Failure
from keyrun.storage.group import Group


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


class Activation:
    """One turn of a node. The second is called `node#2`."""

    __slots__ = ("gate", "given", "ident", "station")

    def __init__(
        self, station: Station, ident: str, given: NodeInputRecord, gate: Group | None = None
    ) -> None:
        self.station = station
        self.ident = ident
        self.given = given
        self.gate = gate
        """The group with the outcomes that led to this turn. The turn begins when it is durable."""

    def __lt__(self, other: "Activation") -> bool:
        # Never equal in rank: a node has one turn at a time.
        return self.station.rank < other.station.rank

    def __repr__(self) -> str:
        return f"<activation {self.ident}>"
