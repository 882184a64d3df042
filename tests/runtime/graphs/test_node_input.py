"""What a node is told is its own: what it changes of that is seen by nobody else, then or later."""

from typing import Any

import attrs
import trio
from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, PermanentError, Retry, TransientError
from keyrun.graphs import durable
from keyrun.runtime.graphs.node_input import copied
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.graphs.nodes import result_of

AGAIN = Retry.fixed(max_attempts=3, delay=1, jitter=0)


async def _result(graph: Graph, given: Any) -> Any:
    """What a run gives; the same if it is driven again from its journal in between."""
    results = []
    for crash in (False, True):
        store = MemoryStore()
        async with open_test_runtime(store, workflows=[graph]) as runtime:
            run = await runtime.submit(graph, given, key="k", run_id="r")
            if crash:
                await trio.sleep(50)
                store.crash()
            else:
                results.append(await run.result())
        if crash:
            async with open_test_runtime(store, workflows=[graph]) as runtime:
                run = await runtime.submit(graph, given, key="k", run_id="r")
                results.append(await run.result())
    assert results[0] == results[1]
    return results[0]


async def test_nodes_beside_each_other_do_not_see_what_the_other_changes(
    autojump_clock: MockClock,
) -> None:
    async def first(given: NodeInput) -> dict[str, Any]:
        return {"items": [1]}

    async def left(given: NodeInput) -> Any:
        given.output["items"].append("left")
        given.run_input["seen"] = "left"
        return given.output

    async def right(given: NodeInput) -> Any:
        given.outputs["first"]["items"].append("right")
        return given.outputs["first"]

    async def last(given: NodeInput) -> Any:
        await trio.sleep(100)
        return [given.run_input, dict(given.outputs)]

    graph = Graph("g")
    for name, function in {"first": first, "left": left, "right": right, "last": last}.items():
        graph.node(name, function)
    for name in ("left", "right"):
        graph.edge("first", name)
        graph.edge(name, "last")
    assert await _result(graph, {"id": 7}) == [
        {"id": 7},
        {"first": {"items": [1]}, "left": {"items": [1, "left"]}, "right": {"items": [1, "right"]}},
    ]


async def test_a_change_leads_nowhere_else_after_a_restart(autojump_clock: MockClock) -> None:
    async def first(given: NodeInput) -> dict[str, int]:
        return {"x": 1}

    async def change(given: NodeInput) -> None:
        given.output["x"] = 2

    async def last(given: NodeInput) -> str:
        await trio.sleep(100)
        return "last"

    graph = Graph("g")
    graph.node("first", first)
    graph.node("change", change)
    graph.node("last", last)
    graph.edge("first", "change")
    graph.edge("change", "last", when="outputs.first.x == 1")
    assert await _result(graph, None) == "last"


async def test_every_attempt_is_told_the_same(autojump_clock: MockClock) -> None:
    async def work(given: NodeInput) -> Any:
        given.run_input.append("tried")
        seen.append(list(given.run_input))
        if len(seen) < 3:
            raise TransientError("again")
        return given.run_input

    seen: list[Any] = []
    graph = Graph("g")
    graph.node("work", work, retry=AGAIN)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [1], key="k")
        assert await run.result() == [1, "tried"]
    assert seen == [[1, "tried"]] * 3


async def test_arguments_are_not_shared_by_runs(autojump_clock: MockClock) -> None:
    async def collect(into: list[int]) -> list[int]:
        into.append(1)
        return into

    graph = Graph("g")
    graph.node("collect", collect, args={"into": []})
    async with open_test_runtime(workflows=[graph]) as runtime:
        for _ in range(2):
            assert await (await runtime.submit(graph, key="k")).result() == [1]


async def test_workflow_code_in_a_node_has_its_own_too(autojump_clock: MockClock) -> None:
    @durable
    async def code(ctx: Context, given: NodeInput) -> Any:
        given.run_input["x"] = 2
        await ctx.sleep(60)
        return given.run_input

    async def last(given: NodeInput) -> Any:
        return [given.run_input, given.output]

    graph = Graph("g")
    graph.node("code", code)
    graph.node("last", last)
    graph.edge("code", "last")
    assert await _result(graph, {"x": 1}) == [{"x": 1}, {"x": 2}]


@attrs.define
class Basket:
    items: list[int]


async def test_a_join_receives_which_of_its_inputs_failed(autojump_clock: MockClock) -> None:
    async def fetch(page: int) -> int:
        await trio.sleep(60 if page == 3 else 1)
        if page % 2:
            raise PermanentError(f"page {page} is broken")
        return page

    async def total(given: NodeInput) -> Any:
        assert given.error is not None
        assert given.error.reason == given.failures["p3"].reason
        return {name: failure.error_type for name, failure in given.failures.items()}

    async def alarm(given: NodeInput) -> Any:
        return sorted(given.outputs["total"])

    graph = Graph("g")
    graph.node("total", total)
    graph.node("alarm", alarm)
    graph.node("calm", alarm)
    for page in range(4):
        graph.node(f"p{page}", fetch, args={"page": page})
        graph.edge(f"p{page}", "total", on="all")
    graph.edge(
        "total", "alarm", when='size(failures) == 2 && failures.p1.reason.contains("page 1")'
    )
    graph.edge("total", "calm", when="size(failures) < 2")
    assert await _result(graph, None) == {"alarm": ["p1", "p3"]}


async def test_a_node_none_of_whose_inputs_failed_receives_no_failures() -> None:
    async def first(given: NodeInput) -> Any:
        return dict(given.failures)

    async def second(given: NodeInput) -> Any:
        return [given.output, dict(given.failures)]

    graph = Graph("g")
    graph.node("first", first)
    graph.node("second", second)
    graph.edge("first", "second", on="all")
    assert await result_of(graph) == [{}, {}]


def test_a_copy_shares_nothing_that_can_be_changed() -> None:
    value = {"a": [1, {"b": {2}}], "c": (3, [4]), "d": Basket([5]), "e": None}
    other = copied(value)
    assert other == value
    other["a"][1]["b"].add(0)
    other["c"][1].append(0)
    other["d"].items.append(0)
    assert value == {"a": [1, {"b": {2}}], "c": (3, [4]), "d": Basket([5]), "e": None}


def test_what_a_node_is_told_can_be_made_for_a_test_of_it() -> None:
    given = NodeInput(run_input={"id": 7}, output=1, outputs={"a": 1})
    assert (given.run_input, given.output, given.outputs) == ({"id": 7}, 1, {"a": 1})
    assert (given.port, given.error, given.iteration) == (None, None, 1)
    assert repr(given).startswith("NodeInput(run_input={'id': 7}, output=1")
