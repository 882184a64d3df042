"""Random graphs go as the model says, on time, whatever their edges, joins, loops and limits."""

import os
from collections import Counter
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Graph,
    NodeInput,
    PermanentError,
    Port,
    Retry,
    Runtime,
    State,
    TransientError,
    current_step,
)
from keyrun.graphs import GraphBody
from keyrun.testing import crash_points, open_test_runtime, replay
from tests.runtime.graphs.model import DELAY, Course, ModelGraph, ModelNode, random_graph
from tests.runtime.graphs.nodes import ended

AGAIN = Retry.fixed(max_attempts=3, delay=DELAY, jitter=0)
Story = list[tuple[float, str]]


def _function(node: ModelNode, story: Story) -> Any:
    async def work(given: NodeInput) -> Any:
        current = current_step()
        if current.attempt == 1:
            story.append((trio.current_time(), current.step))
        if current.attempt <= node.failures:
            raise TransientError("not yet")
        await trio.sleep(node.seconds)
        fate = node.fate(given.iteration + (given.index or 0))
        if fate == "fails":
            raise PermanentError("as told")
        return given.iteration if fate == "none" else Port(fate, given.iteration)

    return work


def _made(model: ModelGraph, story: Story) -> Graph:
    graph = Graph(
        "random",
        fail_fast=model.fail_fast,
        max_concurrency=model.most,
        schedule="waves" if model.waves else "eager",
    )
    _fill(graph, model, story)
    return graph


def _fill(graph: GraphBody, model: ModelGraph, story: Story) -> None:
    for node in model.nodes:
        graph.node(
            node.id,
            _function(node, story),
            ports=node.ports,
            join=node.join,  # type: ignore[arg-type]
            priority=node.priority,
            retry=AGAIN,
        )
    for edge in model.edges:
        graph.edge(
            edge.source,
            edge.target,
            on=edge.on,  # type: ignore[arg-type]
            port=edge.port,
            when=None if edge.least is None else f"output >= {edge.least}",
            back=edge.back,
            max_iterations=edge.most,
        )


def _result(model: ModelGraph, course: Course) -> Any:
    leads_on = {edge.source for edge in model.edges if not edge.back and edge.on != "fail"}
    last = [node.id for node in model.nodes if node.id not in leads_on]
    if len(last) == 1:
        return course.outputs.get(last[0])
    return {name: course.outputs[name] for name in last if name in course.outputs}


@pytest.mark.parametrize("seeds", [range(at, at + 25) for at in range(0, 100, 25)], ids=str)
async def test_a_graph_goes_as_the_model_says(seeds: range, autojump_clock: MockClock) -> None:
    for seed in seeds:
        model, story = random_graph(seed), Story()
        graph, course = _made(model, story), Course(model)
        async with open_test_runtime(workflows=[graph]) as runtime:
            began = trio.current_time()
            status = await ended(await runtime.submit(graph, key="k", run_id="r"))
            view = await runtime.execution_graph("r")
            progress = await runtime.progress("r")
        assert view is not None
        assert progress is not None
        assert progress.nodes == {str(each): count for each, count in view.counts().items()}, seed
        assert [name for _, name in story] == [name for _, name in course.story], seed
        expected = [at for at, _ in course.story]
        assert [at - began for at, _ in story] == pytest.approx(expected, abs=0.002), seed
        if course.too_many:
            assert status.failure is not None, seed
            assert status.failure.kind == "iteration_limit", seed
        elif course.failed:
            assert status.failure is not None, seed
            assert status.failure.step == course.failed[0], seed
        else:
            assert status.state is State.SUCCEEDED, seed
            assert status.result == _result(model, course), seed
            assert {each.id: each.turns for each in view.nodes if each.turns} == course.turns, seed


ITEMS = 3
SOAK = bool(os.environ.get("KEYRUN_SOAK"))


def _mapped(model: ModelGraph, story: Story, most: int, *, deep: bool) -> Graph:
    """A map with a random body, which is in the body of another map if it is deep."""
    body, graph = GraphBody(), Graph("random")
    _fill(body, model, story)
    if deep:
        inner, body = body, GraphBody()
        body.map("inner", inner, items=list(range(ITEMS)), max_concurrency=most)
    graph.map("map", body, items=[0] if deep else list(range(ITEMS)), max_concurrency=most)
    return graph


def _courses(model: ModelGraph) -> list[Course]:
    """How the body goes for each item. The fates of its nodes begin later for each of them."""
    courses = []
    for at in range(ITEMS):
        nodes = [attrs.evolve(n, fates=(*n.fates[at:], *n.fates[:at])) for n in model.nodes]
        courses.append(Course(attrs.evolve(model, nodes=nodes)))
    return courses


def _story_of_items(courses: list[Course], *, one_by_one: bool, deep: bool) -> Story:
    expected, start = Story(), 0.0
    for at, course in enumerate(courses):
        for begun, ident in course.story:
            name, _, turn = ident.partition("#")
            items = f"[0][{at}]" if deep else f"[{at}]"
            expected.append((start + begun, f"{name}#{items}" + (f"#{turn}" if turn else "")))
        if one_by_one:
            start += course.over
    return expected


@pytest.mark.parametrize(
    "seeds", [range(at, at + 10) for at in range(300, 3000 if SOAK else 340, 10)], ids=str
)
async def test_each_item_of_a_map_goes_as_the_model_says_of_its_body(
    seeds: range, autojump_clock: MockClock
) -> None:
    for seed in seeds:
        most, deep = (1, ITEMS)[seed % 2], seed % 4 > 1
        model, story = random_graph(seed), Story()
        model = attrs.evolve(model, fail_fast=False, most=None, waves=False)
        graph, courses = _mapped(model, story, most, deep=deep), _courses(model)
        async with open_test_runtime(workflows=[graph]) as runtime:
            began = trio.current_time()
            status = await ended(await runtime.submit(graph, key="k", run_id="r"))
            view = await runtime.execution_graph("r")
            progress = await runtime.progress("r")
            replayed = await replay(await runtime.history("r"), graph)
        assert replayed.state is status.state, seed
        assert view is not None
        assert progress is not None
        assert progress.nodes == {str(each): count for each, count in view.counts().items()}, seed
        if any(course.too_many for course in courses):
            assert status.failure is not None, seed
            assert status.failure.kind == "iteration_limit", seed
            continue
        expected = sorted(_story_of_items(courses, one_by_one=most == 1, deep=deep))
        found = sorted((at - began, name) for at, name in story)
        assert Counter(name for _, name in found) == Counter(name for _, name in expected), seed
        times = {name: at for at, name in expected}
        assert {name: at for at, name in found} == pytest.approx(times, abs=0.002), seed
        assert status.state is State.SUCCEEDED, seed
        result = status.result["results"][0] if deep else status.result
        assert result["results"] == [
            None if course.failed else _result(model, course) for course in courses
        ], seed
        failed = [course.failed[0].partition("#")[0] for course in courses if course.failed]
        assert [each["step"].partition("#")[0] for each in result["failures"]] == failed, seed
        turns = Counter[str]()
        for course in courses:
            turns.update(course.turns)
        assert {
            each.id: each.turns for each in view.nodes if each.turns and each.id in turns
        } == turns, seed


@pytest.mark.parametrize("seed", range(400, 1000 if SOAK else 404))
async def test_a_crash_changes_no_item_of_a_map(seed: int, autojump_clock: MockClock) -> None:
    model = random_graph(seed)
    calm = [attrs.evolve(node, join="all") for node in model.nodes]
    model, story = attrs.evolve(model, nodes=calm), Story()
    graph = _mapped(model, story, 2, deep=seed % 2 == 0)
    settled: list[tuple[str | None, int]] = []

    async def scenario(runtime: Runtime) -> Any:
        runs = Counter(name for _, name in story)
        for each in await runtime.history("r"):
            if each.event == "step_completed" and str(each.step) in runs:
                settled.append((each.step, runs[str(each.step)]))
        status = await ended(await runtime.submit(graph, key="k", run_id="r"))
        history = await runtime.history("r")
        assert (await replay(history, graph)).state is status.state
        kind = None if status.failure is None else status.failure.kind
        return status.state, kind, _without_reasons(status.result)

    outcomes = []
    for point in crash_points(every=6):
        story.clear()
        settled.clear()
        outcomes.append(await point.run(scenario, workflows=[graph]))
        runs = Counter(name for _, name in story)
        assert [(name, runs[str(name)]) for name, _ in settled] == settled
    assert all(outcome == outcomes[0] for outcome in outcomes)


def _without_reasons(result: Any) -> Any:
    """The results of a map, and which items failed. Of two failures in an item, the first one is
    the reason, and that depends on the times."""
    if not isinstance(result, dict) or "failures" not in result:
        return result
    failed = [each["index"] for each in result["failures"]]
    return [*map(_without_reasons, result["results"])], failed


@pytest.mark.parametrize("seed", range(200, 208))
async def test_a_crash_changes_nothing_but_times(seed: int, autojump_clock: MockClock) -> None:
    """Where it matters who is first, other times may lead elsewhere: those graphs are left out."""
    model = random_graph(seed)
    calm = [attrs.evolve(node, join="all") for node in model.nodes]
    model, story = attrs.evolve(model, nodes=calm, fail_fast=False), Story()
    graph = _made(model, story)
    settled: list[tuple[str | None, int]] = []
    """What had completed when the store was opened, and how often that had run."""

    async def scenario(runtime: Runtime) -> Any:
        runs = Counter(name for _, name in story)
        for each in await runtime.history("r"):
            if each.event == "step_completed":
                settled.append((each.step, runs[str(each.step)]))
        status = await ended(await runtime.submit(graph, key="k", run_id="r"))
        history = await runtime.history("r")
        await replay(history, graph)
        over = sorted(
            str(each.step) for each in history if each.event in ("step_completed", "step_failed")
        )
        return status.state, status.result, over

    outcomes = []
    for point in crash_points(every=4):
        story.clear()
        settled.clear()
        outcomes.append(await point.run(scenario, workflows=[graph]))
        runs = Counter(name for _, name in story)
        assert [(name, runs[str(name)]) for name, _ in settled] == settled
    assert all(outcome == outcomes[0] for outcome in outcomes)
