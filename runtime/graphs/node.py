"""Nodes: the functions of a graph, and how they are called with their input."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from enum import Enum, auto
from typing import Any, Literal, TypeVar

import attrs

from keyrun.runtime.definitions.step import StepFunction, as_step
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import PermanentError
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs.arguments import Arguments, rendering
from keyrun.runtime.graphs.edge import Edge
from keyrun.runtime.graphs.node_input import NodeInput, NodeInputRecord, copied
from keyrun.runtime.internal_errors import INTERNAL_CODE, check_internal, from_user
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.values import Failure, Priority

Join = Literal["all", "any"]
F = TypeVar("F", bound=Callable[..., Awaitable[Any]])

_DURABLE = "__keyrun_durable__"
_PORTS = "__keyrun_ports__"
_PASSES_ON = "__keyrun_passes_on__"


class Received(Enum):
    """Stands for the output that a node received."""

    OUTPUT = auto()


RECEIVED = Received.OUTPUT
"""A node returns this as its output, also in a `Port`, to pass on the output that it received. The
journal does not keep the same output twice: it has the output of the node before."""


@attrs.frozen
class Port:
    """Name the port by which a node leaves. A node returns this instead of its output."""

    name: str
    """The name of the port."""
    output: Any = None
    """The output of the node."""


@attrs.frozen
class FailurePort(Port):
    """A port that stands for a failure unless an edge takes it. An edge takes it only if it names
    the port. If no edge does, the node has failed with `failure`."""

    failure: Failure = attrs.field(kw_only=True)


def with_ports(function: F, ports: tuple[str, ...]) -> F:
    """Declare the ports of a node's function, for nodes that do not list ports themselves."""
    setattr(function, _PORTS, ports)
    return function


def ports_of(target: object) -> tuple[str, ...]:
    """Return the ports that a node's function declares."""
    ports: tuple[str, ...] = getattr(target, _PORTS, ())
    return ports


def passing_on(function: F) -> F:
    """Declare that a node without ports always returns `RECEIVED`."""
    setattr(function, _PASSES_ON, True)
    return function


def durable(function: F) -> F:
    """Make a node of workflow code: `async def f(ctx, given)`.

    The function receives a `Context` of its own and a `NodeInput`. It can call steps, timers,
    approvals and children. Like all workflow code, Keyrun may run it again."""
    if not _is_async(function):
        raise TypeError(f"a durable node requires an async function, got {function!r}")
    setattr(function, _DURABLE, True)
    return function


def _is_async(function: object) -> bool:
    return inspect.iscoroutinefunction(function)


def is_durable(target: object) -> bool:
    """Return whether a node's target is workflow code, not a step."""
    return bool(getattr(target, _DURABLE, False))


def subworkflow(
    node: str, workflow: Workflow[Any, Any], args: Arguments | None
) -> Callable[[Context, NodeInput], Awaitable[Any]]:
    """Return the target of a node that runs `workflow` as a child. The input of the child is
    `args`, or else the output that triggered the node.

    A function becomes a part of the run. A machine or another graph has a journal of its own, so it
    becomes a run under a key that no other node or run has."""
    render = rendering(args)

    @durable
    async def child(ctx: Context, given: NodeInput) -> Any:
        with INTERNAL_CODE:
            record = given.record
            input_ = record.run_input if record.output is None else record.output
            key = None if workflow.kind == "function" else f"{ctx.key}/{node}"
        input_ = copied(input_ if render is None else render(record))
        return await ctx.child(workflow, input_, key=key)

    child.__name__ = workflow.name
    return child


@attrs.frozen(kw_only=True)
class MapSpec:
    """The body of a map as it was declared, and how it is run."""

    nodes: "tuple[Node, ...]"
    edges: tuple[Edge, ...]
    """With those that lead to fallbacks."""
    apart: frozenset[str]
    """The nodes that are there only to undo others."""
    items: Any
    max_concurrency: int
    max_items: int
    fail_fast: bool


@attrs.frozen(kw_only=True)
class Node:
    """One node as it was declared."""

    id: str
    target: Any
    ports: tuple[str, ...] = ()
    join: Join = "all"
    args: Arguments | None = None
    fallback: str | None = None
    undone_by: str | None = None
    """The node whose function compensates this node."""
    options: Mapping[str, Any] = attrs.field(factory=dict)
    """The other options of its step, for example timeout and retry."""
    map: MapSpec | None = None
    """The body that the node runs for each item of the list that its function returns, if the node
    is a map."""
    passes_on: bool = attrs.field(init=False)
    """Whether its output is always the one that it received, if it has no ports."""

    @passes_on.default
    def _is_declared_to_pass_on(self) -> bool:
        return bool(getattr(self.target, _PASSES_ON, False))

    @property
    def priority(self) -> Priority:
        """Return the priority among the nodes that are ready."""
        priority: Priority | None = self.options.get("priority")
        return Priority.NORMAL if priority is None else priority

    def step(
        self,
        quota: tuple[str, Resources] | None = None,
        compensate: Callable[..., Any] | None = None,
    ) -> StepFunction[..., Any] | None:
        """Return the step of the node, which has the name of the node. None if the node is workflow
        code. `quota` has the resources that the step reserves from, and `compensate` is the
        function of the node that compensates this one."""
        if is_durable(self.target):
            return None
        base = as_step(self.target)
        declared = Any if self.ports else base.declared
        call = _async_call(self, base) if base.is_async else _sync_call(self, base)
        own: StepFunction[..., Any] = StepFunction(
            call, base.set, declared, origin=base.origin, quota=quota
        )
        own = own.options(name=self.id, **self.options)
        breaker = own.set.breaker
        if self.fallback is not None and breaker is not None:
            # A node with a fallback does not wait for its circuit.
            own = own.options(breaker=attrs.evolve(breaker, when_open="fail"))
        if compensate is not None:
            own = own.options(compensate=compensate)
        own.read = lambda value: read(self, value, None)[1]
        return own


def _async_call(node: Node, base: StepFunction[..., Any]) -> Callable[[NodeInputRecord], Any]:
    function, render = base.function, rendering(node.args)

    async def call(given: NodeInputRecord) -> Any:
        try:
            own = _own(given)
            try:
                if render is None:
                    value = await function(own)
                else:
                    value = await function(**copied(render(given)))
            except BaseException as error:
                from_user(error)
                raise
            return stored(node, value, given)
        except BaseException as error:
            check_internal(error)
            raise

    return _named_after(call, base)


def _sync_call(node: Node, base: StepFunction[..., Any]) -> Callable[[NodeInputRecord], Any]:
    function, render = base.function, rendering(node.args)

    def call(given: NodeInputRecord) -> Any:
        try:
            own = _own(given)
            try:
                value = function(own) if render is None else function(**copied(render(given)))
            except BaseException as error:
                from_user(error)
                raise
            return stored(node, value, given)
        except BaseException as error:
            check_internal(error)
            raise

    return _named_after(call, base)


def _own(given: Any) -> Any:
    """Return the input of one call. A compensation gets its `Compensation` unchanged."""
    return NodeInput.of(given) if type(given) is NodeInputRecord else given


def _named_after(call: Callable[..., Any], base: StepFunction[..., Any]) -> Callable[..., Any]:
    call.__name__ = base.__name__
    call.__doc__ = base.__doc__
    return call


def stored(node: Node, value: Any, given: NodeInputRecord) -> Any:
    """Return the form of a value in the journal.

    Without ports it is the output, and with ports `[port, output]`. A node that passes on an output
    which the journal has already is stored as None, or as `[port]`.
    """
    port, output = None, value
    if isinstance(value, Port):
        port, output = value.name, value.output
        if port not in node.ports:
            known = ", ".join(map(repr, node.ports)) or "none"
            raise from_user(
                PermanentError(
                    f"node {node.id!r} returned the port {port!r}, but declares {known}; add the "
                    "port to ports=(...)"
                )
            )
    if output is RECEIVED:
        if _is_stored_before(node, given):
            return [port] if node.ports else None
        output = given.output
    return [port, output] if node.ports else output


def _is_stored_before(node: Node, given: NodeInputRecord) -> bool:
    """Return whether the journal has the output that a node received. A compensation reads only the
    outcome of the node itself."""
    is_compensated = node.undone_by is not None or node.options.get("compensate") is not None
    return type(given) is NodeInputRecord and given.is_stored and not is_compensated


def read(node: Node, value: Any, received: Any) -> tuple[str | None, Any]:
    """Return the port and the output of a value in the journal, the inverse of `stored`. `received`
    is the output that the node received."""
    if node.ports:
        port, *output = value
        return port, output[0] if output else received
    return None, received if value is None and node.passes_on else value
