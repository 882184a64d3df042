"""Graphs go on where they were, whichever commit the process is killed at."""

from collections import Counter
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Graph,
    NodeInput,
    PermanentError,
    Port,
    Priority,
    Runtime,
    State,
    TransientError,
    current_step,
    step,
)
from keyrun.graphs import durable
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime, replay
from tests.runtime.graphs.nodes import SOON, Log, ended
from tests.runtime.graphs.test_shapes import diamond

executions: Counter[str] = Counter()


async def plain(given: NodeInput) -> str:
    executions[current_step().step] += 1
    await trio.sleep(1)
    return current_step().step


async def quick(given: NodeInput) -> int:
    executions[current_step().step] += 1
    return given.iteration


async def stumbling(given: NodeInput) -> str:
    executions[current_step().step] += 1
    if current_step().attempt == 1:
        raise TransientError("once")
    return "stood up"


async def refusing(given: NodeInput) -> None:
    executions[current_step().step] += 1
    raise PermanentError("no")


async def deciding(given: NodeInput) -> Port:
    executions[current_step().step] += 1
    return Port("again" if given.iteration < 3 else "enough", given.iteration)


@step
async def inner(value: int) -> int:
    executions[current_step().step] += 1
    return value + 1


@durable
async def code(ctx: Context, given: NodeInput) -> int:
    first = await ctx.step(inner, 1)
    await ctx.sleep(2)
    return await ctx.step(inner, first)


def everything() -> Graph:
    """A diamond with a retry and a failure on its sides, a loop, and workflow code."""
    graph = Graph("everything")
    graph.node("start", quick)
    graph.node("left", stumbling, retry=SOON)
    graph.node("right", refusing)
    graph.node("mend", plain)
    graph.node("code", code)
    graph.node("join", plain)
    graph.node("head", quick)
    graph.node("turn", deciding, ports=("again", "enough"))
    graph.node("end", plain)
    graph.node("never", plain)
    graph.edge("start", "left")
    graph.edge("start", "right")
    graph.edge("start", "code")
    graph.edge("right", "mend", on="fail")
    graph.edge("right", "never")
    for name in ("left", "mend", "code"):
        graph.edge(name, "join")
    graph.edge("join", "head")
    graph.edge("head", "turn")
    graph.edge("turn", "head", port="again", back=True)
    graph.edge("turn", "end", port="enough")
    return graph


EVERYTHING = (
    *("start", "left", "mend", "code/inner", "code/inner#2", "join", "end"),
    *("head", "head#2", "head#3", "turn", "turn#2", "turn#3"),
)


async def test_a_graph_ends_the_same_way_whichever_commit_it_is_killed_at(
    autojump_clock: MockClock,
) -> None:
    graph = everything()
    settled: list[tuple[str, int]] = []
    """Nodes that had an outcome when the store was opened, and how often they had run."""

    async def scenario(runtime: Runtime) -> Any:
        for each in await runtime.history("r"):
            if each.event in ("step_completed", "step_failed"):
                settled.append((str(each.step), executions[str(each.step)]))
        run = await runtime.submit(graph, key="k", run_id="r")
        result = await run.result()
        story = await runtime.history("r")
        done = sorted(str(each.step) for each in story if each.event == "step_completed")
        return result, done, (await replay(story, graph)).state

    points = restarts = 0
    for point in crash_points():
        executions.clear()
        settled.clear()
        result, done, replayed = await point.run(scenario, workflows=[graph])
        assert result == {"end": "end"}
        assert replayed is State.SUCCEEDED
        assert done == sorted(EVERYTHING)
        assert [(name, executions[name]) for name, _ in settled] == settled
        points += 1
        restarts += bool(settled)
    assert points > 30
    assert restarts > 20


async def test_workflow_code_of_a_node_can_wait_and_goes_on(autojump_clock: MockClock) -> None:
    graph = Graph("g")
    graph.node("code", code)
    graph.node("beside", plain)
    store = MemoryStore()
    executions.clear()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(1.5)
        store.crash()
        await trio.sleep_forever()
    assert executions == {"code/inner": 1, "beside": 1}
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == {"code": 3, "beside": "beside"}
    assert executions == {"code/inner": 1, "code/inner#2": 1, "beside": 1}


async def test_a_drain_interrupts_nothing(autojump_clock: MockClock) -> None:
    log = Log()
    graph = diamond(log)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(1)
    assert log.lines == ["+start", "-start", "+left", "+right", "-left", "-right"]
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == "end"
        assert "interrupted" not in [each.event for each in await runtime.history("r")]
    assert log.lines[-2:] == ["+end", "-end"]


async def test_a_paused_graph_starts_nothing_more(autojump_clock: MockClock) -> None:
    log = Log()
    graph = diamond(log)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(1)
        await runtime.pause("r")
        await trio.sleep(100)
        assert log.lines[-1] == "-right"
        status = await run.status()
        assert status is not None
        assert status.state is State.PAUSED
        await runtime.resume("r")
        assert await run.result() == "end"


async def test_a_cancel_ends_all_nodes(autojump_clock: MockClock) -> None:
    log = Log()
    graph = diamond(log)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(1)
        assert await run.cancel()
        assert (await ended(run)).state is State.CANCELLED
    assert trio.current_time() < 2


@pytest.mark.parametrize("fail_fast", [False, True])
async def test_a_failure_stays_the_failure_after_a_crash(
    fail_fast: bool, autojump_clock: MockClock
) -> None:
    """Also if it was the slower of two that could have failed."""

    async def first(given: NodeInput) -> None:
        await trio.sleep(1)
        raise PermanentError("first")

    async def second(given: NodeInput) -> None:
        await trio.sleep(2)
        raise PermanentError("second")

    graph = Graph("g", fail_fast=fail_fast)
    graph.node("second", second)
    graph.node("first", first)

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, key="k", run_id="r")
        failure = (await ended(run)).failure
        assert failure is not None
        await replay(await runtime.history("r"), graph)
        return failure.step

    for point in crash_points():
        assert await point.run(scenario, workflows=[graph]) == "first"


async def test_code_that_no_longer_fits_is_quarantined(autojump_clock: MockClock) -> None:
    log = Log()
    store = MemoryStore()
    graph = diamond(log)
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(3)
        store.crash()
        await trio.sleep_forever()
    other = Graph("diamond")
    other.node("start", log.node())
    other.node("right", log.node(5))
    other.edge("start", "right")
    async with open_test_runtime(store, workflows=[other]) as runtime:
        run = await runtime.submit(other, key="k", run_id="r")
        await trio.sleep(10)
        status = await run.status()
        assert status is not None
        assert status.state is State.QUARANTINED
        assert "'left'" in str(status.reason)


def _random_graph(seed: int, log: list[str], racing: bool) -> Graph:
    """Layers of nodes that wait, fail and retry, and a loop. If `racing`, it matters who is first:
    there are joins of any kind, and the first failure may be the last."""
    random = Random(seed)

    def made(seconds: float, fate: str) -> Any:
        async def work(given: NodeInput) -> Any:
            name = current_step().step
            log.append(name)
            if seconds:
                await trio.sleep(seconds)
            if fate == "fails" or (fate == "stumbles" and current_step().attempt == 1):
                raise (PermanentError if fate == "fails" else TransientError)("as told")
            if fate == "turns":
                return given.iteration
            return name

        return work

    graph = Graph(
        "random",
        fail_fast=racing and random.random() < 0.5,
        max_concurrency=random.choice([None, None, 1, 2]),
        schedule=random.choice(["eager", "waves"]),
    )
    layers: list[list[str]] = []
    for depth in range(random.randint(2, 4)):
        layer = [f"n{depth}{at}" for at in range(random.randint(1, 4))]
        for name in layer:
            fate = random.choices(["fine", "stumbles", "fails"], [6, 2, 1])[0]
            graph.node(
                name,
                made(random.choice([0, 0, 0, 1, 2, 3]), fate),
                join="any" if racing and random.random() < 0.3 else "all",
                retry=SOON,
                priority=random.choice(list(Priority)),
            )
            if layers:
                for source in {random.choice(random.choice(layers)) for _ in range(2)}:
                    on = random.choice(["complete", "complete", "all", "fail"])
                    graph.edge(source, name, on=on)  # type: ignore[arg-type]
        layers.append(layer)
    first, last = layers[0][0], "last"
    graph.node(last, made(random.choice([0, 1]), "turns"), join="any")
    graph.edge(first, last, on="all")
    graph.edge(last, first, back=True, when=f"output < {random.randint(1, 3)}")
    return graph


@pytest.mark.parametrize("seed", range(16))
async def test_random_graphs_end_the_same_way_after_crashes(
    seed: int, autojump_clock: MockClock
) -> None:
    log: list[str] = []
    racing = seed % 4 == 3
    graph = _random_graph(seed, log, racing)

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, key="k", run_id="r")
        status = await ended(run)
        story = await runtime.history("r")
        await replay(story, graph)
        settled = sorted(
            str(each.step) for each in story if each.event in ("step_completed", "step_failed")
        )
        return status.state, status.result, settled

    outcomes = [await point.run(scenario, workflows=[graph]) for point in crash_points(every=3)]
    assert len(outcomes) > 4
    assert {outcome[0] for outcome in outcomes} <= {State.SUCCEEDED, State.FAILED}
    if not racing:
        assert all(outcome == outcomes[0] for outcome in outcomes)


@pytest.mark.parametrize(
    "options", [{"max_concurrency": 1}, {"max_concurrency": 2}, {"schedule": "waves"}]
)
async def test_a_redrive_knows_what_a_failure_had_made_room_for(
    options: Any, autojump_clock: MockClock
) -> None:
    """The failed node takes its place again, and what ended after it keeps its outcome."""
    executions.clear()
    mended = False

    async def fragile(given: NodeInput) -> str:
        if not mended:
            raise PermanentError("not yet")
        return "mended"

    graph = Graph("g", **options)
    graph.node("fragile", fragile)
    graph.node("first", plain)
    graph.node("second", plain)
    graph.node("code", code)
    graph.node("third", plain)
    graph.edge("first", "second")
    graph.edge("second", "code")
    graph.edge("code", "third")
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        assert (await ended(run)).state is State.FAILED
    mended = True
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.redrive("r")
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == {"fragile": "mended", "third": "third"}
        view = await runtime.execution_graph("r")
        assert view is not None
        assert {str(node.state) for node in view.nodes} == {"done"}
        assert (await replay(await runtime.history("r"), graph)).state is State.SUCCEEDED
    assert set(executions.values()) == {1}
