"""The trace that a client's calls belong to, if its program uses OpenTelemetry."""

import sys

from keyrun.runtime.host.tracing import FIELDS


def caller_fields() -> dict[str, str] | None:
    """Return the fields that name the span of the task that makes a call, or None if it has
    none. A program that does not use OpenTelemetry does not import it here."""
    if "opentelemetry.trace" not in sys.modules:
        return None
    from keyrun import trace_context

    return trace_context.caller_fields()


def joined(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a run that continues the trace of the task."""
    fields = None if FIELDS[0] in headers else caller_fields()
    return headers if fields is None else {**headers, **fields}
