"""The `workflow` node: run another workflow as a child, and give its result."""

from collections.abc import Callable, Coroutine
from typing import Any

from keyrun.flows.scope import Given, scope
from keyrun.flows.templates import as_text, renderable
from keyrun.graphs import durable
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.node_input import copied


def child(
    workflow: Workflow[Any, Any],
    *,
    input: Any = None,  # noqa: A002 (the name that submit uses)
    key: str | None = None,
    where: str = "workflow",
) -> Callable[[Context, Given], Coroutine[Any, Any, Any]]:
    """Return a node that runs a workflow as a child. Its output is the result of the child.

    - `workflow`: the workflow to run.
    - `input`: the input of the child, with templates. By default it is the output that triggered
      the node, or the input of the run.
    - `key`: the ordering key of the child, with templates. Without a key the child is a part of
      this run. A machine or a graph needs a journal of its own, so its default key is the key of
      this run, a slash and the name of the node.
    - `where`: the name of the node in errors.
    """
    needs_input = workflow.takes_input or workflow.kind != "function"
    if input is not None and not needs_input:
        raise ValueError(f"the workflow {workflow.name!r} takes no input; remove 'input'")
    if key is None and workflow.kind != "function":
        key = f"{{{{ run.key }}}}/{where.rpartition('.')[2]}"
    child_input = None if input is None else renderable(input, f"{where}.input")
    child_key = None if key is None else renderable(key, f"{where}.key")

    @durable
    async def child(ctx: Context, given: Given) -> Any:
        known = scope(given, ctx=ctx)
        chosen = None if child_key is None else as_text(child_key.render(known), f"{where}.key")
        value = known["input"] if known["output"] is None else known["output"]
        if child_input is not None:
            value = child_input.render(known)
        return await ctx.child(workflow, copied(value) if needs_input else None, key=chosen)

    return child
