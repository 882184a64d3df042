"""Conformance of commits: staged records become durable in groups, also if no task waits."""

import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
import trio

from keyrun.storage.conformance.model import Place, Places, batch, run
from keyrun.storage.errors import StoreError
from keyrun.storage.store import Store

T = TypeVar("T")


def stand_still() -> None:
    """Block the loop for 2 ms of real time. A commit in another process or thread continues
    meanwhile, but its answer waits."""
    time.sleep(0.002)


def at_once(read: Coroutine[Any, Any, T]) -> T:
    """Return the result of a read, which must not suspend."""
    try:
        read.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    read.close()
    raise AssertionError("a read suspended")


def readable(store: Store, key: bytes) -> set[bool]:
    """Return whether `key` is in the tables red and green, by each way to read it."""
    found: set[bool] = set()
    for table in ("red", "green"):
        found.add(at_once(store.get(table, key)) is not None)
        found.add(at_once(store.scan(table, prefix=key)) != [])
        found.add(at_once(store.get_many(table, [key])) != {})
        found.add(at_once(store.scan_each(table, [key])) != [[]])
        with store.view():
            found.add(at_once(store.get(table, key)) is not None)
    return found


class CommitConformance(Places):
    """The tests of staged records."""

    def test_what_is_staged_is_not_seen_before_it_is_durable(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                store.stage(batch(("red", b"k", b"v")))
                assert await store.get("red", b"k") is None
                assert await store.scan("red") == []
                await store.durable()
                assert await store.get("red", b"k") == b"v"

        run(test)

    def test_a_batch_is_readable_when_its_commit_has_returned_and_not_before(
        self, place: Place
    ) -> None:
        """A task that reads a record can rely on it that the callbacks of its group have run."""

        async def test() -> None:
            async with place.store() as store:
                for number in range(10):
                    key = b"%d" % number
                    told: list[bool] = []
                    group = store.stage(batch(("red", key, b"v"), ("green", key, b"v")))
                    group.when_durable(told.append, True)
                    store.hasten()
                    while not group.durable:
                        assert readable(store, key) == {False}
                        await trio.lowlevel.checkpoint()
                        stand_still()
                        assert readable(store, key) == {bool(told)}
                    assert told

        run(test)

    def test_a_batch_whose_commit_a_crash_cut_off_is_not_readable_until_the_next_opening(
        self, place: Place
    ) -> None:
        async def test() -> None:
            for passes in range(6):
                key = b"%d" % passes
                async with place.store() as store:
                    group = store.stage(batch(("red", key, b"v"), ("green", key, b"v")))
                    store.hasten()
                    for _ in range(passes):
                        await trio.lowlevel.checkpoint()
                    acknowledged = group.durable
                    store.crash()
                    for _ in range(5):
                        stand_still()
                        assert readable(store, key) == {acknowledged}
                        await trio.lowlevel.checkpoint()
                async with place.store() as store:
                    after = readable(store, key)
                    assert after == {True} if acknowledged else len(after) == 1

        run(test)

    def test_records_that_nobody_waits_for_are_committed_within_50_ms(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                store.stage(batch(("red", b"k", b"v")))
                await trio.sleep(0.049)
                assert store.statistics().staged == 1
                await trio.sleep(0.002)
                assert store.statistics().staged == 0
                await store.durable()
                assert await store.get("red", b"k") == b"v"

        run(test)

    def test_waiting_commits_at_once(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                await store.commit(batch(("red", b"first", b"")))
                started = trio.current_time()
                await store.commit(batch(("red", b"k", b"v")))
                assert trio.current_time() == started

        run(test)

    def test_a_wait_cuts_the_lingering_of_earlier_records_short(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                started = trio.current_time()
                store.stage(batch(("red", b"a", b"1")))
                await trio.sleep(0.01)
                await store.commit(batch(("red", b"b", b"2")))
                assert trio.current_time() - started < 0.05
                assert await store.get("red", b"a") == b"1"

        run(test)

    def test_tasks_that_commit_at_the_same_time_share_commits(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                async with trio.open_nursery() as nursery:
                    for number in range(100):
                        one = batch(("red", b"%d" % number, b""))
                        nursery.start_soon(store.commit, one)
                assert store.statistics().records == 100
                assert store.statistics().commits <= 10
                assert len(await store.scan("red")) == 100

        run(test)

    def test_records_put_into_the_open_group_are_staged_without_a_copy(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                group = store.open_group()
                group.put("red", b"k", b"v")
                group.delete("red", b"gone")
                assert await store.get("red", b"k") is None
                await store.durable(group)
                assert group.durable
                assert await store.get("red", b"k") == b"v"

        run(test)

    def test_waiting_for_a_group_does_not_wait_for_later_ones(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                group = store.stage(batch(("red", b"a", b"")))
                await store.durable(group)
                store.stage(batch(("red", b"b", b"")))
                commits = store.statistics().commits
                await store.durable(group)
                assert store.statistics().commits == commits

        run(test)

    def test_what_is_hastened_does_not_linger(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                store.stage(batch(("red", b"k", b"v")))
                store.hasten()
                await trio.testing.wait_all_tasks_blocked()
                await trio.sleep(0.001)
                assert store.statistics().staged == 0

        run(test)

    def test_callbacks_of_a_group_come_in_order_before_its_waiters(self, place: Place) -> None:
        async def test() -> None:
            told: list[str] = []

            async with place.store() as store:
                group = store.stage(batch(("red", b"k", b"v")))
                for name in ("first", "second"):
                    group.when_durable(told.append, name)
                await store.durable(group)
                told.append("waiter")
            assert told == ["first", "second", "waiter"]

        run(test)

    def test_a_waiter_that_is_cancelled_takes_nothing_back(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                with trio.CancelScope() as scope:
                    store.stage(batch(("red", b"k", b"v")))
                    scope.cancel()
                    await store.durable()
                assert scope.cancelled_caught
                await store.durable()
                assert await store.get("red", b"k") == b"v"

        run(test)

    def test_a_group_that_is_durable_takes_no_more(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                group = store.stage(batch(("red", b"k", b"v")))
                await store.durable(group)
                with pytest.raises(StoreError, match=r"open_group\(\) again after each await"):
                    group.put("red", b"lost", b"v")
                await store.commit(batch(("red", b"next", b"v")))
                assert [key for key, _ in await store.scan("red")] == [b"k", b"next"]

        run(test)
