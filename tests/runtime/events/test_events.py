"""Events: what is told, in which order, to whom, and what it costs the runtime: nothing."""

import gc
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun import (
    Context,
    Continue,
    FailureKind,
    Limits,
    PermanentError,
    Retry,
    RunCancelled,
    RunFailed,
    Runtime,
    StepFailed,
    Succeed,
    TransientError,
    Turn,
    current_step,
    machine,
    step,
    workflow,
)
from keyrun.events import (
    BackpressureEvent,
    Event,
    EventKind,
    Events,
    KeyEvent,
    LimitEvent,
    Missed,
    ProgressEvent,
    RunEvent,
    SetbackEvent,
    StepEvent,
)
from keyrun.runtime.events import emitter
from keyrun.runtime.events.feed import Feed
from keyrun.runtime.queue.key_queue import KeyQueue
from keyrun.storage import MemoryStore, StoreClosed
from keyrun.testing import EPOCH, CrashingMemoryStore, open_test_runtime
from tests.runtime.fragile import FragileStore

SOON = Retry.fixed(max_attempts=2, delay=3, jitter=0)


class Ear:
    """Collects events until its block ends."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def kinds(self, run_id: str | None = None) -> list[str]:
        return [str(e.kind) for e in self.heard if run_id is None or e.run_id == run_id]

    def only(self, kind: str) -> Any:
        (event,) = [e for e in self.heard if e.kind == kind]
        return event


@asynccontextmanager
async def listening(runtime: Runtime, **options: Any) -> AsyncIterator[Ear]:
    ear = Ear()

    async def listen(events: Events) -> None:
        async for event in events:
            ear.heard.append(event)

    async with runtime.events(**options) as events, trio.open_nursery() as nursery:
        nursery.start_soon(listen, events)
        yield ear
        await runtime._partition.state.store.durable()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()


@step
async def quick(value: Any = None) -> Any:
    return value


@step
async def slow(seconds: float = 1.0) -> float:
    await trio.sleep(seconds)
    return seconds


@step(retry=SOON)
async def flaky(error: type[Exception], failures: int) -> int:
    attempt = current_step().attempt
    if attempt <= failures:
        raise error(f"attempt {attempt}")
    return attempt


@workflow
async def plain(ctx: Context, value: int) -> int:
    await ctx.step(quick, value)
    await ctx.step(slow)
    await ctx.sleep(5)
    return value


async def ends(runtime: Runtime, flow: Any, value: Any = None, **options: Any) -> Any:
    run = await runtime.submit(flow, value, key="k", run_id="r", **options)
    try:
        return await run.result()
    except (RunFailed, RunCancelled) as error:
        return error


async def test_a_run_is_told_from_its_submission_to_its_end(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[plain]) as runtime, listening(runtime) as ear:
        assert await ends(runtime, plain, 7) == 7
    assert ear.kinds() == [
        "run_submitted",
        "run_started",
        "step_started",
        "step_completed",
        "step_started",
        "step_completed",
        "run_waiting",
        "run_resumed",
        "run_succeeded",
    ]
    assert {(e.run_id, e.key, e.workflow) for e in ear.heard} == {("r", "k", "plain")}
    assert [round(e.at - EPOCH, 3) for e in ear.heard] == [0, 0, 0, 0, 0, 1, 1, 6, 6]
    assert [(e.step, e.attempt, e.elapsed) for e in ear.heard if isinstance(e, StepEvent)] == [
        ("quick", 1, None),
        ("quick", 1, 0.0),
        ("slow", 1, None),
        ("slow", 1, 1.0),
    ]
    waiting, end = ear.only("run_waiting"), ear.only("run_succeeded")
    assert (waiting.waiting_on, waiting.delay) == ("timer", 5.0)
    assert (end.elapsed, end.steps_done, end.failure) == (6.0, 2, None)


FAILURES: dict[FailureKind, list[str]] = {
    FailureKind.STEP_FAILED: [
        "step_started",
        "step_retrying",
        "run_waiting",
        "run_resumed",
        "step_started",
        "step_failed",
    ],
    FailureKind.PERMANENT_ERROR: ["step_started", "step_failed"],
    FailureKind.STEP_TIMEOUT: ["step_started", "step_timed_out", "step_failed"],
    FailureKind.RUN_TIMEOUT: ["step_started", "clamp", "step_cancelled", "limit_hit"],
    FailureKind.ITERATION_LIMIT: ["step_started", "step_completed", "limit_hit"],
    FailureKind.RETRY_BUDGET: ["step_started", "limit_hit", "step_failed"],
    FailureKind.VERDICT: [],
    FailureKind.WORKFLOW_ERROR: [],
}


@workflow
async def failing(ctx: Context, kind: str) -> None:
    match FailureKind(kind):
        case FailureKind.STEP_FAILED | FailureKind.RETRY_BUDGET:
            await ctx.step(flaky, TransientError, 2)
        case FailureKind.PERMANENT_ERROR:
            await ctx.step(flaky, PermanentError, 1)
        case FailureKind.STEP_TIMEOUT:
            await ctx.step(slow.options(timeout=2, retry=Retry.none()), 100)
        case FailureKind.RUN_TIMEOUT:
            await ctx.step(slow, 100)
        case FailureKind.ITERATION_LIMIT:
            await ctx.step(quick)
            await ctx.step(quick)
        case FailureKind.VERDICT:
            ctx.fail("not today")
        case FailureKind.WORKFLOW_ERROR:
            raise LookupError("a bug")


LIMITS = {
    FailureKind.RUN_TIMEOUT: (Limits(run_timeout=10), "run_timeout", 10),
    FailureKind.ITERATION_LIMIT: (Limits(max_iterations=1), "max_iterations", 1),
    FailureKind.RETRY_BUDGET: (Limits(retry_budget=0), "retry_budget", 0),
}


@pytest.mark.parametrize("kind", FAILURES)
async def test_each_kind_of_failure_is_told_in_order_and_with_its_reason(
    autojump_clock: MockClock, kind: FailureKind
) -> None:
    limits, name, value = LIMITS.get(kind, (Limits(), "", 0))
    async with open_test_runtime(workflows=[failing]) as runtime, listening(runtime) as ear:
        error = await ends(runtime, failing, str(kind), limits=limits)
    assert ear.kinds() == ["run_submitted", "run_started", *FAILURES[kind], "run_failed"]
    end = ear.only("run_failed")
    assert end.failure == error.failure
    assert end.failure.kind is kind
    assert end.reason == end.failure.reason
    for failed in ear.heard:
        if failed.kind in ("step_failed", "step_retrying", "step_timed_out"):
            assert failed.failure.reason == failed.reason
            assert (failed.step, failed.attempt) == (failed.failure.step, failed.failure.attempt)
            assert failed.elapsed == failed.failure.elapsed
            assert failed.delay == (3.0 if failed.kind == "step_retrying" else None)
    if name:
        hit = ear.only("limit_hit")
        assert isinstance(hit, LimitEvent)
        assert (hit.limit, hit.value, hit.failure) == (name, value, end.failure)
    if kind is FailureKind.RUN_TIMEOUT:
        clamp = ear.only("clamp")
        assert (clamp.limit, clamp.value, clamp.step, clamp.attempt) == (
            "step_timeout",
            300.0,
            "slow",
            1,
        )
        assert "10.000 s" in clamp.reason
        assert ear.only("step_cancelled").reason == "the time of the run is up"


async def test_a_step_that_times_out_and_is_tried_again_is_told_as_both(
    autojump_clock: MockClock,
) -> None:
    @step(timeout=2, retry=SOON)
    async def sluggish() -> None:
        await trio.sleep(100 if current_step().attempt == 1 else 0)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(sluggish)

    async with open_test_runtime(workflows=[flow]) as runtime, listening(runtime) as ear:
        await ends(runtime, flow)
    assert ear.kinds()[2:-1] == [
        "step_started",
        "step_timed_out",
        "step_retrying",
        "run_waiting",
        "run_resumed",
        "step_started",
        "step_completed",
    ]
    timed_out = ear.only("step_timed_out")
    assert timed_out.failure.kind is FailureKind.STEP_TIMEOUT
    assert timed_out.elapsed == pytest.approx(2)


async def test_a_branch_that_loses_is_told_as_cancelled(autojump_clock: MockClock) -> None:
    async def doomed(ctx: Context) -> None:
        await ctx.step(slow, 1)
        await ctx.step(flaky, PermanentError, 1)

    @workflow
    async def race(ctx: Context) -> str:
        try:
            await ctx.gather(ctx.step(slow, 50), doomed)
        except StepFailed:
            return "lost"
        return "won"

    async with open_test_runtime(workflows=[race]) as runtime, listening(runtime) as ear:
        assert await ends(runtime, race) == "lost"
    cancelled = ear.only("step_cancelled")
    assert (cancelled.step, cancelled.reason) == ("g1.0/slow", "a branch beside it failed")
    assert ear.kinds().index("step_failed") < ear.kinds().index("step_cancelled")


async def test_a_cancelled_run_is_told_with_its_step(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(slow, 100)

    async with open_test_runtime(workflows=[flow]) as runtime, listening(runtime) as ear:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(1)
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result()
    assert ear.kinds()[2:] == ["step_started", "run_cancelling", "step_cancelled", "run_cancelled"]
    assert ear.only("step_cancelled").reason == "the run is being cancelled"


async def test_a_pause_is_told_whoever_is_held_by_it(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(slow, 5)
        await ctx.step(quick)

    async with open_test_runtime(workflows=[flow]) as runtime, listening(runtime) as ear:
        run = await runtime.submit(flow, key="k", run_id="r")
        await trio.sleep(1)
        for hold, release in (
            (lambda: runtime.pause("r"), lambda: runtime.resume("r")),
            (lambda: runtime.pause_key("k"), lambda: runtime.resume_key("k")),
            (runtime.pause_all, runtime.resume_all),
        ):
            await hold()
            await release()
        await run.result()
    pauses = [kind for kind in ear.kinds("r") if kind in ("run_paused", "run_resumed")]
    assert pauses == ["run_paused", "run_resumed"] * 3


async def test_a_drain_tells_of_the_step_that_it_cuts_off_and_the_next_open_of_its_recovery(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.step(slow, 100)

    heard: list[Event] = []
    async with open_test_runtime(store, workflows=[flow], drain_timeout=1) as runtime:
        await runtime.submit(flow, key="k", run_id="r")
        subscription = runtime.events()
        await subscription.__aenter__()
        await trio.sleep(5)
    async for event in subscription:
        heard.append(event)
    assert [str(event.kind) for event in heard[-1:]] == ["step_cancelled"]
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        async with listening(runtime) as ear:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
    assert ear.kinds() == ["run_recovered", "step_started", "step_completed", "run_succeeded"]
    assert ear.only("run_recovered").steps_done == 1


async def test_redrive_and_quarantine_are_told(autojump_clock: MockClock) -> None:
    broken = True

    @step(retry=Retry.none())
    async def fragile() -> None:
        if broken:
            raise TransientError("broken")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(fragile)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        async with listening(runtime) as ear:
            await ends(runtime, flow)
            broken = False
            await runtime.redrive("r")
            await (await runtime.submit(flow, key="k", run_id="r")).result()
        later = ear.kinds()[ear.kinds().index("run_failed") :]
        assert later == [
            "run_failed",
            "run_redriven",
            "run_started",
            "step_started",
            "step_completed",
            "run_succeeded",
        ]
        assert ear.only("run_redriven").generation == ear.only("run_succeeded").generation == 2
        await runtime.pause_key("other")
        await runtime.submit(flow, key="other", run_id="left")
    async with open_test_runtime(store, workflows=[]) as runtime:
        async with listening(runtime) as ear:
            await runtime.resume_key("other")
            await trio.sleep(1)
    told = ear.only("run_quarantined")
    assert (told.run_id, told.key) == ("left", "other")
    assert "not registered" in told.reason


async def test_a_run_that_is_damaged_is_told_as_quarantined(autojump_clock: MockClock) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[plain], evict_after=inf) as runtime:
        await runtime.submit(plain, 1, key="k", run_id="damaged")
        await trio.sleep(3)
        store.crash()
    store.damage("journal", store.keys("journal")[0])
    async with open_test_runtime(store, workflows=[plain]) as runtime, listening(runtime) as ear:
        await trio.sleep(1)
    (told,) = ear.heard
    assert (told.kind, told.run_id, told.key) == (EventKind.RUN_QUARANTINED, "damaged", "k")
    assert "is damaged" in told.reason


async def test_an_interruption_that_is_one_too_many_is_told_as_a_limit(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()

    @workflow(limits=Limits(max_interruptions=1))
    async def flow(ctx: Context) -> None:
        await ctx.step(slow, 100)

    for _ in range(3):
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            await runtime.submit(flow, key="k", run_id="r")
            await trio.sleep(1)
            await store.durable()
            store.crash()
            await trio.sleep(1)
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        async with listening(runtime) as ear:
            assert isinstance(await ends(runtime, flow), RunFailed)
    assert ear.kinds() == ["run_recovered", "limit_hit", "step_failed", "run_failed"]
    assert ear.only("limit_hit").limit == "max_interruptions"
    assert ear.only("step_failed").failure.kind is FailureKind.INTERRUPTED


async def test_an_overrun_is_told_while_the_thread_still_runs() -> None:
    let_go = threading.Event()

    @step(timeout=0.05, retry=Retry.none())
    def blocking() -> None:
        let_go.wait(10)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(blocking)

    async with open_test_runtime(workflows=[flow], threads="real") as runtime:
        async with runtime.events(kinds=["step_overrun"]) as events:
            run = await runtime.submit(flow, key="k", run_id="r")
            with trio.fail_after(5):
                event = await events.__anext__()
            assert isinstance(event, SetbackEvent)
            assert (event.step, event.attempt) == ("blocking", 1)
            assert event.elapsed is not None
            assert event.elapsed >= 0.05
            let_go.set()
            with pytest.raises(RunFailed):
                await run.result()


async def test_a_machine_tells_of_its_turns(autojump_clock: MockClock) -> None:
    @machine(name="counter")
    async def counter(t: Turn) -> Any:
        return Succeed() if t.number == 2 else Continue(after=1)

    async with open_test_runtime(workflows=[counter]) as runtime, listening(runtime) as ear:
        await ends(runtime, counter)
    turn = ["step_started", "step_completed"]
    wait = ["run_waiting", "run_resumed"]
    assert ear.kinds()[2:-1] == [*turn, *wait, *turn, *wait, *turn]
    done = [e.step for e in ear.heard if e.kind is EventKind.STEP_COMPLETED]
    assert done == ["turn-0", "turn-1", "turn-2"]


async def test_backpressure_is_told_when_it_begins_and_with_its_duration_when_it_ends(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(slow, 10)

    async with (
        open_test_runtime(workflows=[flow], max_pending_per_key=1) as runtime,
        listening(runtime, kinds=["backpressure_began", "backpressure_ended"]) as ear,
    ):
        await runtime.submit(flow, key="k")
        await trio.sleep(1)
        await runtime.submit(flow, key="k")
        async with trio.open_nursery() as nursery:

            async def third() -> None:
                await runtime.submit(flow, key="k", run_id="third")

            nursery.start_soon(third)
            await trio.sleep(0.1)
            (began,) = ear.heard
            assert isinstance(began, BackpressureEvent)
            assert (began.key, began.workflow, began.run_id) == ("k", "flow", "third")
            assert (began.depth, began.waited, began.duration) == (1, 0.0, None)
            assert began.at - EPOCH == pytest.approx(1)
    ended = ear.only("backpressure_ended")
    assert ended.waited == ended.duration == pytest.approx(9)


async def test_keys_can_be_told_of(autojump_clock: MockClock) -> None:
    async with open_test_runtime() as runtime, listening(runtime) as ear:
        feed = runtime._partition.state.feed
        assert feed is not None
        emitter.key_changed(feed, None, EventKind.KEY_QUARANTINED, "k", "it crashed 5 times")
        emitter.key_changed(feed, None, EventKind.KEY_RELEASED, "k")
    quarantined, released = ear.heard
    assert isinstance(quarantined, KeyEvent)
    assert (quarantined.key, quarantined.reason) == ("k", "it crashed 5 times")
    assert released.kind is EventKind.KEY_RELEASED


async def test_what_a_step_and_a_workflow_report_is_told(autojump_clock: MockClock) -> None:
    @step
    async def working() -> None:
        current_step().report(0, "at once")
        for percent in range(1, 4):
            await trio.sleep(1)
            current_step().report(percent * 20, "never told")
            current_step().report(percent * 25, f"{percent} of 4")
        await trio.sleep(1)

    @step
    async def instantly() -> None:
        current_step().report(50, "halfway")

    @workflow
    async def flow(ctx: Context) -> None:
        ctx.report(10, "begun")
        await ctx.step(working)
        await ctx.step(instantly)

    kinds = ["step_started", "step_progress", "step_completed", "run_progress"]
    async with open_test_runtime(workflows=[flow]) as runtime:
        async with listening(runtime, kinds=kinds) as ear:
            await ends(runtime, flow)
    told = [
        (str(e.kind), getattr(e, "percent", None), getattr(e, "message", None)) for e in ear.heard
    ]
    assert told == [
        ("run_progress", 10.0, "begun"),
        ("step_started", None, None),
        ("step_progress", 0.0, "at once"),
        ("step_progress", 25.0, "1 of 4"),
        ("step_progress", 50.0, "2 of 4"),
        ("step_progress", 75.0, "3 of 4"),
        ("step_completed", None, None),
        ("step_started", None, None),
        ("step_progress", 50.0, "halfway"),
        ("step_completed", None, None),
    ]


async def test_a_step_in_a_thread_reports_as_well() -> None:
    reported, let_go = threading.Event(), threading.Event()

    @step
    def blocking() -> None:
        current_step().report(30, "from a thread")
        reported.set()
        let_go.wait(10)

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(blocking)

    async with open_test_runtime(workflows=[flow], threads="real") as runtime:
        async with runtime.events(kinds=["step_progress"]) as events:
            run = await runtime.submit(flow, key="k", run_id="r")
            with trio.fail_after(5):
                event = await events.__anext__()
            assert isinstance(event, ProgressEvent)
            assert (event.percent, event.message) == (30.0, "from a thread")
            let_go.set()
            await run.result()


@pytest.mark.parametrize(
    ("percent", "message", "error"),
    [(-1, "", ValueError), (101, "", ValueError), ("50", "", TypeError), (50, 5, TypeError)],
)
async def test_a_report_that_makes_no_sense_is_refused(
    autojump_clock: MockClock, percent: Any, message: Any, error: type[Exception]
) -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        with pytest.raises(error):
            ctx.report(percent, message)
        return "refused"

    async with open_test_runtime(workflows=[flow]) as runtime:
        assert await ends(runtime, flow) == "refused"


async def test_nothing_is_told_of_a_commit_that_failed(autojump_clock: MockClock) -> None:
    """Whatever the commit that fails, what was told is in the store."""
    told_most = 0
    for number in range(1, 100):
        store = CrashingMemoryStore()
        heard: list[Any] = []
        async with open_test_runtime(store, workflows=[plain]) as runtime:
            async with listening(runtime) as ear:
                heard = ear.heard
                store.crash_at(number, applied=False)
                await ends(runtime, plain, 1)
        if not store.commits >= number or "run_succeeded" in [e.kind for e in heard]:
            break
        async with open_test_runtime(store, workflows=[plain]) as runtime:
            stored = {h.event for h in await runtime.history("r")}
            status = await runtime.status("r")
        kinds = {str(event.kind) for event in heard}
        assert ("run_submitted" in kinds) == (status is not None)
        if "step_completed" in kinds:
            assert "step_completed" in stored
        if "run_waiting" in kinds:
            assert "timer_set" in stored
        told_most = max(told_most, len(heard))
    assert told_most >= 7


async def test_a_full_buffer_drops_what_comes_counts_it_and_says_where(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[plain]) as runtime:
        async with runtime.events(buffer=3) as events:
            await ends(runtime, plain, 1)
            assert events.dropped == 5
            heard = [await events.__anext__() for _ in range(5)]
            assert [str(event.kind) for event in heard] == [
                "run_submitted",
                "run_started",
                "step_started",
                "step_completed",
                "missed",
            ]
            assert isinstance(heard[4], Missed)
            assert heard[4].missed == 5
            await runtime.submit(plain, 1, key="k", run_id="r2")
            after = await events.__anext__()
            assert (after.kind, after.run_id) == (EventKind.RUN_SUBMITTED, "r2")


async def test_a_gap_is_told_before_what_comes_after_it(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[plain]) as runtime:
        async with runtime.events(buffer=2, kinds=["run_submitted"]) as events:
            for number in range(4):
                await runtime.submit(plain, 1, key="k", run_id=f"r{number}")
            assert (await events.__anext__()).run_id == "r0"
            assert (await events.__anext__()).run_id == "r1"
            await runtime.submit(plain, 1, key="k", run_id="r4")
            missed, after = await events.__anext__(), await events.__anext__()
            assert isinstance(missed, Missed)
            assert missed.missed == events.dropped == 2
            assert after.run_id == "r4"


async def test_a_subscriber_that_never_reads_costs_a_constant(autojump_clock: MockClock) -> None:
    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(quick)

    async with open_test_runtime(workflows=[flow]) as runtime:
        async with runtime.events(buffer=10) as events:
            for _ in range(300):
                await (await runtime.submit(flow, key="k")).result()
            assert len(events._buffer) == 10
            assert events.dropped == 300 * 5 - 10 - 2  # two places hold a step's two events


async def test_a_hundred_subscribers_hear_the_same(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[plain]) as runtime:
        ears = []
        async with trio.open_nursery() as nursery:

            async def listen(run_id: str | None) -> None:
                heard: list[Event] = []
                ears.append((run_id, heard))
                async with runtime.events(run_id=run_id) as events:
                    async for event in events:
                        heard.append(event)
                        if run_id == event.run_id and event.kind == "run_succeeded":
                            return
                        if event.run_id == "r2" and event.kind == "run_succeeded":
                            return

            for number in range(100):
                nursery.start_soon(listen, None if number % 2 else f"r{number % 3}")
            await wait_all_tasks_blocked()
            for number in range(3):
                await runtime.submit(plain, number, key="k", run_id=f"r{number}")
        assert runtime._partition.state.feed is None
    by_run: dict[str | None, list[list[Event]]] = {}
    for run_id, heard in ears:
        by_run.setdefault(run_id, []).append(heard)
    assert {run_id: len(heard) for run_id, heard in by_run.items()} == {
        None: 50,
        "r0": 17,
        "r1": 16,
        "r2": 17,
    }
    for alike in by_run.values():
        assert all(each == alike[0] for each in alike)
    everything = by_run[None][0]
    for run_id in ("r0", "r1", "r2"):
        assert by_run[run_id][0] == [e for e in everything if e.run_id == run_id]
        assert len(by_run[run_id][0]) == 9


async def test_a_subscriber_that_is_cancelled_loses_nothing_for_others_or_itself(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[plain]) as runtime:
        async with runtime.events() as first, listening(runtime) as second:
            with trio.move_on_after(1) as scope:
                await first.__anext__()
            assert scope.cancelled_caught
            await ends(runtime, plain, 1)
            heard = [await first.__anext__() for _ in range(9)]
        assert heard == second.heard


async def test_a_subscription_ends_with_its_block_and_leaves_nothing_behind(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[plain]) as runtime:
        partition = runtime._partition
        with pytest.raises(LookupError):
            async with runtime.events(), runtime.events(run_id="r"):
                assert partition.state.feed is partition.events
                raise LookupError
        assert partition.state.feed is None
        subscription = runtime.events()
        async with subscription:
            await ends(runtime, plain, 1)
        assert [event async for event in subscription] == []
        with pytest.raises(RuntimeError, match="call events"):
            await subscription.__aenter__()
        del subscription
        gc.collect()
        assert not [each for each in gc.get_objects() if isinstance(each, Events)]
    with pytest.raises(StoreClosed):
        async with runtime.events():
            pass


async def test_a_subscription_that_was_not_entered_says_so(autojump_clock: MockClock) -> None:
    async with open_test_runtime() as runtime:
        with pytest.raises(RuntimeError, match="the subscription is not open"):
            async for _ in runtime.events():
                pass


async def test_an_iteration_may_be_left_and_taken_up_again(autojump_clock: MockClock) -> None:
    heard: list[Event] = []
    async with open_test_runtime(workflows=[plain]) as runtime:
        async with runtime.events() as events, listening(runtime) as ear:
            await ends(runtime, plain, 1)
            while not heard or heard[-1].kind is not EventKind.RUN_SUCCEEDED:
                async for event in events:
                    heard.append(event)
                    break
    assert heard == ear.heard


async def test_leaving_the_runtime_ends_the_iteration_after_what_is_there(
    autojump_clock: MockClock,
) -> None:
    async with trio.open_nursery() as nursery:
        heard: list[Event] = []
        async with open_test_runtime(workflows=[plain]) as runtime:

            async def listen() -> None:
                async with runtime.events() as events:
                    async for event in events:
                        heard.append(event)

            nursery.start_soon(listen)
            await wait_all_tasks_blocked()
            await ends(runtime, plain, 1)
    assert heard[-1].kind is EventKind.RUN_SUCCEEDED


async def test_nothing_is_built_when_nobody_listens(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> Callable[..., None]:
        def told(*_: Any, **__: Any) -> None:
            raise AssertionError(f"{name} was built for nobody")

        return told

    names = [name for name in vars(emitter) if name.endswith("Event")]
    assert len(names) > 6
    for name in names:
        monkeypatch.setattr(emitter, name, refuse(name))
    for name in ("emit", "follow"):
        monkeypatch.setattr(Feed, name, refuse(name))

    @workflow
    async def flow(ctx: Context) -> None:
        ctx.report(50)
        await ctx.step(flaky, TransientError, 1)
        with pytest.raises(StepFailed):
            await ctx.gather(ctx.step(slow, 9), ctx.step(flaky, PermanentError, 1))
        await ctx.sleep(3)

    async with open_test_runtime(workflows=[flow], max_pending_per_key=1) as runtime:
        for _ in range(3):
            await runtime.submit(flow, key="k", limits=Limits(run_timeout=100))
        assert await ends(runtime, flow) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"buffer": 0}, "buffer must be a whole number of at least 1"),
        ({"buffer": 1.5}, "buffer must be a whole number of at least 1"),
        ({"kinds": ["run_sneezed"]}, "the kinds are run_submitted, run_started"),
        ({"run_id": "no spaces"}, "run_id must be"),
    ],
)
async def test_what_makes_no_sense_is_refused(
    autojump_clock: MockClock, options: dict[str, Any], message: str
) -> None:
    async with open_test_runtime() as runtime:
        with pytest.raises(ValueError, match=message):
            runtime.events(**options)


async def test_one_kind_may_be_given_alone(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[plain]) as runtime:
        async with listening(runtime, kinds=EventKind.RUN_SUCCEEDED) as ear:
            await ends(runtime, plain, 1)
    assert ear.kinds() == ["run_succeeded"]
    assert isinstance(ear.heard[0], RunEvent)


async def test_a_key_that_is_quarantined_and_released_is_told_of(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(self: KeyQueue) -> None:
        raise RuntimeError("a mistake of Keyrun's own")

    @workflow
    async def job(ctx: Context) -> int:
        return 1

    async with (
        open_test_runtime(workflows=[job], max_restarts=1) as rt,
        rt.events(kinds=[EventKind.KEY_QUARANTINED, EventKind.KEY_RELEASED]) as events,
    ):
        with monkeypatch.context() as patch:
            patch.setattr(KeyQueue, "take_fresh", lambda self: None)
            patch.setattr(KeyQueue, "load_next", broken)
            run = await rt.submit(job, key="k")
            told = await anext(events)
            assert isinstance(told, KeyEvent)
            assert (told.kind, told.key) == (EventKind.KEY_QUARANTINED, "k")
            assert told.reason is not None
            assert "a mistake of Keyrun's own" in told.reason
        assert await rt.release_key("k")
        told = await anext(events)
        assert (told.kind, told.key) == (EventKind.KEY_RELEASED, "k")
        assert await run.result() == 1
