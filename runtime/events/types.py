"""Events: what happens to runs, steps, keys and the backlog, as values for those who listen.

All begin with the same five fields: `kind`, `at` (seconds since the epoch), `run_id`, `key` and
`workflow`, None where they do not apply. They are tuples since a busy runtime makes a hundred
thousand of them in a second. A further kind is a name in `EventKind`, and a family of its own only
if it tells of something that no family here has a field for.
"""

from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from keyrun.runtime.values import Failure


class EventKind(StrEnum):
    """What happened."""

    RUN_SUBMITTED = "run_submitted"
    RUN_STARTED = "run_started"
    RUN_WAITING = "run_waiting"
    RUN_RESUMED = "run_resumed"
    """It goes on after a wait or a pause."""
    RUN_PAUSED = "run_paused"
    """Somebody holds it, its key, or everything; a running step is let finish."""
    RUN_CONTINUED = "run_continued"
    """It goes on with another input and an empty journal: see `ctx.continue_as`."""
    RUN_COMPENSATING = "run_compensating"
    """It has failed, or is cancelled, and its compensations begin. The name of a compensation is
    `undo()/` and the name of its step."""
    RUN_CANCELLING = "run_cancelling"
    """Somebody asked for it to be cancelled, and it has not ended yet."""
    RUN_PROGRESS = "run_progress"
    """What `ctx.report` said."""
    RUN_SUCCEEDED = "run_succeeded"
    RUN_FAILED = "run_failed"
    RUN_CANCELLED = "run_cancelled"
    RUN_REDRIVEN = "run_redriven"
    RUN_RECOVERED = "run_recovered"
    """It had begun before the store was opened, and goes on."""
    RUN_QUARANTINED = "run_quarantined"
    STEP_STARTED = "step_started"
    """An attempt begins. One that waits for nothing is told of when it is over."""
    STEP_COMPLETED = "step_completed"
    STEP_RETRYING = "step_retrying"
    """An attempt failed, and another follows after `delay` seconds."""
    STEP_FAILED = "step_failed"
    """The step failed for good."""
    STEP_TIMED_OUT = "step_timed_out"
    """An attempt took too long; retrying or failed comes next."""
    STEP_CANCELLED = "step_cancelled"
    """An attempt was cut off, for the `reason` given, and that is nobody's failure."""
    STEP_OVERRUN = "step_overrun"
    """The time of a sync step is up, and its thread still runs."""
    STEP_PROGRESS = "step_progress"
    """What `current_step().report` said."""
    STEP_STARVING = "step_starving"
    """A step has waited long for the resources that it needs."""
    CIRCUIT_OPENED = "circuit_opened"
    CIRCUIT_HALF_OPENED = "circuit_half_opened"
    CIRCUIT_CLOSED = "circuit_closed"
    LIMIT_HIT = "limit_hit"
    CLAMP = "clamp"
    """The timeout of a step was cut to what is left of its run."""
    BACKPRESSURE_BEGAN = "backpressure_began"
    BACKPRESSURE_ENDED = "backpressure_ended"
    KEY_QUARANTINED = "key_quarantined"
    KEY_RELEASED = "key_released"
    MISSED = "missed"
    """Events were dropped here since the listener was too slow."""


class RunEvent(NamedTuple):
    """Something happened to a run."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    generation: int = 1
    steps_done: int = 0
    elapsed: float | None = None
    """Seconds since it was started, when it has ended."""
    reason: str | None = None
    failure: Failure | None = None


class WaitEvent(NamedTuple):
    """A run waits, for so many seconds."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    waiting_on: str
    delay: float | None


class StepEvent(NamedTuple):
    """An attempt of a step begins, or has come to its end."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    step: str
    attempt: int
    elapsed: float | None = None


class SetbackEvent(NamedTuple):
    """An attempt of a step failed, or was cut off, or ought to have been."""

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
    """What an attempt of a step said of itself, or a workflow where there is no step."""

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
    """A limit was hit, or one gave way to another; `limit` is its name in `Limits`."""

    kind: EventKind
    at: float
    run_id: str
    key: str
    workflow: str
    limit: str
    value: float
    """What it is set to."""
    step: str | None
    attempt: int | None
    reason: str
    failure: Failure | None = None


class BackpressureEvent(NamedTuple):
    """Submitters have to wait for room, or nodes of graphs because of the `max_waiting` of a node
    behind them: from the first that waits until none does any more. Key, workflow and id are those
    of the submission, or of the run with the node, that had to wait."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str
    workflow: str
    depth: int
    """Runs that wait to be started, or calls that wait for the policies of the node."""
    waited: float
    """Seconds that this submission, or this node, has waited."""
    duration: float | None = None
    """Seconds from the beginning to the end."""
    step: str | None = None
    """The node whose `max_waiting` is reached; None where submitters wait."""
    held: str | None = None
    """The node that is held back; None where submitters wait."""


class CircuitEvent(NamedTuple):
    """The circuit breaker of a step opened, lets probes through, or closed again."""

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
    """Something happened to a key."""

    kind: EventKind
    at: float
    run_id: str | None
    key: str
    workflow: str | None
    reason: str | None = None


class Missed(NamedTuple):
    """So many events were dropped at this place, since the buffer was full."""

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
"""Id, key and workflow of a run."""

Brief = (
    tuple[float, float, About, str, int]
    | tuple[EventKind, float, About, int, int, float | None, str | None, Failure | None]
)
"""What a busy runtime tells of most, in few words. Five: a step began and was done at once, which
is two events. Eight: a `RunEvent`. They are put together for whoever reads them; until then they
are plain tuples, which cost little and are of no concern to the garbage collector."""

_STARTED, _COMPLETED = EventKind.STEP_STARTED, EventKind.STEP_COMPLETED
# To build an event with its own constructor takes twice as long.
_step, _run = partial(tuple.__new__, StepEvent), partial(tuple.__new__, RunEvent)


def in_full(brief: Any) -> tuple[Event, StepEvent | None]:
    """The event, or the two events, that are meant."""
    if len(brief) == 5:
        begun, at, (run_id, key, workflow), step, attempt = brief
        elapsed = at - begun if at > begun else 0.0
        return (
            _step((_STARTED, begun, run_id, key, workflow, step, attempt, None)),
            _step((_COMPLETED, at, run_id, key, workflow, step, attempt, elapsed)),
        )
    kind, at, (run_id, key, workflow), generation, done, elapsed, reason, failure = brief
    told = kind, at, run_id, key, workflow, generation, done, elapsed, reason, failure
    return _run(told), None


def run_of(event: Event | Brief) -> str:
    """The id of the run that an event is about, empty if there is none."""
    about = event[2]
    return about[0] if type(about) is tuple else about or ""  # type: ignore[return-value]
