"""An evicted run whose workflow the open does not have is quarantined without being loaded."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Delivery,
    Limits,
    RunCancelled,
    RunEnded,
    RunHandle,
    RunQuarantined,
    Runtime,
    State,
    UnknownWorkflow,
    Workflow,
    open_reader,
    step,
    workflow,
)
from keyrun.groups import Member
from keyrun.status import QuarantineCause
from keyrun.storage import MemoryStore
from keyrun.testing import RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore

undone: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_undone() -> None:
    undone.clear()


@step
async def take_back(why: Compensation) -> None:
    undone.append(why.step)


@step(compensate=take_back)
async def charge() -> None: ...


@workflow(name="listens")
async def listens(ctx: Context) -> str:
    await ctx.step(charge)
    payload: str = await ctx.wait_signal("go", timeout=1000)
    return payload


@workflow(name="listens", version=2)
async def listens_better(ctx: Context) -> str:
    await ctx.step(charge)
    return f"better {await ctx.wait_signal('go', timeout=1000)}"


@workflow(name="yields", while_waiting="yield", limits=Limits(run_timeout=10_000))
async def yields(ctx: Context) -> str:
    payload: str = await ctx.wait_signal("go")
    return payload


@workflow
async def other(ctx: Context) -> str:
    return "other"


@workflow(name="parent")
async def parent(ctx: Context) -> str:
    return await ctx.child(listens, None, key="child")


EACH = pytest.mark.parametrize("flow", [listens, yields], ids=lambda flow: flow.name)


@asynccontextmanager
async def opened(
    store: MemoryStore, *workflows: Workflow[Any, Any], **options: Any
) -> AsyncIterator[Runtime]:
    async with open_test_runtime(store, workflows=workflows, evict_after=0.2, **options) as rt:
        await trio.sleep(5)
        yield rt


async def evicted(store: MemoryStore, flow: Workflow[Any, Any]) -> None:
    """Leave an evicted run."""
    async with opened(store, flow) as rt:
        await rt.submit(flow, key="k", run_id="r")
        await trio.sleep(5)
        assert await state(rt, "r") is State.WAITING
        assert rt.statistics().live == 0


async def state(rt: Runtime, run_id: str) -> State:
    status = await rt.status(run_id)
    assert status is not None
    return status.state


async def handle(rt: Runtime, run_id: str) -> RunHandle[Any]:
    """The handle of a run that cannot be submitted again, because its workflow is missing."""
    ledger = rt._partition.state.ledger
    number = await ledger.find(run_id)
    submission = None if number is None else await ledger.submission(number)
    assert submission is not None
    return RunHandle(rt, submission, False)


@EACH
async def test_it_is_quarantined_wherever_it_is_shown_and_waits_again_with_its_workflow(
    autojump_clock: MockClock, flow: Workflow[Any, Any]
) -> None:
    store = MemoryStore()
    await evicted(store, flow)
    for _ in range(2):
        async with opened(store, other) as rt, open_reader(store) as reader:
            for view in (rt, reader):
                status = await view.status("r")
                assert status is not None
                assert status.state is State.QUARANTINED
                assert status.quarantine_cause is QuarantineCause.UNREGISTERED
                assert "is not registered; pass it to open_runtime" in str(status.reason)
                assert (status.waiting_on, status.waiting_until) == (None, None)
                assert await view.runs() == await view.runs(state=State.QUARANTINED) == [status]
                assert await view.runs(state=State.WAITING) == []
                progress = await view.progress("r")
                assert progress is not None
                assert progress.state is State.QUARANTINED
                if flow is listens:  # the other one does not hold its key
                    (key,) = await view.keys(quarantined=True)
                    assert (key.key, key.head, key.reason) == ("k", "r", status.reason)
                    assert key.quarantine_cause is QuarantineCause.UNREGISTERED
            assert rt.statistics().live == 0
    async with open_reader(store, workflows=[flow]) as reader:
        # What counts is what the runtime had that opened the store last.
        assert [run.state for run in await reader.runs()] == [State.QUARANTINED]
    async with opened(store, flow) as rt, open_reader(store) as reader:
        assert [run.state for run in await reader.runs()] == [State.WAITING]
        assert await state(rt, "r") is State.WAITING
        assert rt.statistics().live == 0
        assert await rt.signal("r", "go", "now") is Delivery.DELIVERED
        assert await (await handle(rt, "r")).result() == "now"


@EACH
async def test_its_result_raises_at_the_call(
    autojump_clock: MockClock, flow: Workflow[Any, Any]
) -> None:
    store = MemoryStore()
    await evicted(store, flow)
    async with opened(store, other) as rt:
        with trio.fail_after(0.001), pytest.raises(RunQuarantined) as caught:
            await (await handle(rt, "r")).result()
        assert caught.value.cause is QuarantineCause.UNREGISTERED


async def test_a_run_behind_it_names_it_and_runs_when_it_is_gone(
    autojump_clock: MockClock,
) -> None:
    for end in ("cancel", "forget"):
        store = MemoryStore()
        await evicted(store, listens)
        async with opened(store, other) as rt:
            run = await rt.submit(other, key="k", run_id="behind")
            await trio.sleep(5)
            status = await rt.status("behind")
            assert status is not None
            assert (status.state, status.waiting_on) == (State.PENDING, "run r (quarantined)")
            assert rt.statistics().backlog.pending == 1
            await getattr(rt, end)("r")
            assert await run.result() == "other"
            assert rt.statistics().backlog.pending == 0
            assert await rt.unfinished() == {}


@EACH
async def test_it_can_be_cancelled_without_its_compensations(
    autojump_clock: MockClock, flow: Workflow[Any, Any]
) -> None:
    store, hook = FragileStore(), RecordingHook()
    await evicted(store, flow)
    async with opened(store, other, on_terminal=hook) as rt:
        run = await handle(rt, "r")
        assert await rt.cancel("r") is True
        with pytest.raises(RunCancelled):
            await run.result()
        assert await rt.cancel("r") is False
        assert [len(store.keys(table)) for table in ("queue", "timers")] == [0, 0]
    assert [outcome.run_id for outcome in hook.outcomes] == ["r"]
    assert undone == []


@EACH
@pytest.mark.parametrize("paused", [False, True])
async def test_it_can_be_forgotten(
    autojump_clock: MockClock, flow: Workflow[Any, Any], paused: bool
) -> None:
    """Also right after another operation, when memory knows it again."""
    store = FragileStore()
    await evicted(store, flow)
    async with opened(store, other) as rt:
        async with trio.open_nursery() as nursery:
            if paused:
                nursery.start_soon(rt.pause, "r")
                await trio.lowlevel.checkpoint()
            nursery.start_soon(rt.forget, "r")
        assert await rt.status("r") is None
        left = ("runs", "status", "queue", "timers", "journal", "ids", "unfinished")
        assert [len(store.keys(table)) for table in left] == [0] * len(left)
        assert await (await rt.submit(other, key="k", run_id="r")).result() == "other"
        assert rt.statistics().backlog.pending == 0
    async with opened(store, flow) as rt:
        await trio.sleep(2000)  # no timer of it is left


@pytest.mark.parametrize("release", [False, True])
async def test_a_redrive_takes_the_version_that_is_registered(
    autojump_clock: MockClock, release: bool
) -> None:
    store = MemoryStore()
    await evicted(store, listens)
    async with opened(store, other) as rt:
        with pytest.raises(UnknownWorkflow):
            await (rt.release_key("k") if release else rt.redrive("r"))
        assert await state(rt, "r") is State.QUARANTINED
    async with opened(store, listens_better) as rt:
        assert await state(rt, "r") is State.QUARANTINED
        assert await (rt.release_key("k") if release else rt.redrive("r")) == 1
        await trio.sleep(5)
        assert await state(rt, "r") is State.WAITING
        assert await rt.unfinished() == {("listens", 2): 1}
        await rt.signal("r", "go", "late")
        assert await (await handle(rt, "r")).result() == "better late"
        assert await rt.unfinished() == {}


async def test_two_redrives_at_once_and_one_while_it_is_woken_do_no_harm(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore(latency=0.1)
    await evicted(store, listens)
    async with opened(store, listens_better) as rt:
        redriven = []

        async def redrive() -> None:
            with suppress(RunEnded):  # another call was first
                redriven.append(await rt.redrive("r"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(rt.signal, "r", "go", "soon")
            for _ in range(3):
                nursery.start_soon(redrive)
                await trio.sleep(0.03)
        assert redriven[0] == 1
        assert await (await handle(rt, "r")).result() == "better soon"
        assert rt.statistics().backlog.pending == 0


@EACH
async def test_a_timer_or_a_signal_loads_it_and_it_stays_quarantined(
    autojump_clock: MockClock, flow: Workflow[Any, Any]
) -> None:
    store = MemoryStore()
    await evicted(store, flow)
    async with opened(store, other) as rt:
        assert await rt.signal("r", "go", "now") is Delivery.BUFFERED
        await trio.sleep(20_000)
        assert await state(rt, "r") is State.QUARANTINED
    async with opened(store, flow) as rt:
        if flow is listens:
            assert await (await handle(rt, "r")).result() == "now"


async def test_a_pause_does_not_hide_it_and_holds_after_the_workflow_is_back(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    await evicted(store, listens)
    async with opened(store, other) as rt:
        assert await rt.pause("r") is True
        assert await state(rt, "r") is State.QUARANTINED
    async with opened(store, listens) as rt:
        assert await state(rt, "r") is State.PAUSED
        await rt.signal("r", "go", "now")
        await trio.sleep(5)
        assert await rt.resume("r") is True
        assert await (await handle(rt, "r")).result() == "now"


async def test_its_parent_and_its_group_name_it(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    async with opened(store, parent, listens) as rt:
        await rt.submit(parent, key="parent", run_id="parent")
        await rt.submit_group("batch", [Member(listens, key="member")])
        await trio.sleep(5)
    async with opened(store, parent) as rt:
        assert rt.statistics().live == 0
        status = await rt.status("parent")
        assert status is not None
        assert status.state is State.WAITING
        (child,) = await rt.runs(key="child")
        assert status.waiting_on == f"child {child.run_id} (quarantined)"
        group = await rt.group("batch")
        assert group is not None
        assert (await group.status()).counts == {State.QUARANTINED: 1}


async def test_an_open_that_refuses_the_store_changes_nothing(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    await evicted(store, listens)
    with pytest.raises(UnknownWorkflow):
        async with opened(store, other, on_unregistered="refuse"):
            pass
    async with open_reader(store) as reader:
        assert [run.state for run in await reader.runs()] == [State.WAITING]
