"""Event types: what `rt.events()` yields about runs, steps, keys, circuits and the backlog.

All events start with the same five fields: `kind`, `at` (seconds since the epoch), `run_id`, `key`
and `workflow`, with None where they do not apply. Events are tuples because a busy runtime makes
100,000 of them per second. To add an event, add a name to `EventKind`. Add a type only if no
existing type has the fields for it.
"""

from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from keyrun.runtime.values import Failure


class EventKind(StrEnum):
    """The kind of an event."""

    RUN_SUBMITTED = "run_submitted"
    RUN_STARTED = "run_started"
    RUN_WAITING = "run_waiting"
    RUN_RESUMED = "run_resumed"
    """The run resumes after a wait or a pause."""
    RUN_PAUSED = "run_paused"
    """The run, its key or the runtime was paused. A running step still finishes."""
    RUN_CONTINUED = "run_continued"
    """The run continues with another input and an empty journal: see `ctx.continue_as`."""
    RUN_COMPENSATING = "run_compensating"
    """The run failed or was cancelled, and its compensations start. The name of a compensation is
    `undo()/` and the name of its step."""
    RUN_CANCELLING = "run_cancelling"
    """The cancellation of the run was requested, and the run has not ended yet."""
    RUN_PROGRESS = "run_progress"
    """The workflow called `ctx.report`."""
    RUN_SUCCEEDED = "run_succeeded"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"
    RUN_REDRIVEN = "run_redriven"
    RUN_RECOVERED = "run_recovered"
    """The run started before the store was opened, and resumes."""
    RUN_QUARANTINED = "run_quarantined"
    STEP_STARTED = "step_started"
    """An attempt starts. If it never suspends, the event is emitted when the attempt ends."""
    STEP_COMPLETED = "step_completed"
    STEP_RETRYING = "step_retrying"
    """An attempt failed, and the next attempt follows after `delay` seconds."""
    STEP_FAILED = "step_failed"
    """The step failed and is not retried."""
    STEP_TIMED_OUT = "step_timed_out"
    """An attempt exceeded its timeout. `step_retrying` or `step_failed` follows."""
    STEP_CANCELLED = "step_cancelled"
    """An attempt was cancelled for the given `reason`. This is not a failure."""
    STEP_OVERRUN = "step_overrun"
    """A sync step exceeded its timeout, and its thread is still running."""
    STEP_PROGRESS = "step_progress"
    """A step called `current_step().report`."""
    STEP_STARVING = "step_starving"
    """A step has waited too long for the resources that it needs."""
    CIRCUIT_OPENED = "circuit_opened"
    CIRCUIT_HALF_OPENED = "circuit_half_opened"
    CIRCUIT_CLOSED = "circuit_closed"
    LIMIT_HIT = "limit_hit"
    CLAMP = "clamp"
    """The timeout of a step was reduced to the time that its run has left."""
    BACKPRESSURE_BEGAN = "backpressure_began"
    BACKPRESSURE_ENDED = "backpressure_ended"
    KEY_QUARANTINED = "key_quarantined"
    KEY_RELEASED = "key_released"
    MISSED = "missed"
    """Events were dropped at this point because the subscriber was too slow."""


class RunEvent(NamedTuple):
    """The state of a run changed."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    generation: int = 1
    steps_done: int = 0
    elapsed: float | None = None
    """Seconds from the start of the run to its end, if it has ended."""
    reason: str | None = None
    failure: Failure | None = None


class WaitEvent(NamedTuple):
    """A run waits for `waiting_on`, at most `delay` seconds."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    waiting_on: str
    delay: float | None


class StepEvent(NamedTuple):
    """An attempt of a step started or completed."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    step: str
    attempt: int
    elapsed: float | None = None


class SetbackEvent(NamedTuple):
    """An attempt of a step failed, was cancelled, exceeded its timeout or waits for resources."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    step: str
    attempt: int
    elapsed: float | None
    reason: str
    failure: Failure | None = None
    delay: float | None = None
    """Seconds until the next attempt, if there is one."""


class ProgressEvent(NamedTuple):
    """The progress that a step reported, or a workflow if `step` is None."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    step: str | None
    attempt: int | None
    percent: float
    message: str


class LimitEvent(NamedTuple):
    """A limit was reached or reduced; `limit` is its name in `Limits`."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    limit: str
    value: float
    """The value of the limit."""
    step: str | None
    attempt: int | None
    reason: str
    failure: Failure | None = None


class BackpressureEvent(NamedTuple):
    """Submitters wait because the queue is full, or nodes of graphs wait because of the
    `max_waiting` of a later node. Backpressure lasts from the first wait until no caller waits.

    `run_id`, `key` and `workflow` are those of the submission that waits, or of the run whose node
    waits."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str
    workflow: str
    depth: int
    """The number of pending runs, or of calls that wait for the policies of the node."""
    waited: float
    """Seconds that this submission or node has waited."""
    duration: float | None = None
    """Seconds from the start of the backpressure to its end."""
    step: str | None = None
    """The node whose `max_waiting` is reached; None if submitters wait."""
    held: str | None = None
    """The node that is held back; None if submitters wait."""


class CircuitEvent(NamedTuple):
    """The circuit breaker of a step opened, became half-open or closed."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str | None
    workflow: str | None
    step: str
    calls: int
    failures: int
    reason: str


class KeyEvent(NamedTuple):
    """A key was quarantined or released."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str
    workflow: str | None
    reason: str | None = None


class Missed(NamedTuple):
    """`missed` events were dropped at this point because the buffer was full."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str | None
    workflow: str | None
    missed: int


Event = (
    RunEvent
    | WaitEvent
    | StepEvent
    | SetbackEvent
    | ProgressEvent
    | LimitEvent
    | BackpressureEvent
    | CircuitEvent
    | KeyEvent
    | Missed
)

About = tuple[str, str, str]
"""The id, key and workflow of a run."""

Brief = (
    tuple[float, float, About, str, int]
    | tuple[EventKind, float, About, int, int, float | None, str | None, Failure | None]
)
"""The short form of the most frequent events. A tuple of five stands for two events: a step started
and completed without a wait. A tuple of eight is a `RunEvent`. The subscription builds the events
when they are read. Until then plain tuples cost little, and the garbage collector does not track
them."""

_STARTED, _COMPLETED = EventKind.STEP_STARTED, EventKind.STEP_COMPLETED
# The constructor of a named tuple takes twice as long.
_step, _run = partial(tuple.__new__, StepEvent), partial(tuple.__new__, RunEvent)


def in_full(brief: Any) -> tuple[Event, StepEvent | None]:
    """Return the event, or the two events, of a short form."""
    if len(brief) == 5:
        begun, at, (run_id, key, workflow), step, attempt = brief
        elapsed = at - begun if at > begun else 0.0
        return (
            _step((_STARTED, begun, run_id, key, workflow, step, attempt, None)),
            _step((_COMPLETED, at, run_id, key, workflow, step, attempt, elapsed)),
        )
    kind, at, (run_id, key, workflow), generation, done, elapsed, reason, failure = brief
    return _run((kind, at, run_id, key, workflow, generation, done, elapsed, reason, failure)), None


def run_of(event: Event | Brief) -> str:
    """Return the id of the run of an event, or an empty string if it has none."""
    about = event[2]
    return about[0] if type(about) is tuple else about or ""  # type: ignore[return-value]
