"""Tracing with OpenTelemetry: spans of runs and of attempts.

    async with open_runtime("state", workflows=[checkout], tracing=keyrun.tracing.Tracing()) as rt:
        ...

Keyrun uses the `TracerProvider` that the application has configured, with its sampler, resource and
span processors.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs

from keyrun.extras import need
from keyrun.runtime.host.tracing import RunTracer
from keyrun.runtime.logger import logger

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

__all__ = ["Tracing"]


@attrs.frozen
class Tracing:
    """Make OpenTelemetry spans of runs and attempts: `open_runtime(..., tracing=Tracing())`.

    `provider` is the `TracerProvider` of `opentelemetry-sdk` to use. Default: the global one, which
    the application sets with `opentelemetry.trace.set_tracer_provider` before it opens the runtime.
    Raises `MissingExtra` if OpenTelemetry is not installed."""

    provider: "TracerProvider | None" = None
    """The provider. None for the global one."""

    def __attrs_post_init__(self) -> None:
        need("opentelemetry.trace", for_="Tracing", extra="otel")

    def start(self, wall: Callable[[], float]) -> RunTracer | None:
        """Return the tracer of a runtime. Keyrun calls this when it opens the runtime."""
        from opentelemetry import trace

        provider = self.provider or trace.get_tracer_provider()
        if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
            logger.warning(
                "tracing is off, because no TracerProvider is set: call "
                "opentelemetry.trace.set_tracer_provider before the runtime is opened",
                extra={"event": "tracing_off"},
            )
            return None
        need("opentelemetry.sdk.trace", for_="Tracing", extra="otel")
        from keyrun.spans import SpanMaker

        return SpanMaker.of(provider, wall)
