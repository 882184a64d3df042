"""The plan of a graph: its nodes with their edges, levels and loops. All runs share it."""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

import attrs

from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.graphs.condition import Condition
from keyrun.runtime.graphs.edge import Edge, Link, On
from keyrun.runtime.graphs.node import MapSpec, Node
from keyrun.runtime.policies.resources import Resources

_ITEM = re.compile(r"\[[0-9:]+\]")


@attrs.frozen(kw_only=True)
class GraphLoop:
    """A back edge with the nodes of its loop.

    `body` has the nodes between the ends of the edge. `region` has all nodes after its target. The
    next turn begins when none of them is active. `inner` has the back edges of the loops inside
    this one. Each turn of this loop starts their counts again."""

    link: Link
    body: frozenset[str]
    region: frozenset[str]
    inner: frozenset[int]


@attrs.frozen(kw_only=True, eq=False)
class MapPlan:
    """The body of a map, which runs for each item."""

    plan: "GraphPlan"
    max_concurrency: int
    fail_fast: bool


@attrs.frozen(kw_only=True, eq=False)
class PlannedNode:
    """A node with its step and its edges. `rank` orders the nodes that are ready at the same
    time."""

    node: Node
    step: StepFunction[..., Any] | None
    level: int
    rank: tuple[int, int]
    incoming: tuple[Link, ...]
    outgoing: tuple[Link, ...]
    returning: tuple[Link, ...]
    leaving: tuple[Link, ...]
    """The outgoing and the returning edges."""
    crowded: tuple[str, ...]
    """The next nodes that have `max_waiting`."""
    is_crowded: bool
    """Whether the node itself has `max_waiting`."""
    map: MapPlan | None = None
    """The body that the node runs for each item, if the node is a map."""


@attrs.frozen(kw_only=True, eq=False)
class GraphPlan:
    """The nodes of a graph, in the order of their declaration."""

    planned_nodes: Mapping[str, PlannedNode]
    entries: tuple[PlannedNode, ...]
    sinks: tuple[str, ...]
    links: tuple[Link, ...]
    loops: Mapping[int, GraphLoop]
    """The loops by the index of their back edge."""

    @cached_property
    def inside(self) -> Mapping[str, tuple[str, ...]]:
        """Return the maps that each node in a body is inside of, outer ones first."""
        found: dict[str, tuple[str, ...]] = {}
        for name, planned in self.planned_nodes.items():
            if planned.map is not None:
                body = planned.map.plan
                found |= dict.fromkeys(body.planned_nodes, (name,))
                found |= {inner: (name, *maps) for inner, maps in body.inside.items()}
        return found

    def bodies(self) -> "Iterator[GraphPlan]":
        """Yield the bodies of all maps."""
        for planned in self.planned_nodes.values():
            if planned.map is not None:
                yield planned.map.plan
                yield from planned.map.plan.bodies()

    def body_of(self, maps: Iterable[str]) -> "GraphPlan":
        """Return the body of the last of these maps. Each map is in the body of the map before
        it."""
        plan = self
        for name in maps:
            planned = plan.planned_nodes[name]
            assert planned.map is not None
            plan = planned.map.plan
        return plan

    def planned(self, ident: str) -> PlannedNode | None:
        """Return the node that a step belongs to, in the graph or in the body of a map."""
        name = node_of(ident)
        return self.body_of(self.inside.get(name, ())).planned_nodes.get(name)

    def leads_to(self, ident: str, target: str) -> bool:
        """Return whether the node of one step leads to that of another, also in other bodies. The
        items of a map do not lead to each other."""
        ways = [(*self.inside.get(node_of(each), ()), node_of(each)) for each in (ident, target)]
        items = [items_of(each) for each in (ident, target)]
        plan = self
        for level in range(min(map(len, ways))):
            one, other = (way[level] for way in ways)
            if one != other or level + 1 in map(len, ways):
                return one in plan.before(other)
            if items[0][level] != items[1][level]:
                return False
            plan = plan.body_of((one,))
        raise AssertionError("a node has a name at least")

    def result(self, outputs: Mapping[str, Any]) -> Any:
        """Return the final value, given the outputs of its nodes."""
        if len(self.sinks) == 1:
            return outputs.get(self.sinks[0])
        return {name: outputs[name] for name in self.sinks if name in outputs}

    def before(self, name: str) -> set[str]:
        """Return all nodes that lead to a node, and the node itself."""
        ways = {
            target: [link.edge.source for link in planned.incoming]
            for target, planned in self.planned_nodes.items()
        }
        return reach(name, ways)


def draw(
    nodes: Iterable[Node],
    edges: Iterable[Edge],
    *,
    apart: frozenset[str] = frozenset(),
    quota: tuple[str, Resources] | None = None,
) -> GraphPlan:
    """Return the plan of nodes and edges that are valid together. Nodes in `apart` only compensate
    other nodes. `quota` has the resources that all nodes share."""
    declared = list(nodes)
    undoing = {node.undone_by for node in declared}
    nodes = [node for node in declared if node.id not in apart]
    edges = list(edges)
    forward = [edge for edge in edges if not edge.back]
    after = successors((edge.source, edge.target) for edge in forward)
    before = successors((edge.target, edge.source) for edge in forward)
    bodies = {
        index: (reach(edge.target, after) & reach(edge.source, before), reach(edge.target, after))
        for index, edge in enumerate(edges)
        if edge.back
    }
    # A node that compensates another one has its own arguments, timeout and retry.
    targets: dict[str | None, Any] = {
        node.id: node.step() or node.target for node in declared if node.id in undoing
    }
    steps = {node.id: node.step(quota, targets.get(node.undone_by)) for node in nodes}
    computed = {node.id for node in nodes if steps[node.id] is None or node.map is not None}
    links = tuple(
        Link(
            index=index,
            edge=edge,
            on=edge.on,
            port=edge.port,
            condition=None if edge.when is None else Condition(edge.when),
            loops=tuple(
                at
                for at, (body, _) in bodies.items()
                if edge.source in body and edge.target not in body
            ),
            is_stored=edge.source not in computed,
        )
        for index, edge in enumerate(edges)
    )
    levels = _levels([node.id for node in nodes], after, before)
    by_source: dict[str, list[Link]] = {node.id: [] for node in nodes}
    by_target: dict[str, list[Link]] = {node.id: [] for node in nodes}
    for link in links:
        by_source[link.edge.source].append(link)
        by_target[link.edge.target].append(link)
    crowded = {name for name, step in steps.items() if step and step.set.max_waiting}
    planned_nodes = {
        node.id: PlannedNode(
            node=node,
            step=steps[node.id],
            level=levels[node.id],
            rank=(int(node.priority), index),
            incoming=tuple(link for link in by_target[node.id] if not link.edge.back),
            outgoing=tuple(link for link in by_source[node.id] if not link.edge.back),
            returning=tuple(link for link in by_source[node.id] if link.edge.back),
            leaving=(*by_source[node.id],),
            crowded=tuple(sorted({link.edge.target for link in by_source[node.id]} & crowded)),
            is_crowded=node.id in crowded,
            map=None if node.map is None else _drawn(node.map, quota),
        )
        for index, node in enumerate(nodes)
    }
    return GraphPlan(
        planned_nodes=planned_nodes,
        entries=tuple(each for each in planned_nodes.values() if not each.incoming),
        sinks=tuple(name for name, each in planned_nodes.items() if not _leads_on(each)),
        links=links,
        loops={
            index: GraphLoop(
                link=links[index],
                body=frozenset(body),
                region=frozenset(region),
                inner=frozenset(at for at in bodies if _is_inside(bodies[at], bodies[index])),
            )
            for index, (body, region) in bodies.items()
        },
    )


def _drawn(spec: MapSpec, quota: tuple[str, Resources] | None) -> MapPlan:
    return MapPlan(
        plan=draw(spec.nodes, spec.edges, apart=spec.apart, quota=quota),
        max_concurrency=spec.max_concurrency,
        fail_fast=spec.fail_fast,
    )


def _is_inside(one: tuple[set[str], set[str]], other: tuple[set[str], set[str]]) -> bool:
    """Return whether one loop is inside another. Two loops are never inside each other: each would
    restart the count of the other, and the turns would have no limit."""
    (body, region), (outer_body, outer_region) = one, other
    return region < outer_region or (region == outer_region and body < outer_body)


def node_of(ident: str) -> str:
    """Return the node that a step of a run belongs to."""
    return ident.partition("/")[0].partition("#")[0]


def turn_of(name: str, number: int, items: str = "") -> str:
    """Return the name of one turn of a node. In the body of a map, `items` has the items: "fetch",
    "fetch#2", "fetch#[7]", "fetch#[7]#2"."""
    turn = f"#{number}" if number > 1 else ""
    return f"{name}#{items}{turn}" if items else name + turn


def first_turn_of(ident: str) -> str:
    """Return the first turn of the node that a step belongs to, for the same items."""
    name, *turns = ident.partition("/")[0].split("#")
    return turn_of(name, 1, turns[0] if turns and turns[0].startswith("[") else "")


def item_of(items: str, turn: int, index: int) -> str:
    """Return the name of an item of a map in this turn. `items` has the items of the map itself:
    "[7]", "[2:7]" in the second turn of the map, "[7][0]" in a map that is in another."""
    return f"{items}[{index}]" if turn == 1 else f"{items}[{turn}:{index}]"


def items_of(ident: str) -> list[str]:
    """Return the items that a step is for, outer ones first."""
    return _ITEM.findall(ident.partition("/")[0].partition("#")[2])


def _leads_on(planned: PlannedNode) -> bool:
    """Return whether a node can follow when this one completes."""
    return any(link.edge.on in (On.COMPLETE, On.ALL) for link in planned.outgoing)


def successors(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the second parts of pairs by their first part."""
    ways: dict[str, list[str]] = {}
    for start, end in pairs:
        ways.setdefault(start, []).append(end)
    return ways


def reach(start: str, ways: Mapping[str, list[str]]) -> set[str]:
    """Return all names that can be reached from `start`, and `start` itself."""
    found, left = {start}, [start]
    while left:
        for name in ways.get(left.pop(), ()):
            if name not in found:
                found.add(name)
                left.append(name)
    return found


def _levels(
    names: list[str], after: Mapping[str, list[str]], before: Mapping[str, list[str]]
) -> dict[str, int]:
    """Return the number of edges of the longest path to each node."""
    missing = {name: len(before.get(name, ())) for name in names}
    levels = dict.fromkeys(names, 0)
    left = [name for name in names if not missing[name]]
    while left:
        name = left.pop()
        for target in after.get(name, ()):
            levels[target] = max(levels[target], levels[name] + 1)
            missing[target] -= 1
            if not missing[target]:
                left.append(target)
    return levels
