"""Maps: a body of nodes for each item of a list."""

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    Port,
    Retry,
    RunFailed,
    Runtime,
    SignalTimeout,
    State,
    TransientError,
    current_step,
    step,
)
from keyrun.errors import InvalidGraph
from keyrun.graphs import GraphBody, NodeState, durable
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime, replay
from tests.runtime.graphs.nodes import ended, failure_of, result_of

did: list[str] = []
ran: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    did.clear()
    ran.clear()


async def fetch(given: NodeInput) -> Any:
    """Takes so many seconds as the item says, and fails if it is negative."""
    name = current_step().step
    ran[name] += 1
    did.append(f"+{name}")
    await trio.sleep(abs(given.item))
    if given.item < 0:
        raise PermanentError(f"no {given.item}")
    did.append(f"-{name}")
    return given.item * 10


async def double(given: NodeInput) -> Any:
    ran[current_step().step] += 1
    return [given.index, given.item, given.output, sorted(given.outputs)]


async def first(given: NodeInput) -> Any:
    ran["first"] += 1
    return given.run_input


async def last(given: NodeInput) -> Any:
    return given.output


def body() -> GraphBody:
    made = GraphBody()
    made.node("fetch", fetch)
    made.node("double", double)
    made.edge("fetch", "double")
    return made


def mapped(inner: GraphBody | None = None, **options: Any) -> Graph:
    graph = Graph("g")
    graph.node("first", first)
    graph.map("pages", body() if inner is None else inner, **options)
    graph.node("last", last)
    graph.edge("first", "pages")
    graph.edge("pages", "last")
    return graph


def failures(result: Any) -> list[tuple[int, str]]:
    return [(each["index"], each["step"]) for each in result["failures"]]


async def test_the_results_are_in_the_order_of_the_items(autojump_clock: MockClock) -> None:
    result = await result_of(mapped(max_concurrency=2), [4, 1, 2])
    known = ["fetch", "first"]
    assert result == {
        "results": [[0, 4, 40, known], [1, 1, 10, known], [2, 2, 20, known]],
        "failures": [],
    }
    assert did == [
        *("+fetch#[0]", "+fetch#[1]", "-fetch#[1]", "+fetch#[2]"),
        *("-fetch#[2]", "-fetch#[0]"),
    ]


@pytest.mark.parametrize("most", [1, 3, 50])
async def test_at_most_so_many_items_are_under_way(autojump_clock: MockClock, most: int) -> None:
    active = peak = 0

    async def work(given: NodeInput) -> None:
        nonlocal active, peak
        active += 1
        peak = max(peak, active)
        await trio.sleep(1 + given.item % 3)
        active -= 1

    inner = GraphBody()
    inner.node("work", work)
    inner.node("more", work)
    inner.edge("work", "more")
    await result_of(mapped(inner, max_concurrency=most), list(range(40)))
    assert peak == min(most, 40)


async def test_the_limit_of_the_graph_holds_for_the_nodes_of_all_items(
    autojump_clock: MockClock,
) -> None:
    graph = Graph("g", max_concurrency=2)
    graph.map("pages", body(), max_concurrency=10)
    graph.node("beside", first)
    await result_of(graph, [1, 1, 1, 1])
    assert did[:2] == ["+fetch#[0]", "+fetch#[1]"]
    assert did[2].startswith("-")
    assert trio.current_time() == 2


async def test_a_map_counts_as_one_level_of_waves(autojump_clock: MockClock) -> None:
    graph = Graph("g", schedule="waves")
    graph.node("first", first)
    graph.map("pages", body())
    graph.node("slow", fetch_five)
    graph.node("last", last)
    graph.edge("first", "pages")
    graph.edge("first", "slow")
    graph.edge("pages", "last")
    result = await result_of(graph, [1, 2])
    assert [each[2] for each in result["last"]["results"]] == [10, 20]
    assert trio.current_time() == 5


async def fetch_five(given: NodeInput) -> None:
    await trio.sleep(5)


async def test_failures_are_collected(autojump_clock: MockClock) -> None:
    result = await result_of(mapped(), [1, -3, 2, -1])
    assert [each and each[2] for each in result["results"]] == [10, None, 20, None]
    assert result["failures"][0] == {
        "index": 1,
        "step": "fetch#[1]",
        "kind": "permanent_error",
        "reason": "step 'fetch#[1]', attempt 1 of 3, after 3.000 s: PermanentError: no -3",
        "error_type": "keyrun.runtime.errors.PermanentError",
    }
    assert failures(result) == [(1, "fetch#[1]"), (3, "fetch#[3]")]


async def test_a_failure_that_the_body_handles_is_no_failure_of_its_item(
    autojump_clock: MockClock,
) -> None:
    async def mend(given: NodeInput) -> Any:
        assert given.error is not None
        return [given.item, given.error.step, list(given.failures)]

    inner = GraphBody()
    inner.node("fetch", fetch)
    inner.node("mend", mend)
    inner.edge("fetch", "mend", on="fail")
    result = await result_of(mapped(inner), [1, -2])
    mended = {"mend": [-2, "fetch#[1]", ["fetch"]]}
    assert result == {"results": [{"fetch": 10}, mended], "failures": []}


async def test_an_empty_list_starts_nothing(autojump_clock: MockClock) -> None:
    assert await result_of(mapped(), []) == {"results": [], "failures": []}
    assert not did


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ({"a": 1}, {}, "the items of 'pages' must be a list, got a value of type dict"),
        ("abc", {}, "the items of 'pages' must be a list, got a value of type str"),
        (None, {}, "the items of 'pages' must be a list, got null"),
        (
            [1] * 1001,
            {},
            "'pages' has 1,001 items, and may have 1,000; split the list, or set max_items",
        ),
        ([1] * 4, {"max_items": 3}, "'pages' has 4 items, and may have 3"),
        ([1], {"items": "{{ input[0] }}"}, "must be a list, got a value of type int"),
        ([1], {"items": "{{ input.nothing }}"}, "pages.items"),
    ],
)
async def test_items_that_are_no_list_or_too_many_fail_the_node_before_any_starts(
    autojump_clock: MockClock, given: Any, options: dict[str, Any], reason: str
) -> None:
    failure = await failure_of(mapped(**options), given)
    assert failure.kind is FailureKind.PERMANENT_ERROR
    assert failure.step == "pages"
    assert reason in failure.reason
    assert not did


@pytest.mark.parametrize("items", ["{{ input.pages }}", [1, "{{ input.pages[1] }}"]])
async def test_the_items_may_be_a_template_or_a_list_with_templates(
    autojump_clock: MockClock, items: Any
) -> None:
    result = await result_of(mapped(items=items, max_items=2), {"pages": [1, 2]})
    assert [each[1] for each in result["results"]] == [1, 2]


async def test_a_list_of_items_beyond_max_output_fails_the_node() -> None:
    graph = Graph("g", max_output=1000)
    graph.map("pages", body())
    failure = await failure_of(graph, ["x" * 100] * 20)
    assert failure.step == "pages"
    assert "and the limit is 1,000" in failure.reason


async def test_the_results_count_once_against_the_size_of_a_run(autojump_clock: MockClock) -> None:
    async def large(given: NodeInput) -> str:
        return "x" * 1000

    async def count(given: NodeInput) -> int:
        return len(given.output["results"])

    inner = GraphBody()
    inner.node("large", large)
    graph = Graph("g", max_output=1100, max_run_output=21_000)
    graph.map("pages", inner)
    graph.node("count", count)
    graph.edge("pages", "count")
    assert await result_of(graph, list(range(20))) == 20


async def test_fail_fast_cancels_the_other_items_and_fails_the_node(
    autojump_clock: MockClock,
) -> None:
    graph = mapped(fail_fast=True, max_concurrency=3)
    graph.node("beside", fetch_five)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [5, -1, 5, 1, 1], key="k", run_id="r")
        failure = (await ended(run)).failure
        assert failure is not None
        assert failure.step == "fetch#[1]"
        story = [(each.event, each.step) for each in await runtime.history("r")]
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        (shown,) = [node for node in drawn.nodes if node.id == "pages"]
        assert shown.state is NodeState.FAILED
        assert shown.failure == failure
        assert shown.items is not None
        assert (shown.items.running, shown.items.failed) == (0, 1)
    cancelled = [name for event, name in story if event == "step_cancelled"]
    assert sorted(cancelled, key=str) == ["fetch#[0]", "fetch#[2]"]
    # What is not in the map goes on.
    assert ("step_completed", "beside") in story
    assert did == ["+fetch#[0]", "+fetch#[1]", "+fetch#[2]"]
    assert 5 <= trio.current_time() < 6


async def test_nodes_that_a_failed_map_has_cut_off_are_shown_as_cancelled(
    autojump_clock: MockClock,
) -> None:
    inner = GraphBody()
    inner.node("fetch", fetch)
    inner.node("slow", fetch_five)
    inner.node("after", last)
    inner.edge("slow", "after")
    graph = mapped(inner, fail_fast=True)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [-1], key="k", run_id="r")
        assert (await ended(run)).state is State.FAILED
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        states = {node.id: str(node.state) for node in drawn.nodes if node.within}
    assert states == {"fetch": "failed", "slow": "cancelled", "after": "skipped"}


async def test_a_fail_edge_takes_the_failure_of_a_map(autojump_clock: MockClock) -> None:
    async def mend(given: NodeInput) -> Any:
        assert given.error is not None
        return [given.error.step, list(given.failures)]

    graph = mapped(fail_fast=True)
    graph.node("mend", mend)
    graph.edge("pages", "mend", on="fail")
    assert await result_of(graph, [5, -1]) == {"mend": ["fetch#[1]", ["pages"]]}
    assert trio.current_time() < 2


@durable
async def ask(ctx: Context, given: NodeInput) -> Any:
    try:
        approval = await ctx.approval("boss", timeout=100)
    except SignalTimeout:
        return Port("late")
    return Port("yes", [given.item, approval.by])


def asking(**options: Any) -> Graph:
    inner = GraphBody()
    inner.node("ask", ask, ports=("yes", "late"))
    inner.node("after", last)
    inner.edge("ask", "after", port="yes")
    return mapped(inner, **options)


async def test_items_that_wait_leave_memory_and_come_back(autojump_clock: MockClock) -> None:
    graph = asking()
    async with open_test_runtime(workflows=[graph], evict_after=1) as runtime:
        run = await runtime.submit(graph, ["a", "b", "c"], key="k", run_id="r")
        await trio.sleep(5)
        assert runtime.statistics().live == 0
        progress = await runtime.progress("r")
        assert progress is not None
        assert progress.items["pages"].running == 3
        await runtime.approve("r", "ask#[1]/boss", by="ada")
        await trio.sleep(5)
        assert runtime.statistics().live == 0
        progress = await runtime.progress("r")
        assert progress is not None
        assert (progress.items["pages"].running, progress.items["pages"].done) == (2, 1)
        await runtime.approve("r", "ask#[0]/boss", by="bob")
        result = await run.result()
    assert result["results"] == [["a", "bob"], ["b", "ada"], None]
    assert ran["first"] == 1


async def test_a_failed_map_cuts_off_items_that_wait_also_after_a_crash(
    autojump_clock: MockClock,
) -> None:
    @durable
    async def wait_or_fail(ctx: Context, given: NodeInput) -> Any:
        if given.item == "fail":
            await ctx.sleep(10)
            raise ValueError("no")
        return await ctx.wait_signal("go")

    @durable
    async def listen(ctx: Context, given: NodeInput) -> Any:
        return await ctx.wait_signal("go")

    inner = GraphBody()
    inner.node("wait", wait_or_fail)
    graph = mapped(inner, fail_fast=True)
    graph.node("listen", listen)
    graph.edge("pages", "listen", on="fail")
    store = MemoryStore()
    for crash in (True, False):
        async with open_test_runtime(store, workflows=[graph], evict_after=1) as runtime:
            run = await runtime.submit(graph, ["a", "fail", "c"], key="k", run_id="r")
            await trio.sleep(30)
            if crash:
                store.crash()
                await trio.sleep_forever()
            await runtime.signal("r", "go", 7)
            assert await run.result() == {"listen": 7}


async def test_a_redrive_runs_only_the_failed_item_and_those_that_it_cut_off(
    autojump_clock: MockClock,
) -> None:
    broken = True

    async def work(given: NodeInput) -> Any:
        ran[current_step().step] += 1
        await trio.sleep(given.item)
        if given.item == 3 and broken:
            raise PermanentError("broken")
        return given.item

    inner = GraphBody()
    inner.node("work", work)
    inner.node("double", double)
    inner.edge("work", "double")
    graph = mapped(inner, fail_fast=True, max_concurrency=3)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [1, 3, 9, 1, 5], key="k", run_id="r")
        assert (await ended(run)).state is State.FAILED
        before = dict(ran)
        broken = False
        await runtime.redrive("r")
        result = await runtime.run("r").result()
        assert (await replay(await runtime.history("r"), graph)).state is State.SUCCEEDED
    assert [each[2] for each in result["results"]] == [1, 3, 9, 1, 5]
    again = {name for name in before if ran[name] > before[name]}
    assert again == {"work#[1]", "work#[2]", "work#[4]"}


async def test_a_redrive_keeps_failures_that_were_collected(autojump_clock: MockClock) -> None:
    broken = True

    async def end(given: NodeInput) -> Any:
        if broken:
            raise PermanentError("broken")
        return failures(given.output)

    graph = mapped(max_concurrency=1)
    graph.node("end", end)
    graph.edge("last", "end")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [1, -1, 1], key="k", run_id="r")
        assert (await ended(run)).state is State.FAILED
        broken = False
        await runtime.redrive("r")
        assert await runtime.run("r").result() == [(1, "fetch#[1]")]
    assert set(ran.values()) == {1}


async def test_a_cancel_ends_all_items(autojump_clock: MockClock) -> None:
    graph = mapped()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [1, 50, 50], key="k", run_id="r")
        await trio.sleep(2)
        assert await run.cancel()
        assert (await ended(run)).state is State.CANCELLED
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        states = {node.id: node.state for node in drawn.nodes}
    assert states["pages"] is NodeState.CANCELLED
    assert states["fetch"] is NodeState.CANCELLED
    assert trio.current_time() < 3


async def test_the_time_limit_and_the_limit_of_steps_hold_in_a_map(
    autojump_clock: MockClock,
) -> None:
    for limits, kind in (
        (Limits(run_timeout=3), FailureKind.RUN_TIMEOUT),
        (Limits(max_iterations=4), FailureKind.ITERATION_LIMIT),
    ):
        graph = Graph("g", limits=limits)
        graph.map("pages", body(), max_concurrency=1)
        assert (await failure_of(graph, [2, 2, 2])).kind is kind


def nested() -> Graph:
    """A map in a map, and a loop in its body."""

    async def rows(given: NodeInput) -> Any:
        ran[current_step().step] += 1
        return list(range(given.item))

    async def turn(given: NodeInput) -> Port:
        ran[current_step().step] += 1
        await trio.sleep(1)
        return Port("again" if given.iteration <= given.item else "enough", given.iteration)

    async def enough(given: NodeInput) -> Any:
        return given.output

    cell = GraphBody()
    cell.node("turn", turn, ports=("again", "enough"))
    cell.node("enough", enough)
    cell.edge("turn", "turn", port="again", back=True)
    cell.edge("turn", "enough", port="enough")
    row = GraphBody()
    row.node("rows", rows)
    row.map("cells", cell, max_concurrency=2)
    row.edge("rows", "cells")
    return mapped(row, max_concurrency=2)


NESTED = [[1], [1, 2, 3], [], [1, 2]]


def cells(result: Any) -> Any:
    return [each["results"] for each in result["results"]]


async def test_a_map_may_have_loops_and_maps_in_its_body(autojump_clock: MockClock) -> None:
    graph = nested()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [1, 3, 0, 2], key="k", run_id="r")
        assert cells(await run.result()) == NESTED
    assert ran["turn#[1][2]"] == ran["turn#[1][2]#3"] == 1
    assert set(ran.values()) == {1}


async def test_a_map_in_a_loop_runs_again_in_each_turn(autojump_clock: MockClock) -> None:
    async def count(given: NodeInput) -> Any:
        return [each[2] // 10 - 1 for each in given.output["results"]]

    graph = Graph("g")
    graph.node("first", first)
    graph.map("pages", body(), join="any")
    graph.node("count", count)
    graph.node("end", last)
    graph.edge("first", "pages")
    graph.edge("pages", "count")
    graph.edge("count", "pages", back=True, when="output[0] > 0")
    graph.edge("count", "end", when="output[0] == 0")
    assert await result_of(graph, [2, 3]) == [0, 1]
    assert set(ran) - {"first"} == {
        *("fetch#[0]", "fetch#[1]", "double#[0]", "double#[1]"),
        *("fetch#[2:0]", "fetch#[2:1]", "double#[2:0]", "double#[2:1]"),
    }


async def test_conditions_in_the_body_can_use_the_item(autojump_clock: MockClock) -> None:
    inner = GraphBody()
    inner.node("fetch", fetch)
    inner.node("large", last)
    inner.node("small", last)
    inner.edge("fetch", "large", when="item > 1 && index > 0")
    inner.edge("fetch", "small", when="!(item > 1 && index > 0)")
    result = await result_of(mapped(inner), [2, 2, 1])
    assert result["results"] == [{"small": 20}, {"large": 20}, {"small": 10}]


async def unreliable(given: NodeInput) -> Any:
    name = current_step().step
    ran[name] += 1
    await trio.sleep(given.item % 3)
    if given.item % 5 == 4:
        raise PermanentError("no")
    if given.item % 5 == 1 and current_step().attempt == 1:
        raise TransientError("busy")
    return given.item


@durable
async def doze(ctx: Context, given: NodeInput) -> Any:
    await ctx.sleep(2)
    return await ctx.step(plus, given.output)


@step
async def plus(value: int) -> int:
    ran[current_step().step] += 1
    return value + 1


SOON = Retry.fixed(max_attempts=3, delay=1, jitter=0)


def mixed(**options: Any) -> Graph:
    inner = GraphBody()
    inner.node("work", unreliable, retry=SOON)
    inner.node("doze", doze)
    inner.edge("work", "doze", when="item != 3")
    return mapped(inner, max_concurrency=3, **options)


async def test_a_map_ends_the_same_way_whichever_commit_it_is_killed_at(
    autojump_clock: MockClock,
) -> None:
    graph = mixed()
    settled: list[tuple[str, int]] = []

    async def scenario(runtime: Runtime) -> Any:
        for each in await runtime.history("r"):
            if each.event in ("step_completed", "step_failed"):
                settled.append((str(each.step), ran[str(each.step)]))
        run = await runtime.submit(graph, list(range(7)), key="k", run_id="r")
        result = await run.result()
        return result, (await replay(await runtime.history("r"), graph)).state

    points = 0
    for point in crash_points():
        ran.clear()
        settled.clear()
        result, replayed = await point.run(scenario, workflows=[graph])
        assert replayed is State.SUCCEEDED
        assert result["results"] == [1, 2, 3, None, None, 6, 7]
        assert failures(result) == [(4, "work#[4]")]
        assert [(name, ran[name]) for name, _ in settled if name in ran] == [
            each for each in settled if each[0] in ran
        ]
        points += 1
    assert points > 20


async def test_nested_maps_end_the_same_way_whichever_commit_they_are_killed_at(
    autojump_clock: MockClock,
) -> None:
    graph = nested()

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, [1, 3, 0, 2], key="k", run_id="r")
        return await run.result()

    for point in crash_points():
        ran.clear()
        assert cells(await point.run(scenario, workflows=[graph])) == NESTED
        assert sum(ran.values()) <= len(ran) + 4 * point.crashes


@pytest.mark.parametrize("shield", [False, True])
async def test_a_map_that_fails_fast_does_so_whichever_commit_it_is_killed_at(
    autojump_clock: MockClock, shield: bool
) -> None:
    async def slow(given: NodeInput) -> Any:
        ran[current_step().step] += 1
        await trio.sleep(given.item)
        if given.item == 4:
            raise PermanentError("no")
        if given.item == 6 and current_step().attempt == 1:
            raise TransientError("busy")
        return given.item

    async def mend(given: NodeInput) -> Any:
        assert given.error is not None
        await trio.sleep(3)
        return given.error.step

    inner = GraphBody()
    inner.node("slow", slow, shield=shield, retry=SOON)
    inner.node("doze", doze)
    inner.edge("slow", "doze")
    graph = mapped(inner, fail_fast=True, max_concurrency=4)
    graph.node("mend", mend)
    graph.edge("pages", "mend", on="fail")

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, [1, 2, 3, 4, 6, 6, 5, 1], key="k", run_id="r")
        result = await run.result()
        return result, (await replay(await runtime.history("r"), graph)).state

    points = 0
    for point in crash_points():
        ran.clear()
        result, replayed = await point.run(scenario, workflows=[graph])
        assert result == {"mend": "slow#[3]"}, point
        assert replayed is State.SUCCEEDED
        points += 1
    assert points > 15


async def undo(given: Any) -> None:
    did.append(f"undo {given.step} {given.output}")


async def reserve(given: NodeInput) -> int:
    await trio.sleep(given.item)
    return int(given.item)


async def refuse(given: NodeInput) -> None:
    raise PermanentError("no")


def saga(compensation: Any = "all") -> Graph:
    inner = GraphBody()
    inner.node("reserve", reserve, compensate=undo)
    inner.node("confirm", reserve, compensate=undo)
    inner.edge("reserve", "confirm", when="item < 3")
    graph = Graph("g", compensation=compensation)
    graph.map("pages", inner, max_concurrency=2)
    graph.node("beside", reserve_nothing, compensate=undo)
    graph.node("refuse", refuse)
    graph.edge("pages", "refuse")
    return graph


async def reserve_nothing(given: NodeInput) -> str:
    return "nothing"


ITEMS = [1, 2.5, 4]
UNDONE = [
    "undo reserve#[2] 4",
    "undo confirm#[1] 2",
    "undo reserve#[1] 2",
    "undo confirm#[0] 1",
    "undo reserve#[0] 1",
]


async def test_each_item_is_compensated_the_last_step_first(autojump_clock: MockClock) -> None:
    graph = saga()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, ITEMS, key="k", run_id="r")
        assert (await ended(run)).state is State.FAILED
        drawn = await runtime.execution_graph("r")
        assert drawn is not None
        states = {node.id: node.state for node in drawn.nodes}
    assert did == [*UNDONE, "undo beside nothing"]
    assert states["reserve"] is states["confirm"] is NodeState.COMPENSATED


async def test_only_items_of_what_led_to_the_failure_are_compensated_in_a_branch(
    autojump_clock: MockClock,
) -> None:
    graph = saga("branch")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, ITEMS, key="k", run_id="r")
        assert (await ended(run)).state is State.FAILED
    assert did == UNDONE


async def test_only_the_item_that_failed_is_compensated_in_a_branch_that_fails_fast(
    autojump_clock: MockClock,
) -> None:
    inner = GraphBody()
    inner.node("reserve", reserve, compensate=undo)
    inner.node("check", reserve)
    inner.node("refuse", refuse)
    inner.edge("reserve", "check")
    inner.edge("check", "refuse", when="item == 2")
    graph = Graph("g", compensation="branch")
    graph.node("before", first, compensate=undo)
    graph.map("pages", inner, fail_fast=True)
    graph.edge("before", "pages")
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [1, 2, 3], key="k", run_id="r")
        assert (await ended(run)).state is State.FAILED
    assert did == ["undo reserve#[1] 2", "undo before [1, 2, 3]"]


async def test_each_item_is_compensated_once_whatever_commit_the_process_is_killed_at(
    autojump_clock: MockClock,
) -> None:
    graph = saga()

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, ITEMS, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        story = await runtime.history("r")
        done = [str(each.step) for each in story if each.event == "step_completed"]
        return [name for name in done if name != "pages"]

    for point in crash_points():
        did.clear()
        done = await point.run(scenario, workflows=[graph])
        assert len(done) == 12
        assert done[6:] == [f"undo()/{name}" for name in reversed(done[:6])]
        assert len(did) <= 6 + point.crashes


async def test_progress_counts_the_items_live_and_from_the_store(
    autojump_clock: MockClock,
) -> None:
    graph = mapped(max_concurrency=2)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, [1, -1, 10, 10, 1, 1, 1, 1], key="k", run_id="r")
        await trio.sleep(3)
        drawn = await runtime.execution_graph("r")
        progress = await runtime.progress("r")
        assert drawn is not None
        assert progress is not None
        found = {node.id: node for node in drawn.nodes}
        assert found["pages"].items == progress.items["pages"]
        counts = progress.items["pages"]
        assert (counts.total, counts.done, counts.failed, counts.running) == (8, 1, 1, 2)
        assert drawn.percent == progress.percent == pytest.approx(100 * (1 + 2 / 8) / 3)
        assert [node.id for node in drawn.nodes] == ["first", "pages", "fetch", "double", "last"]
        assert [node.within for node in drawn.nodes] == [None, None, "pages", "pages", None]
        assert found["pages"].state is found["fetch"].state is NodeState.RUNNING
        assert (found["fetch"].turns, found["double"].turns) == (4, 1)
        (inner,) = [edge for edge in drawn.edges if edge.source == "fetch"]
        assert inner.taken
        # The node itself only makes the list, and that takes no time.
        assert found["pages"].mean is found["pages"].ended_at is None
        assert found["fetch"].mean == pytest.approx(1)
        await run.result()
        drawn, progress = await runtime.execution_graph("r"), await runtime.progress("r")
        assert drawn is not None
        assert progress is not None
        (counts,) = progress.items.values()
        assert (counts.total, counts.done, counts.failed, counts.running) == (8, 7, 1, 0)
        assert drawn.percent == progress.percent == 100


def test_mistakes_in_a_map_are_found_before_it_runs() -> None:
    inner = GraphBody()
    inner.node("first", fetch)
    inner.node("odd", fetch, max_waiting=3)
    inner.edge("odd", "nobody")
    graph = mapped(inner, max_concurrency=0, max_items=-1)
    graph.map("empty", GraphBody())
    graph.edge("pages", "odd")
    with pytest.raises(InvalidGraph) as caught:
        graph.validate()
    assert sorted(caught.value.errors) == [
        "edge 'odd' -> 'nobody': there is no node 'nobody'",
        "edge 'pages' -> 'odd': there is no node 'odd'",
        "node 'empty': its body has no nodes",
        "node 'first': 2 nodes have this name; give each node its own name",
        "node 'odd': max_waiting is not supported in the body of a map; limit what waits with the "
        "max_concurrency of 'pages'",
        "node 'pages': max_concurrency must be at least 1, got 0",
        "node 'pages': max_items must be at least 1, got -1",
    ]


def test_maps_are_at_most_five_deep() -> None:
    inner = GraphBody()
    inner.node("work", fetch)
    for depth in range(5):
        around = Graph("g") if depth == 4 else GraphBody()
        around.map(f"m{depth}", inner)
        inner = around
    assert isinstance(inner, Graph)
    inner.validate()
    around = Graph("g")
    wrapped = GraphBody()
    wrapped.nodes, wrapped.edges = inner.nodes, inner.edges
    around.map("m5", wrapped)
    with pytest.raises(
        InvalidGraph, match="this map is inside of 5 others, and may be inside of 4"
    ):
        around.validate()


def test_a_body_that_is_in_use_does_not_change() -> None:
    inner = body()
    mapped(inner)
    with pytest.raises(RuntimeError, match="the body is part of a map already"):
        inner.node("more", fetch)
    with pytest.raises(TypeError, match="must be a GraphBody, got"):
        Graph("g").map("pages", fetch)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a GraphBody, got"):
        Graph("g").map("pages", Graph("h"))
