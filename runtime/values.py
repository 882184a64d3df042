"""Values that the public API takes and returns: states, priorities, failures, statuses."""

from enum import Enum, IntEnum, StrEnum
from typing import Any, Literal

import attrs


class State(StrEnum):
    """The state of a run. There is no state for a crash: Keyrun resumes the run by itself."""

    PENDING = "pending"
    RUNNING = "running"
    WAITING = "waiting"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    QUARANTINED = "quarantined"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        """Return whether the run has ended."""
        return self in _TERMINAL


_TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class QuarantineCause(StrEnum):
    """Why a run or a key is quarantined. The first four mean that the code does not fit the run."""

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


class Priority(IntEnum):
    """Decides which keys get free slots first. It never changes the order inside a key."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


class FailureKind(StrEnum):
    """Why a step or a run failed."""

    STEP_FAILED = "step_failed"
    PERMANENT_ERROR = "permanent_error"
    STEP_TIMEOUT = "step_timeout"
    RUN_TIMEOUT = "run_timeout"
    ITERATION_LIMIT = "iteration_limit"
    RETRY_BUDGET = "retry_budget"
    VERDICT = "verdict"
    INTERRUPTED = "interrupted"
    CHILD_FAILED = "child_failed"
    CIRCUIT_OPEN = "circuit_open"
    WORKFLOW_ERROR = "workflow_error"


@attrs.frozen(kw_only=True)
class Failure:
    """Why a step or a run failed."""

    kind: FailureKind
    reason: str
    """A sentence for people."""
    step: str | None = None
    attempt: int | None = None
    error_type: str | None = None
    """The module and name of the type of the exception."""
    traceback: str | None = None
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
class CompensationProgress:
    """The progress of the compensation of a run."""

    total: int
    """Steps to compensate."""
    done: int
    """Steps that are compensated."""
    step: str | None
    """The step whose compensation is running."""
    left: tuple[str, ...] = ()
    """The steps whose compensation failed."""


@attrs.frozen(kw_only=True)
class RunStatus:
    """The status of a run. Times are seconds since the epoch."""

    run_id: str
    key: str
    workflow: str
    version: int
    state: State
    step: str | None
    attempt: int
    steps_done: int
    submitted_at: float
    started_at: float | None
    ended_at: float | None
    deadline: float | None
    headers: dict[str, str]
    tags: tuple[str, ...]
    origin: str
    waiting_on: str | None
    result: Any
    reason: str | None
    failure: Failure | None
    generation: int
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
    """The end of a run, which `on_terminal` receives."""

    run_id: str
    key: str
    workflow: str
    state: State
    result: Any
    reason: str | None
    failure: Failure | None
    step: str | None
    steps_done: int
    headers: dict[str, str]
    ended_at: float
    generation: int
    outcome_id: str
    """Unique for each end of a run, and the same in every repeat of the call."""


class CircuitState(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    """Calls are made."""
    OPEN = "open"
    """No calls are made."""
    HALF_OPEN = "half_open"
    """A few calls are made as probes. Their outcomes decide whether the circuit closes."""


@attrs.frozen(kw_only=True)
class CircuitStatus:
    """The status of the circuit breaker of a step."""

    step: str
    state: CircuitState
    calls: int
    """Calls in the window of the breaker."""
    failures: int
    """Calls in the window that failed."""
    failure_rate: float
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
