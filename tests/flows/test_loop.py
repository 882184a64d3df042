"""Loops in files: turns, their cap, and what a crash in the middle costs."""

from collections import Counter
from typing import Any

import pytest
from trio.testing import MockClock

from keyrun import FailureKind, Graph, NodeInput, RunFailed, Runtime
from keyrun.flows import parse
from keyrun.testing import crash_points, open_test_runtime
from tests.flows.test_files import run_flow, told

COUNT = """
name: count
nodes:
  first: {kind: call, function: give, args: {value: "{{ input }}"}}
  count:
    kind: loop
    start: "{{ output.n }}"
    while: output < input.most
    max_iterations: 4
    body:
      nodes:
        add: {kind: call, function: add}
        look: {kind: call, function: same}
      edges: [{from: add, to: look}]
  after: {kind: call, function: give, args: {value: "{{ output }} of {{ input.most }}"}}
edges:
  - {from: first, to: count}
  - {from: count, to: after}
"""

done: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


async def give(value: Any) -> Any:
    return value


async def add(given: NodeInput) -> int:
    done["add"] += 1
    return int(given.output) + 1


async def same(given: NodeInput) -> Any:
    return given.output


def loop(text: str = COUNT) -> Graph:
    return parse(text, functions=[give, add, same])


@pytest.mark.parametrize(
    ("most", "turns", "result"), [(3, 3, "3 of 3"), (0, 0, "0 of 0"), (4, 4, "4 of 4")]
)
async def test_a_loop_goes_on_while_its_condition_holds(most: int, turns: int, result: str) -> None:
    assert await run_flow(loop(), {"n": 0, "most": most}) == result
    assert done["add"] == turns


async def test_one_turn_more_than_the_most_fails_the_run_and_is_not_begun() -> None:
    with pytest.raises(RunFailed, match="max_iterations of 4") as caught:
        await run_flow(loop(), {"n": 0, "most": 5})
    assert caught.value.failure.kind is FailureKind.ITERATION_LIMIT
    assert done["add"] == 4


async def test_the_most_is_a_hundred_where_nothing_is_said() -> None:
    text = COUNT.replace("    max_iterations: 4\n", "")
    assert await run_flow(loop(text), {"n": 0, "most": 100}) == "100 of 100"
    with pytest.raises(RunFailed, match="max_iterations of 100"):
        await run_flow(loop(text), {"n": 0, "most": 101})


async def test_each_turn_is_journaled_and_a_crash_at_any_commit_costs_no_finished_node(
    autojump_clock: MockClock,
) -> None:
    graph = loop()

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, {"n": 0, "most": 3}, key="k", run_id="r")
        return await run.result()

    points = 0
    for point in crash_points():
        points += 1
        done.clear()
        assert await point.run(scenario, workflows=[graph]) == "3 of 3"
        assert done["add"] <= 3 + point.crashes
    assert points > 10


async def test_a_loop_may_be_in_a_loop() -> None:
    text = """
    name: nested
    nodes:
      outer:
        kind: loop
        start: 0
        while: output < 6
        max_iterations: 3
        body:
          nodes:
            inner:
              kind: loop
              while: output % 3 != 0 || outputs["outer.begin"] == output
              max_iterations: 3
              body: {nodes: {add: {kind: call, function: add}}}
    """
    assert await run_flow(loop(text)) == 6
    assert done["add"] == 6


async def test_a_failure_inside_is_a_failure_of_the_loop() -> None:
    text = """
    name: risky
    nodes:
      turns:
        kind: loop
        start: 0
        while: output < 3
        body: {nodes: {fail: {kind: call, function: fail, retry: none}}}
      repair: {kind: call, function: give, args: {value: "{{ error.step }} failed"}}
      after: {kind: call, function: give, args: {value: after}}
    edges:
      - {from: turns, to: repair, on: fail}
      - {from: turns, to: after}
    """

    async def fail(given: NodeInput) -> None:
        raise ValueError("no")

    graph = parse(text, functions=[give, fail])
    assert await run_flow(graph) == {"repair": "fail failed"}


async def test_the_history_tells_the_turns(autojump_clock: MockClock) -> None:
    graph = loop()
    async with open_test_runtime(workflows=[graph]) as runtime:
        await (await runtime.submit(graph, {"n": 0, "most": 2}, key="k", run_id="r")).result()
        history = await runtime.history("r")
    steps = [each.step for each in history if each.event == "step_completed"]
    assert [name for name in steps if name and name.startswith("add")] == ["add", "add#2"]


def test_what_is_wrong_inside_of_a_loop_is_told_with_its_line() -> None:
    found = told(
        "name: a\n"
        "nodes:\n"
        "  x:\n"
        "    kind: loop\n"
        "    while: 'output <'\n"
        "    body:\n"
        "      nodes:\n"
        "        y: {kind: nothing}\n"
        "        x: {kind: branch, when: 'true'}\n"
        "      edges:\n"
        "        - {from: y, to: z}\n"
    )
    for line, message in [
        (5, "nodes.x.while"),
        (8, "nodes.x.body.nodes.y.kind: must be one of"),
        (11, "there is no node 'z'"),
        (3, "2 nodes have this name"),
    ]:
        assert any(at == line and message in said for at, said in found), found


def test_an_edge_leads_to_a_loop_as_a_whole_and_not_into_it() -> None:
    text = COUNT.replace(
        "edges:\n  - {from: first, to: count}", "edges:\n  - {from: first, to: look}"
    ).replace("edges: [{from: add, to: look}]", "edges: [{from: add, to: after}]")
    found = told(text, functions=[give, add, same])
    assert any(at == 17 and "the node 'look' is in another body" in said for at, said in found), (
        found
    )
    assert any(at == 14 and "the node 'after' is in another body" in said for at, said in found), (
        found
    )


@pytest.mark.parametrize("works", [True, False])
async def test_a_loop_can_be_a_fallback(autojump_clock: MockClock, works: bool) -> None:
    text = """
    name: fallback
    nodes:
      ask:
        kind: call
        function: answer
        retry: {max_attempts: 3, delay: 1}
        breaker: {minimum_calls: 1, failure_rate: 0.5}
        fallback: turns
      turns:
        kind: loop
        start: 0
        while: output < 3
        body: {nodes: {more: {kind: call, function: add}}}
    """

    async def answer(given: NodeInput) -> str:
        if not given.run_input:
            raise ConnectionError("no")
        return "answer"

    graph = parse(text, functions=[answer, add])
    assert await run_flow(graph, works) == ({"ask": "answer"} if works else {"turns": 3})
    assert done["add"] == (0 if works else 3)
