"""The `branch` node: leaves by `then` or by `else`."""

from collections.abc import Callable, Coroutine
from typing import Any

from keyrun import Port
from keyrun.flows.scope import Given, holds
from keyrun.runtime.graphs.condition import Condition

PORTS = ("then", "else")


def branch(when: str) -> Callable[[Given], Coroutine[Any, Any, Port]]:
    """A node with the ports `then` and `else`: it leaves by `then` if the expression `when`, in
    CEL, is true of `output`, `input`, `outputs` and `error`. What came in goes out."""
    condition = Condition(when)

    async def branch(given: Given) -> Port:
        taken = "then" if holds(condition, given, given.output) else "else"
        return Port(taken, given.output)

    return branch
