"""Sagas in files: what was done is undone by nodes, once each, the last first."""

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Graph, NodeInput, PermanentError, RunCancelled, RunFailed, Runtime
from keyrun.flows import parse
from keyrun.testing import crash_points, open_test_runtime
from tests.flows.test_files import told

SAGA = """
name: saga
nodes:
  reserve: {kind: call, function: work, args: {what: reserve}, compensate: release}
  charge: {kind: call, function: work, args: {what: "charge {{ input }}"}, compensate: refund}
  ship: {kind: call, function: fail}
  release:
    kind: call
    function: work
    args: {what: "undo {{ output }} since {{ failed }} {{ why }}"}
  refund:
    kind: call
    function: shaky
    args: {what: "undo {{ output }} for {{ input }}, then {{ left | join }}"}
    retry: {shape: fixed, max_attempts: 3, delay: 7, jitter: 0}
edges:
  - {from: reserve, to: charge}
  - {from: charge, to: ship}
"""
UNDONE = ["undo charge 9 for 9, then reserve", "undo reserve since ship failed"]

did: list[str] = []
tries: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    did.clear()
    tries.clear()


async def work(what: str) -> str:
    did.append(what)
    return what


async def shaky(what: str) -> None:
    tries[what] += 1
    if tries[what] < 3:
        raise ValueError("not yet")
    did.append(what)


async def fail(given: NodeInput) -> None:
    raise PermanentError("no")


async def hang(given: NodeInput) -> None:
    await trio.sleep_forever()


def saga(text: str = SAGA) -> Graph:
    return parse(text, functions=[work, shaky, fail, hang])


async def test_nodes_undo_others_with_their_own_arguments_and_retries(
    autojump_clock: MockClock,
) -> None:
    graph = saga()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, 9, key="k", run_id="r")
        with pytest.raises(RunFailed, match="PermanentError: no"):
            await run.result()
        assert trio.current_time() == pytest.approx(14, abs=0.1)
    assert did == ["reserve", "charge 9", *UNDONE]


async def test_a_cancelled_run_is_undone_too(autojump_clock: MockClock) -> None:
    graph = saga(SAGA.replace("function: fail", "function: hang"))
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, 9, key="k", run_id="r")
        await trio.sleep(1)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
    assert did[2:] == [UNDONE[0], "undo reserve since None cancelled"]


async def test_a_run_that_succeeds_undoes_nothing(autojump_clock: MockClock) -> None:
    text = SAGA.replace("{kind: call, function: fail}", "{kind: branch, when: 'true'}")
    graph = saga(text)
    async with open_test_runtime(workflows=[graph]) as runtime:
        await (await runtime.submit(graph, 9, key="k")).result()
    assert did == ["reserve", "charge 9"]


async def test_each_is_undone_once_whatever_commit_the_process_is_killed_at(
    autojump_clock: MockClock,
) -> None:
    graph = saga(SAGA.replace("function: shaky", "function: work"))

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, 9, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        history = await runtime.history("r")
        return [each.step for each in history if each.event == "step_completed"]

    points = 0
    for point in crash_points():
        points += 1
        did.clear()
        done = await point.run(scenario, workflows=[graph])
        assert done == ["reserve", "charge", "undo()/charge", "undo()/reserve"], point
        assert len(did) <= 4 + point.crashes
    assert points > 6


async def test_only_what_led_to_the_failure_is_undone_where_the_flow_says_so(
    autojump_clock: MockClock,
) -> None:
    beside = "  beside: {kind: call, function: work, args: {what: beside}, compensate: release}\n"
    text = SAGA.replace("nodes:\n", "compensation: branch\nnodes:\n" + beside)
    graph = saga(text)
    async with open_test_runtime(workflows=[graph]) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(graph, 9, key="k")).result()
    assert sorted(did) == sorted(["beside", "reserve", "charge 9", *UNDONE])


def test_a_compensation_that_is_not_there_is_told() -> None:
    text = "name: a\nnodes:\n  a: {kind: http, url: 'http://u', compensate: nobody}\n"
    ((line, message),) = told(text)
    assert line == 3
    assert message == "nodes.a.compensate: there is no node 'nobody'"
