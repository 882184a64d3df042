"""A run that is being compensated: what its status, progress, graph and events say."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    Runtime,
    State,
    TransientError,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.events import EventKind
from keyrun.graphs import NodeState
from keyrun.status import CompensationProgress
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.graphs.nodes import ended

SOON = Retry.fixed(max_attempts=2, delay=10, jitter=0)
Undo = Callable[[Compensation], Awaitable[None]]


async def done(given: NodeInput) -> str:
    await trio.sleep(1)
    return current_step().step


async def refuse(given: NodeInput) -> None:
    raise PermanentError("sold out")


async def hang(given: NodeInput) -> None:
    await trio.sleep(5000)


@step(retry=SOON)
async def slow_undo(given: Compensation) -> None:
    """Fails once, and then takes 10 seconds."""
    if current_step().attempt == 1:
        raise TransientError("not yet")
    await trio.sleep(10)


@step(retry=Retry.none())
async def no_undo(given: Compensation) -> None:
    await trio.sleep(10)
    raise PermanentError("the refund desk is closed")


def saga(last: Any = refuse, *, charge: Any = slow_undo, reserve: Any = slow_undo) -> Graph:
    graph = Graph("saga")
    graph.node("reserve", done, compensate=reserve)
    graph.node("charge", done, compensate=charge)
    graph.node("ship", last, retry=Retry.none(), timeout=None)
    graph.node("thank", done)
    graph.edge("reserve", "charge")
    graph.edge("charge", "ship")
    graph.edge("ship", "thank")
    return graph


async def states(runtime: Runtime) -> dict[str, str]:
    drawn = await runtime.execution_graph("r")
    assert drawn is not None
    return {node.id: str(node.state) for node in drawn.nodes}


async def check(runtime: Runtime, expected: CompensationProgress, state: State) -> None:
    """The run does not look finished, and says how far its compensation is."""
    status, far = await runtime.status("r"), await runtime.progress("r")
    drawn = await runtime.execution_graph("r")
    assert status is not None
    assert far is not None
    assert (status.state, far.state) == (state, state)
    assert status.compensation == far.compensation == expected
    assert status.compensating
    assert far.compensating
    assert (far.percent, far.time_left) == (None, None)
    assert status.steps_done == far.steps.done == 2
    if drawn is not None:
        assert drawn.percent is None
        assert drawn.compensation == expected
        assert far.nodes == {str(each): count for each, count in drawn.counts().items()}


async def test_a_run_that_is_being_compensated_does_not_look_finished(
    autojump_clock: MockClock,
) -> None:
    graph = saga()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(3)
        # The first attempt has failed.
        charging = CompensationProgress(total=2, done=0, step="charge")
        await check(runtime, charging, State.WAITING)
        ship = {"ship": "failed", "thank": "skipped"}
        assert await states(runtime) == {"reserve": "done", "charge": "compensating", **ship}
        status = await runtime.status("r")
        assert status is not None
        assert status.failure is not None
        assert status.failure.step == "ship"
        await trio.sleep(10)
        # The second attempt runs.
        await check(runtime, charging, State.RUNNING)
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        assert [node.attempt for node in drawn.nodes if node.id == "charge"] == [2]
        await trio.sleep(10)
        reserving = CompensationProgress(total=2, done=1, step="reserve")
        await check(runtime, reserving, State.WAITING)
        over = {"reserve": "compensating", "charge": "compensated", **ship}
        assert await states(runtime) == over
        status = await ended(run)
        assert (status.state, status.compensating) == (State.FAILED, False)
        assert status.compensation == CompensationProgress(total=2, done=2, step=None)
        assert status.steps_done == 2
        far = await runtime.progress("r")
        assert far is not None
        assert (far.compensation, far.time_left) == (status.compensation, 0)
        over["reserve"] = "compensated"
        assert await states(runtime) == over


@pytest.mark.parametrize("after", [3, 13, 23, 33])
async def test_it_says_the_same_after_a_crash(autojump_clock: MockClock, after: int) -> None:
    graph, store = saga(), MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(after)
        before, drawn = await runtime.status("r"), await states(runtime)
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(0.1)
        status = await runtime.status("r")
        assert before is not None
        assert status is not None
        assert status.compensating
        assert status.compensation == before.compensation
        assert (status.failure, status.steps_done) == (before.failure, 2)
        assert await states(runtime) == drawn
        assert (await ended(run)).state is State.FAILED


async def test_a_run_that_is_cancelled_shows_its_compensation_too(
    autojump_clock: MockClock,
) -> None:
    graph = saga(hang)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(5)
        assert await runtime.cancel("r")
        await trio.sleep(3)
        await check(runtime, CompensationProgress(total=2, done=0, step="charge"), State.CANCELLING)
        # What was cut off is neither running nor waiting.
        assert await states(runtime) == {
            "reserve": "done",
            "charge": "compensating",
            "ship": "cancelled",
            "thank": "cancelled",
        }
        assert (await ended(run)).state is State.CANCELLED


async def test_what_could_not_be_compensated_is_in_the_status_and_the_graph(
    autojump_clock: MockClock,
) -> None:
    graph = saga(charge=no_undo)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(13)
        await check(
            runtime,
            CompensationProgress(total=2, done=0, step="reserve", left=("charge",)),
            State.WAITING,
        )
        status = await ended(run)
        assert status.failure is not None
        assert status.failure.left == ("charge",)
        assert status.compensation == CompensationProgress(
            total=2, done=1, step=None, left=("charge",)
        )
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        charge = next(node for node in drawn.nodes if node.id == "charge")
        assert charge.state is NodeState.COMPENSATION_FAILED
        assert charge.failure is not None
        assert "the refund desk is closed" in charge.failure.reason
        far = await runtime.progress("r")
        assert far is not None
        assert (far.steps.done, far.steps.failed) == (2, 1)


async def test_a_loop_is_compensated_when_all_its_turns_are(autojump_clock: MockClock) -> None:
    async def count(given: NodeInput) -> int:
        return given.iteration

    graph = Graph("turns")
    graph.node("count", count, compensate=slow_undo)
    graph.node("ship", refuse)
    graph.edge("count", "count", when="output < 3", back=True)
    graph.edge("count", "ship", when="output >= 3")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(25)
        status = await runtime.status("r")
        assert status is not None
        assert status.compensation == CompensationProgress(total=3, done=1, step="count#2")
        assert (await states(runtime))["count"] == "compensating"
        await ended(run)
        assert (await states(runtime))["count"] == "compensated"


async def test_a_loop_is_being_compensated_after_one_of_its_turns_could_not_be(
    autojump_clock: MockClock,
) -> None:
    async def count(given: NodeInput) -> int:
        return given.iteration

    graph = Graph("turns")
    graph.node("count", count, compensate=no_undo)
    graph.node("ship", refuse)
    graph.edge("count", "count", when="output < 3", back=True)
    graph.edge("count", "ship", when="output >= 3")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(15)
        status = await runtime.status("r")
        assert status is not None
        assert status.compensation is not None
        assert (status.compensation.step, status.compensation.left) == ("count#2", ("count#3",))
        assert (await states(runtime))["count"] == "compensating"
        await ended(run)
        assert (await states(runtime))["count"] == "compensation_failed"


@step(compensate=slow_undo)
async def charged(amount: int) -> int:
    return amount


@step(compensate=slow_undo)
async def reserved() -> str:
    return "seat"


@step(retry=Retry.none())
async def refused() -> None:
    raise PermanentError("sold out")


@workflow
async def checkout(ctx: Context) -> None:
    ctx.report(80, "nearly")
    await ctx.step(charged, 7)
    await ctx.step(reserved)
    await ctx.step(refused)


async def test_a_function_shows_it_as_a_graph_does(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[checkout]) as runtime:
        run = await runtime.submit(checkout, key="k", run_id="r")
        await trio.sleep(5)
        expected = CompensationProgress(total=2, done=0, step="reserved")
        await check(runtime, expected, State.WAITING)
        assert (await ended(run)).state is State.FAILED


@pytest.mark.parametrize("made", [saga, lambda: checkout])
async def test_an_event_says_that_compensation_begins(
    autojump_clock: MockClock, made: Callable[[], Workflow[Any, Any]]
) -> None:
    flow = made()
    async with open_test_runtime(workflows=[flow]) as runtime:
        async with runtime.events(run_id="r") as events:
            await ended(await runtime.submit(flow, key="k", run_id="r"))
            seen = []
            async for event in events:
                seen.append(event)
                if event.kind is EventKind.RUN_FAILED:
                    break
    kinds = [event.kind for event in seen]
    begun = kinds.index(EventKind.RUN_COMPENSATING)
    assert kinds.count(EventKind.RUN_COMPENSATING) == 1
    assert getattr(seen[begun], "failure", None) is not None
    later = [str(getattr(event, "step", None) or "undo()/") for event in seen[begun:]]
    assert all(each.startswith("undo()/") for each in later)
    earlier = [str(getattr(event, "step", None) or "") for event in seen[:begun]]
    assert not any(each.startswith("undo()/") for each in earlier)


async def test_a_watch_shows_the_compensation(autojump_clock: MockClock) -> None:
    graph = saga()
    async with open_test_runtime(workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        seen = [far async for far in runtime.watch("r")]
    steps = [far.compensation.step for far in seen if far.compensating and far.compensation]
    assert list(dict.fromkeys(steps)) == ["charge", "reserve"]
    assert all(far.percent is None and far.time_left is None for far in seen if far.compensating)
    assert seen[-1].state is State.FAILED
