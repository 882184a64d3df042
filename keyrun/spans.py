"""The spans of runs and attempts, for the SDK of OpenTelemetry.

The id of a span is a hash of what it is about, so that each process has the same ids:

| span | hash of |
|---|---|
| run | namespace, admission number, run id, time of the submit, generation |
| attempt | the same, step, attempt, time of its begin |

The time of its begin is a part, because an attempt that a drain or a crash cut off begins again
with the same number. Its start marker has the time, so the next process knows the id.

The API of OpenTelemetry cannot make a span with a given id. So this module asks the sampler of the
provider itself, and passes finished spans to the span processors of the provider. It uses public
attributes of the SDK's `Tracer` only. The span of an attempt is a `StepSpan` while the step runs,
which is much faster to make than the span of the SDK.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from hashlib import blake2b
from traceback import format_exception
from typing import Any

from opentelemetry import context as current
from opentelemetry import trace
from opentelemetry.attributes import BoundedAttributes
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, SpanLimits, Tracer
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    INVALID_SPAN_CONTEXT,
    Link,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from keyrun import __version__
from keyrun.runtime.host.tracing import FIELDS, LINK, AttemptSpan, TracedRun, TracedStep
from keyrun.runtime.logger import logger
from keyrun.runtime.records.journal_entry import COMPENSATION, Interrupted
from keyrun.runtime.records.submission import Submission
from keyrun.runtime.values import Failure, FailureKind, State
from keyrun.storage.group import Group
from keyrun.trace_context import EMPTY, caller, read, within, written

NAME = "keyrun"
"""The name of the instrumentation scope."""
NUMBER = 8
"""Bytes of the admission number in the key of a run."""
INHERITS = re.compile(
    "^(AlwaysOnSampler|AlwaysOffSampler|TraceIdRatioBased{.*|ParentBased{.*"
    "localParentSampled:AlwaysOnSampler,localParentNotSampled:AlwaysOffSampler})$"
)
"""The descriptions of samplers of the SDK that decide by the trace id or follow the parent. To ask
them about each attempt would take as long as to make its span."""

_RANDOM = 2
_FLAGS = [TraceFlags(value) for value in range(4)]
"""Sampled or not, and with a random trace id or not."""
_ATTEMPT, _IDENTITY = struct.Struct("<qd"), struct.Struct("<dq")
(_SPAN_KEY,) = set_span_in_context(trace.INVALID_SPAN, EMPTY)
"""Under which a context has its span. `set_span_in_context` would copy the context first."""
# Looking a member up in its enum takes as long as a call.
_DROP, _SAMPLE = Decision.DROP, Decision.RECORD_AND_SAMPLE
_TURN = re.compile(r"turn-\d+")


@lru_cache(4096)
def name_of(step: str) -> str:
    """Return the name of the span of a step: its name in the code, without the numbers that tell
    its calls apart."""
    verb = "compensate" if step.startswith(COMPENSATION) else "step"
    name = step.rpartition("/")[2].partition("#")[0]
    return f"{verb} {_TURN.sub('turn', name)}"


def nanoseconds(time: float) -> int:
    """Return a time as spans have it."""
    return int(time * 1e9)


class SpanFacts:
    """What a span is about."""

    __slots__ = ("attributes", "context", "name", "parent", "start_time")

    def __init__(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        attributes: dict[str, Any],
        start_time: int,
    ) -> None:
        self.name = name
        self.context = context
        self.parent = parent
        self.attributes: dict[str, Any] | BoundedAttributes = attributes
        self.start_time = start_time


class OwnSpan(trace.Span):
    """A span with a given id while it is recorded. Other code may add to it."""

    # Most spans need only these values, so they are not set for each of them.
    kind = SpanKind.INTERNAL
    events: Sequence[Event] = ()
    links: Sequence[Link] = ()
    status = Status(StatusCode.UNSET)
    end_time: int | None = None
    _over = False
    """Whether the span was passed to the processors."""

    _known: "SpanFacts | None" = None

    def __init__(self, maker: "SpanMaker", facts: "SpanFacts") -> None:
        self._maker = maker
        self._known = facts

    def _find(self) -> "SpanFacts":
        """Compute what the span is about."""
        raise NotImplementedError

    @property
    def facts(self) -> "SpanFacts":
        """Return what the span is about."""
        if self._known is None:
            self._known = self._find()
        return self._known

    @property
    def name(self) -> str:
        """Return the name."""
        return self.facts.name

    @property
    def context(self) -> SpanContext:
        """Return the ids of the span."""
        return self.facts.context

    @property
    def parent(self) -> SpanContext | None:
        """Return the ids of the parent."""
        return self.facts.parent

    @property
    def attributes(self) -> "dict[str, Any] | BoundedAttributes":
        """Return the attributes."""
        return self.facts.attributes

    @property
    def start_time(self) -> int:
        """Return the time of the begin."""
        return self.facts.start_time

    @property
    def resource(self) -> Resource:
        """Return the resource of the provider."""
        return self._maker.tracer.resource

    @property
    def instrumentation_scope(self) -> InstrumentationScope:
        """Return the scope of Keyrun's spans."""
        return self._maker.scope

    def get_span_context(self) -> SpanContext:
        return self.facts.context

    def is_recording(self) -> bool:
        return not self._over

    def end(self, end_time: int | None = None) -> None:
        """Do nothing: Keyrun ends the span when the attempt is over."""

    def set_attribute(self, key: str, value: Any) -> None:
        if self._over:
            return
        facts = self.facts
        if not isinstance(facts.attributes, BoundedAttributes):
            limits = self._maker.limits
            facts.attributes = BoundedAttributes(
                limits.max_span_attributes,
                facts.attributes,
                immutable=False,
                max_value_len=limits.max_span_attribute_length,
            )
        facts.attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        for key, value in attributes.items():
            self.set_attribute(key, value)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        limits = self._maker.limits
        full = limits.max_events is not None and len(self.events) >= limits.max_events
        if not self._over and not full:
            bounded = BoundedAttributes(
                limits.max_event_attributes, attributes, max_value_len=limits.max_attribute_length
            )
            self.events = (*self.events, Event(name, bounded, timestamp))

    def add_link(self, context: SpanContext, attributes: Any = None) -> None:
        limits = self._maker.limits
        full = limits.max_links is not None and len(self.links) >= limits.max_links
        if not self._over and not full:
            bounded = BoundedAttributes(
                limits.max_link_attributes, attributes, max_value_len=limits.max_attribute_length
            )
            self.links = (*self.links, Link(context, bounded))

    def update_name(self, name: str) -> None:
        if not self._over:
            self.facts.name = name

    def set_status(self, status: Status | StatusCode, description: str | None = None) -> None:
        if isinstance(status, StatusCode):
            status = Status(status, description)
        settled = self.status.status_code is StatusCode.OK
        if not self._over and not settled and status.status_code is not StatusCode.UNSET:
            self.status = status

    def record_exception(
        self,
        exception: BaseException,
        attributes: Any = None,
        timestamp: int | None = None,
        escaped: bool = False,
    ) -> None:
        about = {
            "exception.type": type(exception).__qualname__,
            "exception.message": str(exception),
            "exception.stacktrace": "".join(format_exception(exception)),
            "exception.escaped": str(escaped),
        }
        self.add_event("exception", {**about, **(attributes or {})}, timestamp)

    def exported(self) -> ReadableSpan:
        """Return the span as processors and exporters take it. Nothing can be added any more."""
        self._over = True
        maker, facts = self._maker, self.facts
        return ReadableSpan(
            facts.name,
            facts.context,
            facts.parent,
            maker.tracer.resource,
            facts.attributes,
            self.events,
            self.links,
            status=self.status,
            start_time=facts.start_time,
            end_time=self.end_time,
            instrumentation_scope=maker.scope,
        )


class StepSpan(OwnSpan):
    """The span of an attempt. What the step does not ask for is computed when the attempt is
    exported, because many attempts are exported together, and that is faster."""

    _outcome = "cancelled"
    token: Any = None
    """What `leave` restores."""

    def __init__(self, of: "RunSpan", step: str, attempt: int, begun: float) -> None:
        self._maker = of.maker
        self._of = of
        self._step = step
        self._attempt = attempt
        self._begun = begun

    def _find(self) -> "SpanFacts":
        of, step, attempt, begun = self._of, self._step, self._attempt, self._begun
        parent = of.context
        span_id = of.id_of(step.encode() + _ATTEMPT.pack(attempt, begun))
        return SpanFacts(
            name_of(step),
            SpanContext(parent.trace_id, span_id, False, parent.trace_flags, parent.trace_state),
            parent,
            {**of.attributes, "keyrun.step": step, "keyrun.attempt": attempt},
            int(begun * 1e9),
        )

    def sample(self) -> bool:
        """Ask the sampler about the attempt. Return whether it is recorded."""
        facts, of = self.facts, self._of
        trace_id = facts.context.trace_id
        result = self._maker.sample(of.within, trace_id, facts.name, facts.attributes, ())
        flags = _FLAGS[(result.decision is _SAMPLE) | (of.context.trace_flags & _RANDOM)]
        state = result.trace_state or of.context.trace_state
        facts.context = SpanContext(trace_id, facts.context.span_id, False, flags, state)
        facts.attributes = dict(result.attributes or {})
        return result.decision is not _DROP

    def leave(self) -> None:
        """Restore the span that was current before."""
        current.detach(self.token)
        self.end_time = int(self._maker.wall() * 1e9)

    def succeeded(self) -> None:
        """Record that the attempt has a value."""
        self._outcome = "succeeded"

    def failed(self, failure: Failure) -> None:
        """Record that the attempt failed."""
        self._outcome = "timed_out" if failure.kind is FailureKind.STEP_TIMEOUT else "failed"
        about: dict[str, Any] = {"exception.message": failure.reason}
        if failure.error_type is not None:
            about["exception.type"] = failure.error_type.removeprefix("builtins.")
        if failure.traceback is not None:
            about["exception.stacktrace"] = failure.traceback
        self.add_event("exception", about, self._maker.now())
        self.set_status(StatusCode.ERROR, failure.reason)

    def interrupted(self, at: float) -> None:
        """Record that a crash interrupted the attempt, which was found at this time."""
        self._outcome = "interrupted"
        self.set_status(StatusCode.ERROR, "interrupted")
        self.end_time = int(at * 1e9)

    def finish(self, group: Group | None) -> None:
        """Export the span when the outcome of the attempt is durable."""
        maker = self._maker
        if group is not None and group is maker.group and not group.durable:
            maker.spans.append(self)
        else:
            maker.follow(self, group)

    def exported(self) -> ReadableSpan:
        """Return the span as processors and exporters take it."""
        self.facts.attributes["keyrun.outcome"] = self._outcome
        return super().exported()


class Unrecorded:
    """An attempt that is not sampled. Spans below it are not sampled either."""

    __slots__ = ("_token",)

    def __init__(self, token: Any) -> None:
        self._token = token

    def leave(self) -> None:
        """Restore the span that was current before."""
        current.detach(self._token)

    def succeeded(self) -> None:
        """Do nothing."""

    def failed(self, failure: Failure) -> None:
        """Do nothing."""

    def finish(self, group: Group | None) -> None:
        """Do nothing."""


class RunSpan:
    """The span of a run, which is exported at its end, and the parent of its attempts."""

    __slots__ = (
        "attributes",
        "context",
        "decision",
        "generation",
        "key",
        "links",
        "maker",
        "name",
        "parent",
        "within",
    )

    def __init__(
        self, maker: "SpanMaker", record: bytes, submission: Submission, generation: int
    ) -> None:
        identity = record + _IDENTITY.pack(submission.submitted_at, generation)
        seed = blake2b(identity + submission.run_id.encode(), digest_size=40).digest()
        self.maker = maker
        self.generation = generation
        self.key = seed[24:]
        self.links: list[Link] = []
        headers = submission.headers
        parent = cause = INVALID_SPAN_CONTEXT
        if headers:
            parent = read(headers)
            if LINK in headers:
                cause = read({FIELDS[0]: headers[LINK]})
                if cause.is_valid:
                    self.links.append(Link(cause))
        if generation > 1:
            before = RunSpan(maker, record, submission, generation - 1).context
            self.links.append(Link(before))
            if not parent.is_valid:
                # The runs of all generations are in one trace.
                parent = before
        is_root = not parent.is_valid
        self.parent = None if is_root else parent
        trace_id = int.from_bytes(seed[:16], "big") if is_root else parent.trace_id
        # A run with a trace of its own is sampled if the span that caused it is.
        asked = cause if is_root else parent
        asked_in = EMPTY
        if asked.is_valid:
            given = SpanContext(trace_id, asked.span_id, True, asked.trace_flags, asked.trace_state)
            asked_in = within(given)
        self.name = f"run {submission.workflow}"
        self.attributes: dict[str, Any] = {
            "keyrun.namespace": record[: -NUMBER - 1].decode(),
            "keyrun.workflow": submission.workflow,
            "keyrun.run_id": submission.run_id,
            "keyrun.key": submission.key,
            "keyrun.generation": generation,
        }
        self.context: SpanContext
        result = maker.sample(asked_in, trace_id, self.name, self.attributes, self.links)
        self.decision = result.decision
        random = 0 if is_root else int(parent.trace_flags) & _RANDOM
        self.context = SpanContext(
            trace_id,
            int.from_bytes(seed[16:24], "big") or 1,
            False,
            _FLAGS[(result.decision is _SAMPLE) | random],
            result.trace_state,
        )
        if not maker.inherits:
            self.attributes = dict(result.attributes or {})
        self.within = within(self.context)

    def id_of(self, what: bytes) -> int:
        """Return the id of the span of an attempt."""
        return int.from_bytes(blake2b(self.key + what, digest_size=8).digest(), "big") or 1


class SpanMaker:
    """Makes the spans of a process. `tracer` is a tracer of the provider."""

    def __init__(self, tracer: Tracer, wall: Callable[[], float]) -> None:
        self.tracer = tracer
        self.scope = InstrumentationScope(NAME, __version__)
        self.limits: SpanLimits = getattr(tracer, "_span_limits", None) or SpanLimits()
        self.wall = wall
        self._sampler = tracer.sampler
        self.inherits = INHERITS.search(self._sampler.get_description()) is not None
        """Whether the sampler would decide about each attempt as about the run."""
        self._processor = tracer.span_processor
        self.group: Group | None = None
        self.spans: list[StepSpan] = []
        """The spans that are exported when the group is durable."""
        self._has_failed = False

    @classmethod
    def of(cls, provider: trace.TracerProvider, wall: Callable[[], float]) -> "SpanMaker | None":
        """Return what makes spans for a provider, or None if the provider is disabled. Raise
        `TypeError` if it is not one of the SDK."""
        tracer = provider.get_tracer(NAME, __version__)
        if isinstance(tracer, trace.NoOpTracer):
            return None
        if not isinstance(tracer, Tracer):
            raise TypeError(
                "Tracing requires a TracerProvider of opentelemetry-sdk, got "
                f"{type(provider).__module__}.{type(provider).__qualname__}"
            )
        return cls(tracer, wall)

    def now(self) -> int:
        """Return the time as spans have it."""
        return int(self.wall() * 1e9)

    def sample(
        self,
        within: Context,
        trace_id: int,
        name: str,
        attributes: Mapping[str, Any],
        links: Sequence[Link],
    ) -> SamplingResult:
        """Ask the sampler about a span."""
        return self._sampler.should_sample(
            within, trace_id, name, SpanKind.INTERNAL, attributes, links
        )

    # Headers.

    def joined(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a run that continues the trace of the caller."""
        if FIELDS[0] in headers:
            return headers
        span = caller()
        return {**headers, **written(span)} if span.is_valid else headers

    def linked(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a run with a link to the caller."""
        if FIELDS[0] in headers:
            return headers
        span = caller()
        return {**headers, LINK: written(span)[FIELDS[0]]} if span.is_valid else headers

    def child_headers(self, parent: TracedRun, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a child run with a link to its parent."""
        own = {name: value for name, value in headers.items() if name not in FIELDS}
        try:
            return {**own, LINK: written(self._run(parent).context)[FIELDS[0]]}
        except Exception as error:
            self._report(error)
            return own

    # Calls of entities.

    def caller_context(self) -> Context | None:
        """Return the context of the caller, or None if it is in no span."""
        span = caller()
        return within(span) if span.is_valid else None

    def enter(self, context: Context) -> Any:
        """Make the span of a context current."""
        return current.attach(context)

    def leave(self, token: Any) -> None:
        """Restore the span that was current before."""
        current.detach(token)

    # Spans.

    def _run(self, run: TracedRun) -> RunSpan:
        """Return the span of a run."""
        known: RunSpan | None = run.trace
        generation = run.status.generation
        if known is None or known.generation != generation:
            known = run.trace = RunSpan(self, run.record, run.submission, generation)
        return known

    def attempt(self, run: TracedRun, step: TracedStep) -> AttemptSpan | None:
        """Begin the span of an attempt, and make it current."""
        try:
            of: RunSpan = run.trace or self._run(run)
            if self.inherits and of.decision is _DROP:
                return Unrecorded(current.attach(of.within))
            span = StepSpan(of, step.step, step.attempt, step.begun)
            if self.inherits or span.sample():
                self._processor.on_start(span, of.within)  # type: ignore[arg-type]
                span.token = current.attach(Context({_SPAN_KEY: span}))
                return span
            return Unrecorded(current.attach(within(span.context)))
        except Exception as error:
            self._report(error)
            return None

    def interrupted(
        self, record: bytes, submission: Submission, generation: int, entry: Interrupted
    ) -> None:
        """Export the span of an attempt that a crash interrupted."""
        if entry.begun is None:
            return  # the start marker was damaged
        try:
            of = RunSpan(self, record, submission, generation)
            span = StepSpan(of, entry.ident, entry.attempt, entry.begun)
            if of.decision is not _DROP if self.inherits else span.sample():
                self._processor.on_start(span, of.within)  # type: ignore[arg-type]
                span.interrupted(entry.at)
                self._processor.on_end(span.exported())
        except Exception as error:
            self._report(error)

    def run_ended(self, run: TracedRun) -> None:
        """Export the span of a run that has ended."""
        try:
            of, status = self._run(run), run.status
            if of.decision is _DROP:
                return
            ended = status.ended_at or self.wall()
            began = ended if status.started_at is None else min(status.started_at, ended)
            attributes = of.attributes
            attributes["keyrun.version"] = run.submission.version
            attributes["keyrun.state"] = status.state._value_
            attributes["keyrun.steps_done"] = status.steps_done
            if status.failure is not None:
                attributes["keyrun.failure"] = str(status.failure.kind)
            facts = SpanFacts(of.name, of.context, of.parent, attributes, int(began * 1e9))
            span = OwnSpan(self, facts)
            if of.links:
                span.links = of.links
            above = None if of.parent is None else within(of.parent)
            self._processor.on_start(span, above)  # type: ignore[arg-type]
            if status.state is State.FAILED:
                span.set_status(StatusCode.ERROR, status.reason)
            span.end_time = int(ended * 1e9)
            self._processor.on_end(span.exported())
        except Exception as error:
            self._report(error)

    def sent(self, record: bytes, submission: Submission, generation: int, name: str) -> None:
        """Export a span with a link to the run that was sent a signal, if the caller has a span."""
        span = caller()
        if not span.is_valid:
            return
        try:
            of = RunSpan(self, record, submission, generation)
            links, now = [Link(of.context)], self.now()
            self.tracer.start_span(
                name, within(span), SpanKind.PRODUCER, of.attributes, links, now
            ).end(now)
        except Exception as error:
            self._report(error)

    def follow(self, span: StepSpan, group: Group | None) -> None:
        """Export a span when `group` is durable, and the spans after it that have this group."""
        if group is None or group.durable:
            self._export([span])
            return
        self.group, self.spans = group, [span]
        group.when_durable(self._export, self.spans)

    def _export(self, spans: list[StepSpan]) -> None:
        on_end = self._processor.on_end
        for span in spans:
            try:
                on_end(span.exported())
            except Exception as error:
                self._report(error)

    def _report(self, error: Exception) -> None:
        """Log the first error of the provider. Tracing never fails a run."""
        if not self._has_failed:
            self._has_failed = True
            logger.error(
                "the TracerProvider failed, so spans are missing",
                exc_info=error,
                extra={"event": "tracing_failed"},
            )
