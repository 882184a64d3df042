"""Tracing: find the state of each node and edge of a run from the journal of the run.

No record says which nodes were skipped and which edges were taken. This follows from the order of
the outcomes, so the tracing repeats the outcomes on a frontier of its own. It keeps this frontier
between two calls, so that a call reads only the entries that are new.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from keyrun.runtime.graphs.activation import Activation, NodeEnd
from keyrun.runtime.graphs.agenda import Agenda
from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.frontier import Frontier, TooManyIterations
from keyrun.runtime.graphs.map_items import MapItems
from keyrun.runtime.graphs.node import read
from keyrun.runtime.graphs.node_input import Item
from keyrun.runtime.graphs.plan import GraphPlan, PlannedNode, first_turn_of, node_of, turn_of
from keyrun.runtime.graphs.stored_graph import GraphShape
from keyrun.runtime.records.journal_entry import (
    AttemptFailed,
    CallDone,
    EntryKind,
    Interrupted,
    JournalEntry,
    NodeEnded,
    Redriven,
    StepGaveUp,
    TimerSet,
    WaitBegan,
)
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.values import Failure, FailureKind
from keyrun.storage.payload import PayloadCodec

UNKNOWN = Failure(kind=FailureKind.WORKFLOW_ERROR, reason="the node failed")
"""Stands for a failure that no record describes."""

_AT_ONCE = 32
"""The number of outcomes that one call of `walk` follows."""


class _Evidence:
    """The known outcomes of nodes, for the graph and for the bodies of its maps."""

    def __init__(self, reached: set[str]) -> None:
        self.reached = reached
        """The turns of nodes that were reached."""
        self.noted: Mapping[str, list[int]] = {}
        """The edges that were taken, by the turn of the node that they leave."""
        self.guessed = False
        """Whether edges were decided by the nodes that the run reached so far. More entries may
        decide otherwise."""


class _Retraced(Frontier):
    """A frontier that takes the edges which the journal has, or which must have been taken."""

    def __init__(
        self,
        evidence: _Evidence,
        plan: GraphPlan,
        run_input: Any,
        agenda: Agenda,
        *,
        of: MapItems | None = None,
        item: Item | None = None,
    ) -> None:
        self.evidence = evidence
        super().__init__(plan, run_input, agenda, of=of, item=item)

    def inside(self, of: MapItems, plan: GraphPlan, item: Item) -> Frontier:
        return _Retraced(self.evidence, plan, self.run_input, self.agenda, of=of, item=item)

    def _fired(self, activation: Activation, end: NodeEnd) -> set[int]:
        noted = self.evidence.noted.get(activation.ident)
        if noted is not None:
            return set(noted)
        try:
            return super()._fired(activation, end)
        except Exception:
            # This process cannot evaluate the conditions.
            return set(self.reached_from(activation.planned))

    def reached_from(self, planned: PlannedNode) -> list[int]:
        """Return the edges that must have been taken, because the nodes after them were reached."""
        self.evidence.guessed = True
        return [
            link.index
            for link in planned.leaving
            if turn_of(link.edge.target, 1, self.suffix) in self.evidence.reached
        ]


class NodeTimes:
    """Know when the turns of nodes began and ended, and the number of their last attempt, by the
    name of the turn."""

    def __init__(self) -> None:
        self.begun: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.attempts: dict[str, int] = {}
        self._totals: dict[str, tuple[int, float]] = {}

    def take(self, entry: CallDone | AttemptFailed | StepGaveUp) -> None:
        """Add an attempt that is over."""
        name, at = entry.ident.partition("/")[0], entry.at
        if entry.begun is not None:
            self.begun.setdefault(name, entry.begun)
        self.attempts[name] = entry.attempt
        if isinstance(entry, AttemptFailed):
            return
        start, last = self.begun.get(name), self.ended.get(name)
        self.ended[name] = at
        if start is not None:
            node = node_of(name)
            turns, seconds = self._totals.get(node, (0, 0.0))
            if last is None:
                self._totals[node] = turns + 1, seconds + at - start
            else:
                self._totals[node] = turns, seconds + at - last

    def mean(self, node: str) -> float | None:
        """Return the mean time of the turns of a node that have ended, in seconds."""
        turns, seconds = self._totals.get(node, (0, 0.0))
        return seconds / turns if turns else None


class JournalTrace:
    """Finds the state of each node from the journal of a run. Pass the entries to `take` in order,
    then call `walk` until it returns False."""

    def __init__(self, shape: GraphShape, codec: PayloadCodec, run_input: bytes) -> None:
        self._shape = shape
        self._codec = codec
        self._input: Any = None
        with suppress(Exception):
            self._input = codec.decode(run_input)
        self.restart()

    def restart(self) -> None:
        """Forget all entries."""
        self.times = NodeTimes()
        self._ends: list[CallDone | StepGaveUp | NodeEnded] = []
        """The entries with the ends of the turns of nodes, the last one of each turn."""
        self._ended: set[str] = set()
        self._failed: list[str] = []
        """The nodes that failed, as the outcome of the graph names them."""
        self._reached: set[str] = set()
        self._walk_again()

    def _walk_again(self) -> None:
        shape, self._evidence = self._shape, _Evidence(self._reached)
        agenda = Agenda(shape.max_concurrency, waves=shape.schedule == "waves", staged=None)
        self.frontier = _Retraced(self._evidence, shape.plan, self._input, agenda)
        self._walked = 0

    def take(self, entries: Iterable[JournalEntry]) -> None:
        """Add the next entries."""
        if self._evidence.guessed:
            self._walk_again()
        for entry in entries:
            match entry:
                case NodeEnded():
                    self._add(entry)
                case Redriven():
                    # The nodes that are retried have not ended yet.
                    for name in self._failed:
                        self._drop(name.removesuffix("/"))
                    self._walk_again()
                case CallDone(ident="graph()"):
                    self._failed = entry.payload
                case CallDone() | AttemptFailed() | StepGaveUp():
                    self._reached.add(first_turn_of(entry.ident))
                    self.times.take(entry)
                    if not isinstance(entry, AttemptFailed) and "/" not in entry.ident:
                        self._add(entry)
                case Interrupted() | TimerSet() | WaitBegan():
                    self._reached.add(first_turn_of(entry.ident))
                case _:
                    pass

    def _add(self, entry: CallDone | StepGaveUp | NodeEnded) -> None:
        if entry.ident in self._ended:
            self._drop(entry.ident)
            self._walk_again()
        self._ended.add(entry.ident)
        self._ends.append(entry)

    def _drop(self, ident: str) -> None:
        self._ended.discard(ident)
        self._ends = [each for each in self._ends if each.ident != ident]

    def walk(self, journal: Journal) -> bool:
        """Follow the next outcomes, and return whether there are more. `journal` has the sum of all
        entries, without the outcomes that a redrive removed."""
        part = self._ends[self._walked : self._walked + _AT_ONCE]
        self._walked += len(part)
        for entry in part:
            self._follow(journal, entry)
        return self._walked < len(self._ends)

    def _follow(self, journal: Journal, entry: CallDone | StepGaveUp | NodeEnded) -> None:
        evidence, ident = self._evidence, entry.ident
        activation = self.frontier.find(ident)
        if activation is None:
            return
        node, owner = activation.planned.node, activation.owner
        assert isinstance(owner, _Retraced)
        memory = journal.memories.get(ident)
        if isinstance(entry, NodeEnded):
            on = On(entry.on)
            failure = entry.failure or (UNKNOWN if on is not On.COMPLETE else None)
            end = NodeEnd(on, entry.port, None, failure)
            evidence.noted = {ident: entry.fired}
        elif memory is None or memory.outcome is None:
            return
        elif memory.outcome is EntryKind.DONE:
            end = NodeEnd(On.COMPLETE)
            try:
                assert isinstance(entry, CallDone)
                value, received = self._codec.decode(entry.payload), activation.given.output
                end = NodeEnd(On.COMPLETE, *read(node, value, received))
            except Exception:
                # This process cannot read the output.
                if node.map is not None:
                    return
                evidence.noted = {ident: owner.reached_from(activation.planned)}
        else:
            assert memory.failure is not None
            refused = memory.failure.kind is FailureKind.CIRCUIT_OPEN and node.fallback is not None
            numbers = memory.failure.numbers if refused else None
            end = NodeEnd(On.OPEN if refused else On.FAIL, None, numbers, memory.failure)
        try:
            owner.end(activation, end)
        except TooManyIterations:
            return
        finally:
            evidence.noted = {}
