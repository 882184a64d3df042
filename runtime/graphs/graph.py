"""Graphs as users write them: nodes, edges, and options of the whole graph."""

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
from keyrun.runtime.graphs.arguments import Arguments
from keyrun.runtime.graphs.edge import Edge, On
from keyrun.runtime.graphs.node import Join, Node, is_durable, ports_of, subworkflow
from keyrun.runtime.graphs.output_limit import OUTPUT, RUN
from keyrun.runtime.graphs.plan import GraphPlan, draw, node_of
from keyrun.runtime.graphs.scheduler import GraphScheduler
from keyrun.runtime.graphs.validation import GraphFault, excesses, faults
from keyrun.runtime.limits import Limits
from keyrun.runtime.policies.checkpoint import Checkpoint
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.policies.step_policies import Throttles
from keyrun.runtime.values import UNSET, Failure, Unset

Schedule = Literal["eager", "waves"]


class Graph(Workflow[Any, Any]):
    """Define a workflow of nodes and edges. Pass it to `open_runtime(workflows=[...])`, which
    checks the whole graph and raises `InvalidGraph` with all problems.

    - `name`: the stored name of the workflow.
    - `fail_fast`: The first failure that no edge handles cancels the running nodes. By default they
      finish first.
    - `max_concurrency`: the number of nodes of one run that may be under way at once. With 1, nodes
      run in the order of their declaration.
    - `schedule`: With `"waves"`, a node starts only when all nodes of the levels before it have
      ended.
    - `max_output`, `max_run_output`: the number of bytes that the output of one node, and the
      outputs of one run together, may have.
    - `resources`: the `Resources` that the nodes share, over all runs.
    - `compensation`: With `"branch"`, Keyrun undoes only the nodes that led to the node that
      failed.
    - The other parameters are those of `@workflow`.

    The result of a run is the output of the last node. If several nodes have no node after them,
    the result is a mapping of those that completed.
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
        """The document of the flow that the graph was made from, if there is one."""

    @classmethod
    def from_file(
        cls,
        path: str | Path,
        *,
        functions: Mapping[str, Callable[..., Any]] | Iterable[Callable[..., Any]] = (),
        workflows: Iterable[Workflow[Any, Any]] = (),
    ) -> "Graph":
        """Return the graph of a flow file: YAML, or JSON if the name ends in `.json`.

        `functions` are the functions that `call` nodes may call, as a list or by name. `workflows`
        are the workflows that `workflow` nodes may run. Raises `InvalidFlow` with all problems of
        the file and their lines. Requires the extra `flows`."""
        # Flows are a higher layer than graphs, and only programs with flow files need them.
        found = import_module("keyrun.flows.files").load(
            path, functions=functions, workflows=workflows
        )
        assert isinstance(found, cls)
        return found

    def node(
        self,
        id: str,  # noqa: A002
        target: Any,
        /,
        *,
        ports: Sequence[str] = (),
        join: Join = "all",
        args: Arguments | None = None,
        timeout: float | Unset | None = UNSET,
        retry: Retry | Unset = UNSET,
        shield: bool | Unset = UNSET,
        at_most_once: bool | Unset = UNSET,
        abandon: bool | Unset = UNSET,
        fallback: str | None = None,
        compensate: Callable[..., Any] | str | Unset | None = UNSET,
        **policies: Unpack[Throttles],
    ) -> None:
        """Add a node.

        - `id`: the name of the node.
        - `target`: a function or a step that takes one `NodeInput`, or the arguments in `args`, and
          returns the output of the node. Or a workflow: its input is `args`, or the output that
          triggered the node.
        - `ports`: the names of the ports. A node returns `Port(name, output)` to leave by a port.
        - `join`: With `"any"`, the node starts when the first edge leads to it. By default it waits
          for all edges.
        - `args`: the arguments of the function, by name.
        - `fallback`: the node that runs instead while the circuit breaker of this node is open.
        - `compensate`: a function, or the id of a node, that undoes this node if the run fails or
          is cancelled.
        - The other options are those of `@step`, and come before those of the step.
        """
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
        """Add an edge from one node to another.

        - `on`: follow the edge when `source` has completed, failed (`"fail"`), or ended in either
          way (`"all"`).
        - `port`: follow the edge only if `source` leaves by this port.
        - `to_port`: the port that `target` sees in `NodeInput.port`.
        - `when`: follow the edge only if this CEL condition is true.
        - `back`: lead back to an earlier node, at most `max_iterations` times.
        """
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
            raise RuntimeError(
                f"the graph {self.name!r} is in use and cannot change; create a new graph"
            )

    def validate(self) -> None:
        """Raise `InvalidGraph` with all problems of the graph. `open_runtime` checks this, too."""
        self._check()

    def _check(self, shared: Resources | None = None) -> GraphPlan:
        if self._plan is None:
            found = faults_of(self, shared)
        elif shared is not None and self.resources is None:
            found = list(excesses(self.nodes, shared))
        else:
            found = []
        if found:
            raise InvalidGraph(self.name, list(map(str, found)))
        if self._plan is not None:
            return self._plan
        edges = [*self.edges, *_fallbacks(self.nodes)]
        quota = None if self.resources is None else (self.name, self.resources)
        return draw(self.nodes, edges, apart=_apart(self.nodes, edges), quota=quota)

    def registered(self, shared: Resources | None) -> None:
        """Record that a runtime uses the graph. From here on it does not change."""
        self._plan = self._check(shared)

    @property
    def plan(self) -> GraphPlan:
        """Return the plan of the graph. Raise `InvalidGraph` if the graph has a problem."""
        return self._check()

    @cached_property
    def fingerprint(self) -> bytes | None:
        """The fingerprint of this definition: of the document of a flow, or else of nodes, edges
        and the code of durable nodes."""
        if self.document is not None:
            return fingerprint.of_definition(self.document)
        nodes = [[node.args, node.undone_by, *_code(node.target)] for node in self.nodes]
        return fingerprint.of_definition([stored_graph.fields(self), self.fail_fast, nodes])

    def to_undo(self, idents: list[str], failure: Failure | None) -> list[str]:
        """Return the nodes to compensate: all of `idents`, or, with `compensation="branch"`, the
        nodes that led to the node that failed."""
        failed = "" if failure is None else node_of(failure.step or "")
        if self.compensation == "all" or failed not in self.plan.stations:
            return idents
        before = self.plan.before(failed)
        return [ident for ident in idents if node_of(ident) in before]

    def undone_by(self, ident: str) -> StepFunction[..., Any] | None:
        """Return the step of a node if the step has a compensation."""
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


def faults_of(
    graph: Graph, shared: Resources | None = None, *, back: str = "back=True"
) -> list[GraphFault]:
    """Return all faults of a graph. `shared` are the resources of the runtime. `back` is how the
    author of the graph marks an edge as a back edge."""
    limits = {
        "max_concurrency": graph.max_concurrency,
        "max_output": graph.max_output,
        "max_run_output": graph.max_run_output,
    }
    edges = [*graph.edges, *_fallbacks(graph.nodes)]
    quota = shared if graph.resources is None else graph.resources
    apart = _apart(graph.nodes, edges)
    return faults(graph.nodes, edges, limits, quota, apart, back=back)


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
