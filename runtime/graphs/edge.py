"""Edges: the order of nodes, and the conditions under which a run follows an edge."""

from enum import StrEnum

import attrs

from keyrun.runtime.graphs.condition import Condition


class On(StrEnum):
    """The kind of end of its source that an edge follows."""

    COMPLETE = "complete"
    FAIL = "fail"
    ALL = "all"
    OPEN = "open"
    """The circuit breaker of the source is open. The edge leads to its fallback."""


@attrs.frozen(kw_only=True)
class Edge:
    """One edge as it was declared."""

    source: str
    target: str
    on: On = On.COMPLETE
    port: str | None = None
    to_port: str | None = None
    when: str | None = None
    back: bool = False
    max_iterations: int | None = None

    def __str__(self) -> str:
        said = f"{self.source!r} -> {self.target!r}"
        details = [
            f"{name}={value!r}"
            for name, value in (("on", str(self.on)), ("port", self.port))
            if value not in (None, "complete")
        ]
        return f"{said} ({', '.join(details)})" if details else said


@attrs.frozen(kw_only=True, eq=False)
class Link:
    """An edge of a valid graph, with its compiled condition and the loops that it leaves."""

    index: int
    edge: Edge
    on: On
    port: str | None
    condition: Condition | None
    loops: tuple[int, ...] = ()
    """The indexes of the back edges of the loops that the edge leaves."""
    is_stored: bool = True
    """Whether the journal has the output of its source: workflow code and maps store none."""
