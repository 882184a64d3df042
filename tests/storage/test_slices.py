"""A host that shares its loop with Trio gets its turn while many tasks are woken by one commit."""

from collections import Counter

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun.storage import MemoryStore
from keyrun.storage.errors import StoreError


async def _wait_for_commit(
    store: MemoryStore, size: int | None, tasks: int, cancel: int | None = None
) -> tuple[Counter[int], list[int]]:
    """Let many tasks wait for one commit. Return how many were woken in each pass of the loop, and
    their order. `cancel` is cancelled when the commit is durable, before it is woken."""
    passes = 0
    woken: list[tuple[int, int]] = []

    async def count_passes() -> None:
        nonlocal passes
        while True:
            await trio.lowlevel.checkpoint()
            passes += 1

    async def wait(number: int, scope: trio.CancelScope) -> None:
        with scope:
            await group.wait()
            woken.append((passes, number))

    async with store:
        if size is not None:
            store.group_commit.wake_in_slices(size)
        group = store.open_group()
        group.put("t", b"k", b"v")
        scopes = [trio.CancelScope() for _ in range(tasks)]
        if cancel is not None:
            group.when_durable(scopes[cancel].cancel)
        async with trio.open_nursery() as counting:
            counting.start_soon(count_passes)
            async with trio.open_nursery() as nursery:
                for number, scope in enumerate(scopes):
                    nursery.start_soon(wait, number, scope)
            counting.cancel_scope.cancel()
    first = min(at for at, _ in woken)
    return Counter(at - first for at, _ in woken), [number for _, number in woken]


async def test_all_tasks_are_woken_in_one_pass_by_default(autojump_clock: MockClock) -> None:
    per_pass, woken = await _wait_for_commit(MemoryStore(), None, 50)
    assert sorted(woken) == list(range(50))
    assert len(per_pass) <= 2  # the counter may run before or after a task in the same pass


async def test_slices_wake_a_few_tasks_in_each_pass(autojump_clock: MockClock) -> None:
    per_pass, woken = await _wait_for_commit(MemoryStore(), 5, 50)
    assert sorted(woken) == list(range(50))
    assert len(per_pass) >= 9
    assert max(per_pass.values()) <= 10


async def test_a_task_that_is_cancelled_before_its_slice_is_not_woken(
    autojump_clock: MockClock,
) -> None:
    _, woken = await _wait_for_commit(MemoryStore(), 2, 20, cancel=19)
    assert sorted(woken) == list(range(19))


async def test_the_groups_of_several_commits_are_woken_in_order(autojump_clock: MockClock) -> None:
    store, woken = MemoryStore(), []

    async def put(number: int) -> None:
        group = store.open_group()
        group.put("t", b"%d" % number, b"")
        await group.wait()
        woken.append(number)

    async with store:
        store.group_commit.wake_in_slices(1)
        async with trio.open_nursery() as nursery:
            for number in range(30):
                nursery.start_soon(put, number)
                await trio.lowlevel.checkpoint()
    assert sorted(woken) == list(range(30))


@pytest.mark.parametrize("size", [None, 5])
async def test_a_commit_waits_for_the_records_of_all_tasks_that_the_commit_before_has_woken(
    size: int | None, autojump_clock: MockClock
) -> None:
    store = MemoryStore()

    async def put(number: int, rounds: int) -> None:
        for _ in range(rounds):
            group = store.open_group()
            group.put("t", b"%d" % number, b"")
            await group.wait()

    async with store:
        if size is not None:
            store.group_commit.wake_in_slices(size)
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for number in range(100):
                # Most tasks, and so whole slices, end without more records.
                nursery.start_soon(put, number, 1 if 10 <= number < 90 else 3)
        assert store.group_commit.statistics().commits == 3


async def test_a_commit_waits_for_callers_that_callbacks_have_notified(
    autojump_clock: MockClock,
) -> None:
    store, rounds = MemoryStore(), 3

    async def put(number: int) -> None:
        for turn in range(rounds):
            for _ in range(turn and number):
                await trio.lowlevel.checkpoint()
            durable = trio.Event()

            def notified(error: StoreError | None, durable: trio.Event = durable) -> None:
                assert error is None
                durable.set()

            group = store.open_group()
            group.put("t", b"%d" % number, b"")
            group.notify(notified)
            await durable.wait()

    async with store:
        await wait_all_tasks_blocked()
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(put, number)
        assert store.group_commit.statistics().commits == rounds


class _Runnable(trio.abc.Instrument):
    """Notes how many tasks can run whenever Trio looks for I/O."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def before_io_wait(self, timeout: float) -> None:
        self.seen.append(trio.lowlevel.current_statistics().tasks_runnable)


async def test_trio_does_not_wait_before_the_host_has_reacted_to_a_commit(
    autojump_clock: MockClock,
) -> None:
    store, runnable = MemoryStore(), _Runnable()
    async with store:
        store.group_commit.wake_in_slices(5)
        await wait_all_tasks_blocked()
        group = store.open_group()
        group.put("t", b"k", b"v")
        group.notify(lambda _: trio.lowlevel.add_instrument(runnable))
        await trio.sleep(1)
        trio.lowlevel.remove_instrument(runnable)
    assert runnable.seen[0] == 1  # the driver of the commits, for one pass
    assert not any(runnable.seen[1:])
