"""Validation: everything that is wrong with a graph, found before any run of it begins."""

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from keyrun.runtime.definitions.step import as_step, check_name
from keyrun.runtime.graphs.arguments import rendering
from keyrun.runtime.graphs.condition import Condition, InvalidExpression
from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import Node, is_durable
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.texts import check_text

_OPTIONAL = ("max_concurrency",)
"""Limits that need not be there."""


def faults(
    nodes: Sequence[Node],
    edges: Sequence[Edge],
    limits: dict[str, int | None],
    quota: Resources | None = None,
    apart: frozenset[str] = frozenset(),
) -> list[str]:
    """All that is wrong, in words. Those `apart` only undo others."""
    return [
        *_of_limits(limits),
        *_of_nodes(nodes, apart),
        *excesses(nodes, quota),
        *_of_fallbacks(nodes),
        *_of_edges(nodes, edges),
        *_of_shape(nodes, edges),
    ]


def _of_limits(limits: dict[str, int | None]) -> Iterator[str]:
    for name, value in limits.items():
        if value is None and name in _OPTIONAL:
            continue
        yield from _of_count(name, value)


def _of_count(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool) or not isinstance(value, int):
        yield f"{name} must be a whole number, got {value!r}"
    elif value < 1:
        yield f"{name} must be at least 1, got {value!r}"


def _of_nodes(nodes: Sequence[Node], apart: frozenset[str]) -> Iterator[str]:
    if not nodes:
        yield "it has no nodes; add them with graph.node(...)"
    for name, times in Counter(node.id for node in nodes).items():
        if times > 1:
            yield f"{times} nodes are called {name!r}"
    known = {node.id for node in nodes}
    for node in nodes:
        input_type = "Compensation" if node.id in apart else "NodeInput"
        yield from (f"node {node.id!r}: {said}" for said in _of_node(node, input_type))
        if node.fallback is not None and node.fallback not in known:
            yield f"node {node.id!r}: its fallback {node.fallback!r} is no node"
        if node.undone_by is not None and node.undone_by not in known:
            yield f"node {node.id!r}: its compensation {node.undone_by!r} is no node"
        if is_durable(node.target) and (node.undone_by or node.options):
            yield f"node {node.id!r}: options are for steps; give them to the steps of its code"


def _of_node(node: Node, input_type: str) -> Iterator[str]:
    try:
        check_name(node.id)
    except ValueError as error:
        yield str(error)
    if node.join not in ("all", "any"):
        yield f"join must be 'all' or 'any', got {node.join!r}"
    for port, times in Counter(node.ports).items():
        if not isinstance(port, str) or not port:
            yield f"a port is a name, got {port!r}"
        elif times > 1:
            yield f"the port {port!r} is declared {times} times"
        else:
            yield from _of_text("a port", port)
    if not callable(node.target):
        yield f"it needs a function, got {node.target!r}"
        return
    yield from _of_call(node, input_type)
    try:
        node.step()
    except (TypeError, ValueError, ImportError) as error:
        yield str(error)


def excesses(nodes: Sequence[Node], quota: Resources | None) -> Iterator[str]:
    """What nodes need that is more than there is."""
    for node in nodes if quota is not None else ():
        with suppress(TypeError, ValueError, ImportError):
            step = node.step() if callable(node.target) else None
            need = None if step is None else step.set.resources
            if need is not None and quota is not None:
                yield from (f"node {node.id!r}: {said}" for said in need.excess(quota))


def _of_fallbacks(nodes: Sequence[Node]) -> Iterator[str]:
    for node in nodes:
        with suppress(TypeError, ValueError, ImportError):
            step = node.step() if callable(node.target) else None
            if node.fallback is not None and (step is None or step.set.breaker is None):
                yield f"node {node.id!r}: a fallback is for a node with a breaker, and it has none"


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
            yield "workflow code takes what it is told itself, so it cannot have args"
            return
    try:
        signature.bind(*given, **({} if node.args is None else dict.fromkeys(node.args)))
    except TypeError as error:
        takes = f"the context and one {input_type}" if len(given) == 2 else f"one {input_type}"
        takes = takes if render is None else "the arguments in args"
        yield f"its function is called with {takes}, and takes {signature}: {error}"


def _of_edges(nodes: Sequence[Node], edges: Sequence[Edge]) -> Iterator[str]:
    known = {node.id: node for node in nodes}
    for (source, target, *rest), times in Counter(map(_same, edges)).items():
        if times > 1:
            yield f"the edge {source!r} -> {target!r} is declared {times} times ({rest[0]})"
    for edge in edges:
        for name in (edge.source, edge.target):
            if name not in known and edge.on is not On.OPEN:
                yield f"edge {edge}: there is no node {name!r}"
        source = known.get(edge.source)
        if edge.port is not None and source is not None and edge.port not in source.ports:
            ports = ", ".join(map(repr, source.ports)) or "none"
            yield f"edge {edge}: {edge.source!r} has no port {edge.port!r}; its ports: {ports}"
        if edge.port is not None and edge.on is On.FAIL:
            yield f"edge {edge}: a node that fails leaves by no port"
        if edge.to_port is not None:
            yield from (f"edge {edge}: {said}" for said in _of_text("to_port", edge.to_port))
        limit = edge.max_iterations
        if limit is not None and not edge.back:
            yield f"edge {edge}: max_iterations is for edges with back=True"
        if limit is not None:
            yield from (f"edge {edge}: {said}" for said in _of_count("max_iterations", limit))
    yield from _of_conditions(edges)


def _of_text(what: str, text: object) -> Iterator[str]:
    try:
        check_text(text, what)
    except (TypeError, ValueError) as error:
        yield str(error)


def _same(edge: Edge) -> tuple[Any, ...]:
    return (edge.source, edge.target, str(edge.on), edge.port, edge.when, edge.back)


def _of_conditions(edges: Sequence[Edge]) -> Iterator[str]:
    for edge in edges:
        try:
            if edge.when is not None:
                Condition(edge.when)
        except InvalidExpression as error:
            yield from (f"edge {edge}: when={edge.when!r}: {fault}" for fault in error.faults)


def _of_shape(nodes: Sequence[Node], edges: Sequence[Edge]) -> Iterator[str]:
    known = {node.id for node in nodes}
    whole = [edge for edge in edges if edge.source in known and edge.target in known]
    after: dict[str, list[str]] = {}
    missing = dict.fromkeys((node.id for node in nodes), 0)
    for edge in whole:
        if not edge.back:
            after.setdefault(edge.source, []).append(edge.target)
            missing[edge.target] += 1
    left = [name for name, count in missing.items() if not count]
    reached = set(left)
    while left:
        for target in after.get(left.pop(), ()):
            missing[target] -= 1
            if not missing[target]:
                reached.add(target)
                left.append(target)
    circles = _circles(known - reached, after)
    for circle in circles:
        way = " -> ".join(map(repr, [*circle, circle[0]]))
        yield f"{way} is a cycle; declare the edge that begins the next turn with back=True"
    inside = {name for circle in circles for name in circle}
    for node in nodes:
        if node.id not in reached and node.id not in inside:
            yield f"node {node.id!r} cannot be reached"
    for edge in whole:
        if edge.back and edge.source not in _reach(edge.target, after):
            yield (
                f"edge {edge}: back=True leads to an earlier node, and {edge.target!r} does not "
                f"lead to {edge.source!r}"
            )


def _reach(start: str, after: dict[str, list[str]]) -> set[str]:
    found, left = {start}, [start]
    while left:
        for target in after.get(left.pop(), ()):
            if target not in found:
                found.add(target)
                left.append(target)
    return found


def _circles(names: set[str], after: dict[str, list[str]]) -> list[list[str]]:
    """One cycle for each knot of nodes that lead to each other."""
    circles: list[list[str]] = []
    seen: set[str] = set()
    for name in sorted(names):
        if name in seen:
            continue
        knot = {other for other in _reach(name, after) & names if name in _reach(other, after)}
        if name not in {target for other in knot for target in after.get(other, ())}:
            continue
        seen |= knot
        circle = [name]
        while True:
            following = next(each for each in after[circle[-1]] if each in knot)
            if following in circle:
                circles.append(circle[circle.index(following) :])
                break
            circle.append(following)
    return circles
