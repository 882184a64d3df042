"""Checks of templates and conditions before a flow runs: what would fail in the middle of a run."""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import attrs

from keyrun.flows.builder import Builder, Declared
from keyrun.flows.errors import TemplateFailed
from keyrun.flows.kinds import KINDS
from keyrun.flows.nodes.failure_port import TIMEOUT
from keyrun.flows.nodes.loop import begin_of, end_of
from keyrun.flows.references import Reference, in_condition, in_template
from keyrun.flows.scope import ITEM, NAMES, UNDOING
from keyrun.flows.shapes import Fault
from keyrun.flows.source import Place
from keyrun.flows.templates import has_template, renderable
from keyrun.runtime.graphs.condition import NAMES as CONDITION_NAMES
from keyrun.runtime.graphs.condition import Condition, InvalidExpression
from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import MapSpec
from keyrun.runtime.graphs.plan import reach, successors
from keyrun.runtime.texts import did_you_mean
from keyrun.runtime.values import Failure

_SCHEMES = ("http://", "https://")
_ELSEWHERE = {
    **dict.fromkeys(("steps", "nodes", "tasks", "jobs", "results"), "outputs"),
    **dict.fromkeys(("inputs", "params", "payload", "data"), "input"),
    **dict.fromkeys(("secrets", "environment", "vars"), "env"),
    **dict.fromkeys(("result", "response", "previous"), "output"),
    **dict.fromkeys(("failure", "exception"), "error"),
}
"""Names of other tools, and what Keyrun calls them."""
_FILTERS = {
    **{name: name for name in ("abs", "float", "int", "list", "max", "min", "round", "sum")},
    "len": "length",
    "str": "string",
    "sorted": "sort",
    "reversed": "reverse",
    "json": "tojson",
    "dumps": "tojson",
}
"""Functions of Python, and the filters that do the same."""
_FIELDS = {
    "run": ("id", "key"),
    "error": tuple(field.name for field in attrs.fields(Failure)),
}
"""The fields of names that always have the same fields."""
_NOT_UNDOING = frozenset({"outputs", "port", "failures", "iteration"})
"""The names that a node which compensates another does not have."""
_NO_FILTER = re.compile(r"No (filter|test) named '(.*)'")


def check_syntax(document: Any, place: Place = ()) -> Iterator[Fault]:
    """Yield a fault for each template and condition of a body that cannot be compiled."""
    parts = document if isinstance(document, dict) else {}
    nodes, edges = parts.get("nodes"), parts.get("edges")
    for name, fields in nodes.items() if isinstance(nodes, dict) else ():
        kind = KINDS.get(str(fields.get("kind"))) if isinstance(fields, dict) else None
        if kind is None:
            continue
        at = (*place, "nodes", name)
        for field in kind.templates:
            for below, text in _texts(fields.get(field), (field,)):
                yield from _template(text, (*at, *below))
        for below, text in kind.conditions_of(fields):
            yield from _condition(text, (*at, *below))
        if kind.body is not None:
            yield from check_syntax(fields.get("body"), (*at, "body"))
    for number, fields in enumerate(edges if isinstance(edges, list) else ()):
        if isinstance(fields, dict):
            yield from _condition(fields.get("when"), (*place, "edges", number, "when"))


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield all texts in a value, with their places."""
    match value:
        case str():
            yield place, value
        case dict():
            for name, item in value.items():
                yield from _texts(item, (*place, name))
        case list():
            for at, item in enumerate(value):
                yield from _texts(item, (*place, at))


def _template(text: str, place: Place) -> Iterator[Fault]:
    try:
        renderable(text, "")
    except TemplateFailed as error:
        yield Fault(place, _plain(error.reason), (error.line or 1) - 1)


def _plain(reason: str) -> str:
    """Return an error of Jinja2 in words that say what to write instead."""
    if found := _NO_FILTER.search(reason):
        from keyrun.flows.filters import FILTERS, TESTS

        what, name = found.groups()
        table = FILTERS if what == "filter" else TESTS
        known = sorted(each for each in table if each.isalpha())
        meant = did_you_mean(name, known) or f"; the {what}s are {', '.join(known)}"
        return f"there is no {what} {name!r}{meant}"
    end = "; an expression ends with '}}'" if "'}'" in reason else ""
    return f"the template cannot be parsed: {reason}{end}"


def _condition(text: Any, place: Place) -> Iterator[Fault]:
    if not isinstance(text, str) or not text:
        return
    try:
        Condition(text)
    except InvalidExpression as error:
        for fault in error.faults:
            at = "" if fault.column is None else f", column {fault.column}"
            yield Fault(place, f"in {text!r}{at}: {fault.reason}", (fault.line or 1) - 1)


@attrs.frozen(kw_only=True)
class _Context:
    """The subject of a template or condition: the node that evaluates it, if it is one, and the
    nodes that have completed before for certain, or may have completed."""

    node: str
    before: frozenset[str]
    after: frozenset[str]
    names: tuple[str, ...]
    what: str
    env: Collection[str] | None = None
    """The environment variables that it can use. None if it can use none."""
    output: tuple[str, ...] | None = None
    """The fields of `output`, if they are known."""


class ReferenceCheck:
    """Finds references to names, nodes and fields that will not be there."""

    def __init__(self, builder: Builder) -> None:
        self.faults: list[Fault] = []
        self.warnings: list[Fault] = []
        self._nodes = builder.nodes
        self._edges = [edge for body in builder.bodies for edge in body.edges]
        self._known = {node.id for body in builder.bodies for node in body.nodes}
        ways = [(edge.source, edge.target) for edge in self._edges if not edge.back]
        for map_ in (node for body in builder.bodies for node in body.nodes):
            if map_.map is not None:
                ways += list(_ways_inside(map_.id, map_.map, ways))
        self._after = successors(ways)
        self._before = successors((target, source) for source, target in ways)
        self._undoing = _only_undoing(builder.nodes, self._edges)
        for node in self._nodes.values():
            self._check_node(node)
        for edge in self._edges:
            place = builder.edges.get(id(edge))
            if place is not None and edge.when is not None:
                self._check_edge(edge, place)

    def _check_node(self, node: Declared) -> None:
        kind = node.kind
        if kind is None:
            return
        self.faults += self._check_compensation(node)
        place, about = node.place, self._context(node)
        for field in kind.templates:
            for below, text in _texts(node.fields.get(field), (field,)):
                for reference in _quietly(in_template, text):
                    self._check(reference, (*place, *below), about)
        about = attrs.evolve(about, what="condition")
        for below, text in kind.conditions_of(node.fields):
            for reference in _quietly(in_condition, text):
                self._check(reference, (*place, *below), about)
        url = node.fields.get("url")
        if kind is KINDS["http"] and isinstance(url, str):
            self.faults += _check_url(url, (*place, "url"))

    def _check_compensation(self, node: Declared) -> Iterator[Fault]:
        """Report a compensation that is not a step."""
        name = node.fields.get("compensate")
        kind = self._nodes[name].kind if name in self._nodes else None
        if kind is not None and not kind.steps:
            steps = ", ".join(each for each, known in KINDS.items() if known.steps)
            reason = f"the node {name!r} cannot compensate another; only the kinds {steps} can"
            yield Fault((*node.place, "compensate"), reason)

    def _check_edge(self, edge: Edge, place: Place) -> None:
        assert edge.when is not None
        source = self._nodes.get(edge.source)
        known = None if source is None or source.kind is None else source.kind.output
        about = _Context(
            node=edge.source,
            before=frozenset(reach(edge.source, self._before)),
            after=frozenset(reach(edge.source, self._after)) - {edge.source},
            names=tuple(
                name for name in CONDITION_NAMES if name not in ITEM or self._maps(edge.source)
            ),
            what="condition",
            output=known if edge.on is On.COMPLETE else None,
        )
        for reference in _quietly(in_condition, edge.when):
            self._check(reference, (*place, "when"), about)

    def _context(self, node: Declared) -> _Context:
        """Return what the templates and conditions of a node are about."""
        assert node.kind is not None
        start = node.entry
        undoes = node.name in self._undoing
        env = node.fields.get("env", ()) if "env" in node.kind.fields else None
        names = NAMES if not undoes else tuple({*NAMES, *UNDOING} - _NOT_UNDOING)
        if self._maps(node.name) and not undoes:
            names = (*names, *ITEM)
        return _Context(
            node=start,
            before=frozenset(reach(start, self._before)) - {start},
            after=frozenset(reach(start, self._after)),
            names=names,
            what="template",
            env=env,
            output=None if undoes else self._output_of_sources(start),
        )

    def _output_of_sources(self, node: str) -> tuple[str, ...] | None:
        """Return the fields that `output` may have in a node, if they are known."""
        found: list[str] = []
        for edge in self._edges:
            if edge.target == node:
                source = self._nodes.get(edge.source)
                kind = None if source is None else source.kind
                if kind is None or kind.output is None or edge.on is not On.COMPLETE:
                    return None
                found += kind.output
        return tuple(dict.fromkeys(found)) or None

    def _check(self, reference: Reference, place: Place, about: _Context) -> None:
        reason = self._reason(reference, about)
        if reason is not None:
            self.faults.append(Fault(place, reason, reference.line - 1))
            return
        name, *fields = reference.path
        if name == "outputs" and fields and reference.certain:
            self._check_order(fields[0], place, reference.line - 1, about)

    def _reason(self, reference: Reference, about: _Context) -> str | None:
        """Return why a reference can never be resolved, and what to write instead."""
        name, *fields = reference.path
        if reference.method:
            return _no_method(name)
        if reference.call:
            return _no_function(name) if name not in about.names else None
        if name in ITEM and name not in about.names:
            return f"{name!r} is only known in the body of a map"
        if name not in about.names:
            return _no_name(name, about) if about.what == "template" else None
        if not fields:
            return None
        if name == "env":
            return _env(fields[0], about)
        if name in _FIELDS and fields[0] not in _FIELDS[name]:
            return _no_field(name, fields[0], _FIELDS[name])
        if name == "output" and about.output is not None and fields[0] not in about.output:
            return _no_field(name, fields[0], about.output)
        if name == "outputs":
            return self._output(fields, about)
        if name == "failures":
            return self._source(fields[0], about)
        return None

    def _source(self, name: str, about: _Context) -> str | None:
        """Return why no edge leads from a node to the one that a reference is about."""
        if name not in self._known:
            return self._no_node("failures", name)
        if any(edge.source == name and edge.target == about.node for edge in self._edges):
            return None
        return (
            f"failures.{name}: no edge leads from {name!r} to {_declared_name(about.node)!r}; only "
            "the nodes right before it have their failures there"
        )

    def _maps(self, name: str) -> list[str]:
        """Return the maps that a node is in, outer ones first."""
        node = self._nodes.get(_declared_name(name))
        place = () if node is None else node.place[:-1]
        around = [str(part) for at, part in enumerate(place) if at and place[at - 1] == "nodes"]
        kinds = [(each, self._nodes[each].kind) for each in around if each in self._nodes]
        return [each for each, kind in kinds if kind is not None and kind.body == "map"]

    def _output(self, fields: list[str], about: _Context) -> str | None:
        name, *rest = fields
        if name not in self._known:
            return self._no_node("outputs", name)
        around = self._maps(about.node)
        maps = self._maps(name)
        if maps != around[: len(maps)]:
            map_ = next(each for at, each in enumerate(maps) if around[at : at + 1] != [each])
            return (
                f"outputs.{name}: {name!r} runs for each item of {map_!r}; use "
                f"outputs.{map_}.results"
            )
        node = self._nodes.get(name)
        kind = None if node is None else node.kind
        if rest and kind is not None and kind.output is not None and rest[0] not in kind.output:
            return _no_field(f"outputs.{name}", rest[0], kind.output)
        return None

    def _no_node(self, owner: str, name: str) -> str:
        known = tuple(self._nodes)
        meant = did_you_mean(name, known) or f"; the nodes are {', '.join(known)}"
        return f"{owner}.{name}: there is no node {name!r}{meant}"

    def _check_order(self, name: str, place: Place, line: int, about: _Context) -> None:
        """Report a reference to the output of a node that has not completed at that time."""
        if name in about.before:
            return
        if name in self._undoing:
            reason = f"outputs.{name}: {name!r} only compensates another node, so it has no output"
            self.faults.append(Fault(place, reason, line))
        elif name in about.after:
            own = _declared_name(about.node)
            why = "it is this node" if name == own else f"it comes after {own!r}"
            reason = (
                f"outputs.{name}: {name!r} has not completed at this point, because {why}; "
                f"{_guard(name, about)}"
            )
            self.faults.append(Fault(place, reason, line))
        else:
            reason = (
                f"outputs.{name}: {name!r} may not have completed at this point, because no path "
                f"leads from it to {_declared_name(about.node)!r}; add an edge, or "
                f"{_guard(name, about)}"
            )
            self.warnings.append(Fault(place, reason, line))


def _guard(name: str, about: _Context) -> str:
    if about.what == "condition":
        return f"guard it with has(outputs.{name})"
    return "use the filter default for a value that may be missing"


def _declared_name(node: str) -> str:
    """Return the name in the document of a node of the graph."""
    for suffix in (begin_of(""), end_of("")):
        if node.endswith(suffix):
            return node.removesuffix(suffix)
    return node


def _quietly(find: Any, text: Any) -> list[Reference]:
    """Return the references of a text that can be compiled."""
    try:
        return list(find(text)) if isinstance(text, str) else []
    except (InvalidExpression, RecursionError):
        return []


def _ways_inside(
    name: str, spec: MapSpec, ways: Collection[tuple[str, str]]
) -> Iterator[tuple[str, str]]:
    """Yield the ways into the body of a map from what is before the map, and out of the body to
    the map, which ends after its body."""
    inside = {node.id for node in spec.nodes}
    targets = {target for _, target in ways}
    for node in inside:
        if node not in targets:
            yield from ((source, node) for source, target in ways if target == name)
        yield node, name


def _only_undoing(nodes: Mapping[str, Declared], edges: Collection[Edge]) -> set[str]:
    """Return the nodes that only compensate others."""
    undoing = {
        str(node.fields["compensate"]) for node in nodes.values() if "compensate" in node.fields
    }
    return undoing.difference(*((edge.source, edge.target) for edge in edges))


def _no_name(name: str, about: _Context) -> str:
    known = [each for each in (*NAMES, *UNDOING) if each in about.names]
    if name in (*NAMES, *UNDOING):
        where = "a node that compensates another" if "why" in about.names else "this node"
        return f"{name!r} is not available in {where}; its templates can use {', '.join(known)}"
    instead = _ELSEWHERE.get(name)
    meant = f"; did you mean {instead!r}?" if instead in known else did_you_mean(name, known)
    return f"there is no name {name!r}{meant or '; templates can use ' + ', '.join(known)}"


def _no_function(name: str) -> str:
    known = _FILTERS.get(name)
    if known is None:
        return f"there is no function {name!r}; templates have filters, as in value | length"
    return f"there is no function {name!r}; use the filter, as in value | {known}"


def _no_method(name: str) -> str | None:
    from keyrun.flows.sandbox import METHODS

    known = sorted(set().union(*METHODS.values()))
    if name in known:
        return None
    meant = did_you_mean(name, known) or "; use a filter, as in value | upper"
    return f"templates have no method {name!r}{meant}"


def _no_field(owner: str, field: str, known: tuple[str, ...]) -> str:
    listed = ", ".join(known)
    return f"{owner} has no field {field!r}{did_you_mean(field, known) or f'; it has {listed}'}"


def _env(name: str, about: _Context) -> str | None:
    if about.env is None:
        return (
            f"env.{name} is not available in a node of this kind; only the kinds http and code "
            "can list environment variables"
        )
    if name in about.env:
        return None
    listed = ", ".join((*about.env, name))
    return f"env.{name} is not listed; add it to the node: 'env: [{listed}]'"


def _check_url(url: str, place: Place) -> Iterator[Fault]:
    """Report an address without a scheme, as far as it is known before the run."""
    start = re.split(r"\{\{|\{%|\{#", url)[0]
    if not start and has_template(url):
        return
    if start.startswith(_SCHEMES):
        if not has_template(url) and not re.match(r"https?://[^/?#]", url):
            yield Fault(place, f"the address {url!r} has no host")
        return
    if has_template(url) and any(scheme.startswith(start) for scheme in _SCHEMES):
        return
    if start.startswith("/"):
        reason = f"the address {url!r} has no host; write it whole, as in 'https://shop.example/x'"
        yield Fault(place, reason)
        return
    scheme, found, _ = start.partition("://")
    if found:
        yield Fault(place, f"the scheme {scheme!r} is not supported; use http:// or https://")
    else:
        yield Fault(place, f"the address {url!r} has no scheme; write 'http://{url}' or https://")


def unused_ports(builder: Builder) -> list[Fault]:
    """Return a warning for each port that no edge takes."""
    warnings = []
    all_edges = [edge for body in builder.bodies for edge in body.edges]
    for node in (each for body in builder.bodies for each in body.nodes):
        declared = builder.nodes.get(node.id)
        if declared is None or declared.kind is None:
            continue
        edges = [edge for edge in all_edges if edge.source == node.id]
        failing = declared.kind.failing
        completing = [port for port in node.ports if port not in failing]
        for port in node.ports:
            fails = port in failing
            # A node with one port for completion and no edges is an end of the flow.
            is_end = not edges and [port] == completing
            never = port == TIMEOUT and fails and "timeout" not in declared.fields
            if is_end or never or any(_takes(edge, port, fails=fails) for edge in edges):
                continue
            reason = f"no edge takes the port {port!r}, so no node runs after it"
            if fails:
                reason = (
                    f"no edge takes the port {port!r}, so the node fails; add an edge with "
                    f"'port: {port}' or 'on: fail' to continue"
                )
            warnings.append(Fault(declared.place, reason))
    return warnings


def unreachable_timeouts(builder: Builder) -> list[Fault]:
    """Return a warning for each edge that takes the timeout of a node that has none."""
    warnings = []
    for edge in (each for body in builder.bodies for each in body.edges):
        source, place = builder.nodes.get(edge.source), builder.edges.get(id(edge))
        if source is None or source.kind is None or place is None or edge.port != TIMEOUT:
            continue
        if TIMEOUT in source.kind.failing and "timeout" not in source.fields:
            reason = (
                f"{edge.source!r} waits without a limit, so it never leaves by the port "
                f"{TIMEOUT!r}; add 'timeout' to the node, or remove the edge"
            )
            warnings.append(Fault((*place, "port"), reason))
    return warnings


def _takes(edge: Edge, port: str, *, fails: bool) -> bool:
    """Return whether an edge can take a port of its source. `fails` if the port is a failure."""
    if edge.port is not None or not fails:
        return edge.on is not On.FAIL and edge.port in (None, port)
    return edge.on is not On.COMPLETE
