"""The `workflow` node: a run of another workflow, whose result is the output."""

from collections.abc import Callable, Coroutine
from typing import Any

from keyrun.flows.errors import NodeFailed
from keyrun.flows.scope import Given, scope
from keyrun.flows.templates import fillable
from keyrun.graphs import durable
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.node_input import copied


def child(
    workflow: Workflow[Any, Any],
    *,
    input: Any = None,  # noqa: A002 (what submit calls it)
    key: str | None = None,
    where: str = "workflow",
) -> Callable[[Context, Given], Coroutine[Any, Any, Any]]:
    """A node that runs `workflow` as a child and gives its result. `input` and `key` may have
    templates in them. Without an input the child gets what triggered the node, or the input of the
    run if nothing did. Without a key it is a part of this run; a machine or a graph, which has a
    journal of its own, then gets the key of this run with the name of the node behind it."""
    needs_input = workflow.takes_input or workflow.kind != "function"
    if input is not None and not needs_input:
        raise ValueError(f"the workflow {workflow.name!r} takes no input")
    if key is None and workflow.kind != "function":
        key = f"{{{{ run.key }}}}/{where.rpartition('.')[2]}"
    told = None if input is None else fillable(input, f"{where}.input")
    under = None if key is None else fillable(key, f"{where}.key")

    @durable
    async def child(ctx: Context, given: Given) -> Any:
        known = scope(given, ctx=ctx)
        chosen = None if under is None else under.fill(known)
        if chosen is not None and not isinstance(chosen, str):
            raise NodeFailed(f"the key of a child is a text, and {where}.key gives {chosen!r}")
        value = known["input"] if known["output"] is None else known["output"]
        if told is not None:
            value = told.fill(known)
        return await ctx.child(workflow, copied(value) if needs_input else None, key=chosen)

    return child
