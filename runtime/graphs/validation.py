"""Validation: find all faults of a graph before a run of it starts."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import attrs

from keyrun.runtime.definitions.step import as_step, check_name
from keyrun.runtime.graphs.arguments import rendering
from keyrun.runtime.graphs.condition import Condition, InvalidExpression
from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import MapSpec, Node, is_durable
from keyrun.runtime.graphs.plan import reach, successors
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.texts import check_text, did_you_mean

DEEPEST = 5
"""Maps that may be inside of each other."""
_OPTIONAL = ("max_concurrency",)
"""Limits that may be None."""


@attrs.frozen(kw_only=True)
class GraphFault:
    """One fault of a graph: the node or edge that has it, and the wrong option, if it is one."""

    reason: str
    node: str | None = None
    edge: Edge | None = None
    option: str | None = None

    def __str__(self) -> str:
        if self.edge is not None:
            return f"edge {self.edge}: {self.reason}"
        return self.reason if self.node is None else f"node {self.node!r}: {self.reason}"


def faults(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    limits: dict[str, int | None],
    quota: Resources | None = None,
    apart: frozenset[str] = frozenset(),
    *,
    back: str,
) -> list[GraphFault]:
    """Return all faults. The nodes `apart` only compensate others. `back` is how the author of the
    graph marks an edge as a back edge."""
    names = Counter(node.id for node in every_node(nodes))
    return [
        *_of_limits(limits),
        *([] if nodes else [GraphFault(reason="it has no nodes")]),
        *(
            GraphFault(
                reason=f"{times} nodes have this name; give each node its own name", node=name
            )
            for name, times in names.items()
            if times > 1
        ),
        *_of_body(nodes, edges, quota, apart, back),
    ]


def every_node(nodes: Sequence[Node]) -> Iterator[Node]:
    """Yield nodes, and those in the bodies of maps among them."""
    for node in nodes:
        yield node
        if node.map is not None:
            yield from every_node(node.map.nodes)


def _of_body(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    quota: Resources | None,
    apart: frozenset[str],
    back: str,
    *,
    depth: int = 0,
) -> Iterator[GraphFault]:
    yield from _of_nodes(nodes, apart)
    yield from excesses(nodes, quota)
    yield from _of_fallbacks(nodes)
    yield from _of_edges(nodes, edges, back)
    yield from _of_shape(nodes, edges, back)
    for node in nodes:
        if node.map is not None:
            yield from _of_map(node.id, node.map)
            if depth < DEEPEST:
                spec = node.map
                yield from _of_body(
                    spec.nodes, spec.edges, quota, spec.apart, back, depth=depth + 1
                )
            else:
                reason = f"this map is inside of {depth} others, and may be inside of {DEEPEST - 1}"
                yield GraphFault(reason=reason, node=node.id)


def _of_map(name: str, spec: MapSpec) -> Iterator[GraphFault]:
    for option in ("max_concurrency", "max_items"):
        for reason in _of_count(option, getattr(spec, option)):
            yield GraphFault(reason=reason, node=name, option=option)
    if not spec.nodes:
        yield GraphFault(reason="its body has no nodes", node=name, option="body")
    for node in spec.nodes:
        if node.options.get("max_waiting") is not None:
            reason = (
                "max_waiting is not supported in the body of a map; limit what waits with the "
                f"max_concurrency of {name!r}"
            )
            yield GraphFault(reason=reason, node=node.id, option="max_waiting")


def _of_limits(limits: dict[str, int | None]) -> Iterator[GraphFault]:
    for name, value in limits.items():
        if value is None and name in _OPTIONAL:
            continue
        for reason in _of_count(name, value):
            yield GraphFault(reason=reason, option=name)


def _of_count(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"{name} must be a whole number, got {value!r}"
    elif value < 1:
        yield f"{name} must be at least 1, got {value!r}"


def _of_nodes(nodes: Sequence[Node], apart: frozenset[str]) -> Iterator[GraphFault]:
    known = tuple(node.id for node in nodes)
    for node in nodes:
        input_type = "Compensation" if node.id in apart else "NodeInput"
        yield from _of_node(node, input_type)
        for option, other in (("fallback", node.fallback), ("compensate", node.undone_by)):
            if other is not None and other not in known:
                reason = f"there is no node {other!r}{did_you_mean(other, known)}"
                yield GraphFault(reason=f"{option}: {reason}", node=node.id, option=option)
        if is_durable(node.target) and (node.undone_by or node.options):
            reason = "options are for steps; give them to the steps that its code calls"
            yield GraphFault(reason=reason, node=node.id)


def _of_node(node: Node, input_type: str) -> Iterator[GraphFault]:
    def fault(reason: object, option: str | None = None) -> GraphFault:
        return GraphFault(reason=str(reason), node=node.id, option=option)

    try:
        check_name(node.id)
    except ValueError as error:
        yield fault(error)
    if node.join not in ("all", "any"):
        yield fault(f"join must be 'all' or 'any', got {node.join!r}", "join")
    for port, times in Counter(node.ports).items():
        if not isinstance(port, str) or not port:
            yield fault(f"a port must be a name, got {port!r}", "ports")
        elif times > 1:
            yield fault(f"the port {port!r} is declared {times} times", "ports")
        else:
            yield from (fault(reason, "ports") for reason in _of_text("a port", port))
    if not callable(node.target):
        yield fault(f"it requires a function, got {node.target!r}")
        return
    yield from (fault(reason, "args") for reason in _of_call(node, input_type))
    try:
        node.step()
    except (TypeError, ValueError, ImportError) as error:
        yield fault(error)


def excesses(nodes: Sequence[Node], quota: Resources | None) -> Iterator[GraphFault]:
    """Yield a fault for each node that requires more resources than the quota has."""
    for node in nodes if quota is not None else ():
        with suppress(TypeError, ValueError, ImportError):
            step = node.step() if callable(node.target) else None
            need = None if step is None else step.set.resources
            if need is not None and quota is not None:
                for reason in need.excess(quota):
                    yield GraphFault(reason=reason, node=node.id, option="resources")


def _of_fallbacks(nodes: Sequence[Node]) -> Iterator[GraphFault]:
    for node in nodes:
        with suppress(TypeError, ValueError, ImportError):
            step = node.step() if callable(node.target) else None
            if node.fallback is not None and (step is None or step.set.breaker is None):
                reason = "a fallback requires a circuit breaker; add 'breaker' to this node"
                yield GraphFault(reason=reason, node=node.id, option="fallback")


def _of_call(node: Node, input_type: str) -> Iterator[str]:
    try:
        render = rendering(node.args)
    except (ValueError, ImportError) as error:
        yield str(error)
        return
    function: Callable[..., Any] = node.target
    if not is_durable(function):
        function = as_step(function).function
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    given: tuple[Any, ...] = (None,) if render is None else ()
    if is_durable(node.target):
        given = (None, None)
        if render is not None:
            yield "a durable node reads its input itself, so it cannot have args"
            return
    if isinstance(node.args, str):
        return
    try:
        signature.bind(*given, **({} if node.args is None else dict.fromkeys(node.args)))
    except TypeError as error:
        takes = f"the context and one {input_type}" if len(given) == 2 else f"one {input_type}"
        takes = takes if render is None else "the arguments in args"
        hint = "; pass other arguments with args" if render is None else ""
        yield f"its function is called with {takes}, but takes {signature}: {error}{hint}"


def _of_edges(nodes: Sequence[Node], edges: Sequence[Edge], back: str) -> Iterator[GraphFault]:
    known = {node.id: node for node in nodes}
    counts = Counter(map(_identity, edges))
    for edge in {_identity(edge): edge for edge in edges}.values():
        if (times := counts[_identity(edge)]) > 1:
            yield GraphFault(reason=f"this edge is declared {times} times; keep one", edge=edge)
    for edge in edges:
        yield from (
            GraphFault(reason=reason, edge=edge, option=option)
            for option, reason in _of_edge(edge, known, back)
        )


def _of_edge(edge: Edge, known: dict[str, Node], back: str) -> Iterator[tuple[str, str]]:
    """Yield the wrong options of an edge, with the reasons."""
    for option, name in (("from", edge.source), ("to", edge.target)):
        if name not in known and edge.on is not On.OPEN:
            yield option, f"there is no node {name!r}{did_you_mean(name, tuple(known))}"
    source = known.get(edge.source)
    if edge.port is not None and source is not None and edge.port not in source.ports:
        ports = ", ".join(map(repr, source.ports))
        said = f"its ports are {ports}" if ports else "it has no ports"
        meant = did_you_mean(edge.port, source.ports)
        yield "port", f"{edge.source!r} has no port {edge.port!r}; {said}{meant}"
    if edge.port is not None and edge.on is On.FAIL:
        yield "port", "a node that fails leaves by no port; remove the port"
    if edge.to_port is not None:
        yield from (("to_port", reason) for reason in _of_text("to_port", edge.to_port))
    limit = edge.max_iterations
    if limit is not None and not edge.back:
        yield "max_iterations", f"max_iterations is for back edges; add {back}, or remove it"
    if limit is not None:
        yield from (("max_iterations", each) for each in _of_count("max_iterations", limit))
    try:
        if edge.when is not None:
            Condition(edge.when)
    except InvalidExpression as error:
        yield from (("when", f"when={edge.when!r}: {fault}") for fault in error.faults)


def _of_text(what: str, text: object) -> Iterator[str]:
    try:
        check_text(text, what)
    except (TypeError, ValueError) as error:
        yield str(error)


def _identity(edge: Edge) -> tuple[Any, ...]:
    return (edge.source, edge.target, str(edge.on), edge.port, edge.when, edge.back)


def _of_shape(nodes: Sequence[Node], edges: Sequence[Edge], back: str) -> Iterator[GraphFault]:
    known = {node.id for node in nodes}
    whole = [edge for edge in edges if edge.source in known and edge.target in known]
    forward = [edge for edge in whole if not edge.back]
    after = successors((edge.source, edge.target) for edge in forward)
    missing = dict.fromkeys((node.id for node in nodes), 0)
    for edge in forward:
        missing[edge.target] += 1
    left = [name for name, count in missing.items() if not count]
    reached = set(left)
    while left:
        for target in after.get(left.pop(), ()):
            missing[target] -= 1
            if not missing[target]:
                reached.add(target)
                left.append(target)
    names = [node.id for node in nodes if node.id not in reached]
    cycles = _cycles(names, after)
    for cycle in cycles:
        path = " -> ".join(map(repr, [*cycle, cycle[0]]))
        closing = (cycle[-1], cycle[0])
        yield GraphFault(
            reason=f"{path} is a cycle; add {back} to the edge that begins the next turn",
            edge=next(edge for edge in forward if (edge.source, edge.target) == closing),
            option="to",
        )
    inside = {name for cycle in cycles for name in cycle}
    for name in names:
        if name not in inside:
            before = next(cycle for cycle in cycles if name in reach(cycle[0], after))
            path = " -> ".join(map(repr, [*before, before[0]]))
            yield GraphFault(
                reason=f"it cannot be reached: the cycle {path} is before it", node=name
            )
    for edge in whole:
        if edge.back and edge.source not in reach(edge.target, after):
            reason = (
                f"a back edge leads to an earlier node, but no path leads from {edge.target!r} to "
                f"{edge.source!r}"
            )
            yield GraphFault(reason=reason, edge=edge, option="back")


def _cycles(names: Sequence[str], after: dict[str, list[str]]) -> list[list[str]]:
    """Return one cycle for each group of nodes that lead to each other. It begins with the node
    that was declared first."""
    cycles: list[list[str]] = []
    seen: set[str] = set()
    for name in names:
        if name in seen:
            continue
        group = {other for other in reach(name, after) if name in reach(other, after)}
        if name not in {target for other in group for target in after.get(other, ())}:
            continue
        seen |= group
        cycles.append(_path_back(name, group, after))
    return cycles


def _path_back(start: str, group: set[str], after: dict[str, list[str]]) -> list[str]:
    """Return the shortest path from a node back to itself, without the last step."""
    paths = [[start]]
    seen = {start}
    while True:
        path = paths.pop(0)
        for target in after[path[-1]]:
            if target == start:
                return path
            if target in group and target not in seen:
                seen.add(target)
                paths.append([*path, target])
