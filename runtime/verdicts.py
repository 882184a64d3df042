"""Verdicts: how workflow code ends its run, continues it with a new journal, or fails it."""

from typing import NamedTuple

from keyrun.runtime.errors import ScopeTimeout
from keyrun.runtime.texts import named, traceback_of, type_of
from keyrun.runtime.values import Failure, FailureKind


class CancelVerdict(NamedTuple):
    """The workflow cancels its own run. This takes precedence over an external cancel."""

    reason: str


class Continuation(NamedTuple):
    """The run continues with another input, in its stored form, and an empty journal."""

    input: bytes


def workflow_error(error: BaseException) -> Failure:
    """Return the failure of a run whose workflow code raised `error`."""
    return Failure(
        kind=FailureKind.WORKFLOW_ERROR,
        reason=f"the workflow raised {named(error)}",
        step=getattr(error, "step", None) if issubclass(type(error), ScopeTimeout) else None,
        error_type=type_of(error),
        traceback=traceback_of(error),
    )
