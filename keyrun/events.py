"""Events: the values that `rt.events()` yields.

`Event` is the union of all event types. They begin with the same five fields: `kind` (an
`EventKind`), `at`, `run_id`, `key` and `workflow`.
"""

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

__all__ = [
    "BackpressureEvent",
    "CircuitEvent",
    "Event",
    "EventKind",
    "Events",
    "KeyEvent",
    "LimitEvent",
    "Missed",
    "ProgressEvent",
    "RunEvent",
    "SetbackEvent",
    "StepEvent",
    "WaitEvent",
]
