"""The `approval` node: waits for a person."""

from collections.abc import Callable, Coroutine
from typing import Any

from keyrun.flows.scope import Given
from keyrun.runtime.context import Context
from keyrun.runtime.errors import ApprovalRejected, SignalTimeout
from keyrun.runtime.graphs import Port, durable
from keyrun.runtime.journal.scope import watched
from keyrun.runtime.waiting.receiving import Approval, wait_approval

PORTS = ("approved", "rejected", "timeout")


def approval(
    *, timeout: float | None = None
) -> Callable[[Context, Given], Coroutine[Any, Any, Port]]:
    """A node with the ports `approved`, `rejected` and `timeout`, that waits until somebody calls
    `runtime.approve(run_id, gate, by=...)` or `reject`, for at most `timeout` seconds. The gate is
    called like the node, in its second turn `node#2`. Its output has `by` and `comment`, and under
    `output` what came in."""

    @durable
    async def approval(ctx: Context, given: Given) -> Port:
        told: dict[str, Any] = {"by": None, "comment": "", "output": given.output}
        try:
            answer = await _decision(ctx, timeout)
        except SignalTimeout:
            return Port("timeout", told)
        except ApprovalRejected as error:
            return Port("rejected", {**told, "by": error.by, "comment": error.comment})
        return Port("approved", {**told, "by": answer.by, "comment": answer.comment})

    return approval


async def _decision(ctx: Context, timeout: float | None) -> Approval:
    # What a node asks for is told apart by the turn of the node, as in "review#2/".
    turn = ctx.branch.prefix.rstrip("/")
    return await watched(ctx.branch, wait_approval(ctx.branch, "gate", timeout, named=turn))
