"""The `signal` node: which edges a signal or a timeout takes, and what survives a crash."""

import json
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Failure,
    FailureKind,
    Graph,
    NodeInput,
    RunFailed,
    Runtime,
    State,
    current_step,
)
from keyrun.flows import parse, signal
from keyrun.graphs import NodeState
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime, replay

Edge = dict[str, Any]

done: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


async def work(given: NodeInput) -> Any:
    done.append(current_step().step)
    return given.output


async def blame(given: NodeInput) -> str:
    assert given.error is not None
    done.append(f"{given.error.kind}")
    return given.error.reason


async def undo(given: Compensation) -> None:
    done.append(f"undo {given.step}")


def in_python(edges: list[Edge]) -> Graph:
    graph = Graph("signals")
    graph.node("charge", work, compensate=undo)
    graph.node("paid", signal("payment", timeout=1000))
    graph.edge("charge", "paid")
    for name in sorted({edge["to"] for edge in edges}):
        graph.node(name, blame if name == "blame" else work)
    for edge in edges:
        options = {name: value for name, value in edge.items() if name != "to"}
        graph.edge("paid", edge["to"], **options)
    return graph


def in_yaml(edges: list[Edge]) -> Graph:
    nodes: dict[str, Any] = {
        "charge": {"kind": "call", "function": "work", "compensate": "undo"},
        "paid": {"kind": "signal", "name": "payment", "timeout": 1000},
        "undo": {"kind": "call", "function": "undo"},
    }
    for name in {edge["to"] for edge in edges}:
        nodes[name] = {"kind": "call", "function": "blame" if name == "blame" else "work"}
    ways = [{"from": "charge", "to": "paid"}, *({"from": "paid", **edge} for edge in edges)]
    text = json.dumps({"name": "signals", "nodes": nodes, "edges": ways})
    return parse(text, functions=[work, blame, undo])


@attrs.frozen
class Expected:
    """The steps after `charge`, by what happens; None where the run has to fail."""

    received: list[str]
    timeout: list[str] | None


SHAPES: dict[str, tuple[list[Edge], Expected]] = {
    "no edge": ([], Expected([], None)),
    "no port": ([{"to": "ship"}], Expected(["ship"], None)),
    "received only": ([{"to": "ship", "port": "received"}], Expected(["ship"], None)),
    "both ports": (
        [{"to": "ship", "port": "received"}, {"to": "remind", "port": "timeout"}],
        Expected(["ship"], ["remind"]),
    ),
    "a condition that is false": (
        [{"to": "ship"}, {"to": "remind", "port": "timeout", "when": "false"}],
        Expected(["ship"], None),
    ),
    "on fail": (
        [{"to": "ship"}, {"to": "blame", "on": "fail"}],
        Expected(["ship"], ["step_timeout"]),
    ),
    "on all": ([{"to": "next", "on": "all"}], Expected(["next"], ["next"])),
}


async def outcome(runtime: Runtime, graph: Graph, *, sent: bool) -> Any:
    """Return the result of a run, or its failure."""
    run = await runtime.submit(graph, "in", key="k", run_id="r")
    if sent:
        await runtime.signal("r", "payment", {"amount": 5}, signal_id="payment-1")
    try:
        return await run.result()
    except RunFailed as error:
        return error.failure


def check_failure(failure: Failure, *, node: str = "paid") -> None:
    assert failure.kind is FailureKind.STEP_TIMEOUT
    assert failure.error_type is not None
    assert failure.error_type.endswith(".SignalTimeout")
    assert failure.reason == "no signal 'payment' arrived within 1000 s"
    assert (failure.step, failure.attempt) == (node, 1)


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("made", [in_python, in_yaml])
async def test_a_signal_takes_the_edges_for_it_and_a_timeout_fails_the_run_otherwise(
    autojump_clock: MockClock, made: Callable[[list[Edge]], Graph], shape: str, sent: bool
) -> None:
    edges, expected = SHAPES[shape]
    graph = made(edges)
    async with open_test_runtime(workflows=[graph]) as runtime:
        result = await outcome(runtime, graph, sent=sent)
        letters = [each.run_id for each in await runtime.dead_letters()]
    steps = expected.received if sent else expected.timeout
    if steps is None:
        check_failure(result)
        assert done == ["charge", "undo charge"]
        assert letters == ["r"]
    else:
        assert not isinstance(result, Failure)
        assert done == ["charge", *steps]
        assert letters == []


async def test_the_output_has_the_payload_and_what_came_in(autojump_clock: MockClock) -> None:
    graph = Graph("output")
    graph.node("first", work)
    graph.node("paid", signal("payment", timeout=1000))
    graph.node("late", signal("never", timeout=5))
    graph.node("last", work)
    graph.edge("first", "paid")
    graph.edge("paid", "late")
    graph.edge("late", "last", port="timeout")
    async with open_test_runtime(workflows=[graph]) as runtime:
        result = await outcome(runtime, graph, sent=True)
    received = {"payload": {"amount": 5}, "output": None}
    assert result == {"payload": None, "output": received}


async def test_a_node_in_a_loop_takes_one_signal_in_each_turn(autojump_clock: MockClock) -> None:
    text = """
    name: turns
    nodes:
      turns:
        kind: loop
        start: {payload: 0}
        while: output.payload < 3
        body: {nodes: {more: {kind: signal, name: number}}}
    """
    graph = parse(text)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        for number in (1, 2, 3):
            await runtime.signal("r", "number", number)
        assert (await run.result())["payload"] == 3


async def test_a_redrive_waits_again(autojump_clock: MockClock) -> None:
    graph = Graph("again")
    graph.node("paid", signal("payment", timeout=1000))
    async with open_test_runtime(workflows=[graph]) as runtime:
        check_failure(await outcome(runtime, graph, sent=False))
        await runtime.redrive("r")
        await trio.sleep(500)
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        assert [node.state for node in drawn.nodes] == [NodeState.WAITING]
        assert (await outcome(runtime, graph, sent=True))["payload"] == {"amount": 5}


async def test_a_wait_of_weeks_leaves_memory_and_survives_restarts(
    autojump_clock: MockClock,
) -> None:
    graph, store = parse("{name: w, nodes: {paid: {kind: signal, name: payment}}}"), MemoryStore()
    async with open_test_runtime(store, workflows=[graph], evict_after=1) as runtime:
        await runtime.submit(graph, "in", key="k", run_id="r")
        await trio.sleep(21 * 86400)
        assert not list(runtime._partition.runs)
        status = await runtime.status("r")
        assert status is not None
        assert (status.state, status.waiting_on) == (State.WAITING, "signal payment")
        store.crash()
    async with open_test_runtime(store, workflows=[graph], evict_after=1) as runtime:
        result = await outcome(runtime, graph, sent=True)
    assert result["payload"] == {"amount": 5}


@pytest.mark.parametrize("sent", [True, False])
@pytest.mark.parametrize("shape", ["no port", "on fail", "both ports"])
async def test_a_crash_at_any_commit_changes_nothing(
    autojump_clock: MockClock, shape: str, sent: bool
) -> None:
    edges, expected = SHAPES[shape]
    graph = in_yaml(edges)

    async def scenario(runtime: Runtime) -> Any:
        return await outcome(runtime, graph, sent=sent)

    steps = expected.received if sent else expected.timeout
    once = ["charge", "undo charge"] if steps is None else ["charge", *steps]
    points = 0
    for point in crash_points():
        points += 1
        done.clear()
        result = await point.run(scenario, workflows=[graph])
        if steps is None:
            check_failure(result)
        else:
            assert not isinstance(result, Failure), point
        assert set(done) == set(once), point
        assert len(done) <= len(once) + point.crashes, point
    assert points > 6


@pytest.mark.parametrize("name", ["", "keyrun.x", "x" * 201])
def test_a_wrong_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="name must"):
        signal(name)


TWO = """
name: two
nodes:
  one: {kind: signal, name: one}
  two: {kind: signal, name: two}
  same: {kind: call, function: same}
  both: {kind: branch, when: has(output.payload)}
  pause: {kind: wait, seconds: 60}
  last: {kind: call, function: same}
edges:
  - {from: one, to: same}
  - {from: same, to: both}
  - {from: two, to: both}
  - {from: both, to: pause, port: then}
  - {from: pause, to: last}
"""


@pytest.mark.parametrize("evict_after", [1, 1000])
async def test_a_run_that_left_memory_takes_signals_after_what_was_before_them(
    autojump_clock: MockClock, evict_after: float
) -> None:
    async def same(given: NodeInput) -> Any:
        return given.output

    graph = parse(TWO, functions=[same])
    async with open_test_runtime(workflows=[graph], evict_after=evict_after) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        for name in ("one", "two"):
            await trio.sleep(10)
            await runtime.signal("r", name, name)
        # The latest of the inputs of `both`, also when the run is loaded again after the pause.
        assert (await run.result())["payload"] == "two"
        history = await runtime.history("r")
        assert (await replay(history, graph)).state is State.SUCCEEDED
        completed = [each.step for each in history if each.event == "node_completed"]
        assert completed == ["one", "two", "pause"]
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        assert {str(node.state) for node in drawn.nodes} == {"done"}
