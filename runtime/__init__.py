"""Durable runs: submission, steps, policies, recovery.

A run is an async function whose steps are remembered: driven again after a crash, steps with a
journaled outcome return it at once. Everything else here follows from that.
"""

from keyrun.runtime.breaker import CircuitBreaker, CircuitState, CircuitStatus
from keyrun.runtime.cadence import EverySeconds, EverySteps, Manual
from keyrun.runtime.context import Context, DurableCall
from keyrun.runtime.current import CurrentStep, current_step
from keyrun.runtime.entity import Entity, entity
from keyrun.runtime.errors import (
    ApprovalRejected,
    Backpressure,
    CallCycle,
    CallFailed,
    CallTimeout,
    ChildCancelled,
    ChildFailed,
    CircuitOpen,
    GateNotWaiting,
    InputMismatch,
    InvalidGroup,
    InvalidHistory,
    InvalidKey,
    InvalidRunId,
    InvalidSchedule,
    NonDeterminism,
    PermanentError,
    ReservedHeader,
    RunCancelled,
    RunEnded,
    RunFailed,
    ScopeTimeout,
    SignalTimeout,
    StepFailed,
    StepTimeout,
    TooDeep,
    TransientError,
    UnknownEntity,
    UnknownGroup,
    UnknownMethod,
    UnknownRun,
    UnknownWorkflow,
    WrongTask,
)
from keyrun.runtime.events import (
    BackpressureEvent,
    CircuitEvent,
    Event,
    EventKind,
    KeyEvent,
    LimitEvent,
    Missed,
    ProgressEvent,
    RunEvent,
    SetbackEvent,
    StepEvent,
    WaitEvent,
)
from keyrun.runtime.graphs import (
    ConditionError,
    Graph,
    InvalidGraph,
    NodeInput,
    OutputTooLarge,
    Port,
    durable,
)
from keyrun.runtime.graphs.view import EdgeView, ExecutionGraph, NodeState, NodeView
from keyrun.runtime.group import GroupStatus, Member, MemberOutcome
from keyrun.runtime.grouping import GroupHandle
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.history import Happening, History
from keyrun.runtime.keys import KeyStatus
from keyrun.runtime.limits import Limits
from keyrun.runtime.machine import Cancel, Continue, Fail, Succeed, Turn, TurnSignal, machine
from keyrun.runtime.progress import Progress, StepCounts, StepProgress
from keyrun.runtime.rate import RateLimit
from keyrun.runtime.reader import Reader, open_reader
from keyrun.runtime.receiving import Approval
from keyrun.runtime.resources import Resources
from keyrun.runtime.retention import Retention
from keyrun.runtime.retry import Retry
from keyrun.runtime.runtime import Runtime, open_runtime
from keyrun.runtime.schedule import ScheduleStatus
from keyrun.runtime.signals import Delivery
from keyrun.runtime.statistics import RuntimeStatistics
from keyrun.runtime.step import StepFunction, step
from keyrun.runtime.subscription import Events
from keyrun.runtime.timetable import Cron, Every, Once
from keyrun.runtime.turnstile import TurnstileStatus
from keyrun.runtime.undoing import Compensation
from keyrun.runtime.values import (
    Failure,
    FailureKind,
    Priority,
    RunOutcome,
    RunStatus,
    State,
)
from keyrun.runtime.watching import Watch
from keyrun.runtime.workflow import Workflow, workflow

__all__ = [
    "Approval",
    "ApprovalRejected",
    "Backpressure",
    "BackpressureEvent",
    "CallCycle",
    "CallFailed",
    "CallTimeout",
    "Cancel",
    "ChildCancelled",
    "ChildFailed",
    "CircuitBreaker",
    "CircuitEvent",
    "CircuitOpen",
    "CircuitState",
    "CircuitStatus",
    "Compensation",
    "ConditionError",
    "Context",
    "Continue",
    "Cron",
    "CurrentStep",
    "Delivery",
    "DurableCall",
    "EdgeView",
    "Entity",
    "Event",
    "EventKind",
    "Events",
    "Every",
    "EverySeconds",
    "EverySteps",
    "ExecutionGraph",
    "Fail",
    "Failure",
    "FailureKind",
    "GateNotWaiting",
    "Graph",
    "GroupHandle",
    "GroupStatus",
    "Happening",
    "History",
    "InputMismatch",
    "InvalidGraph",
    "InvalidGroup",
    "InvalidHistory",
    "InvalidKey",
    "InvalidRunId",
    "InvalidSchedule",
    "KeyEvent",
    "KeyStatus",
    "LimitEvent",
    "Limits",
    "Manual",
    "Member",
    "MemberOutcome",
    "Missed",
    "NodeInput",
    "NodeState",
    "NodeView",
    "NonDeterminism",
    "Once",
    "OutputTooLarge",
    "PermanentError",
    "Port",
    "Priority",
    "Progress",
    "ProgressEvent",
    "RateLimit",
    "Reader",
    "ReservedHeader",
    "Resources",
    "Retention",
    "Retry",
    "RunCancelled",
    "RunEnded",
    "RunEvent",
    "RunFailed",
    "RunHandle",
    "RunOutcome",
    "RunStatus",
    "Runtime",
    "RuntimeStatistics",
    "ScheduleStatus",
    "ScopeTimeout",
    "SetbackEvent",
    "SignalTimeout",
    "State",
    "StepCounts",
    "StepEvent",
    "StepFailed",
    "StepFunction",
    "StepProgress",
    "StepTimeout",
    "Succeed",
    "TooDeep",
    "TransientError",
    "Turn",
    "TurnSignal",
    "TurnstileStatus",
    "UnknownEntity",
    "UnknownGroup",
    "UnknownMethod",
    "UnknownRun",
    "UnknownWorkflow",
    "WaitEvent",
    "Watch",
    "Workflow",
    "WrongTask",
    "current_step",
    "durable",
    "entity",
    "machine",
    "open_reader",
    "open_runtime",
    "step",
    "workflow",
]
