"""The cost of a step while spans of runs and attempts are made.

A runtime with tracing and a runtime without are open at once and take turns, because the speed of a
machine varies more from minute to minute than the spans cost. The exporter drops every span, so the
SDK's processor and its thread are measured, and no network. The spans that are not sampled cost
what an application pays for the runs that its sampler leaves out.
"""

from collections.abc import Sequence
from functools import partial
from statistics import median

import trio
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

from benchmarks.events import Taken, work
from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench, Metric
from benchmarks.workload import STEPS, three_steps
from keyrun import open_runtime
from keyrun.storage import LmdbStore
from keyrun.tracing import Tracing

QUEUE = 65_536
"""Spans that wait for the exporter, so that none is dropped before it."""


class Nowhere(SpanExporter):
    """Drops spans, and counts them."""

    def __init__(self) -> None:
        self.exported = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.exported += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Do nothing."""


def with_and_without(sampled: bool, keys: int, runs: int, pairs: int) -> dict[str, float]:
    """Return the speed with tracing divided by the speed without, and the CPU time that tracing
    adds to a step."""
    exporter = Nowhere()
    provider = TracerProvider(sampler=ALWAYS_ON if sampled else ALWAYS_OFF)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=QUEUE))

    async def main() -> dict[str, float]:
        taken: list[tuple[Taken, Taken]] = []
        with folder() as plain_path, folder() as traced_path:
            async with (
                open_runtime(LmdbStore(plain_path), workflows=[three_steps]) as plain,
                open_runtime(
                    LmdbStore(traced_path), workflows=[three_steps], tracing=Tracing(provider)
                ) as traced,
            ):
                await work(plain, keys, runs)
                await work(traced, keys, runs)
                for pair in range(pairs):
                    # Neither is always the second.
                    if pair % 2:
                        spans = await work(traced, keys, runs)
                        taken.append((await work(plain, keys, runs), spans))
                    else:
                        alone = await work(plain, keys, runs)
                        taken.append((alone, await work(traced, keys, runs)))
        return {
            "speed left": median(alone.seconds / spans.seconds for alone, spans in taken),
            "busy per step": median((spans.busy - alone.busy) * 1e6 for alone, spans in taken),
            "busy without": median(alone.busy * 1e6 for alone, _ in taken),
        }

    found = trio.run(main)
    provider.shutdown()
    expected = keys * runs * (pairs + 1) * (STEPS + 1) if sampled else 0
    if exporter.exported != expected:
        raise AssertionError(f"the exporter received {exporter.exported} of {expected} spans")
    return found


def run(bench: Bench) -> None:
    """Measure."""
    keys = 64
    runs = max(2, bench.size(2_000, 1_000) // keys)
    pairs = bench.size(20, 10)
    for sampled in (True, False):
        bench.survey(
            f"spans, {'sampled' if sampled else 'not sampled'}, {keys} keys",
            {"pairs": partial(with_and_without, sampled, keys, runs, pairs)},
            metrics={
                "speed left": Metric(unit="", bars={"pairs": Bar(value=0.85, absolute=True)}),
                "busy per step": Metric(unit="us", better="lower"),
                "busy without": Metric(unit="us", better="lower"),
            },
            warm_up=False,
        )
