"""Approvals: gates at which a run waits until a person decides."""

from contextlib import suppress
from math import inf
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    ApprovalRejected,
    Context,
    GateNotWaiting,
    RunEnded,
    Runtime,
    SignalTimeout,
    UnknownRun,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.testing import crash_points, open_test_runtime
from keyrun.types import Approval

PATIENCE = pytest.mark.parametrize("patience", [0.5, inf])


@workflow
async def gated(ctx: Context, gates: list[str]) -> list[Any]:
    """What came of each gate."""
    told: list[Any] = []
    for gate in gates:
        try:
            approval = await ctx.approval(gate, timeout=1000)
            told.append((approval.gate, approval.by, approval.comment))
        except ApprovalRejected as error:
            told.append((error.step, error.by, "no: " + error.comment))
        except SignalTimeout:
            told.append("late")
    return told


@PATIENCE
async def test_a_gate_opens_when_somebody_approves_also_after_a_restart(
    autojump_clock: MockClock, patience: float
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[gated], evict_after=patience) as rt:
        await rt.submit(gated, ["manager"], key="k", run_id="r")
        await trio.sleep(5)
        status = await rt.status("r")
        assert status is not None
        assert status.waiting_on == "approval manager"
    async with open_test_runtime(store, workflows=[gated], evict_after=patience) as rt:
        run = await rt.submit(gated, ["manager"], key="k", run_id="r")
        await rt.approve("r", "manager", by="ann", comment="fine")
        assert await run.result() == [("manager", "ann", "fine")]
        (approved,) = [each for each in await rt.history("r") if each.event == "approved"]
        assert approved.detail == "manager, by ann: fine"


@PATIENCE
async def test_reject_and_timeout_are_told_apart(
    autojump_clock: MockClock, patience: float
) -> None:
    async with open_test_runtime(workflows=[gated], evict_after=patience) as rt:
        run = await rt.submit(gated, ["a", "b"], key="k", run_id="r")
        await trio.sleep(5)
        await rt.reject("r", "a", by="bob", comment="too dear")
        assert await run.result() == [("a", "bob", "no: too dear"), "late"]
        assert trio.current_time() == pytest.approx(1005, abs=0.1)
        events = [each.event for each in await rt.history("r")]
        assert "rejected" in events
        assert "approval_timed_out" in events


@PATIENCE
async def test_a_gate_is_settled_once(autojump_clock: MockClock, patience: float) -> None:
    async with open_test_runtime(workflows=[gated], evict_after=patience) as rt:
        run = await rt.submit(gated, ["a"], key="k", run_id="r")
        await trio.sleep(5)
        await rt.pause("r")
        await rt.approve("r", "a", by="ann")
        with pytest.raises(GateNotWaiting, match="was decided already"):
            await rt.reject("r", "a", by="bob")
        await rt.resume("r")
        assert await run.result() == [("a", "ann", "")]
        with pytest.raises(RunEnded):
            await rt.approve("r", "a", by="ann")


async def test_a_gate_that_nobody_waits_at_is_refused_and_the_open_ones_named(
    autojump_clock: MockClock,
) -> None:
    async with open_test_runtime(workflows=[gated]) as rt:
        with pytest.raises(UnknownRun):
            await rt.approve("r", "a", by="ann")
        await rt.submit(gated, ["a", "b"], key="k", run_id="r")
        await rt.submit(gated, ["a"], key="k", run_id="behind")
        await trio.sleep(5)
        with pytest.raises(GateNotWaiting, match="'b': it waits at 'a'"):
            await rt.approve("r", "b", by="ann")
        with pytest.raises(GateNotWaiting, match="it waits at no gate"):
            await rt.approve("behind", "a", by="ann")


async def test_gates_in_loops_are_numbered(autojump_clock: MockClock) -> None:
    async with open_test_runtime(workflows=[gated]) as rt:
        run = await rt.submit(gated, ["a", "a"], key="k", run_id="r")
        await trio.sleep(5)
        with pytest.raises(GateNotWaiting):
            await rt.approve("r", "a#2", by="ann")
        await rt.approve("r", "a", by="ann")
        await trio.sleep(5)
        await rt.approve("r", "a#2", by="bob")
        assert await run.result() == [("a", "ann", ""), ("a#2", "bob", "")]


async def test_gates_in_branches_have_the_name_of_their_branch(autojump_clock: MockClock) -> None:
    async def ask(ctx: Context) -> Approval:
        return await ctx.approval("a")

    @workflow
    async def both(ctx: Context) -> list[str]:
        return [one.by for one in await ctx.gather(ask, ask)]

    async with open_test_runtime(workflows=[both]) as rt:
        run = await rt.submit(both, key="k", run_id="r")
        await trio.sleep(5)
        await rt.approve("r", "g1.1/a", by="ann")
        await rt.approve("r", "g1.0/a", by="bob")
        assert await run.result() == ["bob", "ann"]


async def test_a_decision_survives_a_crash_at_every_commit(autojump_clock: MockClock) -> None:
    async def scenario(rt: Runtime) -> list[Any]:
        run = await rt.submit(gated, ["a", "b"], key="k", run_id="r")
        for gate in ("a", "b"):
            await trio.sleep(3)
            with suppress(GateNotWaiting, RunEnded):
                await rt.approve("r", gate, by="ann")
        return await run.result()

    expected = [("a", "ann", ""), ("b", "ann", "")]
    for point in crash_points():
        assert await point.run(scenario, workflows=[gated]) == expected, point


@pytest.mark.parametrize("gate", ["", "a#2", "a/b", "keyrun.a", 7])
async def test_names_of_gates_are_checked(autojump_clock: MockClock, gate: Any) -> None:
    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.approval(gate)
        except ValueError as error:
            return str(error)
        raise AssertionError

    async with open_test_runtime(workflows=[flow]) as rt:
        assert "gate must" in await (await rt.submit(flow, key="k")).result()


async def test_a_decision_says_who_decides() -> None:
    async with open_test_runtime(workflows=[gated]) as rt:
        with pytest.raises(ValueError, match="by must say who decides"):
            await rt.approve("r", "a", by="")
        for gate in ("", None):
            with pytest.raises(ValueError, match="gate must be a non-empty string"):
                await rt.approve("r", gate, by="ann")  # type: ignore[arg-type]


async def test_of_two_decisions_while_a_run_is_leaving_one_counts(
    autojump_clock: MockClock,
) -> None:
    @workflow
    async def gated(ctx: Context) -> str:
        return (await ctx.approval("gate")).by

    said: list[str] = []
    store = MemoryStore(latency=0.5)
    async with open_test_runtime(store, workflows=[gated], evict_after=0.1) as rt:
        run = await rt.submit(gated, key="k", run_id="r")
        await trio.sleep(0.7)
        assert rt.statistics().live == 0  # and that is not durable

        async def approve(by: str) -> None:
            try:
                await rt.approve("r", "gate", by=by)
            except GateNotWaiting as error:
                said.append(str(error))

        async with trio.open_nursery() as nursery:
            for by in ("ann", "bob"):
                nursery.start_soon(approve, by)
                await trio.sleep(0.01)
        assert await run.result() in ("ann", "bob")
    assert said == ["the run 'r' does not wait at the gate 'gate': the gate was decided already"]


@workflow
async def in_time(ctx: Context) -> str:
    with ctx.move_on_after(10):
        return (await ctx.approval("gate")).by
    with ctx.move_on_after(10):
        return (await ctx.approval("gate")).by + ", later"
    return "nobody"


@PATIENCE
@pytest.mark.parametrize("latency", [0.0, 0.01])
async def test_a_decision_that_was_accepted_counts_also_if_the_time_is_up_when_the_run_comes_back(
    autojump_clock: MockClock, patience: float, latency: float
) -> None:
    told: list[tuple[bool, str]] = []
    store = MemoryStore(latency=latency)
    async with open_test_runtime(store, workflows=[in_time], evict_after=patience) as rt:

        async def decide(number: int) -> None:
            name = f"r{number}"
            run = await rt.submit(in_time, key=name, run_id=name)
            await trio.sleep(9.9 + number / 200)
            try:
                await rt.approve(name, "gate", by="ann")
            except GateNotWaiting:
                told.append((False, await run.result()))
            else:
                told.append((True, await run.result()))

        async with trio.open_nursery() as nursery:
            for number in range(40):
                nursery.start_soon(decide, number)
    assert set(told) == {(True, "ann"), (False, "nobody")}


@PATIENCE
async def test_a_decision_counts_also_if_its_time_is_up_at_the_next_start(
    autojump_clock: MockClock, patience: float
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[in_time], evict_after=patience) as rt:
        await rt.submit(in_time, key="k", run_id="r")
        await trio.sleep(5)
        await rt.pause("r")
        await rt.approve("r", "gate", by="ann")
        store.crash()
    await trio.sleep(100)
    async with open_test_runtime(store, workflows=[in_time], evict_after=patience) as rt:
        await rt.resume("r")
        assert await (await rt.submit(in_time, key="k", run_id="r")).result() == "ann"
