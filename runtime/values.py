"""The values that Keyrun answers with: what a run is, how it stands, how it ended."""

from enum import Enum, IntEnum, StrEnum
from typing import Any, Literal

import attrs


class State(StrEnum):
    """Where a run stands. There is no "crashed": a restart resumes by itself."""

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
        """Whether the run has ended."""
        return self in _TERMINAL


_TERMINAL = frozenset({State.SUCCEEDED, State.FAILED, State.CANCELLED})


class QuarantineCause(StrEnum):
    """Why a run or a key is quarantined. The first four mean that the code does not fit the run."""

    UNREGISTERED = "unregistered"
    """The runtime does not have the workflow, or not this version of it."""
    INPUT = "input"
    """The input type of the workflow no longer reads the stored input."""
    OUTCOME = "outcome"
    """The type of a call no longer reads its journaled outcome."""
    CONTRADICTION = "contradiction"
    """The code asks for something else than the journal has."""
    DAMAGED = "damaged"
    """A record of the run cannot be read."""
    KEY = "key"
    """The actor of the key crashed more than `max_restarts` times within `restart_window`."""


class Priority(IntEnum):
    """Which keys get free slots first. It never changes the order inside a key."""

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
    """How a step or a run failed. `reason` is a sentence for people; `cause` is the failure that
    led to this one, for instance the last error of a step when the run's time was up; `numbers`
    are those of a circuit breaker, and `left` the steps whose compensation failed."""

    kind: FailureKind
    reason: str
    step: str | None = None
    attempt: int | None = None
    error_type: str | None = None
    traceback: str | None = None
    elapsed: float | None = None
    cause: "Failure | None" = None
    numbers: dict[str, float] | None = None
    left: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class CompensationProgress:
    """How far the compensation of a run is: the number of steps to compensate and of those that are
    compensated, the step that is compensated now, and the steps whose compensation failed."""

    total: int
    done: int
    step: str | None
    left: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class RunStatus:
    """How a run stands. Times are seconds since the epoch."""

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
    """When it goes on if nothing comes before, as far as that is known; None also if never."""
    quarantine_cause: QuarantineCause | None = None
    """Why the run is quarantined, for programs; `reason` says it for people. None in any other
    state."""
    compensation: CompensationProgress | None = None
    """How far the compensation of the run is; None if nothing is, or was, to be compensated."""

    @property
    def compensating(self) -> bool:
        """Whether the run has failed, or is cancelled, and its compensations have not ended."""
        return self.compensation is not None and not self.state.terminal


@attrs.frozen(kw_only=True)
class RunOutcome:
    """How a run ended, for the terminal hook."""

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
    """Identifies this end: the same in every repeat of the call, and of no other end."""


class Unset(Enum):
    """For arguments where None means something."""

    UNSET = "unset"


UNSET: Literal[Unset.UNSET] = Unset.UNSET
