"""Edges: which node comes after which, and when."""

from enum import StrEnum

import attrs

from keyrun.runtime.graphs.condition import Condition


class On(StrEnum):
    """What of its source an edge is about."""

    COMPLETE = "complete"
    FAIL = "fail"
    ALL = "all"
    OPEN = "open"
    """The circuit breaker of the source is open: the edge to its fallback."""


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
    """An edge of a graph that is valid, with all that is needed to follow it."""

    index: int
    edge: Edge
    on: On
    port: str | None
    condition: Condition | None
    loops: tuple[int, ...] = ()
    """The back edges of the loops that it leads out of."""
