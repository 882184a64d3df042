"""A bug of Keyrun that one key brings out costs that key its service, and nobody else anything."""

import logging
from collections.abc import Callable
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Limits,
    RunCancelled,
    RunEnded,
    RunFailed,
    RunQuarantined,
    Runtime,
    State,
    UnknownRun,
    current_step,
    open_reader,
    step,
    workflow,
)
from keyrun.runtime.execution import driver as driver_module
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.queue import key_actor, key_queue
from keyrun.runtime.run import settlement
from keyrun.runtime.run.run import Run
from keyrun.status import KeyStatus, QuarantineCause
from keyrun.storage import MemoryStore, StoreError
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore, FullDisk

worked: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_worked() -> None:
    worked.clear()


@step
async def work(name: str) -> str:
    await trio.sleep(1)
    state = current_step().state
    state["n"] = state.get("n", 0) + 1
    worked.append(f"{current_step().run_id}:{name}")
    return name


@workflow
async def job(ctx: Context) -> str:
    for name in "abc":
        await ctx.step(work, name)
    return ctx.run_id


@workflow
async def nap(ctx: Context) -> None:
    await ctx.sleep(100)


class Bug(Exception):
    """What a fault in Keyrun itself might raise."""


class Fault:
    """Stands in for a function of Keyrun and raises when it is called for the key `bad`."""

    def __init__(self, original: Callable[..., Any], key_of: Callable[..., str]) -> None:
        self.original = original
        self.key_of = key_of
        self.left = 10**9
        self.passes = 0
        """Calls for the key that are let through first."""
        self.error: Callable[[], BaseException] = lambda: Bug("a bug")
        self.raised = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.key_of(*args) == "bad":
            self.passes -= 1
            if self.passes < 0 and self.left:
                self.left -= 1
                self.raised += 1
                raise self.error()
        return self.original(*args, **kwargs)

    def mend(self) -> None:
        self.left = 0


def of_run(run: Run, *_: Any) -> str:
    return run.key


FAULTS: dict[str, tuple[Any, str, Callable[..., str]]] = {
    "drive": (key_actor, "drive", of_run),
    "settle": (driver_module, "settle", of_run),
    "load": (key_queue, "load", lambda _, queue, *rest: queue.key),
    "half settled": (settlement, "sealed", lambda table, *_: "bad" if table == "ended" else ""),
    "conclude": (driver_module, "_conclude", of_run),
    "leave": (key_queue.KeyQueue, "remove_head", lambda line, *_: line.key),
    "window": (key_queue.KeyQueue, "read_window", lambda line, *_: line.key),
}


def break_it(monkeypatch: pytest.MonkeyPatch, name: str) -> Fault:
    owner, attribute, key_of = FAULTS[name]
    fault = Fault(getattr(owner, attribute), key_of)
    stand_in: Any = fault if not isinstance(owner, type) else lambda *a, **k: fault(*a, **k)
    monkeypatch.setattr(owner, attribute, stand_in)
    return fault


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    return break_it(monkeypatch, "drive")


async def states(rt: Runtime) -> dict[str, State]:
    """What `runs` says, which must be what `status` says."""
    listed = {run.run_id: run.state for run in await rt.runs()}
    for run_id, state in listed.items():
        status = await rt.status(run_id)
        assert status is not None
        assert status.state is state
    return listed


async def quarantined_keys(rt: Runtime) -> list[str]:
    return [status.key for status in await rt.keys(quarantined=True)]


async def test_a_key_that_keeps_crashing_is_quarantined_and_the_others_go_on(
    autojump_clock: MockClock, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    hook = RecordingHook()
    async with open_test_runtime(workflows=[job], on_terminal=hook) as rt:
        await rt.submit(job, key="bad", run_id="r1")
        await rt.submit(job, key="bad", run_id="r2")
        good = await rt.submit(job, key="good", run_id="good")
        assert await good.result() == "good"
        await trio.sleep(100)
        assert fault.raised == 6
        assert await states(rt) == {
            "r1": State.QUARANTINED,
            "r2": State.PENDING,
            "good": State.SUCCEEDED,
        }
        status, behind = await rt.status("r1"), await rt.status("r2")
        assert status is not None
        assert behind is not None
        assert (behind.waiting_on, behind.quarantine_cause) == ("key bad (quarantined)", None)
        assert status.quarantine_cause is QuarantineCause.KEY
        assert "key 'bad' is quarantined" in str(status.reason)
        assert "Bug: a bug" in str(status.reason)
        assert "release_key('bad')" in str(status.reason)
        (key,) = await rt.keys(quarantined=True)
        assert key == KeyStatus(
            key="bad",
            runs=2,
            head="r1",
            state=State.QUARANTINED,
            paused=False,
            quarantined=True,
            reason=status.reason,
            quarantine_cause=QuarantineCause.KEY,
        )
        assert await rt.keys(quarantined=False) == []
        assert rt.statistics().quarantined_keys == 1
        assert await (await rt.submit(job, key="good")).result()
    assert [outcome.key for outcome in hook.outcomes] == ["good", "good"]
    crashes = [r for r in caplog.records if getattr(r, "event", "") == "key_crashed"]
    assert len(crashes) == 6
    assert {(r.key, r.run) for r in crashes} == {("bad", "r1")}  # type: ignore[attr-defined]
    assert all(r.exc_info for r in crashes)
    (told,) = [r for r in caplog.records if getattr(r, "event", "") == "key_quarantined"]
    assert told.levelno == logging.ERROR


async def test_a_released_key_goes_on_where_it_stopped(
    autojump_clock: MockClock, fault: Fault
) -> None:
    async with open_test_runtime(workflows=[job]) as rt:
        runs = [await rt.submit(job, key="bad", run_id=f"r{n}") for n in range(3)]
        await trio.sleep(100)
        assert await rt.release_key("good") is False
        assert worked == []
        fault.mend()
        assert await rt.release_key("bad") is True
        assert await quarantined_keys(rt) == []
        assert await rt.release_key("bad") is False
        assert [await run.result() for run in runs] == ["r0", "r1", "r2"]
        assert rt.statistics().backlog.pending == 0
    assert worked == [f"r{n}:{name}" for n in range(3) for name in "abc"]


@pytest.mark.parametrize("name", ["drive", "load"])
async def test_the_result_of_the_run_whose_key_is_quarantined_raises_and_those_behind_it_wait(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fault = break_it(monkeypatch, name)
    async with open_test_runtime(workflows=[job]) as rt:
        # What was delayed is read from the store when its turn comes.
        delay = 1 if name == "load" else 0
        runs = [await rt.submit(job, key="bad", run_id=f"r{n}", delay=delay) for n in range(3)]
        for _ in range(2):  # while the call waits, and at the call
            with trio.fail_after(100), pytest.raises(RunQuarantined) as caught:
                await runs[0].result()
            assert caught.value.cause is QuarantineCause.KEY
            assert "Bug: a bug" in caught.value.reason
        for run in runs[1:]:
            with trio.move_on_after(100) as waited:
                await run.result()
            assert waited.cancelled_caught
            status = await run.status()
            assert status is not None
            assert (status.state, status.waiting_on) == (State.PENDING, "key bad (quarantined)")
        fault.mend()
        assert await rt.redrive("r0") == 1
        assert await quarantined_keys(rt) == []
        assert [await run.result() for run in runs] == ["r0", "r1", "r2"]


async def test_a_parent_waits_for_a_child_whose_key_is_quarantined_and_names_it(
    autojump_clock: MockClock, fault: Fault
) -> None:
    @workflow
    async def parent(ctx: Context) -> str:
        return await ctx.child(job, key="bad")

    async with open_test_runtime(workflows=[job, parent]) as rt:
        run = await rt.submit(parent, key="good")
        with trio.move_on_after(100) as waited:
            await run.result()
        assert waited.cancelled_caught
        (child,) = await rt.runs(key="bad")
        status = await run.status()
        assert status is not None
        assert status.waiting_on == f"child {child.run_id} (quarantined)"
        fault.mend()
        await rt.release_key("bad")
        assert await run.result() == child.run_id


async def test_those_behind_the_run_of_a_quarantined_key_wait_also_when_it_is_cancelled(
    autojump_clock: MockClock, fault: Fault
) -> None:
    async with open_test_runtime(workflows=[job]) as rt:
        first, second = [await rt.submit(job, key="bad", run_id=f"r{n}") for n in range(2)]
        with pytest.raises(RunQuarantined):
            await first.result()
        assert await first.cancel()
        with pytest.raises(RunCancelled):
            await first.result()
        with pytest.raises(RunEnded):
            await rt.redrive("r0")
        assert await states(rt) == {"r0": State.CANCELLED, "r1": State.PENDING}
        fault.mend()
        assert await rt.release_key("bad")
        assert await second.result() == "r1"


async def test_a_key_that_is_released_too_early_is_quarantined_again(
    autojump_clock: MockClock, fault: Fault
) -> None:
    async with open_test_runtime(workflows=[job]) as rt:
        await rt.submit(job, key="bad", run_id="r")
        for round_ in range(1, 4):
            await trio.sleep(100)
            assert fault.raised == 6 * round_
            assert await quarantined_keys(rt) == ["bad"]
            assert await rt.release_key("bad") is True
        await trio.sleep(0.05)
        assert await quarantined_keys(rt) == []


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("times", [1, 2, 5])
@pytest.mark.parametrize("passes", range(5))
async def test_a_crash_that_passes_costs_nothing_but_time(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, name: str, times: int, passes: int
) -> None:
    """Wherever it hits: no step runs twice, every end is told, nothing is counted twice."""
    fault = break_it(monkeypatch, name)
    fault.left, fault.passes = times, passes
    hook = RecordingHook()
    async with open_test_runtime(workflows=[job], on_terminal=hook) as rt:
        runs = [await rt.submit(job, key="bad", run_id=f"r{n}") for n in range(3)]
        with trio.fail_after(200):
            assert [await run.result() for run in runs] == ["r0", "r1", "r2"]
        await trio.sleep(1)
        statistics = rt.statistics()
        assert (statistics.backlog.pending, statistics.live, statistics.keys) == (0, 0, 0)
        assert statistics.running_steps == 0
        assert await quarantined_keys(rt) == []
    assert worked == [f"r{n}:{letter}" for n in range(3) for letter in "abc"]
    assert list(dict.fromkeys(outcome.run_id for outcome in hook.outcomes)) == ["r0", "r1", "r2"]


@pytest.mark.parametrize("error", [Halt, lambda: BaseExceptionGroup("g", [Halt(), Bug()])])
async def test_what_is_no_exception_quarantines_as_well(
    autojump_clock: MockClock, fault: Fault, error: Callable[[], BaseException]
) -> None:
    fault.error = error
    async with open_test_runtime(workflows=[job]) as rt:
        await rt.submit(job, key="bad")
        await trio.sleep(100)
        assert await quarantined_keys(rt) == ["bad"]


async def test_how_many_restarts_there_are_can_be_set(
    autojump_clock: MockClock, fault: Fault
) -> None:
    async with open_test_runtime(workflows=[job], max_restarts=0) as rt:
        await rt.submit(job, key="bad")
        await trio.sleep(0.01)
        assert await quarantined_keys(rt) == ["bad"]
    assert fault.raised == 1
    fault.raised, fault.left = 0, 4
    async with open_test_runtime(workflows=[job], max_restarts=2, restart_window=0.05) as rt:
        run = await rt.submit(job, key="bad")
        await trio.sleep(1)
        assert await quarantined_keys(rt) == ["bad"]
        await rt.release_key("bad")
        assert await run.result()
    with pytest.raises(ValueError, match="max_restarts must be at least 0, got -1"):
        await open_test_runtime(max_restarts=-1).__aenter__()
    with pytest.raises(ValueError, match="restart_window must be positive, got 0"):
        await open_test_runtime(restart_window=0).__aenter__()


async def test_a_restart_of_the_process_tries_again(
    autojump_clock: MockClock, fault: Fault
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="bad", run_id="r")
        await trio.sleep(100)
        assert await quarantined_keys(rt) == ["bad"]
        async with open_reader(store) as reader:
            # It is in the memory of the runtime, and a reader has only the store.
            assert await reader.keys(quarantined=True) == []
            assert [key.key for key in await reader.keys()] == ["bad"]
    fault.mend()
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await rt.keys(quarantined=True) == []
        assert await (await rt.submit(job, key="bad", run_id="r")).result() == "r"


@pytest.mark.parametrize("crash", ["drive", "leave", "load"])
async def test_runs_of_a_quarantined_key_can_be_cancelled(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, crash: str
) -> None:
    fault, hook = break_it(monkeypatch, crash), RecordingHook()
    async with open_test_runtime(workflows=[job], on_terminal=hook, max_restarts=1) as rt:
        # What was delayed is read from the store when its turn comes.
        delay = 1 if crash == "load" else 0
        runs = [await rt.submit(job, key="bad", run_id=f"r{n}", delay=delay) for n in range(3)]
        late = await rt.submit(job, key="bad", run_id="late", delay=1000)
        await trio.sleep(100)
        assert await quarantined_keys(rt) == ["bad"]
        for run in (*runs, late):
            status = await run.status()
            assert status is not None
            if status.state is State.SUCCEEDED:  # it had ended when the crash came
                assert await run.cancel() is False
                continue
            assert await run.cancel() is True
            assert await run.cancel() is False
            with pytest.raises(RunCancelled):
                await run.result()
        assert rt.statistics().backlog.pending == 0
        assert trio.current_time() == 100
        (key,) = await rt.keys(quarantined=True)
        assert (key.runs, key.head, key.state) == (0, "", State.QUARANTINED)
        fault.mend()
        assert await rt.release_key("bad") is True
        assert await (await rt.submit(job, key="bad", run_id="next")).result() == "next"
        await trio.sleep(1)
        assert rt.statistics().keys == 0
    assert sorted(outcome.run_id for outcome in hook.outcomes) == ["late", "next", "r0", "r1", "r2"]


async def test_runs_of_a_quarantined_key_can_be_forgotten(
    autojump_clock: MockClock, fault: Fault
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        for run_id in ("a", "b"):
            await rt.submit(job, key="bad", run_id=run_id)
        await rt.submit(job, key="bad", run_id="late", delay=1000)
        await trio.sleep(100)
        with pytest.raises(RunEnded, match=r"release the key: release_key\('bad'\)"):
            await rt.redrive("b")
        for run_id in ("a", "b", "late"):
            await rt.forget(run_id)
            assert await rt.status(run_id) is None
            with pytest.raises(UnknownRun):
                await rt.forget(run_id)
        assert rt.statistics().backlog.pending == 0
        for table in ("runs", "ids", "queue", "status", "delayed", "ended"):
            assert await store.scan(table) == []
        fault.mend()
        await rt.release_key("bad")
        assert await (await rt.submit(job, key="bad", run_id="a")).result() == "a"


async def test_a_cancel_that_waits_for_its_run_returns_when_the_key_crashes(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is in backoff or asleep, so that `cancel` waits for the actor to unwind it."""

    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(1000)

    fault = break_it(monkeypatch, "settle")
    async with open_test_runtime(workflows=[sleeper], evict_after=inf) as rt:
        run = await rt.submit(sleeper, key="bad", run_id="r")
        await trio.sleep(5)
        with trio.fail_after(1):
            assert await run.cancel() is True
        status = await run.status()
        assert status is not None
        assert status.state is State.CANCELLED
        assert fault.raised == 1


async def test_a_run_can_be_cancelled_while_its_key_waits_to_be_served_again(
    autojump_clock: MockClock, fault: Fault
) -> None:
    fault.left = 5
    async with open_test_runtime(workflows=[job]) as rt:
        first = await rt.submit(job, key="bad", run_id="r1")
        second = await rt.submit(job, key="bad", run_id="r2")
        await trio.sleep(0.5)
        assert 0 < fault.raised < 5
        assert await first.cancel() is True
        with pytest.raises(RunCancelled):
            await first.result()
        assert await second.result() == "r2"
        assert rt.statistics().backlog.pending == 0


async def test_a_quarantined_key_can_be_paused_and_stays_paused(
    autojump_clock: MockClock, fault: Fault
) -> None:
    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="bad", run_id="r")
        await trio.sleep(100)
        await rt.pause_key("bad")
        assert await states(rt) == {"r": State.QUARANTINED}
        fault.mend()
        await rt.release_key("bad")
        await trio.sleep(100)
        assert await states(rt) == {"r": State.PAUSED}
        await rt.resume_key("bad")
        assert await run.result() == "r"


@pytest.mark.parametrize("asleep", [0.05, 0.5, 100])
async def test_a_runtime_with_a_crashed_key_can_be_left_at_once(
    autojump_clock: MockClock, fault: Fault, asleep: float
) -> None:
    """Whether the key is about to be served again, or quarantined."""
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="bad", run_id="r")
        await trio.sleep(asleep)
        left_at = trio.current_time()
    assert trio.current_time() == left_at
    fault.mend()
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="bad", run_id="r")).result() == "r"


async def test_a_crash_while_the_runtime_is_left_does_not_hold_it_up(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    fault = break_it(monkeypatch, "conclude")
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="bad", run_id="r")
        await trio.sleep(0.5)
    assert trio.current_time() == pytest.approx(1, abs=0.1)
    assert fault.raised
    fault.mend()
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="bad", run_id="r")).result() == "r"


async def test_a_store_that_fails_still_ends_the_runtime(autojump_clock: MockClock) -> None:
    store = FullDisk()
    with pytest.raises(StoreError, match="No space left"):
        async with open_test_runtime(store, workflows=[job]) as rt:
            run = await rt.submit(job, key="k", run_id="r")
            await trio.sleep(0.5)
            store.full = True
            await run.result()
    assert worked in (["r:a"], [])


async def test_a_key_whose_state_is_damaged_is_quarantined_by_name(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        for key in ("bad", "good"):
            await (await rt.submit(job, key=key, run_id=f"{key}-1")).result()
    (damaged,) = [key for key in store.keys("state") if b"bad" in key]
    store.damage("state", damaged)
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="bad", run_id="bad-2")
        assert await (await rt.submit(job, key="good", run_id="good-2")).result() == "good-2"
        await trio.sleep(100)
        (status,) = await rt.keys(quarantined=True)
        assert status.key == "bad"
        assert "in table 'state' is damaged" in str(status.reason)
        store.damage("state", damaged)  # the same bit again: it is as it was
        await rt.release_key("bad")
        assert await (await rt.submit(job, key="bad", run_id="bad-2")).result() == "bad-2"


async def test_a_key_that_is_held_by_a_quarantined_run_is_listed_and_released(
    autojump_clock: MockClock,
) -> None:
    @workflow(name="gone")
    async def gone(ctx: Context) -> str:
        return "back"

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[gone, job]) as rt:
        await rt.pause_all()
        await rt.submit(gone, key="held", run_id="r")
        for n in range(3):
            await rt.submit(job, key=f"k{n}", run_id=f"k{n}")
    for opened in (1, 2):
        async with open_test_runtime(store, workflows=[job]) as rt:
            await rt.resume_all()
            await trio.sleep(1)
            assert await quarantined_keys(rt) == ["held"]
            assert len(await rt.keys(quarantined=False)) == (3 if opened == 1 else 0)
            async with open_reader(store) as reader:
                (key,) = await reader.keys(quarantined=True)
                assert (key.key, key.head, key.state) == ("held", "r", State.QUARANTINED)
                assert "is not registered" in str(key.reason)
            await trio.sleep(100)
            assert rt.statistics().backlog.pending == 0
            with pytest.raises(LookupError, match="gone"):
                await rt.release_key("held")
            assert await states(rt) == {
                "r": State.QUARANTINED,
                **{f"k{n}": State.SUCCEEDED for n in range(3)},
            }
    async with open_test_runtime(store, workflows=[gone, job]) as rt:
        assert await (await rt.submit(gone, key="held", run_id="r")).result() == "back"
        assert await rt.release_key("held") is False
        assert rt.statistics().backlog.pending == 0


async def test_keys_are_paged_with_and_without_the_filter(
    autojump_clock: MockClock, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keyrun.runtime.inspect.keys.PAGE", 3)
    fault.key_of = lambda run: "bad" if run.key.startswith("bad") else ""
    names = [f"bad{n}" for n in range(5)] + [f"ok-{n:02}" for n in range(7)]
    async with open_test_runtime(workflows=[job]) as rt:
        for n in range(7):
            await rt.pause_key(f"ok-{n:02}")
        for name in names:
            for n in range(5 if name in ("bad1", "ok-03") else 1):
                await rt.submit(job, key=name, run_id=f"{name}-{n}")
        await trio.sleep(100)
        await rt.cancel("bad2-0")  # a quarantined key without runs

        async def listed(quarantined: bool | None, limit: int) -> list[tuple[str, int]]:
            found: list[tuple[str, int]] = []
            while True:
                after = found[-1][0] if found else None
                page = await rt.keys(quarantined=quarantined, limit=limit, after=after)
                found += [(key.key, key.runs) for key in page]
                if len(page) < limit:
                    return found

        runs = dict.fromkeys(names, 1) | {"bad1": 5, "ok-03": 5, "bad2": 0}
        for limit in (1, 2, 5, 100):
            assert await listed(None, limit) == [(name, runs[name]) for name in names]
            assert await listed(True, limit) == [(n, runs[n]) for n in names if "bad" in n]
            assert await listed(False, limit) == [(n, runs[n]) for n in names if "ok" in n]


@pytest.mark.parametrize("name", ["conclude", "settle", "leave"])
async def test_a_crash_in_a_scope_that_is_used_up_is_answered_like_any_other(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The run is out of time when the crash comes, and all that is awaited would be cancelled."""
    fault = break_it(monkeypatch, name)
    fault.left = 2
    async with open_test_runtime(workflows=[job, nap]) as rt:
        late = await rt.submit(nap, key="bad", run_id="late", limits=Limits(run_timeout=5))
        after = await rt.submit(job, key="bad", run_id="after")
        with pytest.raises(RunFailed, match="run_timeout of 5 s"):
            await late.result()
        assert await after.result() == "after"
        assert fault.raised == 2
        others = [await rt.submit(job, key=f"k{n}") for n in range(5)]
        for other in others:
            assert await other.result() == other.run_id
        assert await quarantined_keys(rt) == []
        await trio.sleep(1)
        assert (rt.statistics().backlog.pending, rt.statistics().keys) == (0, 0)


async def test_who_waits_behind_a_crash_and_asks_later_is_told_the_end(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is at hand when the line is put back is not at hand any more."""
    fault = break_it(monkeypatch, "drive")
    fault.left = 1
    async with open_test_runtime(workflows=[job]) as rt:
        runs = [await rt.submit(job, key="bad") for _ in range(3)]
        await trio.sleep(500)
        with trio.fail_after(1):
            assert [await run.result() for run in runs] == [run.run_id for run in runs]
