"""A store that an earlier Keyrun left with a run in every location: all of them finish today."""

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import GateNotWaiting, RunEnded, RunStatus, Runtime, State, open_reader
from keyrun.status import QuarantineCause
from keyrun.storage import LmdbStore, MemoryStore, Store, StoreCrashed
from keyrun.testing import CrashingMemoryStore, RecordingHook, open_test_runtime, virtual_wall
from tests.runtime.golden import locations
from tests.runtime.golden.locations import Account

FILES = sorted(Path(locations.__file__).parent.glob("locations-*.json"))
FILE = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.stem))

DOWN = 600
"""Seconds between the crash and the next open."""
SINCE = 430 + DOWN

CHILDREN = {"leaf": "other ends", "middle": "middle of deep ends", "leaf of middle": "deep ends"}
"""Results of child runs, whose ids were generated, by key."""

RESULTS: dict[str, Any] = {
    "unregistered": "after",
    "contradicted": "after",
    "misfit": 7,
    "remembers": 1,
    "dead": "ship for receipt",
    "evicted": "beforeafter",
    "scopes": [True, False],
    "gathers": ["one", "branch", "two"],
    "backoff": 4,
    "buffered": [1, 2, 3],
    "waits": ["heard", "again"],
    "gated": "Ann and Bob",
    "gated-2": "Cid and Dan",
    "paused": "beforeafter",
    "continued": 8,
    "parent": ["own ends", "other ends", "middle of deep ends"],
    "polite-1": "first goes",
    "polite-2": "second goes",
    "single-1": "alone",
    "single-2": "alone",
    "timed": [7],
    "signalled": ["one", "two"],
    "diamond": "d end",
    "review": {"publish": "r publish"},
    "review-2": {"drop": "r drop"},
    "group-open": "beforeafter",
    "redriven": "ship for receipt",
    "redriven-pending": "ship for receipt",
    "before-redriven": "beforeafter",
    "running": ["a", "b", "c"],
}
"""Results of runs that had not ended."""

TALLIES = {
    "behind-unregistered": 1 + 1,
    "behind-damaged": 2 + 1,
    "succeeded": 4 + 1,
    "pending": 6 + 1,
    "pending-2": 7 + 2,
    "delayed": 8 + 2,
    "delayed-2": 9 + 1,
    "behind-paused": 10 + 1,
    "under-paused-key": 11 + 1,
    "delayed-paused": 12 + 1,
    "behind-compensated": 13 + 1,
    "behind-child": 14 + 1,
    "ahead": 15 + 1,
    "group-done": 16 + 1,
    "buggy": 19 + 1,
}
"""Results of `quick`: the number of the order plus that of the run among those of its key."""

OTHER_ENDS = {
    "cancelled": State.CANCELLED,
    "cancelled-compensated": State.CANCELLED,
    "cancelling": State.CANCELLED,
    "uncompensated": State.CANCELLED,
    "compensated": State.FAILED,
    "at-most-once": State.FAILED,
    "damaged-run": State.CANCELLED,
    "damaged-journal": State.CANCELLED,
    "damage-unseen": State.CANCELLED,
}
SECOND_GENERATION = {"dead", "misfit", "redriven", "redriven-pending"}
INTERRUPTED = {
    "account:deposit 20?",
    "buffered:tune in?",
    "diamond:right?",
    "gathers:two?",
    "redriven:ship for receipt?",
    "running:b?",
}
"""What began before the crash and again after it."""

IN_ORDER = [
    ("unregistered:after", "behind-unregistered:tally 1"),
    ("evicted:after", "pending:tally 1", "pending-2:tally 2"),
    ("paused:after", "behind-paused:tally 1"),
    ("delayed-2:tally 1", "delayed:tally 2"),
    ("compensated:unbook car", "compensated:unbook flight", "compensated:unbook hotel"),
    ("compensated:unbook hotel", "behind-compensated:tally 1"),
    ("cancelled-compensated:unbook bus", "cancelled-compensated:unbook train"),
    ("before-redriven:after", "redriven-pending:charge"),
    ("single-1:alone", "single-2:alone"),
    ("account:deposit 10", "account:deposit 20", "account:deposit 30", "account:deposit 40"),
]


@pytest.fixture(autouse=True)
def _no_effects() -> None:
    locations.effects.clear()


def later_wall() -> float:
    """The wall clock of the process that opens the store next."""
    return virtual_wall() + SINCE


async def status_of(rt: Runtime, run_id: str) -> RunStatus:
    status = await rt.status(run_id)
    assert status is not None, run_id
    return status


async def finish(rt: Runtime) -> None:
    """Do what is left for people to do. It may have been done in part, before another crash."""
    for run_id in ("paused", "delayed-paused"):
        await rt.resume(run_id)
    await rt.resume_key("paused-key")
    for run_id in ("dead", "misfit"):
        if (await status_of(rt, run_id)).generation == 1:
            await rt.redrive(run_id)
    for run_id, name, payloads in (
        ("buffered", "news", [3]),
        ("waits", "news", ["again"]),
        ("polite-1", "go", ["goes"]),
        ("signalled", "next", ["two", "three"]),
    ):
        for payload in payloads:
            with suppress(RunEnded):
                await rt.signal(run_id, name, payload, signal_id=f"{name} {payload}")
    for run_id, gate, by in (
        ("gated", "second", "Bob"),
        ("gated-2", "first", "Cid"),
        ("review", "gate", "Dan"),
    ):
        with suppress(RunEnded, GateNotWaiting):
            await rt.approve(run_id, gate, by=by)
    with suppress(RunEnded, GateNotWaiting):
        await rt.reject("review-2", "gate", by="Eve")
    for name, amount, balance in (
        ("one", 10, 10),
        ("two", 20, 30),
        ("three", 30, 60),
        ("four", 40, 100),
    ):
        call = rt.call(Account, "account", "deposit", amount, request_id=name)
        assert await call == balance
    await trio.sleep(5000)
    with suppress(RunEnded, GateNotWaiting):
        await rt.approve("gated-2", "second", by="Dan")
    for run_id in ("damaged-run", "damaged-journal", "damage-unseen"):
        await rt.cancel(run_id)
    await trio.sleep(5000)


async def check_ends(rt: Runtime) -> None:
    for run_id, result in RESULTS.items():
        status = await status_of(rt, run_id)
        assert (run_id, status.state, status.result) == (run_id, State.SUCCEEDED, result)
        assert status.generation == (2 if run_id in SECOND_GENERATION else 1), run_id
    for run_id, number in TALLIES.items():
        status = await status_of(rt, run_id)
        assert (run_id, status.state) == (run_id, State.SUCCEEDED)
        assert (run_id, status.result.number) == (run_id, number)
    for run_id, state in OTHER_ENDS.items():
        assert (run_id, (await status_of(rt, run_id)).state) == (run_id, state)
    for key, result in CHILDREN.items():
        (child,) = [run for run in await rt.runs(key=key) if run.origin.startswith("child:")]
        assert (await status_of(rt, child.run_id)).result == result
    assert await rt.status("forgotten") is None
    succeeded = await status_of(rt, "succeeded")
    assert succeeded.headers == {"h": "1"}
    assert succeeded.result.lines == ["a", "2023-11-14T22:13:50+00:00"]
    dead = {run.run_id for run in await rt.dead_letters()}
    assert dead == {"compensated", "at-most-once"}
    group = await rt.group("group")
    assert group is not None
    assert {name: end.state for name, end in (await group.results()).items()} == {
        "done": State.SUCCEEDED,
        "open": State.SUCCEEDED,
    }
    schedules = {each.schedule_id: each for each in await rt.schedules()}
    assert set(schedules) == {"schedule", "busy", "paused"}
    assert schedules["schedule"].fired >= 2
    assert schedules["busy"].fired >= 10
    assert schedules["paused"].fired == 0


def check_hook(hook: RecordingHook) -> None:
    """Every end was delivered, also those from before the crash, only one per generation, and in
    order per key."""
    ends = {(end.run_id, end.generation): end.state for end in hook.outcomes}
    assert len({(end.run_id, end.generation, end.state) for end in hook.outcomes}) == len(ends)
    expected = {(run_id, 1): State.SUCCEEDED for run_id in (*RESULTS, *TALLIES)}
    expected |= {(run_id, 1): state for run_id, state in OTHER_ENDS.items()}
    for run_id in SECOND_GENERATION:
        expected |= {(run_id, 1): State.FAILED, (run_id, 2): State.SUCCEEDED}
    assert {end: state for end, state in ends.items() if end in expected} == expected
    times: dict[str, dict[tuple[str, int], float]] = {}
    for end in hook.outcomes:  # the first call for each end; repeats come later
        times.setdefault(end.key, {}).setdefault((end.run_id, end.generation), end.ended_at)
    for key, ended in times.items():
        assert list(ended.values()) == sorted(ended.values()), key
    # Keyrun dropped the end of a run that was forgotten, up to the format of this store.
    others = {run_id.split("-")[0] for run_id, _ in set(ends) - set(expected)}
    assert {other for other in others if not other.startswith("060a2419")} <= {"schedule", "busy"}


def check_effects(before: list[str], after: list[str], *, crashed: bool = False) -> None:
    """Every effect happened once, no matter in which process, and in order per key."""
    counts = Counter([*before, *after])
    complete = {effect: n for effect, n in counts.items() if not effect.endswith("?")}
    assert {effect: n for effect, n in complete.items() if n > 1} == {}
    assert not any("new code" in effect for effect in complete)
    begun = {effect for effect, n in counts.items() if effect.endswith("?") and n > 1}
    if not crashed:
        assert begun == INTERRUPTED
    both = [*before, *after]
    for effects in IN_ORDER:
        at = [both.index(effect) for effect in effects]
        assert at == sorted(at), effects
    for run_id in ("timed", "signalled"):
        turns = [effect for effect in both if effect.startswith(f"{run_id}:")]
        assert turns == [f"{run_id}:turn {n}" for n in range(len(turns))]


def test_there_is_a_store_with_every_location() -> None:
    assert [file.stem for file in FILES] == ["locations-1"]


@FILE
@pytest.mark.parametrize("kind", ["memory", "lmdb"])
async def test_every_run_of_an_earlier_keyrun_finishes(
    autojump_clock: MockClock, tmp_path: Path, file: Path, kind: str
) -> None:
    store: Store = MemoryStore() if kind == "memory" else LmdbStore(tmp_path / "store")
    before = await locations.read(file, store)
    hook = RecordingHook()
    async with open_test_runtime(
        store,
        workflows=locations.WORKFLOWS,
        entities=[Account],
        on_terminal=hook,
        wall=later_wall,
    ) as rt:
        for run_id, state in (
            ("delayed", State.PENDING),
            ("paused", State.PAUSED),
            ("under-paused-key", State.PAUSED),
            ("gated", State.WAITING),
            ("waits", State.WAITING),
            ("review", State.WAITING),
            ("redriven-pending", State.PENDING),
            ("damaged-run", State.QUARANTINED),
            ("dead", State.FAILED),
        ):
            assert (run_id, (await status_of(rt, run_id)).state) == (run_id, state)
        await finish(rt)
        await check_ends(rt)
        for run_id in ("timed", "parent", "compensated", "redriven", "continued", "diamond"):
            assert len(await rt.history(run_id)) > 1
    check_hook(hook)
    check_effects(before, locations.effects)


@FILE
@pytest.mark.parametrize("commit", [1, 2, 3, 5, 8, 13, 21, 34, 55])
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "kept"])
async def test_every_run_of_an_earlier_keyrun_finishes_after_another_crash(
    autojump_clock: MockClock, file: Path, commit: int, applied: bool
) -> None:
    store = CrashingMemoryStore()
    await locations.read(file, store)
    hook = RecordingHook()
    crashes = 0
    while True:
        if not crashes:
            store.crash_at(commit, applied=applied)
        try:
            async with open_test_runtime(
                store,
                workflows=locations.WORKFLOWS,
                entities=[Account],
                on_terminal=hook,
                wall=later_wall,
            ) as rt:
                await finish(rt)
                await check_ends(rt)
                break
        except StoreCrashed:  # at the first commit the runtime is not open yet
            pass
        crashes += 1
    assert crashes == 1
    check_hook(hook)


@FILE
async def test_why_runs_of_an_earlier_keyrun_are_quarantined_is_recognised(
    autojump_clock: MockClock, file: Path
) -> None:
    """It has stored the text of the reason only."""
    store = MemoryStore()
    await locations.read(file, store)
    async with open_reader(store) as reader:
        runs = await reader.runs(state=State.QUARANTINED, limit=1000)
        causes = {run.run_id: run.quarantine_cause for run in runs}
    assert causes == {
        "unregistered": QuarantineCause.UNREGISTERED,
        "contradicted": QuarantineCause.CONTRADICTION,
        "uncompensated": QuarantineCause.CONTRADICTION,
        "remembers": QuarantineCause.OUTCOME,
        "damaged-run": QuarantineCause.DAMAGED,
        "damaged-journal": QuarantineCause.DAMAGED,
    }


@FILE
async def test_a_paused_namespace_of_an_earlier_keyrun_stays_paused_until_it_is_resumed(
    autojump_clock: MockClock, file: Path
) -> None:
    store = MemoryStore()
    await locations.read(file, store)
    async with open_test_runtime(
        store, namespace=locations.STOPPED, workflows=locations.WORKFLOWS, wall=later_wall
    ) as rt:
        await trio.sleep(5000)
        for run_id in ("stopped", "stopped-nap"):
            assert (await status_of(rt, run_id)).state is State.PAUSED
        await rt.resume_all()
        await trio.sleep(10)
        assert (await status_of(rt, "stopped")).result.number == 4
        assert (await status_of(rt, "stopped-nap")).result == "beforeafter"
    assert locations.effects == ["stopped:tally 1", "stopped-nap:after"]
