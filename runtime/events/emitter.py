"""The emitter: builds events and passes them to the feed.

There is one function for each kind of event. It is called only while there is a listener, and after
the record is staged that makes the event true. It knows runs and steps by small protocols.
"""

from typing import TYPE_CHECKING, Protocol

from keyrun.runtime.events.types import (
    BackpressureEvent,
    CircuitEvent,
    EventKind,
    KeyEvent,
    LimitEvent,
    ProgressEvent,
    RunEvent,
    SetbackEvent,
    StepEvent,
    WaitEvent,
)
from keyrun.runtime.values import Failure, FailureKind, State

if TYPE_CHECKING:
    from keyrun.runtime.events.feed import Feed, Place
    from keyrun.runtime.pass_end import Unwind
    from keyrun.runtime.records.submission import StatusRecord, Submission
    from keyrun.runtime.values import CircuitStatus
    from keyrun.storage.group import Group


class EventReport(Protocol):
    """The progress that a run or a step has reported."""

    at: float
    staged: "Place | None"

    @property
    def content(self) -> tuple[float, str]:
        """Return percent and message."""


class EventStep(Protocol):
    """The attempt that an event is about."""

    step: str
    attempt: int
    begun: float
    timeout: float
    until: float | None

    @property
    def progress(self) -> EventReport | None: ...

    def elapsed(self) -> float:
        """Return the seconds since the attempt began."""


class EventRun(Protocol):
    """The run that an event is about."""

    @property
    def submission(self) -> "Submission": ...

    @property
    def status(self) -> "StatusRecord": ...

    @property
    def staged(self) -> "Group | None":
        """Return the last group that has records of the run."""

    @property
    def feed(self) -> "Feed | None": ...

    @property
    def unwinding(self) -> "Unwind | None":
        """Return why the coroutine of the run is being cancelled."""


_SUBMITTED, _STARTED = EventKind.RUN_SUBMITTED, EventKind.RUN_STARTED
_SUCCEEDED, _SUCCESS = EventKind.RUN_SUCCEEDED, State.SUCCEEDED

_ENDS = {
    State.SUCCEEDED: EventKind.RUN_SUCCEEDED,
    State.FAILED: EventKind.RUN_FAILED,
    State.CANCELLED: EventKind.RUN_CANCELLED,
}

_LIMITS = {
    FailureKind.RUN_TIMEOUT: "run_timeout",
    FailureKind.ITERATION_LIMIT: "max_iterations",
    FailureKind.RETRY_BUDGET: "retry_budget",
    FailureKind.INTERRUPTED: "max_interruptions",
}


def submitted(feed: "Feed", group: "Group", run: "Submission") -> None:
    """Emit that a run was admitted."""
    if group is not feed.group:
        feed.follow(group)
    feed.staged.append((_SUBMITTED, run.submitted_at, run.about, 1, 0, None, None, None))


def started(feed: "Feed", run: "EventRun") -> None:
    """Emit that a run starts. No record says so, so the event is published with the next commit."""
    now, submission, commits = run.status, run.submission, feed.commits
    at, about = now.started_at or 0.0, submission.described or submission.about
    group = commits.open_group() if commits.attentive else commits.group
    if group is not feed.group:
        feed.follow(group)
    feed.staged.append((_STARTED, at, about, now.generation, now.steps_done, None, None, None))


def run_changed(
    feed: "Feed",
    group: "Group | None",
    kind: EventKind,
    run: "Submission",
    status: "StatusRecord",
    reason: str | None = None,
) -> None:
    """Emit that the state of a run changed."""
    done = status.generation, status.steps_done
    feed.emit(group, RunEvent(kind, feed.wall(), *run.about, *done, reason=reason))


def compensating(feed: "Feed", run: "EventRun", reason: str | None) -> None:
    """Emit that the compensations of a run begin. The decision is staged."""
    kind, status = EventKind.RUN_COMPENSATING, run.status
    done = status.generation, status.steps_done
    about, failure = run.submission.about, status.failure
    event = RunEvent(kind, feed.wall(), *about, *done, reason=reason, failure=failure)
    feed.emit(run.staged, event)


def run_resumed(feed: "Feed", kind: EventKind, run: "EventRun") -> None:
    """Emit that a run resumes. No record says so, so the event is published with the next
    commit."""
    run_changed(feed, feed.commits.open_group(), kind, run.submission, run.status)


def run_waits(feed: "Feed", run: "EventRun", waiting_on: str, delay: float | None) -> None:
    """Emit that a run waits. Its status is staged."""
    kind, about = EventKind.RUN_WAITING, run.submission.about
    feed.emit(run.staged, WaitEvent(kind, feed.wall(), *about, waiting_on, delay))


def run_ended(feed: "Feed", run: "EventRun") -> None:
    """Emit the end of a run, which is staged."""
    status = run.status
    failure, at, began = status.failure, status.ended_at or 0.0, status.started_at
    if failure is not None and failure.kind in _ENDING_LIMITS:
        limit_hit(feed, run, failure)
    elapsed = None if began is None else at - began if at > began else 0.0
    state, done = status.state, status.steps_done
    about = run.submission.described or run.submission.about
    # Looking a state up in a dictionary takes as long as the rest.
    kind = _SUCCEEDED if state is _SUCCESS else _ENDS[state]
    if run.staged is not feed.group:
        feed.follow(run.staged)
    brief = kind, at, about, status.generation, done, elapsed, status.reason, failure
    feed.staged.append(brief)


_ENDING_LIMITS = frozenset({FailureKind.RUN_TIMEOUT, FailureKind.ITERATION_LIMIT})
"""The limits that end a run by themselves. The other limits fail a step, which emits them."""


def run_progress(feed: "Feed", run: "EventRun", report: "EventReport") -> None:
    """Emit the progress that a workflow reported, at most once per commit."""
    kind, about = EventKind.RUN_PROGRESS, run.submission.about
    _progress(feed, report, ProgressEvent(kind, report.at, *about, None, None, *report.content))


def step_progress(
    feed: "Feed", run: "EventRun", current: "EventStep", report: "EventReport"
) -> None:
    """Emit the progress that an attempt reported, at most once per commit."""
    kind, about = EventKind.STEP_PROGRESS, run.submission.about
    where = current.step, current.attempt
    _progress(feed, report, ProgressEvent(kind, report.at, *about, *where, *report.content))


def _progress(feed: "Feed", report: "EventReport", event: ProgressEvent) -> None:
    if report.staged is None or not feed.amend(report.staged, event):
        report.staged = feed.emit(feed.commits.open_group(), event)


def step_started(
    feed: "Feed", run: "EventRun", current: "EventStep", group: "Group | None" = None
) -> None:
    """Emit that an attempt begins. Its start marker is staged or durable. A progress report that
    the attempt made before that follows at once."""
    kind, where = EventKind.STEP_STARTED, (current.step, current.attempt)
    event = StepEvent(kind, current.begun, *run.submission.about, *where)
    feed.emit(group or run.staged, event)
    if current.progress is not None:
        step_progress(feed, run, current, current.progress)


def step_completed(feed: "Feed", run: "EventRun", current: "EventStep", at: float) -> None:
    """Emit that a step succeeded. Its outcome is staged."""
    if current.until is None:
        if current.progress is None:
            # The path of most steps, without calls that are not needed.
            if run.staged is not feed.group:
                feed.follow(run.staged)
            about = run.submission.described or run.submission.about
            feed.staged.append((current.begun, at, about, current.step, current.attempt))
            return
        step_started(feed, run, current)
    about, elapsed = run.submission.about, current.elapsed()
    kind, step = EventKind.STEP_COMPLETED, current.step
    feed.emit(run.staged, StepEvent(kind, at, *about, step, current.attempt, elapsed))


def step_failed(
    feed: "Feed",
    run: "EventRun",
    failure: Failure,
    current: "EventStep | None" = None,
    *,
    delay: float | None = None,
    timed_out: bool = False,
) -> None:
    """Emit that an attempt failed. The failure is staged. With a `delay`, another attempt follows.
    Without `current`, no attempt was made."""
    if current is not None and current.until is None:
        step_started(feed, run, current)
    kinds = [EventKind.STEP_FAILED if delay is None else EventKind.STEP_RETRYING]
    if timed_out:
        kinds.insert(0, EventKind.STEP_TIMED_OUT)
    if failure.kind is FailureKind.RETRY_BUDGET:
        limit_hit(feed, run, failure)
    about, where = run.submission.about, (failure.step or "", failure.attempt or 0)
    for kind in kinds:
        event = SetbackEvent(
            kind,
            feed.wall(),
            *about,
            *where,
            elapsed=failure.elapsed,
            reason=failure.reason,
            failure=failure,
            delay=delay if kind is EventKind.STEP_RETRYING else None,
        )
        feed.emit(run.staged, event)


def step_stopped(
    feed: "Feed", kind: EventKind, run: "EventRun", current: "EventStep", why: str
) -> None:
    """Emit that an attempt was cut off, or exceeded its timeout in a thread. The event is published
    with the next commit."""
    group = feed.commits.open_group()
    if current.until is None:
        step_started(feed, run, current, group)
    about, where = run.submission.about, (current.step, current.attempt, current.elapsed())
    feed.emit(group, SetbackEvent(kind, feed.wall(), *about, *where, why))


_CUT_OFF = {
    "": "a branch beside it failed",
    "DEADLINE": "the time of the run is up",
    "CANCEL": "the run is being cancelled",
    "LEAVE": "the runtime is closing; the step runs again at the next open",
}
"""The reasons, by the name of `Unwind`. A run that is driven again at once has none."""


def step_cancelled(run: "EventRun", current: "EventStep") -> None:
    """Emit that an attempt was cut off, if there is a listener."""
    feed, unwinding = run.feed, run.unwinding
    why = _CUT_OFF.get("" if unwinding is None else unwinding.name)
    if feed is not None and why is not None:
        step_stopped(feed, EventKind.STEP_CANCELLED, run, current, why)


def limit_hit(feed: "Feed", run: "EventRun", failure: Failure) -> None:
    """Emit that a run or a step failed because of one of `_LIMITS`."""
    limit = _LIMITS[failure.kind]
    event = LimitEvent(
        EventKind.LIMIT_HIT,
        feed.wall(),
        *run.submission.about,
        limit,
        getattr(run.submission.limits, limit),
        failure.step,
        failure.attempt,
        failure.reason,
        failure,
    )
    feed.emit(run.staged, event)


def clamped(feed: "Feed", run: "EventRun", current: "EventStep", why: str) -> None:
    """Emit that the timeout of an attempt was reduced. A note about it is staged."""
    event = LimitEvent(
        EventKind.CLAMP,
        feed.wall(),
        *run.submission.about,
        "step_timeout",
        current.timeout,
        current.step,
        current.attempt,
        why,
    )
    feed.emit(run.staged, event)


def backpressure(
    feed: "Feed",
    about: tuple[str, str, str],
    *,
    depth: int,
    waited: float,
    duration: float | None,
    step: str | None = None,
    held: str | None = None,
) -> None:
    """Emit that submitters or nodes have to wait, or, with a duration, that none waits any more.
    The event is published at once, because no record says so."""
    run_id, key, workflow = about
    kind = EventKind.BACKPRESSURE_BEGAN if duration is None else EventKind.BACKPRESSURE_ENDED
    at, run = feed.wall(), run_id or None
    event = BackpressureEvent(kind, at, run, key, workflow, depth, waited, duration, step, held)
    feed.emit(None, event)


def key_changed(
    feed: "Feed", group: "Group | None", kind: EventKind, key: str, reason: str | None = None
) -> None:
    """Emit that a key was quarantined or released. `group` has the record of it."""
    feed.emit(group, KeyEvent(kind, feed.wall(), None, key, None, reason))


_CIRCUITS = {
    "open": EventKind.CIRCUIT_OPENED,
    "half_open": EventKind.CIRCUIT_HALF_OPENED,
    "closed": EventKind.CIRCUIT_CLOSED,
}


def circuit_changed(at: float, status: "CircuitStatus", reason: str) -> CircuitEvent:
    """Return the event of a circuit breaker that has changed its state."""
    kind, numbers = _CIRCUITS[status.state], (status.calls, status.failures)
    return CircuitEvent(kind, at, None, None, None, status.step, *numbers, reason)


def blocked(feed: "Feed", run: "EventRun", current: "EventStep", held: float, reason: str) -> None:
    """Emit that an attempt held the event loop. The event is published at once, because no record
    says so."""
    about, where = run.submission.about, (current.step, current.attempt)
    feed.emit(None, SetbackEvent(EventKind.STEP_BLOCKED, feed.wall(), *about, *where, held, reason))


def starving(feed: "Feed", run: "EventRun", step: str, waited: float, reason: str) -> None:
    """Emit that a step has waited long for its resources."""
    about = run.submission.about
    event = SetbackEvent(EventKind.STEP_STARVING, feed.wall(), *about, step, 0, waited, reason)
    feed.emit(None, event)
