"""Reading a table in pages gives what one scan gives."""

import random

import pytest
import trio

from keyrun.runtime.records.pages import Pages, Rows
from keyrun.runtime.records.tables import Ledger
from keyrun.storage import MemoryStore, Store


async def fill(store: Store, keys: list[bytes]) -> None:
    group = store.open_group()
    for key in keys:
        group.put("runs", key, b"value of " + key)
    await store.durable(group)


async def read(pages: Pages) -> list[Rows]:
    return [rows async for rows in pages]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
async def test_pages_together_are_one_scan(size: int) -> None:
    chance = random.Random(size)
    keys = sorted({bytes(chance.choices(b"ab\0", k=chance.randint(1, 5))) for _ in range(40)})
    async with MemoryStore() as store:
        await fill(store, keys)
        for prefix, start, stop in [
            (b"", b"", None),
            (b"a", b"", None),
            (b"b", b"ba", b"bb"),
            (b"", b"a", b"b"),
            (b"c", b"", None),
        ]:
            wanted = await store.scan("runs", prefix=prefix, start=start, stop=stop)
            found = await read(
                Pages(store, "runs", size=size, prefix=prefix, start=start, stop=stop)
            )
            assert [row for rows in found for row in rows] == wanted
            assert all(len(rows) == size for rows in found[:-1])


async def test_other_tasks_run_between_two_pages_and_not_before_the_first() -> None:
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        await fill(store, [bytes([key]) for key in range(1, 10)])
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await trio.lowlevel.checkpoint()

        nursery.start_soon(other)
        seen = []
        async for _ in Pages(store, "runs", size=3):
            seen.append(turns)
        # In one round of its loop, Trio runs tasks in any order.
        assert seen[0] == 0 < seen[2]
        nursery.cancel_scope.cancel()


async def test_next_never_lets_other_tasks_run() -> None:
    async with MemoryStore() as store, trio.open_nursery() as nursery:
        await fill(store, [bytes([key]) for key in range(1, 10)])
        ran = trio.Event()
        nursery.start_soon(set_soon, ran)
        pages = Pages(store, "runs", size=2)
        while await pages.next():
            assert not ran.is_set()


async def set_soon(ran: trio.Event) -> None:
    ran.set()


async def test_after_the_last_page_the_store_is_not_asked_again() -> None:
    async with MemoryStore() as store:
        await fill(store, [b"a", b"b", b"c"])
        pages = Pages(store, "runs", size=2)
        read = [(len(await pages.next()), pages.more) for _ in range(2)]
        assert read == [(2, True), (1, False)]
        await fill(store, [b"d"])
        assert await pages.next() == []


async def test_the_size_may_change_between_two_pages() -> None:
    async with MemoryStore() as store:
        await fill(store, [bytes([key]) for key in range(1, 11)])
        pages, sizes = Pages(store, "runs", size=1), []
        async for rows in pages:
            sizes.append(len(rows))
            pages.size *= 2
        assert sizes == [1, 2, 4, 3]


async def test_a_ledger_reads_the_pages_of_its_own_namespace() -> None:
    async with MemoryStore() as store:
        one, two = Ledger(store.namespace("one")), Ledger(store.namespace("two"))
        await fill(store, [one.number(1), one.number(2), two.number(1), two.number(3)])
        found = [key for rows in await read(one.pages("runs", size=1)) for key, _ in rows]
        assert found == [one.number(1), one.number(2)]
