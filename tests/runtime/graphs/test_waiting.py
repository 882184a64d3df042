"""Graphs that wait: for people and signals, out of memory, and through restarts."""

import trio
from trio.testing import MockClock

from keyrun import ApprovalRejected, Context, Graph, NodeInput, Port, SignalTimeout
from keyrun.graphs import durable
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.graphs.nodes import Log


@durable
async def ask(ctx: Context, given: NodeInput) -> Port:
    try:
        approval = await ctx.approval("boss", timeout=1000)
    except ApprovalRejected:
        return Port("no")
    except SignalTimeout:
        return Port("late")
    return Port("yes", approval.by)


def asking(log: Log) -> Graph:
    graph = Graph("asking")
    graph.node("before", log.node(1))
    graph.node("beside", log.node(5))
    graph.node("ask", ask, ports=("yes", "no", "late"))
    for port in ("yes", "no", "late"):
        graph.node(port, log.node())
        graph.edge("ask", port, port=port)
    graph.edge("before", "ask")
    return graph


async def test_a_graph_whose_nodes_all_wait_leaves_memory_and_comes_back(
    autojump_clock: MockClock,
) -> None:
    log = Log()
    graph = asking(log)
    async with open_test_runtime(workflows=[graph], evict_after=1) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(4)
        assert runtime.statistics().live == 1
        await trio.sleep(6)
        assert runtime.statistics().live == 0
        await runtime.approve("r", "ask/boss", by="ada")
        assert await run.result() == {"beside": "beside", "yes": "yes"}
    assert log.given["yes"].output == "ada"
    assert log.begun == ["before", "beside", "yes"]


async def test_reject_and_timeout_take_their_ports(autojump_clock: MockClock) -> None:
    for expected in ("no", "late"):
        log = Log()
        graph = asking(log)
        async with open_test_runtime(workflows=[graph]) as runtime:
            run = await runtime.submit(graph, key="k", run_id="r")
            await trio.sleep(2)
            if expected == "no":
                await runtime.reject("r", "ask/boss", by="ada")
            await run.result()
        assert log.begun[-1] == expected


async def test_an_approval_passes_after_a_restart(autojump_clock: MockClock) -> None:
    log = Log()
    graph = asking(log)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(2)
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        run = await runtime.submit(graph, key="k", run_id="r")
        await trio.sleep(10)
        await runtime.approve("r", "ask/boss", by="ada")
        await run.result()
    assert log.begun == ["before", "beside", "beside", "yes"]
