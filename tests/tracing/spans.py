"""A provider whose spans a test can look at."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from keyrun.tracing import Tracing


class Spans:
    """A `TracerProvider` of an application, and the spans that it exports."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracing = Tracing(self.provider)
        self.tracer = self.provider.get_tracer("application")

    @property
    def all(self) -> Sequence[ReadableSpan]:
        """Every exported span, in order."""
        return self._exporter.get_finished_spans()

    @property
    def names(self) -> list[str]:
        """The names of all spans, sorted."""
        return sorted(span.name for span in self.all)

    def of(self, name: str, **attributes: Any) -> list[ReadableSpan]:
        """The spans with a name and with some attributes of Keyrun."""
        wanted = {f"keyrun.{key}": value for key, value in attributes.items()}
        return [
            s for s in self.all if s.name == name and wanted.items() <= attributes_of(s).items()
        ]

    def one(self, name: str, **attributes: Any) -> ReadableSpan:
        """The only span with a name and with some attributes of Keyrun."""
        found = self.of(name, **attributes)
        assert len(found) == 1, f"{len(found)} spans {name!r} of {self.names}"
        return found[0]

    def check(self) -> None:
        """No span was exported twice, and the parent of each span was exported."""
        check(self.all)


def attributes_of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def trace_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.trace_id)


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def check(spans: Sequence[ReadableSpan]) -> None:
    twice = {key: n for key, n in Counter(map(id_of, spans)).items() if n > 1}
    assert not twice
    known = {(trace_of(span), id_of(span)) for span in spans}
    for span in spans:
        parent = parent_of(span)
        assert parent is None or (trace_of(span), parent) in known, f"{span.name} is an orphan"
