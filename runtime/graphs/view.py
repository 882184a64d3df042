"""The view of a graph's run: where it is, node by node and edge by edge."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import attrs

from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.frontier import Frontier
from keyrun.runtime.graphs.tracing import UNKNOWN, Tracing
from keyrun.runtime.journal.journal import Journal
from keyrun.runtime.values import Failure, State


class NodeState(StrEnum):
    """How a node stands. Waiting: for its next attempt, for time to pass, for a signal or a turn;
    pending: not reached so far; cancelled: never to be reached, since the run has ended."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    PENDING = "pending"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELLED = "cancelled"


@attrs.frozen(kw_only=True)
class NodeView:
    """One node. `turns` counts how often it was reached; times are of the latest turn, `mean` is
    the mean time of those that are over, in seconds. `queue` is how many calls of all runs wait
    for its policies, which only the process that runs them knows."""

    id: str
    state: NodeState
    turns: int
    attempt: int
    began_at: float | None
    ended_at: float | None
    mean: float | None
    failure: Failure | None
    queue: int | None


@attrs.frozen(kw_only=True)
class EdgeView:
    """One edge, and whether it was taken."""

    source: str
    target: str
    on: str
    port: str | None
    when: str | None
    back: bool
    taken: bool


@attrs.frozen(kw_only=True)
class ExecutionGraph:
    """A run of a graph."""

    run_id: str
    workflow: str
    version: int
    state: State
    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]

    def counts(self) -> dict[NodeState, int]:
        """How many nodes are in which state."""
        return count_states(node.state for node in self.nodes)

    @property
    def percent(self) -> float:
        """How much of what can be reached is over."""
        return percent_over(self.counts(), self.state)


def count_states(states: Iterable[NodeState]) -> dict[NodeState, int]:
    """The number of nodes in each state."""
    counts = Counter(states)
    return {state: counts[state] for state in NodeState}


def percent_over(counts: Mapping[NodeState, int], state: State) -> float:
    """The share of nodes that are over, among those that can be reached."""
    over = counts[NodeState.DONE] + counts[NodeState.FAILED]
    reachable = sum(counts.values()) - counts[NodeState.SKIPPED]
    if state is State.SUCCEEDED or not reachable:
        return 100.0
    return 100 * over / reachable


def node_states(
    frontier: Frontier, running: Collection[str], *, ended: bool
) -> dict[str, NodeState]:
    """The state of each node; `running` are the names of the steps that run."""
    under_way = {ident.partition("/")[0] for ident in running}
    states = {}
    for name in frontier.plan.stations:
        activation, end = frontier.active.get(name), frontier.ends.get(name)
        if activation is not None and not ended:
            runs = activation.ident in under_way
            state = NodeState.RUNNING if runs else NodeState.WAITING
        elif ended and (end is None or frontier.under_way(name)):
            state = NodeState.CANCELLED
        elif end is None or frontier.under_way(name):
            state = NodeState.PENDING
        elif end.on is None:
            state = NodeState.SKIPPED
        else:
            state = NodeState.DONE if end.on is On.COMPLETE else NodeState.FAILED
        states[name] = state
    return states


def _failure(frontier: Frontier, name: str) -> Failure | None:
    """How a node failed that is workflow code, if that is known."""
    end = frontier.ends.get(name)
    known = end is not None and not frontier.under_way(name) and end.failure is not UNKNOWN
    return end.failure if end is not None and known else None


def view(
    tracing: Tracing,
    journal: Journal,
    *,
    about: tuple[str, str, int],
    state: State,
    running: Mapping[str, tuple[int, float]],
    queues: Mapping[str, int] | None,
) -> ExecutionGraph:
    """The run as a graph. `tracing` and `journal` have taken in all of its entries. `about` is the
    id, the workflow and its version; `running` has the attempt and the start of each step that
    runs."""
    frontier, times = tracing.frontier, tracing.times
    states = node_states(frontier, running, ended=state.terminal)
    nodes = []
    for name in frontier.plan.stations:
        turns = frontier.turns.get(name, 0)
        ident = name if turns <= 1 else f"{name}#{turns}"
        attempt, began = running.get(ident, (times.attempts.get(ident, 0), times.begun.get(ident)))
        memory = journal.memories.get(ident)
        nodes.append(
            NodeView(
                id=name,
                state=states[name],
                turns=turns,
                attempt=attempt,
                began_at=began,
                ended_at=times.ended.get(ident) if ident not in running else None,
                mean=times.mean(name),
                failure=_failure(frontier, name) if memory is None else memory.failure,
                queue=None if queues is None else queues.get(name, 0),
            )
        )
    edges = tuple(
        EdgeView(
            source=link.edge.source,
            target=link.edge.target,
            on=str(link.edge.on),
            port=link.edge.port,
            when=link.edge.when,
            back=link.edge.back,
            taken=link.index in frontier.taken,
        )
        for link in frontier.plan.links
    )
    run_id, workflow, version = about
    return ExecutionGraph(
        run_id=run_id,
        workflow=workflow,
        version=version,
        state=state,
        nodes=tuple(nodes),
        edges=edges,
    )
