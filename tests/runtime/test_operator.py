"""Operator mode: act on a store that no process has open, and run nothing."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import attrs
import pytest
import trio

from keyrun import (
    Compensation,
    Context,
    Delivery,
    PermanentError,
    Retention,
    RunEnded,
    Runtime,
    State,
    UnknownWorkflow,
    open_operator,
    step,
    workflow,
)
from keyrun.runtime.records.operation import Write
from keyrun.schedules import Every
from keyrun.storage import MemoryStore
from keyrun.testing import (
    CrashingMemoryStore,
    RecordingHook,
    open_test_runtime,
    virtual_wall,
)
from tests.runtime.operations.test_performed_operations import perform

Dump = dict[str, dict[bytes, bytes]]
DAY = 86_400.0
done: list[str] = []


@step
async def refund(why: Compensation) -> None:
    done.append(f"refund {why.run_input}")


@step
async def pay(name: str) -> None:
    done.append(f"pay {name}")


@step
async def breaks() -> None:
    raise PermanentError("no")


@workflow
async def order(ctx: Context, name: str) -> str:
    await ctx.step(pay.options(compensate=refund), name)
    await ctx.wait_signal("go")
    await ctx.approval("manager")
    return name


@workflow
async def nap(ctx: Context, name: str) -> str:
    await ctx.sleep(1000)
    return name


@workflow
async def fails(ctx: Context, name: str) -> None:
    await ctx.step(breaks)


@workflow(instances=1)
async def single(ctx: Context, name: str) -> None:
    await ctx.wait_signal("go")


@workflow
async def parent(ctx: Context, name: str) -> None:
    await ctx.child(nap, name, key=f"child of {name}")


@workflow
async def quick(ctx: Context, name: str) -> str:
    return name


WORKFLOWS = [order, nap, fails, single, parent, quick]


def operator(store: MemoryStore) -> Any:
    return open_operator(store, wall=virtual_wall)


def application(store: MemoryStore, **options: Any) -> Any:
    return open_test_runtime(store, **{"workflows": WORKFLOWS, **options})


async def dump(store: MemoryStore) -> Dump:
    async with store:
        return {table: dict(await store.scan(table)) for table in sorted(store.group_commit.tables)}


def changed(before: Dump, after: Dump) -> set[str]:
    return {
        table
        for table in before.keys() | after.keys()
        if before.get(table, {}) != after.get(table, {})
    }


async def filled() -> MemoryStore:
    """Return a store with runs in every state, which its application has closed."""
    done.clear()
    store = MemoryStore()
    async with application(store, on_terminal=RecordingHook()) as rt:
        await rt.submit(order, "a", key="a", run_id="order")
        await rt.submit(quick, "q", key="a", run_id="behind")
        await rt.submit(nap, "n", key="n", run_id="nap")
        await rt.submit(fails, "f", key="f", run_id="dead")
        await rt.submit(single, "s", key="s", run_id="single")
        await rt.submit(single, "t", key="t", run_id="next")
        await rt.submit(parent, "p", key="p", run_id="parent")
        await rt.submit(quick, "d", key="d", run_id="delayed", delay=500)
        await rt.submit(quick, "e", key="e", run_id="ended")
        await rt.schedule("hourly", quick, "h", key="h", when=Every(3600))
        await trio.sleep(10)
        await rt.pause("nap")
        await rt.pause_key("held")
        await rt.submit(quick, "h", key="held", run_id="held")
        await trio.sleep(10)
    return store


async def test_opening_and_closing_changes_nothing_and_runs_nothing(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Timers, a delay and a schedule are due, and runs exceed the default retention."""
    store = await filled()
    await trio.sleep(30 * DAY)
    before, ran = await dump(store), [*done]
    async with operator(store) as rt:
        await trio.sleep(30 * DAY)
        assert len(await rt.runs(state=State.QUARANTINED)) == 0
        assert (await rt.status("order")).state is State.WAITING
        assert (await rt.explain("behind")).holder == "order"
    assert changed(before, await dump(store)) == set()
    assert done == ran


@attrs.frozen
class Case:
    act: Callable[[Runtime], Awaitable[object]]
    answer: object
    tables: str
    """The tables that the action changes."""


ENDS = "status ended queue counter unfinished outcomes"
CASES: dict[Write, Case] = {
    Write.CANCEL: Case(lambda rt: rt.cancel("behind"), True, ENDS),
    Write.PAUSE: Case(lambda rt: rt.pause("behind"), True, "status journal unfinished"),
    Write.RESUME: Case(lambda rt: rt.resume("nap"), True, "status journal queue timers unfinished"),
    Write.PAUSE_KEY: Case(lambda rt: rt.pause_key("k"), None, "held"),
    Write.RESUME_KEY: Case(lambda rt: rt.resume_key("held"), None, "held"),
    Write.PAUSE_ALL: Case(lambda rt: rt.pause_all(), None, "held"),
    Write.RESUME_ALL: Case(lambda rt: rt.resume_all(), None, ""),
    Write.REDRIVE: Case(
        lambda rt: rt.redrive("dead"),
        2,
        "dead dead_counts ended status journal queue unfinished counter",
    ),
    Write.FORGET: Case(lambda rt: rt.forget("ended"), None, "runs status ended ids journal"),
    Write.RELEASE_KEY: Case(lambda rt: rt.release_key("a"), False, ""),
    Write.SIGNAL: Case(
        lambda rt: rt.signal("order", "go"), Delivery.DELIVERED, "signals queue counter"
    ),
    Write.PAUSE_SCHEDULE: Case(
        lambda rt: rt.pause_schedule("hourly"), True, "schedules firings counter"
    ),
    Write.DELETE_SCHEDULE: Case(
        lambda rt: rt.delete_schedule("hourly"), True, "schedules firings counter"
    ),
    Write.DISCARD_OUTCOMES: Case(lambda rt: rt.discard_outcomes(), 0, "counter"),
}


@pytest.mark.parametrize("write", CASES)
async def test_an_action_changes_only_its_own_records(
    autojump_clock: trio.testing.MockClock, write: Write
) -> None:
    store = await filled()
    case, before = CASES[write], await dump(store)
    async with operator(store) as rt:
        assert await case.act(rt) == case.answer
    after = await dump(store)
    assert changed(before, after) <= {*case.tables.split()}
    assert {*case.tables.split()} - {"counter", "journal"} <= changed(before, after)
    runs = {key for key, raw in after["runs"].items() if before["runs"].get(key) != raw}
    assert runs == set()


async def test_a_cancelled_run_is_delivered_to_the_hook_by_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        for run_id in ("behind", "nap", "delayed", "held"):
            assert await rt.cancel(run_id)
            assert (await rt.status(run_id)).state is State.CANCELLED
        assert not await rt.cancel("ended")
        assert (await rt.outbox()).waiting == 4
    hook = RecordingHook()
    async with application(store, on_terminal=hook):
        await trio.sleep(1)
        for run_id in ("behind", "nap", "delayed", "held"):
            assert [each.state for each in hook.of(run_id)] == [State.CANCELLED]
        assert hook.of("ended") == []


async def test_the_next_open_runs_the_compensations_of_a_cancelled_run(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        assert await rt.cancel("order")
        assert (await rt.status("order")).state is State.CANCELLING
        assert "refund a" not in done
    hook = RecordingHook()
    async with application(store, on_terminal=hook) as rt:
        await trio.sleep(1)
        assert done.count("refund a") == 1
        assert [each.state for each in hook.of("order")] == [State.CANCELLED]
        assert (await rt.status("behind")).state is State.SUCCEEDED


async def test_signals_and_decisions_are_received_at_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        assert await rt.signal("order", "go") is Delivery.DELIVERED
        assert await rt.signal("order", "other") is Delivery.BUFFERED
    async with application(store):
        await trio.sleep(5)
    async with operator(store) as rt:
        await rt.approve("order", "manager", by="alice")
    async with application(store) as rt:
        assert await rt.run("order").result() == "a"


async def test_a_redriven_run_and_a_resumed_run_continue_at_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        assert await rt.redrive("dead") == 2
        assert await rt.resume("nap")
        await rt.resume_key("held")
    async with application(store) as rt:
        assert await rt.run("held").result() == "h"
        assert await rt.run("nap").result() == "n"
        status = await rt.status("dead")
        assert (status.state, status.generation) == (State.FAILED, 2)


async def test_a_run_that_an_operator_cancels_makes_room_for_another(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        assert await rt.cancel("single")
    async with application(store) as rt:
        await trio.sleep(1)
        assert (await rt.status("next")).state is State.WAITING
        await rt.signal("next", "go")
        await rt.run("next").result()


async def test_the_children_of_a_cancelled_run_are_cancelled_by_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        (child,) = await rt.runs(workflow="nap", key="child of p")
        assert await rt.cancel("parent")
        assert (await rt.status("parent")).state is State.CANCELLED
    async with application(store) as rt:
        await trio.sleep(1)
        assert (await rt.status(child.run_id)).state is State.CANCELLED


async def test_the_parent_of_a_cancelled_child_is_told_by_the_next_open(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        (child,) = await rt.runs(workflow="nap", key="child of p")
        assert await rt.cancel(child.run_id)
    async with application(store) as rt:
        await trio.sleep(1)
        assert (await rt.status("parent")).state.terminal


async def test_a_store_whose_owner_was_killed_can_be_operated(
    autojump_clock: trio.testing.MockClock,
) -> None:
    @step
    async def slow() -> None:
        await trio.sleep(100)

    @workflow
    async def works(ctx: Context) -> str:
        await ctx.step(slow)
        return "done"

    store = CrashingMemoryStore()
    async with open_test_runtime(store, workflows=[works]) as rt:
        for name in "ab":
            await rt.submit(works, key=name, run_id=name)
        await trio.sleep(1)
        store.crash_at(1, applied=False)
        await rt.pause_key("x")
    async with operator(store) as rt:
        assert await rt.cancel("a")
    async with open_test_runtime(store, workflows=[works]) as rt:
        assert rt._partition.state.unclean
        assert await rt.run("b").result() == "done"
        events = [each.event for each in await rt.history("a")]
        assert events[-1] == "cancelled"
        assert events.count("interrupted") == 1


async def test_an_operator_submits_only_workflows_that_it_was_given(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    async with operator(store) as rt:
        with pytest.raises(UnknownWorkflow):
            await rt.submit(quick, "x", key="x")
    async with open_operator(store, workflows=[quick], wall=virtual_wall) as rt:
        run = await rt.submit(quick, "x", key="x", run_id="x")
        with pytest.raises(RuntimeError, match="no run continues"):
            await run.result()
        with pytest.raises(RunEnded):
            await rt.redrive("ended")
    async with application(store) as rt:
        assert await rt.run("x").result() == "x"


async def test_an_operation_of_an_operator_is_in_the_audit_log(
    autojump_clock: trio.testing.MockClock,
) -> None:
    store = await filled()
    for _ in range(2):
        async with operator(store) as rt:
            answer = await perform(rt, Write.CANCEL, partial(rt.cancel, "nap"), run_id="nap")
            assert answer == "True"
    async with application(store, retention=Retention(age=DAY)) as rt:
        (entry,) = (await rt.audit()).entries
        assert (entry.operation, entry.run_id, entry.key) == ("cancel", "nap", "n")
