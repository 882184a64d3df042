"""Throttles: how many calls at once and in how much time, over all runs, and what they need."""

import logging
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Graph,
    NodeInput,
    Priority,
    Retry,
    RunFailed,
    Runtime,
    TransientError,
    step,
    workflow,
)
from keyrun.errors import InvalidGraph
from keyrun.events import EventKind
from keyrun.graphs import durable
from keyrun.policies import RateLimit, Resources
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime


class Gauge:
    """Counts who is inside at the same time, and when who came in."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.times: list[float] = []
        self.order: list[Any] = []

    async def stay(self, seconds: float, name: Any = None) -> None:
        self.times.append(trio.current_time())
        self.order.append(name)
        self.inside += 1
        self.most = max(self.most, self.inside)
        await trio.sleep(seconds)
        self.inside -= 1


async def submit_all(runtime: Runtime, flow: Any, count: int) -> None:
    runs = [await runtime.submit(flow, number, key=f"k{number}") for number in range(count)]
    for run in runs:
        await run.result()


async def test_no_more_calls_at_once_than_allowed(autojump_clock: MockClock) -> None:
    gauge = Gauge()

    @step(max_concurrent=3)
    async def work(number: int) -> None:
        await gauge.stay(1 + number % 3)

    @workflow
    async def flow(ctx: Context, number: int) -> None:
        await ctx.gather(ctx.step(work, number), ctx.step(work, number))

    async with open_test_runtime(workflows=[flow]) as runtime:
        await submit_all(runtime, flow, 20)
        assert gauge.most == 3
        (status,) = runtime.statistics().gates
        assert (status.running, status.waiting) == (0, 0)


async def test_who_waits_for_a_throttle_holds_no_slot(autojump_clock: MockClock) -> None:
    gauge = Gauge()

    @step(max_concurrent=1)
    async def narrow(number: int) -> None:
        await gauge.stay(10)

    @step
    async def wide() -> None:
        await trio.sleep(1)

    @workflow
    async def flow(ctx: Context, number: int) -> None:
        await ctx.step(narrow, number)

    @workflow
    async def other(ctx: Context) -> None:
        await ctx.step(wide)

    async with open_test_runtime(workflows=[flow, other], max_concurrent_steps=2) as runtime:
        for number in range(5):
            await runtime.submit(flow, number, key=f"k{number}")
        await trio.sleep(1)
        assert runtime.statistics().running_steps == 1
        await (await runtime.submit(other, key="other")).result()
        assert trio.current_time() == 2


@pytest.mark.parametrize(("count", "per"), [(100, 1.0), (7, 1.0), (50, 2.0), (3, 0.1)])
async def test_the_rate_is_kept_within_five_percent(
    count: int, per: float, autojump_clock: MockClock
) -> None:
    gauge = Gauge()

    @step(rate=RateLimit(count, per=per))
    async def work() -> None:
        await gauge.stay(0.01)

    @workflow
    async def flow(ctx: Context, number: int) -> None:
        while trio.current_time() < 10:
            await ctx.gather(*(ctx.step(work) for _ in range(20)))

    async with open_test_runtime(workflows=[flow]) as runtime:
        began = trio.current_time()
        await submit_all(runtime, flow, 5)
        expected = 10 * count / per
        made = sum(began <= at < began + 10 for at in gauge.times)
        assert abs(made - expected) <= max(1, 0.05 * expected)
        for start in range(9):
            window = sum(start <= at < start + 1 for at in gauge.times)
            assert window <= count / per * 1.05 + 1


async def test_after_a_quiet_time_no_more_come_at_once_than_the_burst(
    autojump_clock: MockClock,
) -> None:
    gauge = Gauge()

    @step(rate=RateLimit(10, per=1, burst=4))
    async def work() -> None:
        await gauge.stay(0)

    @workflow
    async def flow(ctx: Context) -> None:
        for _ in range(2):
            await ctx.sleep(100)
            await ctx.gather(*(ctx.step(work) for _ in range(14)))

    async with open_test_runtime(workflows=[flow]) as runtime:
        await (await runtime.submit(flow, key="k")).result()
    first, second = gauge.times[:14], gauge.times[14:]
    for times in (first, second):
        assert sum(at == times[0] for at in times) == 4
        assert times[-1] - times[0] == pytest.approx(1.0)


async def test_calls_that_waited_for_a_slot_do_not_come_faster_than_their_rate(
    autojump_clock: MockClock,
) -> None:
    gauge = Gauge()

    @step(rate=RateLimit(1, per=1))
    async def paced() -> None:
        await gauge.stay(0.1)

    @step
    async def long() -> None:
        await trio.sleep(10)

    @workflow
    async def flow(ctx: Context, number: int) -> None:
        await ctx.step(paced if number else long)

    async with open_test_runtime(workflows=[flow], max_concurrent_steps=1) as runtime:
        await submit_all(runtime, flow, 8)
        assert runtime.statistics().running_steps == 0
    gaps = [late - early for early, late in zip(gauge.times, gauge.times[1:], strict=False)]
    assert len(gaps) == 6
    assert min(gaps) >= 0.999


async def test_a_cancelled_wait_takes_nothing(autojump_clock: MockClock) -> None:
    gauge = Gauge()

    @step(max_concurrent=1, rate=RateLimit(1, per=1), resources=Resources(cpu=1))
    async def work(name: str) -> None:
        await gauge.stay(5, name)

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        await ctx.step(work, name)

    async with open_test_runtime(workflows=[flow], resources=Resources(cpu=1)) as runtime:
        runs = [await runtime.submit(flow, name, key=name) for name in "abc"]
        await trio.sleep(1)
        await runs[1].cancel()
        await runs[2].result()
        assert gauge.order == ["a", "c"]
        assert trio.current_time() == 10
        (status,) = runtime.statistics().gates
        assert (status.running, status.waiting) == (0, 0)


async def test_higher_priority_goes_first_where_calls_wait(autojump_clock: MockClock) -> None:
    gauge = Gauge()

    @step(max_concurrent=1)
    async def work(name: str) -> None:
        await gauge.stay(1, name)

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        priority = Priority.HIGH if name.startswith("high") else Priority.LOW
        await ctx.step(work.options(priority=priority), name)

    async with open_test_runtime(workflows=[flow]) as runtime:
        names = ["first", "low1", "low2", "high1", "high2"]
        runs = [await runtime.submit(flow, name, key=name) for name in names]
        for run in runs:
            await run.result()
    assert gauge.order == ["first", "high1", "high2", "low1", "low2"]


async def test_resources_are_reserved_and_given_back(autojump_clock: MockClock) -> None:
    gauge = Gauge()
    used: list[float] = [0, 0]

    def made(cpu: float) -> Any:
        async def work(given: NodeInput) -> None:
            used[0] += cpu
            used[1] = max(used[1], used[0])
            await gauge.stay(1)
            used[0] -= cpu

        return work

    graph = Graph("g", resources=Resources(cpu=4, memory_mb=100))
    for number in range(12):
        cpu = 1 + number % 3
        graph.node(f"n{number}", made(cpu), resources=Resources(cpu=cpu, memory_mb=10))
    async with open_test_runtime(workflows=[graph]) as runtime:
        runs = [await runtime.submit(graph, key=key) for key in "ab"]
        for run in runs:
            await run.result()
    assert used == [0, 4]


async def test_a_retry_reserves_again(autojump_clock: MockClock) -> None:
    attempts = 0

    @step(
        resources=Resources(cpu=1),
        max_concurrent=1,
        retry=Retry.fixed(max_attempts=3, delay=10, jitter=0),
    )
    async def work(name: str) -> None:
        nonlocal attempts
        attempts += 1
        await trio.sleep(1)
        if name == "a" and attempts < 3:
            raise TransientError("again")

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        await ctx.step(work, name)

    async with open_test_runtime(workflows=[flow], resources=Resources(cpu=1)) as runtime:
        first = await runtime.submit(flow, "a", key="a")
        second = await runtime.submit(flow, "b", key="b")
        await second.result()
        assert trio.current_time() == 2
        await first.result()


async def test_who_waits_long_for_resources_is_told_of(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async def work(given: NodeInput) -> None:
        await trio.sleep(100)

    graph = Graph("g", resources=Resources(gpu=1))
    graph.node("work", work, resources=Resources(gpu=1))
    told: list[Any] = []

    async def listen(runtime: Runtime) -> None:
        async with runtime.events(kinds=[EventKind.STEP_STARVING]) as events:
            async for event in events:
                told.append(event)

    async with open_test_runtime(workflows=[graph]) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(listen, runtime)
        await runtime.submit(graph, key="a", run_id="a")
        last = await runtime.submit(graph, key="b", run_id="b")
        with caplog.at_level(logging.WARNING):
            await last.result()
        nursery.cancel_scope.cancel()
    (event,) = told
    assert (event.run_id, event.step) == ("b", "work")
    assert "gpu=1" in event.reason
    assert "has waited for 30 s" in caplog.text


async def test_a_large_need_is_not_overtaken_for_ever(autojump_clock: MockClock) -> None:
    gauge = Gauge()

    @step(resources=Resources(cpu=1))
    async def small(name: str) -> None:
        await gauge.stay(4, name)

    @step(resources=Resources(cpu=2))
    async def large(name: str) -> None:
        await gauge.stay(4, name)

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        if name == "large":
            await ctx.sleep(1)
            await ctx.step(large, name)
        else:
            await ctx.sleep(int(name) * 2)
            await ctx.step(small, name)

    async with open_test_runtime(workflows=[flow], resources=Resources(cpu=2)) as runtime:
        names = ["large", *map(str, range(20))]
        runs = [await runtime.submit(flow, name, key=name) for name in names]
        for run in runs:
            await run.result()
    # Small ones went ahead of it at first, and no more when its patience was over.
    assert 3 < gauge.order.index("large") < 9


def test_a_need_above_its_quota_is_refused() -> None:
    async def work(given: NodeInput) -> None:
        pass

    graph = Graph("g", resources=Resources(cpu=2))
    graph.node("a", work, resources=Resources(cpu=4, disk=1))
    with pytest.raises(InvalidGraph, match="node 'a': needs cpu=4, but the quota is 2"):
        graph.validate()


async def test_a_need_above_what_the_runtime_has_is_refused_and_never_waited_for(
    autojump_clock: MockClock,
) -> None:
    async def work(given: NodeInput) -> None:
        pass

    @step(resources=Resources(cpu=4))
    async def heavy() -> None:
        pass

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(heavy)

    graph = Graph("g")
    graph.node("a", work, resources=Resources(cpu=4))
    small = Resources(cpu=2)
    for _ in range(2):
        with pytest.raises(InvalidGraph, match="node 'a': needs cpu=4, but the quota is 2"):
            async with open_test_runtime(workflows=[graph], resources=small):
                pass
        async with open_test_runtime(workflows=[graph], resources=Resources(cpu=4)) as runtime:
            await (await runtime.submit(graph, key="k")).result()
    async with open_test_runtime(workflows=[flow], resources=small) as runtime:
        run = await runtime.submit(flow, key="k")
        with trio.fail_after(60), pytest.raises(RunFailed) as caught:
            await run.result()
        assert "'heavy' was not called: it needs cpu=4, but the quota is 2" in str(caught.value)


def test_a_fallback_needs_a_breaker_and_a_node() -> None:
    async def work(given: NodeInput) -> None:
        pass

    graph = Graph("g")
    graph.node("a", work, fallback="nowhere")
    with pytest.raises(InvalidGraph) as caught:
        graph.validate()
    assert "node 'a': fallback: there is no node 'nowhere'" in caught.value.errors
    assert any("requires a circuit breaker" in error for error in caught.value.errors)


@pytest.mark.parametrize(
    ("policies", "error", "said"),
    [
        ({"max_concurrent": 0}, ValueError, "max_concurrent must be a whole number"),
        ({"max_waiting": -1}, ValueError, "max_waiting must be a whole number"),
        ({"rate": 5}, TypeError, "rate must be a RateLimit"),
        ({"breaker": True}, TypeError, "breaker must be a CircuitBreaker"),
        ({"resources": {"cpu": 1}}, TypeError, "resources must be a Resources"),
        ({"compensate": 5}, TypeError, "compensate must be a function"),
        ({"speed": 5}, TypeError, "'speed' is not a policy"),
    ],
)
def test_odd_policies_are_refused(
    policies: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        step(**policies)


def test_odd_amounts_are_refused() -> None:
    for odd in (0, -1, True):
        with pytest.raises(ValueError, match="must be positive"):
            RateLimit(odd)
        with pytest.raises(ValueError, match="cpu must be positive"):
            Resources(cpu=odd)
    for burst in (0, 1.5, "5"):
        with pytest.raises(ValueError, match="burst must be a whole number of at least 1"):
            RateLimit(1, burst=burst)  # type: ignore[arg-type]
    for count, seconds in ((inf, 1), (1, inf)):
        with pytest.raises(ValueError, match="must be finite, got inf"):
            RateLimit(count, per=seconds)


@pytest.mark.parametrize("code", [False, True])
async def test_max_waiting_holds_the_nodes_before_it_back(
    code: bool, autojump_clock: MockClock
) -> None:
    waiting = most = produced = 0

    async def produce(given: NodeInput) -> None:
        nonlocal waiting, most, produced
        await trio.sleep(0.1)
        produced += 1
        waiting += 1
        most = max(most, waiting)

    async def consume(given: NodeInput) -> None:
        nonlocal waiting
        waiting -= 1
        await trio.sleep(10)

    @durable
    async def producing(ctx: Context, given: NodeInput) -> None:
        await ctx.step(produce, given)

    graph = Graph("g")
    graph.node("produce", producing if code else produce)
    graph.node("consume", consume, max_concurrent=2, max_waiting=3)
    graph.edge("produce", "consume")
    async with open_test_runtime(workflows=[graph]) as runtime:
        runs = [await runtime.submit(graph, key=f"k{number}") for number in range(20)]
        await trio.sleep(5)
        assert produced == 5
        assert waiting == 3
        for run in runs:
            await run.result()
    assert most == 3
    assert produced == 20


async def test_a_place_is_given_up_by_who_goes_another_way(autojump_clock: MockClock) -> None:
    async def choose(given: NodeInput) -> bool:
        await trio.sleep(0.1)
        return bool(given.run_input)

    async def consume(given: NodeInput) -> None:
        await trio.sleep(10)

    graph = Graph("g")
    graph.node("choose", choose)
    graph.node("consume", consume, max_concurrent=1, max_waiting=1)
    graph.edge("choose", "consume", when="output")
    async with open_test_runtime(workflows=[graph]) as runtime:
        runs = [await runtime.submit(graph, False, key=f"k{number}") for number in range(20)]
        for run in runs:
            await run.result()
        assert trio.current_time() < 5


async def test_a_drain_does_not_wait_for_throttles(autojump_clock: MockClock) -> None:
    gauge = Gauge()

    @step(max_concurrent=1)
    async def work(number: int) -> None:
        await gauge.stay(5, number)

    @workflow
    async def flow(ctx: Context, number: int) -> None:
        await ctx.step(work, number)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        for number in range(3):
            await runtime.submit(flow, number, key=f"k{number}", run_id=f"r{number}")
        await trio.sleep(1)
    assert trio.current_time() == 5
    assert len(gauge.order) == 1
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        for number in range(3):
            run = await runtime.submit(flow, number, key=f"k{number}", run_id=f"r{number}")
            await run.result()
    assert sorted(gauge.order) == [0, 1, 2]


async def test_a_paused_run_does_not_stand_in_the_way(autojump_clock: MockClock) -> None:
    gauge = Gauge()

    @step(max_concurrent=1)
    async def work(name: str) -> None:
        await gauge.stay(5, name)

    @workflow
    async def flow(ctx: Context, name: str) -> None:
        await ctx.step(work, name)

    async with open_test_runtime(workflows=[flow]) as runtime:
        runs = {name: await runtime.submit(flow, name, key=name, run_id=name) for name in "abc"}
        await trio.sleep(1)
        await runtime.pause("b")
        await runs["c"].result()
        assert gauge.order == ["a", "c"]
        await runtime.resume("b")
        await runs["b"].result()
