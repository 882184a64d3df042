"""Listings find what fits, and look at no more than they must."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    PermanentError,
    Reader,
    Retry,
    RunFailed,
    Runtime,
    State,
    UnknownRun,
    open_reader,
    step,
    workflow,
)
from keyrun.runtime.inspect import listing
from keyrun.status import History
from keyrun.storage import MemoryStore, PayloadError, unseal
from keyrun.testing import EPOCH, open_test_runtime


class CountingStore(MemoryStore):
    """Knows how many rows were read in each block that a reader holds."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: list[int] = []
        self.read = 0

    @contextmanager
    def view(self) -> Iterator[None]:
        self.read = 0
        yield
        self.blocks.append(self.read)

    async def scan(self, *args: Any, **options: Any) -> list[tuple[bytes, bytes]]:
        rows = await super().scan(*args, **options)
        self.read += len(rows)
        return rows


@step
async def judge(number: int) -> int:
    if number % 10 == 7:
        raise PermanentError("seven")
    return number


@workflow
async def count(ctx: Context, number: int) -> int:
    if number >= 100:
        await ctx.sleep(1000)
    return await ctx.step(judge, number)


async def fill(runtime: Runtime, numbers: range) -> None:
    for number in numbers:
        await trio.sleep(1)
        run = await runtime.submit(
            count, number, key=f"k{number % 3}", run_id=f"r{number}", tags=[f"t{number % 2}"]
        )
        if number < 100:
            try:
                await run.result()
            except RunFailed:
                assert number % 10 == 7


async def filled() -> CountingStore:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[count]) as runtime:
        await fill(runtime, range(30))
    return store


async def test_the_newest_come_first_and_page_on_to_the_oldest(autojump_clock: MockClock) -> None:
    store = await filled()
    async with open_reader(store) as reader:
        seen: list[str] = []
        while page := await reader.runs(
            limit=7, newest_first=True, after=seen[-1] if seen else None
        ):
            seen += [run.run_id for run in page]
    assert seen == [f"r{number}" for number in reversed(range(30))]


async def test_a_page_without_a_filter_reads_no_more_rows_than_it_shows(
    autojump_clock: MockClock,
) -> None:
    store = await filled()
    async with open_reader(store) as reader:
        for newest_first in (False, True):
            store.blocks.clear()
            assert len(await reader.runs(limit=5, newest_first=newest_first)) == 5
            assert max(store.blocks) == 5  # on a busy machine there are more slices than one


async def test_no_block_of_a_long_listing_reads_more_than_a_page(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled()
    monkeypatch.setattr(listing, "PAGE", 4)
    async with open_reader(store) as reader:
        for newest_first in (False, True):
            store.blocks.clear()
            found = await reader.runs(state=State.FAILED, newest_first=newest_first)
            ids = [run.run_id for run in found]
            assert sorted(ids) == ["r17", "r27", "r7"]
            assert ids[0] == ("r27" if newest_first else "r7")
            # So many of runs, and of what is known of them.
            assert max(store.blocks) <= 2 * 4
        store.blocks.clear()
        assert await reader.unfinished() == {}
        assert max(store.blocks) <= 2 * 4


async def test_only_records_that_can_fit_are_unsealed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await filled()
    unsealed: list[bytes] = []

    def noting(table: str, key: bytes, raw: bytes) -> list[Any]:
        unsealed.append(key)
        return unseal(table, key, raw)

    monkeypatch.setattr(listing, "unseal", noting)
    async with open_reader(store) as reader:
        assert await reader.runs(key="nobody") == []
        assert await reader.runs(state=[State.RUNNING, State.PENDING]) == []
        assert unsealed == []
        assert len(await reader.runs(state=State.FAILED)) == len(unsealed) == 3


async def test_filters_hold_together(autojump_clock: MockClock) -> None:
    store = await filled()
    async with open_reader(store) as reader:

        async def ids(**filters: Any) -> list[str]:
            return [run.run_id for run in await reader.runs(**filters)]

        assert await ids(state=State.FAILED, tag="t1", key="k1") == ["r7"]
        assert await ids(state=State.FAILED, tag="t0") == []
        assert await ids(state="failed", tag="t1", key="k1") == ["r7"]
        assert await ids(state=[State.FAILED, State.SUCCEEDED], limit=2) == ["r0", "r1"]
        times = [run.submitted_at for run in await reader.runs()]
        assert await ids(since=times[28]) == ["r28", "r29"]
        assert await ids(until=times[2]) == ["r0", "r1"]
        assert await ids(since=times[3], until=times[5], newest_first=True) == ["r4", "r3"]
        # A key may stand in a record as something else: as the workflow, or as a part.
        assert await ids(key="count") == []
        assert await ids(key="k") == []
        assert await ids(tag="t") == []
        with pytest.raises(ValueError, match="crashed"):
            await ids(state=["crashed"])
        letters = await reader.dead_letters(newest_first=True, limit=2)
        assert [run.run_id for run in letters] == ["r27", "r17"]
        letters = await reader.dead_letters(newest_first=True, after="r17", key="k1")
        assert [run.run_id for run in letters] == ["r7"]


async def test_states_that_are_not_stored_as_such_are_found(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[count]) as runtime:
        for number in (100, 101, 102, 103):
            await runtime.submit(count, number, key=f"k{number}", run_id=f"r{number}")
        await runtime.submit(count, 1, key="k103", run_id="behind")
        await runtime.submit(count, 1, key="later", run_id="later", delay=1000)
        await runtime.pause("r101")
        await runtime.pause("behind")
        await runtime._partition.state.store.durable()
        async with open_reader(store) as reader:

            async def ids(*states: State) -> list[str]:
                return [run.run_id for run in await reader.runs(state=states)]

            assert await ids(State.PAUSED) == ["r101", "behind"]
            assert await ids(State.PENDING) == ["later"]
            assert await ids(State.WAITING) == ["r100", "r102", "r103"]
            assert await ids(State.SUCCEEDED, State.FAILED) == []
            assert await reader.unfinished() == {("count", 1): 6}
            (key,) = await reader.keys(key="k103")
            assert (key.runs, key.head) == (2, "r103")
            assert await reader.keys(key="k1") == []


async def test_a_status_can_be_read_without_its_result(autojump_clock: MockClock) -> None:
    store = await filled()
    async with open_reader(store) as reader:
        whole, without = await reader.status("r3"), await reader.status("r3", result=False)
        assert whole is not None
        assert without is not None
        assert (whole.result, without.result) == (3, None)
        assert without.state is State.SUCCEEDED


@workflow(while_waiting="yield")
async def gives_way(ctx: Context, seconds: float) -> None:
    await ctx.sleep(seconds)


@workflow
async def stays_put(ctx: Context, seconds: float) -> None:
    await ctx.wait_signal("go", timeout=seconds)


async def test_the_head_of_a_key_is_not_one_that_sleeps_and_gives_way(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[gives_way, stays_put]) as rt:
        for number in range(600):  # more than a page
            await rt.submit(gives_way, 1000, key="k", run_id=f"s{number}")
        await trio.sleep(10)
        (key,) = await rt.keys()
        assert (key.head, key.state, key.runs) == ("", State.WAITING, 600)
        await rt.submit(stays_put, 500, key="k", run_id="holds")
        await trio.sleep(10)
        (key,) = await rt.keys()
        assert (key.head, key.state, key.runs) == ("holds", State.WAITING, 601)
        assert key.waiting_on == "signal go"
        assert key.waiting_until == pytest.approx(EPOCH + 510, abs=1, rel=0)
        await rt.pause_key("k")
        paused = [status.run_id for status in await rt.runs(state=State.PAUSED)]
        assert paused == ["holds"]
        await rt.resume_key("k")
        await trio.sleep(1000)
        assert not await rt.keys()


async def test_a_status_says_until_when_a_run_waits(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[gives_way, stays_put]) as rt:
        await rt.submit(stays_put, 500, key="a", run_id="a")
        await rt.submit(gives_way, 300, key="b", run_id="b")
        for _ in range(2):  # in memory, and when it has left
            await trio.sleep(0.1)
            until = [status.waiting_until for status in await rt.runs()]
            assert until == pytest.approx([EPOCH + 500, EPOCH + 300], abs=1, rel=0)
            await trio.sleep(10)
        await trio.sleep(1000)
        assert {status.waiting_until for status in await rt.runs()} == {None}


class Declined(Exception): ...


@step(retry=Retry.none())
async def pay(number: int) -> int:
    if number == 2:
        raise Declined("no")
    if number == 3:
        await trio.sleep(1000)
    return number


@workflow(version=1)
async def order(ctx: Context, number: int) -> None:
    await ctx.gather(ctx.step(pay, 0), ctx.step(pay, number))


@workflow
async def parent(ctx: Context, number: int) -> None:
    await ctx.child(order, number, key="other")


async def test_runs_are_found_by_version_by_step_and_by_error(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[order]) as rt:
        for number in range(4):
            await rt.submit(order, number, key=f"k{number}", run_id=f"r{number}")
        await trio.sleep(1)

        async def found(reader: Reader, **wanted: Any) -> list[str]:
            return [run.run_id for run in await reader.runs(**wanted)]

        async with open_reader(store) as reader:
            for each in (rt, reader):
                assert await found(each, error="Declined") == ["r2"]
                assert await found(each, error=f"{__name__}.Declined") == ["r2"]
                assert await found(each, error="Decline") == []
                assert await found(each, error="Declined", state=State.SUCCEEDED) == []
                (letter,) = await each.dead_letters(error="Declined", version=1, step="pay")
                assert letter.run_id == "r2"
                assert await each.dead_letters(step="ship") == []
                assert await found(each, version=1) == ["r0", "r1", "r2", "r3"]
                assert await found(each, version=2) == []
        # Only the runtime knows the steps that run now.
        assert await found(rt, step="pay") == ["r2", "r3"]
        assert await found(rt, step="g1.0/pay") == []
        assert await found(rt, step="g1.1/pay", limit=1) == ["r2"]
        for wrong, error in (({"version": 0}, ValueError), ({"error": "\ud800"}, ValueError)):
            with pytest.raises(error):
                await rt.runs(**wrong)


async def test_the_error_of_a_child_finds_its_parent(autojump_clock: MockClock) -> None:
    async with open_test_runtime(MemoryStore(), workflows=[order, parent]) as rt:
        await rt.submit(parent, 2, key="k", run_id="parent")
        await trio.sleep(1)
        found = [run.workflow for run in await rt.runs(error="Declined")]
        assert found == ["parent", "order"]


async def test_the_input_and_the_values_of_a_history_are_plain_data(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[talk, order]) as rt:
        run = await rt.submit(talk, Greeting("hello"), key="k", run_id="r")
        await rt.signal("r", "answer", ["yes"])
        await run.result()
        assert await rt.input("r") == {"text": "hello"}
        values = [
            (event.event, rt.value(event.stored))
            for event in await rt.history("r")
            if event.stored is not None
        ]
        assert values == [
            ("submitted", {"text": "hello"}),
            ("signal_received", ["yes"]),
            ("step_completed", {"text": "hello!"}),
            ("succeeded", {"text": "hello!"}),
        ]
        loaded = History.from_json((await rt.history("r")).to_json())
        assert [event.stored for event in loaded] == [e.stored for e in await rt.history("r")]
        with pytest.raises(UnknownRun):
            await rt.input("unknown")


async def test_what_is_encrypted_is_not_shown_without_its_transform(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[order], transform=Backwards()) as rt:
        await rt.submit(order, 1, key="k", run_id="r")
        assert await rt.input("r") == 1
    async with open_reader(store) as reader:
        (event, *_) = await reader.history("r")
        assert event.stored is not None
        with pytest.raises(PayloadError):
            reader.value(event.stored)
        with pytest.raises(PayloadError):
            await reader.input("r")


@attrs.frozen
class Greeting:
    text: str


class Backwards:
    """A transform that shows when it is left out."""

    def wrap(self, data: bytes, /) -> bytes:
        return b"\xc1" + data[::-1]

    def unwrap(self, data: bytes, /) -> bytes:
        return data[:0:-1]


@step
async def shout(greeting: Greeting) -> Greeting:
    return Greeting(greeting.text + "!")


@workflow
async def talk(ctx: Context, greeting: Greeting) -> Greeting:
    await ctx.wait_signal("answer")
    return await ctx.step(shout, greeting)
