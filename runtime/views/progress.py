"""Progress: how far a run is, from its records alone, so that any process can say it.

What is counted is durable. Rate and time left are guesses from what was observed: how fast the
steps of this run were done, and how many of them earlier runs of the workflow took.
"""

from typing import Any

import attrs

from keyrun.runtime.journal.journal import Call, Entry, Journal
from keyrun.runtime.records import Standing, Submission
from keyrun.runtime.values import Failure, State
from keyrun.runtime.views.experience import Experience

_OWN_WAITS = ("timer", "backoff")
"""What the journal tells when it is over; the status is not always written again then."""


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
    """Of a graph: how many of its nodes are done, running, waiting, pending, skipped, failed and
    cancelled."""
    elapsed: float | None = attrs.field(eq=False)
    time_left: float | None = attrs.field(eq=False)

    @property
    def steps_done(self) -> int:
        """How many steps, or turns, have succeeded."""
        return self.steps.done


class Tally:
    """What was read of a journal so far; reading on needs only what came since."""

    def __init__(self) -> None:
        self.journal = Journal()
        self.after = b""
        """The key of the last record that was read."""
        self.first: float | None = None
        self.last: float | None = None
        """When the first step of this generation began, and when the last one was done."""
        self.done = 0
        """Steps that were done in this generation; not of machines."""
        self.stirred = False
        """Whether anything happened in this generation."""

    @property
    def spent(self) -> bool:
        """Whether records that were read may be gone: a machine keeps those of its turn only."""
        return self.journal.turn is not None or bool(self.journal.turn_entries)

    def outdated(self, first: list[Any] | None) -> bool:
        """Whether all that was read is gone, since the run goes on with another input; `first` is
        the entry that stands before all others, if there is one."""
        known = self.journal.continued
        count = first[3] if first is not None and first[0] == Entry.CONTINUED else 0
        return self.after != b"" and count != (0 if known is None else known.number)

    def take(self, rows: list[tuple[bytes, list[Any]]]) -> None:
        """Read on."""
        for key, fields in rows:
            self.after = key
            kind, _, at, *rest = fields
            entry = Entry(kind)
            if entry is Entry.DONE and rest[0] == Call.STEP:
                fields = [*fields[:-1], None]  # what it returned matters to nobody here
                self.done += 1
                self._done(rest[3], at)
            elif entry is Entry.TURN:
                self._done(at, at)
            elif entry is Entry.REDRIVEN:
                self.done, self.first, self.last = 0, None, None
            self.stirred = entry is not Entry.REDRIVEN and (self.stirred or entry is not Entry.NOTE)
            self.journal.fold(int.from_bytes(key[-4:], "big"), fields)

    def _done(self, begun: float, at: float) -> None:
        self.first = begun if self.first is None else min(begun, self.first)
        self.last = at if self.last is None else max(at, self.last)

    def unfinished(self) -> tuple[int, int, int]:
        """How many steps are to be tried again, wait for time to pass, and failed for good; steps
        that run are among the first."""
        memories = self.journal.memories
        lost = tuple(
            ident.removesuffix("()") + "."
            for ident, memory in memories.items()
            if memory.call is Call.GATHER and memory.outcome is not None
        )
        retrying = waiting = failed = 0
        for ident, memory in memories.items():
            if memory.outcome is None:
                if not (lost and ident.startswith(lost)):
                    waiting += memory.call is Call.TIMER or memory.rank > 0
                    retrying += memory.call is Call.STEP and memory.known
            else:
                failed += memory.outcome is Entry.GAVE_UP
        return retrying, waiting, failed


@attrs.frozen(kw_only=True)
class Records:
    """Everything that is stored of where a run is, as of one commit."""

    submission: Submission
    standing: Standing
    begun: list[list[Any]]
    reports: list[list[Any]]
    held: bool
    """Whether its key, or everything, is paused, and it is the first of its key."""


def assess(records: Records, tally: Tally, experience: Experience | None, now: float) -> Progress:
    """What all of that comes to."""
    submission, standing = records.submission, records.standing
    ended = standing.state.terminal
    said = {step: (attempt, *rest) for step, attempt, *rest in records.reports}
    running = () if ended else tuple(_running(each, said) for each in records.begun)
    counts = _count(tally, standing, running)
    state = _state(records, tally, counts)
    done = counts.done + sum(each.percent or 0.0 for each in running) / 100
    # The status is not stored when a run starts, so what was stored later may be too late.
    start = min(filter(None, (standing.started_at, tally.first)), default=None)
    end = now if standing.ended_at is None else standing.ended_at
    elapsed = None if start is None else max(0.0, end - start)
    pace = None
    # Of a run that was redriven, most steps were done before its present start.
    fresh = standing.generation == 1
    recent = tally.done
    if tally.journal.turn is not None:
        recent = counts.done if fresh else 0
    if fresh and counts.done and start is not None and tally.last and tally.last > start:
        pace = (tally.last - start) / counts.done
    percent: float | None = None
    left: float | None = None
    _, reported, message, reported_at = said.get("", (0, None, None, 0.0))
    if state is State.SUCCEEDED:
        percent = 100.0
    elif reported is not None:
        percent = reported
        if fresh and reported and start is not None:
            left = max(0.0, reported_at - start) * (100 - reported) / reported
            left -= now - reported_at
    elif experience is not None and not ended:
        percent = min(99.0, 100 * done / experience.steps)
        if not fresh:
            left = experience.seconds * max(0.0, 1 - done / experience.steps)
        elif pace is None:
            left = experience.seconds - (elapsed or 0.0)
        else:
            left = max(0.0, experience.steps - done) * pace - (now - (tally.last or now))
    return Progress(
        run_id=submission.run_id,
        key=submission.key,
        workflow=submission.workflow,
        state=state,
        percent=percent,
        message=message,
        steps=counts,
        running=running,
        waiting_on=standing.waiting_on if state is State.WAITING else None,
        last_error=standing.failure or tally.journal.last_failure,
        rate=recent / elapsed if recent and elapsed else None,
        elapsed=elapsed,
        time_left=0.0 if ended else None if left is None else max(0.0, left),
    )


def _running(begun: list[Any], said: dict[str, tuple[Any, ...]]) -> StepProgress:
    step, attempt, at, _ = begun
    report = said.get(step)
    if report is None or report[0] != attempt:
        return StepProgress(step=step, attempt=attempt, began_at=at)
    return StepProgress(
        step=step, attempt=attempt, began_at=at, percent=report[1], message=report[2]
    )


def _count(tally: Tally, standing: Standing, running: tuple[StepProgress, ...]) -> StepCounts:
    done = max(tally.journal.steps_done(), standing.steps_done)
    retrying, waiting, failed = tally.unfinished()
    if standing.state.terminal:
        return StepCounts(done=done, failed=failed)
    memories = tally.journal.memories
    again = sum(each.step in memories and memories[each.step].known for each in running)
    retrying = max(0, retrying - again)
    turn = tally.journal.turn
    if turn is not None and (turn.timer or turn.channel) and not running and not retrying:
        waiting += 1
    return StepCounts(
        done=done, running=len(running), retrying=retrying, waiting=waiting, failed=failed
    )


def _state(records: Records, tally: Tally, counts: StepCounts) -> State:
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
    if state is State.PENDING and tally.stirred:
        state = State.RUNNING
    over = not counts.retrying and not counts.waiting
    if state is State.WAITING and standing.waiting_on in _OWN_WAITS and over:
        state = State.RUNNING
    return state
