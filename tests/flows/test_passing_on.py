"""Outputs that nodes pass on: they are stored once, and count once against the size of a run."""

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Compensation, Graph, NodeInput, PermanentError, RunFailed, State
from keyrun.flows import branch, parse, switch
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime, replay
from tests.flows import golden
from tests.flows.golden import loops
from tests.flows.test_files import run_flow
from tests.runtime import golden as stores
from tests.runtime.graphs.test_view import states, stranger, taken

TURNS = 20
LOOP = """
name: grow
max_run_output: {most}
nodes:
  turns:
    kind: loop
    start: {{at: 0, text: "{{{{ input.text }}}}"}}
    while: output.at < {turns}
    body:
      nodes:
        more: {{kind: call, function: more}}
        size:
          kind: switch
          cases: [{{port: odd, when: output.at % 2 == 1}}]
        again: {{kind: branch, when: output.at > 0}}
      edges:
        - {{from: more, to: size}}
        - {{from: size, to: again, port: odd}}
        - {{from: size, to: again, port: default}}
  after: {{kind: branch, when: output.at > 0}}
edges: [{{from: turns, to: after}}]
"""


async def more(given: NodeInput) -> Any:
    return {**given.output, "at": given.output["at"] + 1}


async def test_the_state_of_a_loop_counts_once_per_turn_against_the_size_of_a_run() -> None:
    # The first state, one for each turn, and less than one for ports and names.
    graph = parse(LOOP.format(turns=TURNS, most=(TURNS + 2) * 1000), functions=[more])
    assert await run_flow(graph, {"text": "x" * 960}) == {"at": TURNS, "text": "x" * 960}
    graph = parse(LOOP.format(turns=TURNS, most=TURNS * 960), functions=[more])
    with pytest.raises(RunFailed, match="the outputs of this run have"):
        await run_flow(graph, {"text": "x" * 960})


async def test_a_chain_of_branches_and_switches_counts_its_output_once() -> None:
    graph = Graph("g", max_run_output=1300)
    graph.node("first", large)
    graph.node("b0", branch("true"))
    graph.edge("first", "b0")
    for at in range(10):
        graph.node(f"s{at}", switch({"a": "false"}))
        graph.node(f"b{at + 1}", branch("size(output) == 1000"))
        graph.edge(f"b{at}", f"s{at}", port="then")
        graph.edge(f"s{at}", f"b{at + 1}", port="default")
    assert await run_flow(graph) == "x" * 1000


async def large(given: NodeInput) -> str:
    return "x" * 1000


WAITING = """
name: waiting
nodes:
  turns:
    kind: loop
    start: {at: 0}
    while: output.at < 3
    body:
      nodes:
        more: {kind: call, function: more}
        last: PAUSE
      edges: [{from: more, to: last}]
  each: {kind: map, items: [1, 2], body: {nodes: {one: PAUSE}}}
  after: {kind: branch, when: size(output.results) == 2}
  end: {kind: call, function: slow}
edges:
  - {from: turns, to: each}
  - {from: each, to: after}
  - {from: after, to: end, port: then, when: "output.results[1] == 2"}
"""


@pytest.mark.parametrize("pause", ["{kind: wait, seconds: 50}", "{kind: call, function: slow}"])
async def test_a_process_without_the_code_knows_what_was_passed_on(
    autojump_clock: MockClock, pause: str
) -> None:
    """The journal has no output of a wait and of a map, so the next node stores it."""
    graph, store = parse(WAITING.replace("PAUSE", pause), functions=[more, slow]), MemoryStore()
    async with open_test_runtime(store, workflows=[graph], evict_after=1) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        for at in range(20, 400, 50):
            await trio.sleep_until(at)
            live = await runtime.execution_graph("r")
            seen = await stranger(store).execution_graph("r")
            assert live is not None
            assert seen is not None
            assert states(live) == states(seen), at
            assert taken(live) == taken(seen), at
            assert [node.turns for node in live.nodes] == [node.turns for node in seen.nodes], at
        await run.result()
        assert set(states(await stranger(store).execution_graph("r")).values()) == {"done"}
        assert (await replay(await runtime.history("r"), graph)).state is State.SUCCEEDED


async def slow(given: NodeInput) -> Any:
    await trio.sleep(50)
    return given.output


async def test_the_compensation_of_a_node_that_passes_on_gets_the_output() -> None:
    undone: list[Any] = []

    async def undo(given: Compensation) -> None:
        undone.append(given.output)

    async def refuse(given: NodeInput) -> None:
        raise PermanentError("no")

    graph = Graph("g")
    graph.node("first", large)
    graph.node("check", branch("true"), compensate=undo)
    graph.node("refuse", refuse)
    graph.edge("first", "check")
    graph.edge("check", "refuse", port="then")
    with pytest.raises(RunFailed):
        await run_flow(graph)
    assert undone == ["x" * 1000]


async def test_runs_of_an_earlier_keyrun_that_stored_each_output_again_finish(
    autojump_clock: MockClock,
) -> None:
    store = await stores.load(Path(golden.__file__).parent / "loops.json")
    graph = loops.flow()
    loops.done.clear()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        for run_id in loops.LEFT_AT:
            assert await runtime.run(run_id).result() == loops.RESULT, run_id
            drawn = await runtime.execution_graph(run_id)
            assert states(drawn) == states(await stranger(store).execution_graph(run_id))
            assert set(states(drawn).values()) == {"done"}, run_id
            replayed = await replay(await runtime.history(run_id), graph)
            assert replayed.state is State.SUCCEEDED
    # `add` and `more` had completed 2, 4, 6 and 6 of 6 times.
    assert sorted(loops.done) == [2, 3, 4, 4, 5, 5]
