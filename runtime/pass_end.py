"""The end of a pass: why the workflow function is left before it returns.

A pass is one call of the workflow function. It ends early by a verdict of the workflow
(`run.decision`), or because the runtime cancels its coroutine (`run.unwinding`).
"""

from enum import Enum, auto
from typing import NamedTuple


class CancelVerdict(NamedTuple):
    """The workflow cancels its own run. This takes precedence over an external cancel."""

    reason: str


class Continuation(NamedTuple):
    """The run continues with another input, in its stored form, and an empty journal."""

    input: bytes


class Unwind(Enum):
    """Why the coroutine of a workflow is being cancelled."""

    AGAIN = auto()
    """A step exceeded its timeout, and the run is driven again at once."""
    DEADLINE = auto()
    """The run exceeded its `run_timeout`."""
    CANCEL = auto()
    """The run was cancelled."""
    LEAVE = auto()
    """The runtime drains, and the run is driven again at the next open."""
    EVICT = auto()
    """All branches wait, and the run is evicted until it has something to do."""


class Halt(BaseException):
    """End the pass. `run.decision` or `run.unwinding` says why. It is not an `Exception`, so that
    `except Exception` in a workflow does not catch it."""
