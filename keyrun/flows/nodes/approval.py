"""The `approval` node: waits for a person."""

from collections.abc import Callable, Coroutine
from typing import Any

from keyrun import Port
from keyrun.flows.nodes.failure_port import TIMEOUT, failed_by, timed_out
from keyrun.flows.scope import Given
from keyrun.graphs import durable
from keyrun.runtime.errors import ApprovalRejected, SignalTimeout
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.node import with_ports
from keyrun.runtime.run.scope import watched
from keyrun.runtime.waiting.receive import wait_approval

FAILING = ("rejected", TIMEOUT)
"""The ports by which the node fails if no edge takes them."""
PORTS = ("approved", *FAILING)


def approval(
    *, timeout: float | None = None
) -> Callable[[Context, Given], Coroutine[Any, Any, Port]]:
    """Return a node that waits for the decision of a person, at most `timeout` seconds.

    `rt.approve(run_id, gate, by=...)` and `rt.reject` decide. The gate has the name of the node, in
    its second turn `node#2`. The node has the ports `approved`, `rejected` and `timeout`. Its
    output has `by`, `comment` and, under `output`, the output that the node received.

    An edge without a port is followed after an approval only. If no edge takes `rejected` or
    `timeout`, the node has failed."""

    @durable
    async def approval(ctx: Context, given: Given) -> Port:
        # The waits of a node are told apart by its turn, as in "review#2/".
        gate = ctx.branch.prefix.rstrip("/")
        waiting = wait_approval(ctx.branch, "gate", timeout, named=gate)
        output: dict[str, Any] = {"by": None, "comment": "", "output": given.output}
        try:
            answer = await watched(ctx.branch, waiting)
        except SignalTimeout as error:
            return timed_out(output, gate, error, timeout)
        except ApprovalRejected as error:
            output |= {"by": error.by, "comment": error.comment}
            return failed_by("rejected", output, gate, error)
        return Port("approved", output | {"by": answer.by, "comment": answer.comment})

    return with_ports(approval, PORTS)
