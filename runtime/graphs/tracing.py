"""Tracing: where a run of a graph is, retraced from its journal.

Which nodes were skipped, and which edges taken, is in no record: it follows from the order of
outcomes, so the frontier of the run is walked again.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import attrs

from keyrun.runtime.graphs.activation import End
from keyrun.runtime.graphs.edge import On
from keyrun.runtime.graphs.frontier import Frontier, TooManyTurns
from keyrun.runtime.graphs.node import read
from keyrun.runtime.graphs.plan import Station, node_of
from keyrun.runtime.graphs.sketch import Sketch
from keyrun.runtime.journal.entry import Entry
from keyrun.runtime.journal.journal import Journal
from keyrun.runtime.journal.memories import NODE_ENDED
from keyrun.runtime.records import read_failure
from keyrun.runtime.values import Failure, FailureKind
from keyrun.storage.payload import PayloadCodec

UNKNOWN = Failure(kind=FailureKind.WORKFLOW_ERROR, reason="the node failed")
"""Stands for a failure that no record describes."""


class _Retraced(Frontier):
    """A frontier that follows what is known to have happened."""

    def __init__(self, sketch: Sketch, run_input: Any, reached: set[str]) -> None:
        self.noted: Mapping[str, list[int]] = {}
        self._reached = reached
        super().__init__(
            sketch.plan,
            run_input,
            max_concurrency=sketch.max_concurrency,
            waves=sketch.schedule == "waves",
        )

    def _fired(self, station: Station, end: End) -> set[int]:
        noted = self.noted.get(station.node.id)
        if noted is not None:
            return set(noted)
        try:
            return super()._fired(station, end)
        except Exception:
            # Nobody here can answer its conditions.
            return set(self.reached_from(station))

    def reached_from(self, station: Station) -> list[int]:
        """The edges out of a node that must have been taken, since nodes after it were reached."""
        return [link.index for link in station.leaving if link.edge.target in self._reached]


@attrs.define
class _Times:
    begun: dict[str, float] = attrs.field(factory=dict)
    ended: dict[str, float] = attrs.field(factory=dict)
    attempts: dict[str, int] = attrs.field(factory=dict)

    def mean(self, name: str) -> float | None:
        taken = [
            self.ended[ident] - begun
            for ident, begun in self.begun.items()
            if node_of(ident) == name and ident in self.ended
        ]
        return sum(taken) / len(taken) if taken else None


class Tracing:
    """What the journal of a run says of its nodes."""

    def __init__(self, sketch: Sketch, codec: PayloadCodec, run_input: bytes) -> None:
        self._sketch = sketch
        self._codec = codec
        self._input = run_input
        self.times = _Times()

    def retrace(self, rows: Iterable[tuple[int, list[Any]]]) -> tuple[Frontier, Journal]:
        """The frontier of the run, and what is remembered of its steps."""
        journal, ends = Journal(), dict[str, tuple[int, list[Any] | None]]()
        failed: list[str] = []
        for sequence, fields in rows:
            journal.fold(sequence, fields)
            self._time(fields)
            kind, ident, _, *rest = fields
            if kind == Entry.REDRIVEN:
                # What is tried again has not ended yet.
                for name in failed:
                    ends.pop(name.removesuffix("/"), None)
            elif ident == "graph()":
                failed = rest[-1]
            elif kind == Entry.NOTE and rest[0] == NODE_ENDED:
                ends[ident] = (sequence, rest)
            elif kind in (Entry.DONE, Entry.GAVE_UP):
                ends[ident] = (sequence, None)
        reached = {node_of(ident) for ident in journal.memories}
        run_input = None
        with suppress(Exception):
            run_input = self._codec.decode(self._input)
        frontier = _Retraced(self._sketch, run_input, reached)
        for ident, (_, noted) in sorted(ends.items(), key=lambda each: each[1][0]):
            self._follow(frontier, journal, ident, noted)
        return frontier, journal

    def _time(self, fields: list[Any]) -> None:
        kind, ident, at, *rest = fields
        match Entry(kind):
            case Entry.DONE:
                _, _, attempt, begun, _ = rest
            case Entry.FAILED | Entry.GAVE_UP:
                _, attempt, begun, *_ = rest
            case _:
                return
        name = ident.partition("/")[0]
        if begun is not None:
            self.times.begun.setdefault(name, begun)
        self.times.attempts[name] = attempt
        if kind != Entry.FAILED:
            self.times.ended[name] = at

    def _follow(
        self, frontier: _Retraced, journal: Journal, ident: str, noted: list[Any] | None
    ) -> None:
        activation = frontier.active.get(node_of(ident)) or frontier.recall(ident)
        memory = journal.memories.get(ident)
        if activation is None or activation.ident != ident:
            return
        node = activation.station.node
        if noted is not None:
            _, on, port, fired, *failure = noted
            known = read_failure(failure[0]) if failure else None
            end = End(On(on), port, None, known or (UNKNOWN if on != On.COMPLETE else None))
            frontier.noted = {node.id: fired}
        elif memory is None or memory.outcome is None:
            return
        elif memory.outcome is Entry.DONE:
            end = End(On.COMPLETE)
            try:
                end = End(On.COMPLETE, *read(node, self._codec.decode(memory.payload)))
            except Exception:
                # Nobody here can read what it gave.
                frontier.noted = {node.id: frontier.reached_from(activation.station)}
        else:
            assert memory.failure is not None
            refused = memory.failure.kind is FailureKind.CIRCUIT_OPEN and node.fallback is not None
            numbers = memory.failure.numbers if refused else None
            end = End(On.OPEN if refused else On.FAIL, None, numbers, memory.failure)
        try:
            frontier.end(activation, end)
        except TooManyTurns:
            return
        finally:
            frontier.noted = {}
