"""Interruptions: steps that a crash cut off, and steps that cause the crashes."""

from itertools import pairwise
from typing import Any

import pytest
import trio

from keyrun import (
    Context,
    FailureKind,
    Limits,
    Retry,
    RunFailed,
    RunOutcome,
    State,
    TransientError,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.policies import CircuitBreaker, RateLimit
from keyrun.storage import MemoryStore, StoreError
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore


async def live_through(
    store: MemoryStore, run_ids: list[str], at_most: int = 100, **options: Any
) -> int:
    """Open the store again and again until all runs have ended. Says how often it crashed."""
    for crashes in range(at_most):
        async with open_test_runtime(store, **options) as rt:
            for run_id in run_ids:
                while True:
                    status = await rt.status(run_id)
                    assert status is not None
                    if status.state.terminal:
                        break
                    await trio.sleep(1)
            return crashes
    raise AssertionError(f"still crashing after {at_most} times")


async def test_a_step_that_a_crash_cut_off_is_recorded_and_run_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    begun: list[int] = []

    @step
    async def work() -> str:
        begun.append(current_step().attempt)
        await trio.sleep(10)
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(work)

    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(5)
        store.crash()
    async with open_test_runtime(store, workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        assert not run.newly_submitted
        assert await run.result() == "done"
        told = [entry.event for entry in await rt.history("r")]
    assert begun == [1, 1]
    assert any("interrupted" in what for what in told)


async def test_an_interruption_costs_no_attempt(autojump_clock: trio.testing.MockClock) -> None:
    store = MemoryStore()

    @step(retry=Retry.none())
    async def work() -> str:
        if not survived:
            await trio.sleep_forever()
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        return await ctx.step(work)

    survived = False
    for _ in range(3):
        async with open_test_runtime(store, workflows=[job]) as rt:
            await rt.submit(job, key="k", run_id="r")
            await trio.sleep(5)
            store.crash()
    survived = True
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="r")).result() == "done"


@pytest.mark.parametrize("suspends", [True, False])
async def test_a_step_that_may_run_at_most_once_fails_instead_of_running_again(
    autojump_clock: trio.testing.MockClock, suspends: bool
) -> None:
    store = MemoryStore()
    hook = RecordingHook()
    begun: list[int] = []

    @step(at_most_once=True)
    async def pay() -> None:
        begun.append(current_step().attempt)
        if suspends:
            await trio.sleep(1)
        store.crash()
        await trio.sleep_forever()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(pay)

    async with open_test_runtime(store, workflows=[job], on_terminal=hook) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[job], on_terminal=hook) as rt:
        with pytest.raises(RunFailed, match="at most once") as caught:
            await (await rt.submit(job, key="k", run_id="r")).result()
        assert caught.value.failure.kind is FailureKind.INTERRUPTED
        assert [status.run_id for status in await rt.dead_letters()] == ["r"]
    assert begun == [1]
    assert [outcome.run_id for outcome in hook.outcomes] == ["r"]


@pytest.mark.parametrize("suspends", [True, False])
@pytest.mark.parametrize("slots", [4, 256])
async def test_a_step_that_kills_the_process_ends_as_a_dead_letter_and_spares_its_neighbours(
    autojump_clock: trio.testing.MockClock, suspends: bool, slots: int
) -> None:
    store = MemoryStore()
    hook = RecordingHook()
    kills = 0

    @step
    async def kill() -> None:
        nonlocal kills
        if suspends:
            await trio.sleep(1)
        kills += 1
        store.crash()
        await trio.sleep_forever()

    @step
    async def work() -> str:
        await trio.sleep(3)
        return "done"

    @workflow
    async def killer(ctx: Context) -> None:
        await ctx.step(kill)

    @workflow
    async def neighbour(ctx: Context) -> str:
        await ctx.step(work)
        return await ctx.step(work)

    run_ids = ["killer", *(f"n{n}" for n in range(50))]
    options: dict[str, Any] = {
        "workflows": [killer, neighbour],
        "limits": Limits(max_interruptions=3),
        "max_concurrent_steps": slots,
        "on_terminal": hook,
    }
    async with open_test_runtime(store, **options) as rt:
        await rt.pause_all()
        for n in range(50):
            await rt.submit(neighbour, key=f"n{n}", run_id=f"n{n}")
        await rt.submit(killer, key="killer", run_id="killer")
    async with open_test_runtime(store, **options) as rt:
        await rt.resume_all()
        await trio.sleep_forever()
    crashes = await live_through(store, run_ids, **options)
    assert crashes < 8
    assert kills == crashes + 1
    told = {outcome.run_id: outcome for outcome in hook.outcomes}
    failure = told["killer"].failure
    assert failure is not None
    assert (told["killer"].state, failure.kind) == (State.FAILED, FailureKind.INTERRUPTED)
    assert "3 crashes" in failure.reason
    assert all(told[f"n{n}"].state is State.SUCCEEDED for n in range(50))
    async with open_test_runtime(store, **options) as rt:
        assert [status.run_id for status in await rt.dead_letters()] == ["killer"]


async def test_suspects_run_one_at_a_time(autojump_clock: trio.testing.MockClock) -> None:
    """From the second interruption in a row on."""
    store = MemoryStore()
    running = most = 0

    @step
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        try:
            await trio.sleep(10)
        finally:
            running -= 1

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(work)

    seen: list[int] = []
    for opened in range(3):
        most = 0
        async with open_test_runtime(store, workflows=[job]) as rt:
            handles = [await rt.submit(job, key=f"k{n}", run_id=f"r{n}") for n in range(5)]
            await trio.sleep(5)
            if opened < 2:
                store.crash()
            for handle in handles:
                await handle.result()
            assert trio.current_time() == pytest.approx(60, abs=1)
        seen.append(most)
    assert seen == [5, 5, 1]


async def suspected(store: MemoryStore, job: Workflow[int, None], runs: int) -> None:
    """Crash twice while these runs are at their steps."""
    for _ in range(2):
        async with open_test_runtime(store, workflows=[job]) as rt:
            for number in range(runs):
                await rt.submit(job, number, key=f"k{number}", run_id=f"r{number}")
            await trio.sleep(5)
            store.crash()


async def test_a_suspect_that_waits_for_another_is_not_called_once_its_circuit_is_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store, times = MemoryStore(), []

    @step(
        retry=Retry.none(),
        breaker=CircuitBreaker(
            failure_rate=1.0, minimum_calls=2, open_for=100, half_open_successes=1
        ),
    )
    async def broken(seconds: float) -> None:
        times.append(trio.current_time() - opened)
        await trio.sleep(seconds)
        raise TransientError("as ever")

    @step
    async def long() -> None:
        await trio.sleep(30)

    @workflow
    async def job(ctx: Context, number: int) -> None:
        if number == 0:
            await ctx.step(long)
        else:
            await ctx.step(broken, 10 if number > 0 else 1)

    opened = 0.0
    await suspected(store, job, 3)
    times.clear()
    opened = trio.current_time()
    async with open_test_runtime(store, workflows=[job]) as rt:
        # By now the two suspects have passed their gate and wait for `long`.
        await trio.sleep(1)
        for number in (-1, -2):
            await rt.submit(job, number, key=f"k{number}")
        await trio.sleep(300)
    # The circuit opens at 2 s, and each probe fails after 10 s.
    assert times == pytest.approx([1, 1, 102, 212], abs=0.1)


async def test_suspects_that_waited_for_each_other_do_not_come_faster_than_their_rate(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store, times = MemoryStore(), []

    @step(rate=RateLimit(1, per=1))
    async def paced() -> None:
        times.append(trio.current_time())
        await trio.sleep(0.1 if calm else 10)

    @step
    async def long() -> None:
        await trio.sleep(30)

    @workflow
    async def job(ctx: Context, number: int) -> None:
        await ctx.step(paced if number else long)

    calm = False
    await suspected(store, job, 5)
    calm = True
    times.clear()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await trio.sleep(60)
        assert rt.statistics().running_steps == 0
    gaps = [late - early for early, late in pairwise(times)]
    assert len(gaps) == 3
    assert min(gaps) >= 0.999


async def test_innocent_neighbours_of_a_suspect_run_on_beside_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()

    @step
    async def work(seconds: float) -> None:
        await trio.sleep(seconds)

    @workflow
    async def job(ctx: Context, seconds: float) -> float:
        await ctx.step(work, seconds)
        return trio.current_time()

    for _ in range(2):
        async with open_test_runtime(store, workflows=[job]) as rt:
            await rt.submit(job, 100, key="suspect", run_id="suspect")
            await trio.sleep(5)
            store.crash()
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, 1.0, key="k")).result() < 20
        assert await (await rt.submit(job, 100, key="suspect", run_id="suspect")).result() > 100


@pytest.mark.parametrize("outcome", ["success", "failure"])
async def test_interruptions_in_a_row_are_counted_anew_after_an_outcome(
    autojump_clock: trio.testing.MockClock, outcome: str
) -> None:
    """Five crashes in all, but never more than one without an outcome in between: no suspect."""
    store = MemoryStore()
    suspects: list[bool] = []

    @step(retry=Retry.fixed(max_attempts=20, delay=1))
    async def work() -> None:
        suspects.append(current_step().suspect)
        await trio.sleep(4)
        if outcome == "failure" and current_step().attempt < 6:
            raise TransientError("again")

    @workflow
    async def job(ctx: Context) -> None:
        for _ in range(6):
            await ctx.step(work)

    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(2)
        store.crash()
    for _ in range(4):
        async with open_test_runtime(store, workflows=[job]) as rt:
            await trio.sleep(6.5)
            store.crash()
    assert len(suspects) >= 9
    assert not any(suspects)


async def test_a_clean_drain_interrupts_nothing(autojump_clock: trio.testing.MockClock) -> None:
    store = FragileStore()
    begun: list[int] = []

    @step(at_most_once=True)
    async def once() -> None:
        begun.append(current_step().attempt)
        await trio.sleep(5)

    @step(retry=Retry.none())
    async def long() -> str:
        begun.append(current_step().attempt)
        if len(begun) < 6:
            await trio.sleep_forever()
        return "done"

    @workflow
    async def job(ctx: Context) -> str:
        await ctx.step(once)
        return await ctx.step(long)

    for _ in range(4):
        async with open_test_runtime(store, workflows=[job], drain_timeout=1) as rt:
            run = await rt.submit(job, key="k", run_id="r")
            await trio.sleep(20)
        assert store.keys("begun") == []
    begun += [1]
    async with open_test_runtime(store, workflows=[job]) as rt:
        run = await rt.submit(job, key="k", run_id="r")
        assert await run.result() == "done"
        assert not any("interrupted" in entry.event for entry in await rt.history("r"))
    assert begun == [1] * 7


async def test_steps_in_a_gather_are_interrupted_each_by_itself(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    begun: list[str] = []

    @step
    async def work(name: str, seconds: float) -> str:
        begun.append(name)
        await trio.sleep(seconds)
        return name

    @workflow
    async def job(ctx: Context) -> list[str]:
        return list(
            await ctx.gather(
                ctx.step(work, "short", 1), ctx.step(work, "a", 10), ctx.step(work, "b", 10)
            )
        )

    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep(5)
        store.crash()
    async with open_test_runtime(store, workflows=[job]) as rt:
        assert await (await rt.submit(job, key="k", run_id="r")).result() == ["short", "a", "b"]
        told = [entry for entry in await rt.history("r") if "interrupted" in entry.event]
    assert sorted(begun) == ["a", "a", "b", "b", "short"]
    assert len(told) == 2


async def test_a_step_that_kills_inside_a_gather_is_found_too(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    outcomes: list[RunOutcome] = []

    async def hook(outcome: RunOutcome) -> None:
        outcomes.append(outcome)

    @step
    async def work() -> None:
        await trio.sleep(1)

    @step
    async def kill() -> None:
        store.crash()
        await trio.sleep_forever()

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.gather(ctx.step(work), ctx.step(kill), ctx.step(work))

    options: dict[str, Any] = {
        "workflows": [job],
        "limits": Limits(max_interruptions=2),
        "on_terminal": hook,
    }
    async with open_test_runtime(store, **options) as rt:
        await rt.submit(job, key="k", run_id="r")
        await trio.sleep_forever()
    await live_through(store, ["r"], **options)
    assert [outcome.run_id for outcome in outcomes] == ["r"]
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.kind is FailureKind.INTERRUPTED
    assert outcomes[0].failure.step == "g1.1/kill"


class Unreadable(MemoryStore):
    """Takes records, and cannot be read once `broken` is set."""

    broken = False

    async def _get(self, table: str, key: bytes) -> bytes | None:
        if self.broken:
            raise StoreError("the disk gave up")
        return await super()._get(table, key)


async def test_what_may_run_once_and_was_cut_off_by_a_read_that_failed_does_not_run_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = Unreadable()
    begun: list[str] = []

    @step(at_most_once=True)
    async def once() -> None:
        begun.append("once")
        await trio.sleep(60)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(once)

    @workflow
    async def napping(ctx: Context) -> None:
        await ctx.sleep(20)

    with pytest.raises(StoreError):
        async with open_test_runtime(store, workflows=[job, napping]) as rt:
            await rt.submit(napping, key="other")
            await rt.submit(job, key="k", run_id="r")
            await trio.sleep(10)
            store.broken = True
            await trio.sleep(20)
    store.broken = False
    async with open_test_runtime(store, workflows=[job, napping]) as rt:
        with pytest.raises(RunFailed) as caught:
            await (await rt.submit(job, key="k", run_id="r")).result()
    assert caught.value.failure.kind is FailureKind.INTERRUPTED
    assert begun == ["once"]
