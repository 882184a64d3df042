"""Graphs as users write them: nodes, edges, and what holds for all of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Unpack, get_args

from keyrun.runtime.definitions import fingerprint
from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.definitions.workflow import CompensateOn, WhenFull, WhileWaiting, Workflow
from keyrun.runtime.errors import InvalidGraph
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs import stored_graph
from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import Join, Node, is_durable, ports_of
from keyrun.runtime.graphs.output_limit import OUTPUT, RUN
from keyrun.runtime.graphs.plan import GraphPlan, draw, node_of
from keyrun.runtime.graphs.scheduler import GraphScheduler
from keyrun.runtime.graphs.subworkflow import subworkflow
from keyrun.runtime.graphs.validation import excesses, faults
from keyrun.runtime.limits import Limits
from keyrun.runtime.policies.checkpoint import Checkpoint
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.policies.step_policies import Throttles
from keyrun.runtime.values import UNSET, Failure, Unset

Schedule = Literal["eager", "waves"]


class Graph(Workflow[Any, Any]):
    """A workflow of nodes and edges. It is checked when it is registered, all at once.

    `fail_fast`: the first failure that no edge takes care of cancels what else is running; without
    it the others finish first. `max_concurrency`: how many nodes of one run are under way at the
    same time; with 1 they run in the order of their declaration. `schedule="waves"` begins a node
    only when all nodes of the levels before it have ended. `max_output` is how many bytes the
    output of a node may have, `max_run_output` those of a run together. `resources` is what its
    nodes share, over all runs. `compensation="branch"` undoes only what led to the node that
    failed, and `compensate_on="attempted"` also what was only begun. `while_waiting="yield"` lets
    the next run of the key go ahead while one waits.

    A run gives the output of the one node that nothing comes after when it completes; if there are
    several such nodes, a mapping of those that completed.
    """

    def __init__(
        self,
        name: str,
        *,
        fail_fast: bool = False,
        max_concurrency: int | None = None,
        schedule: Schedule = "eager",
        max_output: int = OUTPUT,
        max_run_output: int = RUN,
        resources: Resources | None = None,
        compensation: Literal["all", "branch"] = "all",
        compensate_on: CompensateOn = "completed",
        version: int = 1,
        limits: Limits = Limits(),  # noqa: B008 (frozen)
        retry: Retry | None = None,
        while_waiting: WhileWaiting = "hold",
        instances: int | None = None,
        when_full: WhenFull = "queue",
        checkpoint: Checkpoint | None = None,
    ) -> None:
        if compensation not in ("all", "branch"):
            raise ValueError(f"compensation must be 'all' or 'branch', got {compensation!r}")
        if resources is not None and not isinstance(resources, Resources):
            raise TypeError(f"resources must be a Resources, got {resources!r}")
        if schedule not in get_args(Schedule):
            raise ValueError(f"schedule must be 'eager' or 'waves', got {schedule!r}")

        async def execute(context: Context, input_: Any) -> Any:
            with context.branch.run.guarded():
                return await self._execute(context, input_)

        super().__init__(
            execute,
            name=name,
            version=version,
            limits=limits,
            retry=retry,
            input_type=Any,
            result_type=Any,
            kind="graph",
            compensate_on=compensate_on,
            while_waiting=while_waiting,
            instances=instances,
            when_full=when_full,
            checkpoint=checkpoint,
        )
        self.fail_fast = fail_fast
        self.max_concurrency = max_concurrency
        self.schedule = schedule
        self.max_output = max_output
        self.max_run_output = max_run_output
        self.resources = resources
        self.compensation = compensation
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self._plan: GraphPlan | None = None
        self.document: Mapping[str, Any] | None = None
        """What it was made from, if that was a flow."""

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = (),
        workflows: Iterable[Workflow[Any, Any]] = (),
    ) -> "Graph":
        """The graph in a file: YAML, or JSON if its name ends in .json. `functions` are those that
        its `call` nodes may call, with their names or under others; `workflows` those that its
        `workflow` nodes may run. Raises `keyrun.flows.InvalidFlow` with all that is wrong with it,
        each with its line. Needs `pip install "keyrun[flows]"`."""
        # Flows stand above graphs: only who has written one needs them.
        found = import_module("keyrun.flows.files").load(
            path, functions=functions, workflows=workflows
        )
        assert isinstance(found, cls)
        return found

    def node(
        self,
        id: str,  # noqa: A002 (what it is)
        target: Any,
        /,
        *,
        ports: Sequence[str] = (),
        join: Join = "all",
        args: Mapping[str, Any] | None = None,
        timeout: float | Unset | None = UNSET,
        retry: Retry | Unset = UNSET,
        shield: bool | Unset = UNSET,
        at_most_once: bool | Unset = UNSET,
        abandon: bool | Unset = UNSET,
        fallback: str | None = None,
        compensate: Callable[..., Any] | str | Unset | None = UNSET,
        **policies: Unpack[Throttles],
    ) -> None:
        """Add a node. `target` is a function, or a step, that takes one `NodeInput`, or the
        arguments in `args`, and returns its output, or `Port(name, output)` for one of its
        `ports`; or a workflow, which gets `args`, or what triggered the node, as its input. With
        `join="any"` the node starts with the first edge that fires. `fallback` is the node to go
        to while the circuit breaker of this one is open; `compensate` a function, or a node, that
        undoes this one when the run fails or is cancelled. What else holds for its step overrides
        what `@step(...)` says."""
        given: dict[str, Any] = {
            "timeout": timeout,
            "retry": retry,
            "shield": shield,
            "at_most_once": at_most_once,
            "abandon": abandon,
            "compensate": UNSET if isinstance(compensate, str) else compensate,
            **policies,
        }
        self._open()
        if isinstance(ports, str):
            raise TypeError(f"ports must be a list of names, got {ports!r}")
        if isinstance(target, Workflow):
            target, args = subworkflow(id, target, args), None
        self.nodes.append(
            Node(
                id=id,
                target=target,
                ports=tuple(ports) or ports_of(target),
                join=join,
                args=args,
                fallback=fallback,
                undone_by=compensate if isinstance(compensate, str) else None,
                options={name: value for name, value in given.items() if value is not UNSET},
            )
        )

    def edge(
        self,
        source: str,
        target: str,
        /,
        *,
        on: Literal["complete", "fail", "all"] = "complete",
        port: str | None = None,
        to_port: str | None = None,
        when: str | None = None,
        back: bool = False,
        max_iterations: int | None = None,
    ) -> None:
        """Add an edge: `target` comes after `source` has completed, or failed, or either; left by
        this `port`; if the condition `when`, in CEL, is true. `to_port` is what the target sees as
        its port. `back=True` leads back to an earlier node, at most `max_iterations` turns."""
        if on not in ("complete", "fail", "all"):
            raise ValueError(f"on must be 'complete', 'fail' or 'all', got {on!r}")
        self._open()
        self.edges.append(
            Edge(
                source=source,
                target=target,
                on=On(on),
                port=port,
                to_port=to_port,
                when=when,
                back=back,
                max_iterations=max_iterations,
            )
        )

    def _open(self) -> None:
        if self._plan is not None:
            raise RuntimeError(f"the graph {self.name!r} is in use: make another one to change it")

    def validate(self) -> None:
        """Raise `InvalidGraph` with all that is wrong. Registering the graph does that too."""
        self._check()

    def _check(self, shared: Resources | None = None) -> GraphPlan:
        given = shared if self.resources is None else self.resources
        if self._plan is None:
            limits = {
                "max_concurrency": self.max_concurrency,
                "max_output": self.max_output,
                "max_run_output": self.max_run_output,
            }
            edges = [*self.edges, *_fallbacks(self.nodes)]
            apart = _apart(self.nodes, edges)
            found = faults(self.nodes, edges, limits, given, apart)
            if found:
                raise InvalidGraph(self.name, found)
            quota = None if self.resources is None else (self.name, self.resources)
            return draw(self.nodes, edges, apart=apart, quota=quota)
        if shared is not None and (found := list(excesses(self.nodes, given))):
            raise InvalidGraph(self.name, found)
        return self._plan

    def registered(self, shared: Resources | None) -> None:
        """It is given to a runtime: from here on it does not change."""
        self._plan = self._check(shared)

    @property
    def plan(self) -> GraphPlan:
        """What is known of it before any run begins."""
        return self._check()

    @cached_property
    def fingerprint(self) -> bytes | None:
        """Tells this definition from others: the document of a flow, or else nodes, edges and the
        code of durable nodes."""
        if self.document is not None:
            return fingerprint.of_definition(self.document)
        nodes = [[node.args, node.undone_by, *_code(node.target)] for node in self.nodes]
        return fingerprint.of_definition([stored_graph.fields(self), self.fail_fast, nodes])

    def to_undo(self, idents: list[str], failure: Failure | None) -> list[str]:
        """All nodes that have a compensation, or those that led to the one that failed."""
        failed = "" if failure is None else node_of(failure.step or "")
        if self.compensation == "all" or failed not in self.plan.stations:
            return idents
        before = self.plan.before(failed)
        return [ident for ident in idents if node_of(ident) in before]

    def undone_by(self, ident: str) -> StepFunction[..., Any] | None:
        """The step of a node, which says how it is undone."""
        station = self.plan.stations.get(node_of(ident))
        step = None if station is None or "/" in ident else station.step
        return step if step is not None and step.set.compensate is not None else None

    async def _execute(self, context: Context, input_: Any) -> Any:
        plan = self._plan = self._check()
        execution = GraphScheduler(self, context, input_)
        await execution.run()
        outputs = execution.outputs
        if len(plan.sinks) == 1:
            return outputs.get(plan.sinks[0])
        return {name: outputs[name] for name in plan.sinks if name in outputs}

    def __repr__(self) -> str:
        return f"<graph {self.name} v{self.version}>"


def _code(target: Any) -> tuple[str, str | None]:
    """The name of what a node does, and the fingerprint of its code if it is workflow code."""
    code = fingerprint.of_function(target) if is_durable(target) else None
    return getattr(target, "__name__", ""), None if code is None else code.hex()


def _fallbacks(nodes: Iterable[Node]) -> Iterator[Edge]:
    """The edges that lead to fallbacks."""
    for node in nodes:
        if node.fallback is not None:
            yield Edge(source=node.id, target=node.fallback, on=On.OPEN)


def _apart(nodes: Iterable[Node], edges: Iterable[Edge]) -> frozenset[str]:
    """Nodes that are there only to undo others."""
    undo = {node.undone_by for node in nodes if node.undone_by is not None}
    return frozenset(undo.difference(*((edge.source, edge.target) for edge in edges)))
