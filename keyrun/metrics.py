"""Metrics of a runtime for Prometheus.

    keyrun.metrics.register(rt)               # with the default registry of prometheus_client

`collector` returns the collector for a registry of your own, and `exposition` the text that
`/metrics` of the control plane serves. The extra `prometheus` has the package that they need.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import trio

from keyrun.extras import need
from keyrun.runtime.faces.asyncio_face import Runtime as AsyncioRuntime
from keyrun.runtime.faces.sync_face import Runtime as SyncRuntime
from keyrun.runtime.inspect.measure import Distribution, MetricFamily, MetricKind, measure
from keyrun.runtime.runtime import Runtime

if TYPE_CHECKING:
    from prometheus_client.core import CollectorRegistry, Metric

__all__ = ["RuntimeCollector", "collector", "exposition", "register"]

T = TypeVar("T")

AnyRuntime = Runtime | AsyncioRuntime | SyncRuntime

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class RuntimeCollector:
    """Collects the metrics of one runtime when they are scraped. `collector` returns it."""

    def __init__(self, rt: AnyRuntime) -> None:
        self._rt = rt

    def collect(self) -> "Iterator[Metric]":
        """Return all metrics of the runtime. It may be called in any thread."""
        return map(_metric, _measured(self._rt))

    def describe(self) -> "list[Metric]":
        """Return nothing, so that registering the collector does not collect."""
        return []


def collector(rt: AnyRuntime) -> RuntimeCollector:
    """Return a collector for `prometheus_client`, for example for
    `CollectorRegistry().register(...)`. Unregister it before you close the runtime.

    - `rt`: a runtime of `keyrun`, `keyrun.asyncio` or `keyrun.sync`.
    """
    need("prometheus_client", for_="keyrun.metrics", extra="prometheus")
    if not isinstance(rt, AnyRuntime):
        raise TypeError(f"collector requires a runtime, got {rt!r}")
    return RuntimeCollector(rt)


def register(rt: AnyRuntime, registry: "CollectorRegistry | None" = None) -> RuntimeCollector:
    """Register the metrics of a runtime, by default with the registry of `prometheus_client`, and
    return the collector. Call `registry.unregister(...)` with it before you close the runtime."""
    found = collector(rt)
    if registry is None:
        from prometheus_client import REGISTRY

        registry = REGISTRY
    registry.register(found)
    return found


def exposition(rt: AnyRuntime) -> bytes:
    """Return the metrics of a runtime as the text that Prometheus scrapes."""
    return text_of(_measured(rt))


def text_of(families: Iterable[MetricFamily]) -> bytes:
    """Return metrics as the text that Prometheus scrapes."""
    need("prometheus_client", for_="keyrun.metrics", extra="prometheus")
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(_Collected(families))
    return generate_latest(registry)


class _Collected:
    """Metrics that were measured."""

    def __init__(self, families: Iterable[MetricFamily]) -> None:
        self._families = families

    def collect(self) -> "Iterator[Metric]":
        return map(_metric, self._families)

    def describe(self) -> "list[Metric]":
        return []


def _measured(rt: AnyRuntime) -> list[MetricFamily]:
    if not isinstance(rt, Runtime):
        return rt._bridge.now(lambda: measure(rt._bridge.runtime._partition.measured()))
    partition = rt._partition
    host = partition.state.host
    return _in_thread_of(host.thread, host.token, lambda: measure(partition.measured()))


def _in_thread_of(thread: int, token: trio.lowlevel.TrioToken, function: Callable[[], T]) -> T:
    """Call a function in Trio's thread, from this or another thread."""
    from threading import get_ident

    if get_ident() == thread:
        return function()
    return trio.from_thread.run_sync(function, trio_token=token)


def _metric(family: MetricFamily) -> "Metric":
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
    )

    about = family.name, family.about
    metric: Any
    match family.kind:
        case MetricKind.COUNTER:
            metric = CounterMetricFamily(*about, labels=family.labels)
        case MetricKind.GAUGE:
            metric = GaugeMetricFamily(*about, labels=family.labels)
        case MetricKind.HISTOGRAM:
            metric = HistogramMetricFamily(*about, labels=family.labels)
    for labels, value in family.samples:
        if isinstance(value, Distribution):
            bounds = [*map(_bound, value.bounds), "+Inf"]
            buckets = list(zip(bounds, value.cumulative, strict=True))
            metric.add_metric(labels, buckets, value.sum)
        else:
            metric.add_metric(labels, float(value))
    return metric  # type: ignore[no-any-return]


def _bound(bound: float) -> str:
    return repr(float(bound))
