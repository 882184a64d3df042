"""The survey: how far runs are and what happened to them, from the records alone.

Answers are of one durable commit, for a runtime as for a reader in another process. It is more than
most programs ask for, so it is imported when somebody does.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.graphs.view import ExecutionGraph, NodeState, count_states, node_states, view
from keyrun.runtime.inspect.durations import StepDurations
from keyrun.runtime.inspect.execution_graphs import StoredGraphs
from keyrun.runtime.inspect.history import History
from keyrun.runtime.inspect.history_entries import HistoryBuilder
from keyrun.runtime.inspect.journal_follower import JournalFollower
from keyrun.runtime.inspect.node_progress import in_nodes, read_nodes
from keyrun.runtime.inspect.progress import (
    Progress,
    Snapshot,
    StoredReport,
    assess,
    knows_itself,
    live,
    read_report,
    stored,
    summarized,
)
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.inspect.stored_run import StoredRun, last_entry
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.exported import Records as Exported
from keyrun.runtime.records.journal_entry import JournalEntry, decode
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import Standing
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run

AT_ONCE = 256
"""Entries of a history that are told before other tasks get a turn."""


class RunInspector:
    """Looks closer at what `reading` reads."""

    def __init__(self, statuses: StatusReader, wall: Callable[[], float]) -> None:
        self._statuses = statuses
        self._wall = wall
        self._ledger = statuses.ledger
        self._experiences = StepDurations(statuses.ledger)
        self._graphs = StoredGraphs(statuses.ledger, statuses.codec, statuses.registry)

    def look(self, number: int) -> "RunView":
        """What tells how far a run is, now and later."""
        return RunView(self._statuses, self._graphs, self._experiences, self._wall, number)

    async def progress(self, number: int) -> Progress | None:
        """How far a run is; None if there is no such run."""
        return await self.look(number).progress()

    async def execution_graph(
        self, number: int, queues: Mapping[str, int] | None = None
    ) -> ExecutionGraph | None:
        """A run of a graph, node by node; None if there is no such run, or it is of no graph."""
        submission = await self._ledger.submission(number)
        if submission is None or await self._graphs.tracing(submission) is None:
            return None
        stored = StoredRun(self._statuses, self._graphs, number)
        records = await stored.refresh()
        status = await self._statuses.status(number, result=False)
        if records is None or status is None or stored.tracing is None:
            return None
        return view(
            stored.tracing,
            stored.tally.journal,
            about=(submission.run_id, submission.workflow, submission.version),
            state=status.state,
            running={step: (attempt, at) for step, attempt, at, _ in records.begun},
            queues=queues,
        )

    async def history(self, number: int | None) -> History:
        """What happened to a run, in order; nothing if there is none."""
        if number is None:
            return History()
        ledger, key = self._ledger, self._ledger.number(number)
        entries: list[tuple[int, JournalEntry | StoreError]] = []

        def take(rows: Rows) -> None:
            for record, raw in rows:
                entries.append((int.from_bytes(record[-4:], "big"), _entry(record, raw)))

        async def rest() -> tuple[bytes | None, Standing | StoreError | None]:
            try:
                return await ledger.store.get("runs", key), await ledger.standing(number)
            except DAMAGE as error:
                return await ledger.store.get("runs", key), error

        raw, standing = await JournalFollower(ledger, number, take, entries.clear).catch_up(rest)
        if raw is None:
            return History()
        submission = self._statuses.read(key, raw)
        story = HistoryBuilder(submission)
        for at in range(0, len(entries), AT_ONCE):
            if at:
                await trio.lowlevel.checkpoint()
            story.add(entry for _, entry in entries[at : at + AT_ONCE])
        told = story.end(standing)
        whole = [(at, entry) for at, entry in entries if not isinstance(entry, StoreError)]
        if (
            isinstance(submission, StoreError)
            or isinstance(standing, StoreError)
            or len(whole) < len(entries)
        ):
            return History(story=told)
        return History(Exported(submission, standing, tuple(whole)), story=told)


class RunView:
    """How far one run is, again and again. A run in memory is asked itself. The records of another
    one are read, and remembered until the next look."""

    def __init__(
        self,
        statuses: StatusReader,
        graphs: StoredGraphs,
        experiences: StepDurations,
        wall: Callable[[], float],
        number: int,
    ) -> None:
        self._statuses = statuses
        self._ledger = statuses.ledger
        self._experiences = experiences
        self._wall = wall
        self._number = number
        self._stored = StoredRun(statuses, graphs, number)

    async def progress(self, ended: "Run | None" = None) -> Progress | None:
        """How far the run is; None if there is no such run. `ended` is the run itself if it ended
        in this process, and is still at hand."""
        run = ended or self._statuses.live(self._number)
        if run is None or not knows_itself(run):
            return await self._from_records()
        known = live(run)
        nodes = None if run.graph is None else read_nodes(run.graph.node_counts())
        # Nothing is shown before it is durable.
        await self._ledger.store.durable()
        report = read_report(await self._ledger.get("reports", run.record))
        return await self._assess(known, report, await last_entry(self._ledger, run.number), nodes)

    async def _from_records(self) -> Progress | None:
        records = await self._stored.summarized()
        if records is not None:
            known, summary = summarized(records), records.standing.summary
            nodes = None if summary is None else read_nodes(summary.nodes)
            return await self._assess(known, records.report, records.last, nodes)
        records = await self._stored.refresh()
        if records is None:
            return None
        tally, tracing, nodes = self._stored.tally, self._stored.tracing, None
        known = stored(records, tally)
        if tracing is not None:
            running = [step for step, *_ in records.begun]
            ended = known.state.terminal
            states = node_states(tracing.frontier, running, tally.journal, ended=ended)
            nodes = count_states(states.values())
        return await self._assess(known, records.report, tally.last, nodes)

    async def _assess(
        self,
        known: Snapshot,
        report: StoredReport | None,
        last: float | None,
        nodes: dict[NodeState, int] | None,
    ) -> Progress:
        submission, experience, now = known.submission, None, self._wall()
        if nodes is None and not known.state.terminal:
            name, version = submission.workflow, submission.version
            experience = await self._experiences.of(name, version, now)
        far = assess(known, report, last, experience, now)
        return far if nodes is None else in_nodes(far, nodes)


def _entry(key: bytes, raw: bytes) -> JournalEntry | StoreError:
    """Return a journal entry, or the error that reading it raises."""
    try:
        return decode(unseal("journal", key, raw))
    except DAMAGE as error:
        return error
