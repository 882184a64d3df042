"""Verdicts: how a workflow itself can judge its run, have it go on, or give it up by an error."""

from typing import NamedTuple

from keyrun.runtime.errors import ScopeTimeout
from keyrun.runtime.texts import named, traceback_of, type_of
from keyrun.runtime.values import Failure, FailureKind


class CancelVerdict(NamedTuple):
    """The run is cancelled by its own workflow, which wins over a cancel from outside."""

    reason: str


class Continuation(NamedTuple):
    """The run goes on with another input, as it is stored, and an empty journal."""

    input: bytes


def workflow_error(error: BaseException) -> Failure:
    """What it is when the code of a workflow itself raises."""
    return Failure(
        kind=FailureKind.WORKFLOW_ERROR,
        reason=f"the workflow itself raised {named(error)}",
        step=getattr(error, "step", None) if issubclass(type(error), ScopeTimeout) else None,
        error_type=type_of(error),
        traceback=traceback_of(error),
    )
