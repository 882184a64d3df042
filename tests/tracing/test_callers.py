"""A run continues the trace of its caller on every way in."""

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
import trio

import keyrun
import keyrun.asyncio
import keyrun.sync
from keyrun import Context, Entity, Runtime, current_step, entity, step, workflow
from keyrun.groups import Member
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.control.clients import linked
from tests.control.world import client_of
from tests.tracing.spans import Spans, attributes_of, id_of, parent_of, trace_of


@step
async def quick() -> None: ...


@workflow
async def job(ctx: Context) -> None:
    await ctx.step(quick)


@workflow
async def patient(ctx: Context) -> None:
    await ctx.wait_signal("go")


@entity
class Account(Entity):
    async def deposit(self, tracer: Any) -> None:
        with tracer.start_as_current_span("inside"):
            await trio.sleep(0.01)


WORKFLOWS = [job, patient]


@pytest.fixture
def spans() -> Spans:
    return Spans()


def open_traced(spans: Spans) -> AbstractAsyncContextManager[Runtime]:
    return open_test_runtime(workflows=WORKFLOWS, entities=[Account], tracing=spans.tracing)


def check(spans: Spans, runs: int) -> None:
    """Every run is below the request, and so is what was sent to it."""
    found = spans.of("run job")
    assert len(found) == runs
    assert {parent_of(span) for span in found} == {id_of(spans.one("request"))}
    sent, waited = spans.one("signal go"), spans.one("run patient")
    assert parent_of(sent) == id_of(spans.one("request"))
    assert sent.links[0].context.span_id == id_of(waited)
    spans.check()


def test_from_asyncio(spans: Spans) -> None:
    async def main() -> None:
        store = MemoryStore()
        async with keyrun.asyncio.open_runtime(
            store, workflows=WORKFLOWS, tracing=spans.tracing
        ) as rt:
            with spans.tracer.start_as_current_span("request"):
                runs = [await rt.submit(job, key="a"), await rt.submit(job, key="b", run_id="b")]
                runs.append(await rt.submit_nowait(job, key="c"))
                runs.append(await rt.submit(patient, key="p"))
                await rt.signal(runs[-1].run_id, "go")
            for run in runs:
                await run.result()

    asyncio.run(main())
    check(spans, 3)


def test_from_a_thread(spans: Spans) -> None:
    with keyrun.sync.open_runtime(MemoryStore(), workflows=WORKFLOWS, tracing=spans.tracing) as rt:
        with spans.tracer.start_as_current_span("request"):
            runs = [rt.submit(job, key="a"), rt.submit(job, key="b", run_id="b")]
            runs.append(rt.submit(patient, key="p"))
            rt.signal(runs[-1].run_id, "go")
        for run in runs:
            run.result()
    check(spans, 2)


async def test_from_a_client(spans: Spans, autojump_clock: Any) -> None:
    async with (
        open_test_runtime(workflows=WORKFLOWS, tracing=spans.tracing) as rt,
        linked(rt) as client,
    ):
        with spans.tracer.start_as_current_span("request"):
            await client.submit(job, key="a")
            async with trio.open_nursery() as nursery:  # one call has both
                nursery.start_soon(lambda: client.submit(job, key="b"))
                nursery.start_soon(lambda: client.submit(job, key="c"))
            waits = await client.submit_or_signal(patient, key="p", run_id="p", name="other")
            await client.signal(waits.run_id, "go")
            await client.submit_group("g", [Member(job, None, key="d")])
        await waits.result()
        await trio.sleep(1)
    member = spans.one("run job", key="d")
    assert parent_of(member) is None
    assert member.links[0].context.span_id == id_of(spans.one("request"))
    others = [span for span in spans.of("run job") if span is not member]
    assert {parent_of(span) for span in others} == {id_of(spans.one("request"))}
    assert len(others) == 3
    spans.check()


async def test_a_client_outside_of_a_span_sends_none(spans: Spans, autojump_clock: Any) -> None:
    async with (
        open_test_runtime(workflows=WORKFLOWS, tracing=spans.tracing) as rt,
        linked(rt) as client,
    ):
        run = await client.submit(job, key="a")
        await run.result()
        status = await client.status(run.run_id)
        assert status is not None
        assert status.headers == {}
    assert parent_of(spans.one("run job")) is None


async def test_from_a_client_over_a_socket(spans: Spans, tmp_path: Path) -> None:
    async with (
        keyrun.open_runtime(tmp_path, workflows=WORKFLOWS, tracing=spans.tracing, control=True),
        keyrun.connect(tmp_path) as client,
    ):
        with spans.tracer.start_as_current_span("request"):
            runs = [await client.submit(job, key="a"), await client.submit(patient, key="p")]
            await client.signal(runs[-1].run_id, "go")
        for run in runs:
            await run.result()
    check(spans, 1)


async def test_from_the_headers_of_an_http_request(spans: Spans, autojump_clock: Any) -> None:
    traced = [("traceparent", f"00-{7:032x}-{8:016x}-01"), ("tracestate", "a=b")]
    async with open_traced(spans) as rt:
        client = client_of(rt)
        body = {"workflow": "job", "key": "k", "run_id": "r"}
        await client.good("POST", "/v1/runs", body, headers=traced)
        await client.good("POST", "/v1/runs", {**body, "run_id": "plain"})
        own = {"traceparent": f"00-{9:032x}-{9:016x}-01"}
        await client.good(
            "POST", "/v1/runs", {**body, "run_id": "own", "headers": own}, headers=traced
        )
        for run_id in ("r", "plain", "own"):
            await rt.run(run_id).result()
        await client.good("POST", "/v1/runs", {**body, "workflow": "patient", "run_id": "p"})
        await client.good("POST", "/v1/runs/p/signals/go", {}, headers=traced)
        await rt.run("p").result()
    found = {attributes_of(span)["keyrun.run_id"]: span for span in spans.of("run job")}
    assert (trace_of(found["r"]), parent_of(found["r"])) == (7, 8)
    assert parent_of(found["plain"]) is None
    assert (trace_of(found["own"]), parent_of(found["own"])) == (9, 9)
    sent = spans.one("signal go")
    assert (trace_of(sent), parent_of(sent)) == (7, 8)


async def test_a_step_in_a_thread_submits_below_its_attempt(spans: Spans, tmp_path: Path) -> None:
    @step
    def start() -> None:
        current_step().runtime.submit(job, key="other").result()

    @workflow
    async def outer(ctx: Context) -> None:
        await ctx.step(start)

    async with keyrun.open_runtime(
        MemoryStore(), workflows=[outer, job], tracing=spans.tracing
    ) as rt:
        await (await rt.submit(outer, key="k")).result()
    assert parent_of(spans.one("run job")) == id_of(spans.one("step start"))
    spans.check()


async def test_a_method_of_an_entity_runs_in_the_span_of_its_caller(
    spans: Spans, autojump_clock: Any
) -> None:
    async with open_traced(spans) as rt:
        with spans.tracer.start_as_current_span("request"):
            await rt.entity(Account, "k").deposit(spans.tracer)
        await rt.entity(Account, "k").deposit(spans.tracer)
    inside, outside = spans.of("inside")
    assert parent_of(inside) == id_of(spans.one("request"))
    assert parent_of(outside) is None
