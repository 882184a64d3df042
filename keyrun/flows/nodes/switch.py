"""The `switch` node: leave by the port of the first condition that is true."""

from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from keyrun import Port
from keyrun.flows.scope import Given, holds
from keyrun.runtime.graphs.condition import Condition, InvalidExpression
from keyrun.runtime.graphs.node import RECEIVED, with_ports

DEFAULT = "default"
"""The port by which it leaves if no condition is true."""


def switch(cases: Mapping[str, str]) -> Callable[[Given], Coroutine[Any, Any, Port]]:
    """Return a node that leaves by one of several ports. `cases` has a CEL expression for each
    port. The node evaluates them in order and leaves by the first port whose expression is true, or
    by the port `default`.

    The expressions can use `output`, `input`, `outputs` and `error`. The output of the node is the
    output that it received."""
    if not cases:
        raise ValueError("cases must have at least one port with its condition")
    if DEFAULT in cases:
        raise ValueError(
            f"the port {DEFAULT!r} is taken if no condition is true; give this case another port"
        )
    conditions = [(port, _condition(port, when)) for port, when in cases.items()]

    async def switch(given: Given) -> Port:
        true = (port for port, condition in conditions if holds(condition, given, given.output))
        return Port(next(true, DEFAULT), RECEIVED)

    return with_ports(switch, (*cases, DEFAULT))


def _condition(port: str, when: str) -> Condition:
    try:
        return Condition(when)
    except InvalidExpression as error:
        raise ValueError(f"the condition of the port {port!r}, {when!r}: {error}") from error
