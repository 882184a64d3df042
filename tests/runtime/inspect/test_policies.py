"""The policies of a runtime: what steps may do, and how many calls run and wait."""

import trio
from trio.testing import MockClock

from keyrun import Context, Retry, TransientError, step, workflow
from keyrun.policies import CircuitBreaker, RateLimit, Resources
from keyrun.status import BreakerStatus, CircuitState, ConcurrencyStatus, RateStatus, ResourceStatus
from keyrun.testing import EPOCH, open_test_runtime


@step(max_concurrent=2, resources=Resources(cpu=3))
async def crunch() -> None:
    await trio.sleep(10)


@step(rate=RateLimit(1, per=10))
async def send() -> None: ...


@step(
    breaker=CircuitBreaker(minimum_calls=2, open_for=60),
    retry=Retry.fixed(delay=1, max_attempts=9, jitter=0),
)
async def call() -> None:
    raise TransientError("down")


@step
async def free() -> None: ...


@workflow
async def work(ctx: Context, name: str) -> None:
    steps = {"crunch": crunch, "send": send, "call": call, "free": free}
    await ctx.step(steps[name])


async def test_policies_show_their_limits_and_the_calls_that_run_and_wait(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(
        workflows=[work], resources=Resources(cpu=7, gpu=1), max_concurrent_steps=8
    ) as rt:
        nothing = await rt.policies()
        assert nothing.slots == ConcurrencyStatus(limit=8, running=0, waiting=0)
        assert (nothing.steps, nothing.resources) == ((), ())
        for name in ("crunch", "crunch", "crunch", "send", "send", "call", "free"):
            await rt.submit(work, name, key=f"{name}-{trio.current_time()}-{id(object())}")
            await trio.sleep(0.1)
        await trio.sleep(2)
        found = await rt.policies()
        assert found.slots == ConcurrencyStatus(limit=8, running=2, waiting=0)
        steps = {each.step: each for each in found.steps}
        assert steps.keys() == {"crunch", "send", "call"}
        crunched = steps["crunch"]
        assert (crunched.running, crunched.waiting, crunched.held) == (2, 1, 0)
        assert crunched.max_concurrent == ConcurrencyStatus(limit=2, running=2, waiting=1)
        assert crunched.resources == {"cpu": 3}
        assert (crunched.rate, crunched.breaker) == (None, None)
        assert steps["send"].rate == RateStatus(count=1, per=10, burst=1, waiting=1)
        assert found.resources == (
            ResourceStatus(name="cpu", graph=None, total=7, free=1, waiting=0),
            ResourceStatus(name="gpu", graph=None, total=1, free=1, waiting=0),
        )
        breaker = steps["call"].breaker
        assert breaker is not None
        assert breaker.opened_at is not None
        assert EPOCH + 1 < breaker.opened_at < EPOCH + 2
        assert breaker == BreakerStatus(
            state=CircuitState.OPEN,
            calls=2,
            failures=2,
            failure_rate=1.0,
            opens_at_rate=0.5,
            minimum_calls=2,
            opened=1,
            opened_at=breaker.opened_at,
            retry_at=breaker.opened_at + 60,
        )
