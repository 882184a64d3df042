"""Progress: how far a run is.

A `Snapshot` is what is known of a run at one moment. There are two ways to make one. `live` reads
the run in memory, which takes no longer for a long journal than for a short one. `stored` reads
the records, so that any process can make one. Both describe the run as of a commit.

Rate and time left are guesses from what was observed: how fast the steps of this run were done,
and how many of them earlier runs of the workflow took.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.runtime.inspect.durations import DurationStatistics
from keyrun.runtime.records.journal_entry import (
    COMPENSATION,
    CallDone,
    JournalEntry,
    Redriven,
    began_at,
    is_driven,
)
from keyrun.runtime.records.submission import Standing, Submission, Summary
from keyrun.runtime.run.journal import CallKind, CallRecord, Entry, Journal
from keyrun.runtime.values import CompensationProgress, Failure, State

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run


@attrs.frozen(kw_only=True)
class StepCounts:
    """Steps by how they stand. Retrying: an attempt failed or was cut off, and another follows.
    Waiting: durable timers. Failed: for good, whether or not the workflow went on after it."""

    done: int = 0
    running: int = 0
    retrying: int = 0
    waiting: int = 0
    failed: int = 0


@attrs.frozen(kw_only=True)
class StepProgress:
    """A step that is running, and what it last said of itself."""

    step: str
    attempt: int
    began_at: float
    percent: float | None = None
    message: str | None = None


@attrs.frozen(kw_only=True)
class Progress:
    """How far a run is. `percent` and `message` are what the workflow said with `ctx.report`; if it
    said nothing, the percentage is guessed from earlier runs, and None if there are none.

    `rate` is the steps that were done since the run, or its present generation, started, by the
    seconds since then, until now or to the end: it falls while nothing is done, and is None as
    long as nothing is. Two of these are equal if they differ only in the time that has passed.
    """

    run_id: str
    key: str
    workflow: str
    state: State
    percent: float | None
    message: str | None
    steps: StepCounts
    running: tuple[StepProgress, ...]
    waiting_on: str | None
    last_error: Failure | None
    rate: float | None = attrs.field(eq=False)
    nodes: dict[str, int] | None = None
    """Of a graph: the number of its nodes in each state, by the name of the `NodeState`."""
    elapsed: float | None = attrs.field(eq=False)
    time_left: float | None = attrs.field(eq=False)
    compensation: CompensationProgress | None = None
    """How far the compensation of the run is. While it lasts, `percent` and `time_left` are None,
    and `running` has the compensation that runs."""

    @property
    def compensating(self) -> bool:
        """Whether the run has failed, or is cancelled, and its compensations have not ended."""
        return self.compensation is not None and not self.state.terminal

    @property
    def steps_done(self) -> int:
        """How many steps, or turns, have succeeded."""
        return self.steps.done


@attrs.frozen(kw_only=True)
class StoredReport:
    """What the workflow reported last with `ctx.report`."""

    percent: float
    message: str
    at: float


@attrs.frozen(kw_only=True)
class Snapshot:
    """What is known of a run at one commit."""

    submission: Submission
    state: State
    generation: int
    started_at: float | None
    ended_at: float | None
    waiting_on: str | None
    steps: StepCounts
    recent: int
    """Steps that were done in this generation."""
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
        self.stirred = False
        """Whether the run was driven in this generation."""
        self._done = 0

    def steps_done(self) -> int:
        """The number of steps, or turns, that have succeeded."""
        turn, continued = self.journal.turn, self.journal.continued
        before = 0 if turn is None else turn.number
        return self._done + before + (0 if continued is None else continued.steps)

    def take(self, entries: Sequence[tuple[int, JournalEntry]]) -> None:
        """Add the next entries."""
        fold = self.journal.fold
        for sequence, entry in entries:
            if isinstance(entry, Redriven):
                self.first, self.stirred = None, False
            elif is_driven(entry):
                begun = began_at(entry)
                if self.first is None or begun < self.first:
                    self.first = begun
                self.stirred = True
            if self.last is None or entry.at > self.last:
                self.last = entry.at
            if type(entry) is CallDone and entry.call is CallKind.STEP:
                self._done += not entry.ident.startswith(COMPENSATION)
                entry = entry._replace(payload=None)  # the output is not needed
            fold(sequence, entry)


@attrs.frozen(kw_only=True)
class StoredRecords:
    """Everything that is stored of where a run is, besides its journal, as of one commit."""

    submission: Submission
    standing: Standing
    begun: list[list[Any]]
    reports: list[list[Any]]
    held: bool
    """Whether its key, or everything, is paused, and it is the first of its key."""
    last: float | None = None
    """When the latest journal entry was made, if only that was read."""

    @property
    def report(self) -> StoredReport | None:
        """What the workflow reported."""
        return read_report(next((each for each in self.reports if not each[0]), None))


def read_report(fields: list[Any] | None) -> StoredReport | None:
    """The report of a workflow from the fields of its record."""
    if fields is None:
        return None
    _, _, percent, message, at = fields
    return StoredReport(percent=percent, message=message, at=at)


def stored(records: StoredRecords, tally: JournalTally) -> Snapshot:
    """What the records say."""
    submission, standing, journal = records.submission, records.standing, tally.journal
    ended = standing.state.terminal
    said = {step: (attempt, *rest) for step, attempt, *rest in records.reports}
    running = () if ended else _sorted(_running(each, said) for each in records.begun)
    done = max(tally.steps_done(), standing.steps_done)
    counts = _count(journal, done, running, ended=ended)
    state = _state(records, counts, stirred=tally.stirred)
    return Snapshot(
        submission=submission,
        state=state,
        generation=standing.generation,
        # The status record is not written when a run starts, so the journal may know better.
        started_at=min(filter(None, (standing.started_at, tally.first)), default=None),
        ended_at=standing.ended_at,
        waiting_on=standing.waiting_on if state is State.WAITING else None,
        steps=counts,
        recent=_recent(journal, standing.generation, done),
        running=running,
        last_error=standing.failure or _last_failure(journal),
        compensation=journal.compensation(),
    )


def live(run: "Run") -> Snapshot:
    """What a run in memory knows of itself. Some of that may be staged only: wait for the commit
    before you show it."""
    standing, journal = run.standing, run.journal
    ended = standing.state.terminal
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
    state = run.status().state if not ended else standing.state
    return Snapshot(
        submission=run.submission,
        state=state,
        generation=standing.generation,
        started_at=standing.started_at,
        ended_at=standing.ended_at,
        waiting_on=standing.waiting_on if state is State.WAITING else None,
        steps=_count(journal, standing.steps_done, running, ended=ended),
        recent=_recent(journal, standing.generation, standing.steps_done),
        running=running,
        last_error=standing.failure or _last_failure(journal),
        compensation=journal.compensation(),
    )


def summarize(run: "Run") -> Summary | None:
    """What the journal of a run in memory adds up to; None if that is not known. A graph has to be
    driven to know where it is. A machine replaces its few entries, so that no later look could
    tell whether the summary is still true."""
    standing, journal = run.standing, run.journal
    ended = standing.state.terminal
    if not knows_itself(run) or (run.workflow.kind == "machine" and not ended):
        return None
    counts = _count(journal, standing.steps_done, (), ended=ended)
    nodes = None
    if run.graph is not None:
        nodes = run.graph.node_counts()
    return Summary(
        retrying=counts.retrying,
        waiting=counts.waiting,
        failed=counts.failed,
        recent=_recent(journal, standing.generation, standing.steps_done),
        last_failure=_last_failure(journal) if standing.failure is None else None,
        nodes=nodes,
    )


def knows_itself(run: "Run") -> bool:
    """Whether a run in memory knows how far it is. A graph does while it is driven, once it has
    replayed its journal."""
    if run.workflow is None:
        return False
    if run.workflow.kind != "graph":
        return True
    return run.graph is not None and not run.journal.replaying


def summarized(records: StoredRecords) -> Snapshot:
    """What the status record of a run says that has left memory, or has ended."""
    standing = records.standing
    summary = standing.summary or Summary(recent=standing.steps_done)
    counts = StepCounts(
        done=standing.steps_done,
        retrying=summary.retrying,
        waiting=summary.waiting,
        failed=summary.failed,
    )
    state = _state(records, counts, stirred=False)
    return Snapshot(
        submission=records.submission,
        state=state,
        generation=standing.generation,
        started_at=standing.started_at,
        ended_at=standing.ended_at,
        waiting_on=standing.waiting_on if state is State.WAITING else None,
        steps=counts,
        recent=summary.recent,
        running=(),
        last_error=standing.failure or summary.last_failure,
        compensation=standing.compensation,
    )


def assess(
    known: Snapshot,
    report: StoredReport | None,
    last: float | None,
    experience: DurationStatistics | None,
    now: float,
) -> Progress:
    """The progress of a run. `last` is when its latest journal entry was made."""
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
        pass  # what was done is being undone
    elif report is not None:
        percent = report.percent
        if fresh and percent and start is not None:
            left = max(0.0, report.at - start) * (100 - percent) / percent
            left -= now - report.at
    elif experience is not None and not ended:
        percent = min(99.0, 100 * done / experience.steps)
        if not fresh:
            left = experience.seconds * max(0.0, 1 - done / experience.steps)
        elif pace is None:
            left = experience.seconds - (elapsed or 0.0)
        else:
            left = max(0.0, experience.steps - done) * pace - (now - (last or now))
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


def _running(begun: list[Any], said: dict[str, tuple[Any, ...]]) -> StepProgress:
    step, attempt, at, _ = begun
    report = said.get(step)
    if report is None or report[0] != attempt:
        return StepProgress(step=step, attempt=attempt, began_at=at)
    return StepProgress(
        step=step, attempt=attempt, began_at=at, percent=report[1], message=report[2]
    )


def _last_failure(journal: Journal) -> Failure | None:
    """How the latest attempt that failed did. The failures of a turn of a machine are forgotten
    when the turn is done."""
    forgotten = journal.turn is not None and not journal.turn_entries
    return None if forgotten else journal.last_failure


def _sorted(running: Iterable[StepProgress]) -> tuple[StepProgress, ...]:
    return tuple(sorted(running, key=lambda each: (each.began_at, each.step)))


def _recent(journal: Journal, generation: int, done: int) -> int:
    """Steps that were done in this generation; 0 if that is not known."""
    if generation == 1:
        return done
    # The entry for the next turn of a machine replaces the earlier ones.
    known = journal.done_before is not None and journal.turn is None
    return done - (journal.done_before or 0) if known else 0


def _count(
    journal: Journal, done: int, running: tuple[StepProgress, ...], *, ended: bool
) -> StepCounts:
    memories = journal.memories
    over, unfinished, failed = Entry.DONE, list[tuple[str, CallRecord]](), 0
    for ident, memory in memories.items():
        outcome = memory.outcome
        if outcome is over:
            continue
        if outcome is None:
            unfinished.append((ident, memory))
        else:
            failed += outcome is Entry.GAVE_UP and not ident.startswith(COMPENSATION)
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
    """The beginnings of the names of calls that a failed sibling cancelled."""
    return tuple(
        ident.removesuffix("()") + "."
        for ident, memory in memories.items()
        if memory.call is CallKind.GATHER and memory.outcome is not None
    )


def _state(records: StoredRecords, counts: StepCounts, *, stirred: bool) -> State:
    standing = records.standing
    state = standing.state
    if state.terminal or state is State.QUARANTINED:
        return state
    if standing.cancel_requested:
        return State.CANCELLING
    if counts.running:
        return State.RUNNING
    if standing.paused or records.held:
        return State.PAUSED
    if state is State.PENDING and stirred:
        state = State.RUNNING
    over = not counts.retrying and not counts.waiting
    # The journal has every wait, and the status is not always written again when one is over.
    if state is State.WAITING and over:
        state = State.RUNNING
    return state
