"""The view of a graph's run: the state of each node and edge."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum

import attrs

from keyrun.runtime.graphs.edge import Link, On
from keyrun.runtime.graphs.frontier import Frontier
from keyrun.runtime.graphs.journal_trace import UNKNOWN, JournalTrace
from keyrun.runtime.graphs.plan import node_of
from keyrun.runtime.records.journal_entry import COMPENSATION, EntryKind
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.values import CompensationProgress, Failure, ItemCounts, State


class NodeState(StrEnum):
    """Name the state of a node in a run."""

    DONE = "done"
    """The node has completed."""
    RUNNING = "running"
    """The node runs."""
    WAITING = "waiting"
    """The node waits for its next attempt, a time, a signal or its turn."""
    PENDING = "pending"
    """The run has not reached the node."""
    SKIPPED = "skipped"
    """None of the edges to the node can be followed any more."""
    FAILED = "failed"
    """The node failed."""
    CANCELLED = "cancelled"
    """The run has ended or is compensated, and will not reach the node."""
    COMPENSATING = "compensating"
    """The compensation of the node runs, or waits for its next attempt."""
    COMPENSATED = "compensated"
    """The effects of the node were undone."""
    COMPENSATION_FAILED = "compensation_failed"
    """The compensation of the node failed."""


@attrs.frozen(kw_only=True)
class NodeView:
    """Describe one node in a run. While the node is compensated, `attempt` and `failure` are those
    of its compensation."""

    id: str
    """The id of the node."""
    state: NodeState
    """The state of the node."""
    turns: int
    """The number of times that the run reached the node."""
    attempt: int
    """The number of the latest attempt."""
    began_at: float | None
    """When the latest turn began, in seconds since the epoch."""
    ended_at: float | None
    """When the latest turn ended, in seconds since the epoch. None for a map."""
    mean: float | None
    """The mean time of the turns that have ended, in seconds. None for a map."""
    failure: Failure | None
    """The failure of the node, if it failed."""
    queue: int | None
    """The number of calls of all runs that wait for the policies of the node. Only the process that
    runs them knows it."""
    items: ItemCounts | None = None
    """The items, if the node is a map that the run has reached."""
    within: str | None = None
    """The map that runs the node for each item. The state of such a node is that of all items
    together, and `turns` counts all of them."""


@attrs.frozen(kw_only=True)
class EdgeView:
    """Describe one edge in a run. The fields before `taken` are those of `Graph.edge`."""

    source: str
    """The id of the node where the edge starts."""
    target: str
    """The id of the node where the edge ends."""
    on: str
    """`complete`, `fail` or `all`."""
    port: str | None
    """The port of the source, if the edge names one."""
    when: str | None
    """The condition, if the edge has one."""
    back: bool
    """Whether the edge leads back to an earlier node."""
    taken: bool
    """Whether the run followed the edge."""


@attrs.frozen(kw_only=True)
class ExecutionGraph:
    """Describe a run of a graph, node by node and edge by edge. `rt.execution_graph` returns
    this."""

    run_id: str
    """The id of the run."""
    workflow: str
    """The name of the graph."""
    version: int
    """The version of the graph."""
    state: State
    """The state of the run."""
    nodes: tuple[NodeView, ...]
    """The nodes."""
    edges: tuple[EdgeView, ...]
    """The edges."""
    compensation: CompensationProgress | None = None
    """The progress of the compensation of the run, if it has one."""

    def counts(self) -> dict[NodeState, int]:
        """Return the number of nodes in each state. The nodes in the bodies of maps do not
        count."""
        return count_states(node.state for node in self.nodes if node.within is None)

    @property
    def percent(self) -> float | None:
        """Return the share of the nodes that have ended, in percent, without skipped nodes. None
        while the run is compensated."""
        if self.compensation is not None and not self.state.terminal:
            return None
        items = {node.id: node.items for node in self.nodes if node.items and not node.within}
        return percent_over(self.counts(), items, self.state)


def count_states(states: Iterable[NodeState]) -> dict[NodeState, int]:
    """Return the number of nodes in each state."""
    counts = Counter(states)
    return {state: counts[state] for state in NodeState}


def item_counts(frontier: Frontier) -> dict[str, ItemCounts]:
    """Return the items of each map that was reached and is not in the body of another."""
    tallies, known = frontier.agenda.items, frontier.plan.planned_nodes
    return {name: tally.counts() for name, tally in tallies.items() if name in known}


def percent_over(
    counts: Mapping[NodeState, int], items: Mapping[str, ItemCounts], state: State
) -> float:
    """Return the share of reachable nodes that are over. A map that is under way
    counts by its share of items."""
    over: float = sum(counts[each] for each in _OVER)
    if not state.terminal:
        over += sum(
            (each.done + each.failed) / each.total for each in items.values() if each.running
        )
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

# Looking a member up in its enum takes as long as a call.
_DONE, _COMPLETE = NodeState.DONE, On.COMPLETE


def node_states(
    frontier: Frontier, running: Collection[str], journal: Journal, *, ended: bool
) -> dict[str, NodeState]:
    """Return the state of each node. `running` has the names of the steps that run."""
    # When a compensation begins, no further node runs.
    ended = ended or journal.undoing is not None
    under_way = {ident.partition("/")[0] for ident in running}
    within = frontier.plan.inside
    under_way.update(name for ident in running for name in within.get(node_of(ident), ()))
    states = {}
    for name in frontier.plan.planned_nodes:
        activation, end = frontier.active.get(name), frontier.ends.get(name)
        if activation is not None and not ended:
            runs = not under_way.isdisjoint((activation.ident, name))
            state = NodeState.RUNNING if runs else NodeState.WAITING
        elif end is None or frontier.under_way(name):
            state = NodeState.CANCELLED if ended else NodeState.PENDING
        elif end.on is None:
            state = NodeState.SKIPPED
        else:
            state = _DONE if end.on is _COMPLETE else NodeState.FAILED
        states[name] = state
    if journal.undoing is not None:
        states.update(_compensated(journal, states))
    return states


def body_states(
    frontier: Frontier,
    running: Collection[str],
    journal: Journal,
    states: Mapping[str, NodeState],
    *,
    ended: bool,
) -> dict[str, NodeState]:
    """Return the state of each node in the body of a map, over all items. `states` are those of the
    other nodes."""
    ended = ended or journal.undoing is not None
    under_way = {node_of(ident) for ident in running}
    found: dict[str, NodeState] = {}
    for name, maps in frontier.plan.inside.items():
        tally = frontier.agenda.nodes.get(name)
        around = states[maps[0]]
        if tally is None:
            over = around not in (NodeState.RUNNING, NodeState.WAITING, NodeState.PENDING)
            state = NodeState.SKIPPED if over else NodeState.PENDING
        elif tally.active:
            state = NodeState.RUNNING if name in under_way else NodeState.WAITING
            state = NodeState.CANCELLED if ended else state
        elif tally.done:
            state = NodeState.DONE
        else:
            # What neither completed nor failed was cut off with its map.
            state = NodeState.FAILED if tally.failed else NodeState.CANCELLED
        found[name] = state
    if journal.undoing is not None:
        found.update(_compensated(journal, found))
    return found


def _compensated(journal: Journal, known: Collection[str]) -> dict[str, NodeState]:
    """Return the states of the nodes whose compensation has begun. If a loop has completed a node
    several times, it is compensated when all of its turns are."""
    progress = journal.compensation()
    assert progress is not None
    assert journal.undoing is not None
    begun: dict[str, set[NodeState]] = {}
    for ident in journal.undoing.steps:
        memory = journal.memories.get(COMPENSATION + ident)
        outcome = None if memory is None else memory.outcome
        if outcome is EntryKind.DONE:
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
    """Return the failure of a compensation of a node."""
    for ident, memory in journal.memories.items():
        inner = ident.removeprefix(COMPENSATION)
        if inner != ident and node_of(inner) == name and memory.outcome is EntryKind.GAVE_UP:
            return memory.failure
    return None


def _failure(frontier: Frontier, name: str) -> Failure | None:
    """Return the failure of a node that is workflow code, if it is known."""
    end = frontier.ends.get(name)
    known = end is not None and not frontier.under_way(name) and end.failure is not UNKNOWN
    return end.failure if end is not None and known else None


def view(
    tracing: JournalTrace,
    journal: Journal,
    *,
    about: tuple[str, str, int],
    state: State,
    running: Mapping[str, tuple[int, float]],
    queues: Mapping[str, int] | None,
) -> ExecutionGraph:
    """Return the view of a run. `tracing` and `journal` have all entries of the run. `about` is
    the id of the run, and the name and version of the graph. `running` has the attempt and the
    start of each running step."""
    frontier, times = tracing.frontier, tracing.times
    states = node_states(frontier, running, journal, ended=state.terminal)
    inside = body_states(frontier, running, journal, states, ended=state.terminal)
    compensation, items = journal.compensation(), item_counts(frontier)
    nodes: list[NodeView] = []
    for name, planned in frontier.plan.planned_nodes.items():
        turns = frontier.turns.get(name, 0)
        ident = name if turns <= 1 else f"{name}#{turns}"
        attempt, began = running.get(ident, (times.attempts.get(ident, 0), times.begun.get(ident)))
        memory = journal.memories.get(ident)
        # The journal has only the list of a map as the outcome of its node.
        is_map = planned.map is not None
        failure = _failure(frontier, name) if memory is None or is_map else memory.failure
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
                ended_at=None if is_map or ident in running else times.ended.get(ident),
                mean=None if is_map else times.mean(name),
                failure=failure,
                queue=None if queues is None else queues.get(name, 0),
                items=items.get(name),
            )
        )
        nodes += [
            _inside(frontier, inner, maps[-1], inside[inner], times.mean(inner))
            for inner, maps in frontier.plan.inside.items()
            if maps[0] == name
        ]
    edges = [_edge(link, taken=link.index in frontier.taken) for link in frontier.plan.links]
    for plan in frontier.plan.bodies():
        reached = frontier.agenda.taken
        edges += [
            _edge(link, taken=(link.edge.source, link.index) in reached) for link in plan.links
        ]
    run_id, workflow, version = about
    return ExecutionGraph(
        run_id=run_id,
        workflow=workflow,
        version=version,
        state=state,
        nodes=tuple(nodes),
        edges=tuple(edges),
        compensation=compensation,
    )


def _edge(link: Link, *, taken: bool) -> EdgeView:
    edge = link.edge
    return EdgeView(
        source=edge.source,
        target=edge.target,
        on=str(edge.on),
        port=edge.port,
        when=edge.when,
        back=edge.back,
        taken=taken,
    )


def _inside(
    frontier: Frontier, name: str, within: str, state: NodeState, mean: float | None
) -> NodeView:
    """Return the view of a node in the body of a map."""
    agenda = frontier.agenda
    tally, items = agenda.nodes.get(name), agenda.items.get(name)
    return NodeView(
        id=name,
        state=state,
        turns=0 if tally is None else tally.turns,
        attempt=0,
        began_at=None,
        ended_at=None,
        mean=mean,
        failure=None,
        queue=None,
        items=None if items is None else items.counts(),
        within=within,
    )
