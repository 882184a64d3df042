"""Approvals in flows: a person lets a run pass, or not, or does not come."""

from collections import Counter
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import GateNotWaiting, Graph, NodeInput, Runtime
from keyrun.flows import parse
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime

REVIEW = """
name: review
nodes:
  draft: {kind: call, function: work, args: {what: draft}}
  review: {kind: approval, timeout: 3600}
  send: {kind: call, function: work, args: {what: "sent {{ output.output }} for {{ output.by }}"}}
  drop: {kind: call, function: work, args: {what: "dropped: {{ output.comment }}"}}
  remind: {kind: call, function: work, args: {what: remind}}
edges:
  - {from: draft, to: review}
  - {from: review, to: send, port: approved}
  - {from: review, to: drop, port: rejected}
  - {from: review, to: remind, port: timeout}
"""

done: Counter[str] = Counter()


@pytest.fixture(autouse=True)
def _fresh() -> None:
    done.clear()


async def work(what: str) -> str:
    done[what] += 1
    return what


def review(text: str = REVIEW) -> Graph:
    return parse(text, functions=[work, again])


async def again(given: NodeInput) -> int:
    return given.iteration


async def decided(runtime: Runtime, gate: str, *, reject: bool = False, comment: str = "") -> None:
    """Decide as soon as the run waits there."""
    decide = runtime.reject if reject else runtime.approve
    while True:
        try:
            await decide("r", gate, by="Ann", comment=comment)
        except GateNotWaiting:
            await trio.sleep(1)
        else:
            return


async def test_an_approved_run_passes(autojump_clock: MockClock) -> None:
    graph = review()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decided(runtime, "review")
        assert await run.result() == {"send": "sent draft for Ann"}


async def test_it_passes_also_after_a_restart(autojump_clock: MockClock) -> None:
    graph, store = review(), MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(60)
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decided(runtime, "review")
        store.crash()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == {"send": "sent draft for Ann"}
    assert done["draft"] == 1


async def test_a_rejected_run_takes_the_port_for_that(autojump_clock: MockClock) -> None:
    graph = review()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decided(runtime, "review", reject=True, comment="too long")
        assert await run.result() == {"drop": "dropped: too long"}


async def test_nobody_who_comes_is_a_port_too(autojump_clock: MockClock) -> None:
    graph = review()
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == {"remind": "remind"}
        assert trio.current_time() == pytest.approx(3600, abs=1)


async def test_in_a_loop_each_turn_has_a_gate_of_its_own(autojump_clock: MockClock) -> None:
    text = """
    name: turns
    nodes:
      turns:
        kind: loop
        start: 0
        while: output < 2
        body:
          nodes:
            ask: {kind: approval}
            count: {kind: call, function: again}
          edges: [{from: ask, to: count, port: approved}]
    """
    graph = review(text)
    async with open_test_runtime(workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await decided(runtime, "ask")
        await decided(runtime, "ask#2")
        assert await run.result() == 2


@pytest.mark.parametrize(("waiting", "first"), [("hold", "r"), ("yield", "s")])
async def test_the_next_run_of_the_key_goes_ahead_only_where_the_flow_says_so(
    autojump_clock: MockClock, waiting: str, first: str
) -> None:
    graph = review(f"{REVIEW}while_waiting: {waiting}\n")
    ended: list[str] = []
    async with open_test_runtime(workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(60)
        await runtime.submit(graph, key="k", run_id="s")
        await trio.sleep(60)
        if waiting == "hold":
            with pytest.raises(GateNotWaiting):
                await runtime.approve("s", "review", by="Ann")
        else:
            await runtime.approve("s", "review", by="Ann")
        await trio.sleep(7200)
        for run_id in ("r", "s"):
            status = await runtime.status(run_id)
            assert status is not None
            assert status.ended_at is not None
            ended.append(f"{status.ended_at:020.3f} {run_id}")
    assert min(ended).endswith(first)


WHOLE = """
name: whole
nodes:
  start: {kind: call, function: work, args: {what: start}}
  left: {kind: call, function: work, args: {what: left}}
  right:
    kind: loop
    start: 0
    while: output < 2
    body: {nodes: {turn: {kind: call, function: again}}}
  join: {kind: call, function: work, args: {what: "joined {{ outputs.right }}"}}
  review: {kind: approval}
  end: {kind: call, function: work, args: {what: "{{ output.output }} and approved"}}
edges:
  - {from: start, to: left}
  - {from: start, to: right}
  - {from: left, to: join}
  - {from: right, to: join}
  - {from: join, to: review}
  - {from: review, to: end, port: approved}
"""


async def test_a_crash_at_any_commit_of_a_diamond_with_a_loop_and_an_approval_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    graph = review(WHOLE)

    async def scenario(runtime: Runtime) -> Any:
        run = await runtime.submit(graph, key="k", run_id="r")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(decided, runtime, "review")
            result = await run.result()
            nursery.cancel_scope.cancel()
        return result

    points = 0
    for point in crash_points():
        points += 1
        done.clear()
        result = await point.run(scenario, workflows=[graph])
        assert result == "joined 2 and approved", point
        assert max(done.values()) <= 1 + point.crashes
        assert sum(done.values()) <= 4 + point.crashes
    assert points > 10
