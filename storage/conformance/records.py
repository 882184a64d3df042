"""Conformance of records: reads return all written records, in order."""

from collections.abc import Iterator

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from keyrun.storage.batch import MAX_KEY_BYTES, Batch
from keyrun.storage.conformance.model import (
    ACTS,
    EXAMPLES,
    KEYS,
    VALUES,
    Model,
    Place,
    Places,
    batch,
    rows,
    run,
)
from keyrun.storage.errors import TooManyTables
from keyrun.storage.store import Store


class RecordConformance(Places):
    """The tests of records."""

    @EXAMPLES
    @given(ACTS)
    def test_it_equals_a_dict_through_commits_crashes_and_reopening(
        self, acts: list[tuple[str, list[tuple[str, bytes, bytes | None]]]]
    ) -> None:
        async def live(place: Place, model: Model, todo: Iterator[tuple[str, Batch]]) -> bool:
            """Open and use the store once. Return whether to open it again."""
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

    @EXAMPLES
    @given(
        st.dictionaries(KEYS, VALUES),
        st.lists(KEYS, max_size=5),
        st.one_of(st.none(), st.integers(1, 3)),
        st.booleans(),
    )
    def test_many_reads_at_once_give_what_each_of_them_gives(
        self, records: dict[bytes, bytes], keys: list[bytes], limit: int | None, reverse: bool
    ) -> None:
        async def test() -> None:
            with self.fresh() as place:
                async with place.store() as store:
                    assert await store.get_many("red", keys) == {}
                    assert await store.scan_each("red", keys) == [[] for _ in keys]
                    await store.commit(batch(*(("red", k, v) for k, v in records.items())))
                    with store.view():
                        found = await store.get_many("red", keys)
                    each = await store.scan_each("red", keys, limit=limit, reverse=reverse)
                    alone = [
                        await store.scan("red", prefix=key, limit=limit, reverse=reverse)
                        for key in keys
                    ]
            assert found == {key: records[key] for key in keys if key in records}
            assert each == alone

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

    def test_one_table_too_many_is_refused_where_it_is_staged_and_the_store_goes_on(
        self, place: Place
    ) -> None:
        async def refuse(store: Store) -> None:
            group = store.open_group()
            mixed = batch(("t0", b"mixed", b""), ("more", b"k", b""))
            for staging in (
                lambda: store.stage(mixed),
                lambda: store.open_group().put("more", b"k", b""),
                lambda: store.open_group().delete("more", b"k"),
                lambda: group.table("more"),
            ):
                with pytest.raises(TooManyTables, match=f"at most {store.max_tables} tables"):
                    staging()
            with pytest.raises(TooManyTables, match="'more' cannot be added"):
                await store.commit(mixed)

        async def test() -> None:
            async with place.store() as store:
                tables = [f"t{number}" for number in range(store.max_tables)]
                await store.commit(batch(*((table, b"k", b"1") for table in tables[1:])))
                store.open_group().put(tables[0], b"k", b"1")
                await refuse(store)
                await store.durable()
                assert await store.get("t0", b"mixed") is None
            async with place.store() as store:
                await refuse(store)
                await store.commit(batch(*((table, b"k", b"2") for table in tables)))
                assert await store.get("t0", b"mixed") is None
                for table in tables:
                    assert await store.scan(table) == [(b"k", b"2")]
                assert await store.get("more", b"k") is None

        run(test)
