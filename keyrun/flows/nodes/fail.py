"""The `fail` node: ends the run as failed, with a reason."""

from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from keyrun.flows.scope import Given, scope
from keyrun.flows.templates import as_text, renderable
from keyrun.graphs import durable
from keyrun.runtime.execution.context import Context


def fail(
    reason: str, *, where: str = "fail"
) -> Callable[[Context, Given], Coroutine[Any, Any, NoReturn]]:
    """Return a node that ends the run as failed, as `ctx.fail` does: the failure has the kind
    `verdict`, completed nodes are compensated, and the run is not a dead letter.

    - `reason`: the reason, with templates.
    - `where`: the name of the node in errors.
    """
    text = renderable(reason, f"{where}.reason")

    @durable
    async def fail(ctx: Context, given: Given) -> NoReturn:
        ctx.fail(as_text(text.render(scope(given, ctx=ctx)), f"{where}.reason"))

    return fail
