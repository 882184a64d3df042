"""The `loop` node: a body of nodes, again and again while a condition holds.

A loop becomes part of the graph that it is in, so that each turn is journaled node by node, is
resumed in its middle, and is seen from outside:

    to the loop ──► begin ──turn──► the body ──► end ──► the loop's own node ──► what comes after
                    ▲ └──────────done──────────────────────► ▲
                    └── back, while the condition holds ◄─┘
"""

from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any

from keyrun import Port
from keyrun.flows.scope import Given, holds, scope
from keyrun.flows.templates import renderable
from keyrun.runtime.graphs.body import GraphBody
from keyrun.runtime.graphs.condition import Condition
from keyrun.runtime.graphs.node import RECEIVED, passing_on

MOST = 100
_AGAIN = "again"


def begin_of(loop: str) -> str:
    """Return the node that edges to a loop lead to."""
    return f"{loop}.begin"


def end_of(loop: str) -> str:
    """Return the node at the end of each turn of a loop."""
    return f"{loop}.end"


def add_loop(
    graph: GraphBody,
    name: str,
    *,
    while_: str,
    body: Mapping[str, str],
    edges: Collection[tuple[str, str]],
    start: Any = None,
    max_iterations: int = MOST,
    **options: Any,
) -> None:
    """Add the nodes and edges that make a loop of the nodes `body`, which are in `graph` already,
    as are the `edges` between them; `body` has for each node the one that edges to it lead to,
    which for another loop is `begin_of` that. Edges to this loop lead to `begin_of(name)`, those
    from it come from `name`, whose output is that of the last turn.

    The expression `while_`, in CEL, is about `output`: before the first turn that is `start` with
    its templates filled in, or else what triggered the loop, then what the last turn came to. At
    most `max_iterations` turns, or the run fails.
    """
    begin, end = begin_of(name), end_of(name)
    first = _begin(while_, start, f"nodes.{name}.start")
    graph.node(begin, first, ports=("turn", "done"), **options)
    graph.node(end, _pass_on)
    graph.node(name, _pass_on)
    for node, entry in body.items():
        if node not in {target for _, target in edges}:
            graph.edge(begin, entry, port="turn")
        if node not in {source for source, _ in edges}:
            graph.edge(node, end)
    graph.edge(end, begin, when=while_, back=True, to_port=_AGAIN, max_iterations=max_iterations)
    graph.edge(begin, name, port="done")
    graph.edge(end, name, when=f"!({while_})")


def _begin(while_: str, start: Any, where: str) -> Callable[[Given], Coroutine[Any, Any, Port]]:
    condition = Condition(while_)
    first = None if start is None else renderable(start, where)

    async def begin(given: Given) -> Port:
        if given.port == _AGAIN:
            return Port("turn", RECEIVED)
        value = given.output if first is None else first.render(scope(given))
        port = "turn" if holds(condition, given, value) else "done"
        return Port(port, RECEIVED if first is None else value)

    return begin


@passing_on
async def _pass_on(given: Given) -> Any:
    return RECEIVED
