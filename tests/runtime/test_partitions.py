"""Two partitions on one host: what they share, and that one leaves the other alone."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Entity,
    Graph,
    Limits,
    NodeInput,
    Retention,
    Retry,
    RunFailed,
    Runtime,
    Workflow,
    current_step,
    entity,
    step,
    workflow,
)
from keyrun.actors import Supervision
from keyrun.policies import CircuitBreaker, RateLimit
from keyrun.runtime.definitions.workflow import Registry
from keyrun.runtime.events.subscription import Events
from keyrun.runtime.host.host import Host
from keyrun.runtime.open import serve
from keyrun.runtime.partition import Partition
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore, Store, StoreClosed, StoreCrashed
from keyrun.storage.payload import PayloadCodec
from keyrun.testing import virtual_wall


@asynccontextmanager
async def opened(
    host: Host, store: Store, workflows: Iterable[Workflow[Any, Any]], drain_timeout: float = 10
) -> AsyncIterator[Runtime]:
    """Open a partition on `host`. Its background tasks are the host's own."""
    async with store, store.claim("default"):
        partition = Partition(
            store,
            host=host,
            registry=Registry(workflows, None),
            namespace="default",
            limits=Limits(),
            hook=None,
            hook_timeout=60.0,
            retention=Retention(),
            codec=PayloadCodec(None),
            supervision=Supervision(max_restarts=5, window=60.0),
            max_pending=100_000,
            max_pending_per_key=10_000,
            backpressure_timeout=30.0,
            evict_after=1.0,
            tuning=Tuning(),
            entities=[Book],
        )
        async with serve(partition, drain_timeout=drain_timeout, on_unregistered="hold"):
            yield Runtime(partition)


@asynccontextmanager
async def running(slots: int) -> AsyncIterator[Host]:
    host = Host(wall=virtual_wall, max_concurrent_steps=slots)
    async with trio.open_nursery() as nursery:
        for task in host.background:
            nursery.start_soon(task)
        yield host
        nursery.cancel_scope.cancel()


async def test_two_partitions_share_the_slots_of_their_host(autojump_clock: MockClock) -> None:
    at_once, most, by_store = 0, 0, set[str]()

    @step
    async def work() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        by_store.add(current_step().key[0])
        await trio.sleep(1)
        at_once -= 1

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work)

    async with (
        running(3) as host,
        opened(host, MemoryStore(), [job]) as one,
        opened(host, MemoryStore(), [job]) as two,
    ):
        both = ((1, one), (2, two))
        runs = [await rt.submit(job, key=f"{n}-{i}") for i in range(6) for n, rt in both]
        for run in runs:
            await run.result()
        assert one.statistics().running_steps == two.statistics().running_steps == 0
    assert most == 3
    assert by_store == {"1", "2"}


async def test_two_partitions_share_one_rate_and_one_circuit(autojump_clock: MockClock) -> None:
    began: list[float] = []
    calls = 0

    @step(rate=RateLimit(10, per=1.0))
    async def limited() -> None:
        began.append(trio.current_time())

    @step(
        retry=Retry.none(),
        breaker=CircuitBreaker(minimum_calls=4, failure_rate=0.5, open_for=1000, when_open="fail"),
    )
    async def failing() -> None:
        nonlocal calls
        calls += 1
        raise OSError("down")

    @workflow
    async def slowly(ctx: Context) -> None:
        await ctx.step(limited)

    @workflow
    async def broken(ctx: Context) -> None:
        await ctx.step(failing)

    async with (
        running(64) as host,
        opened(host, MemoryStore(), [slowly, broken]) as one,
        opened(host, MemoryStore(), [slowly, broken]) as two,
    ):
        runs = [await rt.submit(slowly, key=f"k{n}") for n in range(30) for rt in (one, two)]
        for run in runs:
            await run.result()
        for n in range(10):
            for rt in (one, two):
                with pytest.raises(RunFailed):
                    await (await rt.submit(broken, key=f"b{n}")).result()
        assert one.statistics().circuits == two.statistics().circuits
    # 60 calls of both at 10 per second. With a limit of its own, each would take half of that.
    assert began[-1] - began[0] == pytest.approx(5.9, rel=0.05)
    assert calls == 4


async def test_one_subscriber_receives_the_events_of_both_partitions(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def nothing(ctx: Context) -> None: ...

    async with (
        running(4) as host,
        opened(host, MemoryStore(), [nothing]) as one,
        opened(host, MemoryStore(), [nothing]) as two,
    ):
        seen: list[tuple[str, str | None]] = []
        async with one.events() as events:
            await (await one.submit(nothing, key="a", run_id="one")).result()
            await (await two.submit(nothing, key="a", run_id="two")).result()
            async for event in events:
                seen.append((str(event.kind), event.run_id))
                if len(seen) == 6:
                    break
    kinds = ("run_submitted", "run_started", "run_succeeded")
    assert seen == [(kind, run_id) for run_id in ("one", "two") for kind in kinds]
    assert isinstance(events, Events)


@step
async def work() -> str:
    await trio.sleep(100)
    return "done"


@workflow
async def job(ctx: Context) -> str:
    return await ctx.step(work)


@workflow
async def branches(ctx: Context) -> str:
    (done,) = await ctx.gather(ctx.step(work))
    return str(done)


async def slowly(given: NodeInput) -> str:
    await trio.sleep(100)
    return "done"


graph = Graph("graph")
graph.node("work", slowly)


@entity
class Book(Entity):
    async def read(self) -> str:
        await trio.sleep(100)
        return "done"


@pytest.mark.parametrize("how", ["drained", "failed"])
@pytest.mark.parametrize("flow", [job, branches, graph, Book])
async def test_a_partition_that_ends_leaves_the_other_running(
    autojump_clock: MockClock, how: str, flow: Any
) -> None:
    store, workflows = MemoryStore(), [job, branches, graph]

    async def call(rt: Runtime) -> None:
        with pytest.raises((StoreCrashed, StoreClosed)):
            await rt.entity(Book, "k").read()

    async with running(2) as host, opened(host, MemoryStore(), workflows) as other:
        run = await other.submit(job, key="k")
        async with trio.open_nursery() as nursery:
            try:
                async with opened(host, store, workflows, drain_timeout=1) as ending:
                    if flow is Book:
                        nursery.start_soon(call, ending)
                    else:
                        await ending.submit(flow, key="k", run_id="r")
                    await trio.sleep(1)
                    assert other.statistics().running_steps == 2
                    if how == "failed":
                        store.crash()
                        await trio.sleep(1)
            except StoreCrashed:
                assert how == "failed"
        assert other.statistics().running_steps == 1
        assert await run.result() == "done"
        async with opened(host, store, workflows) as again:
            if flow is not Book:
                handle = await again.submit(flow, key="k", run_id="r")
                assert not handle.newly_submitted
                await handle.result()
