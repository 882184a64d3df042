"""The view of a graph's run: where it is, node by node and edge by edge."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import attrs

from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.frontier import Frontier
from keyrun.runtime.graphs.journal_trace import UNKNOWN, Tracing
from keyrun.runtime.graphs.plan import node_of
from keyrun.runtime.records.journal_entry import COMPENSATION, Entry
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.values import CompensationProgress, Failure, State


class NodeState(StrEnum):
    """How a node stands. Waiting: for its next attempt, for time to pass, for a signal or a turn;
    pending: not reached so far; cancelled: never to be reached, since the run has ended or is being
    compensated; compensating: its compensation runs, or waits for its next attempt; compensated:
    what it did was undone; compensation_failed: what it did could not be undone."""

    DONE = "done"
    RUNNING = "running"
    WAITING = "waiting"
    PENDING = "pending"
    SKIPPED = "skipped"
    FAILED = "failed"
    CANCELLED = "cancelled"
    COMPENSATING = "compensating"
    COMPENSATED = "compensated"
    COMPENSATION_FAILED = "compensation_failed"


@attrs.frozen(kw_only=True)
class NodeView:
    """One node. `turns` counts how often it was reached; times are of the latest turn, `mean` is
    the mean time of those that are over, in seconds. While it is compensated, `attempt` is that of
    its compensation, and if that failed, `failure` says how. `queue` is how many calls of all runs
    wait for its policies, which only the process that runs them knows."""

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
    compensation: CompensationProgress | None = None

    def counts(self) -> dict[NodeState, int]:
        """How many nodes are in which state."""
        return count_states(node.state for node in self.nodes)

    @property
    def percent(self) -> float | None:
        """How much of what can be reached is over; None while the run is compensated."""
        if self.compensation is not None and not self.state.terminal:
            return None
        return percent_over(self.counts(), self.state)


def count_states(states: Iterable[NodeState]) -> dict[NodeState, int]:
    """The number of nodes in each state."""
    counts = Counter(states)
    return {state: counts[state] for state in NodeState}


def percent_over(counts: Mapping[NodeState, int], state: State) -> float:
    """The share of nodes that are over, among those that can be reached."""
    over = sum(counts[each] for each in _OVER)
    reachable = sum(counts.values()) - counts[NodeState.SKIPPED]
    if state is State.SUCCEEDED or not reachable:
        return 100.0
    return 100 * over / reachable


_OVER = (
    NodeState.DONE,
    NodeState.FAILED,
    NodeState.COMPENSATED,
    NodeState.COMPENSATION_FAILED,
)


def node_states(
    frontier: Frontier, running: Collection[str], journal: Journal, *, ended: bool
) -> dict[str, NodeState]:
    """The state of each node; `running` are the names of the steps that run."""
    # Once it is decided what to compensate, no further node runs.
    ended = ended or journal.undoing is not None
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
    if journal.undoing is not None:
        states.update(_compensated(journal, states))
    return states


def _compensated(journal: Journal, known: Collection[str]) -> dict[str, NodeState]:
    """The states of nodes whose compensation has begun. A loop may have done a node several times:
    it is compensated when all of them are."""
    progress = journal.compensation()
    assert progress is not None
    assert journal.undoing is not None
    begun: dict[str, set[NodeState]] = {}
    for ident in journal.undoing.steps:
        memory = journal.memories.get(COMPENSATION + ident)
        outcome = None if memory is None else memory.outcome
        if outcome is Entry.DONE:
            state = NodeState.COMPENSATED
        elif outcome is not None:
            state = NodeState.COMPENSATION_FAILED
        elif ident == progress.step:
            state = NodeState.COMPENSATING
        else:
            state = NodeState.DONE
        begun.setdefault(node_of(ident), set()).add(state)
    states = {}
    for name, found in begun.items():
        if name in known and found != {NodeState.DONE}:
            unfinished = found & {NodeState.DONE, NodeState.COMPENSATING}
            failed = NodeState.COMPENSATION_FAILED in found
            states[name] = (
                NodeState.COMPENSATING
                if unfinished
                else NodeState.COMPENSATION_FAILED
                if failed
                else NodeState.COMPENSATED
            )
    return states


def _compensation_failure(journal: Journal, name: str) -> Failure | None:
    """How a compensation of a node failed."""
    for ident, memory in journal.memories.items():
        inner = ident.removeprefix(COMPENSATION)
        if inner != ident and node_of(inner) == name and memory.outcome is Entry.GAVE_UP:
            return memory.failure
    return None


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
    states = node_states(frontier, running, journal, ended=state.terminal)
    compensation = journal.compensation()
    nodes = []
    for name in frontier.plan.stations:
        turns = frontier.turns.get(name, 0)
        ident = name if turns <= 1 else f"{name}#{turns}"
        attempt, began = running.get(ident, (times.attempts.get(ident, 0), times.begun.get(ident)))
        memory = journal.memories.get(ident)
        failure = _failure(frontier, name) if memory is None else memory.failure
        if states[name] is NodeState.COMPENSATION_FAILED:
            failure = _compensation_failure(journal, name)
        elif states[name] is NodeState.COMPENSATING and compensation is not None:
            undo = COMPENSATION + (compensation.step or "")
            known = journal.memories.get(undo)
            attempt = (
                running[undo][0] if undo in running else 0 if known is None else known.attempts
            )
        nodes.append(
            NodeView(
                id=name,
                state=states[name],
                turns=turns,
                attempt=attempt,
                began_at=began,
                ended_at=times.ended.get(ident) if ident not in running else None,
                mean=times.mean(name),
                failure=failure,
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
        compensation=compensation,
    )
