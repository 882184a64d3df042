"""`keyrun graph`: draw a run of a graph for the terminal or as Mermaid."""

import sys
from collections.abc import Iterator

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.addresses import StoreAddress, quoted
from keyrun.cli.compensation import not_compensated, progress_of
from keyrun.cli.errors import report_errors, unknown_run
from keyrun.cli.exit_codes import NOT_FOUND, CommandError
from keyrun.cli.items import items_of
from keyrun.cli.reading import read_store
from keyrun.cli.screen import DIM, Screen, print_block, visible
from keyrun.cli.times import duration
from keyrun.graphs import EdgeView, ExecutionGraph, NodeState, NodeView

_LEFT = "1;31"
_MARKS = {
    NodeState.DONE: ("✓", "32"),
    NodeState.RUNNING: ("▶", "36"),
    NodeState.WAITING: ("…", "34"),
    NodeState.PENDING: ("·", DIM),
    NodeState.SKIPPED: ("-", DIM),
    NodeState.FAILED: ("✗", "31"),
    NodeState.CANCELLED: ("⊘", "33"),
    NodeState.COMPENSATING: ("↺", "35"),
    NodeState.COMPENSATED: ("↶", "33"),
    NodeState.COMPENSATION_FAILED: ("!", _LEFT),
}
_COLOURS = {
    NodeState.DONE: "#c6efce",
    NodeState.RUNNING: "#bde3ff",
    NodeState.WAITING: "#dcd6f7",
    NodeState.PENDING: "#f2f2f2",
    NodeState.SKIPPED: "#e0e0e0",
    NodeState.FAILED: "#ffc7ce",
    NodeState.CANCELLED: "#ffeb9c",
    NodeState.COMPENSATING: "#f5d0fe",
    NodeState.COMPENSATED: "#fde2c0",
    NodeState.COMPENSATION_FAILED: "#ff8a80",
}


@click.command("graph")
@options.store
@click.argument("run_id")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid flowchart for web pages.")
@options.namespace
@options.as_json
@report_errors
def command(
    *, store: StoreAddress, run_id: str, mermaid: bool, namespace: str, as_json: bool
) -> None:
    """Draw a run of a graph in STORE: the nodes with their states and times, and the edges.

    \b
    Examples:
      keyrun graph state/ order-7
      keyrun graph state/ order-7 --mermaid > order-7.mmd
      keyrun graph state/ order-7 --json

    A solid arrow is an edge that was taken. The exit code is 1 if the run does not exist, or if
    its workflow is not a graph.
    """
    found = read_store(store, namespace, lambda reader: _find(reader, run_id, store))
    if as_json:
        print(documents.line(documents.graph(found)))
    elif mermaid:
        print_block("\n".join(_mermaid(found)))
    else:
        _draw(found)


async def _find(reader: Reader, run_id: str, store: StoreAddress) -> ExecutionGraph:
    found = await reader.execution_graph(run_id)
    if found is not None:
        return found
    run = await reader.status(run_id, result=False)
    if run is None:
        raise unknown_run(run_id, store)
    raise CommandError(
        f"run {run_id!r} is a run of {run.workflow!r}, which is not a graph; list its events with: "
        f"keyrun history {quoted(store)} {run_id}",
        NOT_FOUND,
    )


def _draw(graph: ExecutionGraph) -> None:
    screen, compensation = Screen.of(sys.stdout), graph.compensation
    progress = f"{graph.percent:.0f} %" if graph.percent is not None else "compensating"
    screen.print(
        f"{visible(graph.run_id)}  {visible(graph.workflow)}, version {graph.version}  "
        f"{graph.state}  {progress}",
        hang="  ",
    )
    if compensation is not None:
        screen.print(visible(progress_of(compensation, graph.state.terminal) or ""), hang="  ")
        if left := not_compensated(None, compensation):
            screen.print(f"not compensated: {visible(left)}", _LEFT, hang="  ")
    depths: dict[str, int] = {}
    for node in graph.nodes:
        # The nodes in the body of a map come right after it.
        depth = depths[node.id] = 0 if node.within is None else depths[node.within] + 1
        pad = "    " * depth
        mark, style = _MARKS[node.state]
        screen.print(f"{pad}{mark} {visible(node.id)}  {_state(node)}", style, hang="  ")
        for edge in graph.edges:
            if edge.source == node.id:
                arrow = "──▶" if edge.taken else "- ->"
                style = "" if edge.taken else DIM
                text = f"{pad}    {arrow} {visible(edge.target)}{_label(edge)}"
                screen.print(text, style, hang="  ")


_FAILED = (NodeState.FAILED, NodeState.COMPENSATION_FAILED)
"""The states of nodes whose failure is shown."""


def _state(node: NodeView) -> str:
    parts = [node.state.replace("_", " ")]
    if node.items is not None:
        parts.append(items_of(node.items))
    if node.turns > 1:
        parts.append(f"turn {node.turns}" if node.within is None else f"{node.turns} times")
    if node.attempt > 1:
        parts.append(f"attempt {node.attempt}")
    if node.mean is not None:
        parts.append(duration(node.mean) or "0 s")
    if node.failure is not None and node.state in _FAILED:
        parts.append(visible(node.failure.reason))
    return ", ".join(parts)


def _label(edge: EdgeView) -> str:
    parts = [] if edge.on == "complete" else [f"on {edge.on}"]
    parts += [f"port {visible(edge.port)}"] if edge.port else []
    parts += [f"when {visible(edge.when)}"] if edge.when else []
    parts += ["back"] if edge.back else []
    return f"  ({', '.join(parts)})" if parts else ""


def _mermaid(graph: ExecutionGraph) -> Iterator[str]:
    yield "flowchart TD"
    names = {node.id: f"n{at}" for at, node in enumerate(graph.nodes)}
    yield from _mermaid_nodes(graph, names, None)
    for edge in graph.edges:
        arrow = "-->" if edge.taken else "-.->"
        label = _label(edge).strip(" ()")
        text = f'|"{_quoted(label)}"|' if label else ""
        yield f"    {names[edge.source]} {arrow}{text} {names[edge.target]}"
    for state, colour in _COLOURS.items():
        members = [names[node.id] for node in graph.nodes if node.state is state]
        if members:
            yield f"    classDef {state} fill:{colour},stroke:#555"
            yield f"    class {','.join(members)} {state}"


def _mermaid_nodes(
    graph: ExecutionGraph, names: dict[str, str], within: str | None
) -> Iterator[str]:
    """Yield the nodes of the graph, or those in the body of a map, with the bodies of their
    maps."""
    for node in graph.nodes:
        if node.within == within:
            name = names[node.id]
            yield f'    {name}["{_quoted(node.id)}<br/>{_quoted(_state(node))}"]'
            if body := list(_mermaid_nodes(graph, names, node.id)):
                yield f'    subgraph {name}_body["each item of {_quoted(node.id)}"]'
                yield from body
                yield "    end"
                yield f"    {name} -.- {name}_body"


def _quoted(text: str) -> str:
    """Return a text with the escapes of a Mermaid label."""
    plain = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace('"', "&quot;")
