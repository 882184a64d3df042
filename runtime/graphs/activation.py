"""Activations: one turn of a node, and how it ended."""

from typing import Any, NamedTuple

from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.node_input import NodeInputRecord
from keyrun.runtime.graphs.plan import Station
from keyrun.runtime.values import Failure
from keyrun.storage.group import Group


class NodeEnd(NamedTuple):
    """The end of a node: `on` is None if it was skipped. `error` is what to raise if it failed and
    nobody takes care of that."""

    on: On | None
    port: str | None = None
    output: Any = None
    failure: Failure | None = None
    error: BaseException | None = None
    broken: bool = False
    """Skipped since something before it failed and nobody took care of that."""
    otherwise: "NodeEnd | None" = None
    """How the node has ended if no edge takes its port. Only an edge that names the port can."""
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
        """What must be durable before it begins: the outcomes that led to it."""

    def __lt__(self, other: "Activation") -> bool:
        # Never equal in rank: a node has one turn at a time.
        return self.station.rank < other.station.rank

    def __repr__(self) -> str:
        return f"<activation {self.ident}>"
