"""Nodes that are workflows: children of the run, of whatever kind."""

from typing import Any

from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, PermanentError, Runtime, step, workflow
from keyrun.testing import crash_points, open_test_runtime
from tests.runtime.graphs.nodes import Log, ended


@step
async def double(number: int) -> int:
    if number < 0:
        raise PermanentError("too small")
    return 2 * number


@workflow
async def doubling(ctx: Context, number: int) -> int:
    return await ctx.step(double, number)


@workflow
async def naming(ctx: Context, given: dict[str, Any]) -> str:
    return f"{given['name']}!"


async def test_a_function_is_a_part_of_the_run(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("first", doubling)
    graph.node("second", doubling)
    graph.node("named", naming, args={"name": "ada"})
    graph.node("end", log.node())
    graph.edge("first", "second")
    graph.edge("second", "end")
    graph.edge("named", "end")

    async def scenario(runtime: Runtime) -> Any:
        return await (await runtime.submit(graph, 5, key="k", run_id="r")).result()

    for point in crash_points():
        assert await point.run(scenario, workflows=[graph, doubling, naming]) == "end"
        assert log.given["end"].outputs == {"first": 10, "second": 20, "named": "ada!"}


async def test_a_failure_of_a_child_takes_the_fail_edge(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("child", doubling)
    graph.node("mend", log.node())
    graph.edge("child", "mend", on="fail")
    async with open_test_runtime(workflows=[graph, doubling]) as runtime:
        assert await (await runtime.submit(graph, -1, key="k")).result() == {"mend": "mend"}
    error = log.given["mend"].error
    assert error is not None
    assert "too small" in error.reason


async def test_a_graph_in_a_graph_is_a_run_of_its_own(autojump_clock: MockClock) -> None:
    async def add(given: NodeInput) -> int:
        return int(given.run_input) + 1

    inner = Graph("inner")
    inner.node("add", add)
    outer = Graph("outer")
    outer.node("inner", inner)
    outer.node("again", inner)
    outer.edge("inner", "again")
    async with open_test_runtime(workflows=[outer, inner]) as runtime:
        run = await runtime.submit(outer, 1, key="k", run_id="r")
        assert await run.result() == 3
        assert (await ended(run)).state == "succeeded"
        children = await runtime.runs(workflow="inner")
        assert [each.key for each in children] == ["k/inner", "k/again"]
