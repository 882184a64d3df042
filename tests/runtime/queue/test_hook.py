"""The terminal hook: told of every end, after its commit, at least once."""

import asyncio
import functools
import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import trio

from keyrun import Context, FailureKind, PermanentError, RunOutcome, State, step, workflow
from keyrun.runtime.queue.hook import Hook
from keyrun.runtime.tuning import Tuning
from keyrun.runtime.user_errors import has
from keyrun.storage import MemoryStore, StoreError
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore, FullDisk

AT_ONCE = Tuning().hook_calls


@step
async def double(number: int) -> int:
    return 2 * number


@step
async def refuse() -> None:
    raise PermanentError("never")


@workflow
async def doubling(ctx: Context, number: int) -> int:
    return await ctx.step(double, number)


@workflow
async def failing(ctx: Context) -> None:
    await ctx.step(double, 1)
    await ctx.step(refuse)


@workflow
async def judging(ctx: Context) -> None:
    ctx.fail("not good enough")


async def test_the_hook_sees_how_each_run_ended(autojump_clock: trio.testing.MockClock) -> None:
    hook = RecordingHook()
    async with open_test_runtime(workflows=[doubling, failing, judging], on_terminal=hook) as rt:
        await rt.submit(doubling, 21, key="a", run_id="a", headers={"trace": "1"})
        await rt.submit(failing, key="b", run_id="b", headers={"trace": "2"})
        await rt.submit(judging, key="c", run_id="c")
        await trio.sleep(10)
    told = {outcome.run_id: outcome for outcome in hook.outcomes}
    assert hook.calls == len(told) == 3
    assert (told["a"].state, told["a"].result, told["a"].failure) == (State.SUCCEEDED, 42, None)
    assert (told["a"].headers, told["a"].steps_done) == ({"trace": "1"}, 1)
    assert (told["a"].key, told["a"].workflow, told["a"].generation) == ("a", "doubling", 1)
    failure = told["b"].failure
    assert failure is not None
    assert (told["b"].state, failure.kind) == (State.FAILED, FailureKind.PERMANENT_ERROR)
    assert (told["b"].step, told["b"].headers) == ("refuse", {"trace": "2"})
    assert told["b"].reason == failure.reason
    assert (told["c"].state, told["c"].reason) == (State.FAILED, "not good enough")


async def test_the_hook_is_called_after_the_commit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []
    states: list[State] = []

    async def hook(outcome: RunOutcome) -> None:
        times.append(trio.current_time())
        status = await rt.status(outcome.run_id)
        assert status is not None
        states.append(status.state)

    async with open_test_runtime(
        MemoryStore(latency=2), workflows=[doubling], on_terminal=hook
    ) as rt:
        run = await rt.submit(doubling, 1, key="k")
        submitted = trio.current_time()
        await run.result()
        await trio.sleep(1)
    assert times == [submitted + 2]
    assert states == [State.SUCCEEDED]


@pytest.mark.parametrize("crash_at", range(2, 12))
async def test_whenever_the_process_dies_the_hook_is_told_of_the_end_that_lasts(
    autojump_clock: trio.testing.MockClock, crash_at: int
) -> None:
    """Never of one that did not commit: each attempt at the step gives another result."""
    store = FragileStore()
    hook = RecordingHook()
    calls = 0

    @step
    async def count() -> int:
        nonlocal calls
        calls += 1
        await trio.sleep(1)
        return calls

    @workflow
    async def counting(ctx: Context) -> int:
        return await ctx.step(count) + await ctx.step(count)

    store.crash_at = crash_at
    result = None
    for _ in range(2):
        async with open_test_runtime(store, workflows=[counting], on_terminal=hook) as rt:
            run = await rt.submit(counting, key="k", run_id="r")
            result = await run.result()
            await trio.sleep(1)
            store.crash()
        store.crash_at = None
    assert {outcome.result for outcome in hook.outcomes} == {result}
    assert store.keys("outcomes") == []


async def test_an_end_whose_commit_fails_is_not_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = FullDisk()
    hook = RecordingHook()

    @step
    async def fill() -> None:
        store.full = True

    @workflow
    async def filling(ctx: Context) -> None:
        await ctx.step(fill)

    with pytest.raises(StoreError, match="No space left"):
        async with open_test_runtime(store, workflows=[filling], on_terminal=hook) as rt:
            await rt.submit(filling, key="k")
            await trio.sleep_forever()
    assert hook.calls == 0


async def test_a_crash_between_the_commit_and_the_hook_tells_it_at_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    hook = RecordingHook()

    async def crashing(outcome: RunOutcome) -> None:
        store.crash()

    async with open_test_runtime(store, workflows=[doubling], on_terminal=crashing) as rt:
        await rt.submit(doubling, 3, key="k", run_id="r", headers={"trace": "t"})
        await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[doubling], on_terminal=hook):
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[doubling], on_terminal=hook):
        await trio.sleep(1)
    assert [(outcome.run_id, outcome.result) for outcome in hook.outcomes] == [("r", 6)]
    assert hook.outcomes[0].headers == {"trace": "t"}


async def test_a_hook_that_raises_is_told_again_with_growing_delays(
    autojump_clock: trio.testing.MockClock,
) -> None:
    times: list[float] = []

    async def hook(outcome: RunOutcome) -> None:
        times.append(trio.current_time())
        if len(times) < 5:
            raise RuntimeError("not now")

    async with open_test_runtime(workflows=[doubling], on_terminal=hook) as rt:
        await (await rt.submit(doubling, 1, key="k")).result()
        await trio.sleep(100)
    assert len(times) == 5
    delays = [after - before for before, after in pairwise(times)]
    assert delays == sorted(delays)
    assert delays[-1] > 3 * delays[0]
    assert delays[0] == pytest.approx(0.5, rel=0.3)


async def test_an_end_that_the_hook_does_not_take_holds_up_no_other_key(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: list[str] = []

    async def hook(outcome: RunOutcome) -> None:
        if outcome.run_id == "bad":
            raise RuntimeError("never")
        told.append(outcome.run_id)

    async with open_test_runtime(workflows=[doubling], on_terminal=hook) as rt:
        await (await rt.submit(doubling, 1, key="k", run_id="bad")).result()
        await (await rt.submit(doubling, 1, key="other", run_id="good")).result()
        await trio.testing.wait_all_tasks_blocked()
        assert told == ["good"]


@pytest.mark.parametrize("restart", [False, True])
async def test_the_ends_of_a_key_are_told_in_order_also_when_the_first_is_not_taken(
    autojump_clock: trio.testing.MockClock, restart: bool
) -> None:
    store = MemoryStore()
    told: list[str] = []
    broken = True

    async def hook(outcome: RunOutcome) -> None:
        if outcome.run_id == "b" and broken:
            raise RuntimeError("not now")
        told.append(outcome.run_id)

    options: dict[str, Any] = {"workflows": [doubling], "on_terminal": hook}
    async with open_test_runtime(store, **options) as rt:
        # Its number is the lowest, and it is the last to end.
        await rt.submit(doubling, 0, key="k", run_id="delayed", delay=5)
        for name in "abcd":
            await (await rt.submit(doubling, 1, key="k", run_id=name)).result()
        await trio.sleep(10)
        assert told == ["a"]
        if not restart:
            broken = False
            await trio.sleep(100)
    broken = False
    async with open_test_runtime(store, **options):
        await trio.sleep(1)
    assert told == ["a", "b", "c", "d", "delayed"]


async def test_a_slow_hook_holds_up_no_other_key_and_only_so_many_run_at_once(
    autojump_clock: trio.testing.MockClock,
) -> None:
    running: set[str] = set()
    most = 0
    told: list[str] = []

    async def hook(outcome: RunOutcome) -> None:
        nonlocal most
        assert outcome.key not in running, "two hooks of one key at once"
        running.add(outcome.key)
        most = max(most, len(running))
        await trio.sleep(3600 if outcome.key == "slow" else 1)
        running.remove(outcome.key)
        told.append(outcome.run_id)

    async with open_test_runtime(
        workflows=[doubling], on_terminal=hook, drain_timeout=9, hook_timeout=4000
    ) as rt:
        await rt.submit(doubling, 1, key="slow", run_id="slow")
        for number in range(40):
            for key in "abcdefghijklmnopqrstuvwxyz":
                await rt.submit(doubling, number, key=key, run_id=f"{key}-{number}")
        await trio.sleep(1000)
        assert len(told) == 40 * 26
        assert most == AT_ONCE
        for key in "abcdefghijklmnopqrstuvwxyz":
            assert [name for name in told if name[0] == key] == [f"{key}-{n}" for n in range(40)]
        await trio.sleep(3600)
        assert told[-1] == "slow"


async def test_leaving_the_block_does_not_wait_for_what_waits_to_be_told_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    hook = RecordingHook(failures=1000)
    async with open_test_runtime(workflows=[doubling], on_terminal=hook, drain_timeout=7) as rt:
        for name in "abc":
            await (await rt.submit(doubling, 1, key="k", run_id=name)).result()
    assert hook.calls == 1
    assert trio.current_time() < 1


@pytest.mark.parametrize("damaged", [["status"], ["outcomes"], ["status", "outcomes"]], ids=str)
async def test_an_end_that_is_damaged_in_both_places_holds_up_no_other_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, damaged: list[str]
) -> None:
    store = FragileStore()
    hook = RecordingHook()
    broken = RecordingHook(failures=1000)
    async with open_test_runtime(store, workflows=[doubling], on_terminal=broken) as rt:
        for name in "ab":
            await (await rt.submit(doubling, 1, key="k", run_id=name)).result()
        for table in damaged:
            store.damage(table, store.keys(table)[0])
        await trio.sleep(100)
    assert broken.calls > 1
    async with open_test_runtime(store, workflows=[doubling], on_terminal=hook):
        pass
    lost = len(damaged) == 2
    assert [outcome.run_id for outcome in hook.outcomes] == (["b"] if lost else ["a", "b"])
    assert ("cannot be delivered to on_terminal" in caplog.text) is lost
    assert len(store.keys("outcomes")) == lost


async def test_a_hook_that_raised_is_told_again_after_a_restart(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    broken, hook = RecordingHook(failures=1000), RecordingHook()
    async with open_test_runtime(store, workflows=[doubling], on_terminal=broken) as rt:
        await (await rt.submit(doubling, 1, key="k", run_id="r")).result()
        await trio.sleep(1)
    assert broken.calls > 1
    assert broken.outcomes == []
    async with open_test_runtime(store, workflows=[doubling], on_terminal=hook):
        pass
    assert [outcome.run_id for outcome in hook.outcomes] == ["r"]


async def test_leaving_the_block_tells_what_ends_in_the_drain(
    autojump_clock: trio.testing.MockClock,
) -> None:
    told: list[str] = []

    async def slow(outcome: RunOutcome) -> None:
        await trio.sleep(1)
        told.append(outcome.run_id)

    @step
    async def nap() -> None:
        await trio.sleep(5)

    @workflow
    async def napping(ctx: Context) -> None:
        await ctx.step(nap)

    async with open_test_runtime(workflows=[napping], on_terminal=slow) as rt:
        for name in "abc":
            await rt.submit(napping, key=name, run_id=name)
        await trio.testing.wait_all_tasks_blocked()
    assert sorted(told) == ["a", "b", "c"]


async def test_a_hook_that_hangs_is_left_after_the_drain_and_told_again_at_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()
    hook = RecordingHook()

    async def hanging(outcome: RunOutcome) -> None:
        await trio.sleep_forever()

    async with open_test_runtime(
        store, workflows=[doubling], on_terminal=hanging, drain_timeout=7
    ) as rt:
        await (await rt.submit(doubling, 1, key="k", run_id="r")).result()
    assert trio.current_time() == pytest.approx(7, abs=0.1)
    async with open_test_runtime(store, workflows=[doubling], on_terminal=hook):
        pass
    assert [outcome.run_id for outcome in hook.outcomes] == ["r"]


async def test_an_end_that_cannot_be_read_with_todays_code_waits_until_it_can_be(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async def mend(ctx: Context, number: int) -> int | str:
        return await ctx.step(double, number)

    @workflow(name="doubling")
    async def changed(ctx: Context, number: int) -> str:
        return str(await ctx.step(double, number))

    store = MemoryStore()
    broken, hook = RecordingHook(failures=1000), RecordingHook()
    async with open_test_runtime(store, workflows=[doubling], on_terminal=broken) as rt:
        await (await rt.submit(doubling, 1, key="k", run_id="old")).result()
    options: dict[str, Any] = {"workflows": [changed], "on_terminal": hook}
    async with open_test_runtime(store, **options) as rt:
        assert await (await rt.submit(changed, 1, key="k", run_id="behind")).result() == "2"
        assert await (await rt.submit(changed, 1, key="other", run_id="new")).result() == "2"
        await trio.sleep(1)
    assert [outcome.run_id for outcome in hook.outcomes] == ["new"]
    mended = workflow(name="doubling")(mend)
    async with open_test_runtime(store, workflows=[mended], on_terminal=hook):
        await trio.sleep(1)
    assert [outcome.run_id for outcome in hook.outcomes] == ["new", "old", "behind"]


async def test_hooks_that_hang_hold_up_the_others_for_their_timeout_only(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[tuple[str, float]] = []
    hanging = True

    async def hook(outcome: RunOutcome) -> None:
        if outcome.key.startswith("bad") and hanging:
            await trio.sleep_forever()
        told.append((outcome.run_id, trio.current_time()))

    async with open_test_runtime(workflows=[doubling], on_terminal=hook, hook_timeout=5) as rt:
        for number in range(2 * AT_ONCE):
            for place in range(2):
                await rt.submit(doubling, 1, key=f"bad-{number}", run_id=f"bad-{number}-{place}")
        began = trio.current_time()
        await trio.sleep(0.1)
        await (await rt.submit(doubling, 1, key="good", run_id="good")).result()
        await trio.sleep(30)
        assert [run_id for run_id, _ in told] == ["good"]
        assert told[0][1] - began <= 2 * 5 + 1
        (said, *_) = [each for each in caplog.records if each.__dict__["event"] == "hook_failed"]
        assert said.__dict__["run"].startswith("bad-")
        assert "did not return within its hook_timeout of 5 s" in said.getMessage()
        began = trio.current_time()
        await rt.submit(doubling, 1, key="good", run_id="good-too")
        await trio.sleep(1)
        assert told[-1][1] == began
        hanging = False
        await trio.sleep(200)
    order = [run_id for run_id, _ in told if run_id.startswith("bad-7-")]
    assert order == ["bad-7-0", "bad-7-1"]
    assert len(told) == 2 + 4 * AT_ONCE


async def test_a_hook_timeout_must_be_positive(autojump_clock: trio.testing.MockClock) -> None:
    with pytest.raises(ValueError, match="hook_timeout must be positive, got 0"):
        async with open_test_runtime(hook_timeout=0):
            pass


class Odd(BaseException):
    """An exception that is no `Exception`."""


ERRORS = [
    ValueError("no"),
    Odd("no"),
    SystemExit(2),
    GeneratorExit(),
    asyncio.CancelledError(),
    BaseExceptionGroup("several", [SystemExit(2), ValueError("no")]),
]
FOREVER = 1e9
"""Virtual seconds. Virtual time does not wait for threads, so a short limit is over at once."""
SHAPES = ["async", "sync", "partial of sync", "awaitable", "object", "partial of object"]


def hook_of(shape: str, body: Callable[[RunOutcome], None]) -> Hook:
    """A hook that does what `body` does."""

    async def in_trio(outcome: RunOutcome) -> None:
        await trio.lowlevel.checkpoint()
        body(outcome)

    def with_prefix(prefix: str, outcome: RunOutcome) -> None:
        assert prefix == "prefix"
        body(outcome)

    class Receiver:
        async def __call__(self, outcome: RunOutcome) -> None:
            await in_trio(outcome)

    shapes: dict[str, Hook] = {
        "async": in_trio,
        "sync": body,
        "partial of sync": functools.partial(with_prefix, "prefix"),
        "awaitable": lambda outcome: in_trio(outcome),
        "object": Receiver(),
        "partial of object": functools.partial(Receiver()),
    }
    return shapes[shape]


async def until(condition: Callable[[], bool]) -> None:
    """Wait for something that happens in a thread."""
    with trio.fail_after(1_000_000):
        while not condition():
            await trio.sleep(1)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
async def test_whatever_the_hook_raises_it_is_called_again_and_the_runtime_goes_on(
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    shape: str,
) -> None:
    seen: list[str] = []

    def body(outcome: RunOutcome) -> None:
        seen.append(outcome.run_id)
        if seen.count("a") < 3:
            raise error

    async with open_test_runtime(
        workflows=[doubling], on_terminal=hook_of(shape, body), hook_timeout=FOREVER
    ) as rt:
        await (await rt.submit(doubling, 1, key="k", run_id="a")).result()
        await until(lambda: len(seen) == 3)
        assert await (await rt.submit(doubling, 2, key="k", run_id="b")).result() == 4
        await until(lambda: rt.statistics().waiting_outcomes == 0)
    assert seen == ["a", "a", "a", "b"]
    failed = [each for each in caplog.records if each.__dict__["event"] == "hook_failed"]
    assert len(failed) == 2
    assert type(error).__name__ in failed[0].getMessage()


@pytest.mark.parametrize("shape", SHAPES)
async def test_a_keyboard_interrupt_of_the_hook_ends_the_runtime(
    autojump_clock: trio.testing.MockClock, shape: str
) -> None:
    store = MemoryStore()

    def interrupt(outcome: RunOutcome) -> None:
        raise KeyboardInterrupt

    with pytest.raises(BaseException) as raised:  # noqa: PT011 (a nursery may have wrapped it)
        async with open_test_runtime(
            store,
            workflows=[doubling],
            on_terminal=hook_of(shape, interrupt),
            hook_timeout=FOREVER,
        ) as rt:
            await rt.submit(doubling, 1, key="k", run_id="r")
            await trio.sleep_forever()
    assert has(raised.value, KeyboardInterrupt)
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=[doubling], on_terminal=hook):
        pass
    assert [outcome.run_id for outcome in hook.outcomes] == ["r"]


async def test_a_sync_hook_runs_in_a_thread_and_does_not_block_the_loop(
    autojump_clock: trio.testing.MockClock,
) -> None:
    threads: set[int] = set()
    going_on = threading.Event()

    def hook(outcome: RunOutcome) -> None:
        threads.add(threading.get_ident())
        # Only the loop can set it.
        assert going_on.wait(10)

    async with open_test_runtime(workflows=[doubling], on_terminal=hook, threads="real") as rt:
        await (await rt.submit(doubling, 1, key="k")).result()
        await until(lambda: bool(threads))
        going_on.set()
        await (await rt.submit(doubling, 1, key="k")).result()
        await until(lambda: rt.statistics().waiting_outcomes == 0)
    assert threading.get_ident() not in threads


async def test_a_sync_hook_that_overruns_its_time_is_reported_and_has_received_the_end(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    release, seen = threading.Event(), list[str]()

    def hook(outcome: RunOutcome) -> None:
        assert release.wait(10)
        seen.append(outcome.run_id)

    async with open_test_runtime(
        workflows=[doubling], on_terminal=hook, hook_timeout=5, threads="real"
    ) as rt:
        for name in "ab":
            await (await rt.submit(doubling, 1, key="k", run_id=name)).result()
        await trio.sleep(100)
        (said,) = [each for each in caplog.records if each.__dict__["event"] == "hook_overrun"]
        assert (
            "on_terminal for doubling run a (key k) has not returned within its"
            in said.getMessage()
        )
        release.set()
        await until(lambda: rt.statistics().waiting_outcomes == 0)
    assert seen == ["a", "b"]


@pytest.mark.parametrize("shape", ["sync", "shielded"])
async def test_a_drain_waits_for_a_hook_that_cannot_be_stopped_and_names_it(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture, shape: str
) -> None:
    store, release, seen = MemoryStore(), threading.Event(), list[str]()

    def sync(outcome: RunOutcome) -> None:
        assert release.wait(10)
        seen.append(outcome.run_id)

    async def shielded(outcome: RunOutcome) -> None:
        with trio.CancelScope(shield=True):
            while not release.is_set():
                await trio.sleep(1)
        seen.append(outcome.run_id)

    async def release_later() -> None:
        await trio.sleep(45)
        release.set()

    hook: Hook = sync if shape == "sync" else shielded
    async with trio.open_nursery() as nursery:
        async with open_test_runtime(
            store, workflows=[doubling], on_terminal=hook, drain_timeout=7, threads="real"
        ) as rt:
            await (await rt.submit(doubling, 1, key="k", run_id="r")).result()
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(release_later)
    waits = [each for each in caplog.messages if "waits for code that cannot be stopped" in each]
    assert len(waits) >= 3
    assert waits[0].endswith("on_terminal for doubling run r (key k)")
    assert seen == ["r"]
    again = RecordingHook()
    async with open_test_runtime(store, workflows=[doubling], on_terminal=again, threads="real"):
        pass
    # Keyrun waited for the call, so it knows that the hook has returned.
    assert again.calls == 0


async def test_an_error_of_a_hook_that_the_drain_cancels_does_not_leave_the_block(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = MemoryStore()

    async def raising_beside(outcome: RunOutcome) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep_forever)
            try:
                await trio.sleep_forever()
            finally:
                raise ValueError("while it is cancelled")

    async with open_test_runtime(
        store, workflows=[doubling], on_terminal=raising_beside, drain_timeout=1
    ) as rt:
        await (await rt.submit(doubling, 1, key="k", run_id="r")).result()
    hook = RecordingHook()
    async with open_test_runtime(store, workflows=[doubling], on_terminal=hook):
        pass
    assert [outcome.run_id for outcome in hook.outcomes] == ["r"]


@pytest.mark.parametrize("hook", [1, "print", [print]])
async def test_a_hook_that_is_no_function_is_refused(
    autojump_clock: trio.testing.MockClock, hook: Any
) -> None:
    with pytest.raises(TypeError, match="on_terminal must be a function of one RunOutcome, got"):
        async with open_test_runtime(on_terminal=hook):
            pass
