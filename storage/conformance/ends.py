"""Conformance at the end: a close keeps all staged records. A crash or a failed commit keeps all
acknowledged records, and raises an error in every task that waits for others."""

from random import Random

import pytest
import trio

from keyrun.storage.batch import Tables
from keyrun.storage.conformance.model import Place, Places, batch, run
from keyrun.storage.errors import StoreClosed, StoreCrashed, StoreError
from keyrun.storage.store import Store


class EndConformance(Places):
    """The tests of a store that is closed, crashes or fails."""

    def test_a_failure_is_told_at_once_and_its_group_calls_nobody_back(self, place: Place) -> None:
        async def test() -> None:
            failures: list[StoreError] = []
            called: list[bool] = []
            async with place.store() as store:
                store.when_failed(failures.append)
                group = store.stage(batch(("red", b"k", b"v")))
                group.when_durable(lambda: called.append(True))
                store.crash()
                assert [type(failure) for failure in failures] == [StoreCrashed]
                with pytest.raises(StoreCrashed):
                    await store.durable(group)
            assert not called

        run(test)

    def test_closing_waits_for_what_is_staged(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                store.stage(batch(("red", b"k", b"v")))
            async with place.store() as store:
                assert await store.get("red", b"k") == b"v"

        run(test)

    def test_closing_under_cancellation_waits_for_what_is_staged(self, place: Place) -> None:
        async def test() -> None:
            with trio.CancelScope() as scope:
                async with place.store() as store:
                    store.stage(batch(("red", b"k", b"v")))
                    scope.cancel()
                    await trio.sleep_forever()
            async with place.store() as store:
                assert await store.get("red", b"k") == b"v"

        run(test)

    def test_a_crash_loses_what_was_staged_and_tells_who_waits(self, place: Place) -> None:
        async def wait(store: Store) -> None:
            with pytest.raises(StoreCrashed):
                await store.durable()

        async def test() -> None:
            async with place.store() as store:
                await store.commit(batch(("red", b"kept", b"")))
                store.stage(batch(("red", b"lost", b"")))
                store.crash()
                with pytest.raises(StoreCrashed):
                    store.stage(batch(("red", b"later", b"")))
                await wait(store)
            async with place.store() as store:
                assert await store.scan("red") == [(b"kept", b"")]

        run(test)

    @pytest.mark.parametrize("seed", range(8))
    def test_a_crash_among_many_commits_leaves_each_batch_whole_or_absent(
        self, place: Place, seed: int
    ) -> None:
        random = Random(seed)
        acknowledged: set[bytes] = set()

        async def write(store: Store, number: int) -> None:
            for turn in range(20):
                key = b"%d.%d" % (number, turn)
                pair = batch(("red", key, b"1"), ("green", key, b"2"))
                try:
                    await store.commit(pair)
                except StoreError:
                    return
                acknowledged.add(key)

        async def test() -> None:
            async with place.store() as store:
                async with trio.open_nursery() as nursery:
                    for number in range(10):
                        nursery.start_soon(write, store, number)
                    for _ in range(random.randrange(60)):
                        await trio.lowlevel.checkpoint()
                    store.crash()
            async with place.store() as store:
                red = {key for key, _ in await store.scan("red")}
                green = {key for key, _ in await store.scan("green")}
                assert red == green
                assert acknowledged <= red

        run(test)

    def test_the_first_failed_commit_stops_everything_and_is_told_to_all(
        self, place: Place
    ) -> None:
        async def fail(tables: Tables) -> None:
            await trio.sleep(0.01)
            raise OSError("the disk is on fire")

        async def test() -> None:
            errors = []

            async def commit(store: Store, key: bytes) -> None:
                try:
                    await store.commit(batch(("red", key, b"")))
                except StoreError as error:
                    errors.append(error)

            store = place.store()
            works = store._commit
            with pytest.raises(StoreError, match="closed after a failed commit"):
                async with store:
                    await store.commit(batch(("red", b"before", b"")))
                    store._opened()._commit = fail
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(commit, store, b"one")
                        await trio.sleep(0.005)
                        nursery.start_soon(commit, store, b"behind it")
                    store._opened()._commit = works
                    await commit(store, b"later")
                    assert await store.get("red", b"before") == b""
            assert len(errors) == 3
            assert all("the disk is on fire" in str(error) for error in errors)
            async with place.store() as store:
                assert await store.scan("red") == [(b"before", b"")]

        run(test)

    def test_a_group_of_a_life_before_is_told_to_be_lost(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                group = store.stage(batch(("red", b"k", b"v")))
                store.crash()
            async with place.store() as store:
                with pytest.raises(StoreError):
                    await store.durable(group)

        run(test)

    def test_a_store_shared_by_two_blocks_closes_with_the_last(self, place: Place) -> None:
        async def test() -> None:
            store = place.store()
            async with trio.open_nursery() as nursery:
                leave_first = trio.Event()

                async def first(task_status: trio.TaskStatus[None]) -> None:
                    async with store:
                        task_status.started()
                        await leave_first.wait()

                await nursery.start(first)
                async with store:
                    leave_first.set()
                    await trio.testing.wait_all_tasks_blocked()
                    await store.commit(batch(("red", b"k", b"v")))
                    assert await store.get("red", b"k") == b"v"
            with pytest.raises(StoreClosed, match="is not open: use it inside of the block"):
                await store.get("red", b"k")

        run(test)

    def test_staging_while_the_store_is_closed_is_refused_and_loses_nothing_staged_before(
        self, place: Place
    ) -> None:
        async def test() -> None:
            staged = 0

            async def keep_staging(store: Store) -> None:
                nonlocal staged
                with pytest.raises(StoreClosed):
                    while staged < 10_000:
                        store.stage(batch(("red", b"%d" % staged, b"")))
                        staged += 1
                        await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                async with place.store() as store:
                    nursery.start_soon(keep_staging, store)
                    while not staged:
                        await trio.lowlevel.checkpoint()
                    commits = store.group_commit
                with pytest.raises(StoreClosed):
                    commits.open_group()
            async with place.store() as store:
                assert len(await store.scan("red")) == staged

        run(test)
