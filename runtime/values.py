"""Values that the public API takes and returns: states, priorities, failures, statuses."""

from enum import Enum, IntEnum, StrEnum
from typing import Any, Literal

import attrs


class State(StrEnum):
    """Name the state of a run. There is no state for a crash, because Keyrun resumes the run by
    itself."""

    PENDING = "pending"
    """The run is accepted and has not started."""
    RUNNING = "running"
    """A step runs or is about to run."""
    WAITING = "waiting"
    """The run waits for a timer, a signal, an approval, a child or its next attempt."""
    PAUSED = "paused"
    """The run, its key or the whole runtime was paused."""
    CANCELLING = "cancelling"
    """A cancel was requested, and a step or a compensation has not ended yet."""
    QUARANTINED = "quarantined"
    """The run cannot resume and needs an operator."""
    SUCCEEDED = "succeeded"
    """The run has ended with a result."""
    FAILED = "failed"
    """The run has ended with a failure."""
    CANCELLED = "cancelled"
    """The run was cancelled, by a call or by its workflow."""

    @property
    def terminal(self) -> bool:
        """Return whether the run has ended."""
        # Not the member itself, whose hash is a call.
        return self._value_ in _TERMINAL


_TERMINAL = frozenset({str(State.SUCCEEDED), str(State.FAILED), str(State.CANCELLED)})


class QuarantineCause(StrEnum):
    """Name the cause of the quarantine of a run or a key. The first four causes mean that the code
    does not fit the run."""

    UNREGISTERED = "unregistered"
    """The workflow, or this version of it, is not registered."""
    INPUT = "input"
    """The input type of the workflow cannot read the stored input."""
    OUTCOME = "outcome"
    """The declared type of a call cannot read its journaled outcome."""
    CONTRADICTION = "contradiction"
    """The code makes another call than the journal has."""
    DAMAGED = "damaged"
    """A record of the run cannot be read."""
    KEY = "key"
    """The actor of the key crashed more than `max_restarts` times within `restart_window`."""


class Obstacle(StrEnum):
    """Name what a call or a run waits for before it may start."""

    SLOT = "slot"
    RATE_LIMIT = "rate_limit"
    CIRCUIT = "circuit"
    RESOURCES = "resources"
    MAX_CONCURRENT = "max_concurrent"
    MAX_WAITING = "max_waiting"
    INSTANCES = "instances"
    SUSPECT = "suspect"


class Priority(IntEnum):
    """Decide which keys get free slots first. A priority never changes the order inside a key."""

    HIGH = 0
    """Before all other priorities."""
    NORMAL = 1
    """The default."""
    LOW = 2
    """After all other priorities."""


class FailureKind(StrEnum):
    """Name the kind of a failure, for programs."""

    STEP_FAILED = "step_failed"
    """The last attempt of a step raised an exception."""
    PERMANENT_ERROR = "permanent_error"
    """A step raised an error that is not retried, such as `PermanentError`, or returned a value
    that cannot be stored."""
    STEP_TIMEOUT = "step_timeout"
    """The last attempt of a step exceeded its timeout."""
    RUN_TIMEOUT = "run_timeout"
    """The run exceeded its `run_timeout`."""
    ITERATION_LIMIT = "iteration_limit"
    """The run exceeded its `max_iterations`."""
    RETRY_BUDGET = "retry_budget"
    """A step failed when the `retry_budget` of the run was used up."""
    VERDICT = "verdict"
    """The workflow called `ctx.fail`, or the machine returned `Fail`."""
    INTERRUPTED = "interrupted"
    """Crashes interrupted a step more than `max_interruptions` times, or an `at_most_once` step
    once."""
    CHILD_FAILED = "child_failed"
    """A child failed or was cancelled, and the workflow did not catch the error."""
    CIRCUIT_OPEN = "circuit_open"
    """The circuit breaker of a step was open, and its policy is `when_open="fail"`."""
    WORKFLOW_ERROR = "workflow_error"
    """The workflow code raised an exception."""


@attrs.frozen(kw_only=True)
class Failure:
    """Describe why a step or a run failed."""

    kind: FailureKind
    """The kind of the failure."""
    reason: str
    """A sentence for people."""
    step: str | None = None
    """The step that failed, if one did."""
    attempt: int | None = None
    """The number of the attempt that failed, from 1."""
    error_type: str | None = None
    """The module and name of the type of the exception."""
    traceback: str | None = None
    """The traceback of the exception, as text."""
    elapsed: float | None = None
    """Seconds that the attempt, or the run, took."""
    cause: "Failure | None" = None
    """The failure that led to this one, for example the last error of a step when the run exceeded
    its `run_timeout`."""
    numbers: dict[str, float] | None = None
    """The numbers of the circuit breaker, if it was open."""
    left: tuple[str, ...] = ()
    """The steps whose compensation failed."""


@attrs.frozen(kw_only=True)
class ItemCounts:
    """Count the items of a map."""

    total: int
    """The number of items."""
    done: int
    """The items that have ended without a failure."""
    failed: int
    """The items that failed."""
    running: int
    """The items that are under way."""


@attrs.frozen(kw_only=True)
class CompensationProgress:
    """Describe the progress of the compensation of a run."""

    total: int
    """The number of steps to compensate."""
    done: int
    """The number of steps that are compensated."""
    step: str | None
    """The step whose compensation is running."""
    left: tuple[str, ...] = ()
    """The steps whose compensation failed."""


@attrs.frozen(kw_only=True)
class RunStatus:
    """Describe the status of a run. Times are seconds since the epoch."""

    run_id: str
    """The id of the run."""
    key: str
    """The ordering key."""
    workflow: str
    """The name of the workflow."""
    version: int
    """The version of the workflow."""
    state: State
    """The state of the run."""
    step: str | None
    """The step that is running, or the step that failed. None between steps."""
    attempt: int
    """The number of the latest attempt of that step."""
    steps_done: int
    """The number of steps or turns that have succeeded, without compensations."""
    submitted_at: float
    """When the run was submitted."""
    started_at: float | None
    """When the run started. None if it has not started."""
    ended_at: float | None
    """When the run ended. None if it has not ended."""
    deadline: float | None
    """When `run_timeout` ends the run. None if the run has no deadline or has not started."""
    headers: dict[str, str]
    """The headers that `rt.submit` received."""
    tags: tuple[str, ...]
    """The tags that `rt.submit` received."""
    origin: str
    """The source that started the run: `submit`, `message`, `schedule:<id>`, `child:<run id>` or
    `group:<id>`."""
    waiting_on: str | None
    """The timer, signal, gate, child or run that the run waits for, as text."""
    result: Any
    """The result of a run that has succeeded, otherwise None."""
    reason: str | None
    """The reason of `ctx.cancel`, or of the quarantine. None for an external cancel."""
    failure: Failure | None
    """The failure of a run that failed or is about to fail, otherwise None."""
    generation: int
    """1 for a new run, and one more after each redrive."""
    waiting_until: float | None = None
    """When the run resumes at the latest, as far as this is known. None if no time is set."""
    quarantine_cause: QuarantineCause | None = None
    """Why the run is quarantined, as a code; `reason` is the text. None in any other state."""
    compensation: CompensationProgress | None = None
    """The progress of the compensation; None if the run has no step to compensate."""

    @property
    def compensating(self) -> bool:
        """Return whether the run failed or was cancelled and its compensations have not ended."""
        return self.compensation is not None and not self.state.terminal


@attrs.frozen(kw_only=True)
class RunOutcome:
    """Describe the end of a run. `on_terminal` receives this."""

    run_id: str
    """The id of the run."""
    key: str
    """The ordering key."""
    workflow: str
    """The name of the workflow."""
    state: State
    """`succeeded`, `failed` or `cancelled`."""
    result: Any
    """The result of a run that has succeeded, otherwise None."""
    reason: str | None
    """The reason of a cancel by the workflow. None for an external cancel."""
    failure: Failure | None
    """The failure of a run that failed, otherwise None."""
    step: str | None
    """The latest step that the run started, or the step that failed."""
    steps_done: int
    """The number of steps or turns that succeeded, without compensations."""
    headers: dict[str, str]
    """The headers that `rt.submit` received."""
    ended_at: float
    """When the run ended, in seconds since the epoch."""
    generation: int
    """1 for a new run, and one more after each redrive."""
    outcome_id: str
    """Unique for each end of a run, and the same in every repeat of the call."""


class CircuitState(StrEnum):
    """Name the state of a circuit breaker."""

    CLOSED = "closed"
    """Calls are made."""
    OPEN = "open"
    """No calls are made."""
    HALF_OPEN = "half_open"
    """A few calls are made as probes. Their outcomes decide whether the circuit closes."""


@attrs.frozen(kw_only=True)
class CircuitStatus:
    """Describe the circuit breaker of a step."""

    step: str
    """The name of the step."""
    state: CircuitState
    """The state of the circuit."""
    calls: int
    """The number of calls in the window of the breaker."""
    failures: int
    """The number of calls in the window that failed."""
    failure_rate: float
    """`failures` divided by `calls`."""
    opened: int
    """The number of times that the circuit has opened."""
    retry_in: float
    """Seconds until an open circuit lets probes through, otherwise 0."""

    def numbers(self) -> dict[str, float]:
        """Return the numbers that a fallback node receives."""
        return {
            "calls": self.calls,
            "failures": self.failures,
            "failure_rate": self.failure_rate,
            "opened": self.opened,
            "retry_in": self.retry_in,
        }


class Unset(Enum):
    """The type of `UNSET`, the default of arguments for which None has a meaning."""

    UNSET = "unset"


UNSET: Literal[Unset.UNSET] = Unset.UNSET
