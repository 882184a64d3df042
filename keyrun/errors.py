"""All errors of Keyrun.

Errors derive from `KeyrunError` and from a builtin, so that `except KeyrunError` and, for example,
`except TimeoutError` both work. The bases of an error besides its parent are in brackets.

    KeyrunError
    │   rejected arguments
    ├── InvalidKey (ValueError)
    ├── InvalidRunId (ValueError)
    ├── InvalidText (ValueError)
    ├── ReservedHeader (ValueError)
    ├── InputMismatch (ValueError)
    ├── InvalidSchedule (ValueError)
    ├── InvalidGroup (ValueError)
    ├── InvalidGraph (ValueError)
    ├── InvalidHistory (ValueError)
    ├── PayloadError (ValueError)
    │   └── PayloadMismatch
    ├── PayloadTypeError (TypeError)
    ├── MissingExtra (ImportError)
    │   unknown names
    ├── UnknownWorkflow (LookupError)
    ├── UnknownRun (LookupError)
    ├── UnknownGroup (LookupError)
    ├── UnknownEntity (LookupError)
    ├── UnknownMethod (AttributeError)
    │   calls that the state of the runtime or of a run does not allow
    ├── Backpressure (TimeoutError)
    ├── NoOwner (TimeoutError)
    ├── RunEnded (RuntimeError)
    ├── GateNotWaiting (RuntimeError)
    ├── WrongTask (RuntimeError)
    ├── TooDeep (RecursionError)
    │   how a run ended, or why it does not end
    ├── RunFailed (RuntimeError)
    │   └── ChildFailed
    ├── RunCancelled (RuntimeError)
    │   └── ChildCancelled
    ├── RunQuarantined (RuntimeError)
    ├── ResultTimeout (TimeoutError)
    ├── NonDeterminism (RuntimeError)
    │   how a step, a wait or a scope ended
    ├── StepFailed (RuntimeError)
    │   └── StepTimeout (TimeoutError)
    ├── ScopeTimeout (TimeoutError)
    ├── SignalTimeout (TimeoutError)
    ├── ApprovalRejected (RuntimeError)
    ├── CircuitOpen (RuntimeError)
    ├── ConditionError (ValueError)
    ├── OutputTooLarge (PermanentError, ValueError)
    │   calls of entities
    ├── CallFailed (RuntimeError)
    ├── CallTimeout (TimeoutError)
    ├── CallCycle (RuntimeError)
    │   the store
    ├── StoreError (RuntimeError)
    │   ├── StoreClosed
    │   ├── StoreLocked
    │   ├── StoreLost
    │   │   └── OwnershipUncertain
    │   ├── StoreReadOnly
    │   ├── StoreTooNew
    │   ├── StoreFull (OSError)
    │   ├── StoreCorrupt
    │   └── StoreCrashed
    ├── BatchTooLarge (ValueError)
    └── TooManyTables (ValueError)

    Exception: raise these in steps
    ├── TransientError
    └── PermanentError

The errors of `keyrun.actors` and `keyrun.flows` are in those packages.
"""

from keyrun._errors import KeyrunError
from keyrun.runtime.errors import (
    ApprovalRejected,
    Backpressure,
    CallCycle,
    CallFailed,
    CallTimeout,
    ChildCancelled,
    ChildFailed,
    CircuitOpen,
    ConditionError,
    GateNotWaiting,
    InputMismatch,
    InvalidGraph,
    InvalidGroup,
    InvalidHistory,
    InvalidKey,
    InvalidRunId,
    InvalidSchedule,
    InvalidText,
    MissingExtra,
    NonDeterminism,
    NoOwner,
    OutputTooLarge,
    PermanentError,
    ReservedHeader,
    ResultTimeout,
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
from keyrun.storage.errors import (
    BatchTooLarge,
    OwnershipUncertain,
    StoreClosed,
    StoreCorrupt,
    StoreCrashed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreLost,
    StoreReadOnly,
    StoreTooNew,
    TooManyTables,
)
from keyrun.storage.misfit import PayloadError, PayloadMismatch, PayloadTypeError

__all__ = [
    "ApprovalRejected",
    "Backpressure",
    "BatchTooLarge",
    "CallCycle",
    "CallFailed",
    "CallTimeout",
    "ChildCancelled",
    "ChildFailed",
    "CircuitOpen",
    "ConditionError",
    "GateNotWaiting",
    "InputMismatch",
    "InvalidGraph",
    "InvalidGroup",
    "InvalidHistory",
    "InvalidKey",
    "InvalidRunId",
    "InvalidSchedule",
    "InvalidText",
    "KeyrunError",
    "MissingExtra",
    "NoOwner",
    "NonDeterminism",
    "OutputTooLarge",
    "OwnershipUncertain",
    "PayloadError",
    "PayloadMismatch",
    "PayloadTypeError",
    "PermanentError",
    "ReservedHeader",
    "ResultTimeout",
    "RunCancelled",
    "RunEnded",
    "RunFailed",
    "RunQuarantined",
    "ScopeTimeout",
    "SignalTimeout",
    "StepFailed",
    "StepTimeout",
    "StoreClosed",
    "StoreCorrupt",
    "StoreCrashed",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreLost",
    "StoreReadOnly",
    "StoreTooNew",
    "TooDeep",
    "TooManyTables",
    "TransientError",
    "UnknownEntity",
    "UnknownGroup",
    "UnknownMethod",
    "UnknownRun",
    "UnknownWorkflow",
    "WrongTask",
]
