"""Durable runs: submission, steps, policies, recovery.

A run is an async function whose steps are remembered: driven again after a crash, steps with a
journaled outcome return it at once. Everything else here follows from that.
"""

from keyrun.runtime.context import Context, DurableCall
from keyrun.runtime.current import CurrentStep, current_step
from keyrun.runtime.errors import (
    Backpressure,
    InputMismatch,
    InvalidHistory,
    InvalidKey,
    InvalidRunId,
    NonDeterminism,
    PermanentError,
    ReservedHeader,
    RunCancelled,
    RunEnded,
    RunFailed,
    ScopeTimeout,
    StepFailed,
    StepTimeout,
    TransientError,
    UnknownRun,
    UnknownWorkflow,
    WrongTask,
)
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.history import Happening, History
from keyrun.runtime.keys import KeyStatus
from keyrun.runtime.limits import Limits
from keyrun.runtime.machine import Cancel, Continue, Fail, Succeed, Turn, machine
from keyrun.runtime.reader import Reader, open_reader
from keyrun.runtime.retention import Retention
from keyrun.runtime.retry import Retry
from keyrun.runtime.runtime import Runtime, open_runtime
from keyrun.runtime.statistics import RuntimeStatistics
from keyrun.runtime.step import StepFunction, step
from keyrun.runtime.values import (
    Failure,
    FailureKind,
    Priority,
    RunOutcome,
    RunStatus,
    State,
)
from keyrun.runtime.workflow import Workflow, workflow

__all__ = [
    "Backpressure",
    "Cancel",
    "Context",
    "Continue",
    "CurrentStep",
    "DurableCall",
    "Fail",
    "Failure",
    "FailureKind",
    "Happening",
    "History",
    "InputMismatch",
    "InvalidHistory",
    "InvalidKey",
    "InvalidRunId",
    "KeyStatus",
    "Limits",
    "NonDeterminism",
    "PermanentError",
    "Priority",
    "Reader",
    "ReservedHeader",
    "Retention",
    "Retry",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunHandle",
    "RunOutcome",
    "RunStatus",
    "Runtime",
    "RuntimeStatistics",
    "ScopeTimeout",
    "State",
    "StepFailed",
    "StepFunction",
    "StepTimeout",
    "Succeed",
    "TransientError",
    "Turn",
    "UnknownRun",
    "UnknownWorkflow",
    "Workflow",
    "WrongTask",
    "current_step",
    "machine",
    "open_reader",
    "open_runtime",
    "step",
    "workflow",
]
