"""Which edges a decision at an approval gate takes, and what happens if no edge takes it."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Failure,
    FailureKind,
    GateNotWaiting,
    Graph,
    NodeInput,
    RunEnded,
    RunFailed,
    Runtime,
    State,
    current_step,
)
from keyrun.events import EventKind
from keyrun.flows import approval, parse
from keyrun.graphs import NodeState
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime
from tests.flows import golden
from tests.runtime import golden as stores

Edge = dict[str, Any]

done: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()
    golden.done.clear()


async def work(given: NodeInput) -> str:
    done.append(current_step().step)
    return current_step().step


async def blame(given: NodeInput) -> str:
    assert given.error is not None
    done.append(f"{given.error.kind}")
    return given.error.reason


async def undo(given: Compensation) -> None:
    done.append(f"undo {given.step}")


def in_python(edges: list[Edge], **options: Any) -> Graph:
    graph = Graph("gates", **options)
    graph.node("charge", work, compensate=undo)
    graph.node("gate", approval(timeout=1000))
    graph.edge("charge", "gate")
    for name in sorted({edge["to"] for edge in edges}):
        graph.node(name, blame if name == "blame" else work)
    for edge in edges:
        options = {name: value for name, value in edge.items() if name not in ("from", "to")}
        graph.edge("gate", edge["to"], **options)
    return graph


def in_yaml(edges: list[Edge], **options: Any) -> Graph:
    nodes: dict[str, Any] = {
        "charge": {"kind": "call", "function": "work", "compensate": "undo"},
        "gate": {"kind": "approval", "timeout": 1000},
        "undo": {"kind": "call", "function": "undo"},
    }
    for name in {edge["to"] for edge in edges}:
        function = "blame" if name == "blame" else "work"
        nodes[name] = {"kind": "call", "function": function}
    ways = [{"from": "charge", "to": "gate"}, *({"from": "gate", **edge} for edge in edges)]
    text = json.dumps({"name": "gates", "nodes": nodes, "edges": ways, **options})
    return parse(text, functions=[work, blame, undo])


@attrs.frozen
class Expected:
    """The steps after `charge`, by decision; None where the run has to fail."""

    approve: list[str] | None
    reject: list[str] | None
    timeout: list[str] | None


TAKEN = "output.comment == 'seen'"
SHAPES: dict[str, tuple[list[Edge], Expected]] = {
    "no edge": ([], Expected([], None, None)),
    "no port": ([{"to": "ship"}], Expected(["ship"], None, None)),
    "approved only": ([{"to": "ship", "port": "approved"}], Expected(["ship"], None, None)),
    "every port": (
        [
            {"to": "ship", "port": "approved"},
            {"to": "drop", "port": "rejected"},
            {"to": "remind", "port": "timeout"},
        ],
        Expected(["ship"], ["drop"], ["remind"]),
    ),
    "rejected only": ([{"to": "drop", "port": "rejected"}], Expected([], ["drop"], None)),
    "no port beside rejected": (
        [{"to": "ship"}, {"to": "drop", "port": "rejected"}],
        Expected(["ship"], ["drop"], None),
    ),
    "a condition without a port": ([{"to": "ship", "when": TAKEN}], Expected(["ship"], None, None)),
    "a condition that is false": (
        [{"to": "ship", "port": "approved"}, {"to": "drop", "port": "rejected", "when": "false"}],
        Expected(["ship"], None, None),
    ),
    "a condition that is true": (
        [{"to": "ship", "port": "approved"}, {"to": "drop", "port": "rejected", "when": TAKEN}],
        Expected(["ship"], ["drop"], None),
    ),
    "on fail": (
        [{"to": "ship"}, {"to": "blame", "on": "fail"}],
        Expected(["ship"], ["permanent_error"], ["step_timeout"]),
    ),
    "on fail and a condition": (
        [{"to": "ship"}, {"to": "blame", "on": "fail", "when": "error.kind == 'step_timeout'"}],
        Expected(["ship"], None, ["step_timeout"]),
    ),
    "on all": ([{"to": "next", "on": "all"}], Expected(["next"], ["next"], ["next"])),
    "on all by a port": (
        [{"to": "next", "on": "all", "port": "rejected"}],
        Expected([], ["next"], None),
    ),
    "a port before on fail": (
        [{"to": "drop", "port": "rejected"}, {"to": "blame", "on": "fail"}],
        Expected([], ["drop"], ["step_timeout"]),
    ),
    "a port and no condition that is true before on fail": (
        [{"to": "drop", "port": "rejected", "when": "false"}, {"to": "blame", "on": "fail"}],
        Expected([], ["permanent_error"], ["step_timeout"]),
    ),
}
DECISIONS = ("approve", "reject", "timeout")
FAILURES = {
    "reject": (
        FailureKind.PERMANENT_ERROR,
        "ApprovalRejected",
        "Ann rejected at the gate 'gate': seen",
    ),
    "timeout": (
        FailureKind.STEP_TIMEOUT,
        "SignalTimeout",
        "no decision at the gate 'gate' within 1000 s",
    ),
}


async def decide(runtime: Runtime, decision: str, gate: str = "gate", run_id: str = "r") -> None:
    """Decide as soon as the run waits at the gate."""
    if decision == "timeout":
        return
    choose = runtime.approve if decision == "approve" else runtime.reject
    while True:
        try:
            await choose(run_id, gate, by="Ann", comment="seen")
        except GateNotWaiting:
            await trio.sleep(1)
        except RunEnded:
            return
        else:
            return


async def outcome_of(graph: Graph, decision: str) -> Failure | None:
    """Run it to its end with this decision: how it fails, if it does."""
    failure = None
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decide(runtime, decision)
        try:
            await run.result()
        except RunFailed as error:
            failure = error.failure
        letters = [each.run_id for each in await runtime.dead_letters()]
        assert letters == ([] if failure is None else ["r"])
    return failure


def check_failure(failure: Failure, decision: str, gate: str = "gate") -> None:
    kind, error_type, reason = FAILURES[decision]
    assert failure.kind is kind
    assert failure.error_type is not None
    assert failure.error_type.endswith(f".{error_type}")
    assert failure.reason == reason.replace("'gate'", repr(gate))
    assert (failure.step, failure.attempt) == (gate, 1)


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("made", [in_python, in_yaml])
async def test_a_decision_takes_the_edges_that_name_it_and_else_fails_the_run(
    autojump_clock: MockClock, made: Callable[[list[Edge]], Graph], shape: str, decision: str
) -> None:
    edges, expected = SHAPES[shape]
    failure = await outcome_of(made(edges), decision)
    steps = getattr(expected, decision)
    if steps is None:
        assert failure is not None
        check_failure(failure, decision)
        assert done == ["charge", "undo charge"]
    else:
        assert failure is None
        assert done == ["charge", *steps]


@pytest.mark.parametrize("decision", ["reject", "timeout"])
async def test_a_failed_gate_reaches_nothing_that_joins_behind_it(
    autojump_clock: MockClock, decision: str
) -> None:
    graph = Graph("joined")
    graph.node("gate", approval(timeout=10))
    graph.node("beside", work)
    graph.node("both", work)
    graph.node("either", work, join="any")
    for source in ("gate", "beside"):
        graph.edge(source, "both")
        graph.edge(source, "either")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decide(runtime, decision)
        with pytest.raises(RunFailed):
            await run.result()
        drawn = await runtime.execution_graph("r")
    assert drawn is not None
    states = {node.id: node.state for node in drawn.nodes}
    assert states == {
        "gate": NodeState.FAILED,
        "beside": NodeState.DONE,
        "both": NodeState.SKIPPED,
        "either": NodeState.DONE,
    }
    (failed,) = (node.failure for node in drawn.nodes if node.id == "gate")
    assert failed is not None
    assert failed.kind is FAILURES[decision][0]


@pytest.mark.parametrize("decision", ["reject", "timeout"])
async def test_with_fail_fast_a_failed_gate_cancels_what_runs_beside_it(
    autojump_clock: MockClock, decision: str
) -> None:
    async def slow(given: NodeInput) -> None:
        await trio.sleep(5000)

    graph = in_python([], fail_fast=True)
    graph.node("slow", slow, timeout=None)
    failure = await outcome_of(graph, decision)
    assert failure is not None
    check_failure(failure, decision)
    assert trio.current_time() < 1100
    assert done == ["charge", "undo charge"]


@pytest.mark.parametrize("decision", ["reject", "timeout"])
async def test_a_redrive_asks_the_gate_again(autojump_clock: MockClock, decision: str) -> None:
    graph = Graph("asked-again")
    graph.node("charge", work)
    graph.node("gate", approval(timeout=1000))
    graph.node("ship", work)
    graph.edge("charge", "gate")
    graph.edge("gate", "ship")
    async with open_test_runtime(workflows=[graph]) as runtime:
        for generation in (1, 2):
            if generation > 1:
                await runtime.redrive("r")
                await trio.sleep(500)
                drawn = await runtime.execution_graph("r")
                assert drawn is not None
                states = [(node.id, node.state) for node in drawn.nodes]
                assert states[1:] == [("gate", NodeState.WAITING), ("ship", NodeState.PENDING)]
            run = await runtime.submit(graph, key="k", run_id="r")
            await decide(runtime, decision)
            with pytest.raises(RunFailed) as caught:
                await run.result()
            check_failure(caught.value.failure, decision)
        await runtime.redrive("r")
        await decide(runtime, "approve")
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == "ship"
    assert done == ["charge", "ship"]


async def test_a_redrive_asks_only_the_gate_that_failed(autojump_clock: MockClock) -> None:
    graph = Graph("two-gates")
    graph.node("first", approval())
    graph.node("second", approval())
    graph.edge("first", "second")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decide(runtime, "approve", "first")
        await decide(runtime, "reject", "second")
        with pytest.raises(RunFailed):
            await run.result()
        await runtime.redrive("r")
        await trio.sleep(10)
        with pytest.raises(GateNotWaiting):
            await runtime.approve("r", "first", by="Ann")
        await runtime.approve("r", "second", by="Ann")
        run = await runtime.submit(graph, key="k", run_id="r")
        assert (await run.result())["by"] == "Ann"


LOOP = """
name: turns
nodes:
  turns:
    kind: loop
    start: 0
    while: output < 3
    body:
      nodes:
        ask: {kind: approval, timeout: 1000}
        count: {kind: call, function: count}
      edges: [{from: ask, to: count}]
  blame: {kind: call, function: blame}
  after: {kind: call, function: work}
edges:
  - {from: turns, to: after}
  - {from: turns, to: blame, on: fail}
"""


async def count(given: NodeInput) -> int:
    done.append(current_step().step)
    return given.iteration


@pytest.mark.parametrize("decision", ["reject", "timeout"])
async def test_a_gate_that_fails_in_a_later_turn_fails_the_loop(
    autojump_clock: MockClock, decision: str
) -> None:
    graph = parse(LOOP, functions=[work, blame, count])
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decide(runtime, "approve", "ask")
        await decide(runtime, decision, "ask#2")
        await run.result()
    kind = FAILURES[decision][0]
    assert done == ["count", str(kind)]


@pytest.mark.parametrize("decision", ["reject", "timeout"])
async def test_a_redrive_asks_the_gate_of_the_turn_that_failed(
    autojump_clock: MockClock, decision: str
) -> None:
    text = LOOP.replace("  - {from: turns, to: blame, on: fail}\n", "").replace(
        "  blame: {kind: call, function: blame}\n", ""
    )
    graph = parse(text, functions=[work, count])
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decide(runtime, "approve", "ask")
        await decide(runtime, decision, "ask#2")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        check_failure(caught.value.failure, decision, "ask#2")
        await runtime.redrive("r")
        for gate in ("ask#2", "ask#3"):
            await decide(runtime, "approve", gate)
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == "after"
    assert done == ["count", "count#2", "count#3", "after"]


async def test_a_failed_gate_is_in_the_events_the_history_and_the_status(
    autojump_clock: MockClock,
) -> None:
    graph = in_yaml([])
    async with open_test_runtime(workflows=[graph]) as runtime:
        async with runtime.events(kinds=[EventKind.STEP_FAILED]) as events:
            run = await runtime.submit(graph, key="k", run_id="r")
            await decide(runtime, "reject")
            with pytest.raises(RunFailed):
                await run.result()
            event = await anext(aiter(events))
        (ended,) = [each for each in await runtime.history("r") if each.event == "node_failed"]
        status = await runtime.status("r")
    assert getattr(event, "step", None) == "gate"
    assert ended.failure is not None
    assert ended.failure.reason == FAILURES["reject"][2]
    assert status is not None
    assert (status.state, status.step) == (State.FAILED, "gate")
    assert status.reason == FAILURES["reject"][2]


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("shape", ["no port", "on fail", "every port"])
async def test_a_crash_at_any_commit_changes_nothing(
    autojump_clock: MockClock, shape: str, decision: str
) -> None:
    edges, expected = SHAPES[shape]
    graph = in_yaml(edges)

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, key="k", run_id="r")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(decide, runtime, decision)
            try:
                result = await run.result()
            except RunFailed as error:
                result = error.failure
            nursery.cancel_scope.cancel()
        return result

    steps = getattr(expected, decision)
    once = ["charge", "undo charge"] if steps is None else ["charge", *steps]
    points = 0
    for point in crash_points():
        points += 1
        done.clear()
        result = await point.run(scenario, workflows=[graph])
        if steps is None:
            check_failure(result, decision)
        else:
            assert not isinstance(result, Failure), point
        assert set(done) == set(once), point
        assert sum(Counter(done).values()) <= len(once) + point.crashes, point
    assert points > 8


@pytest.mark.parametrize("decision", ["reject", "timeout"])
async def test_a_crash_at_any_commit_of_a_redrive_asks_the_gate_again(
    autojump_clock: MockClock, decision: str
) -> None:
    graph = Graph("asked-again")
    graph.node("charge", work)
    graph.node("gate", approval(timeout=1000))
    graph.node("ship", work)
    graph.edge("charge", "gate")
    graph.edge("gate", "ship")

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, key="k", run_id="r")
        while True:
            status = await run.status()
            assert status is not None
            if status.state is State.FAILED and status.generation == 1:
                await runtime.redrive("r")
            elif status.state is State.SUCCEEDED:
                return status.result
            elif status.state is State.WAITING:
                await decide(runtime, decision if status.generation == 1 else "approve")
            await trio.sleep(100)

    for point in crash_points():
        done.clear()
        assert await point.run(scenario, workflows=[graph]) == "ship", point
        assert set(done) == {"charge", "ship"}
        assert len(done) <= 2 + point.crashes


async def restored() -> MemoryStore:
    return await stores.load(Path(golden.__file__).parent / "gates.json")


EARLIER: dict[str, tuple[State, set[str]]] = {
    # The run followed an edge without a port before the rule was changed: it stays on that way.
    "portless-rejected": (State.SUCCEEDED, {"ship", "beside", "after"}),
    "approved-rejected": (State.SUCCEEDED, {"beside", "after"}),
    "every-approved": (State.SUCCEEDED, {"ship"}),
    "every-rejected": (State.SUCCEEDED, {"beside"}),
}


async def test_runs_of_an_earlier_keyrun_that_left_their_gate_stay_on_their_way(
    autojump_clock: MockClock,
) -> None:
    graphs = golden.flows()
    async with open_test_runtime(await restored(), workflows=list(graphs.values())) as runtime:
        for run_id, (state, steps) in EARLIER.items():
            golden.done.clear()
            await settled(runtime, run_id)
            status = await runtime.status(run_id)
            assert status is not None
            assert status.state is state, (run_id, status.reason)
            events = await runtime.history(run_id)
            completed = {each.step for each in events if each.event == "step_completed"}
            assert completed - {"start"} == steps, run_id


@pytest.mark.parametrize(
    ("decision", "ends"),
    [
        ("approve", {"portless": "succeeded", "approved": "succeeded", "every": "succeeded"}),
        ("reject", {"portless": "failed", "approved": "failed", "every": "succeeded"}),
        ("timeout", {"portless": "failed", "approved": "failed", "every": "succeeded"}),
    ],
)
async def test_runs_of_an_earlier_keyrun_that_wait_at_a_gate_finish_by_the_rule_of_today(
    autojump_clock: MockClock, decision: str, ends: dict[str, str]
) -> None:
    graphs = golden.flows()
    async with open_test_runtime(await restored(), workflows=list(graphs.values())) as runtime:
        for flow, state in ends.items():
            run_id = f"{flow}-waits"
            await decide(runtime, decision, run_id=run_id)
            await settled(runtime, run_id)
            status = await runtime.status(run_id)
            assert status is not None
            assert str(status.state) == state, (run_id, status.reason)
            if status.failure is not None:
                assert status.failure.kind is FAILURES[decision][0]


async def settled(runtime: Runtime, run_id: str) -> None:
    while True:
        status = await runtime.status(run_id)
        assert status is not None
        if status.state.terminal or status.state is State.QUARANTINED:
            return
        await trio.sleep(10)
