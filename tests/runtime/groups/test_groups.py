"""Groups: many runs that are submitted, awaited, cancelled and run again as one."""

import gc
import warnings
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Backpressure,
    Context,
    InputMismatch,
    InvalidKey,
    PermanentError,
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
from keyrun.errors import InvalidGroup, UnknownGroup
from keyrun.groups import GroupHandle, Member, MemberOutcome
from keyrun.runtime.tuning import Tuning
from keyrun.storage import LmdbStore, MemoryStore, PayloadTypeError, StoreClosed, StoreError
from keyrun.testing import CrashingLmdbStore, crash_points, open_test_runtime
from tests.runtime.fragile import FragileStore


class World:
    """A workflow of two steps, and what of it was executed."""

    def __init__(self) -> None:
        self.prepared: list[str] = []
        self.finished: list[str] = []
        self.broken: set[str] = set()

        @step
        async def prepare(name: str) -> None:
            self.prepared.append(name)

        @step(timeout=5000)
        async def finish(name: str) -> str:
            await trio.sleep(float(current_step().headers.get("takes", "1")))
            if name in self.broken:
                raise PermanentError(f"{name} is broken")
            self.finished.append(name)
            return name.upper()

        @workflow
        async def job(ctx: Context, name: str) -> str:
            await ctx.step(prepare, name)
            return await ctx.step(finish, name)

        self.job: Workflow[str, str] = job

    def member(self, name: str, takes: float = 1, **options: Any) -> Member[str, str]:
        options = {"key": f"key-{name}", "member_id": name, **options}
        return Member(self.job, name, headers={"takes": str(takes)}, **options)

    def members(self, names: str) -> list[Member[str, str]]:
        return [self.member(name) for name in names.split()]


@pytest.fixture
def world() -> World:
    return World()


async def states(group: GroupHandle[Any]) -> dict[str, State]:
    return {name: outcome.state for name, outcome in (await group.results()).items()}


async def test_a_group_gives_the_results_of_its_members_in_their_order(
    autojump_clock: MockClock, world: World
) -> None:
    world.broken.add("b")
    async with open_test_runtime(workflows=[world.job]) as rt:
        members = [world.member("c", 5), world.member("a", 3), world.member("b", 4)]
        group = await rt.submit_group("import-7", members)
        assert group.newly_submitted
        results = await group.results()
        assert list(results) == ["c", "a", "b"]
        assert results["a"] == MemberOutcome(
            member_id="a",
            position=1,
            run_id="import-7-a",
            state=State.SUCCEEDED,
            result="A",
            reason=None,
            failure=None,
        )
        assert results["b"].state is State.FAILED
        assert results["b"].failure is not None
        assert "b is broken" in results["b"].failure.reason


async def test_members_are_runs_that_say_which_group_they_are_of(
    autojump_clock: MockClock, world: World
) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        low = world.member("a", tags=["t"], priority=Priority.LOW)
        await rt.submit_group("g", [low, Member(world.job, "x", key="k")])
        await rt.submit(world.job, "alone", key="k")
        await rt.submit_group("g2", world.members("a"))
        run = await rt.status("g-a")
        assert run is not None
        assert (run.origin, run.key, run.tags) == ("group:g", "key-a", ("t",))
        assert run.headers == {"takes": "1", "keyrun.member": "a"}
        # Without an id it is the place in the list.
        assert [run.run_id for run in await rt.runs(group="g")] == ["g-a", "g-1"]
        assert [run.run_id for run in await rt.runs(origin="group:g2")] == ["g2-a"]
        assert await rt.runs(group="g", origin="group:g2") == []
        assert len(await rt.runs(origin="submit")) == 1


async def test_members_are_told_as_they_end(autojump_clock: MockClock, world: World) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        takes = {"a": 30, "b": 10, "c": 20, "d": 5}
        group = await rt.submit_group("g", [world.member(*item) for item in takes.items()])
        await trio.sleep(7)
        seen = []
        async for outcome in group:
            seen.append((outcome.member_id, round(trio.current_time())))
            if outcome.member_id == "c":
                break
        assert seen == [("d", 7), ("b", 10), ("c", 20)]
        assert len(await group.results()) == 4


async def test_whoever_has_seen_enough_leaves_nothing_behind(
    autojump_clock: MockClock, world: World
) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        group = await rt.submit_group("g", [*world.members("a b c d"), world.member("e", 100)])
        await trio.sleep(10)
        for _ in range(3):
            async for _outcome in group:
                break
        watched = rt._partition.runs._callbacks
        assert watched == {}
        with trio.move_on_after(10) as scope:
            await group.results()
        assert scope.cancelled_caught
        assert len(watched) == 1
        await group.results()
        assert watched == {}


async def test_the_progress_of_a_group_is_counted_by_state(
    autojump_clock: MockClock, world: World
) -> None:
    world.broken.add("b")
    async with open_test_runtime(workflows=[world.job]) as rt:
        members = [world.member("a", 10), world.member("b", 10), world.member("c", 30)]
        members.append(world.member("d", key="key-c"))
        members.append(world.member("e", delay=1000))
        group = await rt.submit_group("g", members)
        await trio.sleep(20)
        status = await group.status()
        assert status.counts == {
            State.PENDING: 2,
            State.RUNNING: 1,
            State.SUCCEEDED: 1,
            State.FAILED: 1,
        }
        assert (status.size, status.accepted, status.ended, status.percent) == (5, 5, 2, 40)
        assert not status.complete
        await group.results()
        status = await group.status()
        assert (status.percent, status.complete) == (100, True)


async def test_the_same_again_is_the_same_group_in_whatever_order(
    autojump_clock: MockClock, world: World
) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        await rt.submit_group("g", world.members("a b c"))
        again = await rt.submit_group("g", world.members("c a b"))
        assert not again.newly_submitted
        assert list(await again.results()) == ["a", "b", "c"]
        await (await rt.submit_group("g", world.members("a b c"))).results()
    assert sorted(world.prepared) == ["a", "b", "c"]


async def test_a_group_that_is_submitted_twice_at_once_is_one(
    autojump_clock: MockClock, world: World
) -> None:
    new = []

    async def submit() -> None:
        new.append((await rt.submit_group("g", world.members("a b c"))).newly_submitted)

    async with open_test_runtime(MemoryStore(latency=1), workflows=[world.job]) as rt:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(submit)
        group = await rt.group("g")
        assert group is not None
        assert len(await group.results()) == 3
    assert sorted(new) == [False, False, True]
    assert sorted(world.prepared) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("members", "what"),
    [
        ("a b", "not given: 'c'"),
        ("a b c d", "new: 'd'"),
        ("a b x", "not given: 'c'; new: 'x'"),
        ("a b c d e f g h i j", "new: 'd', 'e', 'f', 'g', 'h' and 2 more"),
    ],
)
async def test_other_members_under_the_same_id_are_refused(
    autojump_clock: MockClock, world: World, members: str, what: str
) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        await rt.submit_group("g", world.members("a b c"))
        with pytest.raises(InputMismatch) as caught:
            await rt.submit_group("g", world.members(members))
        assert f"with other members ({what})" in str(caught.value)
        with pytest.raises(InputMismatch, match="another key, workflow or input: 'a'"):
            await rt.submit_group("g", [world.member("a", key="other"), *world.members("b c")])
        assert len(await rt.runs()) == 3


async def test_only_what_did_not_succeed_runs_again_and_from_where_it_stopped(
    autojump_clock: MockClock, world: World
) -> None:
    store = MemoryStore()
    world.broken.update("bd")
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        members = [*world.members("a b c d"), world.member("e", 1000)]
        group = await rt.submit_group("g", members)
        await trio.sleep(10)
        assert await rt.cancel("g-e")
        assert set((await states(group)).values()) == {
            State.SUCCEEDED,
            State.FAILED,
            State.CANCELLED,
        }
    world.broken = {"d"}
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        again = await rt.submit_group("g", members)
        assert not again.newly_submitted
        ended = await states(again)
        assert [name for name, state in ended.items() if state is State.FAILED] == ["d"]
        assert sum(state is State.SUCCEEDED for state in ended.values()) == 4
        assert {run.run_id: run.generation for run in await rt.runs(group="g")} == {
            "g-a": 1,
            "g-b": 2,
            "g-c": 1,
            "g-d": 2,
            "g-e": 2,
        }
        assert [run.run_id for run in await rt.dead_letters()] == ["g-d"]
    assert sorted(world.finished) == ["a", "b", "c", "e"]
    assert sorted(world.prepared) == ["a", "b", "c", "d", "e"]


async def test_members_of_one_key_run_again_in_the_order_of_the_group(
    autojump_clock: MockClock, world: World
) -> None:
    names = [f"m{turn}" for turn in range(40)]
    members = [world.member(name, key="k") for name in names]
    world.broken.update(names)
    async with open_test_runtime(workflows=[world.job]) as rt:
        await (await rt.submit_group("g", members)).results()
        world.broken.clear()
        commits = rt.statistics().commits.commits
        again = await rt.submit_group("g", members)
        assert rt.statistics().commits.commits < commits + 10
        await again.results()
    assert world.finished == names


async def test_a_quarantined_member_gets_another_chance(
    autojump_clock: MockClock, world: World
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        await rt.pause_all()
        await rt.submit_group("g", world.members("a b"))
    async with open_test_runtime(store) as rt:
        await rt.resume_all()
        await trio.sleep(10)
        status = await rt.group_status("g")
        assert status is not None
        assert status.counts == {State.QUARANTINED: 2}
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        group = await rt.submit_group("g", world.members("a b"))
        assert set((await states(group)).values()) == {State.SUCCEEDED}


async def test_a_group_is_cancelled_as_one(autojump_clock: MockClock, world: World) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        members = [world.member(f"m{turn}", 100, key=f"k{turn % 7}") for turn in range(300)]
        members.append(world.member("quick"))
        members.append(world.member("late", delay=10_000))
        group = await rt.submit_group("g", members)
        await trio.sleep(5)
        commits = rt.statistics().commits.commits
        assert await group.cancel() == 301
        assert rt.statistics().commits.commits < commits + 50
        assert await group.cancel() == 0
        status = await group.status()
        assert status.counts == {State.SUCCEEDED: 1, State.CANCELLED: 301}
        assert trio.current_time() == pytest.approx(5, abs=1)
    assert world.finished == ["quick"]


@pytest.mark.parametrize("crash", [True, False])
async def test_a_group_is_found_again_after_a_restart(
    autojump_clock: MockClock, world: World, crash: bool
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        await rt.submit_group("g", [world.member("a"), world.member("b", 20)])
        await trio.sleep(10)
        if crash:
            store.crash()
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        group = await rt.group("g")
        assert group is not None
        assert await states(group) == {"a": State.SUCCEEDED, "b": State.SUCCEEDED}
        assert await rt.group("other") is None
        assert await rt.group_status("other") is None


async def test_who_waits_for_a_group_is_sent_away_when_the_runtime_is_left(
    autojump_clock: MockClock, world: World
) -> None:
    outcome: list[Any] = []

    async def wait(group: GroupHandle[str]) -> None:
        with pytest.raises(StoreClosed, match="before the group ended"):
            outcome.append(await group.results())
        outcome.append("away")

    async with trio.open_nursery() as nursery:
        async with open_test_runtime(workflows=[world.job], drain_timeout=1) as rt:
            group = await rt.submit_group("g", [world.member("a", 1000)])
            nursery.start_soon(wait, group)
            await trio.sleep(5)
        with pytest.raises(StoreClosed):
            await rt.submit_group("g", world.members("a"))
    assert outcome == ["away"]


def thousands(world: World, count: int) -> list[Member[str, str]]:
    return [world.member(f"m{turn}", 0.001, key=f"k{turn % 50}") for turn in range(count)]


async def test_a_large_group_is_accepted_in_parts_and_a_repeat_finishes_it(
    autojump_clock: MockClock, world: World
) -> None:
    store = FragileStore()
    members = thousands(world, 2500)
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        await rt.pause_all()
        store.crash_at = store.commits + 2
        await rt.submit_group("g", members)
    store.crash_at = None
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        group = await rt.group("g")
        assert group is not None
        status = await group.status()
        assert (status.size, status.accepted, status.complete) == (2500, 1000, False)
        with pytest.raises(InputMismatch, match="members that were not accepted yet"):
            await rt.submit_group("g", members[:-1])
        group = await rt.submit_group("g", members)
        assert (await group.status()).accepted == 2500
        await rt.resume_all()
        assert len(await group.results()) == 2500
        assert list(await group.results()) == [member.member_id for member in members]
    assert len(world.finished) == len(set(world.finished)) == 2500


async def test_a_group_waits_for_room_like_everybody_who_submits(
    autojump_clock: MockClock, world: World
) -> None:
    async with open_test_runtime(
        workflows=[world.job], max_pending=5, backpressure_timeout=60
    ) as rt:
        await rt.pause_all()
        for turn in range(5):
            await rt.submit(world.job, f"x{turn}", key="k")
        with pytest.raises(Backpressure):
            await rt.submit_group("g", world.members("a b"))
        assert await rt.group("g") is None
        await rt.resume_all()
        group = await rt.submit_group("g", world.members("a b"))
        assert len(await group.results()) == 2


@pytest.mark.parametrize("crashes", [1, 2])
async def test_a_group_ends_the_same_whichever_commit_the_process_is_killed_at(
    autojump_clock: MockClock, crashes: int
) -> None:
    tried = 0
    for point in crash_points(crashes=crashes):
        world = World()
        world.broken.add("b")

        async def scenario(rt: Runtime, world: World = world) -> dict[str, State]:
            group = await rt.submit_group("g", world.members("a b c d e"))
            first = await states(group)
            assert len(first) == 5
            world.broken.clear()
            group = await rt.submit_group("g", world.members("a b c d e"))
            return await states(group)

        ended = await point.run(scenario, workflows=[world.job], tuning=Tuning(group_page=2))
        assert ended == dict.fromkeys("abcde", State.SUCCEEDED), point
        for name in "abcde":
            assert 1 <= world.prepared.count(name) <= 1 + point.crashes, point
        tried += point.crashes > 0
    assert tried > 10


async def test_the_same_on_a_disk(autojump_clock: MockClock, tmp_path: Path) -> None:
    made = 0

    def store() -> CrashingLmdbStore:
        nonlocal made
        made += 1
        return CrashingLmdbStore(tmp_path / str(made))

    for point in crash_points(store):
        world = World()

        async def scenario(rt: Runtime, world: World = world) -> dict[str, State]:
            return await states(await rt.submit_group("g", world.members("a b c")))

        ended = await point.run(scenario, workflows=[world.job], tuning=Tuning(group_page=2))
        assert ended == dict.fromkeys("abc", State.SUCCEEDED), point
    assert made > 5


async def test_a_small_group_is_there_whole_or_not_at_all(
    autojump_clock: MockClock, world: World
) -> None:
    for applied in (False, True):
        store = FragileStore()
        async with open_test_runtime(store, workflows=[world.job]) as rt:
            store.crash_at = store.commits + 1 + applied
            await rt.submit_group("g", thousands(world, 1000))
            await trio.sleep(1)
        store.crash_at = None
        async with open_test_runtime(store, workflows=[world.job]) as rt:
            status = await rt.group_status("g")
            assert (None if status is None else status.accepted) == (1000 if applied else None)


async def test_a_group_is_forgotten_with_the_last_of_its_runs(
    autojump_clock: MockClock, world: World
) -> None:
    store = FragileStore()
    keep = Retention(age=1000)
    async with open_test_runtime(store, workflows=[world.job], retention=keep) as rt:
        members = [*world.members("a b"), world.member("c", 600), world.member("d", 600)]
        group = await rt.submit_group("g", members)
        await trio.sleep(1200)
        # How the first two ended is known, and they do not run again.
        results = await group.results()
        assert [outcome.forgotten for outcome in results.values()] == [True, True, False, False]
        assert (results["a"].state, results["a"].result) == (State.SUCCEEDED, None)
        assert (await group.status()).counts == {State.SUCCEEDED: 4}
        await (await rt.submit_group("g", members)).results()
        assert len(world.prepared) == 4
    async with open_test_runtime(store, workflows=[world.job], retention=keep) as rt:
        await trio.sleep(1000)
        assert await rt.group("g") is None
        assert await rt.group("g" * 100_000) is None
        with pytest.raises(UnknownGroup):
            await group.status()
        for table in ("groups", "members", "former", "runs", "ids"):
            assert store.keys(table) == [], table
        assert (await rt.submit_group("g", world.members("x"))).newly_submitted


async def test_a_member_that_did_not_succeed_and_was_forgotten_runs_anew(
    autojump_clock: MockClock, world: World
) -> None:
    store = FragileStore()
    world.broken.add("a")
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        group = await rt.submit_group("g", world.members("a b"))
        await group.results()
        await rt.forget("g-a")
        assert await states(group) == {"a": State.FAILED, "b": State.SUCCEEDED}
        world.broken.clear()
        again = await rt.submit_group("g", world.members("a b"))
        assert await states(again) == dict.fromkeys("ab", State.SUCCEEDED)
        assert world.prepared.count("a") == 2
        await rt.forget("g-a")
        await rt.forget("g-b")
        assert await rt.group("g") is None
    assert store.keys("members") == store.keys("former") == []


async def test_a_damaged_member_does_not_keep_its_run_from_being_forgotten(
    autojump_clock: MockClock, world: World
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        await (await rt.submit_group("g", world.members("a b"))).results()
        store.damage("members", store.keys("members")[0])
        await rt.forget("g-a")
        assert [run.run_id for run in await rt.runs()] == ["g-b"]
        await rt.forget("g-b")
        assert await rt.group("g") is None


async def test_a_member_whose_record_is_damaged_is_found_by_its_id_and_mended_by_a_repeat(
    autojump_clock: MockClock, world: World
) -> None:
    store = FragileStore()
    members = [world.member(name, 100) for name in "abc"]
    async with open_test_runtime(store, workflows=[world.job], drain_timeout=0) as rt:
        await rt.submit_group("g", members)
        await trio.sleep(10)
    store.damage("members", store.keys("members")[1])
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        group = await rt.group("g")
        assert group is not None
        assert (await group.status()).accepted == 3
        outcomes = await group.results()
        assert [(each.member_id, each.position) for each in outcomes.values()] == [
            ("a", 0),
            ("b", 1),
            ("c", 2),
        ]
        assert {each.state for each in outcomes.values()} == {State.SUCCEEDED}
        again = await rt.submit_group("g", members)
        assert not again.newly_submitted
        store.damage("members", store.keys("members")[0])
        assert [each.member_id async for each in again if each.position == 1] == ["b"]
    assert sorted(world.finished) == ["a", "b", "c"]


async def test_a_member_whose_record_and_run_are_lost_is_shown_as_quarantined(
    autojump_clock: MockClock, world: World
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        await (await rt.submit_group("g", world.members("a b"))).results()
        await rt.forget("g-a")
        store.damage("former", store.keys("former")[0])
        group = await rt.group("g")
        assert group is not None
        assert (await group.status()).counts == {State.QUARANTINED: 1, State.SUCCEEDED: 1}
        again = await rt.submit_group("g", world.members("a b"))
        assert await states(again) == {"a": State.SUCCEEDED, "b": State.SUCCEEDED}


@pytest.mark.parametrize("table", ["runs", "status"])
async def test_a_member_whose_run_is_damaged_holds_up_no_other_and_runs_anew_when_forgotten(
    autojump_clock: MockClock, world: World, table: str
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[world.job], drain_timeout=0) as rt:
        await rt.submit_group("g", [world.member("a", 100), world.member("b", 100)])
        await trio.sleep(10)
        await rt.pause("g-a")
        store.crash()
    store.damage(table, store.keys(table)[0])
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        group = await rt.group("g")
        assert group is not None
        ends = aiter(group)
        assert (await anext(ends)).member_id == "b"
        status = await group.status()
        assert status.counts == {State.QUARANTINED: 1, State.SUCCEEDED: 1}
        if table == "status":
            # What it remembers is whole, so it goes on.
            await rt.submit_group("g", [world.member("a", 100), world.member("b", 100)])
            assert (await anext(ends)).state is State.SUCCEEDED
            assert sorted(world.prepared) == ["a", "b"]
            return
        again = await rt.submit_group("g", [world.member("a", 100), world.member("b", 100)])
        assert (await again.status()).counts == status.counts
        await rt.forget("g-a")
        forgotten = await anext(ends)
        assert (forgotten.member_id, forgotten.forgotten) == ("a", True)
        again = await rt.submit_group("g", [world.member("a", 100), world.member("b", 100)])
        assert await states(again) == {"a": State.SUCCEEDED, "b": State.SUCCEEDED}
        assert sorted(world.finished) == ["a", "b"]


async def test_who_waits_for_a_member_that_is_forgotten_is_told(
    autojump_clock: MockClock, world: World
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[world.job]) as rt:
        await rt.pause_all()
        await rt.submit_group("g", world.members("a"))
        await rt.submit_group("g2", world.members("a"))
    async with open_test_runtime(store) as rt:
        await rt.resume_all()
        await trio.sleep(10)
        group = await rt.group("g")
        assert group is not None

        async def forget() -> None:
            await trio.sleep(10)
            await rt.forget("g-a")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(forget)
            (outcome,) = (await group.results()).values()
        assert (outcome.state, outcome.forgotten) == (State.CANCELLED, True)


async def test_ids_that_might_meet_do_not(autojump_clock: MockClock, world: World) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        one = [world.member("c"), world.member("b-c", key="k"), world.member("ü @/", key="k")]
        one.append(world.member("x" * 250, key="k"))
        await (await rt.submit_group("a-b", one)).results()
        two = [world.member("b-c"), world.member("c")]
        assert len(await (await rt.submit_group("a", two)).results()) == 2
        group = await rt.group("a-b")
        assert group is not None
        assert list(await group.results()) == ["c", "b-c", "ü @/", "x" * 250]
        assert len(await rt.runs()) == 6
        assert await rt.status("a-b-c") is not None


async def test_an_id_that_another_run_has_is_refused(
    autojump_clock: MockClock, world: World
) -> None:
    async with open_test_runtime(workflows=[world.job]) as rt:
        await rt.submit(world.job, "a", key="key-a", run_id="g-a")
        with pytest.raises(InputMismatch, match="'g-a' is not part of the group 'g'"):
            await rt.submit_group("g", world.members("b a"))
        assert len(await rt.runs()) == 1
        assert await rt.group("g") is None


async def test_what_can_be_no_group_is_refused_before_anything_is_accepted(
    autojump_clock: MockClock, world: World
) -> None:
    @workflow
    async def unknown(ctx: Context) -> None: ...

    async with open_test_runtime(workflows=[world.job]) as rt:
        for wrong in ("", "a b", "x" * 91, 5):
            with pytest.raises(InvalidGroup, match="a group id is 1 to 90"):
                await rt.submit_group(wrong, world.members("a"))  # type: ignore[arg-type]
        with pytest.raises(InvalidGroup, match="has no members"):
            await rt.submit_group("g", [])
        with pytest.raises(InvalidGroup, match="two members of the group 'g' are 'a'"):
            await rt.submit_group("g", world.members("a a"))
        with pytest.raises(InvalidGroup, match="a member id is a string of 1 to 255 bytes"):
            await rt.submit_group("g", [world.member("a", member_id="")])
        with pytest.raises(InvalidGroup, match=r"must be Member\(...\), got 'a'"):
            await rt.submit_group("g", ["a"])  # type: ignore[arg-type]
        with pytest.raises(InvalidGroup, match="has no members"):
            await rt.submit_group("g", iter([]))
        with pytest.raises(UnknownWorkflow, match="the member '1' of the group 'g': "):
            await rt.submit_group("g", [world.member("a"), Member(unknown, key="k")])
        with pytest.raises(InvalidKey, match="the member 'b' of the group 'g': key must have"):
            await rt.submit_group("g", [world.member("a"), world.member("b", key="")])
        with pytest.raises(PayloadTypeError, match="the member 'b' of the group 'g': the input of"):
            odd: Any = object()
            await rt.submit_group("g", [Member(world.job, odd, key="k", member_id="b")])
        assert await rt.runs() == []
        assert await rt.group("g") is None


async def test_a_reader_tells_how_a_group_stands(
    autojump_clock: MockClock, world: World, tmp_path: Path
) -> None:
    async with open_test_runtime(LmdbStore(tmp_path), workflows=[world.job]) as rt:
        await rt.submit_group("g", [world.member("a"), world.member("b", 1000)])
        await trio.sleep(10)
        await rt.pause("g-b")
    async with open_reader(tmp_path) as reader:
        status = await reader.group_status("g")
        assert status is not None
        assert (status.size, status.ended, status.percent) == (2, 1, 50)
        assert status.counts == {State.PAUSED: 1, State.SUCCEEDED: 1}
        assert len(await reader.runs(group="g")) == 2


class Unreadable(MemoryStore):
    """Does not tell how runs stand once `broken` is set."""

    broken = False

    async def _get(self, table: str, key: bytes) -> bytes | None:
        if self.broken and table == "status":
            raise StoreError("the disk gave up")
        return await super()._get(table, key)


async def test_a_status_that_cannot_be_read_leaves_nothing_open(
    autojump_clock: MockClock,
) -> None:
    store = Unreadable()

    @workflow
    async def napping(ctx: Context, seconds: float) -> None:
        await ctx.sleep(seconds)

    async with open_test_runtime(store, workflows=[napping]) as runtime:
        group = await runtime.submit_group("g", [Member(napping, 1000, key="k")])
        await trio.sleep(10)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            store.broken = True
            with pytest.raises(StoreError):
                await group.status()
            store.broken = False
            gc.collect()
        assert not [str(each.message) for each in said]
