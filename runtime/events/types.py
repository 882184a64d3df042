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
    """Name the kind of an event."""

    RUN_SUBMITTED = "run_submitted"
    """The run is durable."""
    RUN_STARTED = "run_started"
    """The workflow of the run starts."""
    RUN_WAITING = "run_waiting"
    """The run waits for a timer, a signal, an approval or a child."""
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
    """The run has ended with a result."""
    RUN_FAILED = "run_failed"
    """The run has ended with a failure."""
    RUN_CANCELLED = "run_cancelled"
    """The run was cancelled."""
    RUN_REDRIVEN = "run_redriven"
    """The run was redriven and has a new generation."""
    RUN_RECOVERED = "run_recovered"
    """The run started before the store was opened, and resumes."""
    RUN_QUARANTINED = "run_quarantined"
    """The run cannot resume and waits for an operator."""
    STEP_STARTED = "step_started"
    """An attempt starts. If it never suspends, the event is emitted when the attempt ends."""
    STEP_COMPLETED = "step_completed"
    """An attempt returned a value."""
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
    STEP_BLOCKED = "step_blocked"
    """An async step held the event loop for more than a second. The loop answers again."""
    STEP_PROGRESS = "step_progress"
    """A step called `current_step().report`."""
    STEP_STARVING = "step_starving"
    """A step has waited too long for the resources that it needs."""
    CIRCUIT_OPENED = "circuit_opened"
    """A circuit breaker stops the calls of a step."""
    CIRCUIT_HALF_OPENED = "circuit_half_opened"
    """A circuit breaker lets probes through."""
    CIRCUIT_CLOSED = "circuit_closed"
    """A circuit breaker lets all calls through again."""
    LIMIT_HIT = "limit_hit"
    """A run or a step reached one of its limits."""
    CLAMP = "clamp"
    """The timeout of a step was reduced to the time that its run has left."""
    BACKPRESSURE_BEGAN = "backpressure_began"
    """The first submitter or node waits for room."""
    BACKPRESSURE_ENDED = "backpressure_ended"
    """No submitter or node waits for room any more."""
    KEY_QUARANTINED = "key_quarantined"
    """Keyrun's own code failed for a key more than `max_restarts` times."""
    KEY_RELEASED = "key_released"
    """The quarantine of a key was lifted."""
    MISSED = "missed"
    """Events were dropped at this point because the subscriber was too slow."""


class RunEvent(NamedTuple):
    """Report that the state of a run changed."""

    kind: EventKind
    """The kind of the event."""
    at: float
    """The time of the event, in seconds since the epoch."""
    run_id: str
    """The id of the run. None if the event is not about one run."""
    key: str
    """The ordering key. None if the event is not about one key."""
    workflow: str
    """The name of the workflow. None if the event is not about one workflow."""
    generation: int = 1
    """1 for a new run, and one more after each redrive."""
    steps_done: int = 0
    """The number of steps or turns that have succeeded, without compensations."""
    elapsed: float | None = None
    """Seconds from the start of the run to its end, if it has ended."""
    reason: str | None = None
    """The reason of a cancel or a quarantine."""
    failure: Failure | None = None
    """The failure of a run that failed."""


class WaitEvent(NamedTuple):
    """Report that a run waits."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    waiting_on: str
    """The timer, signal, gate or child that the run waits for, as text."""
    delay: float | None
    """The longest time that the run waits, in seconds. None if no time is set."""


class StepEvent(NamedTuple):
    """Report that an attempt of a step started or completed."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    step: str
    """The name of the step in the journal."""
    attempt: int
    """The number of the attempt, from 1."""
    elapsed: float | None = None
    """Seconds that the attempt took. None when it starts."""


class SetbackEvent(NamedTuple):
    """Report that an attempt of a step failed, was cancelled, exceeded its timeout, blocked the
    event loop or waits for resources."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    step: str
    """The name of the step in the journal."""
    attempt: int
    """The number of the attempt, from 1."""
    elapsed: float | None
    """Seconds that the attempt took. For `step_blocked`, seconds that it held the event loop."""
    reason: str
    """A sentence for people."""
    failure: Failure | None = None
    """The failure of the attempt, if it failed."""
    delay: float | None = None
    """Seconds until the next attempt, if there is one."""


class ProgressEvent(NamedTuple):
    """Report the progress of a step, or of a workflow."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    step: str | None
    """The step that called `current_step().report`. None if the workflow called `ctx.report`."""
    attempt: int | None
    """The number of the attempt of the step."""
    percent: float
    """A number from 0 to 100."""
    message: str
    """The message of the report."""


class LimitEvent(NamedTuple):
    """Report that a limit was reached or reduced."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    limit: str
    """The name of the limit in `Limits`."""
    value: float
    """The value of the limit."""
    step: str | None
    """The step that the limit is about, if any."""
    attempt: int | None
    """The number of the attempt of the step."""
    reason: str
    """A sentence for people."""
    failure: Failure | None = None
    """The failure that the limit causes, if any."""


class BackpressureEvent(NamedTuple):
    """Report that submitters wait because too many runs are pending, or that nodes of graphs wait
    because of the `max_waiting` of a later node. Backpressure lasts from the first wait until no
    caller waits.

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
    """Report that the circuit breaker of a step opened, became half-open or closed."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str | None
    workflow: str | None
    step: str
    """The name of the step."""
    calls: int
    """The number of calls in the window of the breaker."""
    failures: int
    """The number of calls in the window that failed."""
    reason: str
    """A sentence for people."""


class KeyEvent(NamedTuple):
    """Report that a key was quarantined or released."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str
    workflow: str | None
    reason: str | None = None
    """Why the key is quarantined."""


class Missed(NamedTuple):
    """Report that events are missing at this point: the buffer was full, the connection to the
    runtime was lost, or the subscriber asked for a sample."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str | None
    workflow: str | None
    missed: int | None
    """The number of events that were dropped. None if the connection was lost: then it is not
    known."""
    sampled: bool = False
    """Whether the subscriber asked for a sample of the events, and these are the others."""


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
"""The union of all event types. All of them start with the fields `kind`, `at`, `run_id`, `key` and
`workflow`."""

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
