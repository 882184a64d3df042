"""The `fail` node: the run ends with its reason, is compensated, and is not a dead letter."""

from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Failure,
    FailureKind,
    Graph,
    NodeInput,
    PermanentError,
    RunFailed,
    Runtime,
    State,
    current_step,
)
from keyrun.flows import fail, parse
from keyrun.graphs import NodeState, durable
from keyrun.testing import crash_points, open_test_runtime

done: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


async def work(given: NodeInput) -> str:
    done.append(current_step().step)
    return "in stock"


async def undo(given: Compensation) -> None:
    done.append(f"undo {given.step} because of {given.failed}")


async def slow(given: NodeInput) -> None:
    await trio.sleep(10_000)
    done.append("slow")


REASON = "not paid: {{ output }}"


def in_python(**options: Any) -> Graph:
    graph = Graph("failing", **options)
    graph.node("charge", work, compensate=undo)
    graph.node("stop", fail(REASON))
    graph.node("beside", slow, timeout=None)
    graph.edge("charge", "stop")
    return graph


def in_yaml(**options: Any) -> Graph:
    text = "".join(f"{name}: {value}\n" for name, value in options.items())
    return parse(
        f"""\
{text}name: failing
nodes:
  charge: {{kind: call, function: work, compensate: undo}}
  stop: {{kind: fail, reason: "{REASON}"}}
  beside: {{kind: call, function: slow, timeout: none}}
  undo: {{kind: call, function: undo}}
edges:
  - {{from: charge, to: stop}}
""",
        functions=[work, undo, slow],
    )


async def failure_of(runtime: Runtime, graph: Graph, run_input: Any = None) -> Failure:
    run = await runtime.submit(graph, run_input, key="k", run_id="r")
    with pytest.raises(RunFailed) as caught:
        await run.result()
    return caught.value.failure


@pytest.mark.parametrize("made", [in_python, in_yaml])
async def test_the_run_fails_is_compensated_and_is_not_a_dead_letter(
    autojump_clock: MockClock, made: Callable[[], Graph]
) -> None:
    graph = made()
    async with open_test_runtime(workflows=[graph]) as runtime:
        failure = await failure_of(runtime, graph)
        assert await runtime.dead_letters() == []
        status = await runtime.status("r")
        drawn = await runtime.execution_graph("r")
    assert (failure.kind, failure.reason) == (FailureKind.VERDICT, "not paid: in stock")
    assert done == ["charge", "undo charge because of stop"]
    assert trio.current_time() < 10
    assert status is not None
    assert (status.state, status.step) == (State.FAILED, "stop")
    assert drawn is not None
    nodes = {node.id: node for node in drawn.nodes}
    assert nodes["stop"].state is NodeState.FAILED
    assert nodes["stop"].failure is not None
    assert nodes["stop"].failure.reason == "not paid: in stock"
    assert nodes["beside"].state is NodeState.CANCELLED


async def test_only_what_led_to_it_is_compensated_if_the_graph_says_so(
    autojump_clock: MockClock,
) -> None:
    graph = Graph("branches", compensation="branch")
    for name in ("left", "right"):
        graph.node(name, work, compensate=undo)
    graph.node("nap", fail("enough"))
    graph.edge("left", "nap")
    async with open_test_runtime(workflows=[graph]) as runtime:
        await failure_of(runtime, graph)
    assert done == ["left", "right", "undo left because of nap"]


async def test_a_redrive_tries_the_failure_again_that_led_there(autojump_clock: MockClock) -> None:
    broken = True

    async def ship(given: NodeInput) -> str:
        done.append("ship")
        if broken:
            raise PermanentError("sold out")
        return "shipped"

    graph = Graph("redriven")
    graph.node("ship", ship)
    graph.node("stop", fail("not shipped: {{ error.kind }}"))
    graph.edge("ship", "stop", on="fail")
    async with open_test_runtime(workflows=[graph]) as runtime:
        failure = await failure_of(runtime, graph)
        assert failure.reason == "not shipped: permanent_error"
        broken = False
        await runtime.redrive("r")
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == {"ship": "shipped"}
        drawn = await runtime.execution_graph("r")
    assert done == ["ship", "ship"]
    assert drawn is not None
    states = [node.state for node in drawn.nodes]
    assert states == [NodeState.DONE, NodeState.SKIPPED]


async def test_workflow_code_that_calls_fail_is_drawn_the_same_way(
    autojump_clock: MockClock,
) -> None:
    @durable
    async def code(ctx: Context, given: NodeInput) -> None:
        await ctx.sleep(1)
        ctx.fail("enough")

    graph = Graph("code")
    graph.node("code", code)
    async with open_test_runtime(workflows=[graph]) as runtime:
        failure = await failure_of(runtime, graph)
        drawn = await runtime.execution_graph("r")
    assert (failure.kind, failure.step) == (FailureKind.VERDICT, "code")
    assert drawn is not None
    assert [node.state for node in drawn.nodes] == [NodeState.FAILED]


async def test_in_a_loop_it_ends_the_run(autojump_clock: MockClock) -> None:
    text = """
    name: turns
    nodes:
      turns:
        kind: loop
        start: 0
        while: output < 9
        body:
          nodes:
            add: {kind: call, function: add, args: {value: "{{ output }}"}}
            check: {kind: switch, cases: [{port: stop, when: output == 3}]}
            stop: {kind: fail, reason: "reached {{ output }}"}
            next: {kind: call, function: add, args: {value: "{{ output - 1 }}"}}
          edges:
            - {from: add, to: check}
            - {from: check, to: stop, port: stop}
            - {from: check, to: next, port: default}
    """

    async def add(value: int) -> int:
        return value + 1

    graph = parse(text, functions=[add])
    async with open_test_runtime(workflows=[graph]) as runtime:
        assert (await failure_of(runtime, graph)).reason == "reached 3"


async def test_a_reason_that_is_no_text_fails_the_node(autojump_clock: MockClock) -> None:
    graph = parse('{name: f, nodes: {stop: {kind: fail, reason: "{{ input }}"}}}')
    async with open_test_runtime(workflows=[graph]) as runtime:
        failure = await failure_of(runtime, graph, {"a": 1})
    assert failure.kind is FailureKind.WORKFLOW_ERROR
    assert failure.step == "stop"
    assert "nodes.stop.reason requires text, got a mapping" in failure.reason


@pytest.mark.parametrize("made", [in_python, in_yaml])
async def test_a_crash_at_any_commit_changes_nothing(
    autojump_clock: MockClock, made: Callable[[], Graph]
) -> None:
    graph = made()

    async def scenario(runtime: Runtime) -> Any:
        return await failure_of(runtime, graph)

    points = 0
    for point in crash_points():
        points += 1
        done.clear()
        failure = await point.run(scenario, workflows=[graph])
        assert (failure.kind, failure.reason) == (FailureKind.VERDICT, "not paid: in stock"), point
        assert set(done) == {"charge", "undo charge because of stop"}, point
        assert len(done) <= 2 + point.crashes
    assert points > 5
