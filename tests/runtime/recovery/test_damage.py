"""What becomes of a run whose records are damaged: it is shown, and it stops nobody else."""

from bisect import insort
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    PermanentError,
    Retention,
    RunFailed,
    RunStatus,
    Runtime,
    State,
    UnknownRun,
    current_step,
    open_reader,
    step,
    workflow,
)
from keyrun.errors import InvalidHistory
from keyrun.runtime.records.tables import sealed
from keyrun.storage import StoreCorrupt, unseal
from keyrun.testing import RecordingHook, open_test_runtime, replay
from tests.runtime.fragile import FragileStore

calls: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_called() -> None:
    calls.clear()


@step
async def work(name: str) -> None:
    calls.append(f"{current_step().run_id}:{name}")
    current_step().memo["at"] = name
    await trio.sleep(10)


@workflow
async def job(ctx: Context) -> str:
    for name in "ab":
        await ctx.step(work, name)
    return ctx.run_id


@step
async def broken() -> None:
    raise PermanentError("broken")


@workflow
async def doomed(ctx: Context) -> None:
    await ctx.step(broken)


def record_of(store: FragileStore, table: str, number: int) -> bytes:
    """The key of the first record of a run in a table."""
    (key, *_) = [k for k in store.keys(table) if k[k.index(b"\0") + 1 :][:8] == number.to_bytes(8)]
    return key


def record_number(store: FragileStore, run_id: str) -> int:
    """The number of a run that has an id of its own."""
    (key,) = [key for key in store.keys("ids") if key.endswith(run_id.encode())]
    (number,) = unseal("ids", key, store._tables["ids"].records[key])
    return int(number)


async def a_store(*, begun: bool = False, runs: int = 3) -> FragileStore:
    """With runs 1 to `runs` of the key `k`, none of which has begun, or the first has."""
    store = FragileStore()
    async with open_test_runtime(store, workflows=[job], drain_timeout=0) as rt:
        if not begun:
            await rt.pause_all()
        for n in range(1, runs + 1):
            await rt.submit(job, key="k", run_id=f"r{n}", tags=["t"])
        await trio.sleep(15)
        store.crash()
    if not begun:
        async with open_test_runtime(store, workflows=[job]) as rt:
            await rt.resume_all()
            store.crash()
    return store


async def status_of(rt: Runtime, run_id: str) -> RunStatus:
    status = await rt.status(run_id)
    assert status is not None
    return status


async def test_a_damaged_run_says_so_before_its_turn_and_ends_when_it_is_cancelled(
    autojump_clock: MockClock,
) -> None:
    store, hook = await a_store(), RecordingHook()
    store.damage("runs", record_of(store, "runs", 2))
    async with open_test_runtime(store, workflows=[job], on_terminal=hook) as rt:
        await trio.sleep(5)
        status = await status_of(rt, "r2")
        assert (status.state, status.run_id, status.key) == (State.QUARANTINED, "r2", "k")
        assert "in table 'runs' is damaged" in str(status.reason)
        assert [run.run_id for run in await rt.runs(state=State.QUARANTINED)] == ["r2"]
        assert (await rt.history("r2"))[0].event == "damaged"
        assert await rt.cancel("r2") is True
        assert await rt.cancel("r2") is False
        assert (await status_of(rt, "r2")).state is State.CANCELLED
        assert await (await rt.submit(job, key="k", run_id="r3", tags=["t"])).result() == "r3"
        assert rt.statistics().backlog.pending == 0
        await rt.forget("r2")
        again = await rt.submit(job, key="k", run_id="r2")
        assert again.newly_submitted
        assert await again.result() == "r2"
    assert [o.run_id for o in hook.outcomes if o.state is State.CANCELLED] == ["r2"]


@pytest.mark.parametrize("table", ["runs", "status", "journal", "memo"])
@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_damaged_run_can_be_forgotten_and_frees_its_id(
    autojump_clock: MockClock, table: str, when: str
) -> None:
    """Before its turn, or after it was set aside."""
    store = await a_store(begun=True)
    store.damage(table, record_of(store, table, 1))
    async with open_test_runtime(store, workflows=[job]) as rt:
        if when == "after" or table in ("journal", "memo"):
            await trio.sleep(1)
        else:
            await rt.pause_all()
        await rt.forget("r1")
        with pytest.raises(UnknownRun):
            await rt.forget("r1")
        assert await rt.status("r1") is None
        for name in ("runs", "status", "ids", "journal", "memo"):
            assert not [key for key in store.keys(name) if b"r1" in key]
        again = await rt.submit(job, key="k", run_id="r1", delay=1)
        assert again.newly_submitted
        await rt.resume_all()
        assert await again.result() == "r1"
        assert rt.statistics().backlog.pending == 0
        assert store.keys("queue") == []


async def test_a_run_whose_submission_is_lost_is_not_redriven(autojump_clock: MockClock) -> None:
    store = await a_store()
    store.damage("runs", record_of(store, "runs", 1))
    async with open_test_runtime(store, workflows=[job]) as rt:
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match=r"its submission is lost; .*forget\('r1'\)"):
                await rt.redrive("r1")
            await trio.sleep(1)
        with pytest.raises(StoreCorrupt, match=r"forget\('r1'\), then submit it again"):
            await rt.submit(job, key="k", run_id="r1")
        assert (await status_of(rt, "r1")).state is State.QUARANTINED
        await (await rt.submit(job, key="k", run_id="r3")).result()
        assert rt.statistics().backlog.pending == 0


async def test_a_run_that_was_set_aside_goes_to_the_end_of_its_line_when_it_reads_again(
    autojump_clock: MockClock,
) -> None:
    store = await a_store(begun=True)
    damaged = record_of(store, "journal", 1)
    store.damage("journal", damaged)
    async with open_test_runtime(store, workflows=[job]) as rt:
        await trio.sleep(1)
        status = await status_of(rt, "r1")
        assert status.state is State.QUARANTINED
        assert status.started_at is not None
        with pytest.raises(StoreCorrupt, match=r"(?s)journal.*forget\('r1'\)"):
            await rt.redrive("r1")
        assert (await status_of(rt, "r1")).state is State.QUARANTINED
        assert "damaged" in [happening.event for happening in await rt.history("r1")]
        store.damage("journal", damaged)  # the same bit again: it is as it was
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(rt.redrive, "r1")
        assert (await status_of(rt, "r1")).state in (State.RUNNING, State.PENDING)
        assert await (await rt.submit(job, key="k", run_id="r1")).result() == "r1"
        assert store.keys("queue") == []
        assert rt.statistics().backlog.pending == 0
    ended = [call for call in calls if call.endswith("b")]
    assert ended == ["r1:b", "r2:b", "r3:b", "r1:b"]  # the first was cut off by the crash
    assert calls.count("r1:a") == 1


def move(store: FragileStore, table: str, old: bytes, new: bytes) -> None:
    """Give a record another key, as a flipped bit in the key of a record does."""
    content = store._tables[table]
    content.records[new] = content.records.pop(old)
    content.keys.remove(old)
    insort(content.keys, new)


async def test_a_run_whose_place_is_in_the_queue_of_another_key_does_not_run_there(
    autojump_clock: MockClock,
) -> None:
    """It would run beside its own key, with the state of the other."""
    store = await a_store()
    place = store.keys("queue")[1]
    move(store, "queue", place, place.replace(b"\x01k", b"\x01j"))
    async with open_test_runtime(store, workflows=[job]) as rt:
        for run_id in ("r1", "r3"):
            assert await (await rt.submit(job, key="k", run_id=run_id)).result() == run_id
        status = await status_of(rt, "r2")
        assert (status.state, status.key) == (State.QUARANTINED, "k")
        assert "in table 'queue' is damaged" in str(status.reason)
        assert rt.statistics().backlog.pending == 0
        assert store.keys("queue") == []
        assert not [call for call in calls if call.startswith("r2")]
        await rt.redrive("r2")
        assert await (await rt.submit(job, key="k", run_id="r2")).result() == "r2"


async def test_a_damaged_place_that_leads_to_a_run_of_another_key_leaves_that_run_alone(
    autojump_clock: MockClock,
) -> None:
    store = await a_store()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.pause_all()
        await rt.submit(job, key="m", run_id="other")
        store.crash()
    place, other = store.keys("queue")[1], store.keys("queue")[-1]
    move(store, "queue", place, place[:-8] + other[-8:])
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.resume_all()
        for run_id, key in (("r1", "k"), ("r3", "k"), ("other", "m")):
            assert await (await rt.submit(job, key=key, run_id=run_id)).result() == run_id
        assert calls.count("other:a") == 1
        await trio.sleep(1)
        assert store.keys("queue") == []
        assert (await status_of(rt, "r2")).state is State.QUARANTINED
        assert rt.statistics().backlog.pending == 0


async def test_a_run_whose_status_was_damaged_goes_on_from_its_journal(
    autojump_clock: MockClock,
) -> None:
    store, hook = await a_store(begun=True), RecordingHook()
    store.damage("status", record_of(store, "status", 1))
    async with open_test_runtime(store, workflows=[job], on_terminal=hook) as rt:
        await trio.sleep(1)
        assert (await status_of(rt, "r1")).state is State.QUARANTINED
        assert await rt.redrive("r1") == 1
        assert await (await rt.submit(job, key="k", run_id="r1")).result() == "r1"
    assert calls.count("r1:a") == 1
    assert [outcome.run_id for outcome in hook.outcomes] == ["r2", "r3", "r1"]


async def test_a_run_that_is_redriven_after_its_damage_survives_a_crash(
    autojump_clock: MockClock,
) -> None:
    store = await a_store(begun=True)
    store.damage("status", record_of(store, "status", 1))
    async with open_test_runtime(store, workflows=[job]) as rt:
        await trio.sleep(1)
        await rt.redrive("r1")
        store.crash()
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="r1")).result() == "r1"


@pytest.mark.parametrize(
    "table", ["runs", "status", "ids", "queue", "journal", "dead", "ended", "held", "begun"]
)
async def test_no_damaged_record_keeps_anything_from_being_listed(
    autojump_clock: MockClock, table: str
) -> None:
    """All records of the table are damaged, and the answers are still there."""
    store = FragileStore()
    async with open_test_runtime(store, workflows=[job, doomed]) as rt:
        with pytest.raises(RunFailed):
            await (await rt.submit(doomed, key="dead", run_id="dead")).result()
        for run_id in ("r1", "r2", "r3"):
            await rt.submit(job, key="k", run_id=run_id)
        await trio.sleep(15)
        await rt.pause_key("k")
        assert store.keys(table)
        for key in store.keys(table):
            store.damage(table, key)
        async with open_reader(store) as reader:
            for source in (rt, reader):
                found = await source.runs()
                assert [run.run_id for run in found] == ["dead", "r1", "r2", "r3"]
                assert [run.run_id for run in await source.dead_letters()] == ["dead"]
                assert [(key.key, key.runs) for key in await source.keys()] == [("k", 3)]
                assert len(await source.keys(quarantined=True)) <= 1
                for run in found:
                    assert await source.status(run.run_id) == run
                    story = [happening.event for happening in await source.history(run.run_id)]
                    driven = source is rt and run.run_id == "r1"
                    hit = {"runs": not driven, "status": run.run_id in ("dead", "r1")}
                    hit["journal"] = hit["status"]
                    assert ("damaged" in story) == hit.get(table, False)
        store.crash()


async def test_the_listing_shows_damage_among_the_sound_and_pages_over_it(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyrun.runtime.inspect.listing.PAGE", 3)
    monkeypatch.setattr("keyrun.runtime.records.damage.PAGE", 2)
    store = await a_store(runs=10)
    for number in (2, 3, 4, 9):
        store.damage("runs", record_of(store, "runs", number))
    names = [f"r{n}" for n in range(1, 11)]
    async with open_reader(store) as reader:
        for limit in (1, 2, 3, 7, 10, 100):
            found: list[str] = []
            while True:
                after = found[-1] if found else None
                page = await reader.runs(limit=limit, after=after)
                found += [run.run_id for run in page]
                if len(page) < limit:
                    break
            assert found == names
        damaged = await reader.runs(state=State.QUARANTINED, limit=3)
        assert [run.run_id for run in damaged] == ["r2", "r3", "r4"]
        assert {run.key for run in damaged} == {"k"}
        sound = await reader.runs(tag="t", limit=5)
        assert [run.run_id for run in sound] == ["r1", "r5", "r6", "r7", "r8"]
        assert [run.run_id for run in await reader.runs(key="k")] == names
        assert reader.unreadable == 3
        assert await reader.runs(key="elsewhere") == []
        assert await reader.runs(key="ob") == []  # which stands in the records as a part of others
        waiting = await reader.runs(state=State.PENDING, limit=2, newest_first=True)
        assert [run.run_id for run in waiting] == ["r10", "r8"]
        assert reader.unreadable == 3


async def test_an_id_that_leads_nowhere_any_more_is_found_by_its_run(
    autojump_clock: MockClock,
) -> None:
    store = await a_store()
    for key in store.keys("ids"):
        store.damage("ids", key)
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert (await status_of(rt, "r3")).run_id == "r3"
        run = await rt.submit(job, key="k", run_id="r3", tags=["t"])
        assert not run.newly_submitted
        assert await rt.cancel("r2") is True
        assert await run.result() == "r3"
        await rt.forget("r2")
        assert await rt.status("r2") is None
        assert (await rt.submit(job, key="k", run_id="r2")).newly_submitted
        store.damage("runs", record_of(store, "runs", 1))
        with pytest.raises(StoreCorrupt, match="in table 'ids'"):
            await rt.status("r1")


async def test_a_record_that_holds_something_else_is_as_damaged_as_any(
    autojump_clock: MockClock,
) -> None:
    store = await a_store()
    for table, number, fields in (("runs", 1, ("x",)), ("status", 2, (1, 2, 3))):
        key = store.keys("runs")[number - 1]
        raw = sealed(table, key, *fields)
        async with store:
            store.open_group().put(table, key, raw)
            await store.durable()
    async with open_test_runtime(store, workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r3", tags=["t"])
        assert await run.result() == "r3"
        states = {run.run_id: run.state for run in await rt.runs()}
        assert states == {
            "r1": State.QUARANTINED,
            "r2": State.QUARANTINED,
            "r3": State.SUCCEEDED,
        }


@pytest.mark.parametrize("table", ["runs", "status"])
async def test_what_has_ended_and_is_damaged_can_only_be_forgotten(
    autojump_clock: MockClock, table: str
) -> None:
    store, hook = FragileStore(), RecordingHook()
    async with open_test_runtime(store, workflows=[job, doomed], on_terminal=hook) as rt:
        await (await rt.submit(job, key="k", run_id="ended")).result()
        with pytest.raises(RunFailed):
            await (await rt.submit(doomed, key="k", run_id="dead")).result()
        await trio.sleep(1)
        for number in (1, 2):
            store.damage(table, record_of(store, table, number))
        for run_id in ("ended", "dead"):
            status = await status_of(rt, run_id)
            assert "is damaged" in str(status.reason)
            assert await rt.cancel(run_id) is False
            with pytest.raises(Exception, match=r"forget\(|is succeeded") as caught:
                await rt.redrive(run_id)
            assert isinstance(caught.value, StoreCorrupt) or table == "runs"
        assert len(await rt.dead_letters()) == 1
        for run_id in ("ended", "dead"):
            await rt.forget(run_id)
            assert await rt.status(run_id) is None
            assert (await rt.submit(job, key="new", run_id=run_id, delay=5)).newly_submitted
        assert await rt.dead_letters() == []
        assert store.keys("ended") == store.keys("dead") == []
    assert [outcome.run_id for outcome in hook.outcomes] == ["ended", "dead"]


@pytest.mark.parametrize("table", ["runs", "status", "ended", "dead"])
async def test_damage_does_not_stop_the_sweeper(autojump_clock: MockClock, table: str) -> None:
    store = FragileStore()
    async with open_test_runtime(
        store, workflows=[job, doomed], retention=Retention(age=100)
    ) as rt:
        await (await rt.submit(job, key="k", run_id="ended")).result()
        with pytest.raises(RunFailed):
            await (await rt.submit(doomed, key="k", run_id="dead")).result()
        await rt.submit(job, key="k", run_id="also")
        await trio.sleep(50)
        for key in store.keys(table):
            store.damage(table, key)
        await trio.sleep(200)
        assert [run.run_id for run in await rt.runs()] == ["dead"]
        assert store.keys("ended") == []
        assert await (await rt.submit(job, key="k", run_id="ended")).result() == "ended"


@pytest.mark.parametrize("table", ["runs", "status"])
@pytest.mark.parametrize("act", ["wait", "cancel", "forget"])
async def test_a_delayed_run_that_is_damaged_is_set_aside_like_any_other(
    autojump_clock: MockClock, table: str, act: str
) -> None:
    store, hook = FragileStore(), RecordingHook()
    async with open_test_runtime(store, workflows=[job]) as rt:
        for n in range(1, 3):
            await rt.submit(job, key="k", run_id=f"r{n}", delay=100 * n)
        await rt.pause("r1")
        await rt.pause("r2")
    store.damage(table, record_of(store, table, 1))
    async with open_test_runtime(store, workflows=[job], on_terminal=hook) as rt:
        await rt.resume("r2")
        if act == "wait":
            await trio.sleep(150)
        status = await status_of(rt, "r1")
        assert status.state is State.QUARANTINED
        assert f"in table {table!r} is damaged" in str(status.reason)
        if act == "cancel":
            assert await rt.cancel("r1") is True
        elif act == "forget":
            await rt.forget("r1")
        assert await (await rt.submit(job, key="k", run_id="r2", delay=200)).result() == "r2"
        await trio.sleep(300)
        assert rt.statistics().backlog.pending == 0
        assert store.keys("delayed") == store.keys("queue") == []
        if act == "wait":
            assert (await status_of(rt, "r1")).state is State.QUARANTINED
            if table == "status":
                await rt.redrive("r1")
                assert await (await rt.submit(job, key="k", run_id="r1", delay=100)).result()
    assert calls.count("r1:a") == (act == "wait" and table == "status")


async def test_damage_that_hits_a_delayed_run_while_it_waits_does_not_end_the_runtime(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="r1", delay=100)
        await rt.pause("r1")
        store.damage("status", record_of(store, "status", 1))
        await trio.sleep(200)
        status = await status_of(rt, "r1")
        assert (status.state, status.key) == (State.QUARANTINED, "k")
        assert rt.statistics().backlog.pending == 0
        assert store.keys("delayed") == []


@pytest.mark.parametrize("table", ["runs", "status"])
async def test_a_damaged_run_whose_id_was_made_for_it_is_found_by_that_id_and_by_its_number(
    autojump_clock: MockClock, table: str
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.pause_all()
        made = [(await rt.submit(job, key="k")).run_id for _ in range(4)]
        for run_id in made:
            await rt.pause(run_id)
            await rt.resume(run_id)
        store.crash()
    for number in (2, 3):
        store.damage(table, record_of(store, table, number))
    shown = [made[0], "damaged-2", "damaged-3", made[3]] if table == "runs" else made
    async with open_reader(store) as reader:
        for newest_first in (False, True):
            found: list[str] = []
            while page := await reader.runs(
                limit=1, after=found[-1] if found else None, newest_first=newest_first
            ):
                found += [run.run_id for run in page]
            assert found == (shown[::-1] if newest_first else shown)
        assert await reader.status("damaged-1") is None
        assert await reader.status("damaged-99") is None
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.resume_all()
        await trio.sleep(100)
        for number in (2, 3):
            status = await status_of(rt, made[number - 1])
            assert (status.state, status.run_id) == (State.QUARANTINED, shown[number - 1])
            assert await status_of(rt, shown[number - 1]) == status
        await rt.forget(made[1])
        assert await rt.cancel(shown[2]) is True
        assert await rt.status(made[1]) is await rt.status(shown[1]) is None
        assert (await status_of(rt, made[2])).state is State.CANCELLED
        assert (await status_of(rt, made[3])).state is State.SUCCEEDED
        assert rt.statistics().backlog.pending == 0


@pytest.mark.parametrize("table", ["runs", "status", "journal"])
async def test_a_history_with_damage_is_told_and_cannot_be_saved_or_replayed(
    autojump_clock: MockClock, table: str
) -> None:
    store = await a_store(begun=True)
    store.damage(table, record_of(store, table, 1))
    async with open_reader(store) as reader:
        history = await reader.history("r1")
        assert "damaged" in [happening.event for happening in history]
        assert repr(history) == f"<history of a damaged run, {len(history)} happenings>"
        with pytest.raises(InvalidHistory, match=f"gap: .*{table}"):
            history.to_json()
        with pytest.raises(InvalidHistory, match=f"gap: .*{table}"):
            await replay(history, job)
        assert (await reader.history("r2")).records is not None


async def test_filters_show_damage_that_fits_and_count_what_nobody_can_tell(
    autojump_clock: MockClock,
) -> None:
    store = await a_store(begun=True)
    async with open_test_runtime(store, workflows=[job]) as rt:
        await (await rt.submit(job, key="k", run_id="r3", tags=["t"])).result()
        await rt.submit(job, key="later", run_id="later", delay=1000)
    store.damage("status", record_of(store, "status", 1))
    for number in (2, record_number(store, "later")):
        store.damage("runs", record_of(store, "runs", number))
    async with open_reader(store) as reader:

        async def ids(**filters: Any) -> list[str]:
            return [run.run_id for run in await reader.runs(**filters)]

        assert await ids() == ["r1", "r2", "r3", "later"]
        assert await ids(state=State.QUARANTINED) == ["r1", "later"]
        assert await ids(state=[State.SUCCEEDED]) == ["r2", "r3"]
        assert reader.unreadable == 0
        assert await ids(key="k") == ["r1", "r3"]
        assert reader.unreadable == 2
        assert await ids(workflow="job") == ["r1", "r3"]
        assert reader.unreadable == 4
        assert await ids(since=1.0, state=State.QUARANTINED) == ["r1"]
        assert reader.unreadable == 5
        # It counts until a runtime sets it aside.
        assert await reader.unfinished() == {("job", 1): 1}


async def test_a_damaged_counter_gives_no_number_twice(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    store = FragileStore()
    keys: list[str] = []

    @step
    async def effect() -> None:
        keys.append(current_step().idempotency_key)

    @workflow
    async def effects(ctx: Context) -> None:
        await ctx.step(effect)

    async with open_test_runtime(store, workflows=[effects, job], drain_timeout=0) as rt:
        for n in range(5):
            await (await rt.submit(effects, key="k", run_id=f"r{n}")).result()
        await rt.pause_all()
        await rt.submit(job, key="k", run_id="later", delay=100)
        await rt.submit(job, key="k", run_id="held")
        for n in range(5):
            await rt.forget(f"r{n}")
    for key in store.keys("counter"):
        store.damage("counter", key)
    async with open_test_runtime(store, workflows=[effects, job]) as rt:
        assert any("counter of admission numbers" in each.message for each in caplog.records)
        before = {status.run_id for status in await rt.runs()}
        await rt.resume_all()
        for n in range(5):
            await (await rt.submit(effects, key="k", run_id=f"r{n}")).result()
        await trio.sleep(200)
        after = await rt.runs()
        assert {status.run_id for status in after} == before | {f"r{n}" for n in range(5)}
        assert {status.state for status in after} == {State.SUCCEEDED}
    assert len(set(keys)) == len(keys) == 10
    caplog.clear()
    async with open_test_runtime(store, workflows=[effects, job]) as rt:
        await (await rt.submit(effects, key="k")).result()
    assert not caplog.records
    assert len(set(keys)) == len(keys)


async def test_a_damaged_mark_of_the_last_owner_counts_as_a_crash(
    autojump_clock: MockClock,
) -> None:
    store = await a_store(begun=True)
    for key in store.keys("counter"):
        store.damage("counter", key)
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="r3", tags=["t"])).result() == "r3"
    assert calls.count("r1:a") == 1
