"""Delivery of the outbox: its memory is limited, and every key gets its turn."""

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest
import trio
import trio.lowlevel
from trio.testing import MockClock

from keyrun import Context, RunOutcome, Runtime, workflow
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime


@workflow
async def echo(ctx: Context, value: Any) -> Any:
    return value


@pytest.fixture(params=[(1, 0, 1), (2, 1, 1), (4, 3, 16), (256, 10_000, 16)], ids=str)
def sizes(request: pytest.FixtureRequest) -> tuple[int, int, int]:
    """Room for ready keys, room for keys in backoff, and calls at once."""
    window, backing_off, at_once = request.param
    return window, backing_off, at_once


def tuning(sizes: tuple[int, int, int]) -> Tuning:
    window, backing_off, at_once = sizes
    return Tuning(
        hook_window=window,
        hook_backoffs=backing_off,
        hook_calls=at_once,
    )


async def submit(rt: Runtime, keys: int, ends: int) -> None:
    async with trio.open_nursery() as nursery:
        for key in range(keys):
            for end in range(ends):
                start = partial(rt.submit, echo, end, key=f"key-{key}", run_id=f"{key}-{end}")
                nursery.start_soon(start)
                await trio.lowlevel.checkpoint()


async def left_behind(keys: int, ends: int) -> MemoryStore:
    """A store with undelivered ends."""
    store, broken = MemoryStore(), RecordingHook(failures=1_000_000)
    async with open_test_runtime(store, workflows=[echo], on_terminal=broken) as rt:
        await submit(rt, keys, ends)
        await trio.sleep(1)
    return store


class Recorder:
    """A hook that fails for some runs until it is repaired."""

    def __init__(self, fails: Callable[[str], bool] = lambda run_id: False) -> None:
        self.seen: list[str] = []
        self.calls: Counter[str] = Counter()
        self.fails = fails

    async def __call__(self, outcome: RunOutcome) -> None:
        self.calls[outcome.run_id] += 1
        await trio.sleep(0.001)
        if self.fails(outcome.run_id):
            raise RuntimeError("not now")
        self.seen.append(outcome.run_id)

    def of(self, key: int) -> list[str]:
        return [run_id for run_id in self.seen if run_id.split("-")[0] == str(key)]


@pytest.mark.parametrize("stored", [True, False])
async def test_every_end_is_delivered_once_in_the_order_of_its_key(
    autojump_clock: MockClock, sizes: tuple[int, int, int], stored: bool
) -> None:
    hook = Recorder()
    store = await left_behind(40, 5) if stored else MemoryStore()
    async with open_test_runtime(
        store, workflows=[echo], on_terminal=hook, tuning=tuning(sizes)
    ) as rt:
        if not stored:
            await submit(rt, 40, 5)
        await trio.sleep(100)
        assert rt.statistics().waiting_outcomes == 0
    assert len(hook.seen) == 200
    for key in range(40):
        assert hook.of(key) == [f"{key}-{end}" for end in range(5)]


async def test_keys_whose_ends_fail_hold_up_no_other_key_and_are_tried_again(
    autojump_clock: MockClock, sizes: tuple[int, int, int]
) -> None:
    hook = Recorder(lambda run_id: int(run_id.split("-")[0]) % 2 == 0)
    store = await left_behind(40, 3)
    async with open_test_runtime(
        store, workflows=[echo], on_terminal=hook, tuning=tuning(sizes)
    ) as rt:
        await trio.sleep(100)
        assert len(hook.seen) == 60
        await trio.sleep(900)
        # Backoff ends at one call per minute, also for keys that memory had no room for.
        assert all(5 < hook.calls[f"{key}-0"] < 40 for key in range(0, 40, 2))
        hook.fails = lambda run_id: False
        await trio.sleep(300)
        assert rt.statistics().waiting_outcomes == 0
    for key in range(40):
        assert hook.of(key) == [f"{key}-{end}" for end in range(3)]


async def test_new_ends_do_not_starve_those_that_were_left_behind(
    autojump_clock: MockClock, sizes: tuple[int, int, int]
) -> None:
    hook = Recorder()
    store = await left_behind(20, 2)
    async with open_test_runtime(
        store, workflows=[echo], on_terminal=hook, tuning=tuning(sizes)
    ) as rt:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flood, partial(rt.submit, echo, 0))
            await trio.sleep(1)
            assert all(hook.of(key) == [f"{key}-0", f"{key}-1"] for key in range(20))
            nursery.cancel_scope.cancel()
        await trio.sleep(100)
        assert rt.statistics().waiting_outcomes == 0


async def flood(submit: Callable[..., Awaitable[object]]) -> None:
    """More ends per second than the hook takes."""
    number = 100
    while True:
        for _ in range(3):
            await submit(key=f"new-{number % 50}", run_id=f"{number}-x")
            number += 1
        await trio.sleep(0.002)


async def test_leaving_the_block_tries_all_keys_once(
    autojump_clock: MockClock, sizes: tuple[int, int, int]
) -> None:
    hook = Recorder(lambda run_id: True)
    store = await left_behind(30, 2)
    async with open_test_runtime(store, workflows=[echo], on_terminal=hook, tuning=tuning(sizes)):
        began = trio.current_time()
    assert trio.current_time() - began < 1
    assert sorted(hook.calls) == sorted(f"{key}-0" for key in range(30))


async def test_leaving_the_block_does_not_wait_longer_than_its_drain_for_a_long_outbox(
    autojump_clock: MockClock,
) -> None:
    seen = list[str]()

    async def slow(outcome: RunOutcome) -> None:
        await trio.sleep(1)
        seen.append(outcome.run_id)

    store = await left_behind(10, 100)
    async with open_test_runtime(store, workflows=[echo], on_terminal=slow, drain_timeout=7):
        began = trio.current_time()
    assert trio.current_time() - began == pytest.approx(7, abs=0.1)
    hook = Recorder()
    async with open_test_runtime(store, workflows=[echo], on_terminal=hook):
        await trio.sleep(10)
    assert len(set(seen) | set(hook.seen)) == 1000
    assert len(seen) + len(hook.seen) == 1000
