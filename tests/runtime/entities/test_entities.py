"""Entities: methods under a key, in order with its runs, with durable state."""

from collections.abc import Callable, Coroutine
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun import (
    Backpressure,
    CallTimeout,
    Context,
    Entity,
    InvalidKey,
    Limits,
    Retry,
    Runtime,
    current_step,
    entity,
    step,
    workflow,
)
from keyrun.errors import CallCycle, UnknownEntity, UnknownMethod
from keyrun.storage import MemoryStore, PayloadError, PayloadTypeError, StoreClosed, StoreCorrupt
from keyrun.testing import CrashingMemoryStore, open_test_runtime
from tests.runtime.accounts import Account, napping, noted, opened, polite, ran, slowly_noted
from tests.runtime.fragile import FragileStore


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


Answers = dict[str, Any]


async def into(answers: Answers, name: str, call: Coroutine[Any, Any, Any]) -> None:
    """Await a call and keep its answer, or the error."""
    try:
        answers[name] = await call
    except Exception as error:
        answers[name] = error


async def test_state_goes_from_call_to_call_and_survives_a_restart(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with opened(store) as rt:
        assert await rt.call(Account, "a", "deposit", 10) == 10
        assert await rt.entity(Account, "a").deposit(5) == 15
        assert await rt.entity(Account, "b").deposit(amount=1) == 1
    async with opened(store) as rt:
        assert await rt.entity(Account, "a").balance() == 15
        assert await rt.entity(Account, "b").deposit(1) == 2


async def test_state_is_that_of_the_class_and_not_of_steps_or_other_entities(
    autojump_clock: MockClock,
) -> None:
    @entity(name="Other")
    class Ledger:
        state: dict[str, Any]

        async def put(self, value: int) -> dict[str, Any]:
            self.state["balance"] = value
            return dict(self.state)

    @step
    async def put() -> dict[str, Any]:
        current_step().state["balance"] = 7
        return dict(current_step().state)

    @workflow
    async def flow(ctx: Context) -> dict[str, Any]:
        return await ctx.step(put)

    async with opened(None, Ledger, workflows=[flow]) as rt:
        await rt.entity(Account, "k").deposit(1)
        assert await rt.entity(Ledger, "k").put(2) == {"balance": 2}
        assert await (await rt.submit(flow, key="k")).result() == {"balance": 7}
        assert await rt.entity(Account, "k").balance() == 1


async def test_what_a_method_raises_reaches_the_caller_and_changes_nothing(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rt:
        account = rt.entity(Account, "k")
        await account.deposit(10)
        for _ in range(7):  # more than an actor may crash
            with pytest.raises(ValueError, match="not with us"):
                await account.overdraw()
        with pytest.raises(TypeError, match="unexpected keyword"):
            await rt.call(Account, "k", "deposit", much=1)
        assert await account.deposit(1) == 11


async def test_a_state_that_cannot_be_stored_is_an_error_of_the_call(
    autojump_clock: MockClock,
) -> None:
    @entity
    class Odd(Entity):
        async def direct(self) -> None:
            self.state["value"] = object()

        async def inside(self) -> None:
            self.state["values"] = []
            self.state["values"].append(object())

        async def replaced(self) -> None:
            self.state = {"value": 1}

        async def exits(self) -> None:
            raise SystemExit(3)

        async def names(self) -> list[str]:
            return list(self.state)

    async with opened(None, Odd) as rt:
        odd = rt.entity(Odd, "k")
        for method in (odd.direct, odd.inside):
            with pytest.raises(PayloadTypeError):
                await method()
        with pytest.raises(TypeError, match=r"Odd.replaced assigned to self.state"):
            await odd.replaced()
        with pytest.raises(RuntimeError, match=r"Odd.exits called sys.exit\(3\)"):
            await odd.exits()
        assert await odd.names() == []


async def test_calls_of_a_key_are_serial_and_in_order_and_keys_are_concurrent(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rt:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for key in ("a", "b"):
                for amount in (1, 2, 3):
                    nursery.start_soon(rt.call, Account, key, "slow_deposit", amount)
                    await wait_all_tasks_blocked()
        assert trio.current_time() - began == pytest.approx(30)
        for key in ("a", "b"):
            expected = [f"{key}+{n}{when}" for n in (1, 2, 3) for when in (" begins", "", " ends")]
            assert [each for each in ran if each.startswith(key)] == expected


async def test_a_call_goes_after_runs_that_were_there_and_before_those_that_come_later(
    autojump_clock: MockClock,
) -> None:
    answers: Answers = {}
    async with opened() as rt, trio.open_nursery() as nursery:
        first = await rt.submit(slowly_noted, "first run", key="k")
        second = await rt.submit(noted, "second run", key="k")
        await rt.submit(noted, "another key", key="other")
        nursery.start_soon(into, answers, "call", rt.call(Account, "k", "deposit", 1))
        await wait_all_tasks_blocked()
        third = await rt.submit(noted, "third run", key="k")
        await third.result()
        assert answers == {"call": 1}
        assert await first.result() + await second.result() == "first runsecond run"
    assert ran == ["first run", "another key", "second run", "k+1", "third run"]


async def test_a_call_waits_behind_more_runs_than_are_in_memory(autojump_clock: MockClock) -> None:
    async with opened() as rt:
        await rt.pause_key("k")
        for number in range(200):
            await rt.submit(noted, str(number), key="k")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.call, Account, "k", "deposit", 1)
            await wait_all_tasks_blocked()
            for number in range(200, 300):
                await rt.submit(noted, str(number), key="k")
            await rt.resume_key("k")
        assert ran[:201] == [*map(str, range(200)), "k+1"]


async def test_a_call_waits_behind_what_an_earlier_process_left(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with opened(store) as rt:
        await rt.pause_all()
        for number in range(100):
            await rt.submit(noted, str(number), key="k")
    async with opened(store) as rt:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.call, Account, "k", "deposit", 1)
            await wait_all_tasks_blocked()
            await rt.resume_all()
        assert ran == [*map(str, range(100)), "k+1"]


@pytest.mark.parametrize("evict_after", [1, inf])
async def test_a_run_that_sleeps_holds_its_key_against_calls(
    autojump_clock: MockClock, evict_after: float
) -> None:
    async with opened(evict_after=evict_after) as rt:
        run = await rt.submit(napping, 1000, key="k")
        await trio.sleep(100)
        began = trio.current_time()
        assert await rt.call(Account, "k", "deposit", 1) == 1
        assert trio.current_time() - began == pytest.approx(900, abs=1)
        assert ran == ["awake", "k+1"]
        assert await run.result() == "awake"


@pytest.mark.parametrize("evict_after", [1, inf])
async def test_a_call_goes_ahead_of_a_run_that_yields_and_waits(
    autojump_clock: MockClock, evict_after: float
) -> None:
    async with opened(evict_after=evict_after) as rt:
        run = await rt.submit(polite, 1000, key="k")
        await trio.sleep(100)
        assert await rt.call(Account, "k", "deposit", 1) == 1
        assert trio.current_time() < 110
        assert await run.result() == "awake"


async def test_a_call_behind_a_sleeper_goes_on_when_that_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    answers: Answers = {}
    async with opened() as rt, trio.open_nursery() as nursery:
        run = await rt.submit(napping, 1000, key="k")
        await trio.sleep(100)
        nursery.start_soon(into, answers, "call", rt.call(Account, "k", "deposit", 1))
        await trio.sleep(1)
        assert not answers
        await run.cancel()
        await trio.sleep(1)
        assert answers == {"call": 1}


@pytest.mark.parametrize(
    ("pause", "resume"),
    [
        (lambda rt: rt.pause_key("k"), lambda rt: rt.resume_key("k")),
        (lambda rt: rt.pause_all(), lambda rt: rt.resume_all()),
    ],
)
async def test_what_is_paused_begins_no_call(
    autojump_clock: MockClock,
    pause: Callable[[Runtime], Any],
    resume: Callable[[Runtime], Any],
) -> None:
    answers: Answers = {}
    async with opened() as rt, trio.open_nursery() as nursery:
        nursery.start_soon(into, answers, "runs", rt.call(Account, "k", "slow_deposit", 1))
        await wait_all_tasks_blocked()
        nursery.start_soon(into, answers, "waits", rt.call(Account, "k", "deposit", 2))
        await wait_all_tasks_blocked()
        await pause(rt)
        nursery.start_soon(into, answers, "later", rt.call(Account, "k", "deposit", 4))
        await trio.sleep(50)
        assert answers == {"runs": 1}
        await resume(rt)
        await trio.sleep(1)
        assert answers == {"runs": 1, "waits": 3, "later": 7}


async def test_methods_that_wait_have_slots_and_leave_them_to_others(
    autojump_clock: MockClock,
) -> None:
    async with opened(max_concurrent_steps=2) as rt:
        began = trio.current_time()
        async with trio.open_nursery() as nursery:
            for number in range(4):
                nursery.start_soon(rt.call, Account, f"k{number}", "slow_deposit", 1)
            await trio.sleep(1)
            assert rt.statistics().running_steps == 2
            run = await rt.submit(slowly_noted, "run", key="r")
            await run.result()
        assert trio.current_time() - began == pytest.approx(30)
        assert rt.statistics().running_steps == 0


async def test_a_drain_lets_methods_finish_and_begins_none(autojump_clock: MockClock) -> None:
    answers: Answers = {}
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        async with opened(store, drain_timeout=20) as rt:
            for name, amount in (("runs", 1), ("waits", 2)):
                call = rt.call(Account, "k", "slow_deposit", amount)
                nursery.start_soon(into, answers, name, call)
                await wait_all_tasks_blocked()
        with pytest.raises(StoreClosed):
            await rt.call(Account, "k", "deposit", 1)
    assert answers["runs"] == 1
    assert isinstance(answers["waits"], StoreClosed)
    assert "nothing of the call is stored" in str(answers["waits"])
    async with opened(store) as rt:
        assert await rt.call(Account, "k", "balance") == 1


async def test_a_drain_cuts_off_a_method_that_takes_too_long(autojump_clock: MockClock) -> None:
    answers: Answers = {}
    store = MemoryStore()
    async with trio.open_nursery() as nursery:
        async with opened(store, drain_timeout=5) as rt:
            await rt.call(Account, "k", "deposit", 1)
            call = rt.call(Account, "k", "slow_deposit", 2, seconds=90)
            nursery.start_soon(into, answers, "cut", call)
            await wait_all_tasks_blocked()
        assert trio.current_time() == pytest.approx(5)
    assert isinstance(answers["cut"], StoreClosed)
    async with opened(store) as rt:
        assert await rt.call(Account, "k", "balance") == 1


async def test_a_step_that_calls_while_all_drains_has_not_failed(autojump_clock: MockClock) -> None:
    runtimes: list[Runtime] = []

    @step(retry=Retry.none())
    async def transfer() -> int:
        await trio.sleep(3)
        return int(await runtimes[-1].call(Account, "k", "deposit", 1))

    @workflow
    async def flow(ctx: Context) -> int:
        return await ctx.step(transfer)

    store = MemoryStore()
    async with opened(store, workflows=[flow], drain_timeout=5) as rt:
        runtimes.append(rt)
        await rt.submit(flow, key="r", run_id="r")
        await trio.sleep(1)
    async with opened(store, workflows=[flow]) as rt:
        runtimes.append(rt)
        assert await (await rt.submit(flow, key="r", run_id="r")).result() == 1


async def test_a_method_that_takes_too_long_is_cut_off_and_its_key_goes_on(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rt:
        account = rt.entity(Account, "k")
        with pytest.raises(CallTimeout, match=r"Account.slow_deposit .* 100 s"):
            await account.slow_deposit(1, seconds=1000)
        assert trio.current_time() == pytest.approx(100)
        with pytest.raises(CallTimeout, match="timeout of 5 s"):
            await rt.entity(Account, "k", timeout=5).slow_deposit(1)
        assert await rt.call(Account, "k", "slow_deposit", 1, timeout=20) == 1
        assert await account.deposit(1) == 2


async def test_a_caller_that_leaves_takes_back_what_has_not_begun_only(
    autojump_clock: MockClock,
) -> None:
    async with opened() as rt:
        async with trio.open_nursery() as nursery:
            for amount in (1, 2):
                nursery.start_soon(rt.call, Account, "k", "slow_deposit", amount)
                await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert rt.statistics().backlog.pending == 0
        assert await rt.call(Account, "k", "balance") == 1
        assert ran == ["k+1 begins", "k+1", "k+1 ends"]
        assert rt.statistics().keys == 0


async def test_calls_that_wait_are_bounded_together_with_runs(autojump_clock: MockClock) -> None:
    async with opened(max_pending_per_key=3, backpressure_timeout=5) as rt:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.call, Account, "k", "slow_deposit", 1)
            await wait_all_tasks_blocked()
            await rt.submit(noted, "run", key="k")
            for amount in (2, 4):
                nursery.start_soon(rt.call, Account, "k", "deposit", amount)
            await wait_all_tasks_blocked()
            assert rt.statistics().backlog.pending == 3
            with pytest.raises(Backpressure, match="'k'"):
                await rt.call(Account, "k", "deposit", 8)
            with pytest.raises(Backpressure):
                await rt.submit_nowait(noted, "too much", key="k")
            assert await rt.call(Account, "other", "deposit", 1) == 1
        assert await rt.call(Account, "k", "balance") == 7


async def test_calls_without_effects_share_a_commit_and_those_with_effects_do_not(
    autojump_clock: MockClock,
) -> None:
    @entity(effects=False)
    class Pure(Entity):
        async def add(self, amount: int) -> int:
            self.state["total"] = self.state.get("total", 0) + amount
            return int(self.state["total"])

        async def total(self) -> int:
            return int(self.state.get("total", 0))

    store = MemoryStore(latency=1)
    async with opened(store, Pure) as rt:

        async def commits(cls: type, method: str) -> int:
            before = rt.statistics().commits.commits
            async with trio.open_nursery() as nursery:
                for _ in range(100):
                    nursery.start_soon(rt.call, cls, "k", method, 1)
            return rt.statistics().commits.commits - before

        assert await commits(Pure, "add") <= 2
        assert await commits(Account, "deposit") == 100
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.call, Pure, "k", "add", 1)
            await wait_all_tasks_blocked()
            began = trio.current_time()
            # What it tells is not told before it is durable.
            assert await rt.call(Pure, "k", "total") == 101
            assert trio.current_time() > began
        assert await rt.call(Account, "k", "balance") == 100


async def test_a_call_that_changes_nothing_needs_no_commit_and_an_empty_state_no_record(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with opened(store) as rt:
        account = rt.entity(Account, "k")
        await account.deposit(5)
        before = store.commits
        assert await account.balance() == 5
        assert store.commits == before
        assert len(store.keys("entities")) == 1
        await account.close()
        assert store.keys("entities") == store.keys("requests") == store.keys("runs") == []
        assert await account.balance() == 0


async def test_a_call_that_a_crash_cuts_off_has_not_happened(autojump_clock: MockClock) -> None:
    for applied in (False, True):
        store = CrashingMemoryStore()
        answers: Answers = {}
        async with trio.open_nursery() as nursery:
            async with opened(store) as rt:
                await rt.call(Account, "k", "deposit", 1)
                store.crash_at(1, applied=applied)
                nursery.start_soon(into, answers, "crash", rt.call(Account, "k", "deposit", 2))
                await trio.sleep_forever()
        assert isinstance(answers.get("crash"), Exception)
        async with opened(store) as rt:
            assert await rt.call(Account, "k", "balance") == (3 if applied else 1)


async def test_a_call_that_would_wait_for_its_own_caller_is_refused(
    autojump_clock: MockClock,
) -> None:
    runtimes: list[Runtime] = []

    @entity
    class Node(Entity):
        async def reach(self, *path: str) -> list[str]:
            if not path:
                return [self.key]
            await trio.sleep(1)
            return [self.key, *await runtimes[-1].entity(Node, path[0]).reach(*path[1:])]

    @step(retry=Retry.none())
    async def reach(key: str) -> Any:
        return await runtimes[-1].call(Node, key, "reach")

    @workflow
    async def flow(ctx: Context, key: str) -> Any:
        return await ctx.step(reach, key)

    async with opened(None, Node, workflows=[flow]) as rt:
        runtimes.append(rt)
        assert await rt.entity(Node, "a").reach("b", "c") == ["a", "b", "c"]
        with pytest.raises(CallCycle, match="'a' would wait for 'a'"):
            await rt.entity(Node, "a").reach("a")
        with pytest.raises(CallCycle, match="'c' would wait for 'a', which waits for 'b'"):
            await rt.entity(Node, "a").reach("b", "c", "a")
        answers: Answers = {}
        async with trio.open_nursery() as nursery:
            nursery.start_soon(into, answers, "ab", rt.call(Node, "a", "reach", "b"))
            nursery.start_soon(into, answers, "ba", rt.call(Node, "b", "reach", "a"))
        assert sorted(type(each).__name__ for each in answers.values()) == ["CallCycle", "list"]
        assert await (await rt.submit(flow, "x", key="k")).result() == ["x"]
        with pytest.raises(RuntimeError, match="would wait forever"):
            await (await rt.submit(flow, "k", key="k")).result()


async def test_a_damaged_state_is_told_to_who_calls_and_harms_no_other(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with opened(store) as rt:
        await rt.call(Account, "a", "deposit", 1)
        await rt.call(Account, "b", "deposit", 1)
    store.damage("entities", store.keys("entities")[0])
    async with opened(store) as rt:
        for _ in range(7):
            with pytest.raises(StoreCorrupt):
                await rt.call(Account, "a", "deposit", 1)
        assert await rt.call(Account, "b", "deposit", 1) == 2
        assert await (await rt.submit(noted, "run", key="a")).result() == "run"


@entity
class Drawer(Entity):
    async def put(self, value: Any) -> None:
        self.state["value"] = value

    async def change(self) -> None:
        self.state["value"].append(1)
        raise ValueError("no")

    async def see(self) -> Any:
        return self.state["value"]

    async def lend(self) -> Any:
        self.state["lent"] = 1
        return self.state


async def test_values_of_a_state_come_back_as_they_were_or_are_refused(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    fit: list[Any] = [(1 << 64) - 1, -(1 << 63), True, None, 1.5, "x", b"x", [1], {"a": [1]}, (1,)]
    async with opened(store, Drawer) as rt:
        drawer = rt.entity(Drawer, "k")
        for value in fit:
            await drawer.put(value)
            seen = [await drawer.see(), await drawer.see()]
            assert [(type(each), each) for each in seen] == 2 * [(type(value), value)]
        for unfit in (1 << 64, -(1 << 63) - 1, "\ud800", {1: 2}, object()):
            with pytest.raises((PayloadError, PayloadTypeError)):
                await drawer.put(unfit)
        assert await drawer.see() == (1,)
        for value in fit:
            await rt.entity(Drawer, repr(value)).put(value)
    async with opened(store, Drawer) as rt:
        for value in fit:
            assert await rt.entity(Drawer, repr(value)).see() == value


async def test_what_is_kept_under_a_key_can_be_seen(autojump_clock: MockClock) -> None:
    store = FragileStore()
    async with opened(store, Drawer) as rt:
        await rt.entity(Drawer, "k").put("x" * 100)
        await rt.entity(Account, "k").deposit(1)
        await rt.entity(Account, "kk").deposit(1)
        await rt.entity(Account, "empty").close()
        kept = await rt.entities("k")
        assert [(each.key, each.name) for each in kept] == [("k", "Account"), ("k", "Drawer")]
        assert (kept[0].size or 0) < 20 < 100 < (kept[1].size or 0) < 120
        assert await rt.entities("empty") == await rt.entities("other") == []
        with pytest.raises(InvalidKey):
            await rt.entities("")
    store.damage("entities", store.keys("entities")[0])
    async with opened(store, Drawer) as rt:
        assert [each.size for each in await rt.entities("k")] == [None, kept[1].size]


async def test_what_a_call_left_behind_changes_no_state(autojump_clock: MockClock) -> None:
    async with opened(None, Drawer) as rt:
        drawer = rt.entity(Drawer, "k")
        await drawer.put([])
        with pytest.raises(ValueError, match="no"):
            await drawer.change()
        (await drawer.see()).append(2)
        assert await drawer.see() == []
        await drawer.put(1)
        lent = await drawer.lend()
        lent["value"] = 2
        lent.values_["value"] = 3
        assert await drawer.see() == 1


class Cipher:
    """Encodes with one letter before the payload, and knows no other."""

    def __init__(self, letter: bytes) -> None:
        self._letter = letter

    def wrap(self, data: bytes, /) -> bytes:
        return self._letter + data

    def unwrap(self, data: bytes, /) -> bytes:
        if data[:1] != self._letter:
            raise ValueError("encoded with another key")
        return data[1:]


async def test_a_state_that_cannot_be_read_is_told_and_keeps_no_slot(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with opened(store, transform=Cipher(b"a")) as rt:
        await rt.call(Account, "k", "deposit", 1)
    async with opened(store, transform=Cipher(b"b"), max_concurrent_steps=1) as rt:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.call, Account, "other", "slow_deposit", 1)
            await wait_all_tasks_blocked()
            with pytest.raises(PayloadError, match="another key"):
                await rt.call(Account, "k", "deposit", 1)
        assert rt.statistics().running_steps == 0
        assert await rt.call(Account, "other", "slow_deposit", 1) == 2


async def test_what_cannot_be_an_entity_or_a_call_is_refused_with_a_reason(
    autojump_clock: MockClock,
) -> None:
    with pytest.raises(TypeError, match="no public async method"):

        @entity
        class Empty:
            def plain(self) -> None: ...

    with pytest.raises(TypeError, match="__init__"):

        @entity
        class Made:
            def __init__(self, value: int) -> None: ...
            async def method(self) -> None: ...

    for odd in ("", "a\0b", "\ud800", "x" * 129, 7):
        with pytest.raises(ValueError, match="name must be a string"):
            entity(name=odd)(Twin)  # type: ignore[arg-type]

    @entity
    class Shared(Entity):
        @staticmethod
        async def static() -> None: ...
        @classmethod
        async def of_class(cls) -> None: ...
        async def method(self) -> None: ...

    class Savings(Account):
        pass

    with pytest.raises(TypeError, match="decorated with @entity"):
        async with opened(None, Savings):
            pass
    async with opened() as rt:
        with pytest.raises(UnknownMethod, match="balance, close, deposit"):
            await rt.call(Account, "k", "_private")
        with pytest.raises(AttributeError):
            _ = rt.entity(Account, "k").state
        for request_id in ("", "\ud800", "x" * 256, 7):
            with pytest.raises(ValueError, match="request_id must be a string"):
                await rt.call(Account, "k", "deposit", 1, request_id=request_id)  # type: ignore[arg-type]
        with pytest.raises(InvalidKey):
            await rt.call(Account, "", "deposit", 1)
        with pytest.raises(ValueError, match="timeout"):
            await rt.call(Account, "k", "deposit", 1, timeout=0)
    async with opened(None, Shared) as rt:
        with pytest.raises(UnknownMethod, match="it has: method"):
            await rt.call(Shared, "k", "static")
    async with open_test_runtime() as rt:
        with pytest.raises(UnknownEntity, match=r"open_runtime\(entities="):
            rt.entity(Account, "k")
    with pytest.raises(ValueError, match="two entities are called 'Account'"):
        async with opened(None, Twin):
            pass


@entity(name="Account", limits=Limits())
class Twin:
    async def method(self) -> None: ...
