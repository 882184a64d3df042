"""Opening a store that somebody has used before: what is unfinished goes on by itself."""

import gc
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import trio

from keyrun import Context, State, Workflow, current_step, step, workflow
from keyrun.runtime.recovery import startup
from keyrun.runtime.run.loading import assemble
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore, StoreCrashed, StoreLocked
from keyrun.storage.batch import Tables
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore


class Log:
    """A workflow of two steps, the second of which takes 10 seconds."""

    def __init__(self) -> None:
        self.begun: list[str] = []

        @step
        async def first() -> None:
            self.begun.append(f"{current_step().run_id}:first")

        @step
        async def second() -> None:
            self.begun.append(f"{current_step().run_id}:second")
            await trio.sleep(10)

        @workflow
        async def job(ctx: Context) -> str:
            await ctx.step(first)
            await ctx.step(second)
            return ctx.run_id

        self.job: Workflow[None, str] = job


@pytest.fixture
def log() -> Log:
    return Log()


async def test_a_finished_step_is_not_run_again(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.submit(log.job, key="k", run_id="r")
        await trio.sleep(5)
        store.crash()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert await (await rt.submit(log.job, key="k", run_id="r")).result() == "r"
    assert log.begun == ["r:first", "r:second", "r:second"]


@pytest.mark.parametrize("signals", [False, True])
async def test_runs_of_many_keys_go_on_with_all_that_they_had(
    autojump_clock: trio.testing.MockClock, signals: bool
) -> None:
    """Journals, memos and the mappings of keys, where they are read together and where not; those
    that are not let in at once are read later."""
    sizes = Tuning(startup_page=7, startup_heads=3, gate_slack=0)
    killed = False

    @step
    async def count() -> Any:
        current_step().state["count"] = current_step().state.get("count", 0) + 1
        return current_step().state["count"]

    @step
    async def work() -> Any:
        if not killed:
            current_step().memo["at"] = current_step().key
            await trio.sleep(100)
        return current_step().memo["at"]

    @workflow
    async def job(ctx: Context) -> list[object]:
        counted = await ctx.step(count)
        found = await ctx.step(work)
        return [counted, found, await ctx.step(count)]

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], tuning=sizes) as rt:
        for n in range(20):
            await rt.submit(job, key=f"k{n}", run_id=f"r{n}")
        if signals:
            await rt.signal("r0", "unasked")
        await trio.sleep(5)
        store.crash()
    killed = True
    async with open_test_runtime(
        store, workflows=[job], max_concurrent_steps=4, tuning=sizes
    ) as rt:
        for n in range(20):
            run = await rt.submit(job, key=f"k{n}", run_id=f"r{n}")
            assert await run.result() == [1, f"k{n}", 2]


@pytest.mark.parametrize("first", range(1, 6))
@pytest.mark.parametrize("second", range(1, 6))
async def test_recovery_can_itself_be_interrupted_at_every_commit(
    autojump_clock: trio.testing.MockClock,
    log: Log,
    first: int,
    second: int,
) -> None:
    """Each interruption is written down once, however often recovery begins anew."""
    sizes = Tuning(startup_page=3, startup_markers=3)
    store = FragileStore()
    async with open_test_runtime(store, workflows=[log.job], tuning=sizes) as rt:
        for n in range(10):
            await rt.submit(log.job, key=f"k{n % 8}", run_id=f"r{n}")
        await trio.sleep(5)
        store.crash()
    assert len(store.keys("begun")) == 8
    for crash_after in (first, second):
        store.crash_at = store.commits + crash_after
        with suppress(StoreCrashed):
            async with open_test_runtime(store, workflows=[log.job], tuning=sizes):
                store.crash()
    store.crash_at = None
    async with open_test_runtime(store, workflows=[log.job], tuning=sizes) as rt:
        for n in range(10):
            run = await rt.submit(log.job, key=f"k{n % 8}", run_id=f"r{n}")
            assert await run.result() == f"r{n}"
        for n in range(8):
            events = [entry.event for entry in await rt.history(f"r{n}")]
            assert events.count("interrupted") == 1
    assert store.keys("begun") == store.keys("queue") == []
    assert sum(entry.endswith("first") for entry in log.begun) == 10


async def test_thousands_of_pending_runs_go_on_in_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    order: dict[str, list[int]] = {f"k{n}": [] for n in range(10)}

    @step
    async def note(number: int) -> None:
        order[current_step().key].append(number)

    @workflow
    async def job(ctx: Context, number: int) -> None:
        await ctx.step(note, number)

    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.pause_all()
        async with trio.open_nursery() as nursery:
            for number in range(3000):
                nursery.start_soon(
                    lambda n: rt.submit(job, n, key=f"k{n % 10}", run_id=f"r{n}"), number
                )
        store.crash()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, 9999, key="k3")
        assert rt.statistics().backlog.pending == 3001
        before = {key: [run.run_id for run in await rt.runs(key=key, limit=500)] for key in order}
        await rt.resume_all()
        await trio.sleep(10)
        statistics = rt.statistics()
        assert (statistics.backlog.pending, statistics.live, statistics.keys) == (0, 0, 0)
    for key, numbers in order.items():
        assert len(numbers) == 300 + (key == "k3")
        admitted = [int(run_id[1:]) for run_id in before[key] if run_id.startswith("r")]
        assert [number for number in numbers if number != 9999] == admitted
    assert order["k3"][-1] == 9999


async def test_delayed_runs_that_are_due_while_the_others_are_counted_are_counted_once(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    sizes = Tuning(startup_page=1)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job], tuning=sizes) as rt:
        await rt.pause_all()
        for n in range(30):
            await rt.submit(log.job, key=f"k{n:02}")
        for n in range(5):
            await rt.submit(log.job, key=f"late-{n}", delay=10)
        store.crash()
    await trio.sleep(100)
    async with open_test_runtime(store, workflows=[log.job], tuning=sizes) as rt:
        await trio.sleep(1)
        assert rt.statistics().backlog.pending == 35
        await rt.resume_all()
        await trio.sleep(100)
        assert rt.statistics().backlog.pending == 0


async def test_no_run_is_loaded_before_its_turn(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job], drain_timeout=0) as rt:
        for n in range(500):
            await rt.submit(log.job, key="k", run_id=f"r{n}")
    async with open_test_runtime(store, workflows=[log.job], drain_timeout=0) as rt:
        await trio.sleep(5)
        assert rt.statistics().live == 1


async def test_a_run_whose_workflow_is_not_registered_waits_quarantined_and_holds_its_key(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    hook = RecordingHook()

    @workflow
    async def gone(ctx: Context) -> str:
        await ctx.sleep(10)
        return "back again"

    async with open_test_runtime(store, workflows=[gone, log.job]) as rt:
        await rt.submit(gone, key="k", run_id="gone")
        await rt.submit(log.job, key="k", run_id="behind")
        await rt.submit(log.job, key="other", run_id="other")
        await trio.sleep(5)
        store.crash()
    for _ in range(2):
        async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
            await trio.sleep(100)
            states = {run.run_id: run.state for run in await rt.runs()}
            assert states == {
                "gone": State.QUARANTINED,
                "behind": State.PENDING,
                "other": State.SUCCEEDED,
            }
            status = await rt.status("gone")
            assert status is not None
            assert "'gone' version 1 is not registered" in str(status.reason)
            store.crash()
    assert {outcome.run_id for outcome in hook.outcomes} == {"other"}
    async with open_test_runtime(store, workflows=[gone, log.job], on_terminal=hook) as rt:
        assert await (await rt.submit(gone, key="k", run_id="gone")).result() == "back again"
        assert await (await rt.submit(log.job, key="k", run_id="behind")).result() == "behind"


@pytest.mark.parametrize("table", ["runs", "status", "journal"])
async def test_a_damaged_record_sets_only_its_own_run_aside(
    autojump_clock: trio.testing.MockClock, log: Log, table: str
) -> None:
    store = FragileStore()
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
        await rt.submit(log.job, key="k", run_id="damaged")
        await rt.submit(log.job, key="k", run_id="behind")
        await rt.submit(log.job, key="other", run_id="other")
        await trio.sleep(5)
        store.crash()
    store.damage(table, store.keys(table)[0])
    async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
        for name, key in (("behind", "k"), ("other", "other")):
            assert await (await rt.submit(log.job, key=key, run_id=name)).result() == name
        assert rt.statistics().backlog.pending == 0
    async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
        await trio.sleep(100)
        status = await rt.status("damaged")
        assert status is not None
        assert status.state is State.QUARANTINED
        assert status.key == "k"
        assert f"in table {table!r} is damaged" in str(status.reason)
        assert [run.run_id for run in await rt.runs(state=State.QUARANTINED)] == ["damaged"]
        assert sorted(outcome.run_id for outcome in hook.outcomes) == ["behind", "other"]
        assert await rt.cancel("damaged") is True
        assert await rt.cancel("damaged") is False
        assert rt.statistics().backlog.pending == 0
        assert await (await rt.submit(log.job, key="k", run_id="new")).result() == "new"
    assert [outcome.run_id for outcome in hook.outcomes].count("damaged") == 1


@pytest.mark.parametrize("table", ["queue", "begun", "outcomes", "delayed", "held", "ids"])
async def test_damage_to_an_index_stops_nobody(
    autojump_clock: trio.testing.MockClock, log: Log, table: str
) -> None:
    store = FragileStore()
    hook = RecordingHook()

    async def crash(outcome: object) -> None:
        store.crash()

    async with open_test_runtime(store, workflows=[log.job], on_terminal=crash) as rt:
        await rt.pause_key("paused")
        await rt.submit(log.job, key="late", run_id="late", delay=50)
        await rt.submit(log.job, key="a", run_id="a")
        await trio.sleep(5)
        await rt.submit(log.job, key="b", run_id="b")
        await trio.sleep_forever()
    assert store.keys(table)
    for key in store.keys(table):
        store.damage(table, key)
    async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
        await trio.sleep(200)
        states = {run.run_id: run.state for run in await rt.runs()}
    assert states == dict.fromkeys(["late", "a", "b"], State.SUCCEEDED)
    assert {outcome.run_id for outcome in hook.outcomes} == {"late", "a", "b"}


async def test_namespaces_of_one_store_do_not_see_each_other(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with (
        open_test_runtime(store, workflows=[log.job], namespace="one") as one,
        open_test_runtime(store, workflows=[log.job], namespace="one.two") as two,
    ):
        await two.pause_all()
        await one.submit(log.job, key="k", run_id="r")
        await two.submit(log.job, key="k", run_id="r")
        await two.submit(log.job, key="k", run_id="only-two")
        await trio.sleep(5)
        assert log.begun.count("r:second") == 1
        store.crash()
    async with open_test_runtime(store, workflows=[log.job], namespace="one") as one:
        assert await (await one.submit(log.job, key="k", run_id="r")).result() == "r"
        assert await one.status("only-two") is None
        assert len(await one.runs()) == 1
    async with open_test_runtime(store, workflows=[log.job], namespace="one.two") as two:
        await trio.sleep(100)
        statuses = [await two.status("r"), await two.status("only-two")]
        assert [status and status.state for status in statuses] == [State.PAUSED, State.PENDING]
        await two.resume_all()
        assert await (await two.submit(log.job, key="k", run_id="only-two")).result()


async def test_a_runtime_in_one_namespace_can_be_left_while_another_goes_on(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job], namespace="one") as one:
        run = await one.submit(log.job, key="k", run_id="one")
        async with open_test_runtime(store, workflows=[log.job], namespace="two") as two:
            await two.submit(log.job, key="k", run_id="two")
            await trio.sleep(1)
        assert await run.result() == "one"


async def test_a_namespace_has_one_runtime_at_a_time(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    """Two would drive the same runs, and every step would run twice."""
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        with pytest.raises(StoreLocked, match=r"'default'.*belongs to another runtime"):
            async with open_test_runtime(store, workflows=[log.job]):
                pass
        await rt.submit(log.job, key="k", run_id="r")
        await trio.sleep(5)
        store.crash()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert await (await rt.submit(log.job, key="k", run_id="r")).result() == "r"
    assert log.begun.count("r:first") == 1


async def test_numbers_are_never_used_twice_over_crashes(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    """A run that is admitted after a crash comes after all that were there before."""
    store = MemoryStore()
    names: list[str] = []
    for opened in range(5):
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            if not opened:
                await rt.pause_all()
            for n in range(3):
                names.append(f"r{opened}-{n}")
                await rt.submit(log.job, key="k", run_id=names[-1])
            assert [run.run_id for run in await rt.runs(key="k")] == names
            store.crash()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.resume_all()
        await (await rt.submit(log.job, key="k", run_id=names[-1])).result()
    assert [entry.partition(":")[0] for entry in log.begun if entry.endswith("first")] == names


async def test_a_key_with_more_runs_than_a_page_of_the_index_keeps_its_order(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sizes = Tuning(startup_page=3)
    done: list[int] = []

    @step
    async def note(number: int) -> None:
        done.append(number)

    @workflow
    async def job(ctx: Context, number: int) -> None:
        await ctx.step(note, number)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], tuning=sizes) as rt:
        await rt.pause_all()
        for number in range(100):
            await rt.submit(job, number, key="k")
    async with open_test_runtime(store, workflows=[job], tuning=sizes) as rt:
        await rt.resume_all()
        await (await rt.submit(job, 100, key="k")).result()
    assert done == list(range(101))


@pytest.fixture
def collector() -> Iterator[None]:
    """Python's garbage collector, left as it was."""
    enabled = gc.isenabled()
    yield
    (gc.enable if enabled else gc.disable)()


@pytest.mark.usefixtures("collector")
@pytest.mark.parametrize("enabled", [True, False])
async def test_the_garbage_collector_rests_while_runs_are_loaded_and_at_no_other_time(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, enabled: bool
) -> None:
    """Who has turned it off finds it off."""
    loaded: list[bool] = []
    meanwhile: list[bool] = []

    def look(*args: Any) -> Any:
        loaded.append(gc.isenabled())
        return assemble(*args)

    @step
    async def work() -> None:
        meanwhile.append(gc.isenabled())
        await trio.sleep(1)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work)

    sizes = Tuning(startup_page=3)
    monkeypatch.setattr("keyrun.runtime.queue.key_queue.assemble", look)
    (gc.enable if enabled else gc.disable)()
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], tuning=sizes) as rt:
        for n in range(5):
            await rt.submit(job, key=f"k{n}", run_id=f"r{n}")
        await trio.sleep(0.5)
        store.crash()
    async with open_test_runtime(store, workflows=[job], tuning=sizes) as rt:
        for n in range(5):
            await (await rt.submit(job, key=f"k{n}", run_id=f"r{n}")).result()
            assert gc.isenabled() is enabled
    assert loaded == [False] * 5
    assert meanwhile == [enabled] * 10


@pytest.mark.usefixtures("collector")
async def test_the_garbage_collector_goes_on_when_the_index_cannot_be_read(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, log: Log
) -> None:
    async def unreadable(*args: Any) -> Any:
        raise OSError("no such page")

    gc.enable()
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.submit(log.job, key="k", run_id="r")
        store.crash()
    monkeypatch.setattr(startup, "_wake", unreadable)
    with pytest.raises(OSError, match="no such page"):
        async with open_test_runtime(store, workflows=[log.job]):
            await trio.sleep(1)
    assert gc.isenabled()


async def test_a_damaged_key_of_the_index_keeps_nobody_else_from_going_on(
    autojump_clock: trio.testing.MockClock, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.pause_all()
        await rt.submit(log.job, key="k", run_id="sound")
        store.open_group().put("queue", rt._partition.state.ledger.prefix + b"\xff?", b"?")
        await store.durable()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.resume_all()
        assert await (await rt.submit(log.job, key="k", run_id="sound")).result() == "sound"
    assert "a queue record is damaged" in caplog.text


class BusyStore(MemoryStore):
    """Takes some passes of the loop for each commit, while the clock stands still."""

    async def _commit(self, tables: Tables) -> None:
        for _ in range(50):
            await trio.lowlevel.checkpoint()
        await super()._commit(tables)


async def test_a_run_that_ends_while_the_index_is_read_is_not_found_there_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    sizes = Tuning(startup_page=1, startup_passes=1000)
    ran: list[str] = []

    @step
    async def note(what: str) -> None:
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        ran.append(what)

    @workflow
    async def noted(ctx: Context, what: str) -> None:
        await ctx.step(note, what)

    store = BusyStore()
    async with open_test_runtime(store, workflows=[noted], tuning=sizes) as runtime:
        await runtime.pause_all()
        for key in ("k", "l", "m", "n"):
            await runtime.submit(noted, key, key=key)
    async with open_test_runtime(store, workflows=[noted], tuning=sizes) as runtime:
        for _ in range(1500):
            await trio.lowlevel.checkpoint()  # that of k is found, and those of m are not
        await runtime.resume_all()
        # Comes back when its run has ended, and the end is not durable.
        await runtime.resume_key("k")
        await trio.sleep(1)
        assert sorted(ran) == ["k", "l", "m", "n"]
        assert runtime.statistics().backlog.pending == 0
