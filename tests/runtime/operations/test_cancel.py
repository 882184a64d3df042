"""Cancel: settled at once where nothing runs, overriding any outcome where something does."""

from collections.abc import Awaitable, Callable

import pytest
import trio

from keyrun import (
    Context,
    PermanentError,
    Retry,
    RunCancelled,
    State,
    StepFailed,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore


@pytest.fixture
def hook() -> RecordingHook:
    return RecordingHook()


@step
async def nap(seconds: float) -> str:
    await trio.sleep(seconds)
    return "rested"


@workflow
async def napping(ctx: Context, seconds: float) -> str:
    return await ctx.step(nap, seconds)


async def test_a_pending_run_is_settled_before_cancel_returns(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    async with open_test_runtime(workflows=[napping], on_terminal=hook) as rt:
        first = await rt.submit(napping, 10, key="k")
        pending = await rt.submit(napping, 10, key="k", headers={"trace": "t1"})
        last = await rt.submit(napping, 10, key="k")
        await trio.testing.wait_all_tasks_blocked()
        assert await pending.cancel() is True
        status = await pending.status()
        assert status is not None
        assert status.state is State.CANCELLED
        assert status.reason is None
        assert status.started_at is None
        assert status.headers == {"trace": "t1"}
        assert trio.current_time() == 0
        with pytest.raises(RunCancelled) as caught:
            await pending.result()
        assert caught.value.reason is None
        assert await first.result() == await last.result() == "rested"
        assert trio.current_time() == pytest.approx(20)
    told = [outcome for outcome in hook.outcomes if outcome.run_id == pending.run_id]
    assert [(outcome.state, outcome.headers) for outcome in told] == [
        (State.CANCELLED, {"trace": "t1"})
    ]
    assert len(hook.outcomes) == 3


async def test_a_pending_run_that_is_cancelled_by_several_at_once_ends_once(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    answers: list[bool] = []
    async with open_test_runtime(
        MemoryStore(latency=1), workflows=[napping], on_terminal=hook
    ) as rt:
        await rt.submit(napping, 10, key="k")
        pending = await rt.submit(napping, 10, key="k")

        async def cancel() -> None:
            answers.append(await pending.cancel())
            status = await pending.status()
            assert status is not None
            assert status.state is State.CANCELLED

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(cancel)
        assert rt.statistics().backlog.pending == 0
        await (await rt.submit(napping, 1, key="k")).result()
    assert sorted(answers) == [False, False, True]
    assert len(hook.outcomes) == 3


async def test_a_delayed_run_is_settled_before_cancel_returns_and_never_comes_back(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[napping], on_terminal=hook) as rt:
        delayed = await rt.submit(napping, 1, key="k", run_id="d", delay=100)
        assert await delayed.cancel()
        assert rt.statistics().backlog.pending == 0
    assert store.keys("delayed") == []
    async with open_test_runtime(store, workflows=[napping], on_terminal=hook) as rt:
        await trio.sleep(200)
        status = await rt.status("d")
        assert status is not None
        assert status.state is State.CANCELLED
    assert len(hook.outcomes) == 1


@pytest.mark.parametrize("ticks", range(0, 40, 2))
async def test_a_delayed_run_can_be_cancelled_just_when_it_gets_its_place(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook, ticks: int
) -> None:
    """Before it is due, while its place is being committed, and after that."""
    store = FragileStore(latency=1)
    async with open_test_runtime(store, workflows=[napping], on_terminal=hook) as rt:
        delayed = await rt.submit(napping, 1, key="k", run_id="delayed", delay=10)
        busy = await rt.submit(napping, 50, key="k", run_id="busy")
        await trio.sleep(6 + ticks / 10)
        assert await delayed.cancel()
        await busy.result()
        await trio.sleep(100)
        assert rt.statistics().backlog.pending == 0
        assert rt.statistics().keys == 0
    assert store.keys("queue") == store.keys("delayed") == []
    assert [(outcome.run_id, outcome.state) for outcome in hook.outcomes] == [
        ("delayed", State.CANCELLED),
        ("busy", State.SUCCEEDED),
    ]


@pytest.mark.parametrize("waits_in", ["sleep", "backoff"])
async def test_a_run_that_waits_is_settled_before_cancel_returns(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook, waits_in: str
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=1000))
    async def fail() -> None:
        raise TransientError("again")

    @workflow
    async def job(ctx: Context) -> None:
        if waits_in == "sleep":
            await ctx.sleep(1000)
        else:
            await ctx.step(fail)

    async with open_test_runtime(workflows=[job, napping], on_terminal=hook) as rt:
        run = await rt.submit(job, key="k")
        after = await rt.submit(napping, 1, key="k")
        await trio.sleep(5)
        status = await run.status()
        assert status is not None
        assert status.state is State.WAITING
        assert await run.cancel()
        status = await run.status()
        assert status is not None
        assert status.state is State.CANCELLED
        assert trio.current_time() == pytest.approx(5)
        assert await after.result() == "rested"
    assert [outcome.state for outcome in hook.outcomes] == [State.CANCELLED, State.SUCCEEDED]
    assert hook.outcomes[0].failure is None


async def succeed_anyway() -> str:
    try:
        await trio.sleep(1000)
    except trio.Cancelled:
        return "made it"
    raise AssertionError


async def fail_for_now() -> str:
    try:
        await trio.sleep(1000)
    finally:
        raise TransientError("at the wrong moment")


async def fail_for_good() -> str:
    try:
        await trio.sleep(1000)
    finally:
        raise PermanentError("at the wrong moment")


@pytest.mark.parametrize("work", [succeed_anyway, fail_for_now, fail_for_good, None])
async def test_cancel_overrides_whatever_comes_of_a_running_step(
    autojump_clock: trio.testing.MockClock,
    hook: RecordingHook,
    work: Callable[[], Awaitable[str]] | None,
) -> None:
    @step
    async def run_on() -> str:
        return await (work() if work else nap.function(1000))

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(run_on)

    async with open_test_runtime(workflows=[job, napping], on_terminal=hook) as rt:
        run = await rt.submit(job, key="k")
        after = await rt.submit(napping, 1, key="k")
        await trio.sleep(5)
        assert await run.cancel() is True
        with pytest.raises(RunCancelled):
            await run.result()
        assert trio.current_time() == pytest.approx(5)
        assert await run.cancel() is False
        assert await rt.dead_letters() == []
        assert await after.result() == "rested"
    assert [outcome.state for outcome in hook.outcomes] == [State.CANCELLED, State.SUCCEEDED]
    assert hook.outcomes[0].reason is None
    assert hook.outcomes[0].result is None


async def test_a_shielded_step_is_only_told_and_runs_to_its_end(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    seen: list[bool] = []

    @step(shield=True)
    async def careful() -> None:
        seen.append(current_step().cancel_requested)
        await trio.sleep(10)
        seen.append(current_step().cancel_requested)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(careful)
        await ctx.step(nap, 1000)

    async with open_test_runtime(workflows=[job], on_terminal=hook) as rt:
        run = await rt.submit(job, key="k")
        await trio.sleep(5)
        assert await run.cancel() is True
        status = await run.status()
        assert status is not None
        assert status.state is State.CANCELLING
        assert await run.cancel() is True
        with pytest.raises(RunCancelled):
            await run.result()
        assert trio.current_time() == pytest.approx(10)
        status = await run.status()
        assert status is not None
        assert (status.state, status.steps_done) == (State.CANCELLED, 1)
    assert seen == [False, True]
    assert len(hook.outcomes) == 1


@pytest.mark.parametrize("then", ["sleep", "retry", "gather"])
async def test_after_a_shielded_step_nothing_more_is_waited_for(
    autojump_clock: trio.testing.MockClock, then: str
) -> None:
    @step(shield=True, retry=Retry.fixed(max_attempts=9, delay=500))
    async def careful() -> None:
        await trio.sleep(10)
        if then == "retry":
            raise TransientError("again")

    @workflow
    async def job(ctx: Context) -> None:
        if then == "gather":
            await ctx.gather(ctx.step(careful), ctx.step(nap, 1000), lambda ctx: ctx.sleep(1000))
        await ctx.step(careful)
        await ctx.sleep(1000)

    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k")
        await trio.sleep(5)
        assert await run.cancel() is True
        with pytest.raises(RunCancelled):
            await run.result()
        assert trio.current_time() == pytest.approx(10)


async def test_what_runs_beside_a_shielded_step_is_cancelled_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ends: dict[str, float] = {}

    @step(shield=True)
    async def careful() -> None:
        await trio.sleep(10)
        ends["careful"] = trio.current_time()

    @step
    async def beside() -> None:
        try:
            await trio.sleep(1000)
        finally:
            ends["beside"] = trio.current_time()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.gather(ctx.step(careful), ctx.step(beside))

    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k")
        await trio.sleep(5)
        assert await run.cancel() is True
        with pytest.raises(RunCancelled):
            await run.result()
    assert ends == pytest.approx({"careful": 10, "beside": 5}, abs=0.1)


async def test_the_workflows_own_cancel_wins_and_keeps_its_reason(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    @step(shield=True)
    async def careful() -> bool:
        await trio.sleep(10)
        return current_step().cancel_requested

    @workflow
    async def job(ctx: Context) -> None:
        if await ctx.step(careful):
            assert ctx.cancel_requested
            ctx.cancel("put everything back")

    async with open_test_runtime(workflows=[job], on_terminal=hook) as rt:
        run = await rt.submit(job, key="k")
        await trio.sleep(5)
        assert await run.cancel()
        with pytest.raises(RunCancelled) as caught:
            await run.result()
        assert caught.value.reason == "put everything back"
    assert [outcome.reason for outcome in hook.outcomes] == ["put everything back"]


async def test_a_workflow_cannot_start_anything_in_a_finally(
    autojump_clock: trio.testing.MockClock,
) -> None:
    done: list[str] = []

    @step
    async def note(what: str) -> None:
        done.append(what)

    @workflow
    async def job(ctx: Context) -> None:
        try:
            await ctx.step(nap, 1000)
        except StepFailed:
            raise
        finally:
            await ctx.step(note, "cleaned up")

    async with open_test_runtime(workflows=[job]) as rt:
        run = await rt.submit(job, key="k")
        await trio.sleep(5)
        assert await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
    assert done == []


async def test_after_the_end_and_for_unknown_ids_there_is_nothing_to_cancel(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    async with open_test_runtime(workflows=[napping], on_terminal=hook) as rt:
        run = await rt.submit(napping, 1, key="k")
        await run.result()
        assert await run.cancel() is False
        assert await rt.cancel("nobody") is False
        status = await run.status()
        assert status is not None
        assert status.state is State.SUCCEEDED
        await trio.testing.wait_all_tasks_blocked()
        assert rt.statistics().keys == 0
    assert len(hook.outcomes) == 1


async def test_an_end_that_is_staged_wins_and_cancel_waits_for_it(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    async with open_test_runtime(
        MemoryStore(latency=3), workflows=[napping], on_terminal=hook
    ) as rt:
        run = await rt.submit(napping, 10, key="k")
        assert trio.current_time() == pytest.approx(6)
        await trio.sleep(10.5)
        assert trio.current_time() == pytest.approx(16.5)
        assert await run.cancel() is False
        assert trio.current_time() == pytest.approx(19, abs=0.1)
        status = await run.status()
        assert status is not None
        assert (status.state, status.result) == (State.SUCCEEDED, "rested")
    assert [outcome.state for outcome in hook.outcomes] == [State.SUCCEEDED]


async def test_an_end_that_is_only_staged_is_not_shown(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_test_runtime(MemoryStore(latency=3), workflows=[napping]) as rt:
        run = await rt.submit(napping, 10, key="k")
        await trio.sleep(10.5)
        status = await run.status()
        assert status is not None
        assert status.state is State.SUCCEEDED
        assert trio.current_time() == pytest.approx(19, abs=0.1)


async def test_a_request_survives_a_crash_before_it_was_settled(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    store = MemoryStore()
    begun: list[int] = []

    @step(shield=True)
    async def careful() -> None:
        begun.append(current_step().attempt)
        await trio.sleep(100)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(careful)

    async with open_test_runtime(store, workflows=[job], on_terminal=hook) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(5)
        assert await rt.cancel("r") is True
        store.crash()
    assert hook.outcomes == []
    async with open_test_runtime(store, workflows=[job, napping], on_terminal=hook) as rt:
        assert await (await rt.submit(napping, 1, key="k")).result() == "rested"
        status = await rt.status("r")
        assert status is not None
        assert (status.state, status.reason) == (State.CANCELLED, None)
    assert begun == [1]
    assert hook.outcomes[0].run_id == "r"
    assert len(hook.outcomes) == 2


@pytest.mark.parametrize("crash_after", range(1, 8))
async def test_a_cancel_that_was_answered_is_kept_whenever_the_process_dies(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook, crash_after: int
) -> None:
    store = FragileStore()
    answered = False
    async with open_test_runtime(store, workflows=[napping], on_terminal=hook) as rt:
        await rt.submit(napping, 50, key="k", run_id="r")
        await trio.sleep(5)
        store.crash_at = store.commits + crash_after
        answered = await rt.cancel("r")
        await trio.sleep(5)
        store.crash()
    store.crash_at = None
    async with open_test_runtime(store, workflows=[napping], on_terminal=hook) as rt:
        await trio.sleep(500)
        status = await rt.status("r")
    assert status is not None
    assert status.state is (State.CANCELLED if answered else State.SUCCEEDED)
    assert {outcome.state for outcome in hook.outcomes} == {status.state}


async def test_a_quarantined_run_can_be_cancelled_and_releases_its_key(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    @workflow
    async def gone(ctx: Context) -> None:
        await ctx.step(nap, 1000)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[gone]) as rt:
        await rt.submit(gone, key="k", run_id="r")
        await trio.sleep(5)
        store.crash()
    async with open_test_runtime(store, workflows=[napping], on_terminal=hook) as rt:
        after = await rt.submit(napping, 1, key="k", run_id="after")
        await trio.testing.wait_all_tasks_blocked()
        status = await rt.status("r")
        assert status is not None
        assert status.state is State.QUARANTINED
        assert await rt.cancel("r") is True
        assert await after.result() == "rested"
    assert [outcome.run_id for outcome in hook.outcomes] == ["r", "after"]


@step
async def quick() -> None:
    pass


@workflow
async def working(ctx: Context) -> None:
    await ctx.step(nap, 0.1)
    await ctx.step(quick)
    await ctx.step(quick)
    await ctx.step(nap, 100)


async def test_what_is_cancelled_before_it_is_driven_again_has_all_its_steps_in_its_end(
    autojump_clock: trio.testing.MockClock, hook: RecordingHook
) -> None:
    store = MemoryStore()
    runs = [f"r{number}" for number in range(30)]
    async with open_test_runtime(store, workflows=[working]) as rt:
        for run in runs:
            await rt.submit(working, key=run, run_id=run)
        await trio.sleep(1)
        store.crash()
    async with open_test_runtime(store, workflows=[working], on_terminal=hook) as rt:
        # Some are in memory by now, others are not.
        async with trio.open_nursery() as nursery:
            for run in runs:
                nursery.start_soon(rt.cancel, run)
    assert {outcome.run_id: outcome.steps_done for outcome in hook.outcomes} == dict.fromkeys(
        runs, 3
    )


async def test_a_cancel_that_crosses_a_forget_leaves_nothing_behind(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @workflow
    async def job(ctx: Context) -> None:
        pass

    store = FragileStore(latency=0.1)
    async with open_test_runtime(store, workflows=[job]) as rt:
        await (await rt.submit(job, key="k", run_id="r", delay=1)).result()
        await trio.sleep(1)
        answers: list[bool] = []

        async def cancel() -> None:
            answers.append(await rt.cancel("r"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.forget, "r")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(cancel)
        assert answers == [False]
        assert await rt.status("r") is None
    assert store.keys("status") == store.keys("ended") == []
