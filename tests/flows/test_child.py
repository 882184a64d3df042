"""Workflows in flows: a node runs another one and gives its result."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from trio.testing import MockClock

from keyrun import Context, Graph, RunFailed, Runtime, step, workflow
from keyrun.flows import parse
from keyrun.testing import crash_points, open_test_runtime
from tests.flows.test_files import told
from tests.keyrun.cli import shell

done: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


@step
async def work(what: str) -> str:
    done[what] += 1
    return what


@workflow
async def parcel(ctx: Context, order: dict[str, Any]) -> dict[str, Any]:
    return {"sent": await ctx.step(work, f"parcel for {order['name']}")}


@workflow
async def plain(ctx: Context) -> str:
    return await ctx.step(work, "plain")


@workflow
async def deeper(ctx: Context, depth: int) -> int:
    return await ctx.child(deeper, depth + 1)


PARENT = """
name: parent
nodes:
  first: {kind: call, function: work, args: {what: first}}
  ship: {kind: workflow, workflow: parcel, input: {name: "{{ input.name }}"}}
  last: {kind: call, function: work, args: {what: "{{ output.sent }} is done"}}
edges:
  - {from: first, to: ship}
  - {from: ship, to: last}
"""


def parent(text: str = PARENT, *more: Graph) -> Graph:
    return parse(text, functions=[work], workflows=[parcel, plain, deeper, *more])


async def run(graph: Graph, *others: Any, input_: Any = None) -> Any:
    known = [graph, parcel, plain, deeper, *others]
    async with open_test_runtime(workflows=known) as runtime:
        return await (await runtime.submit(graph, input_, key="k", run_id="r")).result()


async def test_input_and_output_are_mapped(autojump_clock: MockClock) -> None:
    assert await run(parent(), input_={"name": "Ann"}) == "parcel for Ann is done"


async def test_with_a_key_it_is_a_run_of_its_own(autojump_clock: MockClock) -> None:
    text = PARENT.replace('"{{ input.name }}"}}', '"{{ input.name }}"}, key: "{{ run.key }}-2"}')
    graph = parent(text)
    async with open_test_runtime(workflows=[graph, parcel]) as runtime:
        await (await runtime.submit(graph, {"name": "Ann"}, key="k", run_id="r")).result()
        (child,) = await runtime.runs(workflow="parcel")
    assert (child.key, child.origin) == ("k-2", "child:r")


async def test_without_an_input_it_gets_what_triggered_it_or_the_input_of_the_run(
    autojump_clock: MockClock,
) -> None:
    graph = parent("name: p\nnodes: {ship: {kind: workflow, workflow: parcel}}")
    assert await run(graph, input_={"name": "Bo"}) == {"sent": "parcel for Bo"}
    graph = parent("name: p\nnodes: {it: {kind: workflow, workflow: plain}}")
    assert await run(graph, input_={"name": "Bo"}) == "plain"


@pytest.mark.parametrize(("given", "key"), [("", "k/in"), (", key: '{{ run.key }}-x'", "k-x")])
async def test_a_flow_may_run_a_flow(autojump_clock: MockClock, given: str, key: str) -> None:
    inner = parent()
    outer = parent(
        f"name: outer\nnodes: {{in: {{kind: workflow, workflow: parent{given}}}}}", inner
    )
    async with open_test_runtime(workflows=[outer, inner, parcel]) as runtime:
        run = await runtime.submit(outer, {"name": "Cy"}, key="k")
        assert await run.result() == "parcel for Cy is done"
        (child,) = await runtime.runs(workflow="parent")
    assert child.key == key


async def test_children_are_only_so_deep_and_a_failure_can_be_taken_care_of(
    autojump_clock: MockClock,
) -> None:
    text = "name: p\nnodes: {down: {kind: workflow, workflow: deeper, input: 1}}"
    with pytest.raises(RunFailed, match="deep"):
        await run(parent(text))
    text = """
    name: p
    nodes:
      down: {kind: workflow, workflow: deeper, input: 1}
      repair: {kind: call, function: work, args: {what: repaired}}
    edges: [{from: down, to: repair, on: fail}]
    """
    assert await run(parent(text)) == {"repair": "repaired"}


@pytest.mark.parametrize("text", [PARENT, PARENT.replace("parcel, input", "parcel, key: z, input")])
async def test_a_crash_at_any_commit_costs_no_finished_step(
    autojump_clock: MockClock, text: str
) -> None:
    graph = parent(text)

    async def scenario(runtime: Runtime) -> Any:
        handle = await runtime.submit(graph, {"name": "Ann"}, key="k", run_id="r")
        return await handle.result()

    points = 0
    for point in crash_points():
        points += 1
        done.clear()
        result = await point.run(scenario, workflows=[graph, parcel])
        assert result == "parcel for Ann is done", point
        assert sum(done.values()) <= 3 + point.crashes
    assert points > 5


def test_what_cannot_be_run_is_told() -> None:
    graph = parent()
    found = told(
        "name: p\n"
        "nodes:\n"
        "  a: {kind: workflow, workflow: nothing}\n"
        "  c: {kind: workflow, workflow: plain, input: 1}\n",
        workflows=[graph, plain],
    )
    for line, message in [
        (3, "there is no workflow 'nothing'; the workflows are parent, plain"),
        (4, "'plain' takes no input"),
    ]:
        assert any(at == line and message in text for at, text in found), found


def test_on_the_command_line_another_file_may_be_named(tmp_path: Path) -> None:
    (tmp_path / "inner.yaml").write_text(
        "name: inner\nnodes: {a: {kind: code, source: 'def main(d): return d[\"input\"] + 1'}}"
    )
    (tmp_path / "outer.yaml").write_text(
        "name: outer\nnodes: {b: {kind: workflow, workflow: inner, key: other}}"
    )
    words = ["flow", "run", "outer.yaml", "--key", "k", "--input", "1", "--with", "inner.yaml"]
    ran = shell(*words, cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "2\n"), ran.stderr
