"""An internal error between two records of one commit leaves none of them, also not in memory.

Each test plants an error in a function that Keyrun calls after it has staged the first records of
an operation. The operation then has not happened, and it happens as a whole when it is repeated.
"""

import os
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

import keyrun
from keyrun import (
    Compensation,
    Context,
    Entity,
    FailureKind,
    GateNotWaiting,
    Retry,
    RunEnded,
    RunFailed,
    Runtime,
    SignalTimeout,
    State,
    UnknownRun,
    Workflow,
    _waking,
    current_step,
    entity,
    step,
    workflow,
)
from keyrun.runtime import logger
from keyrun.runtime.tuning import Tuning
from keyrun.runtime.user_errors import has
from keyrun.storage import MemoryStore, StoreError, group_commit, memory
from keyrun.testing import RecordingHook, open_test_runtime
from keyrun.types import StepFunction
from tests.runtime.recovery import test_planted_bugs
from tests.runtime.recovery.test_planted_bugs import CHECKS, GUARDS, Planted

PLANTS = 400 if os.environ.get("KEYRUN_SOAK") else 8


@contextmanager
def planted(function: str, *, under: str) -> Iterator[None]:
    """Raise in the first call of `function` that comes from `under`. Both are qualified names."""
    hit = False

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal hit
        if event == "call" and not hit and frame.f_code.co_qualname == function:
            each = frame.f_back
            while each is not None and each.f_code.co_qualname != under:
                each = each.f_back
            if each is not None:
                hit = True
                raise Planted(function)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
    assert hit


async def ignore_events(runtime: Runtime) -> None:
    async with runtime.events() as events:
        async for _ in events:
            pass


@step(retry=Retry.none())
async def refuse() -> None:
    raise OSError("never")


@workflow(instances=1)
async def failing(ctx: Context) -> None:
    await ctx.step(refuse)


@workflow
async def parent(ctx: Context) -> str:
    try:
        await ctx.child(failing, key="child")
    except RunFailed as error:
        return f"{error.failure.kind}"
    return "no failure"


async def test_an_end_that_was_not_staged_as_a_whole_is_staged_again(
    autojump_clock: MockClock,
) -> None:
    hook, store = RecordingHook(), MemoryStore()
    async with (
        open_test_runtime(store, workflows=[parent, failing], on_terminal=hook) as rt,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ignore_events, rt)
        with planted("seal_empty", under="settle"):
            run = await rt.submit(parent, key="k", run_id="parent")
            other = await rt.submit(failing, key="other", run_id="other")
            result = await run.result()
        with pytest.raises(RunFailed):
            await other.result()
        await trio.sleep(100)
        assert result == "child_failed"
        # One outcome for each end, also for the end that was staged twice.
        assert sorted(Counter(outcome.run_id for outcome in hook.outcomes).values()) == [1, 1, 1]
        assert (await rt.outbox()).waiting == 0
        assert len(await rt.dead_letters()) == 2
        assert rt.statistics().backlog.pending == 0
        await rt.forget("parent")
        assert await rt.status("parent") is None
        nursery.cancel_scope.cancel()


async def test_a_redrive_that_was_not_staged_as_a_whole_can_be_repeated(
    autojump_clock: MockClock,
) -> None:
    async with (
        open_test_runtime(workflows=[failing]) as rt,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ignore_events, rt)
        run = await rt.submit(failing, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        with planted("run_changed", under="Redrive.stage_redrive"), pytest.raises(Planted):
            await rt.redrive("r")
        assert rt.statistics().backlog.pending == 0
        assert [letter.run_id for letter in await rt.dead_letters()] == ["r"]
        assert await rt.redrive("r") == 2
        await trio.sleep(100)
        status = await rt.status("r")
        assert status is not None
        assert (status.state, status.generation) == (State.FAILED, 2)
        assert rt.statistics().backlog.pending == 0
        nursery.cancel_scope.cancel()


@step
async def work() -> None:
    await trio.sleep(10)


@workflow
async def receiving(ctx: Context) -> list[Any]:
    await ctx.step(work)
    received = [await ctx.wait_signal("go")]
    with suppress(SignalTimeout):
        received.append(await ctx.wait_signal("go", timeout=5))
    return received


@pytest.mark.parametrize("driven", [True, False])
async def test_a_signal_that_was_not_replaced_stays(
    autojump_clock: MockClock, driven: bool
) -> None:
    async with open_test_runtime(workflows=[receiving]) as rt:
        if not driven:
            await rt.submit(receiving, key="k", run_id="ahead")
        run = await rt.submit(receiving, key="k", run_id="r")
        await trio.sleep(1)
        await rt.signal("r", "go", "old")
        with planted("Signals.stage", under="Signals.send"), pytest.raises(Planted):
            await rt.signal("r", "go", "new", replace=True)
        if not driven:
            await rt.cancel("ahead")
        with trio.fail_after(1000):
            assert await run.result() == ["old"]


async def test_a_signal_that_was_not_staged_is_not_received(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[receiving]) as rt:
        await rt.submit(receiving, key="k", run_id="ahead")
        run = await rt.submit(receiving, key="k", run_id="r")
        await trio.sleep(1)
        with planted("Group.when_durable", under="Signals.stage"), pytest.raises(Planted):
            await rt.signal("r", "go", "lost", signal_id="once")
        with trio.fail_after(1000):
            await rt.signal("r", "go", "repeated", signal_id="once")
            await rt.cancel("ahead")
            assert await run.result() == ["repeated"]


async def test_a_run_that_a_signal_starts_is_staged_with_its_signal_or_not_at_all(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()

    async def start(rt: Runtime) -> Any:
        return await rt.submit_or_signal(receiving, key="k", run_id="r", name="go", payload=1)

    async with open_test_runtime(store, workflows=[receiving]) as rt:
        with planted("sealed", under="Signals.stage"), pytest.raises(Planted):
            await start(rt)
        assert await rt.status("r") is None
        assert rt.statistics().backlog.pending == 0
        with planted("Group.when_durable", under="Signals.begin_with"), pytest.raises(Planted):
            await start(rt)
        assert await rt.status("r") is None
        run = await start(rt)
        assert run.newly_submitted
        assert await run.result() == [1]


async def test_a_cancel_that_failed_after_it_was_staged_is_no_second_end(
    autojump_clock: MockClock,
) -> None:
    hook, store = RecordingHook(), MemoryStore()
    async with open_test_runtime(
        store, workflows=[receiving], on_terminal=hook, evict_after=1
    ) as rt:
        await rt.submit(receiving, key="k", run_id="r")
        await trio.sleep(20)
        with planted("RunTable.end_waking", under="RunControl.cancel"), pytest.raises(Planted):
            await rt.cancel("r")
        await rt.cancel("r")
        await trio.sleep(100)
        status = await rt.status("r")
    assert status is not None
    assert status.state is State.CANCELLED
    assert [outcome.run_id for outcome in hook.outcomes] == ["r"]


async def test_a_run_that_failed_as_it_left_memory_is_loaded_again(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[receiving], evict_after=1) as rt:
        with planted("Run.key", under="Evictor.leave_memory"):
            run = await rt.submit(receiving, key="k")
            await trio.sleep(30)
        await rt.signal(run.run_id, "go", 1)
        assert await run.result() == [1]


async def test_a_cancel_that_failed_as_it_moved_the_run_can_be_repeated(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[receiving], evict_after=1) as rt:
        run = await rt.submit(receiving, key="k")
        await trio.sleep(30)
        with planted("Run.key", under="RunTable.move"), pytest.raises(Planted):
            await run.cancel()
        assert await run.cancel()
        assert [status.state for status in await rt.runs()] == [State.CANCELLED]


async def test_a_resume_that_was_not_staged_as_a_whole_can_be_repeated(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[receiving], evict_after=1) as rt:
        run = await rt.submit(receiving, key="k")
        await trio.sleep(30)
        assert await rt.pause(run.run_id)
        with planted("RunTable.move", under="RunTable.keep_until_durable"):
            with pytest.raises(Planted):
                await rt.resume(run.run_id)
        assert await rt.resume(run.run_id)
        await rt.signal(run.run_id, "go", 1)
        assert await run.result() == [1]


def changed(*steps: StepFunction[..., Any]) -> Workflow[Any, None]:
    """Return a version of one workflow that calls these steps."""

    @workflow
    async def changing(ctx: Context) -> None:
        for each in steps:
            await ctx.step(each)
        await ctx.wait_signal("go")

    return changing


@pytest.mark.parametrize("function", ["StatusRecord.fields", "seal"])
async def test_a_cancel_of_a_quarantined_run_that_was_not_staged_can_be_repeated(
    autojump_clock: MockClock, function: str
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[changed(quick)]) as rt:
        await rt.submit(changed(quick), key="k", run_id="r")
        await trio.sleep(0.1)
    async with open_test_runtime(store, workflows=[changed(work)]) as rt:
        await trio.sleep(1)
        before = await rt.status("r")
        with planted(function, under="settle"), pytest.raises(Planted):
            await rt.cancel("r")
        after = await rt.status("r")
        assert before is not None
        assert after is not None
        assert after.state is before.state is State.QUARANTINED
        assert (after.reason, after.ended_at) == (before.reason, None)
        assert await rt.cancel("r")
        assert [status.state for status in await rt.runs()] == [State.CANCELLED]


@pytest.mark.parametrize("function", ["settle", "seal_empty", "RunTable.move"])
async def test_a_cancel_that_was_not_staged_leaves_no_trace_in_a_change_beside_it(
    autojump_clock: MockClock, function: str
) -> None:
    async with open_test_runtime(workflows=[receiving]) as rt:
        await rt.submit(receiving, key="k", run_id="ahead")
        for number in range(10):  # Trio decides at random which task runs first
            run = await rt.submit(receiving, key="k", run_id=f"r{number}")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rt.pause, run.run_id)
                with planted(function, under="RunControl._settle_at_rest"), pytest.raises(Planted):
                    await trio.lowlevel.checkpoint()
                    await run.cancel()
            status = await rt.status(run.run_id)
            assert status is not None
            assert status.state is State.PAUSED
            assert await rt.resume(run.run_id)
            await rt.signal(run.run_id, "go", number)
        await rt.cancel("ahead")
        for number in range(10):
            assert await rt.run(f"r{number}").result() == [number]


@entity
class Tally(Entity):
    async def add(self) -> int:
        count: int = self.state.get("count", 0) + 1
        self.state["count"] = count
        return count


@pytest.mark.parametrize("known", [True, False])
async def test_a_call_that_could_not_wake_its_key_does_not_happen(
    autojump_clock: MockClock, known: bool
) -> None:
    async with open_test_runtime(workflows=[receiving], entities=[Tally]) as rt:
        tally = rt.entity(Tally, "k")
        if known:
            await tally.add()
        function = "ActorSystem.tell_nowait" if known else "Directory.create"
        with planted(function, under="KeyQueue.wake"), pytest.raises(Planted):
            await tally.add()
        assert rt.statistics().backlog.pending == 0
        with trio.fail_after(1000):
            assert await tally.add() == 1 + known
            run = await rt.submit(receiving, key="k")
            await rt.signal(run.run_id, "go", 1)
            assert await run.result() == [1]


@pytest.mark.parametrize("function", ["KeyQueues.of", "KeyQueue.wake", "ActorSystem.tell_nowait"])
async def test_a_key_that_the_concurrency_gate_could_not_admit_is_admitted_later(
    autojump_clock: MockClock, function: str
) -> None:
    async with open_test_runtime(
        workflows=[receiving], max_concurrent_steps=1, tuning=Tuning(gate_slack=0)
    ) as rt:
        for key in "abc":
            await rt.submit(receiving, key=key)
        await trio.sleep(1)
        with planted(function, under="ConcurrencyGate.fill"):
            await trio.sleep(50)
        await rt.submit(receiving, key="d")
        await trio.sleep(100)
        assert {status.state for status in await rt.runs()} == {State.WAITING}


@pytest.mark.parametrize("function", ["Inbox.put", "Inbox.match"])
async def test_a_signal_that_could_not_be_put_into_an_inbox_is_received_from_the_store(
    autojump_clock: MockClock, function: str
) -> None:
    async with open_test_runtime(workflows=[receiving]) as rt:
        run = await rt.submit(receiving, key="k")
        await trio.sleep(10.5)
        with planted(function, under="Signals.send"):
            await rt.signal(run.run_id, "go", "once")
        with trio.fail_after(1000):
            assert await run.result() == ["once"]


async def test_a_parent_that_could_not_take_the_end_of_its_child_receives_it_from_the_store(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[parent, failing]) as rt:
        with planted("Inbox.match", under="settle"):
            run = await rt.submit(parent, key="k")
            with trio.fail_after(1000):
                assert await run.result() == "child_failed"


async def test_a_parent_that_failed_before_its_first_status_receives_the_end_of_its_child(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[parent, failing]) as rt:
        with planted("Store.durable", under="Children.admit"):
            run = await rt.submit(parent, key="k")
            with trio.fail_after(1000):
                assert await run.result() == "child_failed"
        assert rt.statistics().backlog.pending == 0


async def test_an_error_before_a_block_begins_loses_no_earlier_record(
    autojump_clock: MockClock,
) -> None:
    memos = []

    @step(compensate=undo)
    async def remember() -> None:
        memo = current_step().memo
        memos.append(dict(memo))
        memo["tried"] = True

    @workflow
    async def remembering(ctx: Context) -> None:
        await ctx.step(remember)

    async with open_test_runtime(workflows=[remembering]) as rt:
        with planted("RunCounts.marks", under="stage_value"):
            run = await rt.submit(remembering, key="k")
            await run.result()
    assert memos == [{}, {"tried": True}]


async def test_a_run_that_failed_while_it_was_counted_as_started_is_counted_once(
    autojump_clock: MockClock,
) -> None:
    for function in ("KeyQueue.started", "Backlog.leave"):
        async with open_test_runtime(workflows=[receiving]) as rt:
            with planted(function, under="Run.begin"):
                run = await rt.submit(receiving, key="k")
                await trio.sleep(5)
            assert rt.statistics().backlog.pending == 0
            await rt.signal(run.run_id, "go", 1)
            assert await run.result() == [1]
            assert rt.statistics().backlog.pending == 0


async def test_a_run_that_failed_after_its_end_was_staged_does_not_count(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def nothing(ctx: Context) -> None: ...

    async with open_test_runtime(workflows=[nothing]) as rt:
        with planted("Group.hasten", under="settle"):
            run = await rt.submit(nothing, key="k")
            await run.result()
            await trio.sleep(1)
        assert rt.statistics().backlog.pending == 0


async def test_a_start_marker_that_was_not_removed_is_no_interruption(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[receiving]) as rt:
        with planted("CurrentStep.unmark", under="_try"):
            run = await rt.submit(receiving, key="k")
            await trio.sleep(15)
        await rt.signal(run.run_id, "go", 1)
        await run.result()
        assert await store.scan("begun") == []
        assert "interrupted" not in [each.event for each in await rt.history(run.run_id)]


async def test_an_at_most_once_step_that_an_internal_error_cut_off_does_not_run_again(
    autojump_clock: MockClock,
) -> None:
    begun = []

    @step(at_most_once=True)
    async def once() -> None:
        begun.append(1)
        await trio.sleep(10)

    @workflow
    async def parallel(ctx: Context) -> None:
        async def second(ctx: Context) -> None:
            await ctx.sleep(1)
            await ctx.sleep(1)

        await ctx.gather(ctx.step(once), second)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[parallel]) as rt:
        run = await rt.submit(parallel, key="k")
        await trio.sleep(0.5)
        with planted("Journal.settled", under="sleep"):
            with pytest.raises(RunFailed) as caught:
                await run.result()
        assert caught.value.failure.kind is FailureKind.INTERRUPTED
        assert await store.scan("begun") == []
    assert begun == [1]


async def test_a_pause_of_a_key_that_was_not_staged_does_not_pause_it(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with (
        open_test_runtime(store, workflows=[receiving]) as rt,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ignore_events, rt)
        await rt.submit(receiving, key="k", run_id="r")
        await trio.sleep(1)
        for pause in (partial(rt.pause_key, "k"), rt.pause_all):
            with planted("run_changed", under="RunControl.pause_key"), pytest.raises(Planted):
                await pause()
            status = await rt.status("r")
            assert status is not None
            assert status.state is State.RUNNING
        await rt.submit(receiving, key="other")
        await trio.sleep(20)
        states = {status.state for status in await rt.runs()}
        assert states == {State.WAITING}
        assert await store.scan("held") == []
        nursery.cancel_scope.cancel()


# Errors at random places.


@step
async def quick(number: int = 1) -> int:
    return number


@step(retry=Retry.fixed(max_attempts=2, delay=1))
async def flaky() -> int:
    current = current_step()
    count = current.state["count"] = current.state.get("count", 0) + 1
    if current.attempt == 1:
        current.memo["tried"] = 1
        current.report(50, "half")
        raise OSError("away")
    return int(count)


async def undo(given: Compensation) -> None:
    await trio.sleep(1)


@step(compensate=undo)
async def book() -> None: ...


@workflow
async def plain(ctx: Context) -> int:
    ctx.report(10, "begun")
    return await ctx.step(quick) + await ctx.step(flaky)


@workflow(while_waiting="yield")
async def waiting(ctx: Context) -> Any:
    value = await ctx.wait_signal("go")
    await ctx.sleep(50)
    await ctx.approval("manager", timeout=10_000)
    return value


@workflow
async def looping(ctx: Context, left: int) -> int:
    await ctx.step(quick)
    if left:
        ctx.continue_as(left - 1)
    return left


@workflow
async def compensating(ctx: Context) -> None:
    await ctx.step(book)
    ctx.fail("enough")


@workflow
async def endless(ctx: Context) -> None:
    with ctx.move_on_after(100_000):
        await ctx.sleep(1_000_000)


WORKFLOWS: list[Workflow[Any, Any]] = [
    plain,
    waiting,
    parent,
    failing,
    looping,
    compensating,
    endless,
]
ROOTS = tuple(f"{Path(keyrun.__file__).parent}/{part}/" for part in ("runtime", "storage"))
# An error in the commit itself fails the store.
EXEMPT = {
    *test_planted_bugs.EXEMPT,
    *(module.__name__ for module in (logger, group_commit, memory, _waking)),
}
BEYOND = {
    "Run.guard",
    "Run.guarded",
    "unseal",
    "Group.end_section",
    "Group.settle",
    "Group.when_dropped",
    "KeySupervisor.crashed",
    "Together.__enter__",
    "Together.__exit__",
    "StagedTogether.__exit__",
}
GUARD_ENTRIES = {"Run.deliver"}
"""Functions that guard what they call, so that an error can only come before they begin."""


@attrs.define(eq=False)
class Plants(trio.abc.Instrument):
    """Counts the calls of Keyrun's functions that come after something was staged, and before
    another task can run. Raises in call number `at`."""

    at: int | None
    calls: int = 0
    _staged: bool = False

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Forget what another task has staged."""
        self._staged = False

    def profile(self, frame: FrameType, event: str, argument: object) -> None:
        """Count a call, or raise in it."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(ROOTS):
            return
        if code.co_qualname in ("Run.write", "Run.put", "seal", "sealed", "Batch.put"):
            self._staged = True
        if not self._staged or code.co_code[frame.f_lasti + 1]:
            return
        caller = frame.f_back
        if caller is None or not caller.f_code.co_filename.startswith(ROOTS):
            return
        if code.co_qualname in GUARD_ENTRIES or not GUARDS.isdisjoint(code.co_names):
            return
        each: FrameType | None = frame
        while each is not None:
            name = each.f_code.co_qualname
            if each.f_globals["__name__"] in EXEMPT or name in BEYOND or "Guard." in name:
                return
            if name.startswith("check") or name in CHECKS:
                return  # arguments are checked outside of the guards
            each = each.f_back
        self.calls += 1
        if self.calls == self.at:
            raise Planted(code.co_qualname)


async def repeated(call: Callable[[], Awaitable[object]]) -> None:
    """Repeat an operation in which the error was planted."""
    with suppress(RunEnded, UnknownRun, GateNotWaiting):
        try:
            await call()
        except Planted:
            await call()


async def operate(rt: Runtime) -> None:
    """Submit runs of all kinds, and change them."""
    for flow, run_id, options in (
        (plain, "plain", {}),
        (waiting, "waiting", {}),
        (parent, "parent", {}),
        (failing, "failing", {}),
        (looping, "looping", {"input": 2}),
        (compensating, "compensating", {}),
        (endless, "endless", {}),
        (endless, "paused", {}),
        (plain, "delayed", {"delay": 20}),
    ):
        given: dict[str, Any] = {"key": f"key-{run_id}", "run_id": run_id, **options}
        await repeated(partial(rt.submit, flow, **given))
    await repeated(lambda: rt.submit(plain, key="key-waiting", run_id="behind"))
    await trio.sleep(10)
    await repeated(lambda: rt.pause("paused"))
    await repeated(lambda: rt.pause_key("key-endless"))
    await trio.sleep(10)
    await repeated(lambda: rt.resume("paused"))
    await repeated(lambda: rt.resume_key("key-endless"))
    await repeated(lambda: rt.signal("waiting", "go", 7, signal_id="once"))
    await repeated(lambda: rt.cancel("endless"))
    await repeated(lambda: rt.cancel("paused"))
    await trio.sleep(100)
    await repeated(lambda: rt.approve("waiting", "manager", by="me"))
    status = await rt.status("failing")
    if status is not None and status.generation == 1:
        await repeated(lambda: rt.redrive("failing"))
    await repeated(lambda: rt.forget("endless"))
    await trio.sleep(100)


async def play(plants: Plants, found: dict[str, Any]) -> None:
    """Operate on a new store until that ends, and note what the store has then."""
    store, hook = MemoryStore(), RecordingHook()
    for _ in range(3):
        try:
            async with open_test_runtime(
                store, workflows=WORKFLOWS, on_terminal=hook, evict_after=5
            ) as rt:
                await operate(rt)
                await trio.sleep(500)
                found["runs"] = {
                    status.run_id: (str(status.state), status.generation)
                    for status in await rt.runs()
                    if not status.run_id[0].isdigit()
                }
                found["pending"] = rt.statistics().backlog.pending
                found["outbox"] = (await rt.outbox()).waiting
                found["unfinished"] = [each.runs for each in (await rt.counts()).unfinished]
                found["letters"] = len(await rt.dead_letters())
            break
        except BaseException as error:
            if not has(error, Planted) and not has(error, StoreError):
                raise
    # After an error the hook may receive an outcome again, with the same id. After an error in the
    # background, the run that was forgotten is submitted again, and has another id.
    ends = {
        outcome.run_id if outcome.run_id == "endless" else outcome.outcome_id: outcome.run_id
        for outcome in hook.outcomes
    }
    found["outcomes"] = sorted(run_id for run_id in ends.values() if not run_id[0].isdigit())
    left = ("queue", "begun", "signals", "timers", "delayed", "children", "outcomes", "instances")
    async with store:
        found["records"] = {table: len(await store.scan(table)) for table in left}


def played(at: int | None) -> tuple[dict[str, Any], int]:
    """Play with an error in one call. Return what the store has, and the number of calls."""
    found: dict[str, Any] = {}
    plants = Plants(at)
    sys.setprofile(plants.profile)
    try:
        clock = MockClock(autojump_threshold=0)
        trio.run(play, plants, found, clock=clock, instruments=[plants])
    finally:
        sys.setprofile(None)
    return found, plants.calls


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_error_after_any_staging_leads_to_the_same_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("trio._core._run._r", Random(0))
    expected, calls = played(None)
    assert calls > 1000
    assert expected["pending"] == expected["outbox"] == 0
    wrong = {}
    for at in Random(1).sample(range(1, calls), PLANTS):
        monkeypatch.setattr("trio._core._run._r", Random(0))
        found, _ = played(at)
        if found != expected:
            wrong[at] = {
                name: found.get(name) for name in expected if found[name] != expected[name]
            }
    assert not wrong, expected
