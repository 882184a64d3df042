"""What the nodes of a graph give is bounded: beyond it is an error that names the size."""

from typing import Any

import pytest
from trio.testing import MockClock

from keyrun import Context, FailureKind, Graph, NodeInput, RunFailed, step
from keyrun.errors import InvalidGraph
from keyrun.graphs import durable
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

MEBIBYTE = 1024 * 1024


async def give(given: NodeInput) -> str:
    return "x" * int(given.run_input)


def chain(length: int, **options: Any) -> Graph:
    graph = Graph("chain", **options)
    for number in range(length):
        graph.node(f"n{number}", give)
        if number:
            graph.edge(f"n{number - 1}", f"n{number}")
    return graph


async def run(graph: Graph, size: int) -> Any:
    async with open_test_runtime(workflows=[graph]) as runtime:
        return await (await runtime.submit(graph, size, key="k")).result()


async def test_an_output_may_have_a_mebibyte_and_not_more() -> None:
    # Five bytes say that it is a text, and how long.
    assert len(await run(chain(1), MEBIBYTE - 5)) == MEBIBYTE - 5
    with pytest.raises(
        RunFailed, match=r"'n0' has 1,048,577 bytes, and the limit is 1,048,576"
    ) as e:
        await run(chain(1), MEBIBYTE - 4)
    assert e.value.failure.kind is FailureKind.PERMANENT_ERROR
    assert e.value.failure.attempt == 1


async def test_all_outputs_of_a_run_may_have_ten() -> None:
    assert await run(chain(10), MEBIBYTE - 5)
    with pytest.raises(RunFailed, match=r"'n10'.* have 11,534,336 .* limit is 10,485,760"):
        await run(chain(11), MEBIBYTE - 5)


async def test_both_can_be_set() -> None:
    with pytest.raises(RunFailed, match="'n0' has 102 bytes, and the limit is 101"):
        await run(chain(1, max_output=101), 100)
    with pytest.raises(RunFailed, match=r"'n2'.* have 306 .* limit is 300"):
        await run(chain(3, max_run_output=300), 100)
    assert await run(chain(1, max_output=3 * MEBIBYTE), 2 * MEBIBYTE)


async def test_what_was_given_before_a_restart_counts(autojump_clock: MockClock) -> None:
    store = MemoryStore()

    @durable
    async def pause(ctx: Context, given: NodeInput) -> None:
        await ctx.sleep(100)

    graph = Graph("paused", max_run_output=300)
    for name in ("n0", "n1", "n2"):
        graph.node(name, give)
    graph.node("pause", pause)
    for source, target in (("n0", "n1"), ("n1", "pause"), ("pause", "n2")):
        graph.edge(source, target)
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, 100, key="k", run_id="r")
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        handle = await runtime.submit(graph, 100, key="k", run_id="r")
        with pytest.raises(RunFailed, match=r"'n2'.* have 306 .* limit is 300"):
            await handle.result()


async def test_steps_of_workflow_code_in_a_node_count_too() -> None:
    @step
    async def large() -> str:
        return "x" * 200

    @durable
    async def inside(ctx: Context, given: NodeInput) -> int:
        return len(await ctx.step(large))

    graph = Graph("inside", max_output=100)
    graph.node("inside", inside)
    with pytest.raises(RunFailed, match="'inside/large' has 202 bytes"):
        await run(graph, 0)


@pytest.mark.parametrize("name", ["max_output", "max_run_output"])
def test_a_size_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(InvalidGraph, match=f"{name} must be at least 1, got 0"):
        chain(1, **{name: 0}).validate()
