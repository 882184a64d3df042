"""Circuit breakers: when calls are not made, and when they are again."""

from typing import Any

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from keyrun import (
    Context,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    Runtime,
    State,
    StepFailed,
    TransientError,
    step,
    workflow,
)
from keyrun.events import CircuitEvent, EventKind
from keyrun.policies import CircuitBreaker
from keyrun.runtime.policies.circuit_breaker import Circuit
from keyrun.status import CircuitState
from keyrun.testing import open_test_runtime

BREAKER = CircuitBreaker(
    failure_rate=0.5, minimum_calls=4, open_for=30, half_open_successes=2, window_calls=10
)


def call(circuit: Circuit, succeeded: bool | None) -> bool:
    """Make a call if it may be made."""
    era = circuit.admit()
    if era is not None:
        circuit.ended(era, succeeded)
    return era is not None


def opened() -> Circuit:
    circuit = Circuit("s", BREAKER)
    for _ in range(4):
        assert call(circuit, False)
    assert circuit.status().state is CircuitState.OPEN
    return circuit


async def test_it_does_not_open_before_the_minimum_of_calls() -> None:
    circuit = Circuit("s", BREAKER)
    for _ in range(3):
        assert call(circuit, False)
        assert circuit.status().state is CircuitState.CLOSED
    call(circuit, False)
    assert circuit.status().state is CircuitState.OPEN


async def test_it_opens_at_the_rate_and_not_below() -> None:
    circuit = Circuit("s", BREAKER)
    for succeeded in (True, True, True, False, False):
        call(circuit, succeeded)
    assert circuit.status().state is CircuitState.CLOSED
    call(circuit, False)
    assert circuit.status().failure_rate == 0.5
    assert circuit.status().state is CircuitState.OPEN


async def test_a_success_can_be_the_call_that_makes_up_the_minimum() -> None:
    circuit = Circuit("s", BREAKER)
    for succeeded in (False, False, False, True):
        call(circuit, succeeded)
    assert circuit.status().state is CircuitState.OPEN


async def test_only_the_last_calls_count(autojump_clock: MockClock) -> None:
    circuit = Circuit("s", BREAKER)
    for succeeded in [False, *[True] * 10, False, False, False, False]:
        call(circuit, succeeded)
    assert circuit.status().calls == 10
    assert circuit.status().failures == 4
    await trio.sleep(61)
    call(circuit, True)
    assert circuit.status().calls == 1
    assert circuit.status().failures == 0


async def test_calls_that_say_nothing_do_not_count() -> None:
    circuit = Circuit("s", BREAKER)
    for _ in range(20):
        call(circuit, None)
    assert circuit.status().calls == 0


async def test_it_lets_so_many_probes_through_as_must_succeed(autojump_clock: MockClock) -> None:
    circuit = opened()
    await trio.sleep(29)
    assert circuit.admit() is None
    await trio.sleep(1)
    first, second = circuit.admit(), circuit.admit()
    assert first is not None
    assert second is not None
    assert circuit.status().state is CircuitState.HALF_OPEN
    assert circuit.admit() is None
    circuit.ended(first, True)
    assert circuit.admit() is None
    circuit.ended(second, True)
    assert circuit.status().state is CircuitState.CLOSED
    assert circuit.status().calls == 0


async def test_a_probe_that_fails_opens_it_again(autojump_clock: MockClock) -> None:
    circuit = opened()
    await trio.sleep(30)
    first, second = circuit.admit(), circuit.admit()
    assert first is not None
    assert second is not None
    circuit.ended(first, False)
    assert circuit.status().state is CircuitState.OPEN
    assert circuit.status().opened == 2
    assert circuit.status().retry_in == 30
    circuit.ended(second, True)
    assert circuit.status().state is CircuitState.OPEN


async def test_a_probe_that_says_nothing_makes_room_for_another(autojump_clock: MockClock) -> None:
    circuit = opened()
    await trio.sleep(30)
    probes = [circuit.admit(), circuit.admit()]
    assert circuit.admit() is None
    assert probes[0] is not None
    circuit.ended(probes[0], None)
    assert circuit.admit() is not None


async def test_a_call_from_before_says_nothing(autojump_clock: MockClock) -> None:
    circuit = Circuit("s", BREAKER)
    early = circuit.admit()
    assert early is not None
    for _ in range(4):
        call(circuit, False)
    await trio.sleep(30)
    assert circuit.admit() is not None
    circuit.ended(early, False)
    assert circuit.status().state is CircuitState.HALF_OPEN


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"failure_rate": 0}, "failure_rate must be positive"),
        ({"failure_rate": 1.5}, "failure_rate must be at most 1"),
        ({"minimum_calls": 0}, "minimum_calls must be a whole number"),
        ({"minimum_calls": 200}, "minimum_calls must be at most window_calls"),
        ({"open_for": -1}, "open_for must be positive"),
        ({"half_open_successes": 0}, "half_open_successes must be"),
        ({"when_open": "panic"}, "when_open must be"),
    ],
)
def test_odd_breakers_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        CircuitBreaker(**options)


class Service:
    """Something outside that works or not."""

    def __init__(self) -> None:
        self.broken = True
        self.calls = 0

    def ask(self) -> str:
        self.calls += 1
        if self.broken:
            raise TransientError("down")
        return "answer"


async def test_a_step_waits_for_its_breaker_at_no_cost_in_attempts(
    autojump_clock: MockClock,
) -> None:
    service = Service()

    @step(breaker=BREAKER, retry=Retry.fixed(max_attempts=6, delay=1, jitter=0))
    async def ask() -> str:
        return service.ask()

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(ask)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
        assert service.calls == 4
        (circuit,) = runtime.statistics().circuits
        assert circuit.state is CircuitState.OPEN
        assert circuit.step == "ask"
        assert runtime.statistics().running_steps == 0
        assert [each.waiting for each in runtime.statistics().gates] == [1]
        service.broken = False
        assert await run.result() == "answer"
        assert trio.current_time() == 3 + 30
        attempts = [each.attempt for each in await runtime.history("r") if each.attempt]
        assert attempts == [1, 2, 3, 4, 5]


async def test_all_runs_share_it_and_every_retry_is_a_call(autojump_clock: MockClock) -> None:
    service = Service()

    @step(breaker=BREAKER, retry=Retry.fixed(max_attempts=2, delay=1, jitter=0))
    async def ask() -> str:
        return service.ask()

    @step(breaker=BREAKER)
    async def other() -> str:
        return "fine"

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(ask)

    @workflow
    async def another(ctx: Context) -> str:
        return await ctx.step(other)

    async with open_test_runtime(workflows=[flow, another]) as runtime:
        for key in "abc":
            await runtime.submit(flow, key=key)
        await trio.sleep(5)
        # The first attempts of all three, and the fourth call, which was one too many.
        assert service.calls == 4
        assert await (await runtime.submit(another, key="d")).result() == "fine"
        states = {each.step: each.state for each in runtime.statistics().circuits}
        assert states == {"ask": CircuitState.OPEN, "other": CircuitState.CLOSED}


async def test_permanent_errors_do_not_count(autojump_clock: MockClock) -> None:
    @step(breaker=BREAKER)
    async def refuse() -> None:
        raise PermanentError("never")

    @workflow
    async def flow(ctx: Context) -> int:
        failures = 0
        for _ in range(8):
            try:
                await ctx.step(refuse)
            except StepFailed:
                failures += 1
        return failures

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await (await runtime.submit(flow, key="k")).result() == 8
        assert runtime.statistics().circuits[0].calls == 0


async def test_timeouts_count(autojump_clock: MockClock) -> None:
    @step(breaker=BREAKER, timeout=1, retry=Retry.fixed(max_attempts=4, delay=1, jitter=0))
    async def hang() -> None:
        await trio.sleep(100)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(hang)

    async with open_test_runtime(workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k")
        await trio.sleep(20)
        (circuit,) = runtime.statistics().circuits
        assert (circuit.failures, circuit.state) == (4, CircuitState.OPEN)


async def test_when_open_it_may_fail_instead(autojump_clock: MockClock) -> None:
    service = Service()

    @step(
        breaker=CircuitBreaker(minimum_calls=2, when_open="fail"),
        retry=Retry.fixed(max_attempts=3, delay=1, jitter=0),
    )
    async def ask() -> str:
        return service.ask()

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(ask)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
        status = await run.status()
        assert status is not None
        assert status.state is State.FAILED
        failure = status.failure
        assert failure is not None
        assert failure.kind == "circuit_open"
        assert failure.numbers is not None
        assert failure.numbers["failures"] == 2
        assert failure.cause is not None
        assert "down" in failure.cause.reason
        assert service.calls == 2


async def test_changes_are_events(autojump_clock: MockClock) -> None:
    service = Service()

    @step(breaker=BREAKER, retry=Retry.fixed(max_attempts=9, delay=1, jitter=0))
    async def ask() -> str:
        return service.ask()

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.gather(ctx.step(ask), ctx.step(ask))

    kinds = [EventKind.CIRCUIT_OPENED, EventKind.CIRCUIT_HALF_OPENED, EventKind.CIRCUIT_CLOSED]
    told: list[EventKind] = []

    async def listen(runtime: Runtime) -> None:
        async with runtime.events(kinds=kinds) as events:
            async for event in events:
                assert isinstance(event, CircuitEvent)
                assert event.step == "ask"
                told.append(event.kind)

    async with open_test_runtime(workflows=[flow]) as runtime, trio.open_nursery() as nursery:
        nursery.start_soon(listen, runtime)
        await trio.testing.wait_all_tasks_blocked()
        run = await runtime.submit(flow, key="k")
        await trio.sleep(10)
        service.broken = False
        await run.result()
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert told == kinds


async def test_a_fallback_gets_the_numbers(autojump_clock: MockClock) -> None:
    service = Service()
    given_to_fallback: list[NodeInput] = []

    async def ask(given: NodeInput) -> str:
        return service.ask()

    async def cached(given: NodeInput) -> str:
        given_to_fallback.append(given)
        return "from the cache"

    async def show(given: NodeInput) -> str:
        return f"shown {given.output}"

    graph = Graph("g")
    graph.node(
        "ask", ask, breaker=BREAKER, fallback="cached", retry=Retry.fixed(max_attempts=2, delay=1)
    )
    graph.node("cached", cached)
    graph.node("show", show, join="any")
    graph.edge("ask", "show")
    graph.edge("cached", "show")
    async with open_test_runtime(workflows=[graph]) as runtime:
        for number in range(2):
            run = await runtime.submit(graph, key=f"k{number}")
            with pytest.raises(Exception, match="down"):
                await run.result()
        run = await runtime.submit(graph, key="k", run_id="r")
        assert await run.result() == "shown from the cache"
        assert service.calls == 4
    (given,) = given_to_fallback
    assert given.output["calls"] == 4
    assert given.output["failure_rate"] == 1.0
    assert given.error is not None
    assert given.error.kind == "circuit_open"


async def test_a_call_that_waits_for_a_slot_is_not_made_once_the_circuit_is_open(
    autojump_clock: MockClock,
) -> None:
    times: list[float] = []

    @step(
        retry=Retry.none(),
        breaker=CircuitBreaker(
            failure_rate=1.0, minimum_calls=2, open_for=30.0, half_open_successes=1
        ),
    )
    async def broken() -> None:
        times.append(trio.current_time())
        await trio.sleep(1)
        raise TransientError("as ever")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(broken)

    async with open_test_runtime(workflows=[flow], max_concurrent_steps=1) as runtime:
        for number in range(4):
            await runtime.submit(flow, key=f"k{number}")
        await trio.sleep(200)
    assert times == pytest.approx([0, 1, 32, 63], abs=0.1)
