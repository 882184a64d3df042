"""Nodes of graphs beside the same number of plain steps in a function, per second of CPU time."""

from collections.abc import Callable
from functools import partial
from time import perf_counter, process_time
from typing import Any

import trio

from benchmarks.figure import Bar
from benchmarks.folders import folder
from benchmarks.harness import Bench
from keyrun import Context, Graph, NodeInput, Workflow, open_runtime, step, workflow
from keyrun.storage import LmdbStore

LAYERS, WIDTH = 10, 5


async def node(given: NodeInput) -> dict[str, Any]:
    """Does nothing, and says so."""
    return {"status": "success", "amount": 200}


@step
async def plain() -> dict[str, Any]:
    """The same as a step of a function."""
    return {"status": "success", "amount": 200}


def function(steps: int) -> Workflow[None, None]:
    """So many plain steps, one after the other."""

    @workflow(name="function")
    async def run_steps(ctx: Context) -> None:
        for _ in range(steps):
            await ctx.step(plain)

    return run_steps


def layered(*, when: str | None = None, **policies: Any) -> Graph:
    """Fifty nodes in ten layers, each with edges to two nodes of the next layer."""
    graph = Graph("layered")
    for layer in range(LAYERS):
        for place in range(WIDTH):
            graph.node(f"n{layer}.{place}", node, **policies)
    for layer in range(LAYERS - 1):
        for place in range(WIDTH):
            for target in (place, (place + 1) % WIDTH):
                graph.edge(f"n{layer}.{place}", f"n{layer + 1}.{target}", when=when)
    return graph


def fan_out(width: int) -> Graph:
    """One node, and so many after it."""
    graph = Graph("fan-out")
    graph.node("start", node)
    for place in range(width - 1):
        graph.node(f"n{place}", node)
        graph.edge("start", f"n{place}")
    return graph


def chain(length: int) -> Graph:
    """So many nodes, one after the other."""
    graph = Graph("chain")
    for place in range(length):
        graph.node(f"n{place}", node)
        if place:
            graph.edge(f"n{place - 1}", f"n{place}")
    return graph


def nodes_per_second(
    make: Callable[[], Workflow[Any, Any]], nodes: int, keys: int, runs: int
) -> float:
    """Nodes, or steps, per second of CPU time, submit and result included."""

    async def main() -> float:
        flow = make()
        with folder() as path:
            async with open_runtime(LmdbStore(path), workflows=[flow]) as runtime:

                async def client(key: int) -> None:
                    for _ in range(runs):
                        await (await runtime.submit(flow, key=f"key-{key}")).result()

                started = process_time()
                async with trio.open_nursery() as nursery:
                    for key in range(keys):
                        nursery.start_soon(client, key)
                return keys * runs * nodes / (process_time() - started)

    return trio.run(main)


def milliseconds(make: Callable[[], Workflow[Any, Any]], runs: int) -> float:
    """From submit to result, one run at a time."""

    async def main() -> float:
        flow = make()
        with folder() as path:
            async with open_runtime(LmdbStore(path), workflows=[flow]) as runtime:
                started = perf_counter()
                for _ in range(runs):
                    await (await runtime.submit(flow, key="key")).result()
                return (perf_counter() - started) * 1000 / runs

    return trio.run(main)


def run(bench: Bench) -> None:
    """Measure."""
    nodes, keys = LAYERS * WIDTH, 32
    runs = bench.size(12, 4)
    measure = partial(nodes_per_second, nodes=nodes, keys=keys, runs=runs)
    bench.group(
        "50 nodes in layers",
        {
            "plain steps": partial(measure, partial(function, nodes)),
            "graph": partial(measure, layered),
        },
        unit="nodes/s",
        limit="plain steps",
        bars={"graph": Bar(value=0.6)},
    )
    # `benchmarks.compare` runs this file on older checkouts, which have no `keyrun.policies`.
    from keyrun.policies import CircuitBreaker, RateLimit

    guards: dict[str, Any] = {
        "breaker": CircuitBreaker(),
        "rate": RateLimit(10_000_000, per=1.0, burst=1_000_000),
    }
    when = 'output.status == "success" && output.amount > 100'
    bench.group(
        "what edges and nodes may say",
        {
            "graph": partial(measure, layered),
            "a condition on every edge": partial(measure, partial(layered, when=when)),
            "breaker and rate on every node": partial(measure, partial(layered, **guards)),
        },
        unit="nodes/s",
        limit="graph",
        bars={
            "a condition on every edge": Bar(value=0.9),
            "breaker and rate on every node": Bar(value=0.9),
        },
    )
    wide = bench.size(1_000, 1_000)
    for name, make in (("fan-out", fan_out), ("chain", chain)):
        bench.group(
            f"{wide} nodes, {name}",
            {
                "plain steps": partial(
                    nodes_per_second, partial(function, wide), wide, 4, bench.size(3, 1)
                ),
                "graph": partial(nodes_per_second, partial(make, wide), wide, 4, bench.size(3, 1)),
                "a tenth of the nodes": partial(
                    nodes_per_second, partial(make, wide // 10), wide // 10, 4, bench.size(30, 10)
                ),
            },
            unit="nodes/s",
            limit="plain steps",
            bars={"graph": Bar(value=0.6)},
        )
    bench.group(
        "one run of 50 nodes at a time",
        {"graph": partial(milliseconds, layered, bench.size(50, 10))},
        unit="ms",
        better="lower",
        bars={"graph": Bar(value=100, better="lower", absolute=True)},
    )
