"""The conformance suite: what every store must do, whoever wrote it.

Derive a class from `StoreConformance` in your tests, say in `fresh` how to make an empty place for
a store, and let pytest collect it. It needs pytest and hypothesis, and runs on virtual time.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager
from random import Random
from typing import TypeVar

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trio.testing import MockClock

from keyrun.storage.batch import MAX_KEY_BYTES, Batch, Tables
from keyrun.storage.errors import StoreClosed, StoreCrashed, StoreError
from keyrun.storage.store import Store

T = TypeVar("T")
Rows = dict[tuple[str, bytes], bytes]

TABLES = ("red", "green")
EXAMPLES = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.differing_executors]
)

# Few keys, so that they meet; among them those that tempt a store to get the order wrong.
KEYS = st.sampled_from(
    [b"a", b"ab", b"b", b"b\0", b"b\xff", b"\0", b"\xff", b"\xff\xff", b"c" * 99]
)
VALUES = st.one_of(st.binary(max_size=8), st.sampled_from([b"", b"x" * 5000]))
OPERATIONS = st.lists(
    st.tuples(st.sampled_from(TABLES), KEYS, st.one_of(st.none(), VALUES)), max_size=6
)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("stage"), OPERATIONS),
        st.tuples(st.just("commit"), OPERATIONS),
        st.tuples(st.sampled_from(["durable", "linger", "crash", "reopen"]), st.just([])),
    ),
    max_size=25,
)


class Place(ABC):
    """Where one store lives, through closing, crashing and opening again."""

    @abstractmethod
    def store(self) -> Store:
        """A store, not yet entered, on the records of this place."""


def run(test: Callable[[], Awaitable[T]]) -> T:
    """Run `test` on virtual time."""
    return trio.run(test, clock=MockClock(autojump_threshold=0))


def batch(*operations: tuple[str, bytes, bytes | None]) -> Batch:
    """A batch of (table, key, value or None)."""
    made = Batch()
    for table, key, value in operations:
        if value is None:
            made.delete(table, key)
        else:
            made.put(table, key, value)
    return made


async def rows(store: Store) -> Rows:
    """Everything in the tables of this suite, as of one commit: another may be under way."""
    with store.view():
        return {(t, key): value for t in TABLES for key, value in await store.scan(t)}


def laid_on(below: Rows, tables: Tables) -> Rows:
    """The plain dict that a store must be equal to after `tables` was applied."""
    result = dict(below)
    for table, operations in tables.items():
        for key, value in operations.items():
            result.pop((table, key), None)
            if value is not None:
                result[table, key] = value
    return result


class Model:
    """What must be in the store: the states that it may be in, oldest first, of which the last is
    what it comes to when all that is staged is durable."""

    def __init__(self) -> None:
        self.states: list[Rows] = [{}]

    def stage(self, tables: Tables) -> None:
        self.states.append(laid_on(self.states[-1], tables))

    def settle(self) -> None:
        """Everything staged is durable."""
        del self.states[:-1]

    def observe(self, found: Rows) -> None:
        """The store lost what it may lose: it must be in one of the states."""
        assert found in self.states
        self.states = [found]


class StoreConformance(ABC):
    """The suite. Every test makes places of its own."""

    @abstractmethod
    def fresh(self) -> AbstractContextManager[Place]:
        """A place that is empty, and gone after the block."""

    @pytest.fixture
    def place(self) -> Iterator[Place]:
        with self.fresh() as place:
            yield place

    @EXAMPLES
    @given(ACTS)
    def test_it_equals_a_dict_through_commits_crashes_and_reopening(
        self, acts: list[tuple[str, list[tuple[str, bytes, bytes | None]]]]
    ) -> None:
        async def live(place: Place, model: Model, todo: Iterator[tuple[str, Batch]]) -> bool:
            """One life of the store; whether there is another one."""
            async with place.store() as store:
                model.observe(await rows(store))
                for act, staged in todo:
                    if act == "crash":
                        store.crash()
                        return True
                    if act == "reopen":
                        break
                    if act in ("stage", "commit"):
                        store.stage(staged)
                        model.stage(staged.tables)
                    if act in ("durable", "commit"):
                        await store.durable()
                        model.settle()
                    if act == "linger":
                        await trio.sleep(0.05)
                    assert await rows(store) in model.states
                else:
                    act = "end"
            model.settle()
            return act == "reopen"

        async def test() -> None:
            with self.fresh() as place:
                model = Model()
                todo = iter([(act, batch(*operations)) for act, operations in acts])
                while await live(place, model, todo):
                    pass
                async with place.store() as store:
                    model.observe(await rows(store))

        run(test)

    @EXAMPLES
    @given(
        st.dictionaries(KEYS, VALUES),
        st.one_of(st.just(b""), KEYS),
        st.one_of(st.just(b""), KEYS),
        st.one_of(st.none(), KEYS),
        st.one_of(st.none(), st.integers(0, 5)),
        st.booleans(),
    )
    def test_scan_gives_what_sorting_and_filtering_a_dict_gives(
        self,
        records: dict[bytes, bytes],
        prefix: bytes,
        start: bytes,
        stop: bytes | None,
        limit: int | None,
        reverse: bool,
    ) -> None:
        async def test() -> None:
            with self.fresh() as place:
                async with place.store() as store:
                    await store.commit(batch(*(("red", k, v) for k, v in records.items())))
                    found = await store.scan(
                        "red", prefix=prefix, start=start, stop=stop, limit=limit, reverse=reverse
                    )
            wanted = [
                (key, value)
                for key, value in sorted(records.items(), reverse=reverse)
                if key.startswith(prefix) and key >= start and (stop is None or key < stop)
            ]
            assert found == wanted[:limit]

        run(test)

    def test_what_is_staged_is_not_seen_before_it_is_durable(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                store.stage(batch(("red", b"k", b"v")))
                assert await store.get("red", b"k") is None
                assert await store.scan("red") == []
                await store.durable()
                assert await store.get("red", b"k") == b"v"

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

    def test_reads_in_a_view_are_of_one_commit(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                await store.commit(batch(("red", b"k", b"1"), ("green", b"k", b"1")))
                with store.view():
                    assert await store.get("red", b"k") == b"1"
                    with store.view():
                        assert await store.scan("green") == [(b"k", b"1")]
                    assert await store.get("blue", b"k") is None
                await store.commit(batch(("red", b"k", b"2"), ("blue", b"k", b"2")))
                with store.view():
                    assert await store.get("red", b"k") == b"2"
                    assert await store.get("blue", b"k") == b"2"

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

    def test_namespaces_keep_equal_keys_apart(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                spaces = [store.namespace(name) for name in ("a", "ab", "a-")]
                for space in spaces:
                    staged = space.batch()
                    staged.put("red", b"k", space.name.encode())
                    store.stage(staged)
                await store.durable()
                for space in spaces:
                    assert await space.get("red", b"k") == space.name.encode()
                    assert await space.scan("red") == [(b"k", space.name.encode())]
                    assert await space.scan("red", start=b"l") == []
                    assert await store.get("red", space.full(b"k")) == space.name.encode()

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
            with pytest.raises(StoreClosed, match="enter it first"):
                await store.get("red", b"k")

        run(test)

    def test_large_values_and_many_records_come_back(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                big = bytes(range(256)) * 4096
                staged = batch(*(("red", b"%06d" % n, b"%d" % n) for n in range(20_000)))
                staged.put("green", b"big", big)
                await store.commit(staged)
            async with place.store() as store:
                assert await store.get("green", b"big") == big
                found = await store.scan("red", prefix=b"0199")
                assert found == [(b"%06d" % n, b"%d" % n) for n in range(19_900, 20_000)]

        run(test)

    def test_the_longest_key_is_stored_and_a_longer_one_refused(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                await store.commit(batch(("red", b"k" * MAX_KEY_BYTES, b"v")))
                assert await store.get("red", b"k" * MAX_KEY_BYTES) == b"v"
                for key in (b"", b"k" * (MAX_KEY_BYTES + 1)):
                    with pytest.raises(ValueError, match="key must have 1 to 511 bytes"):
                        batch(("red", key, b""))
                    with pytest.raises(ValueError, match="key must have 1 to 511 bytes"):
                        await store.get("red", key)

        run(test)

    def test_bad_arguments_are_refused_by_name(self, place: Place) -> None:
        async def test() -> None:
            async with place.store() as store:
                with pytest.raises(ValueError, match=r"table must be .* got 'Red!'"):
                    await store.get("Red!", b"k")
                with pytest.raises(ValueError, match=r"limit must be at least 0, got -1"):
                    await store.scan("red", limit=-1)
                with pytest.raises(ValueError, match=r"namespace must be .* got ''"):
                    store.namespace("")
                with pytest.raises(TypeError, match="key must be bytes, got str"):
                    await store.get("red", "k")  # type: ignore[arg-type]
                known = batch(("red", b"k", b"v"))
                with pytest.raises(TypeError, match="key must be bytes, got str"):
                    known.put("red", "k", b"v")  # type: ignore[arg-type]
                with pytest.raises(TypeError, match="key must be bytes, got str"):
                    store.namespace("a").batch().put("red", "k", b"v")  # type: ignore[arg-type]
                await store.commit(known)
                with pytest.raises(TypeError, match="value must be bytes, got int"):
                    Batch().put("red", b"k", 1)  # type: ignore[arg-type]

        run(test)
