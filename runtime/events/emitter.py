"""The emitter: builds events for the feed.

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
    from keyrun.runtime.records.submission import Standing, Submission
    from keyrun.runtime.unwinding import Unwind
    from keyrun.runtime.values import CircuitStatus
    from keyrun.storage.group import Group


class EventReport(Protocol):
    """The progress that a run or a step has reported."""

    at: float
    told: "Place | None"

    @property
    def said(self) -> tuple[float, str]:
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
    def standing(self) -> "Standing": ...

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
    """A run was admitted."""
    if group is not feed.group:
        feed.follow(group)
    feed.staged.append((_SUBMITTED, run.submitted_at, run.about, 1, 0, None, None, None))


def started(feed: "Feed", run: "EventRun") -> None:
    """A run is driven for the first time: no record says so, it rides in the next commit."""
    now, submission, commits = run.standing, run.submission, feed.commits
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
    standing: "Standing",
    reason: str | None = None,
) -> None:
    """Something happened to a run."""
    done = standing.generation, standing.steps_done
    feed.tell(group, RunEvent(kind, feed.wall(), *run.about, *done, reason=reason))


def compensating(feed: "Feed", run: "EventRun", reason: str | None) -> None:
    """The compensations of a run are about to begin, and that is staged."""
    kind, standing = EventKind.RUN_COMPENSATING, run.standing
    done = standing.generation, standing.steps_done
    about, failure = run.submission.about, standing.failure
    event = RunEvent(kind, feed.wall(), *about, *done, reason=reason, failure=failure)
    feed.tell(run.staged, event)


def run_goes_on(feed: "Feed", kind: EventKind, run: "EventRun") -> None:
    """A run goes on: no record says so, it rides in the next commit."""
    run_changed(feed, feed.commits.open_group(), kind, run.submission, run.standing)


def run_waits(feed: "Feed", run: "EventRun", waiting_on: str, delay: float | None) -> None:
    """A run waits, and that is staged."""
    kind, about = EventKind.RUN_WAITING, run.submission.about
    feed.tell(run.staged, WaitEvent(kind, feed.wall(), *about, waiting_on, delay))


def run_ended(feed: "Feed", run: "EventRun") -> None:
    """The end of a run is staged."""
    standing = run.standing
    failure, at, began = standing.failure, standing.ended_at or 0.0, standing.started_at
    if failure is not None and failure.kind in _ENDING_LIMITS:
        limit_hit(feed, run, failure)
    elapsed = None if began is None else at - began if at > began else 0.0
    state, done = standing.state, standing.steps_done
    about = run.submission.described or run.submission.about
    # To look a state up in a dictionary takes as long as the rest.
    kind = _SUCCEEDED if state is _SUCCESS else _ENDS[state]
    if run.staged is not feed.group:
        feed.follow(run.staged)
    told = kind, at, about, standing.generation, done, elapsed, standing.reason, failure
    feed.staged.append(told)


_ENDING_LIMITS = frozenset({FailureKind.RUN_TIMEOUT, FailureKind.ITERATION_LIMIT})
"""Those that end a run by themselves; of the others its step tells."""


def run_progress(feed: "Feed", run: "EventRun", report: "EventReport") -> None:
    """What the workflow said of itself: once in each commit."""
    kind, about = EventKind.RUN_PROGRESS, run.submission.about
    _progress(feed, report, ProgressEvent(kind, report.at, *about, None, None, *report.said))


def step_progress(
    feed: "Feed", run: "EventRun", current: "EventStep", report: "EventReport"
) -> None:
    """What an attempt said of itself: once in each commit."""
    kind, about = EventKind.STEP_PROGRESS, run.submission.about
    where = current.step, current.attempt
    _progress(feed, report, ProgressEvent(kind, report.at, *about, *where, *report.said))


def _progress(feed: "Feed", report: "EventReport", event: ProgressEvent) -> None:
    if report.told is None or not feed.amend(report.told, event):
        report.told = feed.tell(feed.commits.open_group(), event)


def step_started(
    feed: "Feed", run: "EventRun", current: "EventStep", group: "Group | None" = None
) -> None:
    """An attempt begins, and its marker is staged, or durable. What it said of itself before
    anybody could know of it comes right behind."""
    kind, where = EventKind.STEP_STARTED, (current.step, current.attempt)
    event = StepEvent(kind, current.begun, *run.submission.about, *where)
    feed.tell(group or run.staged, event)
    if current.progress is not None:
        step_progress(feed, run, current, current.progress)


def step_completed(feed: "Feed", run: "EventRun", current: "EventStep", at: float) -> None:
    """The outcome of a step is staged."""
    if current.until is None:
        if current.progress is None:
            # The way of every step: no call that is not needed, and `about` is made already.
            if run.staged is not feed.group:
                feed.follow(run.staged)
            about = run.submission.described or run.submission.about
            feed.staged.append((current.begun, at, about, current.step, current.attempt))
            return
        step_started(feed, run, current)
    about, elapsed = run.submission.about, current.elapsed()
    kind, step = EventKind.STEP_COMPLETED, current.step
    feed.tell(run.staged, StepEvent(kind, at, *about, step, current.attempt, elapsed))


def step_failed(
    feed: "Feed",
    run: "EventRun",
    failure: Failure,
    current: "EventStep | None" = None,
    *,
    delay: float | None = None,
    timed_out: bool = False,
) -> None:
    """A failed attempt is staged; with a `delay` another follows. Without `current` there was
    no attempt."""
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
        feed.tell(run.staged, event)


def step_stopped(
    feed: "Feed", kind: EventKind, run: "EventRun", current: "EventStep", why: str
) -> None:
    """An attempt was cut off, or ought to have been: that rides in the next commit."""
    group = feed.commits.open_group()
    if current.until is None:
        step_started(feed, run, current, group)
    about, where = run.submission.about, (current.step, current.attempt, current.elapsed())
    feed.tell(group, SetbackEvent(kind, feed.wall(), *about, *where, why))


_CUT_OFF = {
    "": "a branch beside it failed",
    "DEADLINE": "the time of the run is up",
    "CANCEL": "the run is being cancelled",
    "LEAVE": "the runtime is being left; it will run again",
}
"""Why, by the way in which the run is unwound; not of those that are driven again at once."""


def step_cancelled(run: "EventRun", current: "EventStep") -> None:
    """An attempt was cut off, if anybody wants to know."""
    feed, unwinding = run.feed, run.unwinding
    why = _CUT_OFF.get("" if unwinding is None else unwinding.name)
    if feed is not None and why is not None:
        step_stopped(feed, EventKind.STEP_CANCELLED, run, current, why)


def limit_hit(feed: "Feed", run: "EventRun", failure: Failure) -> None:
    """A run, or one of its steps, failed for a limit: one of those in `_LIMITS`."""
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
    feed.tell(run.staged, event)


def clamped(feed: "Feed", run: "EventRun", current: "EventStep", why: str) -> None:
    """The timeout of an attempt is cut, and that is staged."""
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
    feed.tell(run.staged, event)


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
    """Tell that submitters or nodes have to wait, or with a duration that none does any more: at
    once, because no record says so."""
    run_id, key, workflow = about
    kind = EventKind.BACKPRESSURE_BEGAN if duration is None else EventKind.BACKPRESSURE_ENDED
    at, run = feed.wall(), run_id or None
    event = BackpressureEvent(kind, at, run, key, workflow, depth, waited, duration, step, held)
    feed.tell(None, event)


def key_changed(
    feed: "Feed", group: "Group | None", kind: EventKind, key: str, reason: str | None = None
) -> None:
    """A key was quarantined or released, and `group` says so."""
    feed.tell(group, KeyEvent(kind, feed.wall(), None, key, None, reason))


_CIRCUITS = {
    "open": EventKind.CIRCUIT_OPENED,
    "half_open": EventKind.CIRCUIT_HALF_OPENED,
    "closed": EventKind.CIRCUIT_CLOSED,
}


def circuit_changed(at: float, status: "CircuitStatus", reason: str) -> CircuitEvent:
    """Return the event of a circuit breaker that has changed its state, in memory."""
    kind, numbers = _CIRCUITS[status.state], (status.calls, status.failures)
    return CircuitEvent(kind, at, None, None, None, status.step, *numbers, reason)


def starving(feed: "Feed", run: "EventRun", step: str, waited: float, reason: str) -> None:
    """A step waits long for what it needs."""
    about = run.submission.about
    event = SetbackEvent(EventKind.STEP_STARVING, feed.wall(), *about, step, 0, waited, reason)
    feed.tell(None, event)
