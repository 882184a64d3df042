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

NAMES = ("input", "output", "outputs", "port", "error", "iteration", "run", "env")
"""What a template can be about."""
UNDOING = ("why", "failed", "undoes", "left")
"""And in a node that undoes another."""


class Given(Protocol):
    """What a node is given by its graph: a `NodeInput`."""

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
    def iteration(self) -> int: ...


def names(given: Given | Compensation) -> dict[str, Any]:
    """What a node can know: the input of the run, what triggered it, and what was done before; or
    if it undoes another, what that gave, and why it is undone."""
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
    # Templates change nothing of it, and code gets it as JSON.
    given = given.record if isinstance(given, NodeInput) else given
    return {
        "input": given.run_input,
        "output": given.output,
        "outputs": dict(given.outputs),
        "port": given.port,
        "error": given.error,
        "iteration": given.iteration,
    }


def scope(
    given: Given | Compensation, env: Iterable[str] = (), *, ctx: Context | None = None
) -> dict[str, Any]:
    """The names of templates: those above, `run` with its id and key, and `env` with the variables
    of the environment that the node has asked for by name."""
    current = running.get() if ctx is None else ctx
    run = {} if current is None else {"id": current.run_id, "key": current.key}
    return {**names(given), "run": run, "env": environment(env)}


def holds(condition: Condition, given: Given, output: Any) -> bool:
    """Return whether a condition is true for the input of a node and this output."""
    given = given.record if isinstance(given, NodeInput) else given
    try:
        return condition.holds(output, given.run_input, given.outputs, given.error)
    except ConditionError as error:
        raise NodeFailed(str(error)) from error


def environment(wanted: Iterable[str]) -> dict[str, str]:
    """Those variables, of which none may be missing."""
    missing = [name for name in wanted if name not in os.environ]
    if missing:
        raise NodeFailed(f"the environment has no {', '.join(missing)}, which this node needs")
    return {name: os.environ[name] for name in wanted}
