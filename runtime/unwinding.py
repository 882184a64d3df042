"""Unwinding: why the coroutine of a workflow is left before it returns."""

from enum import Enum, auto


class Unwind(Enum):
    """Why the coroutine of a workflow is being cancelled."""

    AGAIN = auto()
    """To be driven again at once: a step ran out of time."""
    DEADLINE = auto()
    """The run is out of time."""
    CANCEL = auto()
    """Somebody cancelled the run."""
    LEAVE = auto()
    """The run leaves memory and will be driven again later: drain."""
    EVICT = auto()
    """All of it waits: it leaves memory until there is something to do, and its place says so."""


class Halt(BaseException):
    """Ends the pass: `run.decision` or `run.unwinding` says what comes of it. Not an Exception, so
    that a workflow's own `except Exception` cannot swallow it."""
