"""A process that is killed in the middle of a run, and the trace that its successor completes."""

import signal
from collections import Counter
from pathlib import Path

from tests.storage.processes import line, run_python, running_python

PROGRAM = """
import json, sys, time
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from keyrun import Context, open_runtime, step, workflow
from keyrun.tracing import Tracing


class ToFile(SpanExporter):
    def export(self, spans):
        with open(sys.argv[2], "a") as file:
            for span in spans:
                file.write(json.dumps({
                    "name": span.name,
                    "trace": span.context.trace_id,
                    "id": span.context.span_id,
                    "parent": span.parent and span.parent.span_id,
                    "status": span.status.description,
                    "outcome": span.attributes.get("keyrun.outcome"),
                }) + "\\n")
        return SpanExportResult.SUCCESS

    def shutdown(self):
        pass


provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(ToFile()))
tracer = provider.get_tracer("application")
first = len(sys.argv) > 3


@step
async def before():
    with tracer.start_as_current_span("query"):
        await trio.sleep(0.001)


@step
async def endless(side):
    with tracer.start_as_current_span("query"):
        await trio.sleep(0.001)
    if first:
        await trio.sleep(0.3)
        print("running", flush=True)
        await trio.sleep(60)


@step
def in_thread():
    with tracer.start_as_current_span("query"):
        pass
    if first:
        time.sleep(60)


@workflow
async def job(ctx: Context) -> None:
    await ctx.step(before)
    await ctx.gather(ctx.step(endless, 1), ctx.step(endless, 2), ctx.step(in_thread))
    await ctx.step(before)


async def main():
    async with open_runtime(sys.argv[1], workflows=[job], tracing=Tracing(provider)) as rt:
        if first:
            with tracer.start_as_current_span("request"):
                await rt.submit(job, key="k", run_id="r")
        await rt.run("r").result()


trio.run(main)
"""


def test_a_killed_process_and_the_next_one_make_one_complete_trace(tmp_path: Path) -> None:
    import json

    store, exported = tmp_path / "store", tmp_path / "spans"
    with running_python(PROGRAM, store, exported, "first") as process:
        assert line(process) == "running"
        process.send_signal(signal.SIGKILL)
        process.wait()
    done = run_python(PROGRAM, store, exported)
    assert done.returncode == 0, done.stderr
    spans = [json.loads(text) for text in exported.read_text().splitlines()]
    assert Counter(span["name"] for span in spans) == {
        "request": 1,
        "run job": 1,
        "step before": 2,
        "step endless": 4,
        "step in_thread": 2,
        "query": 8,
    }
    outcomes = Counter(span["outcome"] for span in spans if span["name"].startswith("step "))
    assert outcomes == {"succeeded": 5, "interrupted": 3}
    assert {span["status"] for span in spans if span["outcome"] == "interrupted"} == {"interrupted"}
    ids = [span["id"] for span in spans]
    assert len({*ids}) == len(ids)
    assert len({span["trace"] for span in spans}) == 1
    by_id = {span["id"]: span for span in spans}
    above = {"run job": "request", "step": "run job", "query": "step"}
    for span in spans:
        kind = "step" if span["name"].startswith("step ") else span["name"]
        if kind != "request":
            assert by_id[span["parent"]]["name"].startswith(above[kind])
    assert [span["name"] for span in spans if span["parent"] is None] == ["request"]
