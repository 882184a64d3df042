"""Calls with a request id: their answers are kept, and a repeat is harmless."""

from collections import Counter
from typing import Any

import attrs
import pytest
import trio
from pydantic import BaseModel
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun import (
    CallFailed,
    CallTimeout,
    Entity,
    InputMismatch,
    Retention,
    Runtime,
    TransientError,
    entity,
)
from keyrun.storage import MemoryStore, PayloadTypeError, StoreClosed
from keyrun.testing import RuntimeOptions, crash_points
from tests.runtime.accounts import Account, noted, opened, ran
from tests.runtime.fragile import FragileStore


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


async def test_a_repeat_gets_the_answer_and_does_nothing_also_after_a_restart(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with opened(store) as rt:
        assert await rt.call(Account, "k", "deposit", 10, request_id="r") == 10
        assert await rt.call(Account, "k", "deposit", 5) == 15
        assert await rt.call(Account, "k", "deposit", 10, request_id="r") == 10
        # Of another key, or another request, it is another call.
        assert await rt.call(Account, "other", "deposit", 10, request_id="r") == 10
        assert await rt.call(Account, "k", "deposit", 10, request_id="s") == 25
    async with opened(store) as rt:
        assert await rt.entity(Account, "k", request_id="r").deposit(amount=10) == 10
        assert await rt.call(Account, "k", "balance") == 25
    assert Counter(ran) == {"k+10": 2, "k+5": 1, "other+10": 1}


class Entry(BaseModel):
    amount: int
    tags: set[str]


@entity
class Ledger(Entity):
    async def book(self, entry: Entry) -> Entry:
        ran.append("book")
        total = self.state.get("total", 0) + entry.amount
        self.state["total"] = total
        return Entry(amount=total, tags=entry.tags)


async def test_a_repeat_with_an_equal_model_gets_the_answer_as_a_model(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    for _ in range(2):
        async with opened(store, Ledger) as rt:
            ledger = rt.entity(Ledger, "k", request_id="r")
            assert await ledger.book(Entry(amount=5, tags={"a", "b"})) == Entry(
                amount=5, tags={"b", "a"}
            )
    async with opened(store, Ledger) as rt:
        with pytest.raises(InputMismatch):
            await rt.entity(Ledger, "k", request_id="r").book(Entry(amount=5, tags={"a"}))
    assert ran == ["book"]


@pytest.mark.parametrize("method", ["deposit", "slow_deposit"])
async def test_repeats_of_a_call_that_waits_runs_or_is_committed_share_its_answer(
    autojump_clock: MockClock, method: str
) -> None:
    answers = []
    async with opened(MemoryStore(latency=1)) as rt:

        async def ask() -> None:
            answers.append(await rt.call(Account, "k", method, 1, request_id="r"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.call, Account, "k", "slow_deposit", 10)
            await wait_all_tasks_blocked()
            for _ in range(30):
                nursery.start_soon(ask)
                await trio.sleep(0.9)
        assert answers == [11] * 30
        assert await rt.call(Account, "k", "balance") == 11


async def test_the_same_request_for_something_else_is_refused(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with opened(store) as rt, trio.open_nursery() as nursery:
        nursery.start_soon(lambda: rt.call(Account, "k", "slow_deposit", 1, request_id="r"))
        await wait_all_tasks_blocked()
        with pytest.raises(InputMismatch, match="'r' of the entity 'Account'"):
            await rt.call(Account, "k", "slow_deposit", 2, request_id="r")
    async with opened(store) as rt:
        for method, amount in (("slow_deposit", 2), ("deposit", 1)):
            with pytest.raises(InputMismatch):
                await rt.call(Account, "k", method, amount, request_id="r")
        assert await rt.call(Account, "k", "slow_deposit", 1, request_id="r") == 1


async def test_an_error_is_an_answer_too(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with opened(store) as rt:
        with pytest.raises(CallFailed, match="ValueError: not with us") as live:
            await rt.call(Account, "k", "overdraw", request_id="r")
        assert isinstance(live.value.__cause__, ValueError)
        assert await rt.call(Account, "k", "balance") == 0
    async with opened(store) as rt:
        with pytest.raises(CallFailed) as stored:
            await rt.call(Account, "k", "overdraw", request_id="r")
    assert str(stored.value) == str(live.value)
    assert stored.value.failure == live.value.failure
    assert stored.value.failure.error_type == "builtins.ValueError"
    assert (stored.value.key, stored.value.step) == ("k", "Account.overdraw")
    assert ran == ["k overdraws"]


async def test_what_is_no_answer_may_be_asked_again(autojump_clock: MockClock) -> None:
    async with opened() as rt:
        for _ in range(2):
            with pytest.raises(TransientError, match="ask again"):
                await rt.call(Account, "k", "waver", request_id="r")
            with pytest.raises(CallTimeout):
                await rt.call(Account, "k", "slow_deposit", 1, request_id="s", timeout=1)
        assert ran.count("k wavers") == ran.count("k+1 begins") == 2
        assert await rt.call(Account, "k", "slow_deposit", 1, request_id="s") == 1


async def test_a_repeat_takes_over_when_the_first_caller_leaves_before_its_turn(
    autojump_clock: MockClock,
) -> None:
    answers = []
    async with opened() as rt, trio.open_nursery() as nursery:
        nursery.start_soon(rt.call, Account, "k", "slow_deposit", 10)
        await wait_all_tasks_blocked()

        async def ask(scope: trio.CancelScope) -> None:
            with scope:
                answers.append(await rt.call(Account, "k", "deposit", 1, request_id="r"))

        first = trio.CancelScope()
        nursery.start_soon(ask, first)
        await wait_all_tasks_blocked()
        nursery.start_soon(ask, trio.CancelScope())
        await wait_all_tasks_blocked()
        first.cancel()
    assert answers == [11]
    assert ran.count("k+1") == 1


async def test_a_caller_that_leaves_finds_the_answer_of_what_had_begun(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rt:
        with trio.move_on_after(5):
            await rt.call(Account, "k", "slow_deposit", 1, request_id="r")
        assert await rt.call(Account, "k", "slow_deposit", 1, request_id="r") == 1
        assert ran.count("k+1") == 1


@pytest.mark.parametrize("method", ["deposit", "slow_deposit"])
@pytest.mark.parametrize("patience", [0.5, 10.5, 11.5, 20])
async def test_who_asks_for_the_same_gets_the_answer_when_the_first_caller_has_left(
    autojump_clock: MockClock, method: str, patience: float
) -> None:
    """Before its turn, while it runs, and while it is committed."""
    answers = []
    async with opened(MemoryStore(latency=1)) as rt, trio.open_nursery() as nursery:

        async def ask() -> None:
            answers.append(await rt.call(Account, "k", method, 1, request_id="r"))

        nursery.start_soon(rt.call, Account, "k", "slow_deposit", 10)
        await wait_all_tasks_blocked()
        with trio.move_on_after(patience):
            nursery.start_soon(ask)
            await wait_all_tasks_blocked()
            await rt.call(Account, "k", method, 1, request_id="r")
        await ask()
    assert answers == [11, 11]
    assert ran.count("k+1") == 1


async def test_answers_are_kept_like_ended_runs(autojump_clock: MockClock) -> None:
    store = FragileStore()
    options: RuntimeOptions = {"retention": Retention(age=100, count=3)}
    async with opened(store, **options) as rt:
        for number in range(5):
            await rt.call(Account, "k", "deposit", 1, request_id=str(number))
            await trio.sleep(1)
        assert len(store.keys("requests")) == len(store.keys("answered")) == 3
        assert await rt.call(Account, "k", "deposit", 1, request_id="4") == 5
        assert await rt.call(Account, "k", "deposit", 1, request_id="0") == 6
    async with opened(store, **options) as rt:
        await rt.call(Account, "k", "deposit", 1, request_id="later")
        await trio.sleep(1)
        assert len(store.keys("requests")) == 3
        await trio.sleep(101)
        assert store.keys("requests") == store.keys("answered") == []
        assert await rt.call(Account, "k", "balance") == 7


async def test_values_come_back_as_they_were_and_what_cannot_be_stored_is_refused(
    autojump_clock: MockClock,
) -> None:
    @attrs.frozen
    class Money:
        amount: int
        currency: str

    @entity
    class Purse(Entity):
        async def put(self, money: Money) -> Money:
            ran.append("put")
            return Money(money.amount + 1, money.currency)

        async def odd(self) -> Any:
            self.state["done"] = True
            return object()

    async with opened(None, Purse) as rt:
        purse = rt.entity(Purse, "k", request_id="r")
        for _ in range(2):
            assert await purse.put(Money(1, "EUR")) == Money(2, "EUR")
        assert ran == ["put"]
        with pytest.raises(InputMismatch):
            await purse.put(Money(1, "USD"))
        with pytest.raises(PayloadTypeError):
            await rt.call(Purse, "k", "put", object(), request_id="s")
        for _ in range(2):
            with pytest.raises(CallFailed, match="PayloadTypeError"):
                await rt.call(Purse, "k", "odd", request_id="t")
        hostile: list[Any] = ["", "x" * 256, 7]
        for request_id in hostile:
            with pytest.raises(ValueError, match="request_id must be"):
                await rt.call(Purse, "k", "odd", request_id=request_id)


async def test_an_idempotency_key_is_that_of_the_request_or_of_one_call(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rt:
        account = rt.entity(Account, "k")
        told = [await account.about(), await account.about()]
        made = {key for each in told for key in each["told"]}
        assert len(made) == 2
        asked = await rt.entity(Account, "k", request_id="r").about()
        other = await rt.entity(Account, "j", request_id="r").about()
        assert asked["request"] == "r"
        assert asked["told"][0] != other["told"][0]
        assert len(set(asked["told"])) == 1


async def test_followers_hear_when_the_runtime_is_left(autojump_clock: MockClock) -> None:
    refused = []

    async def ask(rt: Runtime) -> None:
        try:
            await rt.call(Account, "k", "slow_deposit", 1, 90, request_id="r")
        except StoreClosed:
            refused.append(True)

    async with trio.open_nursery() as nursery:
        async with opened(drain_timeout=1) as rt:
            for _ in range(3):
                nursery.start_soon(ask, rt)
            await wait_all_tasks_blocked()
    assert refused == [True] * 3


async def scenario(rt: Runtime) -> int:
    """Twenty deposits to two accounts by callers who ask until they are answered, beside runs."""

    async def deposits(key: str, client: int) -> None:
        for number in range(5):
            request_id = f"{client}-{number}"
            await rt.call(Account, key, "deposit", 1, request_id=request_id)
            if number == 2:
                run = await rt.submit(noted, key, key=key, run_id=f"{key}-{client}")
                await run.result()

    async with trio.open_nursery() as nursery:
        for key in ("a", "b"):
            for client in range(2):
                nursery.start_soon(deposits, key, client)
    return sum([await rt.call(Account, key, "balance") for key in ("a", "b")])


@pytest.mark.parametrize("crashes", [1, 3])
async def test_a_crash_at_any_commit_loses_no_deposit_and_makes_none_twice(
    autojump_clock: MockClock, crashes: int
) -> None:
    tried = 0
    for point in crash_points(crashes=crashes):
        try:
            total = await point.run(scenario, entities=[Account], workflows=[noted])
        except ExceptionGroup as group:
            pytest.fail(f"{point}: {group.exceptions}")
        assert total == 20, point
        tried += point.crashes > 0
    assert tried >= 10
