"""Maps in files: items, results, failures, and what a crash in the middle costs."""

from collections import Counter
from typing import Any

import pytest
from trio.testing import MockClock

from keyrun import PermanentError, RunFailed, Runtime, step
from keyrun.flows import parse
from keyrun.testing import crash_points, open_test_runtime
from tests.flows.test_files import run_flow

done: Counter[Any] = Counter()

CRAWL = """
name: crawl
nodes:
  start: {kind: call, function: give, args: {value: "{{ input.prefix }}"}}
  pages:
    kind: map
    items: "{{ input.pages }}"
    max_concurrency: 2
    body:
      nodes:
        fetch:
          kind: call
          function: fetch
          args: {page: "{{ item }}"}
          retry: none
          compensate: release
        large: {kind: branch, when: output > 10 && index > 0}
        name:
          kind: call
          function: give
          args: {value: "{{ outputs.start }}{{ index }}:{{ outputs.fetch }}"}
        release: {kind: call, function: release, args: {page: "{{ output }}"}}
      edges:
        - {from: fetch, to: large}
        - {from: large, to: name, port: then}
  after:
    kind: call
    function: give
    args:
      value:
        results: "{{ output.results }}"
        failed: "{{ output.failures | map(attribute='index') | list }}"
edges:
  - {from: start, to: pages}
  - {from: pages, to: after}
"""


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


@step
async def give(value: Any) -> Any:
    return value


@step
async def fetch(page: int) -> int:
    done[page] += 1
    if page < 0:
        raise PermanentError(f"no page {page}")
    return page * 10


@step
async def release(page: int) -> None:
    done[f"release {page}"] += 1


def crawl(*changes: tuple[str, str]) -> Any:
    text = CRAWL
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    return parse(text, functions=[give, fetch, release])


PAGES = {"prefix": "p", "pages": [5, 2, -1, 3]}


async def test_the_nodes_of_the_body_know_the_item_its_index_and_what_was_before() -> None:
    result = await run_flow(crawl(), PAGES)
    assert result == {"results": [None, "p1:20", None, "p3:30"], "failed": [2]}


async def test_a_list_in_the_file_may_have_templates() -> None:
    graph = crawl(('items: "{{ input.pages }}"', 'items: [1, "{{ input.pages[0] }}"]'))
    assert await run_flow(graph, PAGES) == {"results": [None, "p1:50"], "failed": []}


async def test_items_that_are_no_list_fail_the_node_with_a_clear_reason() -> None:
    with pytest.raises(RunFailed, match="the items of 'pages' must be a list, got a value of type"):
        await run_flow(crawl(), {"prefix": "p", "pages": 7})
    with pytest.raises(RunFailed, match="'pages' has 4 items, and may have 3"):
        await run_flow(crawl(("    max_concurrency: 2", "    max_items: 3")), PAGES)


async def test_the_first_failure_fails_the_node_and_compensates_the_items() -> None:
    graph = crawl(("    max_concurrency: 2", "    max_concurrency: 1\n    fail_fast: true"))
    with pytest.raises(RunFailed, match="no page -1"):
        await run_flow(graph, PAGES)
    assert done == {5: 1, 2: 1, -1: 1, "release 50": 1, "release 20": 1}


async def test_a_map_in_a_file_survives_a_crash_at_any_commit(autojump_clock: MockClock) -> None:
    graph = crawl()

    async def scenario(runtime: Runtime) -> Any:
        return await (await runtime.submit(graph, PAGES, key="k", run_id="r")).result()

    for point in crash_points():
        done.clear()
        result = await point.run(scenario, workflows=[graph])
        assert result == {"results": [None, "p1:20", None, "p3:30"], "failed": [2]}
        assert sum(done.values()) <= 4 + 2 * point.crashes


async def test_a_map_may_be_in_a_loop_and_a_loop_in_a_map(autojump_clock: MockClock) -> None:
    text = """
    name: nested
    nodes:
      outer:
        kind: loop
        start: 1
        while: output < 3
        body:
          nodes:
            each:
              kind: map
              items: [1, 2]
              body:
                nodes:
                  inner:
                    kind: loop
                    while: output < 3
                    body: {nodes: {add: {kind: call, function: add, args: {value: "{{ output }}"}}}}
            next: {kind: call, function: add, args: {value: "{{ outputs['outer.begin'] }}"}}
          edges: [{from: each, to: next}]
    """

    @step
    async def add(value: int) -> int:
        done[value] += 1
        return value + 1

    graph = parse(text, functions=[add])
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == 3
        steps = [each.step for each in await runtime.history("r")]
    assert {"add#[0]", "add#[0]#2", "add#[1]", "add#[2:0]"} <= {*steps}
