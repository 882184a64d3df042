"""Schedules start runs when their timetables say so, each firing once."""

import logging
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    InputMismatch,
    Limits,
    Priority,
    Retention,
    Runtime,
    State,
    UnknownWorkflow,
    Workflow,
    current_step,
    open_reader,
    step,
    workflow,
)
from keyrun.errors import InvalidSchedule
from keyrun.schedules import Cron, Every, Once, ScheduleStatus
from keyrun.storage import LmdbStore, MemoryStore
from keyrun.testing import EPOCH, CrashingLmdbStore, crash_points, open_test_runtime
from tests.runtime.fragile import FragileStore

MIDNIGHT = EPOCH - EPOCH % 86_400 + 86_400
"""The first one on virtual time, which begins at 22:13:20."""


class Log:
    """A workflow that writes down when which run was executed."""

    def __init__(self, takes: float = 1.0) -> None:
        self.begun: list[float] = []
        self.ids: list[str] = []
        self.scheduled: list[str] = []
        self.inputs: list[Any] = []

        @step
        async def note(value: Any) -> None:
            here = current_step()
            if here.run_id not in self.ids:
                self.ids.append(here.run_id)
                self.begun.append(trio.current_time())
                self.scheduled.append(here.headers["keyrun.scheduled_at"])
                self.inputs.append(value)
            await trio.sleep(takes)

        @workflow
        async def job(ctx: Context, value: Any) -> Any:
            await ctx.step(note, value)
            return value

        self.job: Workflow[Any, Any] = job


@pytest.fixture
def log() -> Log:
    return Log()


class Clock:
    """A wall clock that somebody can set."""

    def __init__(self) -> None:
        self.off = 0.0

    def __call__(self) -> float:
        return EPOCH + trio.current_time() + self.off


async def only(rt: Runtime) -> ScheduleStatus:
    (status,) = await rt.schedules()
    return status


async def test_what_fires_once_fires_once_and_is_done(autojump_clock: MockClock, log: Log) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        made = await rt.schedule("later", log.job, {"a": 1}, key="k", when=Once(EPOCH + 100))
        assert (made.kind, made.next_at, made.last_at) == ("once", EPOCH + 100, None)
        await trio.sleep(1000)
        status = await only(rt)
        assert (status.next_at, status.last_at, status.fired) == (None, EPOCH + 100, 1)
        assert status.finished
        assert status.last_state is State.SUCCEEDED
        # The same again is known to have fired.
        await rt.schedule("later", log.job, {"a": 1}, key="k", when=Once(EPOCH + 100))
        await trio.sleep(1000)
    assert log.begun == [100]
    assert log.inputs == [{"a": 1}]


async def test_a_status_has_the_next_firings_of_the_timetable(
    autojump_clock: MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        every = await rt.schedule("every", log.job, key="a", when=Every(90))
        assert every.next_times == tuple(EPOCH + 90 * turn for turn in range(1, 6))
        on_grid = Every(100, start=EPOCH - 30)
        grid = await rt.schedule("grid", log.job, key="a", when=on_grid, paused=True)
        assert grid.next_times == ()
        await rt.resume_schedule("grid")
        found = {each.schedule_id: each for each in await rt.schedules()}
        assert found["grid"].next_times == tuple(EPOCH + 70 + 100 * turn for turn in range(5))
        cron = await rt.schedule("cron", log.job, key="b", when=Cron("0 0 * * *"))
        assert cron.next_times[0] == cron.next_at
        assert {b - a for a, b in pairwise(cron.next_times)} == {86400.0}
        once = await rt.schedule("once", log.job, key="c", when=Once(EPOCH + 5))
        assert once.next_times == (EPOCH + 5,)
        await trio.sleep(10)
        status = {each.schedule_id: each for each in await rt.schedules()}["once"]
        assert (status.finished, status.next_times) == (True, ())


async def test_an_interval_fires_again_and_again_until_it_is_deleted(
    autojump_clock: MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.schedule("tick", log.job, key="k", when=Every(90))
        await trio.sleep(300)
        assert await rt.delete_schedule("tick")
        assert not await rt.delete_schedule("tick")
        assert await rt.schedules() == []
        await trio.sleep(300)
    assert log.begun == pytest.approx([90, 180, 270])


async def test_a_firing_is_a_run_that_says_where_it_comes_from(
    autojump_clock: MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.schedule(
            "nightly",
            log.job,
            7,
            key="reports",
            when=Cron("0 0 * * *"),
            headers={"team": "x"},
            tags=["night"],
            priority=Priority.LOW,
            limits=Limits(run_timeout=500),
        )
        await trio.sleep(MIDNIGHT - EPOCH + 10)
        (run,) = await rt.runs(tag="night")
        assert run.run_id == "nightly-20231115T000000Z"
        assert run.origin == "schedule:nightly"
        assert (run.key, run.result, run.state) == ("reports", 7, State.SUCCEEDED)
        assert run.headers == {"team": "x", "keyrun.scheduled_at": "2023-11-15T00:00:00+00:00"}
        assert run.deadline == pytest.approx(MIDNIGHT + 500)
        assert (await only(rt)).last_run_id == run.run_id


async def test_firings_between_seconds_have_ids_of_their_own(
    autojump_clock: MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.schedule("q", log.job, key="k", when=Every(0.25, start=EPOCH + 1), overlap=True)
        await trio.sleep(1.6)
        await rt.pause_schedule("q")
        await trio.sleep(10)
    assert log.ids == [
        "q-20231114T221321Z",
        "q-20231114T221321_250000Z",
        "q-20231114T221321_500000Z",
    ]


async def test_the_same_again_changes_nothing_also_after_a_restart(
    autojump_clock: MockClock, log: Log
) -> None:
    store = MemoryStore()
    for _ in range(3):
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            status = await rt.schedule("tick", log.job, {"b": 1, "a": 2}, key="k", when=Every(100))
            again = await rt.schedule("tick", log.job, {"a": 2, "b": 1}, key="k", when=Every(100))
            assert status == again
            await trio.sleep(130)
    assert log.begun == pytest.approx([100, 200, 300])


async def test_another_plan_takes_the_place_of_the_one_before(
    autojump_clock: MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.schedule("tick", log.job, "old", key="k", when=Every(100))
        await trio.sleep(150)
        # The same timetable: the next firing stays where it was.
        replaced = await rt.schedule("tick", log.job, "new", key="k", when=Every(100))
        assert (replaced.next_at, replaced.fired) == (EPOCH + 200, 1)
        await trio.sleep(70)
        await rt.schedule("tick", log.job, "new", key="k", when=Every(30))
        await trio.sleep(70)
        assert (await only(rt)).fired == 4
    assert log.begun == pytest.approx([100, 200, 250, 280])
    assert log.inputs == ["old", "new", "new", "new"]


async def test_schedules_that_are_made_and_changed_at_once_are_one_in_the_end(
    autojump_clock: MockClock, log: Log
) -> None:
    made: list[ScheduleStatus] = []

    async def make(value: int) -> None:
        made.append(await rt.schedule("s", log.job, value, key="k", when=Every(100)))

    store = FragileStore(latency=1)
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        for values in ([1, 1, 1], [2, 3, 3, 4]):
            async with trio.open_nursery() as nursery:
                for value in values:
                    nursery.start_soon(make, value)
                    nursery.start_soon(rt.pause_schedule, "s")
                    nursery.start_soon(rt.resume_schedule, "s")
            await rt.resume_schedule("s")
        assert len(await rt.schedules()) == len(store.keys("firings")) == 1
        await trio.sleep(150)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.delete_schedule, "s")
            nursery.start_soon(rt.pause_schedule, "s")
            nursery.start_soon(rt.delete_schedule, "s")
        await rt.delete_schedule("s")
        await trio.sleep(150)
    assert len(log.ids) == 1
    assert store.keys("schedules") == store.keys("firings") == []


async def test_a_schedule_changed_at_the_moment_it_fires_is_neither_lost_nor_doubled(
    autojump_clock: MockClock, log: Log
) -> None:
    store = FragileStore(latency=1)
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        for turn in range(30):
            when = Every(100, start=EPOCH + 100)
            await rt.schedule("s", log.job, turn, key="k", when=when, overlap=True)
            # Around the firing, earlier or later by a fraction of the time that a commit takes.
            await trio.sleep(100 * (turn + 1) - 2 + turn / 10 - trio.current_time())
        await trio.sleep(50)
        status = await only(rt)
        assert (status.fired, status.missed) == (30, 0)
        assert len(store.keys("firings")) == 1
    assert len(log.ids) == 30


async def test_a_paused_schedule_drops_what_falls_into_the_pause(
    autojump_clock: MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.schedule("tick", log.job, key="k", when=Every(100))
        await trio.sleep(150)
        assert await rt.pause_schedule("tick")
        assert not await rt.pause_schedule("tick")
        assert not await rt.pause_schedule("nobody")
        status = await only(rt)
        assert (status.paused, status.next_at) == (True, None)
        # Whoever sets it up again at every start does not lift the pause.
        assert (await rt.schedule("tick", log.job, key="k", when=Every(100))).paused
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert (await rt.schedule("tick", log.job, 1, key="k", when=Every(100))).paused
        await trio.sleep(400)
        assert await rt.resume_schedule("tick")
        assert not await rt.resume_schedule("tick")
        await trio.sleep(100)
    assert log.begun == pytest.approx([100, 600])


@pytest.mark.parametrize(("misfire", "begun"), [("fire_once", [200]), ("skip", [])])
async def test_what_fires_once_may_be_overdue_when_it_is_resumed(
    autojump_clock: MockClock, log: Log, misfire: Any, begun: list[float]
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        when = Once(EPOCH + 100)
        await rt.schedule("o", log.job, key="k", when=when, misfire=misfire, paused=True)
        await trio.sleep(200)
        await rt.resume_schedule("o")
        await trio.sleep(100)
        status = await only(rt)
        assert status.finished
        assert (status.fired, status.missed) == (len(begun), 1 - len(begun))
        assert not await rt.pause_schedule("o")
    assert log.begun == begun


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize(
    ("misfire", "begun", "missed"),
    [("fire_once", [100, 1050, 1100], 8), ("skip", [100, 1100], 9)],
)
async def test_downtime_is_made_up_for_once_or_not_at_all(
    autojump_clock: MockClock,
    log: Log,
    crash: bool,
    misfire: Any,
    begun: list[float],
    missed: int,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.schedule("tick", log.job, key="k", when=Every(100), misfire=misfire)
        await trio.sleep(150)
        if crash:
            store.crash()
    await trio.sleep(900)
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await trio.sleep(100)
        assert (await only(rt)).missed == missed
    assert log.begun == pytest.approx(begun, abs=0.2)


@pytest.mark.parametrize(
    ("misfire", "expected"),
    [("fire_once", ["15", "18", "19"]), ("skip", ["15", "19"])],
)
async def test_cron_over_downtime(
    autojump_clock: MockClock, log: Log, misfire: Any, expected: list[str]
) -> None:
    store = MemoryStore()
    when = Cron("30 3 * * *", "Europe/Berlin")
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.schedule("c", log.job, key="k", when=when, misfire=misfire)
        await trio.sleep(86_400)
    await trio.sleep(3 * 86_400)
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await trio.sleep(86_400)
    assert log.scheduled == [f"2023-11-{day}T02:30:00+00:00" for day in expected]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("2024-03-29T12:00", ["30T01:30", "31T01:00", "01T00:30"]),
        ("2024-10-25T12:00", ["26T00:30", "27T00:30", "28T01:30"]),
    ],
)
async def test_cron_over_a_change_of_the_clocks(
    autojump_clock: MockClock, log: Log, start: str, expected: list[str]
) -> None:
    begin = datetime.fromisoformat(start).replace(tzinfo=UTC).timestamp()
    store = MemoryStore()
    for _ in range(12):
        wall = lambda: begin + trio.current_time()  # noqa: E731
        async with open_test_runtime(store, workflows=[log.job], wall=wall) as rt:
            await rt.schedule("c", log.job, key="k", when=Cron("30 2 * * *", "Europe/Berlin"))
            await trio.sleep(6 * 3600)
    assert [time[8:16] for time in log.scheduled] == expected


async def test_the_start_of_an_interval_is_a_time_that_may_be_far_away(
    autojump_clock: MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.schedule("s", log.job, key="k", when=Every(10, start=EPOCH + 1000))
        await trio.sleep(500)
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await trio.sleep(515)
    assert log.begun == pytest.approx([1000, 1010])


async def test_a_clock_set_forward_fires_what_it_jumped_over_once(
    autojump_clock: MockClock, log: Log
) -> None:
    clock = Clock()
    async with open_test_runtime(workflows=[log.job], wall=clock) as rt:
        await rt.schedule("once", log.job, 1, key="a", when=Every(3600))
        await rt.schedule("skip", log.job, 2, key="b", when=Every(3600), misfire="skip")
        await rt.schedule("cron", log.job, 3, key="c", when=Cron("0 * * * *"), misfire="skip")
        await trio.sleep(100)
        clock.off = 10 * 3600.0
        await trio.sleep(60)
        assert log.inputs == [1]
        assert {each.schedule_id: each.missed for each in await rt.schedules()} == {
            "cron": 10,
            "once": 9,
            "skip": 10,
        }
        await trio.sleep(3600)
    assert sorted(log.inputs) == [1, 1, 2, 3]
    assert log.ids[0] == "once-20231115T081320Z"


async def test_a_clock_set_back_fires_nothing_twice_and_holds_up_no_interval(
    autojump_clock: MockClock, log: Log
) -> None:
    clock = Clock()
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job], wall=clock) as rt:
        await rt.schedule("e", log.job, "e", key="a", when=Every(100))
        await rt.schedule("c", log.job, "c", key="b", when=Cron("*/10 * * * *"))
        await trio.sleep(1050)
        assert log.inputs.count("c") == 2
        clock.off = -1000.0
        await trio.sleep(390)
        # As far away as it was, and from then on as often as before.
        assert log.begun[-4:] == pytest.approx([1100, 1200, 1300, 1400], abs=0.2)
        assert log.inputs.count("c") == 2
    async with open_test_runtime(store, workflows=[log.job], wall=clock) as rt:
        await trio.sleep(1000)
    every = [at for at, value in zip(log.begun, log.inputs, strict=True) if value == "e"]
    assert every == pytest.approx([100 * turn for turn in range(1, 25)], abs=0.2)
    cron = [at for at, value in zip(log.begun, log.inputs, strict=True) if value == "c"]
    assert cron == pytest.approx([400, 1000], abs=0.2)
    assert len(set(log.ids)) == len(log.ids)


async def test_a_clock_set_back_while_nobody_was_there_holds_up_no_interval(
    autojump_clock: MockClock, log: Log
) -> None:
    clock = Clock()
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job], wall=clock) as rt:
        await rt.schedule("e", log.job, key="a", when=Every(100))
        await trio.sleep(150)
    clock.off = -86_400.0
    async with open_test_runtime(store, workflows=[log.job], wall=clock) as rt:
        await trio.sleep(250)
    assert log.begun[:3] == pytest.approx([100, 200, 300], abs=0.2)


@pytest.mark.parametrize("misfire", ["fire_once", "skip"])
async def test_firings_that_pass_while_the_process_is_busy_are_merged_into_one(
    autojump_clock: MockClock, misfire: Any
) -> None:
    log = Log(takes=0)
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.schedule("tick", log.job, key="k", when=Every(1), misfire=misfire)
        await trio.sleep(3.5)
        autojump_clock.jump(5)  # the loop runs nothing else for five seconds
        await trio.sleep(1)
        status = await only(rt)
        assert (status.fired, status.missed, status.skipped) == (5, 4, 0)
    assert log.begun == pytest.approx([1, 2, 3, 8.5, 9], abs=0.1)
    assert [time[-11:-6] for time in log.scheduled] == ["13:21", "13:22", "13:23", "13:28", "13:29"]


async def test_firings_are_skipped_while_the_run_before_has_not_ended(
    autojump_clock: MockClock,
) -> None:
    slow = Log(takes=250)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[slow.job]) as rt:
        await rt.schedule("s", slow.job, key="k", when=Every(100))
        await trio.sleep(380)
        status = await only(rt)
        assert (status.fired, status.skipped, status.last_state) == (1, 2, State.SUCCEEDED)
        await trio.sleep(30)
        store.crash()
    # It has to be run again, and holds up what comes next from the moment of the restart.
    async with open_test_runtime(store, workflows=[slow.job]) as rt:
        await trio.sleep(200)
        status = await only(rt)
        assert (status.fired, status.skipped) == (2, 4)
    assert slow.begun == pytest.approx([100, 400], abs=0.2)


async def test_with_overlap_they_queue_up_behind_it(autojump_clock: MockClock) -> None:
    slow = Log(takes=250)
    async with open_test_runtime(workflows=[slow.job], max_pending=1) as rt:
        await rt.schedule("s", slow.job, key="k", when=Every(100), overlap=True)
        await trio.sleep(450)
        # Backpressure is for those who submit, not for the clock.
        assert (await only(rt)).fired == 4
        assert len(await rt.runs(state=State.PENDING)) == 2
    assert slow.begun == pytest.approx([100, 350], abs=0.2)


async def test_a_schedule_without_its_workflow_stays_and_says_so(
    autojump_clock: MockClock, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.schedule("lost", log.job, 1, key="k", when=Every(100))
    with caplog.at_level(logging.ERROR):
        async with open_test_runtime(store) as rt:
            await trio.sleep(1000)
            status = await only(rt)
            assert status.problem is not None
            assert "'job' is not a workflow of this runtime" in status.problem
            assert (status.fired, status.next_at) == (0, EPOCH + 100)
    assert len([each for each in caplog.records if "lost" in each.getMessage()]) == 1
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await trio.sleep(150)
        status = await only(rt)
        assert (status.problem, status.fired, status.missed) == (None, 2, 9)
    assert log.begun == pytest.approx([1000, 1100], abs=0.2)


async def test_another_plan_helps_a_schedule_that_cannot_start_its_run(
    autojump_clock: MockClock, log: Log
) -> None:
    @workflow
    async def other(ctx: Context, value: int) -> int:
        return value

    @workflow(name="other")
    async def changed(ctx: Context, value: dict[str, int]) -> None: ...

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[other]) as rt:
        await rt.schedule("s", other, 5, key="k", when=Every(100))
    async with open_test_runtime(store, workflows=[changed, log.job]) as rt:
        await trio.sleep(150)
        status = await only(rt)
        assert status.problem is not None
        assert "does not fit" in status.problem
        await rt.schedule("s", log.job, 5, key="k", when=Every(100))
        await trio.sleep(100)
        status = await only(rt)
        assert (status.fired, status.problem) == (2, None)
    assert log.begun == pytest.approx([150, 200], abs=0.2)


async def test_a_run_that_has_not_begun_has_not_ended(autojump_clock: MockClock, log: Log) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.pause_key("k")
        await rt.submit(log.job, 1, key="k")
        await rt.schedule("s", log.job, key="k", when=Every(100))
        await trio.sleep(250)
        status = await only(rt)
        assert (status.fired, status.skipped, status.last_state) == (1, 1, State.PENDING)
        assert status.last_run_id is not None
        await rt.cancel(status.last_run_id)
        await rt.forget(status.last_run_id)
        assert (await only(rt)).last_state is None
        await trio.sleep(100)
        assert (await only(rt)).fired == 2


async def test_an_id_that_another_run_has_is_not_taken_from_it(
    autojump_clock: MockClock, log: Log
) -> None:
    @workflow
    async def other(ctx: Context) -> str:
        return "mine"

    async with open_test_runtime(workflows=[log.job, other]) as rt:
        await rt.submit(other, key="x", run_id="s-20231114T221500Z")
        await rt.schedule("s", log.job, key="k", when=Every(100))
        await trio.sleep(150)
        status = await only(rt)
        assert (status.fired, status.skipped) == (0, 1)
        assert status.problem is not None
        assert "was submitted with another key" in status.problem
        run = await rt.status("s-20231114T221500Z")
        assert run is not None
        assert run.result == "mine"
        await trio.sleep(100)
        status = await only(rt)
        assert (status.fired, status.problem) == (1, None)


async def test_a_firing_that_took_place_is_not_repeated_by_a_schedule_that_is_made_again(
    autojump_clock: MockClock, log: Log
) -> None:
    clock = Clock()
    async with open_test_runtime(workflows=[log.job], wall=clock) as rt:
        for _ in range(2):
            await rt.schedule("c", log.job, key="k", when=Cron("*/10 * * * *"))
            await trio.sleep(500)
            await rt.delete_schedule("c")
            clock.off -= 500.0
    assert log.ids == ["c-20231114T222000Z"]


async def test_whoever_submits_the_id_of_a_firing_gets_its_run(
    autojump_clock: MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        await rt.schedule("s", log.job, 5, key="k", when=Every(100))
        await trio.sleep(100.5)
        run = await rt.submit(log.job, 5, key="k", run_id="s-20231114T221500Z")
        assert not run.newly_submitted
        assert await run.result() == 5
        with pytest.raises(InputMismatch):
            await rt.submit(log.job, 6, key="k", run_id="s-20231114T221500Z")


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_firing_happens_once_whichever_commit_the_process_is_killed_at(
    autojump_clock: MockClock, crashes: int
) -> None:
    tried = 0
    for point in crash_points(crashes=crashes):
        log = Log(takes=5)
        start = trio.current_time()
        begin = EPOCH + start

        async def scenario(rt: Runtime, begin: float = begin, log: Log = log) -> ScheduleStatus:
            await rt.schedule("a", log.job, key="a", when=Every(100, start=begin + 100))
            await rt.schedule("b", log.job, key="b", when=Every(100, start=begin + 100))
            await rt.schedule("o", log.job, key="o", when=Once(begin + 200))
            await trio.sleep(begin + 250 - EPOCH - trio.current_time())
            return (await rt.schedules())[0]

        status = await point.run(scenario, workflows=[log.job])
        assert status.fired == 2, point
        assert sorted(log.ids) == sorted(set(log.ids))
        names = sorted(run_id[0] for run_id in log.ids)
        assert names == ["a", "a", "b", "b", "o"], point
        due = [100, 100, 200, 200, 200]
        assert sorted(at - start for at in log.begun) == pytest.approx(due, abs=0.5)
        tried += point.crashes > 0
    assert tried > 8


async def test_the_same_on_a_disk(autojump_clock: MockClock, tmp_path: Path) -> None:
    made = 0

    def store() -> CrashingLmdbStore:
        nonlocal made
        made += 1
        return CrashingLmdbStore(tmp_path / str(made))

    for point in crash_points(store):
        log = Log()
        begin = EPOCH + trio.current_time()

        async def scenario(rt: Runtime, begin: float = begin, log: Log = log) -> None:
            await rt.schedule("a", log.job, key="a", when=Every(100, start=begin + 100))
            await trio.sleep(begin + 250 - EPOCH - trio.current_time())

        await point.run(scenario, workflows=[log.job])
        assert len(log.ids) == 2, point
    assert made > 5


async def test_more_than_fit_into_the_window_are_fired_when_they_are_due(
    autojump_clock: MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:

        async def make(turn: int) -> None:
            when = Every(100, start=EPOCH + 50 + turn % 3)
            await rt.schedule(f"s{turn}", log.job, turn, key=f"k{turn}", when=when)

        async with trio.open_nursery() as nursery:
            for turn in range(700):
                nursery.start_soon(make, turn)
        assert rt.statistics().commits.commits < 50
        await trio.sleep(60)
        assert sorted(log.inputs) == list(range(700))
        assert {round(at) for at in log.begun} == {50, 51, 52}
        store.crash()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await trio.sleep(100)
        assert len(log.ids) == 1400


async def test_one_that_is_made_while_others_are_waited_for_fires_in_time(
    autojump_clock: MockClock, log: Log
) -> None:
    async with open_test_runtime(workflows=[log.job]) as rt:
        for name, due in (("c", 300), ("b", 200), ("d", 400), ("a", 100)):
            await rt.schedule(name, log.job, name, key=name, when=Once(EPOCH + due))
            await trio.sleep(1)
        assert await rt.delete_schedule("a")
        await rt.schedule("b", log.job, "b", key="b", when=Once(EPOCH + 350))
        await rt.schedule("d", log.job, "d", key="d", when=Once(EPOCH + 50))
        await trio.sleep(400)
    assert log.inputs == ["d", "c", "b"]
    assert log.begun == pytest.approx([50, 300, 350])


async def test_one_that_will_not_fire_any_more_is_kept_as_long_as_ended_runs(
    autojump_clock: MockClock, log: Log
) -> None:
    store = FragileStore()
    keep = Retention(age=5000)
    async with open_test_runtime(store, workflows=[log.job], retention=keep) as rt:
        await rt.schedule("o", log.job, key="k", when=Once(EPOCH + 100))
        await trio.sleep(5000)
        assert (await only(rt)).last_state is State.SUCCEEDED
    async with open_test_runtime(store, workflows=[log.job], retention=keep) as rt:
        await trio.sleep(200)
        assert await rt.schedules() == []
    assert store.keys("schedules") == store.keys("firings") == []


async def test_a_damaged_schedule_is_left_out_and_the_others_fire(
    autojump_clock: MockClock, log: Log, caplog: pytest.LogCaptureFixture
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        for name in ("a", "b", "c"):
            await rt.schedule(name, log.job, name, key=name, when=Every(100))
    store.damage("schedules", b"default\0a")
    store.damage("firings", next(key for key in store.keys("firings") if key.endswith(b"b")))
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await trio.sleep(250)
        assert [each.schedule_id for each in await rt.schedules()] == ["b", "c"]
        assert rt.unreadable == 1
    assert sorted(log.inputs) == ["b", "b", "c", "c"]
    assert any("the schedule a is damaged" in each.getMessage() for each in caplog.records)


async def test_a_schedule_whose_last_run_is_damaged_holds_until_that_is_forgotten(
    autojump_clock: MockClock, log: Log
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.schedule("s", log.job, key="k", when=Every(100))
        await rt.schedule("t", log.job, key="l", when=Every(100))
        await trio.sleep(110)
        (first, *_) = [each for each in await rt.schedules() if each.schedule_id == "s"]
        (record,) = [key for key in store.keys("status") if key.endswith(b"\1")]
        damaged = (await rt.runs(limit=1))[0].run_id
        assert damaged == first.last_run_id
        store.damage("status", record)
        await trio.sleep(100)
        held, other = await rt.schedules()
        assert (held.fired, held.skipped, held.last_state) == (1, 1, State.QUARANTINED)
        assert (other.fired, other.skipped) == (2, 0)
        await rt.forget(damaged)
        await trio.sleep(100)
        assert [each.fired for each in await rt.schedules()] == [2, 3]


async def test_a_firing_whose_run_is_there_and_damaged_is_skipped(
    autojump_clock: MockClock, log: Log
) -> None:
    store, at = FragileStore(), EPOCH + 100
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        await rt.schedule("s", log.job, key="k", when=Every(100, start=at))
        await trio.sleep(110)
        await rt.delete_schedule("s")
        (record,) = store.keys("runs")
        store.damage("runs", record)
        await rt.schedule("s", log.job, key="k", when=Every(100, start=at))
        await rt.pause_schedule("s")
    async with open_test_runtime(store, workflows=[log.job], wall=lambda: at - 50) as rt:
        await rt.resume_schedule("s")
    async with open_test_runtime(store, workflows=[log.job], wall=lambda: at + 1) as rt:
        await trio.sleep(1)
        (status,) = await rt.schedules()
        assert (status.fired, status.skipped) == (0, 1)
        assert "is damaged" in (status.problem or "")
    assert log.inputs == [None]


async def test_schedules_are_listed_by_a_reader_page_by_page(
    autojump_clock: MockClock, log: Log, tmp_path: Path
) -> None:
    async with open_test_runtime(LmdbStore(tmp_path), workflows=[log.job]) as rt:
        for name in ("c", "a", "b"):
            await rt.schedule(name, log.job, key="k", when=Every(100))
        await trio.sleep(110)
        listed = await rt.schedules()
    async with open_reader(tmp_path) as reader:
        page = await reader.schedules(limit=2)
        assert [each.schedule_id for each in page] == ["a", "b"]
        (last,) = await reader.schedules(after="b")
        assert (last.schedule_id, last.last_state) == ("c", State.SUCCEEDED)
        assert last.last_run_id == "c-20231114T221500Z"
        assert [*page, last] == listed
    async with open_reader(tmp_path, namespace="other") as reader:
        assert await reader.schedules() == []


async def test_what_cannot_be_scheduled_is_refused(autojump_clock: MockClock, log: Log) -> None:
    @workflow
    async def unknown(ctx: Context) -> None: ...

    async with open_test_runtime(workflows=[log.job]) as rt:
        for wrong in ("", "a b", "x" * 101, 5):
            with pytest.raises(InvalidSchedule, match="a schedule id is 1 to 100"):
                await rt.schedule(wrong, log.job, key="k", when=Every(1))  # type: ignore[arg-type]
        with pytest.raises(InvalidSchedule, match="when must be Once"):
            await rt.schedule("s", log.job, key="k", when=60)  # type: ignore[call-overload]
        with pytest.raises(InvalidSchedule, match="misfire must be 'fire_once' or 'skip'"):
            await rt.schedule("s", log.job, key="k", when=Every(1), misfire="all")  # type: ignore[call-overload]
        with pytest.raises(InvalidSchedule, match="overlap must be True or False"):
            await rt.schedule("s", log.job, key="k", when=Every(1), overlap="no")  # type: ignore[call-overload]
        with pytest.raises(UnknownWorkflow):
            await rt.schedule("s", unknown, key="k", when=Every(1))
        with pytest.raises(ValueError, match="key must have 1 to 255"):
            await rt.schedule("s", log.job, key="", when=Every(1))
        assert await rt.schedules() == []
