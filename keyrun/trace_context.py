"""The trace context of a task, as headers: `traceparent` and `tracestate` of W3C Trace Context."""

from collections.abc import Mapping

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    NonRecordingSpan,
    SpanContext,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from keyrun.runtime.host.tracing import FIELDS, caller_trace

EMPTY = Context()
_PROPAGATOR = TraceContextTextMapPropagator()


def within(span: SpanContext) -> Context:
    """Return the context of code in a span of another process."""
    return set_span_in_context(NonRecordingSpan(span), EMPTY)


def read(fields: Mapping[str, str]) -> SpanContext:
    """Return the span that a `traceparent` names, or an invalid one."""
    if FIELDS[0] not in fields:
        return INVALID_SPAN_CONTEXT
    found = _PROPAGATOR.extract(fields, EMPTY)
    return trace.get_current_span(found).get_span_context()


def written(span: SpanContext) -> dict[str, str]:
    """Return the fields that name a span."""
    fields: dict[str, str] = {}
    _PROPAGATOR.inject(fields, within(span))
    return fields


def caller() -> SpanContext:
    """Return the span in which the current task calls Keyrun, or an invalid one. If the task
    answers a request, that is the span of the request, or a span below it."""
    span = trace.get_current_span().get_span_context()
    fields = caller_trace.get()
    if fields is None:
        return span
    asked = read(fields)
    return span if not asked.is_valid or span.trace_id == asked.trace_id else asked


def caller_fields() -> dict[str, str] | None:
    """Return the fields that name the span of the current task, or None if it has none."""
    span = caller()
    return written(span) if span.is_valid else None
