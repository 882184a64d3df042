"""Views of runs with long journals: what they cost does not grow with the journal, a watch does not
slow its run down, and a long read leaves the loop free."""

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import pairwise
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Continue,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    Retry,
    Runtime,
    State,
    StepFailed,
    Succeed,
    TransientError,
    Turn,
    current_step,
    machine,
    open_reader,
    step,
    workflow,
)
from keyrun.status import Progress
from keyrun.storage import MemoryStore
from keyrun.storage.record import seal, unseal
from keyrun.testing import open_test_runtime, virtual_wall

LONG = 2000
PATIENT = Limits(max_iterations=10 * LONG)


class CountingStore(MemoryStore):
    """Counts the journal entries that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.entries_read = 0

    async def _scan(
        self, table: str, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        rows = await super()._scan(table, start, stop, limit, reverse)
        if table == "journal":
            self.entries_read += len(rows)
        return rows

    async def count(self, call: Awaitable[Any]) -> int:
        before = self.entries_read
        await call
        return self.entries_read - before


@step
async def quick(value: int) -> int:
    return value


@step
async def patient(seconds: float) -> None:
    await trio.sleep(seconds)


@workflow(name="long", limits=PATIENT)
async def long_function(ctx: Context, turns: int) -> None:
    for turn in range(turns):
        await ctx.step(quick, turn)
    await ctx.sleep(1000)


async def count_up(given: NodeInput) -> int:
    return given.iteration


async def rest(given: NodeInput) -> None:
    await trio.sleep(100)


def long_loop() -> Graph:
    graph = Graph("loop", limits=PATIENT)
    graph.node("inc", count_up)
    graph.node("rest", rest)
    graph.edge("inc", "inc", when="output < input", back=True)
    graph.edge("inc", "rest", when="output == input")
    return graph


def chain(length: int) -> Graph:
    graph = Graph("chain")
    for at in range(length):
        graph.node(f"n{at}", count_up)
        if at:
            graph.edge(f"n{at - 1}", f"n{at}")
    return graph


@pytest.mark.parametrize("flow", [long_function, long_loop()], ids=lambda flow: flow.name)
async def test_the_progress_of_a_run_in_memory_or_ended_does_not_read_its_journal(
    flow: Any, autojump_clock: MockClock
) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, LONG, key="k", run_id="r")
        await trio.sleep(0.5)
        found = await runtime.progress("r")
        assert found is not None
        assert found.steps.done == LONG
        assert await store.count(runtime.progress("r")) <= 4
        await run.result()
        assert await store.count(runtime.progress("r")) <= 4


async def test_the_progress_of_an_evicted_run_does_not_read_its_journal(
    autojump_clock: MockClock,
) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[long_function], evict_after=1) as runtime:
        await runtime.submit(long_function, LONG, key="k", run_id="r")
        await trio.sleep(100)
        assert runtime.statistics().live == 0
        found = await runtime.progress("r")
        assert found is not None
        assert (found.state, found.steps.done, found.steps.waiting) == (State.WAITING, LONG, 1)
        assert await store.count(runtime.progress("r")) <= 4


async def test_a_summary_that_the_journal_has_outgrown_is_not_shown(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(quick, 1)
        await ctx.sleep(100)
        await ctx.step(quick, 2)
        await ctx.step(patient, 100)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], evict_after=1) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(50)
        assert runtime.statistics().live == 0
        await trio.sleep(100)
        await store.durable()
        store.crash()
    async with open_reader(store, wall=virtual_wall) as reader:
        found = await reader.progress("r")
    assert found is not None
    assert (found.state, found.steps.done) == (State.RUNNING, 2)


async def test_watching_a_graph_reads_no_journal_and_shows_its_end_at_once(
    autojump_clock: MockClock,
) -> None:
    graph, store = chain(100), CountingStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        began = trio.current_time()
        await runtime.submit(graph, key="k", run_id="r")
        before = store.entries_read
        seen = [each async for each in runtime.watch("r", interval=3600)]
        assert store.entries_read - before <= 10
        assert trio.current_time() - began < 1
    assert seen[-1].state is State.SUCCEEDED
    assert seen[-1].nodes is not None
    assert seen[-1].nodes["done"] == 100


async def test_a_watch_does_not_look_more_often_than_every_interval(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        for _ in range(100):
            await ctx.step(patient, 0.01)

    async with open_test_runtime(workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        times = [trio.current_time() async for _ in runtime.watch("r")]
        gaps = [two - one for one, two in pairwise(times[:-1])]
        assert gaps == pytest.approx([0.2] * 5)
        await runtime.submit(flow, key="k", run_id="every")
        assert len([each async for each in runtime.watch("every", interval=0)]) > 100


async def test_a_reader_that_watches_reads_each_entry_once(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        for _ in range(100):
            await ctx.step(patient, 1)

    graph = Graph("graph")
    for at in range(100):
        graph.node(f"n{at}", wait_a_second)
        if at:
            graph.edge(f"n{at - 1}", f"n{at}")
    for each in (flow, graph):
        store = CountingStore()
        async with open_test_runtime(store, workflows=[each]) as runtime:
            async with open_reader(store, wall=virtual_wall) as reader:
                await runtime.submit(each, key="k", run_id="r")
                before = store.entries_read
                seen = [found async for found in reader.watch("r", interval=1)]
        assert len(seen) > 90
        # One entry for each look to see whether the status record is up to date.
        assert store.entries_read - before <= 100 + 2 * len(seen)


async def wait_a_second(given: NodeInput) -> None:
    await trio.sleep(1)


async def passes_during(call: Callable[[], Awaitable[Any]]) -> int:
    """How often another task gets a turn before the call returns."""
    passes = 0

    async def count() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        await trio.lowlevel.checkpoint()
        await call()
        nursery.cancel_scope.cancel()
    return passes


async def test_reading_a_long_journal_leaves_the_loop_free(autojump_clock: MockClock) -> None:
    graph, store = long_loop(), MemoryStore()
    async with open_test_runtime(store, workflows=[graph]) as runtime:
        await runtime.submit(graph, LONG, key="k", run_id="r")
        await trio.sleep(1)
        async with open_reader(store, wall=virtual_wall) as reader:
            for call in (reader.progress, reader.execution_graph, reader.history):
                assert await passes_during(partial(call, "r")) >= 5


def without_summary(store: MemoryStore) -> None:
    """Make the status records those of an older Keyrun."""
    records = store._tables["status"].records
    for key, raw in records.items():
        records[key] = seal("status", key, unseal("status", key, raw)[:19])


@step(retry=Retry.fixed(max_attempts=2, delay=3, jitter=0))
async def flaky(failures: int) -> None:
    if current_step().attempt <= failures:
        raise TransientError("again")


@workflow(name="function")
async def eventful(ctx: Context, _: Any) -> None:
    ctx.report(10, "begun")
    await ctx.step(quick, 1)
    await ctx.step(flaky, 1)
    await ctx.sleep(20)
    try:
        await ctx.gather(ctx.step(patient, 2), ctx.step(patient, 9), ctx.step(flaky, 2))
    except StepFailed:
        await ctx.step(patient, 5)
    await ctx.wait_signal("go", timeout=30)


@machine(name="machine", retry=Retry.fixed(max_attempts=2, delay=3, jitter=0))
async def turning(t: Turn) -> Any:
    if t.number == 1 and t.attempt == 1:
        raise TransientError("again")
    await trio.sleep(2)
    return Succeed() if t.number == 3 else Continue(after=4)


async def stumble(given: NodeInput) -> None:
    if current_step().attempt == 1:
        raise TransientError("again")
    await trio.sleep(3)


async def refuse(given: NodeInput) -> None:
    await trio.sleep(7)
    raise PermanentError("no")


def eventful_graph(*, fails: bool) -> Graph:
    graph = Graph("failing graph" if fails else "graph")
    graph.node("inc", count_up)
    graph.node("slow", wait_a_second)
    graph.node("stumble", stumble, retry=Retry.fixed(max_attempts=2, delay=3, jitter=0))
    graph.node("refuse", refuse)
    graph.node("never", wait_a_second)
    graph.node("last", wait_a_second)
    graph.node("mend", wait_a_second)
    graph.edge("inc", "inc", when="output < 5", back=True)
    graph.edge("inc", "slow", when="output == 5")
    graph.edge("inc", "never", when="output == 6")
    graph.edge("slow", "stumble")
    graph.edge("slow", "refuse")
    graph.edge("stumble", "last")
    graph.edge("refuse", "mend", on="complete" if fails else "fail")
    return graph


EVENTFUL = [eventful, turning, eventful_graph(fails=False), eventful_graph(fails=True)]


@pytest.mark.parametrize("flow", EVENTFUL, ids=lambda flow: flow.name)
@pytest.mark.parametrize("evict_after", [1.0, 3600.0])
async def test_memory_status_record_and_journal_agree_on_the_progress(
    flow: Any, evict_after: float, autojump_clock: MockClock
) -> None:
    store = MemoryStore()

    def shown(found: Progress | None) -> Any:
        assert found is not None
        return attrs.asdict(found, recurse=False)

    async def check(runtime: Runtime) -> State:
        async with open_reader(store, workflows=[flow], wall=virtual_wall) as reader:
            known = shown(await runtime.progress("r"))
            assert shown(await reader.progress("r")) == known
            kept = dict(store._tables["status"].records) if "status" in store._tables else {}
            if kept:
                without_summary(store)
                assert shown(await reader.progress("r")) == known
                store._tables["status"].records.update(kept)
        state: State = known["state"]
        return state

    states = set()
    async with open_test_runtime(store, workflows=[flow], evict_after=evict_after) as runtime:
        await runtime.submit(flow, 0, key="k", run_id="r")
        for _ in range(90):
            await trio.sleep(1.03)
            states.add(await check(runtime))
    assert len(states) >= 2
