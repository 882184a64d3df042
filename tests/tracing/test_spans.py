"""The spans of runs and attempts."""

import logging
from typing import Any

import pytest
import trio
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    Decision,
    ParentBased,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import StatusCode

from keyrun import (
    Context,
    Continue,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    RunFailed,
    Succeed,
    Turn,
    machine,
    step,
    workflow,
)
from keyrun.graphs import GraphBody
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime, virtual_wall
from keyrun.tracing import Tracing
from tests.tracing.spans import Spans, attributes_of, check, id_of, parent_of, trace_of


def times(span: ReadableSpan, began: float) -> tuple[float, float]:
    """When a span began and ended, in seconds since the test began."""
    assert span.start_time is not None
    assert span.end_time is not None
    return round(span.start_time / 1e9 - began, 1), round(span.end_time / 1e9 - began, 1)


@step
async def quick(number: int = 0) -> int:
    return number


@step
async def slow() -> None:
    await trio.sleep(2)


async def test_a_run_has_a_span_below_its_submitter_and_one_for_each_attempt(
    autojump_clock: Any,
) -> None:
    spans, began = Spans(), virtual_wall()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(slow)
        await ctx.sleep(3)
        await ctx.step(slow)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        with spans.tracer.start_as_current_span("request"):
            run = await rt.submit(job, key="ann", run_id="r")
        await run.result()
    request, whole = spans.one("request"), spans.one("run job")
    assert parent_of(whole) == id_of(request)
    assert times(whole, began) == (0, 7)
    assert attributes_of(whole) == {
        "keyrun.namespace": "default",
        "keyrun.workflow": "job",
        "keyrun.run_id": "r",
        "keyrun.key": "ann",
        "keyrun.generation": 1,
        "keyrun.version": 1,
        "keyrun.state": "succeeded",
        "keyrun.steps_done": 2,
    }
    first, second = spans.of("step slow")
    assert {parent_of(first), parent_of(second)} == {id_of(whole)}
    assert times(first, began) == (0, 2)
    assert times(second, began) == (5, 7)
    assert attributes_of(second)["keyrun.step"] == "slow#2"
    assert attributes_of(second)["keyrun.outcome"] == "succeeded"
    assert first.status.status_code is StatusCode.UNSET
    assert {trace_of(span) for span in spans.all} == {trace_of(request)}
    spans.check()


async def test_each_attempt_has_its_failure(autojump_clock: Any) -> None:
    spans, replies = Spans(), [ValueError("no"), OSError("down")]

    @step(retry=Retry.exponential(max_attempts=3, base=1, jitter=0), timeout=5)
    async def flaky() -> None:
        if replies:
            raise replies.pop(0)
        await trio.sleep(99)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(flaky)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        with pytest.raises(RunFailed):
            await (await rt.submit(job, key="k")).result()
    first, second, third = spans.of("step flaky")
    assert [attributes_of(s)["keyrun.attempt"] for s in (first, second, third)] == [1, 2, 3]
    outcomes = [attributes_of(s)["keyrun.outcome"] for s in (first, second, third)]
    assert outcomes == ["failed", "failed", "timed_out"]
    assert first.status.status_code is StatusCode.ERROR
    assert "ValueError: no" in (first.status.description or "")
    (event,) = first.events
    assert (event.attributes or {})["exception.type"] == "ValueError"
    assert "replies.pop" in str((event.attributes or {})["exception.stacktrace"])
    whole = spans.one("run job", state="failed", failure="step_timeout")
    assert whole.status.status_code is StatusCode.ERROR
    assert parent_of(whole) is None
    spans.check()


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF], ids=["sampled", "unsampled"])
async def test_spans_in_a_step_are_below_its_attempt_wherever_it_runs(
    autojump_clock: Any, sampler: Sampler
) -> None:
    spans, seen = Spans(ParentBased(sampler)), dict[str, trace.SpanContext]()

    def look(name: str) -> None:
        with spans.tracer.start_as_current_span(f"inside {name}"):
            seen[name] = trace.get_current_span().get_span_context()

    @step
    async def on_trio() -> None:
        await trio.sleep(1)
        look("on_trio")

    @step
    async def at_once() -> None:
        look("at_once")

    @step
    def in_thread() -> None:
        look("in_thread")

    @step(asyncio=True)
    async def on_asyncio() -> None:
        look("on_asyncio")

    steps = (on_trio, at_once, in_thread, on_asyncio)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.gather(*(ctx.step(each) for each in steps))
        await ctx.step(at_once)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        await (await rt.submit(job, key="k")).result()
        assert trace.get_current_span() is trace.INVALID_SPAN
    assert len({span.trace_id for span in seen.values()}) == 1
    if sampler is ALWAYS_OFF:
        assert not spans.all
        assert not any(span.trace_flags.sampled for span in seen.values())
        return
    for name in seen:
        for inner in spans.of(f"inside {name}"):
            assert parent_of(inner) in {id_of(span) for span in spans.of(f"step {name}")}
    assert len(spans.of("step at_once")) == len(spans.of("inside at_once")) == 2
    spans.check()


async def test_a_step_can_add_to_its_span_within_the_limits(autojump_clock: Any) -> None:
    spans = Spans()

    @step
    async def busy() -> None:
        span = trace.get_current_span()
        assert span.is_recording()
        span.set_attribute("rows", 7)
        span.set_attributes({f"more{n}": n for n in range(300)})
        span.add_event("halfway", {"percent": 50})
        span.add_link(trace.SpanContext(1, 2, is_remote=True))
        span.update_name("import rows")
        span.record_exception(ValueError("handled"))
        span.set_status(StatusCode.OK)
        span.end()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(busy)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        await (await rt.submit(job, key="k")).result()
    span = spans.one("import rows", outcome="succeeded")
    assert len(attributes_of(span)) == 128
    assert span.dropped_attributes > 0
    assert [event.name for event in span.events] == ["halfway", "exception"]
    assert span.links[0].context.span_id == 2
    assert span.status.status_code is StatusCode.OK
    spans.check()


async def test_turns_nodes_and_later_journals_have_spans_of_their_own(autojump_clock: Any) -> None:
    spans = Spans()

    @machine(name="counter")
    async def counter(turn: Turn) -> Any:
        return Succeed() if turn.number == 3 else Continue(after=1)

    @workflow
    async def again(ctx: Context, left: int) -> None:
        await ctx.step(quick)
        await ctx.sleep(1)
        if left:
            ctx.continue_as(left - 1)

    @step
    async def pages(_: NodeInput) -> list[int]:
        await trio.sleep(1)
        return [1, 2, 3]

    @step
    async def visit(_: NodeInput) -> None: ...

    body = GraphBody()
    body.node("each", visit)
    graph = Graph("crawl")
    graph.node("start", pages)
    graph.map("pages", body)
    graph.edge("start", "pages")
    options: Any = {"workflows": [counter, again, graph], "tracing": spans.tracing}
    async with open_test_runtime(**options) as rt:
        await (await rt.submit(counter, key="m")).result()
        await (await rt.submit(again, 2, key="a")).result()
        await (await rt.submit(graph, key="g")).result()
    assert len(spans.of("step turn")) == 4
    assert len(spans.of("step quick")) == 3
    assert len(spans.of("step each")) == 3
    assert len(spans.of("step start")) == 1
    for name, below in (("counter", "turn"), ("again", "quick"), ("crawl", "each")):
        whole = spans.one(f"run {name}")
        assert {parent_of(span) for span in spans.of(f"step {below}")} == {id_of(whole)}
    spans.check()


async def test_a_run_that_leaves_memory_emits_nothing_twice(autojump_clock: Any) -> None:
    spans = Spans()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(slow)
        await ctx.wait_signal("go")
        await ctx.step(slow)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        await trio.sleep(100)
        assert rt.statistics().live == 0
        await rt.signal("r", "go")
        await run.result()
    assert spans.names == ["run job", "step slow", "step slow"]
    spans.check()


async def test_a_drain_ends_the_span_of_the_attempt_that_it_cuts_off(autojump_clock: Any) -> None:
    spans, store = Spans(), MemoryStore()

    @step
    async def long() -> None:
        await trio.sleep(100)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(long)

    options: Any = {"workflows": [job], "tracing": spans.tracing, "drain_timeout": 5}
    async with open_test_runtime(store, **options) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, **options) as rt:
        await rt.run("r").result()
    cut, whole = spans.of("step long", attempt=1)
    assert attributes_of(cut)["keyrun.outcome"] == "cancelled"
    assert attributes_of(whole)["keyrun.outcome"] == "succeeded"
    spans.check()


async def test_the_next_open_exports_the_span_of_a_step_that_may_not_run_again(
    autojump_clock: Any,
) -> None:
    spans, store = Spans(), MemoryStore()

    @step(at_most_once=True)
    async def pay() -> None:
        with spans.tracer.start_as_current_span("request"):
            await trio.sleep(1)
        await trio.sleep(100)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(pay)

    options: Any = {"workflows": [job], "tracing": spans.tracing, "drain_timeout": 5}
    async with open_test_runtime(store, **options) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(2)
    assert spans.names == ["request"]
    async with open_test_runtime(store, **options) as rt:
        with pytest.raises(RunFailed):
            await rt.run("r").result()
    assert parent_of(spans.one("request")) == id_of(spans.one("step pay", outcome="interrupted"))
    spans.check()


async def test_a_redriven_run_has_another_span_in_the_same_trace(autojump_clock: Any) -> None:
    spans, broken = Spans(), [True]

    @step
    async def fragile() -> None:
        if broken:
            raise PermanentError("broken")

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.step(fragile)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        broken.clear()
        await rt.redrive("r")
        await rt.run("r").result()
    first, second = (spans.one("run job", generation=n) for n in (1, 2))
    assert len(spans.of("step quick")) == 1
    assert [parent_of(s) for s in spans.of("step fragile")] == [id_of(first), id_of(second)]
    assert second.links[0].context.span_id == id_of(first)
    assert trace_of(first) == trace_of(second)
    spans.check()


async def test_compensations_have_spans(autojump_clock: Any) -> None:
    spans = Spans()

    async def undo(_: object) -> None: ...

    @step(compensate=undo)
    async def book() -> None: ...

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(book)
        ctx.fail("sold out")

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        with pytest.raises(RunFailed):
            await (await rt.submit(job, key="k")).result()
    assert spans.names == ["compensate book", "run job", "step book"]
    spans.check()


async def test_children_members_and_scheduled_runs_link_to_what_started_them(
    autojump_clock: Any,
) -> None:
    spans = Spans()

    @workflow
    async def part(ctx: Context, number: int) -> None:
        assert "traceparent" not in ctx.headers
        await ctx.step(quick)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.child(part, 1, key="child")

    async with open_test_runtime(workflows=[job, part], tracing=spans.tracing) as rt:
        with spans.tracer.start_as_current_span("request") as request:
            await (await rt.submit(job, key="k")).result()
            await rt.submit_group("g", [Member(part, n, key=f"m{n}") for n in range(2)])
            for _ in range(2):  # the second one changes nothing
                await rt.schedule("s", part, 3, key="s", when=Every(10))
        await trio.sleep(11)
    by_key = {attributes_of(span)["keyrun.key"]: span for span in spans.of("run part")}
    assert by_key.keys() == {"child", "m0", "m1", "s"}
    for key, span in by_key.items():
        parent = (
            id_of(spans.one("run job")) if key == "child" else request.get_span_context().span_id
        )
        assert [link.context.span_id for link in span.links] == [parent]
        assert parent_of(span) is None
    assert len({trace_of(span) for span in (*by_key.values(), spans.one("run job"))}) == 5
    spans.check()


async def test_a_run_with_a_link_is_sampled_if_the_linked_span_is(autojump_clock: Any) -> None:
    spans = Spans()

    @workflow
    async def part(ctx: Context) -> None:
        await ctx.step(quick)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.child(part, key="child")

    unsampled = {"traceparent": f"00-{7:032x}-{8:016x}-00"}
    async with open_test_runtime(workflows=[job, part], tracing=spans.tracing) as rt:
        await (await rt.submit(job, key="k", headers=unsampled)).result()
        assert not spans.all
        sampled = {"traceparent": f"00-{7:032x}-{8:016x}-01", "tracestate": "a=b"}
        await (await rt.submit(job, key="k", headers=sampled)).result()
    whole = spans.one("run job")
    assert (trace_of(whole), parent_of(whole)) == (7, 8)
    assert whole.context is not None
    assert whole.context.trace_state.get("a") == "b"
    assert len(spans.of("run part")) == 1


async def test_a_header_of_the_caller_comes_before_the_current_span(autojump_clock: Any) -> None:
    spans = Spans()

    @workflow
    async def job(ctx: Context) -> dict[str, str]:
        return ctx.headers

    given = {"traceparent": f"00-{7:032x}-{8:016x}-01", "mine": "yes"}
    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        with spans.tracer.start_as_current_span("request"):
            assert await (await rt.submit(job, key="k", headers=given)).result() == given
            own = await (await rt.submit(job, key="k", headers={"a": "b"})).result()
            assert own.keys() == {"a", "traceparent"}
        broken = {"traceparent": "garbage"}
        assert await (await rt.submit(job, key="k", headers=broken)).result() == broken
    parents = [parent_of(span) for span in spans.of("run job")]
    assert parents == [8, id_of(spans.one("request")), None]


async def test_a_signal_and_a_decision_have_a_span_with_a_link_to_the_run(
    autojump_clock: Any,
) -> None:
    spans = Spans()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.wait_signal("go")
        await ctx.approval("boss")

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        with spans.tracer.start_as_current_span("request"):
            await rt.signal("r", "go")
            await trio.sleep(1)
            await rt.approve("r", "boss", by="ann")
        await run.result()
    whole, request = spans.one("run job"), spans.one("request")
    for name in ("signal go", "approve boss"):
        sent = spans.one(name)
        assert parent_of(sent) == id_of(request)
        assert sent.links[0].context.span_id == id_of(whole)
    spans.check()


async def test_a_run_that_a_step_submits_is_below_the_attempt(autojump_clock: Any) -> None:
    spans = Spans()

    @workflow
    async def other(ctx: Context) -> None: ...

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(start)

    async with open_test_runtime(workflows=[job, other], tracing=spans.tracing) as rt:

        @step
        async def start() -> None:
            await rt.submit(other, key="other")

        await (await rt.submit(job, key="k")).result()
        await trio.sleep(1)
    assert parent_of(spans.one("run other")) == id_of(spans.one("step start"))
    spans.check()


async def test_every_crash_leaves_one_complete_trace(autojump_clock: Any) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.gather(ctx.step(slow), ctx.step(quick))
        await ctx.sleep(1)
        await ctx.step(slow)

    async def scenario(rt: Any) -> None:
        await (await rt.submit(job, key="k", run_id="r")).result()

    crashes = interrupted = 0
    for point in crash_points():
        spans = Spans()
        await point.run(scenario, workflows=[job], tracing=spans.tracing)
        crashes += point.crashes
        interrupted += len([s for s in spans.all if s.status.description == "interrupted"])
        ended = [span for span in spans.all if span.name == "run job"]
        if ended:
            assert len({trace_of(span) for span in spans.all}) == 1
            check(spans.all)
        else:
            # The crash came between the commit of the end and the export of its span.
            assert point.applied
    assert crashes > 10
    assert interrupted > 2


class ByName(Sampler):
    """A sampler that leaves out some steps, and marks the others."""

    def should_sample(self, parent_context: Any, trace_id: int, name: str, *rest: Any, **more: Any) -> SamplingResult:  # fmt: skip  # noqa: E501
        if name == "step quick":
            return SamplingResult(Decision.DROP)
        return SamplingResult(Decision.RECORD_AND_SAMPLE, {**rest[1], "marked": True})

    def get_description(self) -> str:
        return "ByName"


async def test_a_sampler_of_the_application_decides_about_each_attempt(autojump_clock: Any) -> None:
    spans = Spans(ByName())

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.step(slow)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        await (await rt.submit(job, key="k")).result()
    assert spans.names == ["run job", "step slow"]
    assert all(attributes_of(span)["marked"] for span in spans.all)
    assert attributes_of(spans.one("step slow"))["keyrun.step"] == "slow"


class Broken(SpanProcessor):
    def on_start(self, *_: Any, **__: Any) -> None:
        raise RuntimeError("no spans today")

    def on_end(self, *_: Any) -> None:
        raise RuntimeError("no spans today")


async def test_a_provider_that_fails_fails_no_run(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    spans = Spans()
    spans.provider.add_span_processor(Broken())

    @workflow
    async def job(ctx: Context) -> int:
        return await ctx.step(quick, 1) + await ctx.step(quick, 2)

    async with open_test_runtime(workflows=[job], tracing=spans.tracing) as rt:
        assert await (await rt.submit(job, key="k")).result() == 3
    assert [r.message for r in caplog.records if r.levelno == logging.ERROR] == [
        "the TracerProvider failed, so spans are missing"
    ]


@pytest.fixture
def no_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)


@pytest.mark.usefixtures("no_provider")
async def test_tracing_is_off_without_a_provider(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def job(ctx: Context) -> int:
        return await ctx.step(quick, 1)

    async with open_test_runtime(workflows=[job], tracing=Tracing()) as rt:
        assert await (await rt.submit(job, key="k")).result() == 1
    assert "tracing is off" in caplog.text


async def test_a_wrong_argument_is_named(autojump_clock: Any) -> None:
    with pytest.raises(TypeError, match=r"tracing must be a keyrun\.tracing\.Tracing\(\)"):
        async with open_test_runtime(tracing=True):  # type: ignore[arg-type]
            pass

    class Other(trace.TracerProvider):
        def get_tracer(self, *_: Any, **__: Any) -> Any:
            return object()

    with pytest.raises(
        TypeError, match=r"requires a TracerProvider of opentelemetry-sdk, got .*Other"
    ):
        async with open_test_runtime(tracing=Tracing(Other())):
            pass
