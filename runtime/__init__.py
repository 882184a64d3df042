"""Durable runs: submission, steps, policies, recovery.

A run is an async function whose steps are remembered: driven again after a crash, steps with a
journaled outcome return it at once. Everything else here follows from that.

The packages and modules, the lowest layer first. A module imports only its own row and rows above.

| package or module      | responsibility                                                      |
|------------------------|---------------------------------------------------------------------|
| `errors`, `values` ... | public errors and value types, limits, verdicts, texts of reasons   |
| `records/`             | everything that is stored, and the tables                           |
| `events/`              | event types, the emitter, subscriptions, log lines                  |
| `policies/`            | retry, circuit breaker, rate limit, checkpoints, resources          |
| `definitions/`         | `@step`, `@workflow`, the registry                                  |
| `host/`                | what a process has once: slots, the asyncio loop, the clock         |
| `run/`                 | one run in memory: journal, branches, waits, inbox, its end         |
| `runs`                 | the run table: where each run is                                    |
| `steps/`               | step execution: attempts, the gate of policies, outcomes            |
| `waiting/`             | timers, signals, approvals, eviction                                |
| `children/`            | child runs, cycle detection over keys                               |
| `execution/`           | the context of a workflow, the driver, gather, compensation         |
| `queue/`               | admission, the queue of a key, its actor, backpressure, the outbox  |
| `operations/`          | cancel, pause, resume, redrive, forget, release                     |
| `entities/` `graphs/` `groups/` `schedules/` `machines` | one feature each                   |
| `recovery/`            | start-up, internal errors, damaged records, retention               |
| `inspect/`             | status, history, progress, listings, replay                         |
| `partition`, `open`, `runtime`, `handle` | the wiring and the public `Runtime`               |
"""

from importlib import import_module
from typing import TYPE_CHECKING

from keyrun.runtime.definitions.step import StepFunction, step
from keyrun.runtime.definitions.workflow import Workflow, workflow
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
    InvalidText,
    NonDeterminism,
    PermanentError,
    ReservedHeader,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunQuarantined,
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
from keyrun.runtime.limits import Limits
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.values import (
    CompensationProgress,
    Failure,
    FailureKind,
    Priority,
    QuarantineCause,
    RunOutcome,
    RunStatus,
    State,
)

if TYPE_CHECKING:
    from keyrun.runtime.entities.entity import Entity, entity
    from keyrun.runtime.events.subscription import Events
    from keyrun.runtime.events.types import (
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
    from keyrun.runtime.execution.compensation import Compensation
    from keyrun.runtime.execution.context import Context, DurableCall
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
    from keyrun.runtime.groups.handle import GroupHandle
    from keyrun.runtime.groups.records import GroupStatus, Member, MemberOutcome
    from keyrun.runtime.handle import RunHandle
    from keyrun.runtime.host.step_gates import StepGateStatus
    from keyrun.runtime.inspect.counts import StoreCounts, UnfinishedCount, UnpatchedCount
    from keyrun.runtime.inspect.entities import EntityStatus
    from keyrun.runtime.inspect.history import Happening, History
    from keyrun.runtime.inspect.keys import KeyStatus
    from keyrun.runtime.inspect.progress import Progress, StepCounts, StepProgress
    from keyrun.runtime.inspect.reader import Reader, open_reader
    from keyrun.runtime.inspect.statistics import RuntimeStatistics
    from keyrun.runtime.inspect.watch import Watch
    from keyrun.runtime.machines import Cancel, Continue, Fail, Succeed, Turn, TurnSignal, machine
    from keyrun.runtime.open import open_runtime
    from keyrun.runtime.policies.checkpoint import EverySeconds, EverySteps, Manual
    from keyrun.runtime.policies.circuit_breaker import CircuitBreaker, CircuitState, CircuitStatus
    from keyrun.runtime.policies.rate_limit import RateLimit
    from keyrun.runtime.policies.resources import Resources
    from keyrun.runtime.queue.outbox import OutboxStatus
    from keyrun.runtime.recovery.retention import Retention
    from keyrun.runtime.runtime import Runtime
    from keyrun.runtime.schedules.records import ScheduleStatus
    from keyrun.runtime.schedules.timetable import Cron, Every, Once
    from keyrun.runtime.steps.current_step import CurrentStep, current_step
    from keyrun.runtime.waiting.receive import Approval
    from keyrun.runtime.waiting.signals import Delivery

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
    "CompensationProgress",
    "ConditionError",
    "Context",
    "Continue",
    "Cron",
    "CurrentStep",
    "Delivery",
    "DurableCall",
    "EdgeView",
    "Entity",
    "EntityStatus",
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
    "InvalidText",
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
    "OutboxStatus",
    "OutputTooLarge",
    "PermanentError",
    "Port",
    "Priority",
    "Progress",
    "ProgressEvent",
    "QuarantineCause",
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
    "RunQuarantined",
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
    "StepGateStatus",
    "StepProgress",
    "StepTimeout",
    "StoreCounts",
    "Succeed",
    "TooDeep",
    "TransientError",
    "Turn",
    "TurnSignal",
    "UnfinishedCount",
    "UnknownEntity",
    "UnknownGroup",
    "UnknownMethod",
    "UnknownRun",
    "UnknownWorkflow",
    "UnpatchedCount",
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

_LATER = {
    "execution.context": ("Context", "DurableCall"),
    "entities.entity": ("Entity", "entity"),
    "graphs": (
        "ConditionError",
        "Graph",
        "InvalidGraph",
        "NodeInput",
        "OutputTooLarge",
        "Port",
        "durable",
    ),
    "graphs.view": ("EdgeView", "ExecutionGraph", "NodeState", "NodeView"),
    "groups.records": ("GroupStatus", "Member", "MemberOutcome"),
    "groups.handle": ("GroupHandle",),
    "handle": ("RunHandle",),
    "machines": ("Cancel", "Continue", "Fail", "Succeed", "Turn", "TurnSignal", "machine"),
    "open": ("open_runtime",),
    "queue.outbox": ("OutboxStatus",),
    "policies.circuit_breaker": ("CircuitBreaker", "CircuitState", "CircuitStatus"),
    "policies.checkpoint": ("EverySeconds", "EverySteps", "Manual"),
    "policies.rate_limit": ("RateLimit",),
    "policies.resources": ("Resources",),
    "host.step_gates": ("StepGateStatus",),
    "recovery.retention": ("Retention",),
    "runtime": ("Runtime",),
    "schedules.records": ("ScheduleStatus",),
    "schedules.timetable": ("Cron", "Every", "Once"),
    "steps.current_step": ("CurrentStep", "current_step"),
    "execution.compensation": ("Compensation",),
    "events.types": (
        "BackpressureEvent",
        "CircuitEvent",
        "Event",
        "EventKind",
        "KeyEvent",
        "LimitEvent",
        "Missed",
        "ProgressEvent",
        "RunEvent",
        "SetbackEvent",
        "StepEvent",
        "WaitEvent",
    ),
    "inspect.history": ("Happening", "History"),
    "inspect.entities": ("EntityStatus",),
    "inspect.counts": ("StoreCounts", "UnfinishedCount", "UnpatchedCount"),
    "inspect.keys": ("KeyStatus",),
    "inspect.progress": ("Progress", "StepCounts", "StepProgress"),
    "inspect.reader": ("Reader", "open_reader"),
    "inspect.statistics": ("RuntimeStatistics",),
    "events.subscription": ("Events",),
    "inspect.watch": ("Watch",),
    "waiting.receive": ("Approval",),
    "waiting.signals": ("Delivery",),
}
"""Where that is which is imported by the first who asks for it: a program that runs workflows needs
half of it, one that reads a store less. `workflow` cannot be among it: it is a module, too."""

if not TYPE_CHECKING:  # which would take any name for one of these

    def __getattr__(name: str) -> object:
        for module, names in _LATER.items():
            if name in names:
                found = getattr(import_module(f"{__name__}.{module}"), name)
                globals()[name] = found
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
