"""Status: the values that a `Runtime` and a `Reader` return, beyond `RunStatus` and `State`, which
are in `keyrun`.

All are frozen values, except `Watch`, an async iterator of `Progress`.
"""

from keyrun.runtime.host.step_gates import StepGateStatus
from keyrun.runtime.host.watchdog import LoopStatistics
from keyrun.runtime.inspect.approvals import ApprovalPage, OpenGate
from keyrun.runtime.inspect.audit import AuditPage
from keyrun.runtime.inspect.catalogs import GroupPage, GroupSummary, SchedulePage
from keyrun.runtime.inspect.counts import StoreCounts, UnfinishedCount, UnpatchedCount
from keyrun.runtime.inspect.explain import Cause, Explanation
from keyrun.runtime.inspect.family import Family, RunLink
from keyrun.runtime.inspect.history import Happening, History, HistoryPage
from keyrun.runtime.inspect.key_view import EntityView, KeyView, StoredValue, Unshown
from keyrun.runtime.inspect.keys import EntityStatus, KeyPage, KeyStatus
from keyrun.runtime.inspect.pages import RunPage
from keyrun.runtime.inspect.policies import (
    BreakerStatus,
    ConcurrencyStatus,
    PolicyStatus,
    RateStatus,
    ResourceStatus,
    StepPolicyStatus,
)
from keyrun.runtime.inspect.progress import Progress, StepCounts, StepProgress
from keyrun.runtime.inspect.statistics import RuntimeStatistics
from keyrun.runtime.inspect.watch import Watch
from keyrun.runtime.inspect.workflows import WorkflowInfo, WorkflowKind
from keyrun.runtime.queue.backpressure import BacklogStatistics
from keyrun.runtime.queue.outbox import OutboxStatus
from keyrun.runtime.records.operation import AuditEntry
from keyrun.runtime.values import (
    CircuitState,
    CircuitStatus,
    CompensationProgress,
    ItemCounts,
    QuarantineCause,
)

__all__ = [
    "ApprovalPage",
    "AuditEntry",
    "AuditPage",
    "BacklogStatistics",
    "BreakerStatus",
    "Cause",
    "CircuitState",
    "CircuitStatus",
    "CompensationProgress",
    "ConcurrencyStatus",
    "EntityStatus",
    "EntityView",
    "Explanation",
    "Family",
    "GroupPage",
    "GroupSummary",
    "Happening",
    "History",
    "HistoryPage",
    "ItemCounts",
    "KeyPage",
    "KeyStatus",
    "KeyView",
    "LoopStatistics",
    "OpenGate",
    "OutboxStatus",
    "PolicyStatus",
    "Progress",
    "QuarantineCause",
    "RateStatus",
    "ResourceStatus",
    "RunLink",
    "RunPage",
    "RuntimeStatistics",
    "SchedulePage",
    "StepCounts",
    "StepGateStatus",
    "StepPolicyStatus",
    "StepProgress",
    "StoreCounts",
    "StoredValue",
    "UnfinishedCount",
    "UnpatchedCount",
    "Unshown",
    "Watch",
    "WorkflowInfo",
    "WorkflowKind",
]
