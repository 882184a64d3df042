"""Machines turn, wait, fail and resume, and keep only their latest turn."""

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Cancel,
    Continue,
    Fail,
    FailureKind,
    Limits,
    Retry,
    RunCancelled,
    RunFailed,
    State,
    Succeed,
    TransientError,
    Turn,
    machine,
)
from keyrun.runtime.machines import Verdict
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime


@machine(name="countdown")
async def countdown(t: Turn) -> Verdict:
    if t.payload == 0:
        return Succeed(t.number)
    return Continue(t.payload - 1, after=10)


async def test_a_machine_turns_until_it_succeeds(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[countdown]) as runtime:
        run = await runtime.submit(countdown, 3, key="k")
        assert await run.result() == 3
        assert trio.current_time() == pytest.approx(30, abs=0.01)


async def test_after_a_restart_only_the_rest_of_a_delay_is_waited(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[countdown]) as runtime:
        await runtime.submit(countdown, 1, key="k", run_id="r")
        await trio.sleep(4)
        store.crash()
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[countdown]) as runtime:
        run = await runtime.submit(countdown, 1, key="k", run_id="r")
        assert await run.result() == 1
        assert trio.current_time() == pytest.approx(10, abs=0.1)


async def test_only_the_latest_turn_is_on_the_disk(autojump_clock: MockClock) -> None:
    store = MemoryStore()

    @machine(name="flaky", retry=Retry.fixed(delay=1))
    async def flaky(t: Turn) -> Verdict:
        if t.attempt < 3:
            raise ValueError("not yet")
        t.memo["seen"] = t.number
        return Succeed() if t.number == 50 else Continue()

    async with open_test_runtime(store, workflows=[flaky]) as runtime:
        run = await runtime.submit(flaky, key="k")
        await run.result()
        assert len(await store.scan("journal")) == 1
        assert await store.scan("memo") == []
        assert await store.scan("begun") == []


async def test_state_and_turn_are_committed_together(autojump_clock: MockClock) -> None:
    """Whatever commit the crash comes after, the state counts each turn once."""
    turns: list[int] = []

    @machine(name="adder")
    async def adder(t: Turn) -> Verdict:
        turns.append(t.number)
        t.state["sum"] = t.state.get("sum", 0) + 1
        await trio.sleep(1)
        return Succeed(t.state["sum"]) if t.number == 4 else Continue()

    store = MemoryStore()
    for seconds in (0.5, 1.5, 2.2, 3.7):
        async with open_test_runtime(store, workflows=[adder]) as runtime:
            await runtime.submit(adder, key="k", run_id="r")
            await trio.sleep(seconds)
            store.crash()
            await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[adder]) as runtime:
        run = await runtime.submit(adder, key="k", run_id="r")
        assert await run.result() == 5


async def test_a_failed_attempt_leaves_no_trace_in_the_state(autojump_clock: MockClock) -> None:
    @machine(name="careless", retry=Retry.fixed(delay=1))
    async def careless(t: Turn) -> Verdict:
        t.state["count"] = t.state.get("count", 0) + 1
        if t.attempt == 1:
            raise ValueError("after the change")
        return Succeed(dict(t.state))

    async with open_test_runtime(workflows=[careless]) as runtime:
        run = await runtime.submit(careless, key="k")
        assert await run.result() == {"count": 1}


async def test_fail_and_cancel_are_verdicts_and_no_dead_letters(
    autojump_clock: MockClock,
) -> None:
    @machine(name="judge")
    async def judge(t: Turn) -> Verdict:
        return Fail("no good") if t.payload == "fail" else Cancel("not needed")

    hook = RecordingHook()
    async with open_test_runtime(workflows=[judge], on_terminal=hook) as runtime:
        run = await runtime.submit(judge, "fail", key="k")
        with pytest.raises(RunFailed, match="no good") as failed:
            await run.result()
        assert failed.value.failure.kind is FailureKind.VERDICT
        run = await runtime.submit(judge, "cancel", key="k")
        with pytest.raises(RunCancelled, match="not needed") as cancelled:
            await run.result()
        assert cancelled.value.reason == "not needed"
        assert await runtime.dead_letters() == []
    assert [outcome.state for outcome in hook.outcomes] == [State.FAILED, State.CANCELLED]


async def test_a_machine_gets_exactly_as_many_turns_as_allowed(autojump_clock: MockClock) -> None:
    turns: list[int] = []

    @machine(name="endless", limits=Limits(max_iterations=5))
    async def endless(t: Turn) -> Verdict:
        turns.append(t.number)
        return Continue()

    async with open_test_runtime(workflows=[endless]) as runtime:
        run = await runtime.submit(endless, key="k")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert failed.value.failure.kind is FailureKind.ITERATION_LIMIT
        assert turns == [0, 1, 2, 3, 4]


async def test_a_turn_that_returns_something_else_fails_clearly(autojump_clock: MockClock) -> None:
    @machine(name="vague", retry=Retry.none())
    async def vague(t: Turn) -> Any:
        return "done"

    async with open_test_runtime(workflows=[vague]) as runtime:
        run = await runtime.submit(vague, key="k")
        with pytest.raises(RunFailed, match="must return Continue, Succeed, Fail or Cancel"):
            await run.result()


async def test_a_shielded_turn_may_answer_a_cancel_with_a_reason(
    autojump_clock: MockClock,
) -> None:
    @machine(name="polite", shield=True)
    async def polite(t: Turn) -> Verdict:
        while not t.cancel_requested:
            await trio.sleep(1)
        return Cancel(f"{t.run_id} of {t.key} was asked to, {t.headers['by']}")

    hook = RecordingHook()
    async with open_test_runtime(workflows=[polite], on_terminal=hook) as runtime:
        run = await runtime.submit(polite, key="k", run_id="r", headers={"by": "me"})
        await trio.sleep(5)
        assert await run.cancel()
        with pytest.raises(RunCancelled) as cancelled:
            await run.result()
        assert cancelled.value.reason == "r of k was asked to, me"
    assert len(hook.outcomes) == 1


def test_a_machine_is_an_async_function() -> None:
    with pytest.raises(TypeError, match="@machine requires an async function"):

        @machine()  # type: ignore[arg-type]
        def wrong(t: Turn) -> Verdict:
            return Succeed()


def test_a_negative_delay_is_refused() -> None:
    with pytest.raises(ValueError, match="after must be at least 0 seconds, got -1"):
        Continue(after=-1)


LAST: dict[str, tuple[Verdict, State]] = {
    "succeed": (Succeed("done"), State.SUCCEEDED),
    "fail": (Fail("no"), State.FAILED),
    "cancel": (Cancel("never mind"), State.CANCELLED),
}


@pytest.mark.parametrize("how", ["paused and killed", "drained"])
@pytest.mark.parametrize(("verdict", "state"), LAST.values(), ids=LAST.keys())
async def test_a_last_turn_that_is_done_before_its_run_may_end_never_runs_again(
    autojump_clock: MockClock, verdict: Verdict, state: State, how: str
) -> None:
    """Its end is not in the commit that keeps what it did."""
    done: list[int] = []

    @machine(name="last", shield=True)
    async def last(t: Turn) -> Verdict:
        if t.number == 0:
            return Continue()
        await trio.sleep(5)
        done.append(t.state.setdefault("turns", 0))
        t.state["turns"] += 1
        return verdict

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[last], drain_timeout=0) as runtime:
        await runtime.submit(last, key="k", run_id="r")
        await trio.sleep(1)
        if how != "drained":
            await runtime.pause("r")
            await trio.sleep(10)
            store.crash()
            await trio.sleep_forever()
    assert done == [0]
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=[last], on_terminal=hook) as runtime:
        await runtime.resume("r")
        await trio.sleep(10)
        status = await runtime.status("r")
        assert status is not None
        assert status.state is state
        assert status.steps_done == 2
        assert status.result == getattr(verdict, "result", None)
        assert status.reason == getattr(verdict, "reason", None)
    assert done == [0]


async def test_a_retry_budget_counts_the_turns_before_a_restart(autojump_clock: MockClock) -> None:
    """Their failures are forgotten with them, and their number is not."""

    @machine(name="flaky", retry=Retry.fixed(delay=1), limits=Limits(retry_budget=2))
    async def flaky(t: Turn) -> Verdict:
        if t.attempt == 1:
            raise TransientError("not yet")
        return Continue(after=10)

    store = MemoryStore()
    for _ in range(2):
        async with open_test_runtime(store, workflows=[flaky]) as runtime:
            run = await runtime.submit(flaky, key="k", run_id="r")
            await trio.sleep(5)
            assert (await run.status()) is not None
            await trio.sleep(5)
    async with open_test_runtime(store, workflows=[flaky]) as runtime:
        run = await runtime.submit(flaky, key="k", run_id="r")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert failed.value.failure.kind is FailureKind.RETRY_BUDGET
        assert failed.value.failure.step == "turn-2"
        # A redrive has a fresh one, which restarts do not make larger.
        assert await runtime.redrive("r") == 2
        await trio.sleep(5)
    async with open_test_runtime(store, workflows=[flaky]) as runtime:
        run = await runtime.submit(flaky, key="k", run_id="r")
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert failed.value.failure.step == "turn-4"
