"""Pages of listings read a bounded number of records, and lead on from where they stopped."""

from collections.abc import Callable
from inspect import signature
from math import inf, nan
from pathlib import Path
from time import thread_time
from typing import Any, Self

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Limits, Reader, State, open_reader, step, workflow
from keyrun.groups import Member
from keyrun.runtime.inspect.pages import write_cursor
from keyrun.runtime.records.tables import sealed
from keyrun.schedules import Every
from keyrun.status import GroupSummary, RunPage
from keyrun.storage import LmdbStore, MemoryStore
from keyrun.testing import EPOCH, open_test_runtime

MOST = 10_000
"""Records that one request may read."""


class CountingStore(MemoryStore):
    """Counts the records that are read."""

    def __init__(self) -> None:
        super().__init__()
        self.read = 0

    async def _scan(self, *args: Any) -> list[tuple[bytes, bytes]]:
        rows = await super()._scan(*args)
        self.read += len(rows)
        return rows

    async def _get(self, table: str, key: bytes) -> bytes | None:
        self.read += 1
        return await super()._get(table, key)


@step
async def judge(number: int) -> int:
    return number


@workflow
async def count(ctx: Context, number: int) -> int:
    return await ctx.step(judge, number)


@workflow
async def patient(ctx: Context, number: int) -> int:
    for turn in range(number):
        await ctx.step(judge, turn)
    await ctx.wait_signal("go")
    return number


@workflow(while_waiting="yield")
async def yielding(ctx: Context) -> None:
    await ctx.wait_signal("go")


async def pages_of(reader: Reader, **options: Any) -> list[RunPage]:
    pages = [await reader.find_runs(**options)]
    while pages[-1].cursor is not None:
        pages.append(await reader.find_runs(**options, cursor=pages[-1].cursor))
    return pages


def ids(pages: list[RunPage]) -> list[str]:
    return [run.run_id for page in pages for run in page.runs]


async def ended_runs(store: Any, number: int) -> None:
    """Write ended runs into a store: copies of the records of one run."""
    async with open_test_runtime(store, workflows=[count]) as rt:
        await (await rt.submit(count, 0, key="k", run_id="r0")).result()
        ledger = rt._partition.state.ledger
        first = await ledger.find("r0")
        assert first is not None
        submission, status = await ledger.submission(first), await ledger.status(first)
        assert submission is not None
        assert status is not None
        for at in range(1, number):
            group = ledger.store.open_group()
            submission.number, submission.run_id = first + at, f"r{at}"
            submission.submitted_at += 1
            status.state = State.FAILED if at % 1000 == 999 else State.SUCCEEDED
            record = ledger.number(submission.number)
            group.put("runs", record, sealed("runs", record, *submission.fields()))
            group.put("status", record, sealed("status", record, *status.fields()))
            record = ledger.run_id(submission.run_id)
            group.put("ids", record, sealed("ids", record, submission.number))
            if at % 1000 == 0:
                await group.wait()
        await ledger.store.durable()


class Steps(trio.abc.Instrument):
    """Notes the longest time for which a task kept the others waiting, in CPU time."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = thread_time()

    def __enter__(self) -> Self:
        trio.lowlevel.add_instrument(self)
        return self

    def __exit__(self, *error: object) -> None:
        trio.lowlevel.remove_instrument(self)
        self.longest = max(self.longest, thread_time() - self._began)

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self._began = thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        self.longest = max(self.longest, thread_time() - self._began)


async def test_pages_lead_on_to_all_runs_in_both_directions(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await ended_runs(store, 25)
    async with open_reader(store) as reader:
        for newest_first in (False, True):
            names = [f"r{at}" for at in range(25)]
            pages = await pages_of(reader, limit=10, newest_first=newest_first)
            assert ids(pages) == (names[::-1] if newest_first else names)
            assert [page.examined for page in pages] == [10, 10, 5]
            last = [page.runs[-1].submitted_at for page in pages]
            assert [page.examined_until for page in pages] == last


async def test_a_page_that_found_too_little_says_how_far_it_has_looked(
    autojump_clock: MockClock,
) -> None:
    store = CountingStore()
    await ended_runs(store, 12_000)
    async with open_reader(store) as reader:
        store.read = 0
        page = await reader.find_runs(tag="nothing has this")
        assert page.runs == ()
        assert page.cursor is not None
        assert 1000 < page.examined <= store.read < MOST
        first = await reader.status("r0")
        assert first is not None
        assert page.examined_until == first.submitted_at + page.examined - 1
        pages = await pages_of(reader, state=State.FAILED)
        assert ids(pages) == [f"r{at}" for at in range(999, 12_000, 1000)]
        assert sum(page.examined for page in pages) == 12_000
        assert [run.run_id for run in await reader.runs(state=State.FAILED)] == ids(pages)


async def test_a_page_of_dead_letters_is_bounded(autojump_clock: MockClock) -> None:
    store = CountingStore()
    await ended_runs(store, 12_000)
    async with open_test_runtime(store) as rt:
        ledger = rt._partition.state.ledger
        group = ledger.store.open_group()
        for record, _ in await ledger.store.scan("runs", prefix=ledger.prefix):
            group.put("dead", record, b"")
        await group.wait()
        store.read = 0
        page = await rt.find_dead_letters(tag="nothing has this")
        assert 1000 < page.examined < store.read < MOST
        assert page.cursor is not None
        letters = await rt.find_dead_letters(limit=3, cursor=page.cursor)
        first = page.examined
        assert [run.run_id for run in letters.runs] == [f"r{first + at}" for at in range(3)]


async def test_a_cursor_stays_valid_when_its_run_is_forgotten(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await ended_runs(store, 10)
    async with open_test_runtime(store, workflows=[count]) as rt:
        page = await rt.find_runs(limit=4)
        for forgotten in ("r3", "r4"):
            await rt.forget(forgotten)
        rest = await rt.find_runs(cursor=page.cursor)
        assert [run.run_id for run in rest.runs] == ["r5", "r6", "r7", "r8", "r9"]
        assert rest.cursor is None


async def test_a_cursor_of_another_listing_is_rejected(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await ended_runs(store, 3)
    async with open_reader(store) as reader:
        page = await reader.find_runs(limit=1)
        assert page.cursor is not None
        with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
            await reader.find_dead_letters(cursor=page.cursor)
        for cursor in ("", "nonsense", page.cursor[:-3], "\N{SNOWMAN}"):
            with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
                await reader.find_runs(cursor=cursor)
        with pytest.raises(ValueError, match="limit must be at least 1"):
            await reader.find_runs(limit=0)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("limit", 0, "limit must be at least 1, got 0"),
        ("limit", 1.5, "limit must be an integer, got 1.5"),
        ("limit", None, "limit must be an integer, got None"),
        ("since", "2 h", "since must be a number, got '2 h'"),
        ("until", [], r"until must be a number, got \[\]"),
        ("state", "done", "'done' is not a valid State"),
        ("state", ["failed", "done"], "'done' is not a valid State"),
        ("state", 3, "state must be a list, got 3"),
        ("origin", 3, "origin must be a string, got 3"),
        ("group", 3, "group must be a string, got 3"),
    ],
)
async def test_a_wrong_argument_of_a_listing_is_named(
    autojump_clock: MockClock, name: str, value: Any, message: str
) -> None:
    wrong: Any = {name: value}
    async with open_test_runtime() as rt:
        calls: list[Any] = [
            rt.runs,
            rt.find_runs,
            rt.dead_letters,
            rt.find_dead_letters,
            rt.keys,
            rt.find_keys,
            rt.schedules,
            rt.find_schedules,
        ]
        for call in calls:
            if name in signature(call).parameters:
                with pytest.raises((TypeError, ValueError), match=message):
                    await call(**wrong)


async def test_other_wrong_arguments_of_a_runtime_are_named(autojump_clock: MockClock) -> None:
    async with open_test_runtime() as rt:
        calls: list[tuple[Callable[[], Any], str]] = [
            (lambda: rt.audit(since=nan), "since must be at least"),
            (lambda: rt.audit(until="1 h"), "until must be a number, got '1 h'"),  # type: ignore[arg-type]
            (lambda: rt.audit(operation=[]), r"operation must be one of .*; got \[\]"),  # type: ignore[arg-type]
            (lambda: rt.group_status(3), "group_id must be a string, got 3"),  # type: ignore[arg-type]
            (lambda: rt.submit_group("g", 3), "members must be a list, got 3"),  # type: ignore[arg-type]
            (lambda: rt.events(kinds=3), "kinds must be a list, got 3"),  # type: ignore[arg-type]
            (lambda: rt.entity([], "k"), r"a class decorated with @entity, got \[\]"),  # type: ignore[arg-type]
        ]
        for call, message in calls:
            with pytest.raises((TypeError, ValueError), match=message):
                called = call()
                if hasattr(called, "__await__"):
                    await called
        assert (await rt.audit(since=-inf, until=inf)).entries == ()


async def test_the_journals_of_listed_runs_count_as_records(autojump_clock: MockClock) -> None:
    store = CountingStore()
    limits = Limits(max_iterations=10_000)
    async with open_test_runtime(store, workflows=[patient], evict_after=1e9) as rt:
        for at in range(12):
            await rt.submit(patient, 1500, key=f"k{at}", run_id=f"r{at}", limits=limits)
        await rt.submit(patient, 2500, key="long", run_id="long", limits=limits)
        await trio.sleep(1)
        # The status records are now older than the journals.
        for at in range(13):
            await rt.signal(f"r{at}" if at < 12 else "long", "other")
        group = rt._partition.state.store.open_group()
        ledger = rt._partition.state.ledger
        for number in range(1, 14):
            status = await ledger.status(number)
            assert status is not None
            status.journal_next = 1
            group.put(
                "status",
                ledger.number(number),
                sealed("status", ledger.number(number), *status.fields()),
            )
        await group.wait()
        async with open_reader(store) as reader:
            found: list[str] = []
            cursor = None
            while True:
                store.read = 0
                page = await reader.find_runs(cursor=cursor)
                assert store.read < MOST
                found += [run.run_id for run in page.runs]
                done = {run.run_id: run.steps_done for run in page.runs}
                assert all(number == 1500 for name, number in done.items() if name != "long")
                cursor = page.cursor
                if cursor is None:
                    break
            assert found == [f"r{at}" for at in range(12)] + ["long"]


async def test_no_listing_of_100_000_runs_keeps_the_loop_for_5_ms(tmp_path: Path) -> None:
    async with LmdbStore(tmp_path / "store") as store:
        await ended_runs(store, 100_000)
        async with open_reader(store) as reader:
            for options in (
                {},
                {"limit": 1000},
                {"newest_first": True},
                {"state": State.FAILED},
                {"state": State.QUARANTINED},
                {"tag": "nothing"},
                {"key": "k", "since": 1e12},
                {"error": "ValueError"},
            ):
                longest = []
                for _ in range(3):
                    with Steps() as steps:
                        page = await reader.find_runs(**options)
                    longest.append(steps.longest)
                    assert page.examined <= MOST
                # The garbage collector may run in one of them.
                assert min(longest) < 0.005, options


async def test_keys_schedules_and_groups_are_paged(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[patient]) as rt:
        names = [f"n{at}" for at in range(7)]
        for name in names:
            await rt.submit(patient, 0, key=name)
            await rt.schedule(name, patient, 0, key="s", when=Every(60))
            await rt.submit_group(name, [Member(patient, 0, key="g")] * 2)
        await trio.sleep(1)
        async with open_reader(store) as reader:
            for source in (rt, reader):
                keys: list[str] = []
                schedules: list[str] = []
                groups: list[GroupSummary] = []
                cursor = None
                for _ in range(3):
                    page = await source.find_keys(limit=3, cursor=cursor)
                    keys += [each.key for each in page.keys]
                    cursor = page.cursor
                assert cursor is None
                assert sorted(keys) == ["g", *names]
                assert [each.key for each in (await source.find_keys(key="n3")).keys] == ["n3"]
                for _ in range(3):
                    timed = await source.find_schedules(limit=3, cursor=cursor)
                    schedules += [each.schedule_id for each in timed.schedules]
                    cursor = timed.cursor
                assert cursor is None
                assert schedules == names
                for _ in range(3):
                    found = await source.find_groups(limit=3, cursor=cursor)
                    groups += found.groups
                    cursor = found.cursor
                assert cursor is None
                assert [each.group_id for each in groups] == names
                assert {(each.size, each.created_at) for each in groups} == {(2, EPOCH)}
                with pytest.raises(ValueError, match="cursor must be the cursor of a page"):
                    await source.find_keys(cursor=write_cursor("groups", b"x"))


async def test_a_page_of_keys_counts_the_runs_of_a_deep_queue_up_to_a_limit(
    autojump_clock: MockClock,
) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[patient]) as rt:
        for key in ("a", "b", "c"):
            for _ in range(5000 if key == "b" else 2):
                await rt.submit_nowait(patient, 0, key=key)
        await trio.sleep(1)
        async with open_reader(store) as reader:
            store.read = 0
            page = await reader.find_keys()
            assert store.read < 2000
            assert [(each.key, each.more_runs) for each in page.keys] == [
                ("a", False),
                ("b", True),
                ("c", False),
            ]
            assert 1000 <= page.keys[1].runs <= 1200
            assert [(each.runs, each.more_runs) for each in await reader.keys()] == [
                (2, False),
                (5000, False),
                (2, False),
            ]


async def test_a_key_with_many_runs_that_yield_it_keeps_no_listing_busy(
    autojump_clock: MockClock,
) -> None:
    store = CountingStore()
    async with open_test_runtime(store, workflows=[yielding, patient], evict_after=0) as rt:
        for _ in range(3000):
            await rt.submit_nowait(yielding, key="deep")
        await trio.sleep(100)
        await rt.submit(patient, 0, key="deep", run_id="head")
        await trio.sleep(1)
        async with open_reader(store) as reader:
            for source in (rt, reader):
                longest = []
                for _ in range(3):
                    with Steps() as steps:
                        store.read = 0
                        (key,) = (await source.find_keys()).keys
                        assert store.read < MOST
                        why = await source.explain_key("deep")
                    longest.append(steps.longest)
                assert min(longest) < 0.005
                assert key.more_runs
                assert why.run_id == "head"
                (key,) = await source.keys()
                assert (key.runs, key.head) == (3001, "head")
