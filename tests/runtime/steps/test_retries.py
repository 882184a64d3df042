"""Attempts: how often a step runs, and when it runs again."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from math import nan
from random import Random
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    FailureKind,
    Limits,
    PermanentError,
    Retry,
    RunFailed,
    State,
    StepFailed,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime

tries: list[tuple[int, float]] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    tries.clear()


def note() -> int:
    attempt = current_step().attempt
    tries.append((attempt, trio.current_time()))
    return attempt


@step
async def transient() -> None:
    raise TransientError(f"attempt {note()}")


@pytest.mark.parametrize("most", [1, 3])
async def test_a_transient_error_is_retried_exactly_max_attempts_times(
    autojump_clock: MockClock, most: int
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(transient.options(retry=Retry.fixed(max_attempts=most)))

    hook = RecordingHook()
    async with open_test_runtime(workflows=[flow], on_terminal=hook) as runtime:
        run = await runtime.submit(flow, key="k")
        with pytest.raises(RunFailed) as caught:
            await run.result()
        assert len(await runtime.dead_letters()) == 1
    failure = caught.value.failure
    assert failure.kind is FailureKind.STEP_FAILED
    assert failure.reason.endswith(f"TransientError: attempt {most}")
    assert [attempt for attempt, _ in tries] == list(range(1, most + 1))
    assert [(each.state, each.step) for each in hook.outcomes] == [(State.FAILED, "transient")]


@pytest.mark.parametrize(
    ("error", "policy", "attempts", "kind"),
    [
        (PermanentError("x"), Retry.fixed(), 1, FailureKind.PERMANENT_ERROR),
        (ValueError("x"), Retry.fixed(), 3, FailureKind.STEP_FAILED),
        (ValueError("x"), Retry.fixed(retry_on=(OSError,)), 1, FailureKind.PERMANENT_ERROR),
        (ConnectionError("x"), Retry.fixed(retry_on=(OSError,)), 3, FailureKind.STEP_FAILED),
        (
            ConnectionError("x"),
            Retry.fixed(retry_on=(OSError,), never_retry_on=(ConnectionError,)),
            1,
            FailureKind.PERMANENT_ERROR,
        ),
        (ExceptionGroup("several", [ValueError("x")]), Retry.none(), 1, FailureKind.STEP_FAILED),
    ],
)
async def test_the_policy_says_what_is_tried_again(
    autojump_clock: MockClock,
    error: Exception,
    policy: Retry,
    attempts: int,
    kind: FailureKind,
) -> None:
    @step(retry=policy)
    async def fail() -> None:
        note()
        raise error

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(fail)

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k")).result()
    assert caught.value.failure.kind is kind
    assert len(tries) == attempts


async def test_a_step_that_succeeds_at_last_has_succeeded(autojump_clock: MockClock) -> None:
    @step(retry=Retry.fixed(max_attempts=3, delay=5, jitter=0))
    async def third_time_lucky() -> int:
        if note() < 3:
            raise TransientError("not yet")
        return 7

    @workflow
    async def flow(ctx: Context) -> int:
        return await ctx.step(third_time_lucky)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        assert await run.result() == 7
        events = [happening.event for happening in await runtime.history(run.run_id)]
        assert events.count("attempt_failed") == 2
    began = tries[0][1]
    waits = [time - began for _, time in tries]
    assert waits == pytest.approx([0, 5, 10], abs=0.01)


async def test_delays_are_those_the_policy_gives_for_the_run_id(autojump_clock: MockClock) -> None:
    policy = Retry.exponential(max_attempts=4, base=10)

    @workflow(retry=policy)
    async def flow(ctx: Context) -> None:
        await ctx.step(transient)

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(flow, key="k", run_id="r-1")).result()
        told = [happening.delay for happening in await runtime.history("r-1")]
    times = [time for _, time in tries]
    waits = [after - before for before, after in pairwise(times)]
    expected = [policy.delay_for("r-1", "transient", attempt) for attempt in (1, 2, 3)]
    assert waits == pytest.approx(expected, abs=0.01)
    assert [delay for delay in told if delay is not None] == expected


@pytest.mark.parametrize("crash", [False, True])
async def test_after_a_restart_only_the_rest_of_a_backoff_is_waited(
    autojump_clock: MockClock, crash: bool
) -> None:
    @workflow(retry=Retry.fixed(max_attempts=2, delay=100, jitter=0))
    async def flow(ctx: Context) -> None:
        await ctx.step(transient)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(40)
        status = await runtime.status("r")
        assert status is not None
        assert (status.state, status.waiting_on) == (State.WAITING, "backoff")
        if crash:
            store.crash()
            await trio.sleep_forever()
    await trio.sleep(20)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(flow, key="k", run_id="r")).result()
    assert [attempt for attempt, _ in tries] == [1, 2]
    assert tries[1][1] - tries[0][1] == pytest.approx(100, abs=0.2)


async def test_a_failed_attempt_that_is_stored_never_counts_as_success(
    autojump_clock: MockClock,
) -> None:
    @step(retry=Retry.fixed(max_attempts=3, delay=10))
    async def fail() -> str:
        note()
        raise TransientError("no")

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(fail)

    store = MemoryStore()
    for _ in range(2):
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            await runtime.submit(flow, key="k", run_id="r")
            await trio.sleep(6)
            store.crash()
            await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(flow, key="k", run_id="r")).result()
    assert [attempt for attempt, _ in tries] == [1, 2, 3]


async def test_a_clock_that_is_set_back_does_not_lengthen_a_backoff(
    autojump_clock: MockClock,
) -> None:
    jump = 0.0

    def wall() -> float:
        return 2_000_000.0 + trio.current_time() + jump

    @workflow(retry=Retry.fixed(max_attempts=2, delay=100, jitter=0))
    async def flow(ctx: Context) -> None:
        await ctx.step(transient)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow], wall=wall) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
    jump = -5000
    reopened = trio.current_time()
    async with open_test_runtime(store, workflows=[flow], wall=wall) as runtime:
        with pytest.raises(RunFailed):
            await (await runtime.submit(flow, key="k", run_id="r")).result()
    assert tries[1][1] - reopened == pytest.approx(90, abs=1)


async def test_the_deadline_of_the_run_ends_a_backoff(autojump_clock: MockClock) -> None:
    @workflow(limits=Limits(run_timeout=50), retry=Retry.fixed(max_attempts=9, delay=30, jitter=0))
    async def flow(ctx: Context) -> None:
        await ctx.step(transient)

    async with open_test_runtime(workflows=[flow]) as runtime:
        with pytest.raises(RunFailed) as caught:
            await (await runtime.submit(flow, key="k")).result()
        assert trio.current_time() == pytest.approx(50, abs=0.2)
        assert not await runtime.dead_letters()
    failure = caught.value.failure
    assert failure.kind is FailureKind.RUN_TIMEOUT
    assert failure.elapsed == pytest.approx(50, abs=0.2)
    assert failure.cause is not None
    assert failure.cause.kind is FailureKind.STEP_FAILED
    assert failure.cause.reason.endswith("TransientError: attempt 2")
    assert failure.step == "transient"
    assert [attempt for attempt, _ in tries] == [1, 2]


async def test_a_backoff_holds_no_slot(autojump_clock: MockClock) -> None:
    @step
    async def quick() -> float:
        return trio.current_time()

    @workflow(retry=Retry.fixed(max_attempts=2, delay=1000))
    async def backing_off(ctx: Context) -> None:
        await ctx.step(transient)

    @workflow
    async def other(ctx: Context) -> float:
        return await ctx.step(quick)

    async with open_test_runtime(workflows=[backing_off, other], max_concurrent_steps=1) as runtime:
        await runtime.submit(backing_off, key="a")
        await trio.sleep(1)
        assert await (await runtime.submit(other, key="b")).result() < 2


async def test_a_handled_failure_does_not_fail_the_run(autojump_clock: MockClock) -> None:
    causes: list[BaseException | None] = []

    @workflow(retry=Retry.none())
    async def flow(ctx: Context) -> list[str]:
        try:
            await ctx.step(transient)
        except StepFailed as error:
            causes.append(error.__cause__)
            return [str(error.failure.kind), error.step or "", str(error)]
        return []

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        kind, name, reason = await run.result()
        assert not await runtime.dead_letters()
    assert (kind, name) == ("step_failed", "transient")
    assert "TransientError: attempt 1" in reason
    assert [type(cause) for cause in causes] == [TransientError]


async def test_a_thousand_runs_end_exactly_as_the_faults_say(autojump_clock: MockClock) -> None:
    faults = Random(20_241)
    plan = {f"run-{n}": [faults.random() < 0.2 for _ in range(4)] for n in range(1000)}
    # A fifth of attempts fail, so all four of them rarely do: some are made to.
    for n in range(0, 1000, 50):
        plan[f"run-{n}"] = [True] * 4

    @step(retry=Retry.exponential(max_attempts=4, base=0.1))
    async def unreliable() -> int:
        here = current_step()
        if here.attempt % 2:
            await trio.sleep(0.01)
        if plan[here.run_id][here.attempt - 1]:
            raise TransientError("a fault")
        return here.attempt

    @workflow
    async def flow(ctx: Context) -> int:
        return await ctx.step(unreliable)

    hook = RecordingHook()
    async with open_test_runtime(workflows=[flow], on_terminal=hook) as runtime:
        runs = [
            await runtime.submit(flow, key=f"key-{n % 40}", run_id=f"run-{n}") for n in range(1000)
        ]
        ends: dict[str, Any] = {}
        for run in runs:
            try:
                ends[run.run_id] = await run.result()
            except RunFailed as error:
                ends[run.run_id] = None if error.failure.attempt == 4 else error
        dead = {letter.run_id for letter in await runtime.dead_letters(limit=2000)}
    expected = {
        run_id: None if all(fails) else fails.index(False) + 1 for run_id, fails in plan.items()
    }
    assert ends == expected
    assert dead == {run_id for run_id, end in expected.items() if end is None}
    assert len(dead) >= 20
    assert len(hook.outcomes) == 1000


@pytest.mark.parametrize(("said", "waited"), [(90.0, 90.0), (2.0, 10.0), (0.0, 10.0)])
async def test_an_error_can_say_how_long_to_wait_at_least_and_a_crash_does_not_shorten_that(
    autojump_clock: MockClock, said: float, waited: float
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=10, jitter=0))
    async def busy() -> None:
        if note() == 1:
            raise TransientError("busy", retry_after=said)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(busy)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(1)
        store.crash()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        await (await runtime.submit(flow, key="k", run_id="r")).result()
    (_, first), (_, second) = tries
    assert second - first == pytest.approx(waited, abs=0.1)


class WithoutInit(TransientError):
    def __init__(self, order: str) -> None:
        self.order = order


class Property(TransientError):
    @property
    def retry_after(self) -> float:
        raise LookupError("no header")

    @retry_after.setter
    def retry_after(self, seconds: object) -> None: ...


def text() -> TransientError:
    return TransientError("busy", retry_after="5")  # type: ignore[arg-type]


def assigned(seconds: Any) -> TransientError:
    error = TransientError("busy")
    error.retry_after = seconds
    return error


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (text, "retry_after must be a number, got '5'"),
        (partial(TransientError, retry_after=10**400), "retry_after must fit into 64 bits"),
        (partial(TransientError, "busy", retry_after=nan), "busy"),
        (partial(TransientError, "busy", retry_after=-5), "busy"),
        (partial(WithoutInit, "order-7"), "order-7"),
        (partial(Property, "busy"), "busy"),
        (partial(assigned, "5"), "busy"),
        (partial(assigned, 2**63), "busy"),
    ],
    ids=["text", "huge", "nan", "negative", "no_init", "property", "assigned", "assigned_huge"],
)
async def test_an_error_that_says_how_long_to_wait_in_a_wrong_way_is_retried_by_the_policy(
    autojump_clock: MockClock, make: Callable[[], TransientError], reason: str
) -> None:
    @step(retry=Retry.fixed(max_attempts=2, delay=10, jitter=0))
    async def busy() -> None:
        note()
        raise make()

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(busy)

    async with open_test_runtime(workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k")
        with pytest.raises(RunFailed, match=reason):
            await run.result()
    (_, first), (_, second) = tries
    assert second - first == pytest.approx(10, abs=0.1)


async def test_a_dead_letter_is_an_error_in_the_log_with_its_traceback(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @step(retry=Retry.none())
    async def refuse() -> None:
        raise PermanentError("out of stock")

    @workflow
    async def refused(ctx: Context) -> None:
        await ctx.step(refuse)

    @workflow
    async def judged(ctx: Context) -> None:
        ctx.fail("too dear")

    async with open_test_runtime(workflows=[refused, judged]) as rt:
        for flow in (refused, judged):
            with pytest.raises(RunFailed):
                await (await rt.submit(flow, key="k", run_id=flow.name)).result()
    said = {(each.__dict__["event"], each.__dict__["run"]): each.message for each in caplog.records}
    assert said.keys() == {
        ("step_failed", "refused"),
        ("run_failed", "refused"),
        ("run_failed", "judged"),
    }
    assert "out of stock" in said["step_failed", "refused"]
    dead = said["run_failed", "refused"]
    assert dead.startswith("refused run refused (key k): the run failed and is a dead letter: step")
    assert dead.endswith("PermanentError: out of stock")
    assert "Traceback (most recent call last)" in dead
    assert said["run_failed", "judged"] == "judged run judged (key k): the run failed: too dear"
    levels = {each.__dict__["run"]: each.levelname for each in caplog.records}
    assert levels == {"refused": "ERROR", "judged": "WARNING"}
