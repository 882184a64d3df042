"""Progress: compute the progress of a run.

A `Snapshot` is what is known about a run at one commit. There are three ways to make one:

- `snapshot_of_run` reads the run in memory, in constant time for a journal of any length.
- `snapshot_of_summary` reads the status record of a run that was evicted or has ended.
- `snapshot_of_records` reads the journal and the other records, so any process can make one.

Rate and time left are estimates: how fast the steps of this run were done, and how many steps
earlier runs of the workflow had.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.inspect.durations import DurationStatistics
from keyrun.runtime.records.journal_entry import (
    COMPENSATION,
    CallDone,
    CallKind,
    CallRecord,
    EntryKind,
    JournalEntry,
    Redriven,
    began_at,
    is_driven,
)
from keyrun.runtime.records.submission import StatusRecord, Submission, Summary
from keyrun.runtime.run.journal import Journal
from keyrun.runtime.values import CompensationProgress, Failure, ItemCounts, State

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run


@attrs.frozen(kw_only=True)
class StepCounts:
    """Count the steps of a run by their state."""

    done: int = 0
    """Steps that have succeeded."""
    running: int = 0
    """Steps that run."""
    retrying: int = 0
    """Steps whose last attempt failed or was interrupted, and that have another attempt."""
    waiting: int = 0
    """Timers, signals, approvals and children that the run waits for."""
    failed: int = 0
    """Steps that failed and are not retried, even if the workflow caught the error."""


@attrs.frozen(kw_only=True)
class StepProgress:
    """Describe a step that runs, with its last report."""

    step: str
    """The name of the step in the journal."""
    attempt: int
    """The number of the attempt, from 1."""
    began_at: float
    """When the attempt began, in seconds since the epoch."""
    percent: float | None = None
    """The percentage that the step reported last."""
    message: str | None = None
    """The message that the step reported last."""


@attrs.frozen(kw_only=True)
class Progress:
    """Describe the progress of a run. Two values are equal if they differ only in the time that has
    passed."""

    run_id: str
    """The id of the run."""
    key: str
    """The ordering key."""
    workflow: str
    """The name of the workflow."""
    state: State
    """The state of the run."""
    percent: float | None
    """The percentage that the workflow reported with `ctx.report`, otherwise an estimate from
    earlier runs. None if there are no earlier runs."""
    message: str | None
    """The message that the workflow reported with `ctx.report`."""
    steps: StepCounts
    """The number of steps by state."""
    running: tuple[StepProgress, ...]
    """The steps that run, with their reports."""
    waiting_on: str | None
    """The timer, signal, gate or child that the run waits for, as text."""
    last_error: Failure | None
    """The latest failure of a step."""
    rate: float | None = attrs.field(eq=False)
    """Completed steps per second since the start of the run or of its generation. None if no step
    is completed."""
    nodes: dict[str, int] | None = None
    """Of a graph: the number of its nodes in each state, by the name of the `NodeState`. The nodes
    in the bodies of maps do not count."""
    items: dict[str, ItemCounts] = attrs.field(factory=dict)
    """Of a graph: the items of each map that the run has reached, by the name of the node. A map in
    the body of another does not count."""
    elapsed: float | None = attrs.field(eq=False)
    """Seconds since the start of the run, or from its start to its end."""
    time_left: float | None = attrs.field(eq=False)
    """An estimate of the seconds until the end, from earlier runs. None if there are none."""
    compensation: CompensationProgress | None = None
    """The progress of the compensation of the run. While it lasts, `percent` and `time_left` are
    None, and `running` has the compensation that runs."""

    @property
    def compensating(self) -> bool:
        """Return whether the run failed or was cancelled and its compensations have not ended."""
        return self.compensation is not None and not self.state.terminal

    @property
    def steps_done(self) -> int:
        """Return the number of steps or turns that have succeeded."""
        return self.steps.done


@attrs.frozen(kw_only=True)
class StoredReport:
    """The last report of a workflow with `ctx.report`."""

    percent: float
    message: str
    at: float


@attrs.frozen(kw_only=True)
class Snapshot:
    """The known state of a run at one commit."""

    submission: Submission
    state: State
    generation: int
    started_at: float | None
    ended_at: float | None
    waiting_on: str | None
    steps: StepCounts
    recent: int
    """The number of steps that were done in this generation."""
    running: tuple[StepProgress, ...]
    last_error: Failure | None
    compensation: CompensationProgress | None


class JournalTally:
    """The sum of the journal entries that were read. Later entries can be added."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.first: float | None = None
        """When the first call of this generation began."""
        self.last: float | None = None
        """When the latest entry was made."""
        self.driven = False
        """Whether the run was driven in this generation."""
        self._done = 0

    def steps_done(self) -> int:
        """Return the number of steps or turns that have succeeded."""
        turn, continued = self.journal.turn, self.journal.continued
        before = 0 if turn is None else turn.number
        return self._done + before + (0 if continued is None else continued.steps)

    def take(self, entries: Sequence[tuple[int, JournalEntry]]) -> None:
        """Add the next entries."""
        fold = self.journal.fold
        for sequence, entry in entries:
            if isinstance(entry, Redriven):
                self.first, self.driven = None, False
            elif is_driven(entry):
                begun = began_at(entry)
                if self.first is None or begun < self.first:
                    self.first = begun
                self.driven = True
            if self.last is None or entry.at > self.last:
                self.last = entry.at
            if type(entry) is CallDone and entry.call is CallKind.STEP:
                self._done += not entry.ident.startswith(COMPENSATION)
                entry = entry._replace(payload=None)  # the output is not needed
            fold(sequence, entry)


@attrs.frozen(kw_only=True)
class StoredRecords:
    """The records of a run except its journal, as of one commit."""

    submission: Submission
    status: StatusRecord
    begun: list[list[Any]]
    reports: list[list[Any]]
    held: bool
    """Whether the run is at the head of its key, and its key or the runtime is paused."""
    last: float | None = None
    """When the latest journal entry was made, if only that was read."""

    @property
    def report(self) -> StoredReport | None:
        """Return the last report of the workflow."""
        return read_report(next((each for each in self.reports if not each[0]), None))


def read_report(fields: list[Any] | None) -> StoredReport | None:
    """Return the report of a workflow from the fields of its record."""
    if fields is None:
        return None
    _, _, percent, message, at = fields
    return StoredReport(percent=percent, message=message, at=at)


def snapshot_of_records(records: StoredRecords, tally: JournalTally) -> Snapshot:
    """Return a snapshot of a run from its records."""
    submission, status, journal = records.submission, records.status, tally.journal
    ended = status.state.terminal
    reports = {step: (attempt, *rest) for step, attempt, *rest in records.reports}
    running = () if ended else _sorted(_running(each, reports) for each in records.begun)
    done = max(tally.steps_done(), status.steps_done)
    counts = _count(journal, done, running, ended=ended)
    state = _state(records, counts, driven=tally.driven)
    return Snapshot(
        submission=submission,
        state=state,
        generation=status.generation,
        # The status record is not written when a run starts, so the journal may know better.
        started_at=min(filter(None, (status.started_at, tally.first)), default=None),
        ended_at=status.ended_at,
        waiting_on=status.waiting_on if state is State.WAITING else None,
        steps=counts,
        recent=_recent(journal, status.generation, done),
        running=running,
        last_error=status.failure or _last_failure(journal),
        compensation=journal.compensation(),
    )


def snapshot_of_run(run: "Run") -> Snapshot:
    """Return a snapshot of a run in memory. Some of it may be staged only: wait for the commit
    before you show it."""
    status, journal = run.status, run.journal
    ended = status.state.terminal
    running = _sorted(
        StepProgress(
            step=each.step,
            attempt=each.attempt,
            began_at=each.begun,
            percent=None if each.progress is None else each.progress.percent,
            message=None if each.progress is None else each.progress.message,
        )
        for each in (() if ended else run.current.values())
    )
    state = run.public_status().state if not ended else status.state
    return Snapshot(
        submission=run.submission,
        state=state,
        generation=status.generation,
        started_at=status.started_at,
        ended_at=status.ended_at,
        waiting_on=status.waiting_on if state is State.WAITING else None,
        steps=_count(journal, status.steps_done, running, ended=ended),
        recent=_recent(journal, status.generation, status.steps_done),
        running=running,
        last_error=status.failure or _last_failure(journal),
        compensation=journal.compensation(),
    )


def summarize(run: "Run") -> Summary | None:
    """Return the summary of the journal of a run in memory, or None if it is not known. A graph
    knows its nodes only while it is driven. A machine that has not ended gets no summary: it
    replaces its entries, so a reader could not tell whether the summary is up to date."""
    status, journal = run.status, run.journal
    ended = status.state.terminal
    if not knows_progress(run) or (run.workflow.kind == "machine" and not ended):
        return None
    counts = _count(journal, status.steps_done, (), ended=ended)
    nodes = items = None
    if run.graph is not None:
        nodes = run.graph.node_counts()
        items = {
            name: [each.total, each.done, each.failed, each.running]
            for name, each in run.graph.item_counts().items()
        }
    return Summary(
        retrying=counts.retrying,
        waiting=counts.waiting,
        failed=counts.failed,
        recent=_recent(journal, status.generation, status.steps_done),
        last_failure=_last_failure(journal) if status.failure is None else None,
        nodes=nodes,
        items=items,
    )


def knows_progress(run: "Run") -> bool:
    """Return whether a run in memory knows its progress. A graph knows it while it is driven, once
    it has replayed its journal."""
    if run.workflow is None:
        return False
    if run.workflow.kind != "graph":
        return True
    return run.graph is not None and not run.journal.is_replaying()


def snapshot_of_summary(records: StoredRecords) -> Snapshot:
    """Return a snapshot of a run that was evicted or has ended, from its status record."""
    status = records.status
    summary = status.summary or Summary(recent=status.steps_done)
    counts = StepCounts(
        done=status.steps_done,
        retrying=summary.retrying,
        waiting=summary.waiting,
        failed=summary.failed,
    )
    state = _state(records, counts, driven=False)
    return Snapshot(
        submission=records.submission,
        state=state,
        generation=status.generation,
        started_at=status.started_at,
        ended_at=status.ended_at,
        waiting_on=status.waiting_on if state is State.WAITING else None,
        steps=counts,
        recent=summary.recent,
        running=(),
        last_error=status.failure or summary.last_failure,
        compensation=status.compensation,
    )


def assess(
    known: Snapshot,
    report: StoredReport | None,
    last: float | None,
    usual: DurationStatistics | None,
    now: float,
) -> Progress:
    """Return the progress of a run. `last` is the time of its latest journal entry, `usual` the
    statistics of earlier runs."""
    state, counts, start = known.state, known.steps, known.started_at
    ended = state.terminal
    done = counts.done + sum(each.percent or 0.0 for each in known.running) / 100
    end = now if known.ended_at is None else known.ended_at
    elapsed = None if start is None else max(0.0, end - start)
    # Most steps of a run that was redriven were done before its present start.
    fresh = known.generation == 1
    pace = None
    if fresh and counts.done and start is not None and last and last > start:
        pace = (last - start) / counts.done
    percent: float | None = None
    left: float | None = None
    if state is State.SUCCEEDED:
        percent = 100.0
    elif known.compensation is not None and not ended:
        pass  # the steps are being undone
    elif report is not None:
        percent = report.percent
        if fresh and percent and start is not None:
            left = max(0.0, report.at - start) * (100 - percent) / percent
            left -= now - report.at
    elif usual is not None and not ended:
        percent = min(99.0, 100 * done / usual.steps)
        if not fresh:
            left = usual.seconds * max(0.0, 1 - done / usual.steps)
        elif pace is None:
            left = usual.seconds - (elapsed or 0.0)
        else:
            left = max(0.0, usual.steps - done) * pace - (now - (last or now))
    return Progress(
        run_id=known.submission.run_id,
        key=known.submission.key,
        workflow=known.submission.workflow,
        state=state,
        percent=percent,
        message=None if report is None else report.message,
        steps=counts,
        running=known.running,
        waiting_on=known.waiting_on,
        last_error=known.last_error,
        rate=known.recent / elapsed if known.recent and elapsed else None,
        elapsed=elapsed,
        time_left=0.0 if ended else None if left is None else max(0.0, left),
        compensation=known.compensation,
    )


def _running(begun: list[Any], reports: dict[str, tuple[Any, ...]]) -> StepProgress:
    step, attempt, at, _ = begun
    report = reports.get(step)
    if report is None or report[0] != attempt:
        return StepProgress(step=step, attempt=attempt, began_at=at)
    return StepProgress(
        step=step, attempt=attempt, began_at=at, percent=report[1], message=report[2]
    )


def _last_failure(journal: Journal) -> Failure | None:
    """Return the failure of the latest failed attempt. The failures of a turn of a machine are
    dropped when the turn is done."""
    forgotten = journal.turn is not None and not journal.turn_entries
    return None if forgotten else journal.last_failure


def _sorted(running: Iterable[StepProgress]) -> tuple[StepProgress, ...]:
    return tuple(sorted(running, key=lambda each: (each.began_at, each.step)))


def _recent(journal: Journal, generation: int, done: int) -> int:
    """Return the number of steps that were done in this generation, or 0 if it is not known."""
    if generation == 1:
        return done
    # The entry for the next turn of a machine replaces the earlier ones.
    known = journal.done_before is not None and journal.turn is None
    return done - (journal.done_before or 0) if known else 0


def _count(
    journal: Journal, done: int, running: tuple[StepProgress, ...], *, ended: bool
) -> StepCounts:
    memories = journal.memories
    over, unfinished, failed = EntryKind.DONE, list[tuple[str, CallRecord]](), 0
    for ident, memory in memories.items():
        outcome = memory.outcome
        if outcome is over:
            continue
        if outcome is None:
            unfinished.append((ident, memory))
        else:
            failed += outcome is EntryKind.GAVE_UP and not ident.startswith(COMPENSATION)
    if ended:
        return StepCounts(done=done, failed=failed)
    retrying = waiting = 0
    lost = _lost(memories) if unfinished else ()
    for ident, memory in unfinished:
        if not (lost and ident.startswith(lost)):
            waiting += memory.call is CallKind.TIMER or memory.rank > 0
            retrying += memory.call is CallKind.STEP and memory.known
    again = sum(each.step in memories and memories[each.step].known for each in running)
    retrying = max(0, retrying - again)
    turn = journal.turn
    if turn is not None and (turn.timer or turn.channel) and not running and not retrying:
        waiting += 1
    return StepCounts(
        done=done, running=len(running), retrying=retrying, waiting=waiting, failed=failed
    )


def _lost(memories: Mapping[str, CallRecord]) -> tuple[str, ...]:
    """Return the prefixes of the calls that a failed branch cancelled."""
    return tuple(
        ident.removesuffix("()") + "."
        for ident, memory in memories.items()
        if memory.call is CallKind.GATHER and memory.outcome is not None
    )


def _state(records: StoredRecords, counts: StepCounts, *, driven: bool) -> State:
    status = records.status
    state = status.state
    if state.terminal or state is State.QUARANTINED:
        return state
    if status.cancel_requested:
        return State.CANCELLING
    if counts.running:
        return State.RUNNING
    if status.paused or records.held:
        return State.PAUSED
    if state is State.PENDING and driven:
        state = State.RUNNING
    over = not counts.retrying and not counts.waiting
    # The journal has every wait. The status is not always written again when a wait ends.
    if state is State.WAITING and over:
        state = State.RUNNING
    return state
