"""Nodes that are workflows: each turn of such a node is a child of the run."""

from collections.abc import Awaitable, Callable
from typing import Any

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.arguments import Arguments, rendering
from keyrun.runtime.graphs.node import durable
from keyrun.runtime.graphs.node_input import NodeInput, copied
from keyrun.runtime.internal_errors import GUARD


def subworkflow(
    node: str, workflow: Workflow[Any, Any], args: Arguments | None
) -> Callable[[Context, NodeInput], Awaitable[Any]]:
    """A node that runs `workflow`, with `args` as its input, or else with what triggered it.

    A function is a part of the run. A machine or another graph has a journal of its own, so it is a
    run of its own, under a key that no other node or run has.
    """
    render = rendering(args)

    @durable
    async def child(ctx: Context, given: NodeInput) -> Any:
        with GUARD:
            record = given.record
            input_ = record.run_input if record.output is None else record.output
            key = None if workflow.kind == "function" else f"{ctx.key}/{node}"
        input_ = copied(input_ if render is None else render(record))
        return await ctx.child(workflow, input_, key=key)

    child.__name__ = workflow.name
    return child
