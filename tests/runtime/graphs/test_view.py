"""The live view: where a run of a graph is, from its own process and from another."""

from typing import Any

import trio
from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, Port, Reader, State, step, workflow
from keyrun.graphs import ExecutionGraph, NodeState, durable
from keyrun.runtime.definitions.workflow import Registry
from keyrun.runtime.inspect.graph_shapes import StoredGraphs
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.records.tables import Ledger
from keyrun.storage import MemoryStore
from keyrun.storage.payload import PayloadCodec
from keyrun.testing import open_test_runtime, virtual_wall
from tests.runtime.graphs.nodes import SOON, Log, ended


def stranger(store: MemoryStore) -> Reader:
    """A reader that has no code, as in another process."""
    ledger = Ledger(store.namespace("default"))
    reading = StatusReader(ledger, PayloadCodec(), Registry([]))
    return Reader(ledger, reading, virtual_wall)


def states(graph: ExecutionGraph | None) -> dict[str, str]:
    assert graph is not None
    return {node.id: str(node.state) for node in graph.nodes}


def taken(graph: ExecutionGraph | None) -> set[tuple[str, str]]:
    assert graph is not None
    return {(edge.source, edge.target) for edge in graph.edges if edge.taken}


def order(log: Log) -> Graph:
    graph = Graph("order")
    graph.node("check", log.leaves("good", {"n": 5}), ports=("good", "bad"))
    graph.node("slow", log.node(10))
    graph.node("stumble", log.flaky(1), retry=SOON)
    graph.node("reject", log.node())
    graph.node("mourn", log.node())
    graph.node("big", log.node())
    graph.node("last", log.node())
    graph.edge("check", "slow", port="good")
    graph.edge("check", "stumble", port="good")
    graph.edge("check", "reject", port="bad")
    graph.edge("check", "big", when="output.n > 100")
    graph.edge("reject", "mourn")
    graph.edge("slow", "last")
    graph.edge("stumble", "last")
    return graph


async def test_nodes_and_edges_are_shown_while_it_runs(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    graph = order(Log())
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(0.5)
        for reader in (runtime, stranger(store)):
            seen = await reader.execution_graph("r")
            assert states(seen) == {
                "check": "done",
                "slow": "running",
                "stumble": "waiting",
                "reject": "skipped",
                "mourn": "skipped",
                "big": "skipped",
                "last": "pending",
            }
            assert taken(seen) == {("check", "slow"), ("check", "stumble")}
            progress = await reader.progress("r")
            assert progress is not None
            assert progress.nodes is not None
            assert progress.nodes["skipped"] == 3
            assert progress.nodes["done"] == progress.nodes["running"] == 1
            assert progress.percent == 25
            assert progress.time_left is not None
        assert await run.result() is not None
        seen = await runtime.execution_graph("r")
        assert seen is not None
        assert seen.state is State.SUCCEEDED
        assert seen.percent == 100
        by_id = {node.id: node for node in seen.nodes}
        assert by_id["slow"].mean == 10
        assert by_id["stumble"].attempt == 2
        assert by_id["stumble"].state is NodeState.DONE
        assert by_id["last"].ended_at is not None
        assert by_id["last"].queue == 0
        theirs = await stranger(store).execution_graph("r")
        assert states(theirs) == states(seen)
        assert theirs is not None
        assert theirs.nodes[0].queue is None


async def test_a_failed_run_shows_what_was_cancelled(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g", fail_fast=True)
    graph.node("bad", log.fails(1))
    graph.node("slow", log.node(50))
    graph.node("next", log.node())
    graph.node("after", log.node())
    graph.edge("slow", "next")
    graph.edge("bad", "after")
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await ended(await runtime.submit(graph, key="k", run_id="r"))
        seen = await runtime.execution_graph("r")
        assert states(seen) == {
            "bad": "failed",
            "slow": "cancelled",
            "next": "cancelled",
            "after": "skipped",
        }
        assert seen is not None
        assert seen.nodes[0].failure is not None


async def test_a_turn_that_was_never_begun_is_cancelled_when_the_run_has_failed(
    autojump_clock: MockClock,
) -> None:
    log = Log()

    async def head(given: NodeInput) -> int:
        return given.iteration

    graph = Graph("g", fail_fast=True, max_concurrency=1)
    graph.node("head", head)
    graph.node("bad", log.fails())
    graph.node("again", log.node())
    graph.edge("head", "bad", when="output == 2")
    graph.edge("head", "again")
    graph.edge("head", "head", back=True, when="output == 1")
    async with open_test_runtime(workflows=[graph]) as runtime:
        await ended(await runtime.submit(graph, key="k", run_id="r"))
        seen = await runtime.execution_graph("r")
    assert states(seen) == {"head": "done", "bad": "failed", "again": "cancelled"}


async def test_turns_of_loops_and_workflow_code_are_shown(autojump_clock: MockClock) -> None:
    @step
    async def inner() -> int:
        return 1

    @durable
    async def code(ctx: Context, given: NodeInput) -> Port:
        await ctx.step(inner)
        await ctx.sleep(1)
        return Port("again" if given.iteration < 3 else "enough")

    log = Log()
    graph = Graph("g")
    graph.node("head", log.node())
    graph.node("code", code, ports=("again", "enough"))
    graph.node("tail", log.node(5))
    graph.edge("head", "code")
    graph.edge("code", "head", port="again", back=True)
    graph.edge("code", "tail", port="enough")
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(1.5)
        assert states(await runtime.execution_graph("r")) == {
            "head": "done",
            "code": "waiting",
            "tail": "pending",
        }
        await trio.sleep(2)
        assert states(await stranger(store).execution_graph("r"))["tail"] == "running"
        await run.result()
        seen = await stranger(store).execution_graph("r")
        assert seen is not None
        assert {node.id: node.turns for node in seen.nodes} == {"head": 3, "code": 3, "tail": 1}
        assert taken(seen) == {("head", "code"), ("code", "head"), ("code", "tail")}


async def test_how_many_calls_wait_is_known_where_they_run(autojump_clock: MockClock) -> None:
    log = Log()
    graph = Graph("g")
    graph.node("narrow", log.node(10), max_concurrent=1)
    async with open_test_runtime(workflows=[graph]) as runtime:
        for key in "abc":
            await runtime.submit(graph, key=key, run_id=key)
        await trio.sleep(1)
        seen = await runtime.execution_graph("a")
        assert seen is not None
        assert seen.nodes[0].queue == 2
        assert states(await runtime.execution_graph("c")) == {"narrow": "waiting"}


async def test_what_is_no_graph_has_no_view(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        pass

    async with open_test_runtime(workflows=[flow]) as runtime:
        await (await runtime.submit(flow, key="k", run_id="r")).result()
        assert await runtime.execution_graph("r") is None
        assert await runtime.execution_graph("nobody") is None
        progress = await runtime.progress("r")
        assert progress is not None
        assert progress.nodes is None


class Sealed(PayloadCodec):
    """Cannot read what others wrote, as without the key of a `transform`."""

    def decode(self, payload: bytes, declared: Any = Any) -> Any:
        raise ValueError("no key")


async def test_conditions_that_nobody_here_can_answer_are_inferred(
    autojump_clock: MockClock, monkeypatch: Any
) -> None:
    store = MemoryStore()
    graph = order(Log())
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await (await runtime.submit(graph, key="k", run_id="r")).result()
        expected = states(await runtime.execution_graph("r"))

        reader = stranger(store)
        ledger = Ledger(store.namespace("default"))
        monkeypatch.setattr(
            reader._inspector, "_graphs", StoredGraphs(ledger, Sealed(), Registry([]))
        )
        assert states(await reader.execution_graph("r")) == expected
