"""Compensation: what a run has done is undone when it fails or is cancelled."""

from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    Port,
    Retry,
    RunEnded,
    RunHandle,
    RunStatus,
    Runtime,
    State,
    StepFailed,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.errors import InvalidGraph
from keyrun.graphs import durable
from keyrun.storage import MemoryStore
from keyrun.testing import CrashingMemoryStore, crash_points, open_test_runtime, replay

undone: list[str] = []
told: dict[str, Compensation] = {}
counted: Counter[str] = Counter()
SOON = Retry.fixed(max_attempts=3, delay=1, jitter=0)


@pytest.fixture(autouse=True)
def _fresh() -> None:
    undone.clear()
    told.clear()
    counted.clear()


async def undo(given: Compensation) -> None:
    undone.append(given.step)
    told[given.step] = given


async def slow_undo(given: Compensation) -> None:
    counted[given.step] += 1
    await trio.sleep(1)
    undone.append(given.step)


@step(retry=SOON)
async def flaky_undo(given: Compensation) -> None:
    counted[given.step] += 1
    if counted[given.step] < 3:
        raise TransientError("not yet")
    undone.append(given.step)


async def broken_undo(given: Compensation) -> None:
    counted[given.step] += 1
    raise PermanentError("cannot be undone")


@step(compensate=undo)
async def book(what: str) -> str:
    return f"booked {what}"


@step
async def refuse(seconds: float = 0) -> None:
    await trio.sleep(seconds)
    raise PermanentError("refused")


async def ended(run: RunHandle[Any]) -> RunStatus:
    while True:
        status = await run.status()
        assert status is not None
        if status.state.terminal:
            return status
        await trio.sleep(0.5)


@workflow
async def trip(ctx: Context) -> None:
    await ctx.step(book, "hotel")
    await ctx.step(book, "flight")
    await ctx.step(refuse)


async def test_steps_are_undone_in_reverse_order(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[trip]) as runtime:
        status = await ended(await runtime.submit(trip, key="k", run_id="r"))
        assert status.state is State.FAILED
        assert status.failure is not None
        assert status.failure.step == "refuse"
        assert status.failure.left == ()
        story = await runtime.history("r")
        await replay(story, trip)
    assert undone == ["book#2", "book"]
    events = [(each.event, each.step) for each in story]
    assert events.index(("compensating", None)) < events.index(("step_completed", "undo()/book#2"))
    assert events[-1] == ("failed", None)


async def test_a_compensation_is_told_why(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[trip]) as runtime:
        await ended(await runtime.submit(trip, key="k"))
    given = told["book#2"]
    assert given.why == "failed"
    assert given.failed == "refuse"
    assert given.error is not None
    assert "refused" in given.error.reason
    assert given.output == "booked flight"
    assert given.left == ("book",)
    assert told["book"].left == ()


async def test_a_run_that_succeeds_undoes_nothing() -> None:
    @workflow
    async def fine(ctx: Context) -> str:
        return await ctx.step(book, "hotel")

    async with open_test_runtime(workflows=[fine]) as runtime:
        assert await (await runtime.submit(fine, key="k")).result() == "booked hotel"
    assert undone == []


async def test_a_failure_that_was_handled_undoes_nothing() -> None:
    @workflow
    async def careful(ctx: Context) -> str:
        hotel = await ctx.step(book, "hotel")
        try:
            await ctx.step(refuse)
        except StepFailed:
            return hotel
        return "unreachable"

    async with open_test_runtime(workflows=[careful]) as runtime:
        assert await (await runtime.submit(careful, key="k")).result() == "booked hotel"
    assert undone == []


@pytest.mark.parametrize("how", ["verdict", "error", "cancel verdict", "iterations"])
async def test_every_end_but_success_undoes(how: str, autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book, "hotel")
        if how == "verdict":
            ctx.fail("no rooms left")
        if how == "error":
            raise RuntimeError("a bug")
        if how == "cancel verdict":
            ctx.cancel("changed my mind")
        await ctx.step(book, "too much")

    limits = Limits(max_iterations=1) if how == "iterations" else Limits()
    async with open_test_runtime(workflows=[flow]) as runtime:
        status = await ended(await runtime.submit(flow, key="k", limits=limits))
    cancelled = how == "cancel verdict"
    assert status.state is (State.CANCELLED if cancelled else State.FAILED)
    assert undone == ["book"]
    if cancelled:
        assert status.reason == "changed my mind"
        assert told["book"].why == "cancelled"


async def test_a_cancelled_run_is_undone(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book.options(compensate=slow_undo), "hotel")
        await ctx.sleep(1000)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(1)
        assert await run.cancel()
        status = await run.status()
        assert status is not None
        assert status.state is State.CANCELLING
        assert await run.cancel()
        status = await ended(run)
        assert status.state is State.CANCELLED
        assert status.reason is None
        await replay(await runtime.history("r"), flow)
    assert undone == ["book"]
    assert counted["book"] == 1


async def test_a_run_that_failed_and_is_being_undone_cannot_be_cancelled(
    autojump_clock: MockClock,
) -> None:
    """How it ends is decided: whoever is told True relies on it being cancelled."""

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book.options(compensate=slow_undo), "hotel")
        await ctx.step(refuse)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(0.5)
        assert not await run.cancel()
        store.crash()
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.pause_key("k")
        assert not await runtime.cancel("r")
        await runtime.resume_key("k")
        status = await ended(await runtime.submit(flow, key="k", run_id="r"))
        assert (status.state, status.failure and status.failure.step) == (State.FAILED, "refuse")
        assert "cancel_requested" not in [each.event for each in await runtime.history("r")]


async def test_what_was_cancelled_is_undone_in_the_next_process(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book, "hotel")
        await ctx.sleep(1000)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.pause_all()
        assert await runtime.cancel("r")
        await runtime.resume_all()
        status = await ended(await runtime.submit(flow, key="k", run_id="r"))
        assert status.state is State.CANCELLED
    assert undone == ["book"]


async def test_the_deadline_of_the_run_does_not_bind_compensations(
    autojump_clock: MockClock,
) -> None:
    async def long_undo(given: Compensation) -> None:
        await trio.sleep(100)
        undone.append(given.step)

    @workflow(limits=Limits(run_timeout=5, retry_budget=0, max_iterations=2))
    async def flow(ctx: Context) -> None:
        await ctx.step(book.options(compensate=long_undo), "hotel")
        await ctx.step(book.options(compensate=flaky_undo), "flight")
        await ctx.sleep(1000)

    async with open_test_runtime(workflows=[flow]) as runtime:
        status = await ended(await runtime.submit(flow, key="k"))
    assert status.failure is not None
    assert status.failure.kind == "run_timeout"
    assert undone == ["book#2", "book"]
    assert counted["book#2"] == 3


async def test_a_compensation_that_fails_is_recorded_and_the_rest_still_run(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book, "hotel")
        await ctx.step(book.options(compensate=broken_undo), "flight")
        await ctx.step(book, "car")
        await ctx.step(refuse)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        status = await ended(run)
        assert status.failure is not None
        assert status.failure.step == "refuse"
        assert status.failure.left == ("book#2",)
        assert "not undone: 'book#2'" in str(status.reason)
        events = [(each.event, each.step) for each in await runtime.history("r")]
        assert ("step_failed", "undo()/book#2") in events
    assert undone == ["book#3", "book"]
    assert counted["book#2"] == 1


async def test_a_cancelled_run_says_what_is_left(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book.options(compensate=broken_undo), "flight")
        await ctx.sleep(100)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        await trio.sleep(1)
        await run.cancel()
        status = await ended(run)
    assert status.state is State.CANCELLED
    assert status.reason is None
    assert status.failure is not None
    assert status.failure.left == ("book",)


async def test_what_was_undone_is_not_redriven(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[trip]) as runtime:
        await ended(await runtime.submit(trip, key="k", run_id="r"))
        with pytest.raises(RunEnded, match="was compensated"):
            await runtime.redrive("r")


async def test_a_run_without_compensations_is_redriven() -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(refuse)

    async with open_test_runtime(workflows=[flow]) as runtime:
        await ended(await runtime.submit(flow, key="k", run_id="r"))
        assert await runtime.redrive("r") == 2


@pytest.mark.parametrize("compensate_on", ["completed", "attempted"])
async def test_attempted_undoes_the_one_that_failed_too(
    compensate_on: Any, autojump_clock: MockClock
) -> None:
    @workflow(compensate_on=compensate_on)
    async def flow(ctx: Context) -> None:
        await ctx.step(book, "hotel")
        await ctx.step(refuse.options(compensate=undo))

    async with open_test_runtime(workflows=[flow]) as runtime:
        await ended(await runtime.submit(flow, key="k"))
    assert undone == (["refuse", "book"] if compensate_on == "attempted" else ["book"])
    if compensate_on == "attempted":
        assert told["refuse"].output is None


async def test_branches_are_undone_in_reverse_order_of_completion(
    autojump_clock: MockClock,
) -> None:
    @step(compensate=undo)
    async def take(seconds: float) -> float:
        await trio.sleep(seconds)
        return seconds

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.gather(ctx.step(take, 3), ctx.step(take, 1), ctx.step(refuse, 5))

    async with open_test_runtime(workflows=[flow]) as runtime:
        await ended(await runtime.submit(flow, key="k"))
    assert undone == ["g1.0/take", "g1.1/take"]


async def test_a_crash_at_any_commit_undoes_each_step_once(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book.options(compensate=flaky_undo), "hotel")
        await ctx.step(book.options(compensate=slow_undo), "flight")
        await ctx.step(book.options(compensate=broken_undo), "car")
        await ctx.step(refuse)

    await _crash_everywhere(flow, cancel=False)


async def test_a_crash_at_any_commit_of_a_cancel_undoes_each_step_once(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(book.options(compensate=flaky_undo), "hotel")
        await ctx.step(book.options(compensate=slow_undo), "flight")
        await ctx.step(book.options(compensate=broken_undo), "car")
        await ctx.sleep(1000)

    await _crash_everywhere(flow, cancel=True)


async def _crash_everywhere(flow: Any, cancel: bool) -> None:
    settled: list[tuple[str, int]] = []

    async def scenario(runtime: Runtime) -> RunStatus:
        for each in await runtime.history("r"):
            if each.event in ("step_completed", "step_failed") and str(each.step)[:6] == "undo()":
                name = str(each.step).removeprefix("undo()/")
                settled.append((name, counted[name]))
        run = await runtime.submit(flow, key="k", run_id="r")
        if cancel:
            await trio.sleep(5)
            await run.cancel()
        return await ended(run)

    points = 0
    for point in crash_points(CrashingMemoryStore):
        undone.clear()
        counted.clear()
        settled.clear()
        status = await point.run(scenario, workflows=[flow])
        assert status.state is (State.CANCELLED if cancel else State.FAILED)
        assert status.failure is not None
        assert status.failure.left == ("book#3",)
        assert [(name, counted[name]) for name, _ in settled] == settled
        # A crash can cut one off before its outcome was durable, as any step.
        assert sorted(set(undone)) == ["book", "book#2"]
        assert len(undone) <= 3
        points += 1
    assert points > 15


async def test_a_drain_in_the_middle_goes_on_with_the_rest(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        for name in ("hotel", "flight", "car"):
            await ctx.step(book.options(compensate=slow_undo), name)
        await ctx.step(refuse)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(1.5)
    assert undone == ["book#3", "book#2"]
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        status = await ended(await runtime.submit(flow, key="k", run_id="r"))
        assert status.state is State.FAILED
    assert undone == ["book#3", "book#2", "book"]
    assert set(counted.values()) == {1}


async def test_the_next_run_of_the_key_waits_until_all_is_undone(
    autojump_clock: MockClock,
) -> None:
    order: list[str] = []

    async def late_undo(given: Compensation) -> None:
        await trio.sleep(5)
        order.append("undone")

    @workflow
    async def first(ctx: Context) -> None:
        await ctx.step(book.options(compensate=late_undo), "hotel")
        await ctx.step(refuse)

    @workflow
    async def second(ctx: Context) -> None:
        order.append("second")

    async with open_test_runtime(workflows=[first, second]) as runtime:
        await runtime.submit(first, key="k")
        await (await runtime.submit(second, key="k")).result()
    assert order == ["undone", "second"]


def saga(**options: Any) -> Graph:
    """Two lanes that join nowhere, of which the first fails at its end."""

    def done(seconds: float) -> Any:
        async def work(given: NodeInput) -> str:
            await trio.sleep(seconds)
            return current_step().step

        return work

    async def fail(given: NodeInput) -> None:
        await trio.sleep(10)
        raise PermanentError("refused")

    graph = Graph("saga", **options)
    graph.node("reserve", done(1), compensate=undo)
    graph.node("charge", done(3), compensate=undo)
    graph.node("ship", fail, compensate=undo)
    graph.node("other", done(2), compensate=undo)
    graph.edge("reserve", "charge")
    graph.edge("charge", "ship")
    return graph


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["charge", "other", "reserve"]),
        ({"compensation": "branch"}, ["charge", "reserve"]),
        ({"compensate_on": "attempted"}, ["ship", "charge", "other", "reserve"]),
        (
            {"compensation": "branch", "compensate_on": "attempted"},
            ["ship", "charge", "reserve"],
        ),
    ],
)
async def test_a_graph_is_undone(
    options: dict[str, Any], expected: list[str], autojump_clock: MockClock
) -> None:
    graph = saga(**options)
    async with open_test_runtime(workflows=[graph]) as runtime:
        status = await ended(await runtime.submit(graph, key="k", run_id="r"))
        await replay(await runtime.history("r"), graph)
    assert status.state is State.FAILED
    assert undone == expected
    assert told["charge"].failed == "ship"


async def test_a_graph_is_undone_once_through_a_crash_at_every_commit(
    autojump_clock: MockClock,
) -> None:
    graph = saga()

    async def scenario(runtime: Runtime) -> RunStatus:
        return await ended(await runtime.submit(graph, key="k", run_id="r"))

    for point in crash_points():
        undone.clear()
        status = await point.run(scenario, workflows=[graph])
        assert status.state is State.FAILED
        last = list(dict.fromkeys(undone))
        assert sorted(last) == ["charge", "other", "reserve"]
        assert len(undone) <= 4


async def test_a_node_can_undo_another_and_sees_its_output_without_the_port() -> None:
    async def choose(given: NodeInput) -> Port:
        return Port("a", {"id": 7})

    async def fail(given: NodeInput) -> None:
        raise PermanentError("refused")

    graph = Graph("g")
    graph.node("choose", choose, ports=("a",), compensate="take back")
    graph.node("take back", undo)
    graph.node("fail", fail)
    graph.edge("choose", "fail", port="a")
    async with open_test_runtime(workflows=[graph]) as runtime:
        await ended(await runtime.submit(graph, key="k"))
    assert told["choose"].output == {"id": 7}


def test_a_compensation_must_be_a_node_or_a_function() -> None:
    async def work(given: NodeInput) -> None:
        pass

    @durable
    async def code(ctx: Context, given: NodeInput) -> None:
        pass

    graph = Graph("g")
    graph.node("a", work, compensate="nowhere")
    graph.node("b", code, compensate=undo)
    with pytest.raises(InvalidGraph) as caught:
        graph.validate()
    assert "node 'a': compensate: there is no node 'nowhere'" in caught.value.errors
    assert any(error.startswith("node 'b': options are for steps") for error in caught.value.errors)


async def test_code_that_no_longer_says_how_is_quarantined(autojump_clock: MockClock) -> None:
    def made(with_undo: bool) -> Any:
        wanted = book.options(compensate=slow_undo if with_undo else None)

        @workflow(name="flow")
        async def flow(ctx: Context) -> None:
            await ctx.step(wanted, "hotel")
            await ctx.step(refuse)

        return flow

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[made(True)]) as runtime:
        await runtime.submit(made(True), key="k", run_id="r")
        await trio.sleep(0.5)
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[made(False)]) as runtime:
        await trio.sleep(5)
        status = await runtime.status("r")
        assert status is not None
        assert status.state is State.QUARANTINED
        assert "no compensation for the step 'book'" in str(status.reason)
    async with open_test_runtime(store, workflows=[made(True)]) as runtime:
        await runtime.redrive("r")
        await trio.sleep(5)
        status = await runtime.status("r")
        assert status is not None
        assert status.state is State.FAILED
    assert undone == ["book"]


async def test_a_run_that_a_crash_left_in_a_block_with_a_time_limit_is_undone(
    autojump_clock: MockClock,
) -> None:
    """To find out what undoes its steps its code is rehearsed, and there the limit is long past."""

    @step(compensate=undo)
    async def reserve() -> None:
        pass

    @step
    async def hang() -> None:
        await trio.sleep_forever()

    @workflow(limits=Limits(run_timeout=2))
    async def job(ctx: Context) -> None:
        with ctx.move_on_after(5):
            await ctx.step(reserve)
            await ctx.step(hang)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as runtime:
        await runtime.submit(job, key="k", run_id="r")
        await trio.sleep(1)
        store.crash()
        await trio.sleep_forever()
    await trio.sleep(100)
    async with open_test_runtime(store, workflows=[job]) as runtime:
        await trio.sleep(1)
        status = await runtime.status("r")
        assert status is not None
        assert status.state is State.FAILED
    assert undone == ["reserve"]


@pytest.mark.parametrize("depth", [0, 1, 5])
async def test_what_a_branch_has_done_after_another_failed_is_undone_by_a_run_that_left_memory(
    autojump_clock: MockClock, depth: int
) -> None:
    """Branches begin in any order: many runs, so that each order is among them."""

    @step(compensate=undo, shield=True)
    async def steadfast() -> None:
        await trio.sleep(2)

    async def nested(ctx: Context, depth: int) -> None:
        if depth:
            await ctx.gather(lambda ctx: nested(ctx, depth - 1))
        else:
            await ctx.step(steadfast)

    @workflow
    async def flow(ctx: Context) -> None:
        with suppress(StepFailed):
            await ctx.gather(lambda ctx: ctx.step(refuse, 1), lambda ctx: nested(ctx, depth))
        await ctx.sleep(100)
        await ctx.step(refuse)

    async with open_test_runtime(workflows=[flow]) as rt:
        runs = [await rt.submit(flow, key=f"k{number}") for number in range(20)]
        await trio.sleep(200)
        states = Counter([status.state for run in runs if (status := await run.status())])
    assert states == {State.FAILED: 20}
    assert undone == [f"g1.1/{'g1.0/' * depth}steadfast"] * 20
