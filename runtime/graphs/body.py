"""Bodies: nodes and edges. A graph is a body with the options of a workflow, and a map runs a body
for each item of a list."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, Unpack

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import PermanentError
from keyrun.runtime.graphs.arguments import Arguments, rendering_of
from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import Join, MapSpec, Node, ports_of, subworkflow
from keyrun.runtime.graphs.node_input import NodeInput
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.policies.step_policies import Throttles
from keyrun.runtime.values import UNSET, Unset

MAX_CONCURRENCY = 10
"""Items of a map that are under way at once, by default."""
MAX_ITEMS = 1000
"""Items that a map may have, by default."""


class GraphBody:
    """Hold the nodes and edges that a map runs for each item: `graph.map("pages", body)`.

    A body cannot be changed after it was passed to `map`. The names of its nodes are those of the
    whole graph, so no other node of the graph may have one of them."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self._is_in_use = False

    def node(
        self,
        id: str,  # noqa: A002 (what it is)
        target: Any,
        /,
        *,
        ports: Sequence[str] = (),
        join: Join = "all",
        args: Arguments | None = None,
        timeout: float | Unset | None = UNSET,
        retry: Retry | Unset = UNSET,
        shield: bool | Unset = UNSET,
        at_most_once: bool | Unset = UNSET,
        abandon: bool | Unset = UNSET,
        fallback: str | None = None,
        compensate: Callable[..., Any] | str | Unset | None = UNSET,
        **policies: Unpack[Throttles],
    ) -> None:
        """Add a node.

        - `id`: the name of the node.
        - `target`: a function or a step that takes one `NodeInput`, or the arguments in `args`, and
          returns the output of the node. Or a workflow: its input is `args`, or the output that
          triggered the node.
        - `ports`: the names of the ports. A node returns `Port(name, output)` to leave by a port.
        - `join`: With `"any"`, the node starts when the first edge leads to it. By default it waits
          for all edges.
        - `args`: the arguments of the function, by name.
        - `fallback`: the node that runs instead while the circuit breaker of this node is open.
        - `compensate`: a function, or the id of a node, that undoes this node if the run fails or
          is cancelled.
        - The other options are those of `@step`, and come before those of the step.
        """
        given: dict[str, Any] = {
            "timeout": timeout,
            "retry": retry,
            "shield": shield,
            "at_most_once": at_most_once,
            "abandon": abandon,
            "compensate": UNSET if isinstance(compensate, str) else compensate,
            **policies,
        }
        self._open()
        if isinstance(ports, str):
            raise TypeError(f"ports must be a list of names, got {ports!r}")
        if isinstance(target, Workflow):
            target, args = subworkflow(id, target, args), None
        self.nodes.append(
            Node(
                id=id,
                target=target,
                ports=tuple(ports) or ports_of(target),
                join=join,
                args=args,
                fallback=fallback,
                undone_by=compensate if isinstance(compensate, str) else None,
                options={name: value for name, value in given.items() if value is not UNSET},
            )
        )

    def map(
        self,
        id: str,  # noqa: A002 (what it is)
        body: "GraphBody",
        /,
        *,
        items: str | Sequence[Any] | None = None,
        max_concurrency: int = MAX_CONCURRENCY,
        max_items: int = MAX_ITEMS,
        fail_fast: bool = False,
        join: Join = "all",
    ) -> None:
        """Add a node that runs a body for each item of a list.

        The output of the node has `results`, with the result of each item in the order of the
        items, and `failures`. The result of an item is the output of the last node of the body, as
        for a graph. If an item fails, its result is None, and `failures` has its `index`, `step`,
        `kind`, `reason` and `error_type`.

        - `id`: the name of the node.
        - `body`: the nodes and edges. Its nodes find the item in `NodeInput.item` and its place in
          `NodeInput.index`. The first ones also get the item as `NodeInput.output`.
        - `items`: a list, or a template that gives a list, as in `"{{ input.pages }}"`. By default
          it is the output that triggered the node, or the input of the run if that output is None.
        - `max_concurrency`: the number of items that may be under way at once.
        - `max_items`: If the list has more items, the node fails before the first one starts.
        - `fail_fast`: The first item that fails cancels the other items, and the node fails. By
          default all items run, and the node completes.
        - `join`: With `"any"`, the node starts when the first edge leads to it.
        """
        self._open()
        if not isinstance(body, GraphBody) or isinstance(body, Workflow):
            raise TypeError(f"the body of a map must be a GraphBody, got {body!r}")
        body._is_in_use = True
        self.nodes.append(
            Node(
                id=id,
                target=_listing(id, items, max_items),
                join=join,
                map=MapSpec(
                    nodes=tuple(body.nodes),
                    edges=tuple(body.all_edges()),
                    apart=body.apart(),
                    items=items,
                    max_concurrency=max_concurrency,
                    max_items=max_items,
                    fail_fast=fail_fast,
                ),
            )
        )

    def edge(
        self,
        source: str,
        target: str,
        /,
        *,
        on: Literal["complete", "fail", "all"] = "complete",
        port: str | None = None,
        to_port: str | None = None,
        when: str | None = None,
        back: bool = False,
        max_iterations: int | None = None,
    ) -> None:
        """Add an edge from one node to another.

        - `on`: follow the edge when `source` has completed, failed (`"fail"`), or ended in either
          way (`"all"`).
        - `port`: follow the edge only if `source` leaves by this port.
        - `to_port`: the port that `target` sees in `NodeInput.port`.
        - `when`: follow the edge only if this CEL condition is true.
        - `back`: lead back to an earlier node, at most `max_iterations` times.
        """
        if on not in ("complete", "fail", "all"):
            raise ValueError(f"on must be 'complete', 'fail' or 'all', got {on!r}")
        self._open()
        self.edges.append(
            Edge(
                source=source,
                target=target,
                on=On(on),
                port=port,
                to_port=to_port,
                when=when,
                back=back,
                max_iterations=max_iterations,
            )
        )

    def _open(self) -> None:
        """Raise if nothing can be added any more."""
        if self._is_in_use:
            raise RuntimeError("the body is part of a map already: add nodes and edges before that")

    def all_edges(self) -> list[Edge]:
        """Return the edges, with those that lead to fallbacks."""
        return [*self.edges, *_fallbacks(self.nodes)]

    def apart(self) -> frozenset[str]:
        """Return the nodes that are there only to undo others."""
        undo = {node.undone_by for node in self.nodes if node.undone_by is not None}
        connected = ((edge.source, edge.target) for edge in self.all_edges())
        return frozenset(undo.difference(*connected))


def _fallbacks(nodes: Iterable[Node]) -> Iterator[Edge]:
    for node in nodes:
        if node.fallback is not None:
            yield Edge(source=node.id, target=node.fallback, on=On.OPEN)


def _listing(name: str, items: Any, max_items: int) -> Callable[[NodeInput], Any]:
    """Return the function of a map: it gives the list of items, which the journal keeps."""
    render = None if items is None else rendering_of(items, f"{name}.items")

    async def items_of(given: NodeInput) -> list[Any]:
        record = given.record
        if render is not None:
            found = render(record)
        else:
            found = record.run_input if record.output is None else record.output
        if not isinstance(found, list | tuple):
            what = "null" if found is None else f"a value of type {type(found).__name__}"
            raise PermanentError(f"the items of {name!r} must be a list, got {what}")
        if len(found) > max_items:
            raise PermanentError(
                f"{name!r} has {len(found):,} items, and may have {max_items:,}; split the list, "
                "or set max_items"
            )
        return list(found)

    return items_of
