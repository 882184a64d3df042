"""Signals: what a run is sent, before or while it waits for it."""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from math import inf
from random import Random
from typing import Any
from unittest.mock import patch

import pytest
import trio
import trio._core._run as trio_run
from trio.testing import MockClock

from keyrun import (
    Cancel,
    Context,
    Continue,
    Delivery,
    Limits,
    RunEnded,
    RunStatus,
    Runtime,
    SignalTimeout,
    State,
    Succeed,
    Turn,
    UnknownRun,
    machine,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, crash_points, open_test_runtime
from tests.runtime.fragile import FragileStore

PATIENCE = pytest.mark.parametrize("patience", [0.5, inf])
"""Both where the run has left memory and where it has not."""


@workflow
async def taking(ctx: Context, names: list[str]) -> list[Any]:
    """What it is sent, one after the other."""
    return [await ctx.wait_signal(name) for name in names]


async def status_of(runtime: Runtime, run_id: str = "r") -> RunStatus:
    status = await runtime.status(run_id)
    assert status is not None
    return status


@PATIENCE
async def test_a_signal_reaches_the_run_that_waits_for_it(
    autojump_clock: MockClock, patience: float
) -> None:
    async with open_test_runtime(workflows=[taking], evict_after=patience) as rt:
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await trio.sleep(5)
        status = await status_of(rt)
        assert (status.state, status.waiting_on) == (State.WAITING, "signal go")
        assert await rt.signal("r", "go", {"n": 1}) is Delivery.DELIVERED
        assert await run.result() == [{"n": 1}]
        events = [each.event for each in await rt.history("r")]
        assert events == ["submitted", "started", "signal_wanted", "signal_received", "succeeded"]


async def test_signals_before_the_waiter_are_kept_in_order(autojump_clock: MockClock) -> None:
    @workflow
    async def later(ctx: Context) -> list[Any]:
        await ctx.sleep(10)
        return [await ctx.wait_signal("a"), await ctx.wait_signal("b"), await ctx.wait_signal("a")]

    async with open_test_runtime(workflows=[later]) as rt:
        run = await rt.submit(later, key="k", run_id="r")
        for name, payload in [("a", 1), ("a", 2), ("b", 3)]:
            assert await rt.signal("r", name, payload) is Delivery.BUFFERED
        assert await run.result() == [1, 3, 2]


async def test_a_run_that_has_not_started_can_be_sent_something(autojump_clock: MockClock) -> None:
    @workflow
    async def busy(ctx: Context) -> None:
        await ctx.sleep(10)

    async with open_test_runtime(workflows=[busy, taking]) as rt:
        await rt.submit(busy, key="k")
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        assert await rt.signal("r", "go", "early") is Delivery.BUFFERED
        assert await run.result() == ["early"]


@PATIENCE
async def test_replace_keeps_only_the_latest(autojump_clock: MockClock, patience: float) -> None:
    @workflow
    async def later(ctx: Context) -> list[Any]:
        await ctx.sleep(10)
        first = await ctx.wait_signal("a")
        try:
            return [first, await ctx.wait_signal("a", timeout=1)]
        except SignalTimeout:
            return [first, await ctx.wait_signal("b")]

    async with open_test_runtime(workflows=[later], evict_after=patience) as rt:
        run = await rt.submit(later, key="k", run_id="r")
        await trio.sleep(3)
        await rt.signal("r", "b", "other")
        for payload in range(3):
            await rt.signal("r", "a", payload, replace=True)
        assert await run.result() == [2, "other"]


@PATIENCE
async def test_a_wait_for_a_signal_ends_with_its_time(
    autojump_clock: MockClock, patience: float
) -> None:
    @workflow
    async def patient(ctx: Context) -> str:
        try:
            await ctx.wait_signal("go", timeout=100)
        except SignalTimeout as error:
            return str(error)
        return "sent"

    async with open_test_runtime(workflows=[patient], evict_after=patience) as rt:
        run = await rt.submit(patient, key="k", run_id="r")
        assert await run.result() == "no signal 'go' arrived within 100 s"
        assert trio.current_time() == pytest.approx(100, abs=0.01)
        with pytest.raises(RunEnded, match=r"has ended \(succeeded\)"):
            await rt.signal("r", "go")


async def test_a_timeout_that_nobody_handles_fails_the_run(autojump_clock: MockClock) -> None:
    @workflow
    async def careless(ctx: Context) -> None:
        await ctx.wait_signal("go", timeout=1)

    async with open_test_runtime(workflows=[careless]) as rt:
        run = await rt.submit(careless, key="k", run_id="r")
        with pytest.raises(RuntimeError, match="no signal 'go' arrived within 1 s"):
            await run.result()


async def test_nobody_can_send_to_runs_that_are_unknown_or_over(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[taking]) as rt:
        with pytest.raises(UnknownRun):
            await rt.signal("nobody", "go")
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await trio.sleep(3)
        await run.cancel()
        with pytest.raises(RunEnded, match=r"has ended \(cancelled\)"):
            await rt.signal("r", "go")


@PATIENCE
async def test_a_repeat_with_the_same_id_changes_nothing(
    autojump_clock: MockClock, patience: float
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[taking], evict_after=patience) as rt:
        run = await rt.submit(taking, ["go", "go"], key="k", run_id="r")
        await trio.sleep(2)
        for _ in range(3):
            await rt.signal("r", "go", 1, signal_id="once")
        await trio.sleep(2)
    async with open_test_runtime(store, workflows=[taking], evict_after=patience) as rt:
        run = await rt.submit(taking, ["go", "go"], key="k", run_id="r")
        await trio.sleep(2)
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(lambda: rt.signal("r", "go", 1, signal_id="once"))
        await trio.sleep(2)
        assert (await status_of(rt)).state is State.WAITING
        await rt.signal("r", "go", 2, signal_id="twice")
        assert await run.result() == [1, 2]


@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("when", [0.1, 5])
@PATIENCE
async def test_signals_and_waits_outlive_the_process(
    autojump_clock: MockClock, crash: bool, when: float, patience: float
) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[taking], evict_after=patience) as rt:
        await rt.submit(taking, ["a", "b"], key="k", run_id="r")
        await rt.signal("r", "b", "early")
        await trio.sleep(when)
        if crash:
            store.crash()
            await trio.sleep_forever()
    async with open_test_runtime(store, workflows=[taking], evict_after=patience) as rt:
        run = await rt.submit(taking, ["a", "b"], key="k", run_id="r")
        await rt.signal("r", "a", "late")
        assert await run.result() == ["late", "early"]
    assert store.keys("signals") == []


@PATIENCE
async def test_several_who_wait_are_served_in_the_order_in_which_they_began(
    autojump_clock: MockClock, patience: float
) -> None:
    async def take(ctx: Context, after: float) -> Any:
        await ctx.sleep(after)
        return await ctx.wait_signal("go")

    @workflow
    async def both(ctx: Context) -> list[Any]:
        return list(
            await ctx.gather(
                lambda ctx: take(ctx, 3), lambda ctx: take(ctx, 1), lambda ctx: take(ctx, 2)
            )
        )

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[both], evict_after=patience) as rt:
        await rt.submit(both, key="k", run_id="r")
        await trio.sleep(10)
        await rt.pause("r")
        await rt.signal("r", "go", "first")
        await rt.signal("r", "go", "second")
    async with open_test_runtime(store, workflows=[both], evict_after=patience) as rt:
        run = await rt.submit(both, key="k", run_id="r")
        await rt.resume("r")
        await rt.signal("r", "go", "third")
        assert await run.result() == ["third", "first", "second"]


@PATIENCE
async def test_a_repeat_is_harmless_also_when_the_run_that_took_it_has_ended(
    autojump_clock: MockClock, patience: float
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[taking], evict_after=patience) as rt:
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await rt.signal("r", "go", 1, signal_id="taken")
        assert await run.result() == [1]
        assert await rt.signal("r", "go", 1, signal_id="taken") is Delivery.DELIVERED
    async with open_test_runtime(store, workflows=[taking], evict_after=patience) as rt:
        assert await rt.signal("r", "go", 1, signal_id="taken") is Delivery.DELIVERED
        with pytest.raises(RunEnded):
            await rt.signal("r", "go", 1, signal_id="other")


@PATIENCE
async def test_a_repeat_of_what_a_run_has_not_taken_by_its_end_is_told_so(
    autojump_clock: MockClock, patience: float
) -> None:
    async with open_test_runtime(workflows=[taking], evict_after=patience) as rt:
        await rt.submit(taking, ["go"], key="k", run_id="r")
        await trio.sleep(5)
        await rt.signal("r", "else", 1, signal_id="left")
        assert await rt.signal("r", "else", 1, signal_id="left") is Delivery.BUFFERED
        await rt.cancel("r")
        with pytest.raises(RunEnded):
            await rt.signal("r", "else", 1, signal_id="left")


@PATIENCE
async def test_whoever_is_served_waits_behind_those_who_have_nothing_yet(
    autojump_clock: MockClock, patience: float
) -> None:
    async def two(ctx: Context) -> tuple[Any, Any]:
        return await ctx.wait_signal("go"), await ctx.wait_signal("go")

    @workflow
    async def both(ctx: Context) -> list[Any]:
        return sorted(await ctx.gather(two, two))

    async with open_test_runtime(workflows=[both], evict_after=patience) as rt:
        run = await rt.submit(both, key="k", run_id="r")
        await trio.sleep(10)
        for number in range(4):
            await rt.signal("r", "go", number)
        assert await run.result() == [(0, 2), (1, 3)]


async def test_a_signal_that_a_cancelled_branch_did_not_take_is_there_for_others(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def flow(ctx: Context) -> Any:
        with ctx.move_on_after(5):
            await ctx.wait_signal("go")
        return await ctx.wait_signal("go")

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as rt:
        run = await rt.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
        assert (await status_of(rt)).waiting_on == "signal go"
    async with open_test_runtime(store, workflows=[flow]) as rt:
        run = await rt.submit(flow, key="k", run_id="r")
        await trio.sleep(10)
        assert await rt.signal("r", "go", "late") is Delivery.DELIVERED
        assert await run.result() == "late"


async def test_a_paused_run_keeps_what_it_is_sent(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[taking]) as rt:
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await trio.sleep(3)
        await rt.pause("r")
        await rt.signal("r", "go", 1)
        await trio.sleep(100)
        assert (await status_of(rt)).state is State.PAUSED
        await rt.resume("r")
        assert await run.result() == [1]


async def test_a_signal_and_a_step_after_it_survive_a_crash_at_every_commit(
    autojump_clock: MockClock,
) -> None:
    ran: list[int] = []

    @step
    async def use(number: int) -> int:
        ran.append(number)
        return number * 2

    @workflow
    async def flow(ctx: Context) -> int:
        total = 0
        for _ in range(3):
            total += await ctx.step(use, await ctx.wait_signal("number"))
        return total

    async def scenario(rt: Runtime) -> int:
        run = await rt.submit(flow, key="k", run_id="r")
        for number in (1, 2, 3):
            await trio.sleep(2)
            try:
                await rt.signal("r", "number", number, signal_id=str(number))
            except RunEnded:
                break
        return await run.result()

    for point in crash_points():
        assert await point.run(scenario, workflows=[flow]) == 12, point


async def test_a_cancelled_run_forgets_what_it_was_sent(autojump_clock: MockClock) -> None:
    store = FragileStore()
    async with open_test_runtime(store, workflows=[taking]) as rt:
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await rt.signal("r", "else", 1)
        await trio.sleep(3)
        assert store.keys("signals")
        assert await run.cancel()
    assert store.keys("signals") == []
    assert store.keys("timers") == []


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "name must be a non-empty string"),
        (7, "name must be a non-empty string"),
        ("x" * 201, "at most 200 bytes"),
        ("keyrun.mine", "reserved"),
        ("\ud800", "valid Unicode"),
    ],
)
async def test_names_of_signals_are_checked(name: Any, said: str) -> None:
    async with open_test_runtime(workflows=[taking]) as rt:
        with pytest.raises(ValueError, match=said):
            await rt.signal("r", name)


async def test_another_name_in_changed_code_contradicts_the_journal(
    autojump_clock: MockClock,
) -> None:
    def asking(name: str) -> Any:
        @workflow(name="asking")
        async def asking(ctx: Context) -> Any:
            return await ctx.wait_signal(name)

        return asking

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[asking("a")], evict_after=inf) as rt:
        await rt.submit(asking("a"), key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[asking("b")]) as rt:
        await trio.sleep(1)
        status = await status_of(rt)
        assert status.state is State.QUARANTINED
        assert "wait_signal()" in str(status.reason)


@PATIENCE
async def test_a_machine_turns_when_it_is_sent_something(
    autojump_clock: MockClock, patience: float
) -> None:
    @machine(name="door")
    async def door(turn: Turn) -> Any:
        heard = [*(turn.payload or [])]
        if turn.signal is not None:
            heard.append((turn.signal.name, turn.signal.payload))
        elif turn.number:
            return Succeed([*heard, "quiet"])
        return Continue(heard, on_signal="knock", timeout=50)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[door], evict_after=patience) as rt:
        await rt.submit(door, key="k", run_id="r")
        await rt.signal("r", "knock", 1)
        await trio.sleep(10)
        assert (await status_of(rt)).waiting_on == "signal knock"
    async with open_test_runtime(store, workflows=[door], evict_after=patience) as rt:
        run = await rt.submit(door, key="k", run_id="r")
        await trio.sleep(10)
        assert await rt.signal("r", "knock", 2) is Delivery.DELIVERED
        assert await run.result() == [("knock", 1), ("knock", 2), "quiet"]
        assert trio.current_time() == pytest.approx(70, abs=0.1)


async def test_a_machine_on_signals_survives_a_crash_at_every_commit(
    autojump_clock: MockClock,
) -> None:
    @machine(name="counter")
    async def counter(turn: Turn) -> Any:
        total = turn.payload or 0
        if turn.signal is not None:
            total += turn.signal.payload
        return Succeed(total) if total >= 6 else Continue(total, on_signal="add")

    async def scenario(rt: Runtime) -> int:
        run = await rt.submit(counter, key="k", run_id="r")
        for number in (1, 2, 3):
            await trio.sleep(2)
            try:
                await rt.signal("r", "add", number, signal_id=str(number))
            except RunEnded:
                break
        return int(await run.result())

    for point in crash_points():
        assert await point.run(scenario, workflows=[counter]) == 6, point


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Continue(on_signal=""), "on_signal must be a non-empty"),
        (lambda: Continue(timeout=1), "timeout requires on_signal"),
        (lambda: Continue(on_signal="a", after=1), "give after or on_signal"),
        (lambda: Continue(on_signal="a", timeout=-1), "timeout must be at least 0"),
    ],
)
async def test_a_turn_says_clearly_what_it_waits_for(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


async def test_the_deadline_of_a_run_holds_while_it_waits_for_a_signal(
    autojump_clock: MockClock,
) -> None:
    hook = RecordingHook()
    async with open_test_runtime(workflows=[taking], on_terminal=hook) as rt:
        run = await rt.submit(taking, ["go"], key="k", run_id="r", limits=Limits(run_timeout=60))
        with pytest.raises(RuntimeError, match="run_timeout of 60 s"):
            await run.result()
        assert trio.current_time() == pytest.approx(60, abs=0.01)
    assert [outcome.state for outcome in hook.outcomes] == [State.FAILED]


Racer = Callable[[Runtime], Awaitable[object]]


@pytest.mark.parametrize("ticks", range(12))
async def test_a_signal_that_races_with_leaving_memory_is_not_lost(
    autojump_clock: MockClock, ticks: int
) -> None:
    """Sent just before, while and after the run leaves memory, commit by commit."""
    store = FragileStore(latency=1)
    async with open_test_runtime(store, workflows=[taking], evict_after=5) as rt:
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await trio.sleep(5 + ticks / 2)
        await rt.signal("r", "go", ticks)
        with trio.fail_after(50):
            assert await run.result() == [ticks]
    assert store.keys("queue") == store.keys("signals") == store.keys("timers") == []


async def test_a_machine_can_end_what_it_waits_in(autojump_clock: MockClock) -> None:
    @machine(name="once")
    async def once(turn: Turn) -> Any:
        return Cancel("nobody came") if turn.number else Continue(on_signal="go", timeout=5)

    async with open_test_runtime(workflows=[once]) as rt:
        run = await rt.submit(once, key="k", run_id="r")
        with pytest.raises(RuntimeError, match="nobody came"):
            await run.result()


async def test_what_was_sent_while_a_run_was_leaving_is_replaced(autojump_clock: MockClock) -> None:
    for _ in range(8):  # which of the two goes on first is up to the scheduler
        store = MemoryStore(latency=0.5)
        async with open_test_runtime(store, workflows=[taking], evict_after=0.1) as rt:
            run = await rt.submit(taking, ["go", "end"], key="k", run_id="r")
            await trio.sleep(0.01)
            while rt.statistics().live:
                await trio.sleep(0.05)
            # It has left, and that is not durable.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(rt.signal, "r", "go", "first")
                nursery.start_soon(partial(rt.signal, "r", "go", "second", replace=True))
            await rt.signal("r", "end")
            assert await run.result() == ["second", None]


async def test_what_was_replaced_is_not_taken_by_a_run_that_begins_just_then(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def before(ctx: Context) -> None:
        await ctx.sleep(20)

    store = MemoryStore(latency=0.5)
    async with open_test_runtime(store, workflows=[taking, before], evict_after=inf) as rt:
        await rt.submit(before, key="k")
        due = trio.current_time() + 20
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await rt.signal("r", "go", "first")
        await trio.sleep_until(due - 0.1)
        await rt.signal("r", "go", "second", replace=True)
        assert await run.result() == ["second"]


async def test_who_is_sent_something_while_it_leaves_is_woken_in_the_same_commit(
    autojump_clock: MockClock,
) -> None:
    ran: list[int] = []

    @step
    async def react() -> None:
        ran.append(store.commits)

    @workflow
    async def reacting(ctx: Context) -> None:
        while await ctx.wait_signal("go"):
            await ctx.step(react)

    store = FragileStore()
    async with open_test_runtime(store, workflows=[reacting], evict_after=0.1) as rt:
        run = await rt.submit(reacting, key="k", run_id="r")
        for late in (0.0, 1.0):
            while rt.statistics().live == 0:
                await trio.sleep(0.001)
            while rt.statistics().live:
                await trio.sleep(0.001)
            await trio.sleep(late)  # what it left is staged, or durable
            before = store.commits
            await rt.signal("r", "go", True)
            await trio.sleep(0.05)
            assert ran.pop() - before == 2  # the signal, and that it was taken
        await rt.signal("r", "go", False)
        await run.result()
    assert store.keys("signals") == store.keys("timers") == store.keys("queue") == []


async def test_who_is_sent_something_while_it_leaves_gets_it_through_a_crash_at_any_commit(
    autojump_clock: MockClock,
) -> None:
    async def scenario(rt: Runtime) -> list[Any]:
        run = await rt.submit(taking, ["a", "b", "c"], key="k", run_id="r")
        for name in "abc":
            await trio.sleep(0.15)
            with suppress(RunEnded):
                await rt.signal("r", name, name, signal_id=name)
        return await run.result()

    for point in crash_points():
        told = await point.run(scenario, workflows=[taking], evict_after=0.1)
        assert told == ["a", "b", "c"], point


async def test_who_is_cancelled_while_somebody_wakes_it_leaves_no_place_behind(
    autojump_clock: MockClock,
) -> None:
    store = FragileStore(latency=0.5)
    said: list[object] = []
    async with open_test_runtime(store, workflows=[taking], evict_after=0.1) as rt:
        run = await rt.submit(taking, ["go"], key="k", run_id="r")
        await trio.sleep(0.01)
        while rt.statistics().live:
            await trio.sleep(0.01)
        await trio.sleep(0.1)  # that it has left is being committed

        async def signal() -> None:
            try:
                said.append(await rt.signal("r", "go"))
            except RunEnded:
                said.append(RunEnded)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(signal)
            await trio.sleep(0.1)
            assert await run.cancel()
        assert said == [RunEnded]
        await trio.sleep(5)
        assert rt.statistics().backlog.pending == rt.statistics().keys == 0
    assert store.keys("queue") == store.keys("signals") == []


@workflow
async def busy_then_taking(ctx: Context, names: list[str]) -> list[Any]:
    """Works before it waits, and ends when it is told to."""
    await ctx.step(working)

    def waiting(name: str) -> Callable[[Context], Awaitable[Any]]:
        return lambda ctx: ctx.wait_signal(name)

    taken = await ctx.gather(*map(waiting, names))
    await ctx.wait_signal("end")
    return sorted(taken, key=str)


@step
async def working() -> None:
    await trio.sleep(1)


@pytest.mark.parametrize("gap", [0, 0.005, 0.5])
@pytest.mark.parametrize("names", [["go"], ["go", "go"], ["stop", "go"]])
@PATIENCE
async def test_a_signal_right_after_the_open_is_delivered_to_a_run_that_waits_for_it(
    autojump_clock: MockClock, patience: float, names: list[str], gap: float
) -> None:
    """The run is not in memory yet, is being replayed, or is back at its wait."""
    store, waits = MemoryStore(latency=0.01), names.count("go")
    async with open_test_runtime(store, workflows=[busy_then_taking], evict_after=patience) as rt:
        await rt.submit(busy_then_taking, names, key="k", run_id="r")
        await rt.submit(busy_then_taking, ["go"], key="k", run_id="behind")
        await trio.sleep(5)
        store.crash()
    async with open_test_runtime(store, workflows=[busy_then_taking]) as rt:
        await trio.sleep(gap)
        answers = [await rt.signal("r", "go", n) for n in range(3)]
        assert answers == [Delivery.DELIVERED] * waits + [Delivery.BUFFERED] * (3 - waits)
        assert await rt.signal("behind", "go") is Delivery.BUFFERED
        if "stop" in names:
            assert await rt.signal("r", "stop", "enough") is Delivery.DELIVERED
        await rt.signal("r", "end")
        with trio.fail_after(60):
            result = await (await rt.submit(busy_then_taking, names, key="k", run_id="r")).result()
        assert result == [*range(waits), *["enough"] * ("stop" in names)]


async def test_a_signal_to_a_run_that_works_again_before_it_waits_is_buffered(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[busy_then_taking]) as rt:
        await rt.submit(busy_then_taking, ["go"], key="k", run_id="r")
        await trio.sleep(0.5)
        store.crash()
    async with open_test_runtime(store, workflows=[busy_then_taking]) as rt:
        assert await rt.signal("r", "go", 1) is Delivery.BUFFERED
        await rt.signal("r", "end")
        with trio.fail_after(60):
            run = await rt.submit(busy_then_taking, ["go"], key="k", run_id="r")
            assert await run.result() == [1]


async def test_signals_right_after_the_open_are_delivered_to_many_runs_that_wait(
    autojump_clock: MockClock,
) -> None:
    """Most of the runs are not in memory yet."""
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[taking], evict_after=inf) as rt:
        for n in range(300):
            await rt.submit(taking, ["go"], key=f"k{n}", run_id=f"r{n}")
        await trio.sleep(5)
        store.crash()
    async with open_test_runtime(store, workflows=[taking], max_concurrent_steps=1) as rt:
        answers = []

        async def send(n: int) -> None:
            answers.append(await rt.signal(f"r{n}", "go", n))

        async with trio.open_nursery() as nursery:
            for n in range(300):
                nursery.start_soon(send, n)
        assert answers == [Delivery.DELIVERED] * 300


async def taking_two(ctx: Context) -> tuple[Any, Any]:
    return await ctx.wait_signal("go"), await ctx.wait_signal("go")


@workflow
async def taking_in_branches(ctx: Context, branches: int) -> list[Any]:
    return sorted(await ctx.gather(*[taking_two] * branches))


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("branches", [2, 5])
def test_waiters_are_served_in_order_after_an_eviction(branches: int, seed: int) -> None:
    """However Trio orders the tasks that replay the run."""

    async def scene() -> None:
        async with open_test_runtime(workflows=[taking_in_branches], evict_after=0.5) as rt:
            run = await rt.submit(taking_in_branches, branches, key="k", run_id="r")
            await trio.sleep(10)
            for number in range(2 * branches):
                await rt.signal("r", "go", number)
            assert await run.result() == [(n, n + branches) for n in range(branches)]

    with patch.object(trio_run, "_r", Random(seed)):
        trio.run(scene, clock=MockClock(autojump_threshold=0))
