"""The builder: make the graph of a document. It continues after an error, to find all errors."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from keyrun import Graph
from keyrun._errors import KeyrunError
from keyrun.flows.kinds import KINDS, Kind, Making
from keyrun.flows.nodes.loop import MOST, add_loop, begin_of, end_of
from keyrun.flows.policies import checkpoint_of, policies_of, retry_of
from keyrun.flows.shapes import Fault, WrongField
from keyrun.flows.source import Place
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import PermanentError
from keyrun.runtime.graphs.body import GraphBody
from keyrun.runtime.graphs.edge import Edge
from keyrun.runtime.graphs.graph import faults_of
from keyrun.runtime.graphs.output_limit import OUTPUT
from keyrun.runtime.limits import Limits
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.texts import did_you_mean

_OF_GRAPHS = (
    "version",
    "fail_fast",
    "max_concurrency",
    "schedule",
    "compensation",
    "compensate_on",
    "while_waiting",
    "instances",
    "when_full",
    "max_output",
    "max_run_output",
)


@attrs.frozen(kw_only=True)
class Declared:
    """A node of the document: its place, its kind if that is known, and its valid fields."""

    name: str
    place: Place
    kind: Kind | None
    fields: dict[str, Any]

    @property
    def entry(self) -> str:
        """Return the node of the graph that edges to this node lead to."""
        is_loop = self.kind is not None and self.kind.body == "loop"
        return begin_of(self.name) if is_loop else self.name


class Builder:
    """Makes the graph of one document. It ignores the values at the places in `wrong`, which have
    errors already."""

    def __init__(
        self,
        document: dict[str, Any],
        wrong: set[Place],
        *,
        folder: Path | None,
        functions: Mapping[str, Callable[..., Any]],
        workflows: Mapping[str, Workflow[Any, Any]],
    ) -> None:
        self.faults: list[Fault] = []
        self.nodes: dict[str, Declared] = {}
        """The nodes of the document by name. Of two with the same name, the first."""
        self.edges: dict[int, Place] = {}
        """The places of the edges, by the identity of the edge of the graph."""
        self._wrong = wrong
        self._folder = folder
        self._functions = functions
        self._workflows = workflows
        self._astray: list[tuple[str, str, Place]] = []
        """Edges with an end that is not in the same body."""
        self._inside: dict[str, list[str]] = {}
        """The nodes of the graph that each loop consists of."""
        options = self._valid(document, ())
        self._max_output = options.get("max_output", OUTPUT)
        given = {name: options[name] for name in _OF_GRAPHS if name in options}
        if "limits" in options:
            given["limits"] = Limits(**options["limits"])
        if "retry" in options:
            given["retry"] = retry_of(options["retry"])
        if "resources" in options:
            given["resources"] = Resources(**options["resources"])
        if "checkpoint" in options:
            try:
                given["checkpoint"] = checkpoint_of(options["checkpoint"])
            except ValueError as error:
                self.faults.append(Fault(("checkpoint",), str(error)))
        self.graph = Graph(options.get("name", "flow"), **given)
        self._body: GraphBody = self.graph
        """Where the next nodes and edges go: the graph, or the body of a map."""
        self.bodies: list[GraphBody] = [self._body]
        """The graph and the bodies of its maps."""
        self._add(document, ())
        self._find_astray()
        if self.graph.nodes:
            self._validate()

    def _add(self, document: dict[str, Any], place: Place) -> tuple[list[Declared], set[Any]]:
        """Add the nodes and edges of a body. Return the nodes, and the forward edges between
        them."""
        nodes, edges = document.get("nodes"), document.get("edges")
        here: dict[str, Declared] = {}
        for name, fields in nodes.items() if isinstance(nodes, dict) else ():
            at = (*place, "nodes", name)
            given = self._valid(fields, at) if isinstance(fields, dict) else {}
            kind = KINDS.get(str(given.get("kind")))
            here[name] = Declared(name=name, place=at, kind=kind, fields=given)
            self.nodes.setdefault(name, here[name])
        entries = {name: each.entry for name, each in here.items()}
        for name, node in here.items():
            fields = nodes[name] if isinstance(nodes, dict) else {}
            self._node(node, fields if isinstance(fields, dict) else {}, entries)
        between = set()
        for number, fields in enumerate(edges if isinstance(edges, list) else ()):
            at = (*place, "edges", number)
            given = self._valid(fields, at) if isinstance(fields, dict) else {}
            if "from" not in given or "to" not in given:
                continue
            source, target = given.pop("from"), given.pop("to")
            if not {source, target} <= here.keys():
                self._astray.append((source, target, at))
                continue
            kind = here[source].kind
            if kind is not None and kind.ends_run:
                reason = f"the run ends at {source!r}, so no edge leads out of it; remove the edge"
                self.faults.append(Fault((*at, "from"), reason))
            if not given.get("back"):
                between.add((source, target))
            self._edge(source, here[target].entry, given, at)
        return list(here.values()), between

    def _find_astray(self) -> None:
        """Report the edges with an end that is not in the same body."""
        for source, target, at in self._astray:
            for field, name in (("from", source), ("to", target)):
                found = self.nodes.get(name)
                if found is None:
                    known = tuple(self.nodes)
                    meant = did_you_mean(name, known) or f"; the nodes are {', '.join(known)}"
                    self.faults.append(Fault((*at, field), f"there is no node {name!r}{meant}"))
                elif found.place[:-2] != at[:-2]:
                    reason = f"the node {name!r} is in another body; {_instead(found.place, at)}"
                    self.faults.append(Fault((*at, field), reason))

    def _edge(self, source: str, target: str, options: dict[str, Any], at: Place) -> None:
        before = len(self._body.edges)
        on = options.get("on", "complete")
        if source not in self._inside or on == "complete":
            self._body.edge(source, target, **options)
        else:
            if on == "all":
                self._body.edge(source, target, **{**options, "on": "complete"})
            for part in self._inside[source]:
                # A loop fails if one of its nodes fails.
                self._body.edge(part, target, **{**options, "on": "fail"})
        for edge in self._body.edges[before:]:
            self.edges[id(edge)] = at

    def _node(self, node: Declared, fields: dict[str, Any], entries: dict[str, str]) -> None:
        """Add a node. `fields` are all its fields, also the wrong ones. `entries` has the nodes of
        the graph that edges to the nodes of this body lead to."""
        if node.kind is not None and node.kind.body == "loop":
            self._loop(node, fields)
            return
        if node.kind is not None and node.kind.body == "map":
            self._map(node, fields)
            return
        target = None if node.kind is None else self._made(node.kind, node, fields)
        options: dict[str, Any] = {}
        if node.kind is not None and target is not None:
            options = self._options(node)
        if "fallback" in options:
            options["fallback"] = entries.get(options["fallback"], options["fallback"])
        ports = () if node.kind is None else node.kind.ports_of(fields)
        self._body.node(node.name, target or _never_run, ports=ports, **options)

    def _loop(self, node: Declared, fields: dict[str, Any]) -> None:
        before = len(self._body.nodes)
        body = fields.get("body")
        inside, between = self._add(body if isinstance(body, dict) else {}, (*node.place, "body"))
        parts = [each.id for each in self._body.nodes[before:]]
        self._inside[node.name] = [*parts, begin_of(node.name), end_of(node.name)]
        add_loop(
            self._body,
            node.name,
            # Without a valid condition there is an error already.
            while_=node.fields.get("while", "false"),
            body={each.name: each.entry for each in inside},
            edges=between,
            start=node.fields.get("start"),
            max_iterations=node.fields.get("max_iterations", MOST),
            **policies_of(node.fields, step=False),
        )

    def _map(self, node: Declared, fields: dict[str, Any]) -> None:
        outer, self._body = self._body, GraphBody()
        self.bodies.append(self._body)
        body = fields.get("body")
        self._add(body if isinstance(body, dict) else {}, (*node.place, "body"))
        inner, self._body = self._body, outer
        names = ("items", "max_concurrency", "max_items", "fail_fast")
        given = {name: node.fields[name] for name in names if name in node.fields}
        outer.map(node.name, inner, **given, **policies_of(node.fields, step=False))

    def _made(self, kind: Kind, node: Declared, fields: dict[str, Any]) -> Any:
        """Return the target of a node, or None if it cannot be made."""
        required = {name for name, field in kind.fields.items() if field.required}
        wrong = kind.fields.keys() & fields.keys() - node.fields.keys()
        if wrong or not required <= node.fields.keys():
            return None
        making = Making(
            where=".".join(map(str, node.place)),
            folder=self._folder,
            functions=self._functions,
            workflows=self._workflows,
            max_output=self._max_output,
        )
        assert kind.make is not None
        try:
            target = kind.make(node.fields, making)
        except WrongField as error:
            place = (*node.place, *error.place)
            self.faults.append(Fault(place, error.reason, error.line - 1))
        except (KeyrunError, PermanentError, ValueError, TypeError) as error:
            self.faults.append(Fault(node.place, str(error)))
        else:
            return target
        return None

    def _options(self, node: Declared) -> dict[str, Any]:
        assert node.kind is not None
        try:
            options = policies_of(node.fields, step=node.kind.steps)
        except WrongField as error:
            self.faults.append(Fault((*node.place, *error.place), error.reason))
            return {}
        if node.kind is KINDS["call"] and "args" in node.fields:
            options["args"] = node.fields["args"]
        return options

    def _valid(self, fields: dict[str, Any], at: Place) -> dict[str, Any]:
        """Return the fields without errors."""
        return {
            name: value
            for name, value in fields.items()
            if not any(each[: len(at) + 1] == (*at, name) for each in self._wrong)
        }

    def _validate(self) -> None:
        """Report the faults of the graph at their places in the document."""
        for fault in faults_of(self.graph, back="'back: true'"):
            place: Place = () if fault.option is None else (fault.option,)
            if fault.edge is not None:
                place = (*self._place_of(fault.edge), *place)
            elif fault.node is not None:
                place = (*self._declared(fault.node), *place)
            reason = fault.reason
            if fault.option is not None:
                reason = reason.removeprefix(f"{fault.option}: ")
            self.faults.append(Fault(place, reason))

    def _place_of(self, edge: Edge) -> Place:
        # The edges inside of a loop, and the edge to a fallback, belong to a node.
        return self.edges.get(id(edge)) or self._declared(edge.source)

    def _declared(self, name: str) -> Place:
        """Return the place of a node of the graph."""
        for loop, parts in self._inside.items():
            if name in parts[-2:]:
                name = loop
        found = self.nodes.get(name)
        return ("nodes",) if found is None else found.place


def _instead(node: Place, edge: Place) -> str:
    """Return which node to connect, instead of one in another body."""
    here = edge[:-2]
    if node[: len(here)] == here:
        return f"connect {node[len(here) + 1]!r}, which contains it"
    return f"connect nodes of this body, or add the edge to {here[-2]!r}, outside of the body"


async def _never_run(given: Any) -> None:
    raise AssertionError("a graph with errors never runs")
