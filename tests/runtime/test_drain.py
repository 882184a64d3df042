"""Leaving the block: running steps finish, the rest goes on at the next open."""

import logging
import threading
from collections.abc import Awaitable, Callable

import pytest
import trio

from keyrun import (
    Context,
    Limits,
    Retry,
    RunFailed,
    State,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore, StoreClosed, StoreCrashed, StoreError
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore, FullDisk


class Log:
    """A workflow of three steps that take 10 seconds each."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.done: list[str] = []

        @step(retry=Retry.none())
        async def work(name: str) -> str:
            self.begun.append(name)
            assert current_step().attempt == 1
            await trio.sleep(10)
            self.done.append(name)
            return name

        @workflow
        async def job(ctx: Context) -> str:
            return "".join([await ctx.step(work, name) for name in "abc"])

        self.job = job


@pytest.fixture
def log() -> Log:
    return Log()


async def test_a_running_step_finishes_and_the_next_one_begins_at_the_next_open(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
        await rt.submit(log.job, key="k", run_id="r")
        await rt.submit(log.job, key="k", run_id="next")
        await trio.sleep(12)
    assert trio.current_time() == pytest.approx(20, abs=0.1)
    assert log.done == ["a", "b"]
    assert hook.calls == 0
    async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
        assert await (await rt.submit(log.job, key="k", run_id="next")).result() == "abc"
        assert not [entry for entry in await rt.history("r") if entry.failure is not None]
    assert log.begun == [*"abc", *"abc"]
    assert [outcome.run_id for outcome in hook.outcomes] == ["r", "next"]


async def test_a_step_that_takes_longer_than_the_drain_is_cancelled_and_run_again(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = FragileStore()
    for _ in range(3):
        async with open_test_runtime(store, workflows=[log.job], drain_timeout=3) as rt:
            await rt.submit(log.job, key="k", run_id="r")
            await trio.sleep(5)
        assert store.keys("begun") == []
    assert trio.current_time() == pytest.approx(24, abs=0.1)
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert await (await rt.submit(log.job, key="k", run_id="r")).result() == "abc"
        events = {entry.event for entry in await rt.history("r")}
    assert log.begun == [*"aaa", *"abc"]
    assert not events & {"failed", "interrupted"}


async def test_a_run_whose_last_step_finishes_in_the_drain_ends(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        run = await rt.submit(log.job, key="k", run_id="r")
        await trio.sleep(25)
    assert log.done == ["a", "b", "c"]
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.SUCCEEDED
        assert run.run_id == "r"


async def test_runs_that_wait_do_not_keep_the_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Neither those that wait already, nor those that come to wait in the drain."""
    store = MemoryStore()
    passes: list[str] = []

    @step(retry=Retry.fixed(max_attempts=2, delay=300, jitter=0))
    async def work(fails: bool) -> None:
        await trio.sleep(5)
        if fails and current_step().attempt == 1:
            raise TransientError("once")

    @workflow
    async def sleeper(ctx: Context) -> None:
        await ctx.sleep(300)

    @workflow
    async def later(ctx: Context) -> None:
        await ctx.step(work, False)
        await ctx.sleep(300)
        passes.append("later")

    @workflow
    async def retrier(ctx: Context) -> None:
        await ctx.step(work, True)
        passes.append("retrier")

    @workflow
    async def side_by_side(ctx: Context) -> None:
        async def twice(ctx: Context) -> None:
            await ctx.step(work, False)
            await ctx.step(work, False)

        await ctx.gather(ctx.step(work, False), twice, lambda ctx: ctx.sleep(300))
        passes.append("side_by_side")

    workflows = [sleeper, later, retrier, side_by_side]
    async with open_test_runtime(store, workflows=workflows, drain_timeout=100) as rt:
        for each in workflows:
            await rt.submit(each, key=each.name, run_id=each.name)
        await rt.submit(sleeper, key="delayed", delay=1000)
        await rt.pause_key("paused")
        await rt.submit(sleeper, key="paused")
        await trio.sleep(1)
    assert trio.current_time() == pytest.approx(5, abs=0.2)
    async with open_test_runtime(store, workflows=workflows, drain_timeout=0) as rt:
        for each in workflows:
            await (await rt.submit(each, key=each.name, run_id=each.name)).result()
        assert trio.current_time() == pytest.approx(310, abs=2)
    assert sorted(passes) == ["later", "retrier", "side_by_side"]


async def test_in_a_gather_the_running_steps_finish(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Also when a sibling comes to its next step meanwhile."""
    store = MemoryStore()
    done: list[str] = []

    @step
    async def work(name: str, seconds: float) -> None:
        await trio.sleep(seconds)
        done.append(name)

    @workflow
    async def job(ctx: Context) -> None:
        async def branch(ctx: Context) -> None:
            await ctx.step(work, "short", 2)
            await ctx.step(work, "next", 2)

        await ctx.gather(branch, ctx.step(work, "long", 8))

    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
    assert trio.current_time() == pytest.approx(8, abs=0.1)
    assert done == ["short", "long"]
    async with open_test_runtime(store, workflows=[job]) as rt:
        await (await rt.submit(job, key="k", run_id="r")).result()
    assert done == ["short", "long", "next"]


async def test_a_block_left_by_an_exception_drains_and_raises_just_that(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = FragileStore()
    with pytest.raises(ValueError, match="mine"):
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            await rt.submit(log.job, key="k", run_id="r")
            await trio.sleep(5)
            raise ValueError("mine")
    assert log.done == ["a"]
    assert store.keys("begun") == []
    assert not [key for key in store.keys("counter") if b"open" in key]


async def test_a_block_left_by_a_cancellation_drains(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = FragileStore()
    with trio.move_on_after(5) as scope:
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            await rt.submit(log.job, key="k", run_id="r")
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert trio.current_time() == pytest.approx(10, abs=0.1)
    assert log.done == ["a"]
    assert store.keys("begun") == []
    assert not [key for key in store.keys("counter") if b"open" in key]
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert await (await rt.submit(log.job, key="k", run_id="r")).result() == "abc"
    assert log.begun == ["a", "b", "c"]


async def test_an_open_that_is_cancelled_at_any_moment_ends(
    autojump_clock: trio.testing.MockClock,
) -> None:
    class CancelsAt(trio.abc.Instrument):
        """Cancels a scope before a number of steps of any task have run."""

        def __init__(self, steps: int, scope: trio.CancelScope) -> None:
            self.steps, self._scope = steps, scope

        def before_task_step(self, task: trio.lowlevel.Task) -> None:
            self.steps -= 1
            if not self.steps:
                self._scope.cancel()

    for steps in range(1, 200):
        is_open = False
        with trio.fail_after(1000), trio.CancelScope() as scope:
            instrument = CancelsAt(steps, scope)
            trio.lowlevel.add_instrument(instrument)
            try:
                async with open_test_runtime(MemoryStore()):
                    is_open = True
            finally:
                trio.lowlevel.remove_instrument(instrument)
        if is_open:
            break
    assert is_open
    assert steps > 3


async def test_a_cancelled_block_does_not_wait_longer_than_the_drain(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    with trio.move_on_after(5):
        async with open_test_runtime(workflows=[log.job], drain_timeout=2) as rt:
            await rt.submit(log.job, key="k", run_id="r")
            await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(7, abs=0.1)


@pytest.mark.parametrize("keys", [1, 300])
async def test_a_store_that_fails_ends_the_block_with_a_clear_error(
    autojump_clock: trio.testing.MockClock, log: Log, keys: int
) -> None:
    store = FullDisk()
    hook = RecordingHook()
    with pytest.raises(StoreError, match="No space left on device"):
        async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
            for n in range(keys):
                await rt.submit(log.job, key=f"k{n}", run_id=f"r{n}")
            await trio.sleep(5)
            store.full = True
            await trio.sleep_forever()
    assert trio.current_time() == pytest.approx(10, abs=0.2)
    assert hook.calls == 0
    store.full = False
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        for n in range(keys):
            assert await (await rt.submit(log.job, key=f"k{n}", run_id=f"r{n}")).result() == "abc"


async def test_a_store_that_fails_in_the_drain_ends_the_block_with_a_clear_error(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = FullDisk()
    with pytest.raises(StoreError, match="No space left on device"):
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            for n in range(20):
                await rt.submit(log.job, key=f"k{n}")
            await trio.sleep(5)
            store.full = True
    assert trio.current_time() == pytest.approx(10, abs=0.2)


async def test_a_submit_on_a_failed_store_raises_the_store_error(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = FullDisk()
    with pytest.raises(StoreError, match="No space left on device"):
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            store.full = True
            await rt.submit(log.job, key="k")


async def test_a_crash_of_the_store_cancels_the_block(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    reached = False
    async with open_test_runtime(store, workflows=[log.job], drain_timeout=1000) as rt:
        for n in range(300):
            await rt.submit(log.job, key=f"k{n}")
        await trio.sleep(5)
        store.crash()
        await trio.sleep(1)
        reached = True
    assert not reached
    assert trio.current_time() == pytest.approx(5, abs=0.1)
    assert log.done == []


async def test_who_waits_for_a_result_outside_of_the_block_is_sent_away(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    errors: list[str] = []
    async with trio.open_nursery() as nursery:
        async with open_test_runtime(workflows=[log.job]) as rt:
            run = await rt.submit(log.job, key="k")

            async def wait() -> None:
                with pytest.raises(StoreClosed) as caught:
                    await run.result()
                errors.append(str(caught.value))

            nursery.start_soon(wait)
            await trio.sleep(1)
    assert len(errors) == 1
    assert "resumes" in errors[0]


async def test_a_submit_in_the_drain_is_kept_for_the_next_open(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore(latency=0.1)
    async with trio.open_nursery() as nursery:
        async with open_test_runtime(store, workflows=[log.job]) as rt:
            await rt.submit(log.job, key="k", run_id="r")

            async def submit_late() -> None:
                await trio.sleep(3)
                await rt.submit(log.job, key="late", run_id="late")

            nursery.start_soon(submit_late)
            await trio.sleep(1)
    assert log.begun == ["a"]
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert await (await rt.submit(log.job, key="late", run_id="late")).result() == "abc"


async def test_submits_until_the_very_end_are_kept_and_disturb_nobody(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore(latency=0.1)
    accepted: list[str] = []

    async def hook(outcome: object) -> None:
        await trio.sleep(0.5)

    async with trio.open_nursery() as nursery:
        async with open_test_runtime(store, workflows=[log.job], on_terminal=hook) as rt:
            await rt.submit(log.job, key="k")

            async def submit_on(name: str) -> None:
                with pytest.raises(StoreClosed):
                    while True:
                        run = await rt.submit(log.job, key=f"{name}{len(accepted)}")
                        accepted.append(run.run_id)

            for name in "abc":
                nursery.start_soon(submit_on, name)
            await trio.sleep(5)
    assert len(accepted) > 100
    async with open_test_runtime(store, workflows=[log.job], max_concurrent_steps=10_000) as rt:
        await trio.sleep(100)
        states = [status.state for run_id in accepted if (status := await rt.status(run_id))]
    assert states == [State.SUCCEEDED] * len(accepted)


async def test_a_resume_in_the_drain_starts_nothing(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    async with trio.open_nursery() as nursery:
        async with open_test_runtime(workflows=[log.job], drain_timeout=100) as rt:
            await rt.submit(log.job, key="k")

            async def resume() -> None:
                await trio.sleep(3)
                await rt.resume_all()

            nursery.start_soon(resume)
            await trio.sleep(1)
    assert log.begun == ["a"]


async def test_the_same_store_can_be_opened_and_left_many_times(
    autojump_clock: trio.testing.MockClock, log: Log
) -> None:
    store = MemoryStore()
    for _ in range(20):
        async with open_test_runtime(store, workflows=[log.job], drain_timeout=0):
            pass
    with pytest.raises(StoreCrashed):
        async with store:
            store.crash()
            await store.durable()
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert await (await rt.submit(log.job, key="k")).result() == "abc"


@pytest.mark.parametrize("crash", [False, True])
async def test_a_shield_in_a_workflow_keeps_no_block_open(
    autojump_clock: trio.testing.MockClock, crash: bool
) -> None:
    """It asks for its next step, which may not start any more, where nobody can cancel it."""

    @step
    async def brief() -> None:
        await trio.sleep(2)

    async def part(ctx: Context) -> None:
        with trio.CancelScope(shield=True):
            await ctx.step(brief)
            await ctx.step(brief)

    @workflow
    async def flow(ctx: Context) -> str:
        await ctx.gather(part, part, ctx.step(brief))
        return "done"

    store = MemoryStore()
    with trio.fail_after(100):
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            await runtime.submit(flow, key="k", run_id="r")
            await trio.sleep(1)
            await runtime.pause("r")
            await trio.sleep(5 * crash)
            if crash:
                store.crash()
                await trio.sleep_forever()
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            await runtime.resume("r")
            run = await runtime.submit(flow, key="k", run_id="r")
            assert await run.result() == "done"


def waits_for(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says the runtime waits for after its block was left."""
    head = "the runtime is closing and waits for code that cannot be stopped: "
    said = [record.getMessage() for record in caplog.records]
    return [message.removeprefix(head) for message in said if message.startswith(head)]


@pytest.mark.parametrize("drain_timeout", [0, 3])
async def test_a_drain_waits_for_a_shielded_step_and_names_it_every_ten_seconds(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, drain_timeout: float
) -> None:
    done = []

    @step(shield=True)
    async def pay() -> str:
        await trio.sleep(60)
        done.append("paid")
        return "paid"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(pay)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], drain_timeout=drain_timeout) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
    assert trio.current_time() == pytest.approx(60, abs=0.1)
    assert waits_for(caplog) == ["step 'pay' of job run r (key k)"] * 6
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="r")).result() == "paid"
    assert done == ["paid"]


async def test_a_drain_reports_its_begin_its_progress_and_its_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @step(timeout=1000)
    async def export() -> None:
        await trio.sleep(25)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(export)

    caplog.set_level(logging.INFO, "keyrun.runtime")
    async with open_test_runtime(workflows=[job], drain_timeout=60) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(1)
        caplog.clear()
    said = [
        (record.event, record.getMessage())  # type: ignore[attr-defined]
        for record in caplog.records
        if "drain" in record.getMessage()
    ]
    name = "step 'export' of job run r (key k)"
    assert said == [
        ("drain_began", f"draining: waiting up to 60 s for {name}"),
        ("draining", f"draining: still waiting for {name}"),
        ("draining", f"draining: still waiting for {name}"),
        ("runtime_drained", "drained in 24.0 s"),
    ]


async def test_a_drain_waits_for_the_thread_of_a_sync_step_and_names_it(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    release, calls = threading.Event(), []

    class Releasing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "cannot be stopped" in record.getMessage() and len(waits_for(caplog)) == 2:
                release.set()

    @step(timeout=1e9)  # virtual time runs ahead of the thread
    def export() -> str:
        calls.append("export")
        release.wait(30)
        return "exported"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(export)

    logger, handler = logging.getLogger("keyrun.runtime"), Releasing()
    logger.addHandler(handler)
    store = MemoryStore()
    try:
        async with open_test_runtime(store, workflows=[job], drain_timeout=1, threads="real") as rt:
            await rt.submit(job, key="k", run_id="r")
            while not calls:
                await trio.sleep(0.01)
    finally:
        logger.removeHandler(handler)
    assert set(waits_for(caplog)) == {"step 'export' of job run r (key k)"}
    async with open_test_runtime(store, workflows=[job], threads="real") as rt:
        assert await (await rt.submit(job, key="k", run_id="r")).result() == "exported"
    assert calls == ["export"]


@pytest.mark.parametrize("is_live", [False, True], ids=["not started", "running"])
async def test_a_thread_that_waits_for_a_run_does_not_hold_the_drain(
    is_live: bool, autojump_clock: trio.testing.MockClock
) -> None:
    raised: list[BaseException] = []

    @step(timeout=None)
    async def endless() -> None:
        await trio.sleep_forever()

    @workflow
    async def other(ctx: Context) -> None:
        await ctx.step(endless)

    @step(timeout=None)
    def wait_for_other() -> None:
        run = current_step().runtime.submit(other, key="other", run_id="other")
        try:
            run.result()
        except BaseException as error:
            raised.append(error)
            raise

    @workflow
    async def waiting(ctx: Context) -> None:
        await ctx.step(wait_for_other)

    store = MemoryStore()
    async with open_test_runtime(
        store,
        workflows=[waiting, other],
        max_concurrent_steps=2 if is_live else 1,
        drain_timeout=10,
    ) as rt:
        await rt.submit(waiting, key="k", run_id="r")
        while await rt.status("other") is None:
            await trio.sleep(1)
        await trio.sleep(1)
        began = trio.current_time()
    assert trio.current_time() - began <= 15
    assert [type(error) for error in raised] == [StoreClosed]
    async with open_test_runtime(store, workflows=[waiting, other], drain_timeout=0) as rt:
        for run_id in ("r", "other"):
            status = await rt.status(run_id)
            assert status is not None
            assert not status.state.terminal


async def test_a_drain_names_workflow_code_that_shields_itself(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow
    async def stubborn(ctx: Context) -> None:
        with trio.CancelScope(shield=True):
            await trio.sleep(40)

    async with open_test_runtime(workflows=[stubborn], drain_timeout=1) as rt:
        await rt.submit(stubborn, key="k", run_id="r")
        await trio.sleep(1)
    assert trio.current_time() == pytest.approx(40, abs=0.1)
    assert set(waits_for(caplog)) == {"the workflow of stubborn run r (key k)"}


@pytest.mark.parametrize("drain_timeout", [0, 7])
async def test_a_run_that_no_table_knows_does_not_hold_the_drain(
    autojump_clock: trio.testing.MockClock, log: Log, drain_timeout: float
) -> None:
    """A defect of Keyrun must not keep a program from ending."""
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[log.job], drain_timeout=drain_timeout) as rt:
        await rt.submit(log.job, key="k", run_id="r")
        await trio.sleep(1)
        (run,) = rt._partition.runs.all_live()
        rt._partition.runs.remove(run)
        left_at = trio.current_time()
    assert trio.current_time() - left_at <= drain_timeout + 5.1
    async with open_test_runtime(store, workflows=[log.job]) as rt:
        assert await (await rt.submit(log.job, key="k", run_id="r")).result() == "abc"


@step(retry=Retry.fixed(max_attempts=3, delay=1000, jitter=0))
async def unavailable() -> None:
    raise TransientError("later")


@workflow
async def sleeper(ctx: Context) -> None:
    await ctx.sleep(1000)


async def _two_sleeps(ctx: Context) -> None:
    async def nap(ctx: Context) -> None:
        await ctx.sleep(1000)

    await ctx.gather(nap, nap)


WAITS: dict[str, Callable[[Context], Awaitable[object]]] = {
    "timer": lambda ctx: ctx.sleep(1000),
    "signal": lambda ctx: ctx.wait_signal("go"),
    "approval": lambda ctx: ctx.approval("manager"),
    "child": lambda ctx: ctx.child(sleeper, key="other"),
    "gather": _two_sleeps,
    "backoff": lambda ctx: ctx.step(unavailable),
}


@pytest.mark.parametrize("ends", ["drain", "cancel", "run_timeout"])
@pytest.mark.parametrize("kind", WAITS)
async def test_a_shield_in_the_workflow_does_not_hold_a_wait(
    autojump_clock: trio.testing.MockClock, kind: str, ends: str
) -> None:
    @workflow
    async def shielded(ctx: Context) -> None:
        with trio.CancelScope(shield=True):
            await WAITS[kind](ctx)

    store, flows = MemoryStore(latency=0.01), [shielded, sleeper]
    limits = Limits(run_timeout=5 if ends == "run_timeout" else None)
    async with open_test_runtime(store, workflows=flows, drain_timeout=2) as rt:
        run = await rt.submit(shielded, key="k", run_id="r", limits=limits)
        await trio.sleep(1)
        if ends == "cancel":
            assert await run.cancel()
            status = await run.status()
            assert status is not None
            assert status.state is State.CANCELLED
        elif ends == "run_timeout":
            with pytest.raises(RunFailed):
                await run.result()
    assert trio.current_time() < 10
    if ends == "drain":
        async with open_test_runtime(store, workflows=flows) as rt:
            await trio.sleep(1)
            assert (await rt.run("r").status()).state is State.WAITING


async def test_a_shielded_wait_is_evicted_and_resumes(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @workflow
    async def shielded(ctx: Context) -> list[object]:
        heard = []
        with trio.CancelScope(shield=True):
            heard.append(await ctx.wait_signal("go"))
        return heard

    async with open_test_runtime(workflows=[shielded], evict_after=1) as rt:
        run = await rt.submit(shielded, key="k", run_id="r")
        await trio.sleep(10)
        await rt.signal("r", "go", 7)
        assert await run.result() == [7]
