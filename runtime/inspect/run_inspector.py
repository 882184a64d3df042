"""The run inspector: the progress, the execution graph and the history of a run.

All of them describe one durable commit, in a runtime and in a reader of another process. Most
programs do not need them, so this module is imported when it is first used.
"""

from collections.abc import Callable, Mapping
from math import inf
from struct import Struct
from typing import TYPE_CHECKING, NamedTuple

import attrs
import trio

from keyrun.actors import checks
from keyrun.runtime.graphs.view import (
    ExecutionGraph,
    NodeState,
    count_states,
    item_counts,
    node_states,
    percent_over,
    view,
)
from keyrun.runtime.inspect.audit import entries_of
from keyrun.runtime.inspect.durations import RunDurations
from keyrun.runtime.inspect.graph_shapes import StoredGraphs
from keyrun.runtime.inspect.history import History, HistoryBuilder, HistoryPage, with_operations
from keyrun.runtime.inspect.pages import look, read_cursor, write_cursor
from keyrun.runtime.inspect.progress import (
    Progress,
    Snapshot,
    StoredReport,
    assess,
    knows_progress,
    read_report,
    snapshot_of_records,
    snapshot_of_run,
    snapshot_of_summary,
)
from keyrun.runtime.inspect.slices import PageBudget
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.inspect.stored_run import JournalFollower, StoredRun, last_entry
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.exported import Records as Exported
from keyrun.runtime.records.journal_entry import JournalEntry, NextTurn, decode
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import StatusRecord
from keyrun.runtime.values import ItemCounts, State
from keyrun.storage import StoreError
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run

_PLACE = Struct(">II?d")
"""The place in a history at which a page ends: the number of an entry, the generation, whether the
start of that generation was on this page or an earlier one, and the time of the last event."""

AT_ONCE = 256
"""Entries of a history that are processed before other tasks run."""


class RunInspector:
    """Returns the progress, the execution graph and the history of runs."""

    def __init__(self, statuses: StatusReader, wall: Callable[[], float]) -> None:
        self._statuses = statuses
        self._wall = wall
        self._ledger = statuses.ledger
        self._durations = RunDurations(statuses.ledger)
        self._graphs = StoredGraphs(statuses.ledger, statuses.codec, statuses.registry)

    def look(self, number: int) -> "RunView":
        """Return a view of one run, which returns its progress again and again."""
        return RunView(self._statuses, self._graphs, self._durations, self._wall, number)

    async def progress(self, number: int) -> Progress | None:
        """Return the progress of a run, or None if there is no such run."""
        return await self.look(number).progress()

    async def execution_graph(
        self, number: int, queues: Mapping[str, int] | None = None
    ) -> ExecutionGraph | None:
        """Return a run of a graph with its nodes and edges. None if there is no such run, or it is
        not a run of a graph."""
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
        """Return the history of a run. It is empty if there is no such run."""
        if number is None:
            return History()
        ledger, key = self._ledger, self._ledger.number(number)
        entries: list[tuple[int, JournalEntry | StoreError]] = []

        def take(rows: Rows) -> None:
            for record, raw in rows:
                entries.append((int.from_bytes(record[-4:], "big"), _entry(record, raw)))

        async def rest() -> tuple[bytes | None, StatusRecord | StoreError | None]:
            try:
                return await ledger.store.get("runs", key), await ledger.status(number)
            except DAMAGE as error:
                return await ledger.store.get("runs", key), error

        raw, status = await JournalFollower(ledger, number, take, entries.clear).catch_up(rest)
        if raw is None:
            return History()
        submission = self._statuses.read(key, raw)
        operations = await entries_of(ledger, number)
        builder = HistoryBuilder(submission)
        for at in range(0, len(entries), AT_ONCE):
            if at:
                await trio.lowlevel.checkpoint()
            builder.add(entry for _, entry in entries[at : at + AT_ONCE])
        story = with_operations(builder.end(status), operations)
        whole = [(at, entry) for at, entry in entries if not isinstance(entry, StoreError)]
        if (
            isinstance(submission, StoreError)
            or isinstance(status, StoreError)
            or len(whole) < len(entries)
        ):
            return History(story=story)
        return History(Exported(submission, status, tuple(whole)), story=story)

    async def history_page(
        self, number: int | None, *, limit: int, cursor: str | None
    ) -> HistoryPage:
        """Return one page of the history of a run. It is empty if there is no such run."""
        checks.count("limit", limit, 1)
        ledger, place = self._ledger, read_cursor("history", cursor)
        if number is None:
            return HistoryPage(events=(), cursor=None)
        key = ledger.number(number)
        raw = await ledger.store.get("runs", key)
        if raw is None:
            return HistoryPage(events=(), cursor=None)
        try:
            status: StatusRecord | StoreError | None = await ledger.status(number)
        except DAMAGE as error:
            status = error
        last = -inf
        if place is None:
            builder, after = HistoryBuilder(self._statuses.read(key, raw)), b""
        else:
            if len(place) != _PLACE.size:
                raise ValueError("cursor must be the cursor of a page of a history")
            sequence, generation, began, last = _PLACE.unpack(place)
            builder = HistoryBuilder(None, generation, began=began)
            after = ledger.entry(number, sequence)

        async def read(
            record: bytes, raw: bytes, slices: PageBudget
        ) -> list[JournalEntry | StoreError]:
            entry = _entry(record, raw)
            # The turn of a machine is on the last page.
            return [] if isinstance(entry, NextTurn) else [entry]

        looked = await look(ledger, "journal", read, limit=limit, prefix=key, after=after)
        for at in range(0, len(looked.found), AT_ONCE):
            if at:
                await trio.lowlevel.checkpoint()
            builder.add(looked.found[at : at + AT_ONCE])
        # Each operation is before the first event that is not earlier.
        operations = [each for each in await entries_of(ledger, number) if each.at > last]
        if looked.more:
            events = builder.page(status)
            last = max((each.at for each in events), default=last)
            operations = [each for each in operations if each.at <= last]
            sequence = int.from_bytes(looked.last[-4:], "big")
            place = _PLACE.pack(sequence, builder.generation, builder.began, last)
            cursor = write_cursor("history", place)
            return HistoryPage(events=with_operations(events, operations), cursor=cursor)
        first = ledger.entry(number, 0)
        turn = await ledger.store.get("journal", first)
        if turn is not None and isinstance(entry := _entry(first, turn), NextTurn):
            builder.add([entry])
        events = with_operations(builder.end(status), operations)
        return HistoryPage(events=events, cursor=None)


class NodeCounts(NamedTuple):
    """Where a run of a graph is, in numbers."""

    nodes: Mapping[NodeState, int]
    """The number of nodes in each state."""
    items: Mapping[str, ItemCounts]
    """The items of each map."""


class RunView:
    """Returns the progress of one run again and again. It asks a run in memory, and reads the
    records of any other run. Records that were read are kept for the next time."""

    def __init__(
        self,
        statuses: StatusReader,
        graphs: StoredGraphs,
        durations: RunDurations,
        wall: Callable[[], float],
        number: int,
    ) -> None:
        self._statuses = statuses
        self._ledger = statuses.ledger
        self._durations = durations
        self._wall = wall
        self._number = number
        self._stored = StoredRun(statuses, graphs, number)

    async def progress(self, ended: "Run | None" = None) -> Progress | None:
        """Return the progress of the run, or None if there is no such run. `ended` is the run
        itself if it has ended in this process and is still in memory."""
        run = ended or self._statuses.live(self._number)
        if run is None or not knows_progress(run):
            return await self._from_records()
        known = snapshot_of_run(run)
        nodes = None
        if run.graph is not None:
            nodes = NodeCounts(read_nodes(run.graph.node_counts()), run.graph.item_counts())
        # Nothing is shown before it is durable.
        await self._ledger.store.durable()
        report = read_report(await self._ledger.get("reports", run.record))
        return await self._assess(known, report, await last_entry(self._ledger, run.number), nodes)

    async def _from_records(self) -> Progress | None:
        records = await self._stored.summarized()
        if records is not None:
            known, summary = snapshot_of_summary(records), records.status.summary
            nodes = None
            if summary is not None and summary.nodes is not None:
                nodes = NodeCounts(read_nodes(summary.nodes), read_items(summary.items))
            return await self._assess(known, records.report, records.last, nodes)
        records = await self._stored.refresh()
        if records is None:
            return None
        tally, tracing, nodes = self._stored.tally, self._stored.tracing, None
        known = snapshot_of_records(records, tally)
        if tracing is not None:
            running = [step for step, *_ in records.begun]
            ended = known.state.terminal
            states = node_states(tracing.frontier, running, tally.journal, ended=ended)
            nodes = NodeCounts(count_states(states.values()), item_counts(tracing.frontier))
        return await self._assess(known, records.report, tally.last, nodes)

    async def _assess(
        self,
        known: Snapshot,
        report: StoredReport | None,
        last: float | None,
        nodes: NodeCounts | None,
    ) -> Progress:
        submission, usual, now = known.submission, None, self._wall()
        if nodes is None and not known.state.terminal:
            name, version = submission.workflow, submission.version
            usual = await self._durations.of(name, version, now)
        far = assess(known, report, last, usual, now)
        return far if nodes is None else by_nodes(far, nodes)


def _entry(key: bytes, raw: bytes) -> JournalEntry | StoreError:
    """Return a journal entry, or the error that reading it raises."""
    try:
        return decode(unseal("journal", key, raw))
    except DAMAGE as error:
        return error


def by_nodes(far: Progress, counts: NodeCounts) -> Progress:
    """Return the progress of a run of a graph, estimated by its nodes unless the run reports its
    progress itself."""
    nodes = {str(state): count for state, count in counts.nodes.items()}
    far = attrs.evolve(far, nodes=nodes, items=dict(counts.items))
    if far.message is not None or far.state is State.SUCCEEDED or far.compensating:
        return far
    percent, left = percent_over(counts.nodes, counts.items, far.state), far.time_left
    if not far.state.terminal:
        left = None
        if percent and far.elapsed is not None:
            left = far.elapsed * (100 - percent) / percent
    return attrs.evolve(far, percent=percent, time_left=left)


def read_nodes(stored: Mapping[str, int]) -> dict[NodeState, int]:
    """Return the number of nodes in each state, from a summary."""
    return {state: stored.get(str(state), 0) for state in NodeState}


def read_items(stored: Mapping[str, list[int]] | None) -> dict[str, ItemCounts]:
    """Return the items of each map, from a summary."""
    return {
        name: ItemCounts(total=total, done=done, failed=failed, running=running)
        for name, (total, done, failed, running) in (stored or {}).items()
    }
