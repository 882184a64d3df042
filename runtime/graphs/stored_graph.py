"""Sketches: the shape of a graph as it is stored, so that any process can draw its runs."""

from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import Node, durable
from keyrun.runtime.graphs.node_input import NodeInput
from keyrun.runtime.graphs.plan import GraphPlan, draw

if TYPE_CHECKING:
    from keyrun.runtime.execution.context import Context
    from keyrun.runtime.graphs.graph import Graph


@attrs.frozen(kw_only=True)
class Sketch:
    """What is known of a graph without its code."""

    plan: GraphPlan
    max_concurrency: int | None
    schedule: str


def fields(graph: "Graph") -> tuple[Any, ...]:
    """A graph as fields of a record."""
    stations = graph.plan.stations.values()
    return (
        [
            [each.node.id, each.step is None, each.node.join, each.node.ports, each.node.fallback]
            for each in stations
        ],
        [
            [
                *(edge.source, edge.target, str(edge.on), edge.port, edge.to_port, edge.when),
                *(edge.back, edge.max_iterations),
            ]
            for edge in (link.edge for link in graph.plan.links)
        ],
        graph.max_concurrency,
        graph.schedule,
    )


def read(stored: list[Any]) -> Sketch:
    """The inverse of `fields`."""
    nodes, edges, max_concurrency, schedule = stored
    return Sketch(
        plan=draw(map(_node, nodes), map(_edge, edges)),
        max_concurrency=max_concurrency,
        schedule=schedule,
    )


def of(graph: "Graph") -> Sketch:
    """The sketch of a graph whose code is at hand."""
    return Sketch(plan=graph.plan, max_concurrency=graph.max_concurrency, schedule=graph.schedule)


async def _nothing(given: NodeInput) -> None:
    raise AssertionError("a sketch cannot be run")


@durable
async def _no_code(ctx: "Context", given: NodeInput) -> None:
    raise AssertionError("a sketch cannot be run")


def _node(stored: list[Any]) -> Node:
    name, code, join, ports, fallback = stored
    target = _no_code if code else _nothing
    return Node(id=name, target=target, join=join, ports=tuple(ports), fallback=fallback)


def _edge(stored: list[Any]) -> Edge:
    source, target, on, port, to_port, when, back, most = stored
    return Edge(
        source=source,
        target=target,
        on=On(on),
        port=port,
        to_port=to_port,
        when=when,
        back=back,
        max_iterations=most,
    )
