"""A wall clock that is set back makes nothing wait longer, in the same open or over a restart."""

from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Continue, Limits, Retry, Runtime, Succeed, Turn, machine, step, workflow
from keyrun.schedules import Every
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, open_test_runtime

HOUR = 3600.0
happened: list[float] = []
"""When what waited for 100 s went on."""


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    happened.clear()


class Clock:
    """A wall clock that somebody can set."""

    off = 0.0

    def __call__(self) -> float:
        return EPOCH + trio.current_time() + self.off


def note() -> None:
    happened.append(trio.current_time())


@workflow
async def noting(ctx: Context) -> None:
    note()


@workflow
async def sleeping(ctx: Context) -> None:
    await ctx.sleep(100)
    note()


@workflow
async def in_a_scope(ctx: Context) -> None:
    with ctx.move_on_after(100):
        await ctx.wait_signal("never")
    note()


@workflow
async def signalled(ctx: Context) -> None:
    try:
        await ctx.wait_signal("never", timeout=100)
    except TimeoutError:
        note()


@workflow
async def approved(ctx: Context) -> None:
    await ctx.approval("never", timeout=100)


@step(retry=Retry.fixed(max_attempts=2, delay=100, jitter=0))
async def fail_once(tries: list[int]) -> None:
    if trio.current_time() < 50:
        raise ValueError("not yet")
    note()


@workflow
async def retrying(ctx: Context) -> None:
    await ctx.step(fail_once, [])


@workflow(limits=Limits(run_timeout=100))
async def limited(ctx: Context) -> None:
    await ctx.sleep(10_000)


@machine(name="turning")
async def turning(turn: Turn) -> Continue | Succeed:
    if turn.number == 0:
        return Continue(after=100)
    note()
    return Succeed()


WORKFLOWS = [noting, sleeping, in_a_scope, signalled, approved, retrying, limited, turning]
Start = Callable[[Runtime], Awaitable[Any]]
STARTS: dict[str, Start] = {
    "a delayed run": lambda rt: rt.submit(noting, key="k", run_id="r", delay=100),
    "a timer": lambda rt: rt.submit(sleeping, key="k", run_id="r"),
    "a scope": lambda rt: rt.submit(in_a_scope, key="k", run_id="r"),
    "a signal's timeout": lambda rt: rt.submit(signalled, key="k", run_id="r"),
    "an approval's timeout": lambda rt: rt.submit(approved, key="k", run_id="r"),
    "a backoff": lambda rt: rt.submit(retrying, key="k", run_id="r"),
    "a run's deadline": lambda rt: rt.submit(limited, key="k", run_id="r"),
    "a turn": lambda rt: rt.submit(turning, key="k", run_id="r"),
    "a schedule": lambda rt: rt.schedule("s", noting, key="k", when=Every(100)),
}
BY_THEIR_END = ("an approval's timeout", "a run's deadline")


async def until_it_happens(rt: Runtime, name: str) -> None:
    """Wait until what was started has gone on, and note when that was."""
    while not happened:
        await trio.sleep(0.5)
        status = await rt.status("r")
        if name in BY_THEIR_END and status is not None and status.state.terminal:
            note()


@pytest.mark.parametrize("evict_after", [1.0, inf])
@pytest.mark.parametrize("how", ["while it is open", "over a restart", "before a restart"])
@pytest.mark.parametrize("name", STARTS)
async def test_a_clock_that_is_set_back_makes_nothing_wait_longer(
    autojump_clock: MockClock, name: str, how: str, evict_after: float
) -> None:
    store, clock = MemoryStore(), Clock()
    options: dict[str, Any] = {"workflows": WORKFLOWS, "wall": clock, "evict_after": evict_after}
    async with open_test_runtime(store, **options) as rt:
        await STARTS[name](rt)
        if how == "before a restart":
            await trio.sleep(30)
            clock.off = -HOUR
        await trio.sleep(60 - trio.current_time())
        if how == "while it is open":
            clock.off = -HOUR
            await until_it_happens(rt, name)
    clock.off = -HOUR
    if not happened:
        async with open_test_runtime(store, **options) as rt:
            await until_it_happens(rt, name)
    assert happened[0] == pytest.approx(100, abs=1)


async def test_a_delay_after_the_clock_was_set_back_is_as_long_as_it_was_meant(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), Clock()
    async with open_test_runtime(store, workflows=[noting], wall=clock) as rt:
        await trio.sleep(10)
        await rt.submit(noting, key="k")
        clock.off = -HOUR
        await rt.submit(noting, key="k", delay=100)
        await trio.sleep(50)
        await rt.submit(noting, key="k", delay=100)
    async with open_test_runtime(store, workflows=[noting], wall=clock) as rt:
        await trio.sleep(200)
    assert happened == [10, pytest.approx(110, abs=0.1), pytest.approx(160, abs=0.1)]


async def test_a_crash_does_not_make_a_delay_longer_than_it_was_meant(
    autojump_clock: MockClock,
) -> None:
    """Nobody knows how late it was then, but it was as late as when the run was submitted."""
    store, clock = MemoryStore(), Clock()
    async with open_test_runtime(store, workflows=[noting], wall=clock) as rt:
        await rt.submit(noting, key="k", delay=100)
        await trio.sleep(60)
        store.crash()
    clock.off = -HOUR
    async with open_test_runtime(store, workflows=[noting], wall=clock) as rt:
        await trio.sleep(110)
    assert happened == [pytest.approx(160, abs=0.1)]


async def test_a_crash_after_the_clock_was_set_back_is_no_reason_to_wait_longer(
    autojump_clock: MockClock,
) -> None:
    store, clock = MemoryStore(), Clock()
    async with open_test_runtime(store, workflows=[noting], wall=clock) as rt:
        await rt.submit(noting, key="k", delay=100)
        await trio.sleep(40)
        clock.off = -HOUR
        await trio.sleep(20)
        store.crash()
    async with open_test_runtime(store, workflows=[noting], wall=clock) as rt:
        await trio.sleep(110)
    # It was noticed within 10 s, and stored.
    assert 100 <= happened[0] <= 112


@pytest.mark.parametrize("name", ["a delayed run", "a timer"])
async def test_a_clock_that_is_set_forward_is_followed(
    autojump_clock: MockClock, name: str
) -> None:
    clock = Clock()
    async with open_test_runtime(workflows=WORKFLOWS, wall=clock) as rt:
        await STARTS[name](rt)
        await trio.sleep(20)
        clock.off = HOUR
        await until_it_happens(rt, name)
    assert 20 <= happened[0] <= 32  # somebody looks every 10 s


async def test_the_failure_of_a_run_that_is_out_of_time_tells_how_long_it_took(
    autojump_clock: MockClock,
) -> None:
    clock = Clock()
    async with open_test_runtime(workflows=[limited], wall=clock) as rt:
        run = await rt.submit(limited, key="k", run_id="r")
        await trio.sleep(10)
        clock.off = -HOUR
        await trio.sleep(100)
        status = await run.status()
    assert status is not None
    assert status.failure is not None
    assert status.failure.elapsed == pytest.approx(100, abs=0.1)
    assert "after 100.0" in status.failure.reason
