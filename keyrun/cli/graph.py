"""`keyrun graph`: a run of a graph, drawn for the terminal or as Mermaid."""

from collections.abc import Iterator
from pathlib import Path

import click

from keyrun import Reader
from keyrun.cli import documents, options
from keyrun.cli.compensation import not_compensated, progress_of
from keyrun.cli.exits import NOT_FOUND, Refusal
from keyrun.cli.lookup import look
from keyrun.cli.screen import console, visible
from keyrun.cli.times import duration
from keyrun.cli.troubles import plainly
from keyrun.graphs import EdgeView, ExecutionGraph, NodeState, NodeView

_MARKS = {
    NodeState.DONE: ("✓", "green"),
    NodeState.RUNNING: ("▶", "cyan"),
    NodeState.WAITING: ("…", "blue"),
    NodeState.PENDING: ("·", "dim"),
    NodeState.SKIPPED: ("-", "dim"),
    NodeState.FAILED: ("✗", "red"),
    NodeState.CANCELLED: ("⊘", "yellow"),
    NodeState.COMPENSATING: ("↺", "magenta"),
    NodeState.COMPENSATED: ("↶", "yellow"),
    NodeState.COMPENSATION_FAILED: ("!", "bold red"),
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
@click.option("--mermaid", is_flag=True, help="As a Mermaid flowchart, for pages and editors.")
@options.namespace
@options.as_json
@plainly
def command(*, store: Path, run_id: str, mermaid: bool, namespace: str, as_json: bool) -> None:
    """Draw a run of STORE that is of a graph: its nodes with their states and times, and which
    edges were taken.

    \b
    Examples:
      keyrun graph state/ order-7
      keyrun graph state/ order-7 --mermaid > order-7.mmd
      keyrun graph state/ order-7 --json

    Exits with 1 if there is no such run, or if it is of no graph.
    """
    found = look(store, namespace, lambda reader: _find(reader, run_id))
    if as_json:
        print(documents.line(documents.graph(found)))
    elif mermaid:
        print("\n".join(_mermaid(found)))
    else:
        _draw(found)


async def _find(reader: Reader, run_id: str) -> ExecutionGraph:
    found = await reader.execution_graph(run_id)
    if found is not None:
        return found
    if await reader.status(run_id, result=False) is None:
        raise Refusal(f"no run has the id {run_id!r}, or it was forgotten", NOT_FOUND)
    raise Refusal(f"the run {run_id!r} is of no graph; keyrun history shows it", NOT_FOUND)


def _draw(graph: ExecutionGraph) -> None:
    screen, compensation = console(), graph.compensation
    far = f"{graph.percent:.0f} %" if graph.percent is not None else "compensating"
    screen.print(
        f"{visible(graph.run_id)}  {visible(graph.workflow)}, version {graph.version}  "
        f"{graph.state}  {far}"
    )
    if compensation is not None:
        screen.print(visible(progress_of(compensation, graph.state.terminal) or ""))
        if left := not_compensated(None, compensation):
            screen.print(f"not compensated: {visible(left)}", style="bold red")
    for node in graph.nodes:
        mark, style = _MARKS[node.state]
        screen.print(f"{mark} {visible(node.id)}  {_said(node)}", style=style)
        for edge in graph.edges:
            if edge.source == node.id:
                arrow = "──▶" if edge.taken else "- ->"
                screen.print(
                    f"    {arrow} {visible(edge.target)}{_label(edge)}",
                    style="" if edge.taken else "dim",
                )


_FAILED = (NodeState.FAILED, NodeState.COMPENSATION_FAILED)
"""States whose reason is shown."""


def _said(node: NodeView) -> str:
    parts = [node.state.replace("_", " ")]
    if node.turns > 1:
        parts.append(f"turn {node.turns}")
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
    for node in graph.nodes:
        yield f'    {names[node.id]}["{_quoted(node.id)}<br/>{_quoted(_said(node))}"]'
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


def _quoted(text: str) -> str:
    """Text as it may stand in a Mermaid label."""
    plain = visible(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return plain.replace('"', "&quot;")
