"""The builder of a graph from a document, which goes on where it can so as to find all problems."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from keyrun import Graph
from keyrun._errors import KeyrunError
from keyrun.errors import InvalidGraph
from keyrun.flows.kinds import KINDS, Kind
from keyrun.flows.kinds import Place as Making
from keyrun.flows.nodes.loop import MOST, add_loop, begin_of, end_of
from keyrun.flows.policies import checkpoint_of, policies_of, retry_of
from keyrun.flows.shape import Problem
from keyrun.flows.source import Place
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import PermanentError
from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.output_limit import OUTPUT
from keyrun.runtime.limits import Limits
from keyrun.runtime.policies.resources import Resources

_NAMED = re.compile(r"'([^']*)'")
_EDGE = re.compile(r"('[^']*' -> '[^']*')(?: \((?:on|port)=[^)]*\))?")
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


class Builder:
    """Makes the graph of one document. `wrong` is where that is not as it should be: nothing is
    made of what is there."""

    def __init__(
        self,
        document: dict[str, Any],
        wrong: set[Place],
        *,
        folder: Path | None,
        functions: Mapping[str, Callable[..., Any]],
        workflows: Mapping[str, Workflow[Any, Any]],
    ) -> None:
        self.problems: list[Problem] = []
        self.warnings: list[Problem] = []
        """What is allowed and probably not meant."""
        self._wrong = wrong
        self._folder = folder
        self._functions = functions
        self._workflows = workflows
        self._nodes: dict[str, Place] = {}
        self._edges: dict[str, Place] = {}
        """Where each is in the document; edges as graphs call them, with and without details."""
        self._astray: list[tuple[str, str, Place]] = []
        """Edges whose ends are not both beside them."""
        self._loops: dict[str, list[str]] = {}
        """The nodes that each loop has become."""
        self._failing: dict[str, tuple[str, ...]] = {}
        """The ports of each node by which it fails if no edge takes them."""
        self._unused: set[tuple[str, str]] = set()
        """Nodes and the ports by which they never leave."""
        document = self._right(document, ())
        self._most = document.get("max_output", OUTPUT)
        given = {name: document[name] for name in _OF_GRAPHS if name in document}
        if "limits" in document:
            given["limits"] = Limits(**document["limits"])
        if "retry" in document:
            given["retry"] = retry_of(document["retry"])
        if "resources" in document:
            given["resources"] = Resources(**document["resources"])
        if "checkpoint" in document:
            try:
                given["checkpoint"] = checkpoint_of(document["checkpoint"])
            except ValueError as error:
                self.problems.append((("checkpoint",), str(error)))
        self._graph = Graph(document.get("name", "flow"), **given)

    def graph(self, document: dict[str, Any]) -> Graph:
        """The graph, which is whole if there are no problems."""
        self._add(document, ())
        self._find_astray()
        try:
            self._graph.validate()
        except InvalidGraph as error:
            self.problems += [(self._place_of(said), said) for said in error.errors]
        self._warn_of_ports()
        return self._graph

    def _add(self, document: dict[str, Any], place: Place) -> tuple[dict[str, str], set[Any]]:
        """Add nodes and edges. Says which nodes those are, with the node that edges to it lead to,
        and what edges are between them."""
        nodes, edges = document.get("nodes"), document.get("edges")
        entries: dict[str, str] = {}
        for name, fields in nodes.items() if isinstance(nodes, dict) else ():
            at = (*place, "nodes", name)
            self._nodes.setdefault(name, at)
            entries[name] = self._node(name, fields if isinstance(fields, dict) else {}, at)
        ways = set()
        for number, fields in enumerate(edges if isinstance(edges, list) else ()):
            at = (*place, "edges", number)
            usable = self._right(fields, at) if isinstance(fields, dict) else {}
            if "from" not in usable or "to" not in usable:
                continue
            source, target = usable.pop("from"), usable.pop("to")
            if not {source, target} <= entries.keys():
                self._astray.append((source, target, at))
                continue
            if not usable.get("back"):
                ways.add((source, target))
            self._edge(source, entries[target], usable, at)
        return entries, ways

    def _warn_of_ports(self) -> None:
        """Warn of ports that no edge takes."""
        for node in self._graph.nodes:
            edges = [edge for edge in self._graph.edges if edge.source == node.id]
            failing = self._failing.get(node.id, ())
            completing = [port for port in node.ports if port not in failing]
            for port in node.ports:
                fails = port in failing
                # Without edges, a node with one way to complete is an end of the flow.
                is_end = not edges and [port] == completing
                unused = fails and (node.id, port) in self._unused
                if is_end or unused or any(_takes(edge, port, fails) for edge in edges):
                    continue
                said = f"no edge takes the port {port!r}, so nothing comes after it"
                if fails:
                    said = (
                        f"no edge takes the port {port!r}, so it fails the node; add an edge with "
                        f"'port: {port}' or 'on: fail' if the flow has to continue"
                    )
                self.warnings.append((self._nodes[node.id], said))

    def _find_astray(self) -> None:
        """Say of edges to or from elsewhere what is wrong with them."""
        for source, target, at in self._astray:
            for name in (source, target):
                if name not in self._nodes:
                    self.problems.append((at, f"there is no node {name!r}"))
                elif self._nodes[name][:-2] != at[:-2]:
                    said = f"{name!r} is in another body; edges lead to and from a loop as a whole"
                    self.problems.append((at, said))

    def _edge(self, source: str, target: str, options: dict[str, Any], at: Place) -> None:
        before = len(self._graph.edges)
        on = options.get("on", "complete")
        if source not in self._loops or on == "complete":
            self._graph.edge(source, target, **options)
        else:
            if on == "all":
                self._graph.edge(source, target, **{**options, "on": "complete"})
            for part in self._loops[source]:
                # A loop fails when one of its nodes does.
                self._graph.edge(part, target, **{**options, "on": "fail"})
        for edge in self._graph.edges[before:]:
            self._edges.setdefault(str(edge), at)
            self._edges.setdefault(f"{edge.source!r} -> {edge.target!r}", at)

    def _node(self, name: str, fields: dict[str, Any], at: Place) -> str:
        """Add a node: the one that edges to it lead to."""
        kind = KINDS.get(str(fields.get("kind")))
        usable = self._right(fields, at)
        if kind is not None and kind.make is None:
            return self._loop(name, fields, usable, at)
        target: Any = None
        if kind is not None and self._complete(kind, usable):
            target = self._made(kind, usable, at)
        if "args" in fields.keys() - usable.keys():
            # Whether they fit the function is known when they are as they should be.
            target = None
        options = {} if kind is None or target is None else self._options(kind, usable, at)
        ports = () if kind is None else kind.ports or tuple(usable.get("ports", ()))
        if kind is not None:
            self._failing[name] = kind.failing
            if "timeout" not in usable:
                self._unused.add((name, "timeout"))
        self._graph.node(name, target or _unknown, ports=ports, **options)
        return name

    def _loop(self, name: str, fields: dict[str, Any], usable: dict[str, Any], at: Place) -> str:
        body = fields.get("body")
        before = len(self._graph.nodes)
        entries, ways = self._add(body if isinstance(body, dict) else {}, (*at, "body"))
        inside = [node.id for node in self._graph.nodes[before:]]
        for part in (begin_of(name), end_of(name)):
            self._nodes.setdefault(part, at)
        self._loops[name] = [*inside, begin_of(name), end_of(name)]
        add_loop(
            self._graph,
            name,
            # Where it has none that can be used, that is known.
            while_=usable.get("while", "false"),
            body=entries,
            edges=ways,
            start=usable.get("start"),
            max_iterations=usable.get("max_iterations", MOST),
            **policies_of(usable, step=False),
        )
        return begin_of(name)

    def _made(self, kind: Kind, fields: dict[str, Any], at: Place) -> Any:
        assert kind.make is not None
        making = Making(
            where=".".join(map(str, at)),
            folder=self._folder,
            functions=self._functions,
            workflows=self._workflows,
            max_output=self._most,
        )
        try:
            return kind.make(fields, making)
        except (KeyrunError, PermanentError, ValueError, TypeError) as error:
            blamed = (*at, kind.subject) if kind.subject in fields else at
            self.problems.append((blamed, str(error)))
            return None

    def _options(self, kind: Kind, fields: dict[str, Any], at: Place) -> dict[str, Any]:
        try:
            given = policies_of(fields, step=kind.steps)
        except ValueError as error:
            self.problems.append((at, str(error)))
            return {}
        if kind is KINDS["call"] and "args" in fields:
            given["args"] = fields["args"]
        return given

    def _complete(self, kind: Kind, usable: dict[str, Any]) -> bool:
        return all(name in usable for name, field in kind.record.fields.items() if field.required)

    def _right(self, fields: dict[str, Any], at: Place) -> dict[str, Any]:
        """Those fields of which nothing is wrong."""
        return {
            name: value
            for name, value in fields.items()
            if not any(each[: len(at) + 1] == (*at, name) for each in self._wrong)
        }

    def _place_of(self, said: str) -> Place:
        """Where in the document that is which a graph complains about."""
        if found := _EDGE.search(said):
            place = self._edges.get(found[0]) or self._edges.get(found[1])
            if place is not None:
                return place
        for name in _NAMED.findall(said):
            if name in self._nodes:
                return self._nodes[name]
        return ("nodes",)


def _takes(edge: Edge, port: str, fails: bool) -> bool:
    """Whether an edge may take a port of its source; `fails` if the node fails by it otherwise."""
    if edge.port is not None or not fails:
        return edge.on is not On.FAIL and edge.port in (None, port)
    return edge.on is not On.COMPLETE


async def _unknown(given: Any) -> None:
    raise AssertionError("a graph with problems is never run")
