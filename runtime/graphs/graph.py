"""Graphs as users write them: nodes, edges, and options of the whole graph."""

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, get_args

from keyrun.runtime.definitions import fingerprint
from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.definitions.workflow import CompensateOn, WhenFull, WhileWaiting, Workflow
from keyrun.runtime.errors import InvalidGraph
from keyrun.runtime.execution.context import Context
from keyrun.runtime.graphs import stored_graph
from keyrun.runtime.graphs.body import GraphBody
from keyrun.runtime.graphs.node import Node, is_durable
from keyrun.runtime.graphs.output_limit import OUTPUT, RUN
from keyrun.runtime.graphs.plan import GraphPlan, draw
from keyrun.runtime.graphs.scheduler import GraphScheduler
from keyrun.runtime.graphs.validation import GraphFault, excesses, faults
from keyrun.runtime.limits import Limits
from keyrun.runtime.policies.checkpoint import Checkpoint
from keyrun.runtime.policies.resources import Resources
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.values import Failure

Order = Literal["eager", "waves"]


class Graph(Workflow[Any, Any], GraphBody):
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
        schedule: Order = "eager",
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
        if schedule not in get_args(Order):
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
        GraphBody.__init__(self)
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

    def _open(self) -> None:
        """Raise if nothing can be added any more."""
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
        quota = None if self.resources is None else (self.name, self.resources)
        return draw(self.nodes, self.all_edges(), apart=self.apart(), quota=quota)

    def registered(self, shared: Resources | None) -> None:
        """Record that a runtime uses the graph. From here on it does not change."""
        self._plan = self._check(shared)

    @property
    def plan(self) -> GraphPlan:
        """Return the plan of the graph. Raise `InvalidGraph` if the graph has a problem."""
        return self._check()

    def _read_fingerprint(self) -> bytes | None:
        """Return the fingerprint of this definition: of the document of a flow, or else of its
        nodes, edges and durable code."""
        if self.document is not None:
            return fingerprint.of_definition(self.document)
        nodes = [_definition(node) for node in self.nodes]
        return fingerprint.of_definition([stored_graph.fields(self), self.fail_fast, nodes])

    def to_undo(self, idents: list[str], failure: Failure | None) -> list[str]:
        """Return the nodes to compensate: all of these, or those that led to the failed node."""
        failed = "" if failure is None else failure.step or ""
        plan = self.plan
        if self.compensation == "all" or plan.planned(failed) is None:
            return idents
        return [ident for ident in idents if plan.leads_to(ident, failed)]

    def undone_by(self, ident: str) -> StepFunction[..., Any] | None:
        """Return the step of a node if it has a compensation."""
        planned = self.plan.planned(ident)
        step = None if planned is None or "/" in ident else planned.step
        return step if step is not None and step.set.compensate is not None else None

    async def _execute(self, context: Context, input_: Any) -> Any:
        plan = self._plan = self._check()
        execution = GraphScheduler(self, context, input_)
        await execution.run()
        return plan.result(execution.outputs)

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
    quota = shared if graph.resources is None else graph.resources
    return faults(graph.nodes, graph.all_edges(), limits, quota, graph.apart(), back=back)


def _definition(node: Node) -> list[Any]:
    """Return what the fingerprint has of a node beside the shape of the graph."""
    spec = node.map
    inside = [] if spec is None else [spec.items, spec.max_items, *map(_definition, spec.nodes)]
    return [node.args, node.undone_by, *_code(node.target), *inside]


def _code(target: Any) -> tuple[str, str | None]:
    """Return the name of a target, and the fingerprint of its code if it is workflow code."""
    code = fingerprint.of_function(target) if is_durable(target) else None
    return getattr(target, "__name__", ""), None if code is None else code.hex()
