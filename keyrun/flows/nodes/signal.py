"""The `signal` node: waits for a signal."""

from collections.abc import Callable, Coroutine
from typing import Any

from keyrun import Port
from keyrun.flows.nodes.failure_port import TIMEOUT, timed_out
from keyrun.flows.scope import Given
from keyrun.graphs import durable
from keyrun.runtime.errors import SignalTimeout
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.node import with_ports
from keyrun.runtime.waiting.receive import check_channel, check_timeout

FAILING = (TIMEOUT,)
"""The ports by which the node fails if no edge takes them."""
PORTS = ("received", *FAILING)


def signal(
    name: str, *, timeout: float | None = None
) -> Callable[[Context, Given], Coroutine[Any, Any, Port]]:
    """Return a node that waits for the next signal called `name`, at most `timeout` seconds.

    `rt.signal(run_id, name, payload)` sends the signal, before or after the run reaches the node.
    The node has the ports `received` and `timeout`. Its output has the `payload` of the signal and,
    under `output`, the output that the node received.

    An edge without a port is followed after a signal only. If no edge takes `timeout`, the node has
    failed."""
    check_channel(name)
    check_timeout(timeout)

    @durable
    async def signal(ctx: Context, given: Given) -> Port:
        output: dict[str, Any] = {"payload": None, "output": given.output}
        try:
            payload = await ctx.wait_signal(name, timeout)
        except SignalTimeout as error:
            return timed_out(output, ctx.branch.prefix.rstrip("/"), error, timeout)
        return Port("received", output | {"payload": payload})

    return with_ports(signal, PORTS)
