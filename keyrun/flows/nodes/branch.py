"""The `branch` node: leave by the port `then` or by the port `else`."""

from collections.abc import Callable, Coroutine
from typing import Any

from keyrun import Port
from keyrun.flows.scope import Given, holds
from keyrun.runtime.graphs.condition import Condition
from keyrun.runtime.graphs.node import RECEIVED, with_ports

PORTS = ("then", "else")


def branch(when: str) -> Callable[[Given], Coroutine[Any, Any, Port]]:
    """Return a node with the ports `then` and `else`. It leaves by `then` if the CEL expression
    `when` is true.

    The expression can use `output`, `input`, `outputs` and `error`. The output of the node is the
    output that it received."""
    condition = Condition(when)

    async def branch(given: Given) -> Port:
        taken = "then" if holds(condition, given, given.output) else "else"
        return Port(taken, RECEIVED)

    return with_ports(branch, PORTS)
