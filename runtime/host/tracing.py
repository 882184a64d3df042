"""Tracing: what the engine reports about runs and attempts, so that spans can be made of it.

The engine imports no tracing library. `keyrun.tracing` implements these protocols. `None` in place
of a `RunTracer` means that tracing is off.
"""

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from keyrun.runtime.records.journal_entry import Interrupted
    from keyrun.runtime.records.submission import StatusRecord, Submission
    from keyrun.runtime.values import Failure
    from keyrun.storage.group import Group

caller_trace: "ContextVar[Mapping[str, str] | None]" = ContextVar(
    "keyrun.caller_trace", default=None
)
"""The fields `traceparent` and `tracestate` of the request that the current task answers."""


FIELDS = ("traceparent", "tracestate")
"""The headers of a run that name the span that it is below."""


def trace_fields(given: Mapping[Any, Any]) -> dict[str, str] | None:
    """Return the fields of a request from outside that name a span. None if there are none."""
    found = {name: given[name] for name in FIELDS if isinstance(given.get(name), str)}
    return found if FIELDS[0] in found else None


class TracedStep(Protocol):
    """The attempt of a step that a span is about."""

    step: str
    attempt: int
    begun: float


class TracedRun(Protocol):
    """The run that a span is about."""

    trace: Any
    """What the tracer keeps about the run while the run is in memory. None at first."""
    record: bytes
    """The namespace and the admission number."""

    @property
    def submission(self) -> "Submission": ...

    @property
    def status(self) -> "StatusRecord": ...


class AttemptSpan(Protocol):
    """The span of an attempt that has begun. It is current for the function of the step."""

    def leave(self) -> None:
        """Record that the function has returned or raised, and restore the span that was current
        before. Called in the task in which the attempt began."""

    def succeeded(self) -> None:
        """Record that the attempt has a value. An attempt that neither succeeds nor fails was
        cancelled."""

    def failed(self, failure: "Failure") -> None:
        """Record that the attempt failed."""

    def finish(self, group: "Group | None") -> None:
        """Export the span when `group` is durable, or at once if it is durable or None."""


class RunTracer(Protocol):
    """Makes the spans of all runs of a process. No method raises."""

    def joined(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a run that this task submits: the run continues the trace of the
        task."""

    def linked(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a run that this task causes: the run has a trace of its own, with
        a link to the span of the task."""

    def child_headers(self, parent: TracedRun, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a child run, which has a link to its parent. `headers` are those of
        the parent."""

    def caller_context(self) -> Any:
        """Return the context of this task for code that runs for it in another task, or None if the
        task is in no span."""

    def enter(self, context: Any) -> Any:
        """Make the span of a context current in this task. Return what `leave` takes."""

    def leave(self, token: Any) -> None:
        """Restore the span that was current before."""

    def attempt(self, run: TracedRun, current: TracedStep) -> AttemptSpan | None:
        """Begin the span of an attempt, and make it current in this task."""

    def interrupted(
        self, record: bytes, submission: "Submission", generation: int, entry: "Interrupted"
    ) -> None:
        """Export the span of an attempt that a crash interrupted. The entry about it is durable."""

    def run_ended(self, run: TracedRun) -> None:
        """Export the span of a run whose end is durable."""

    def sent(self, record: bytes, submission: "Submission", generation: int, name: str) -> None:
        """Export a span with a link to the run to which this task has sent a signal."""


class TracerSource(Protocol):
    """The argument `tracing` of `open_runtime`."""

    def start(self, wall: Callable[[], float]) -> RunTracer | None:
        """Return the tracer of a runtime that is being opened, or None if nothing is traced."""


def without_link(headers: Mapping[str, str]) -> dict[str, str]:
    """Return headers without the link to the span that caused a run."""
    return {name: value for name, value in headers.items() if name != LINK}


LINK = "keyrun.link"
"""The header with the span that caused a run with a trace of its own, written as a
`traceparent`."""
