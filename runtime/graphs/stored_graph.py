"""The stored shape of a graph, with which a process without its code can show its runs."""

from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import RECEIVED, MapSpec, Node, durable, passing_on
from keyrun.runtime.graphs.node_input import NodeInput
from keyrun.runtime.graphs.plan import GraphPlan, PlannedNode, draw

if TYPE_CHECKING:
    from keyrun.runtime.execution.context import Context
    from keyrun.runtime.graphs.graph import Graph


@attrs.frozen(kw_only=True)
class GraphShape:
    """The nodes and edges of a graph, without its code."""

    plan: GraphPlan
    max_concurrency: int | None
    schedule: str


def fields(graph: "Graph") -> tuple[Any, ...]:
    """Return the fields of the record of a graph."""
    return (*_body(graph.plan), graph.max_concurrency, graph.schedule)


def _body(plan: GraphPlan) -> tuple[list[Any], list[Any]]:
    return (
        [_planned(each) for each in plan.planned_nodes.values()],
        [
            [
                *(edge.source, edge.target, str(edge.on), edge.port, edge.to_port, edge.when),
                *(edge.back, edge.max_iterations),
            ]
            for edge in (link.edge for link in plan.links)
        ],
    )


def _planned(planned: PlannedNode) -> list[Any]:
    node, map_ = planned.node, planned.map
    stored = [node.id, planned.step is None, node.join, node.ports, node.fallback]
    if map_ is not None:
        stored.append([*_body(map_.plan), map_.max_concurrency, map_.fail_fast])
    elif node.passes_on:
        stored += [None, True]
    return stored


def read(stored: list[Any]) -> GraphShape:
    """Return the shape of the graph in the fields of a record."""
    nodes, edges, max_concurrency, schedule = stored
    return GraphShape(
        plan=draw(map(_node, nodes), map(_edge, edges)),
        max_concurrency=max_concurrency,
        schedule=schedule,
    )


def of(graph: "Graph") -> GraphShape:
    """Return the shape of a graph of this process."""
    return GraphShape(
        plan=graph.plan, max_concurrency=graph.max_concurrency, schedule=graph.schedule
    )


async def _nothing(given: NodeInput) -> None:
    raise AssertionError("a graph without its code cannot be run")


@passing_on
async def _pass_on(given: NodeInput) -> Any:
    return RECEIVED


@durable
async def _no_code(ctx: "Context", given: NodeInput) -> None:
    raise AssertionError("a graph without its code cannot be run")


def _node(stored: list[Any]) -> Node:
    name, code, join, ports, fallback, *more = stored
    map_, passes_on = [*more, None, False][:2]
    target = _pass_on if passes_on else _no_code if code else _nothing
    return Node(
        id=name,
        target=target,
        join=join,
        ports=tuple(ports),
        fallback=fallback,
        map=None if map_ is None else _map(*map_),
    )


def _map(
    nodes: list[list[Any]], edges: list[list[Any]], max_concurrency: int, fail_fast: bool
) -> MapSpec:
    return MapSpec(
        nodes=tuple(map(_node, nodes)),
        edges=tuple(map(_edge, edges)),
        apart=frozenset(),
        items=None,
        max_concurrency=max_concurrency,
        max_items=0,
        fail_fast=fail_fast,
    )


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
