"""Keyrun between instrumented libraries: FastAPI around a run, and httpx in its steps."""

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx
import pytest
from fastapi import FastAPI
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.instrumentation.httpx import HTTPXClientInstrumentor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, Sampler
from opentelemetry.trace import SpanKind

import keyrun.asyncio
from keyrun import Context, step, workflow
from keyrun.storage import MemoryStore
from tests.tracing.spans import Spans, id_of, parent_of, trace_of


class Bank:
    """A server of another team, which records the trace of each request."""

    def __init__(self) -> None:
        received = self.received = list[str]()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                received.append(self.headers["traceparent"])
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: object) -> None: ...

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/charge"


@pytest.fixture
def bank() -> Iterator[Bank]:
    found = Bank()
    thread = threading.Thread(target=found.server.serve_forever, args=(0.01,))
    thread.start()
    yield found
    found.server.shutdown()
    thread.join()
    found.server.server_close()


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "unsampled"])
def test_one_trace_from_the_request_to_the_calls_of_steps(sampler: Sampler, bank: Bank) -> None:
    spans = Spans(ParentBased(sampler))

    @step
    async def on_trio() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            HTTPXClientInstrumentor.instrument_client(client, tracer_provider=spans.provider)
            await client.get(bank.url)

    @step
    def in_thread() -> None:
        with httpx.Client(trust_env=False) as client:
            HTTPXClientInstrumentor.instrument_client(client, tracer_provider=spans.provider)
            client.get(bank.url)

    @step(asyncio=True)
    async def on_asyncio() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            HTTPXClientInstrumentor.instrument_client(client, tracer_provider=spans.provider)
            await client.get(bank.url)

    @workflow
    async def pay(ctx: Context) -> None:
        await ctx.step(on_trio)
        await ctx.gather(ctx.step(in_thread), ctx.step(on_asyncio))

    async def main() -> None:
        async with keyrun.asyncio.open_runtime(
            MemoryStore(), workflows=[pay], tracing=spans.tracing
        ) as rt:
            app = FastAPI()

            @app.post("/orders")
            async def order() -> str:
                run = await rt.submit(pay, key="k")
                await run.result()
                return run.run_id

            FastAPIInstrumentor.instrument_app(app, tracer_provider=spans.provider)
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
                answer = await client.post("/orders")
                answer.raise_for_status()

    asyncio.run(main())
    assert len(bank.received) == 3
    if sampler is ALWAYS_OFF:
        assert not spans.all
        assert not any(int(each[-2:], 16) & 1 for each in bank.received)
        assert len({each.split("-")[1] for each in bank.received}) == 1
        return
    request = spans.one("POST /orders")
    whole = spans.one("run pay")
    assert parent_of(whole) == id_of(request)
    calls = {parent_of(s): s for s in spans.of("GET") if s.kind is SpanKind.CLIENT}
    for name in ("on_trio", "in_thread", "on_asyncio"):
        attempt = spans.one(f"step {name}")
        assert parent_of(attempt) == id_of(whole)
        call = calls.pop(id_of(attempt))
        assert f"00-{trace_of(call):032x}-{id_of(call):016x}" in {
            each.rpartition("-")[0] for each in bank.received
        }
    assert not calls
    assert {trace_of(span) for span in spans.all} == {trace_of(request)}
    spans.check()
