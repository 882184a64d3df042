"""Loops: back edges, their turns, and their limits."""

import trio
from trio.testing import MockClock

from keyrun import Graph, Limits, NodeInput, PermanentError, Port, Retry
from keyrun.graphs import NodeState
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.graphs.nodes import Log, ended, failure_of, result_of


def counting(log: Log, until: int, **edge: int) -> Graph:
    """`work` and `check` take turns until `check` has counted so far; then comes `end`."""

    async def check(given: NodeInput) -> int:
        log.lines.append(f"+check {given.iteration}")
        await trio.sleep(1)
        return given.iteration

    graph = Graph("loop")
    graph.node("start", log.node())
    graph.node("work", log.node())
    graph.node("check", check)
    graph.node("end", log.node())
    graph.edge("start", "work")
    graph.edge("work", "check")
    graph.edge("check", "work", back=True, when=f"output < {until}", **edge)  # type: ignore[arg-type]
    graph.edge("check", "end", when=f"output >= {until}")
    return graph


async def test_a_back_edge_begins_the_next_turn(autojump_clock: MockClock) -> None:
    log = Log()
    assert await result_of(counting(log, 3)) == "end"
    assert log.begun == [
        *("start", "work", "check 1", "work#2", "check 2", "work#3", "check 3", "end"),
    ]
    assert log.given["work#2"].output == 1
    assert log.given["work#2"].iteration == 2


async def test_the_cap_of_a_back_edge_is_exact(autojump_clock: MockClock) -> None:
    log = Log()
    assert await result_of(counting(log, 3, max_iterations=3)) == "end"
    failure = await failure_of(counting(log, 4, max_iterations=3))
    assert failure.kind == "iteration_limit"
    assert "exceeded its max_iterations of 3" in failure.reason
    assert log.begun.count("check 3") == 2
    assert log.begun.count("check 4") == 0


async def test_turns_count_against_max_iterations_of_the_run(autojump_clock: MockClock) -> None:
    log = Log()
    async with open_test_runtime(workflows=[graph := counting(log, 100)]) as runtime:
        run = await runtime.submit(graph, key="k", limits=Limits(max_iterations=6))
        failure = (await ended(run)).failure
    assert failure is not None
    assert failure.kind == "iteration_limit"
    assert log.begun == ["start", "work", "check 1", "work#2", "check 2", "work#3"]


async def test_a_join_behind_a_loop_waits_until_the_loop_is_over(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    graph = counting(log, 3)
    graph.node("outside", log.node())
    graph.edge("start", "outside")
    graph.edge("outside", "end")
    assert await result_of(graph) == "end"
    assert log.begun.count("end") == 1
    assert log.begun[-1] == "end"


async def test_what_every_turn_starts_ends_before_the_next(autojump_clock: MockClock) -> None:
    log = Log()
    graph = counting(log, 3)
    graph.node("note", log.node(5))
    graph.edge("check", "note")
    await result_of(graph)
    order = [name for name in log.begun if name.startswith(("note", "work"))]
    assert order == ["work", "note", "work#2", "note#2", "work#3", "note#3"]


async def test_a_loop_may_contain_a_loop(autojump_clock: MockClock) -> None:
    log = Log()

    async def inner(given: NodeInput) -> int:
        log.lines.append(f"+inner {given.iteration}")
        return given.iteration

    async def outer(given: NodeInput) -> int:
        log.lines.append(f"+outer {given.iteration}")
        return given.iteration

    graph = Graph("g")
    graph.node("head", log.node())
    graph.node("inner", inner)
    graph.node("outer", outer)
    graph.edge("head", "inner")
    graph.edge("inner", "inner", back=True, when="output % 2 != 0", max_iterations=2)
    graph.edge("inner", "outer", when="output % 2 == 0")
    graph.edge("outer", "head", back=True, when="output < 3")
    await result_of(graph)
    assert log.begun == [
        *("head", "inner 1", "inner 2", "outer 1"),
        *("head#2", "inner 3", "inner 4", "outer 2"),
        *("head#3", "inner 5", "inner 6", "outer 3"),
    ]


async def test_a_loop_goes_on_in_the_middle_after_a_crash(autojump_clock: MockClock) -> None:
    log = Log()
    store = MemoryStore()
    graph = counting(log, 4)
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(2.5)
        store.crash()
        await trio.sleep_forever()
    assert log.begun[-1] == "check 3"
    log.lines.clear()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        assert await (await runtime.submit(graph, key="k", run_id="r")).result() == "end"
    assert log.begun == ["check 3", "work#4", "check 4", "end"]


async def test_a_fail_edge_may_lead_back(autojump_clock: MockClock) -> None:
    log = Log()

    async def fragile(given: NodeInput) -> str:
        log.lines.append(f"+fragile {given.iteration}")
        if given.iteration < 3:
            raise ValueError("once more")
        return "done"

    graph = Graph("g")
    graph.node("prepare", log.node())
    graph.node("fragile", fragile, retry=Retry.none())
    graph.edge("prepare", "fragile")
    graph.edge("fragile", "prepare", on="fail", back=True)
    assert await result_of(graph) == "done"
    assert log.begun[-2:] == ["prepare#3", "fragile 3"]


async def test_each_turn_may_go_another_way(autojump_clock: MockClock) -> None:
    """What was taken in an earlier turn and is not taken in this one is no reason to wait."""
    log = Log()

    async def split(given: NodeInput) -> Port:
        return Port("odd" if given.iteration % 2 else "even")

    async def count(given: NodeInput) -> int:
        return given.iteration

    graph = Graph("g")
    graph.node("split", split, ports=("odd", "even"))
    graph.node("left", log.node())
    graph.node("right", log.node())
    graph.node("join", count)
    graph.node("end", log.node())
    graph.edge("split", "left", port="odd")
    graph.edge("split", "right", port="even")
    graph.edge("left", "join")
    graph.edge("right", "join")
    graph.edge("join", "split", back=True, when="output < 4")
    graph.edge("join", "end", when="output >= 4")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == "end"
        view = await runtime.execution_graph("r")
    assert log.begun == ["left", "right", "left#2", "right#2", "end"]
    assert view is not None
    assert {node.state for node in view.nodes} == {NodeState.DONE}


async def test_two_ways_back_do_not_let_each_other_begin_anew(autojump_clock: MockClock) -> None:
    log = Log()

    async def work(given: NodeInput) -> Port:
        log.lines.append(f"+work {given.iteration}")
        return Port("redo" if given.iteration % 2 else "mend")

    graph = Graph("g")
    graph.node("work", work, ports=("redo", "mend"))
    graph.edge("work", "work", port="redo", back=True, max_iterations=3)
    graph.edge("work", "work", port="mend", back=True, max_iterations=3)
    failure = await failure_of(graph)
    assert failure.kind == "iteration_limit"
    assert len(log.begun) == 5


async def test_an_edge_too_late_for_an_any_join_means_nothing_to_the_next_turn(
    autojump_clock: MockClock,
) -> None:
    log = Log()

    async def turn(given: NodeInput) -> int:
        await trio.sleep(5)
        return given.iteration

    graph = Graph("g")
    graph.node("fast", log.node(1))
    graph.node("slow", log.node(2))
    graph.node("turn", turn)
    graph.node("pick", log.node(), join="any")
    graph.edge("fast", "pick")
    graph.edge("slow", "pick")
    graph.edge("turn", "pick", on="fail")
    graph.edge("turn", "turn", back=True, when="output < 2")
    await result_of(graph)
    assert log.begun == ["fast", "slow", "pick"]


async def test_a_loop_in_which_something_failed_begins_no_other_turn(
    autojump_clock: MockClock,
) -> None:
    """Nobody took care of it, so the run fails; redriven, it goes on with the turn it was in."""
    log = Log()
    broken = True

    async def head(given: NodeInput) -> int:
        log.lines.append(f"+head {given.iteration}")
        return given.iteration

    async def fragile(given: NodeInput) -> None:
        if broken:
            raise PermanentError("not yet")

    graph = Graph("g")
    graph.node("head", head)
    graph.node("fragile", fragile)
    graph.edge("head", "fragile")
    graph.edge("head", "head", back=True, when="output < 3")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        failure = (await ended(run)).failure
        assert failure is not None
        assert failure.step == "fragile"
        assert log.begun == ["head 1"]
        broken = False
        await runtime.redrive("r")
        await run.result()
    assert log.begun == ["head 1", "head 2", "head 3"]
