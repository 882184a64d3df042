"""The scope of a node: the names that its templates and its code can use."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from keyrun.errors import ConditionError
from keyrun.flows.errors import NodeFailed
from keyrun.runtime.execution.compensation import Compensation
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.condition import Condition
from keyrun.runtime.graphs.node_input import NodeInput
from keyrun.runtime.run.running_step import running

NAMES = ("input", "output", "outputs", "port", "error", "failures", "iteration", "run", "env")
"""The names that a template can use."""
ITEM = ("item", "index")
"""The names that are added in the body of a map."""
UNDOING = ("why", "failed", "undoes", "left")
"""The names that are added in a node that compensates another."""


class Given(Protocol):
    """The input of a node: a `NodeInput`."""

    @property
    def run_input(self) -> Any: ...
    @property
    def output(self) -> Any: ...
    @property
    def outputs(self) -> Mapping[str, Any]: ...
    @property
    def port(self) -> str | None: ...
    @property
    def error(self) -> Any: ...
    @property
    def failures(self) -> Mapping[str, Any]: ...
    @property
    def iteration(self) -> int: ...
    @property
    def item(self) -> Any: ...


def names(given: Given | Compensation) -> dict[str, Any]:
    """Return the names and their values. A node that compensates another gets the output of that
    node, and the reason of the compensation."""
    if isinstance(given, Compensation):
        return {
            "input": given.run_input,
            "output": given.output,
            "error": given.error,
            "why": given.why,
            "failed": given.failed,
            "undoes": given.step,
            "left": list(given.left),
        }
    # No copies are needed: templates change nothing, and code gets JSON.
    given = given.record if isinstance(given, NodeInput) else given
    item = {} if given.item is None else {"item": given.item.value, "index": given.item.at}
    return {
        **item,
        "input": given.run_input,
        "output": given.output,
        "outputs": dict(given.outputs),
        "port": given.port,
        "error": given.error,
        "failures": dict(given.failures),
        "iteration": given.iteration,
    }


def scope(
    given: Given | Compensation, env: Iterable[str] = (), *, ctx: Context | None = None
) -> dict[str, Any]:
    """Return the names of templates: those above, `run` with its id and key, and `env` with the
    environment variables that the node lists."""
    current = running.get() if ctx is None else ctx
    run = {} if current is None else {"id": current.run_id, "key": current.key}
    return {**names(given), "run": run, "env": environment(env)}


def holds(condition: Condition, given: Given, output: Any) -> bool:
    """Return whether a condition is true for the input of a node and this output."""
    given = given.record if isinstance(given, NodeInput) else given
    try:
        return condition.holds(
            *(output, given.run_input, given.outputs, given.error, given.failures), item=given.item
        )
    except ConditionError as error:
        raise NodeFailed(str(error)) from error


def environment(wanted: Iterable[str]) -> dict[str, str]:
    """Return environment variables. Raise `NodeFailed` if one is missing."""
    missing = [name for name in wanted if name not in os.environ]
    if missing:
        raise NodeFailed(
            f"the environment variable {', '.join(missing)} is not set; set it before you start "
            "the process"
        )
    return {name: os.environ[name] for name in wanted}
