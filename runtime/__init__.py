"""Durable runs: submission, steps, policies, recovery.

A run is an async function whose steps are remembered: driven again after a crash, steps with a
journaled outcome return it at once. Everything else here follows from that.

| room         | what lives there                                                       |
|--------------|------------------------------------------------------------------------|
| (this one)   | the front of it: runtime, workflows, context; the engine; a run        |
| `order/`     | the runs of one key, one after the other, and who is next              |
| `steps/`     | from what a workflow asks for, over attempts, to the outcome           |
| `policies/`  | breaker, rate, resources, retry ...: one small module each             |
| `journal/`   | what a run remembers, and how its code is driven against it again      |
| `waiting/`   | timers, signals, approvals; runs that leave memory until they come     |
| `children/`  | runs that a run starts and waits for                                   |
| `entities/`  | classes whose methods are called under a key and keep state there      |
| `graphs/`    | workflows drawn as nodes and edges                                     |
| `groups/`    | many runs that are submitted, awaited and cancelled as one             |
| `schedules/` | runs that the clock starts                                             |
| `recovery/`  | after a crash, damage, a bug, or a failure for good                    |
| `views/`     | events, progress, history and listings, for those who look at runs     |
"""

from importlib import import_module
from typing import TYPE_CHECKING

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
from keyrun.runtime.steps.step import StepFunction, step
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
from keyrun.runtime.workflow import Workflow, workflow

if TYPE_CHECKING:
    from keyrun.runtime.context import Context, DurableCall
    from keyrun.runtime.entities.entity import Entity, entity
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
    from keyrun.runtime.groups.group import GroupStatus, Member, MemberOutcome
    from keyrun.runtime.groups.handle import GroupHandle
    from keyrun.runtime.handle import RunHandle
    from keyrun.runtime.machines import Cancel, Continue, Fail, Succeed, Turn, TurnSignal, machine
    from keyrun.runtime.opening import open_runtime
    from keyrun.runtime.outbox import OutboxStatus
    from keyrun.runtime.policies.breaker import CircuitBreaker, CircuitState, CircuitStatus
    from keyrun.runtime.policies.cadence import EverySeconds, EverySteps, Manual
    from keyrun.runtime.policies.rate import RateLimit
    from keyrun.runtime.policies.resources import Resources
    from keyrun.runtime.policies.turnstile import TurnstileStatus
    from keyrun.runtime.retention import Retention
    from keyrun.runtime.runtime import Runtime
    from keyrun.runtime.schedules.schedule import ScheduleStatus
    from keyrun.runtime.schedules.timetable import Cron, Every, Once
    from keyrun.runtime.steps.current import CurrentStep, current_step
    from keyrun.runtime.steps.undoing import Compensation
    from keyrun.runtime.views.counts import StoreCounts, UnfinishedCount, UnpatchedCount
    from keyrun.runtime.views.entities import EntityStatus
    from keyrun.runtime.views.events import (
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
    from keyrun.runtime.views.history import Happening, History
    from keyrun.runtime.views.keys import KeyStatus
    from keyrun.runtime.views.progress import Progress, StepCounts, StepProgress
    from keyrun.runtime.views.reader import Reader, open_reader
    from keyrun.runtime.views.statistics import RuntimeStatistics
    from keyrun.runtime.views.subscription import Events
    from keyrun.runtime.views.watching import Watch
    from keyrun.runtime.waiting.receiving import Approval
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
    "StepProgress",
    "StepTimeout",
    "StoreCounts",
    "Succeed",
    "TooDeep",
    "TransientError",
    "Turn",
    "TurnSignal",
    "TurnstileStatus",
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
    "context": ("Context", "DurableCall"),
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
    "groups.group": ("GroupStatus", "Member", "MemberOutcome"),
    "groups.handle": ("GroupHandle",),
    "handle": ("RunHandle",),
    "machines": ("Cancel", "Continue", "Fail", "Succeed", "Turn", "TurnSignal", "machine"),
    "opening": ("open_runtime",),
    "outbox": ("OutboxStatus",),
    "policies.breaker": ("CircuitBreaker", "CircuitState", "CircuitStatus"),
    "policies.cadence": ("EverySeconds", "EverySteps", "Manual"),
    "policies.rate": ("RateLimit",),
    "policies.resources": ("Resources",),
    "policies.turnstile": ("TurnstileStatus",),
    "retention": ("Retention",),
    "runtime": ("Runtime",),
    "schedules.schedule": ("ScheduleStatus",),
    "schedules.timetable": ("Cron", "Every", "Once"),
    "steps.current": ("CurrentStep", "current_step"),
    "steps.undoing": ("Compensation",),
    "views.events": (
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
    "views.history": ("Happening", "History"),
    "views.entities": ("EntityStatus",),
    "views.counts": ("StoreCounts", "UnfinishedCount", "UnpatchedCount"),
    "views.keys": ("KeyStatus",),
    "views.progress": ("Progress", "StepCounts", "StepProgress"),
    "views.reader": ("Reader", "open_reader"),
    "views.statistics": ("RuntimeStatistics",),
    "views.subscription": ("Events",),
    "views.watching": ("Watch",),
    "waiting.receiving": ("Approval",),
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
