"""The Bloom filter: a request that it lacks was never answered."""

from hashlib import sha256

import trio
from trio.testing import MockClock

from keyrun.runtime.entities.requests import BloomFilter
from keyrun.storage import MemoryStore
from tests.runtime.accounts import Account, opened
from tests.runtime.fragile import FragileStore


def records(*numbers: int) -> list[bytes]:
    return [b"key" + sha256(b"%d" % number).digest() for number in numbers]


def test_it_never_lacks_what_it_was_given_and_mostly_lacks_the_rest() -> None:
    bloom_filter = BloomFilter()
    for record in records(*range(10_000)):
        bloom_filter.add(record)
    bloom_filter.complete = True
    assert not any(map(bloom_filter.lacks, records(*range(10_000))))
    assert sum(map(bloom_filter.lacks, records(*range(10_000, 20_000)))) > 9_900


def test_keys_may_use_the_same_request_ids() -> None:
    bloom_filter = BloomFilter()
    bloom_filter.complete = True
    same = sha256(b"same").digest()
    for number in range(1000):
        bloom_filter.add(b"answered-%d" % number + same)
    assert sum(bloom_filter.lacks(b"asked-%d" % number + same) for number in range(1000)) > 990


def test_it_lacks_nothing_before_it_knows_all() -> None:
    bloom_filter = BloomFilter()
    assert not any(map(bloom_filter.lacks, records(1, 2)))
    bloom_filter.complete = True
    assert all(map(bloom_filter.lacks, records(1, 2)))


async def test_a_request_that_was_answered_before_a_restart_is_known_at_any_time_after_it(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with opened(store) as rt:
        for number in range(20):
            await rt.call(Account, "k", "deposit", 1, request_id=f"{number}")
    async with opened(store) as rt:
        for number in range(20):
            answer = await rt.call(Account, "k", "deposit", 1, request_id=f"{number}")
            assert answer == number + 1
            await trio.sleep(number)


async def test_an_answer_is_known_whose_place_in_the_index_by_time_is_damaged(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with opened(store) as rt:
        await rt.call(Account, "k", "deposit", 1, request_id="r")
    store.damage("answered", store.keys("answered")[0])
    for _ in range(2):
        async with opened(store) as rt:
            await trio.sleep(1)
            assert await rt.call(Account, "k", "deposit", 1, request_id="r") == 1
