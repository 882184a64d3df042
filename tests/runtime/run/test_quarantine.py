"""Runs whose code does not fit wait for an operator, and each open tries them again."""

from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Compensation,
    Context,
    Continue,
    Delivery,
    Graph,
    Limits,
    NodeInput,
    PermanentError,
    RunCancelled,
    RunFailed,
    RunHandle,
    RunQuarantined,
    RunStatus,
    Runtime,
    State,
    Succeed,
    Turn,
    UnknownWorkflow,
    Workflow,
    machine,
    open_reader,
    step,
    workflow,
)
from keyrun.groups import Member
from keyrun.schedules import Every
from keyrun.status import QuarantineCause
from keyrun.storage import MemoryStore, PayloadTypeError, StoreCrashed
from keyrun.storage.record import seal, unseal
from keyrun.testing import CrashingMemoryStore, RecordingHook, open_test_runtime
from tests.runtime.fragile import FragileStore

ran: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


@attrs.frozen
class Order:
    item: str


@attrs.frozen
class PricedOrder:
    item: str
    price: int


@step
async def charge(item: str = "a book") -> Order:
    ran.append("charge")
    return Order(item)


@step(name="charge")
async def charge_priced(item: str = "a book") -> PricedOrder:
    ran.append("charge")
    return PricedOrder(item, 7)


@step
async def ship() -> str:
    ran.append("ship")
    return "shipped"


@workflow(name="shop")
async def shop(ctx: Context, order: Order) -> str:
    charged = await ctx.step(charge, order.item)
    await ctx.sleep(10)
    return f"{charged.item} {await ctx.step(ship)}"


@workflow(name="shop")
async def shop_with_prices(ctx: Context, order: PricedOrder) -> str:
    raise AssertionError("the stored input does not fit")


@workflow(name="shop")
async def shop_with_other_outcome(ctx: Context, order: Order) -> str:
    charged = await ctx.step(charge_priced, order.item)
    await ctx.sleep(10)
    return f"{charged.item} {await ctx.step(ship)}"


@workflow(name="shop")
async def shop_without_charge(ctx: Context, order: Order) -> str:
    return "a gift"


@workflow
async def other(ctx: Context) -> str:
    return "other"


MISFITS: dict[QuarantineCause, Workflow[Any, Any]] = {
    QuarantineCause.UNREGISTERED: other,
    QuarantineCause.INPUT: shop_with_prices,
    QuarantineCause.OUTCOME: shop_with_other_outcome,
    QuarantineCause.CONTRADICTION: shop_without_charge,
}
EACH_MISFIT = pytest.mark.parametrize(("cause", "misfit"), MISFITS.items(), ids=str)


async def stands(rt: Runtime, run_id: str) -> RunStatus:
    status = await rt.status(run_id)
    assert status is not None
    return status


async def begun(store: MemoryStore) -> None:
    """Leave a run of `shop` in the middle of its timer, and another one behind it."""
    async with open_test_runtime(store, workflows=[shop]) as rt:
        await rt.submit(shop, Order("a book"), key="k", run_id="first")
        await rt.submit(shop, Order("a pen"), key="k", run_id="second")
        await trio.sleep(2)
    ran.clear()


async def change_status(store: MemoryStore, change: Callable[[list[Any]], list[Any]]) -> None:
    """Store another status of the first run, as an older Keyrun may have written it."""
    async with store:
        key, raw = (await store.scan("status"))[0]
        group = store.open_group()
        group.put("status", key, seal("status", key, tuple(change(unseal("status", key, raw)))))
        await store.durable(group)


async def handle(rt: Runtime, run_id: str) -> RunHandle[Any]:
    """The handle of a run whose workflow the runtime may not have, so that it cannot be submitted
    again."""
    ledger = rt._partition.state.ledger
    number = await ledger.find(run_id)
    submission = None if number is None else await ledger.submission(number)
    assert submission is not None
    return RunHandle(rt, submission, False)


@EACH_MISFIT
async def test_a_run_whose_code_does_not_fit_is_tried_again_by_itself_at_every_open(
    autojump_clock: MockClock, cause: QuarantineCause, misfit: Workflow[Any, Any]
) -> None:
    store, hook = MemoryStore(), RecordingHook()
    await begun(store)
    for _ in range(3):
        async with open_test_runtime(store, workflows=[misfit], on_terminal=hook) as rt:
            await trio.sleep(100)
            status = await stands(rt, "first")
            assert (status.state, status.quarantine_cause) == (State.QUARANTINED, cause)
            assert await rt.dead_letters() == []
            quarantined = [e for e in await rt.history("first") if e.event == "quarantined"]
            assert [each.detail for each in quarantined] == [status.reason]
            behind = await stands(rt, "second")
            assert (behind.state, behind.quarantine_cause) == (State.PENDING, None)
            assert behind.waiting_on == "run first (quarantined)"
            assert rt.statistics().backlog.pending == 1
            assert await rt.unfinished() == {("shop", 1): 2}
        async with open_reader(store) as reader:
            assert [run.quarantine_cause for run in await reader.runs()] == [cause, None]
            assert [run.waiting_on for run in await reader.runs()] == [None, behind.waiting_on]
    assert ran == []
    assert hook.outcomes == []
    async with open_test_runtime(store, workflows=[shop], on_terminal=hook) as rt:
        second = await rt.submit(shop, Order("a pen"), key="k", run_id="second")
        assert await second.result() == "a pen shipped"
        status = await stands(rt, "first")
        assert (status.state, status.result) == (State.SUCCEEDED, "a book shipped")
        assert (status.reason, status.quarantine_cause) == (None, None)
    assert ran == ["ship", "charge", "ship"]
    assert [outcome.run_id for outcome in hook.outcomes] == ["first", "second"]


@EACH_MISFIT
@pytest.mark.parametrize("applied", [False, True], ids=["lost", "kept"])
@pytest.mark.parametrize("commit", range(1, 7))
async def test_a_crash_while_a_run_is_quarantined_or_tried_again_costs_nothing(
    autojump_clock: MockClock,
    cause: QuarantineCause,
    misfit: Workflow[Any, Any],
    commit: int,
    applied: bool,
) -> None:
    store, hook = CrashingMemoryStore(), RecordingHook()
    await begun(store)
    for workflows in ([misfit], [misfit], [shop]):
        store.crash_at(commit, applied=applied)
        with suppress(StoreCrashed):  # at the first commit the runtime is not open yet
            async with open_test_runtime(store, workflows=workflows, on_terminal=hook):
                await trio.sleep(20)
        store.crash_at(10**9, applied=False)
    async with open_test_runtime(store, workflows=[shop], on_terminal=hook) as rt:
        entries = [e.event for e in await rt.history("first")].count("quarantined")
        assert entries <= 1
        for run_id, item in (("first", "a book"), ("second", "a pen")):
            run = await rt.submit(shop, Order(item), key="k", run_id=run_id)
            assert await run.result() == f"{item} shipped"
    assert list(dict.fromkeys(outcome.run_id for outcome in hook.outcomes)) == ["first", "second"]


@EACH_MISFIT
async def test_the_result_of_a_quarantined_run_raises_at_the_call_and_while_it_waits(
    autojump_clock: MockClock, cause: QuarantineCause, misfit: Workflow[Any, Any]
) -> None:
    store = MemoryStore()
    await begun(store)
    async with open_test_runtime(store, workflows=[misfit]) as rt:
        run = await handle(rt, "first")
        for seconds in (20, 0.001):  # while the call waits, and at the call
            with trio.fail_after(seconds), pytest.raises(RunQuarantined) as caught:
                await run.result()
            status = await stands(rt, "first")
            assert (caught.value.cause, caught.value.reason) == (cause, status.reason)
            assert (caught.value.run_id, caught.value.key) == ("first", "k")
            assert isinstance(caught.value, RuntimeError)
            assert "redrive('first')" in str(caught.value)


async def test_the_result_of_a_run_that_is_about_to_be_tried_again_is_its_result(
    autojump_clock: MockClock,
) -> None:
    """Also if it is asked for before the open has come to the run."""
    store = MemoryStore()
    for misfit in MISFITS.values():
        await begun(store)
        async with open_test_runtime(store, workflows=[misfit]):
            await trio.sleep(1)
        async with open_test_runtime(store, workflows=[shop]) as rt:
            run = await rt.submit(shop, Order("a book"), key="k", run_id="first")
            assert await run.result() == "a book shipped"
            await (await rt.submit(shop, Order("a pen"), key="k", run_id="second")).result()
            await rt.forget("first")
            await rt.forget("second")


async def test_a_thousand_runs_opened_without_their_workflow_and_then_with_it_all_finish_in_order(
    autojump_clock: MockClock,
) -> None:
    ended: defaultdict[str, list[int]] = defaultdict(list)

    @step
    async def note(key: str, number: int) -> None:
        ended[key].append(number)

    @workflow
    async def job(ctx: Context, number: int) -> None:
        await ctx.step(note, ctx.key, number)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job]) as rt:
        await rt.pause_all()
        async with trio.open_nursery() as nursery:

            async def submit(key: int) -> None:
                for number in range(4 if key % 2 else 1):
                    await rt.submit(job, number, key=f"k{key}")

            for key in range(400):
                nursery.start_soon(submit, key)
        await rt.resume_all()
        store.crash()
    for seconds in (0, 0.01, 100):
        async with open_test_runtime(store, workflows=[other]) as rt:
            await trio.sleep(seconds)
    async with open_test_runtime(store, workflows=[job]) as rt:
        await trio.sleep(1)
        states = Counter(run.state for run in await rt.runs(limit=2000))
    assert states == {State.SUCCEEDED: 1000}
    assert ended == {f"k{key}": list(range(4 if key % 2 else 1)) for key in range(400)}


async def test_an_input_that_no_longer_fits_starts_nothing_and_no_deadline(
    autojump_clock: MockClock,
) -> None:
    @workflow(name="timed", limits=Limits(run_timeout=50))
    async def timed(ctx: Context, order: Order) -> str:
        return order.item

    @workflow(name="timed", limits=Limits(run_timeout=50))
    async def timed_with_prices(ctx: Context, order: PricedOrder) -> str:
        return order.item

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[timed]) as rt:
        await rt.pause_all()
        for number in range(3):
            await rt.submit(timed, Order("a book"), key=f"k{number}", run_id=f"r{number}")
    async with open_test_runtime(store, workflows=[timed_with_prices]) as rt:
        await rt.resume_all()
        await trio.sleep(100)
        for number in range(3):
            status = await stands(rt, f"r{number}")
            assert status.quarantine_cause is QuarantineCause.INPUT
            assert (status.started_at, status.deadline) == (None, None)
            assert "PricedOrder needs the field 'price'" in str(status.reason)
    async with open_test_runtime(store, workflows=[timed]) as rt:
        for number in range(3):
            run = await rt.submit(timed, Order("a book"), key=f"k{number}", run_id=f"r{number}")
            assert await run.result() == "a book"


async def test_a_quarantined_run_can_be_redriven_released_cancelled_and_forgotten(
    autojump_clock: MockClock,
) -> None:
    store, hook = MemoryStore(), RecordingHook()
    async with open_test_runtime(store, workflows=[shop]) as rt:
        for name in ("redriven", "released", "cancelled", "forgotten"):
            await rt.submit(shop, Order("a book"), key=name, run_id=name)
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[shop_without_charge], on_terminal=hook) as rt:
        await trio.sleep(20)
        runs = {name: await handle(rt, name) for name in ("redriven", "released", "cancelled")}
        for run in runs.values():
            with pytest.raises(RunQuarantined):
                await run.result()
        assert await rt.redrive("redriven") == 1
        assert await rt.release_key("released") is True
        for name in ("redriven", "released"):
            # Tried again, and the code still does not fit.
            with trio.fail_after(1), pytest.raises(RunQuarantined):
                await runs[name].result()
        assert await rt.cancel("cancelled") is True
        with pytest.raises(RunCancelled):
            await runs["cancelled"].result()
        await rt.forget("forgotten")
        assert await rt.status("forgotten") is None
    assert [outcome.run_id for outcome in hook.outcomes] == ["cancelled"]
    async with open_test_runtime(store, workflows=[shop]) as rt:
        for name in ("redriven", "released"):
            run = await rt.submit(shop, Order("a book"), key=name, run_id=name)
            assert await run.result() == "a book shipped"


async def test_a_delayed_run_does_not_wait_behind_a_quarantined_one_before_it_is_due(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    await begun(store)
    async with open_test_runtime(store, workflows=[other]) as rt:
        await rt.submit(other, key="k", run_id="late", delay=100)
        await trio.sleep(20)
        assert (await stands(rt, "second")).waiting_on == "run first (quarantined)"
        assert (await stands(rt, "late")).waiting_on is None
        await trio.sleep(100)
        assert (await stands(rt, "late")).waiting_on == "run first (quarantined)"
        assert (await stands(rt, "late")).state is State.PENDING


async def test_a_quarantined_run_waits_for_nothing_else(autojump_clock: MockClock) -> None:
    """Whatever it waited for before, also in stores in which that is still said."""
    store = MemoryStore()
    await begun(store)
    async with open_test_runtime(store, workflows=[shop_without_charge]) as rt:
        await trio.sleep(20)
        status = await stands(rt, "first")
        assert (status.state, status.waiting_on) == (State.QUARANTINED, None)
        assert status.waiting_until is None
    await change_status(store, lambda fields: [*fields[:9], "timer", *fields[10:]])
    async with open_reader(store) as reader:
        assert [run.waiting_on for run in await reader.runs()] == [None, "run first (quarantined)"]


@pytest.mark.parametrize("evict_after", [0.2, 1e6])
@pytest.mark.parametrize("loaded", [False, True])
async def test_a_signal_to_a_quarantined_run_is_buffered(
    autojump_clock: MockClock, evict_after: float, loaded: bool
) -> None:
    """Also if its journal has a wait for the signal: nothing takes it before the run resumes."""

    @workflow(name="listens")
    async def changed(ctx: Context) -> None:
        await ctx.sleep(10)

    for flows in ([changed], [other]):
        store = MemoryStore()
        async with open_test_runtime(store, workflows=[listens], evict_after=evict_after) as rt:
            await rt.submit(listens, key="k", run_id="r")
            await trio.sleep(5)
        async with open_test_runtime(store, workflows=flows, evict_after=evict_after) as rt:
            if loaded and await rt.pause("r"):
                await rt.resume("r")
            await trio.sleep(20)
            delivery = await rt.signal("r", "go", "paid")
            await trio.sleep(1)
            assert (await stands(rt, "r")).state is State.QUARANTINED
            if loaded or flows == [other]:
                assert delivery is Delivery.BUFFERED
        async with open_test_runtime(store, workflows=[listens]) as rt:
            assert await (await handle(rt, "r")).result() == "paid"


REASONS = {
    "the workflow 'shop' version 1 is not registered; give it to open_runtime(workflows=[...])": (
        QuarantineCause.UNREGISTERED
    ),
    "the journal has an outcome of 'charge' that the step cannot have: PayloadMismatch: what is "
    "stored does not fit PricedOrder": QuarantineCause.OUTCOME,
    "the journal has an outcome of 'charge', and the workflow ended without asking for it; what is "
    "between steps must decide the same way each time it runs": QuarantineCause.CONTRADICTION,
    "the step 'charge' is asked for with other arguments than the journal has; what is between "
    "steps must decide the same way each time it runs": QuarantineCause.CONTRADICTION,
    "nothing in the code says any more how to undo the step 'charge'": (
        QuarantineCause.CONTRADICTION
    ),
}


@pytest.mark.parametrize(("reason", "cause"), REASONS.items())
async def test_the_cause_of_a_quarantine_that_was_stored_with_its_reason_only_is_recognised(
    autojump_clock: MockClock, reason: str, cause: QuarantineCause
) -> None:
    store = MemoryStore()
    await begun(store)
    async with open_test_runtime(store, workflows=[other]) as rt:
        await trio.sleep(20)
    await change_status(store, lambda fields: [*fields[:11], reason, *fields[12:16]])
    async with open_reader(store) as reader:
        status = await reader.status("first")
        assert status is not None
        assert (status.quarantine_cause, status.reason) == (cause, reason)
    async with open_test_runtime(store, workflows=[shop]) as rt:
        run = await rt.submit(shop, Order("a book"), key="k", run_id="first")
        assert await run.result() == "a book shipped"


@pytest.mark.parametrize("table", ["runs", "status", "journal"])
async def test_the_result_of_a_damaged_run_raises_and_its_key_continues(
    autojump_clock: MockClock, table: str
) -> None:
    store = FragileStore()
    await begun(store)
    async with open_test_runtime(store, workflows=[shop]) as rt:
        run = await handle(rt, "first")
        store.damage(table, store.keys(table)[0])
        with trio.fail_after(20), pytest.raises(RunQuarantined) as caught:
            await run.result()
        assert caught.value.cause is QuarantineCause.DAMAGED
        second = await rt.submit(shop, Order("a pen"), key="k", run_id="second")
        assert await second.result() == "a pen shipped"
        assert (await stands(rt, "first")).quarantine_cause is QuarantineCause.DAMAGED


@workflow
async def asks_child(ctx: Context) -> str:
    results = await ctx.gather(
        *(ctx.child(shop, Order(str(n)), key=f"child-{n}") for n in range(4)),
        ctx.child(brittle, key="brittle"),
    )
    return ", ".join(results)


@workflow(name="brittle")
async def brittle(ctx: Context) -> str:
    await ctx.sleep(5)
    return "whole"


async def test_a_parent_waits_for_its_quarantined_child_and_its_status_names_it(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[asks_child, shop, brittle]) as rt:
        await rt.submit(asks_child, key="parent", run_id="parent")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[asks_child, shop]) as rt:
        parent = await handle(rt, "parent")
        with trio.move_on_after(1000) as waited:
            await parent.result()
        assert waited.cancelled_caught
        (child,) = await rt.runs(workflow="brittle")
        assert child.quarantine_cause is QuarantineCause.UNREGISTERED
        status = await stands(rt, "parent")
        assert status.state is State.WAITING
        assert status.waiting_on == f"child {child.run_id} (quarantined)"
        async with open_reader(store) as reader:
            (listed,) = await reader.runs(workflow="asks_child")
            assert listed.waiting_on == status.waiting_on
    async with open_test_runtime(store, workflows=[asks_child, shop, brittle]) as rt:
        parent = await rt.submit(asks_child, key="parent", run_id="parent")
        shipped = ", ".join(f"{n} shipped" for n in range(4))
        assert await parent.result() == f"{shipped}, whole"


async def test_a_group_waits_for_its_quarantined_members(autojump_clock: MockClock) -> None:
    store = MemoryStore()
    members = [Member(shop, Order("a book"), key="k"), Member(other, key="other")]
    async with open_test_runtime(store, workflows=[shop, other]) as rt:
        await rt.submit_group("batch", members)
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[other]) as rt:
        group = await rt.group("batch")
        assert group is not None
        with trio.move_on_after(100) as waited:
            await group.results()
        assert waited.cancelled_caught
        assert (await group.status()).counts == {State.QUARANTINED: 1, State.SUCCEEDED: 1}
    async with open_test_runtime(store, workflows=[shop, other]) as rt:
        group = await rt.group("batch")
        assert group is not None
        results = await group.results()
        assert [outcome.result for outcome in results.values()] == ["a book shipped", "other"]


@machine(name="counter")
async def counter(t: Turn) -> Any:
    return Succeed(t.number) if t.number == 3 else Continue(after=10)


async def slow(given: NodeInput) -> str:
    await trio.sleep(20)
    return "done"


@pytest.mark.parametrize("kind", ["machine", "graph"])
async def test_machines_and_graphs_are_tried_again_as_well(
    autojump_clock: MockClock, kind: str
) -> None:
    graph = Graph("counter")
    graph.node("first", slow)
    graph.node("second", slow)
    graph.edge("first", "second")
    made: Workflow[Any, Any] = counter if kind == "machine" else graph
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[made]) as rt:
        await rt.submit(made, key="k", run_id="r")
        await trio.sleep(1)
    for _ in range(2):
        async with open_test_runtime(store, workflows=[other]) as rt:
            await trio.sleep(100)
            assert (await stands(rt, "r")).quarantine_cause is QuarantineCause.UNREGISTERED
    async with open_test_runtime(store, workflows=[made]) as rt:
        await (await rt.submit(made, key="k", run_id="r")).result()


class Scrambled:
    """A transform with a key of its own: other runtimes cannot read what it wrote."""

    def __init__(self, key: int) -> None:
        self._key = key

    def wrap(self, data: bytes, /) -> bytes:
        return bytes([self._key]) + data

    def unwrap(self, data: bytes, /) -> bytes:
        if data[0] != self._key:
            raise ValueError("another key")
        return data[1:]


@workflow
async def listens(ctx: Context) -> Any:
    told = await ctx.wait_signal("go")
    await ctx.sleep(10)
    return told


@workflow
async def delegates(ctx: Context) -> Any:
    told = await ctx.child(listens, key="child")
    await ctx.sleep(10)
    return told


@machine(name="turning")
async def turning(t: Turn) -> Any:
    return Succeed(t.payload) if t.number else Continue("paid", after=10)


@pytest.mark.parametrize("name", ["listens", "delegates", "turning", "shop"])
@pytest.mark.parametrize("again", [1, 2])
async def test_what_a_runtime_with_another_transform_cannot_read_is_held_and_not_failed(
    autojump_clock: MockClock, name: str, again: int
) -> None:
    """Inputs, payloads of signals, results of children and turns of machines."""
    flows: dict[str, Workflow[Any, Any]] = {
        each.name: each for each in (listens, delegates, turning, shop)
    }
    store, hook = MemoryStore(), RecordingHook()
    input_ = Order("a book") if name == "shop" else None
    async with open_test_runtime(
        store, workflows=flows.values(), transform=Scrambled(1), on_terminal=hook
    ) as rt:
        await rt.submit(flows[name], input_, key="k", run_id="r")
        await trio.sleep(1)
        for run in await rt.runs(workflow="listens"):
            await rt.signal(run.run_id, "go", "paid")
        await trio.sleep(1)
    for _ in range(again):
        async with open_test_runtime(
            store, workflows=flows.values(), transform=Scrambled(2), on_terminal=hook
        ) as rt:
            await trio.sleep(100)
            states = {run.state for run in await rt.runs()}
            assert states <= {State.QUARANTINED, State.WAITING}
            assert State.QUARANTINED in states
            assert await rt.dead_letters() == []
    assert hook.outcomes == []
    async with open_test_runtime(
        store, workflows=flows.values(), transform=Scrambled(1), on_terminal=hook
    ) as rt:
        result = await (await rt.submit(flows[name], input_, key="k", run_id="r")).result()
        assert result == ("a book shipped" if name == "shop" else "paid")


undone: list[Any] = []


async def refund(given: Compensation) -> None:
    undone.append(given.output)


@step
async def refuse() -> None:
    await trio.sleep(5)
    raise PermanentError("refused")


@workflow(name="saga")
async def saga(ctx: Context, order: Order) -> None:
    await ctx.step(charge.options(compensate=refund), order.item)
    await ctx.step(refuse)


@workflow(name="saga")
async def saga_with_other_outcome(ctx: Context, order: Order) -> None:
    await ctx.step(charge_priced.options(compensate=refund), order.item)
    await ctx.step(refuse)


@workflow(name="saga")
async def saga_with_other_input(ctx: Context, order: PricedOrder) -> None:
    await ctx.step(charge.options(compensate=refund), order.item)
    await ctx.step(refuse)


@workflow(name="saga")
async def saga_without_charge(ctx: Context, order: Order) -> None:
    await ctx.step(refuse)


@pytest.mark.parametrize(
    ("cause", "misfit"),
    [
        (QuarantineCause.UNREGISTERED, other),
        (QuarantineCause.INPUT, saga_with_other_input),
        (QuarantineCause.OUTCOME, saga_with_other_outcome),
        (QuarantineCause.CONTRADICTION, saga_without_charge),
    ],
)
async def test_a_run_that_is_being_compensated_is_held_and_tried_again_as_well(
    autojump_clock: MockClock, cause: QuarantineCause, misfit: Workflow[Any, Any]
) -> None:
    undone.clear()
    store = CrashingMemoryStore()
    async with open_test_runtime(store, workflows=[saga]) as rt:
        await rt.submit(saga, Order("a book"), key="k", run_id="r")
        await trio.sleep(1)
        # The next commit has the failure of the second step, and that the first is compensated.
        store.crash_at(1, applied=True)
        await trio.sleep(10)
    assert undone == []
    for _ in range(2):
        async with open_test_runtime(store, workflows=[misfit]) as rt:
            await trio.sleep(20)
            assert (await stands(rt, "r")).quarantine_cause is cause
            quarantined = [e for e in await rt.history("r") if e.event == "quarantined"]
            assert len(quarantined) == 1
            assert await rt.dead_letters() == []
    assert undone == []
    async with open_test_runtime(store, workflows=[saga]) as rt:
        run = await rt.submit(saga, Order("a book"), key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
    assert undone == [Order("a book")]


@pytest.mark.parametrize("early", [True, False])
async def test_a_quarantined_run_is_cancelled_without_its_compensations(
    autojump_clock: MockClock, early: bool
) -> None:
    """Also if the open has not come to it yet."""
    undone.clear()
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[saga]) as rt:
        await rt.submit(saga, Order("a book"), key="k", run_id="r")
        await trio.sleep(1)
        store.crash()
    async with open_test_runtime(store, workflows=[other]) as rt:
        await trio.sleep(20)
        if early:
            await rt.pause_all()
    async with open_test_runtime(store, workflows=[other]) as rt:
        await trio.sleep(20)
        assert rt.statistics().live == (0 if early else 1)
        run = await handle(rt, "r")
        assert await rt.cancel("r") is True
        with trio.fail_after(1), pytest.raises(RunCancelled):
            await run.result()
        assert (await stands(rt, "r")).quarantine_cause is None
    assert undone == []


async def test_what_does_not_fit_its_type_is_rejected_when_it_is_submitted(
    autojump_clock: MockClock,
) -> None:
    wrong: Any = PricedOrder("a book", 7)

    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.child(shop, wrong, key="child")

    @workflow
    async def part(ctx: Context) -> None:
        await ctx.child(shop, wrong)

    @workflow
    async def loop(ctx: Context, order: Order) -> None:
        ctx.continue_as(wrong)

    async with open_test_runtime(workflows=[shop, parent, part, loop]) as rt:
        for call in (rt.submit, rt.submit_nowait):
            with pytest.raises(PayloadTypeError, match="expected Order, got a PricedOrder"):
                await call(shop, wrong, key="k")
        with pytest.raises(PayloadTypeError, match="expected Order"):
            await rt.submit_group("g", [Member(shop, wrong, key="k")])
        with pytest.raises(PayloadTypeError, match="expected Order"):
            await rt.schedule("s", shop, wrong, key="k", when=Every(60))
        with pytest.raises(PayloadTypeError, match="expected Order"):
            await rt.submit_or_signal(shop, wrong, key="k", run_id="x", name="go")
        assert await rt.runs() == []
        flows: tuple[Workflow[Any, Any], ...] = (parent, part, loop)
        for flow in flows:
            run = await rt.submit(flow, Order("a book") if flow is loop else None, key=flow.name)
            with pytest.raises(RunFailed) as caught:
                await run.result()
            assert "expected Order, got a PricedOrder" in caught.value.failure.reason
        assert await rt.runs(workflow="shop") == []


async def test_an_open_without_the_workflows_of_unfinished_runs_logs_one_warning_with_counts(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    @workflow(name="other", version=2)
    async def other_2(ctx: Context) -> None:
        await ctx.sleep(10)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[shop, other_2]) as rt:
        for number in range(3):
            await rt.submit(shop, Order("a book"), key=f"k{number}")
        await rt.submit(other_2, key="other")
        await trio.sleep(1)
    for _ in range(2):
        caplog.clear()
        async with open_test_runtime(store, workflows=[other]):
            await trio.sleep(20)
        (warning,) = [each for each in caplog.records if each.levelname == "WARNING"]
        assert "'other' version 2 (1 run), 'shop' version 1 (3 runs)" in warning.getMessage()
    caplog.clear()
    async with open_test_runtime(store, workflows=[shop, other_2]):
        await trio.sleep(20)
    assert [each for each in caplog.records if each.levelname == "WARNING"] == []
    async with open_test_runtime(store, workflows=[other], on_unregistered="refuse"):
        assert caplog.records == []


async def test_an_open_can_refuse_a_store_with_runs_of_workflows_that_it_does_not_have(
    autojump_clock: MockClock,
) -> None:
    store, hook = MemoryStore(), RecordingHook()
    await begun(store)
    async with store:
        before = {table: await store.scan(table) for table in ("runs", "status", "counter")}
    for _ in range(2):
        with pytest.raises(UnknownWorkflow, match=r"'shop' version 1 \(2 runs\)") as caught:
            async with open_test_runtime(
                store, workflows=[other], on_terminal=hook, on_unregistered="refuse"
            ):
                raise AssertionError("the block was entered")
        assert caught.value.counts == {("shop", 1): 2}
        assert isinstance(caught.value, LookupError)
    async with store:
        assert {table: await store.scan(table) for table in before} == before
    async with open_test_runtime(store, workflows=[shop], on_unregistered="refuse") as rt:
        second = await rt.submit(shop, Order("a pen"), key="k", run_id="second")
        assert await second.result() == "a pen shipped"
    wrong: Any = "ignore"
    with pytest.raises(ValueError, match="on_unregistered must be 'hold' or 'refuse'"):
        await open_test_runtime(store, on_unregistered=wrong).__aenter__()


async def test_a_contradiction_is_tried_again_only_if_the_code_of_the_workflow_has_changed(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def made(code: Callable[[Context], Any]) -> Workflow[Any, Any]:
        @workflow(name="shop")
        async def helped(ctx: Context, order: Order) -> str:
            calls.append("called")
            return str(await code(ctx))

        return helped

    async def good(ctx: Context) -> str:
        charged = await ctx.step(charge, "a book")
        await ctx.sleep(10)
        return f"{charged.item} {await ctx.step(ship)}"

    async def bad(ctx: Context) -> str:
        return "a gift"

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[made(good)]) as rt:
        await rt.submit(made(good), Order("a book"), key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[made(bad)]) as rt:
        await trio.sleep(20)
    calls.clear()
    for code in (bad, good):  # what it calls is not its own code
        async with open_test_runtime(store, workflows=[made(code)]) as rt:
            await trio.sleep(20)
            run = await handle(rt, "r")
            with trio.fail_after(0.001), pytest.raises(RunQuarantined) as caught:
                await run.result()
            assert caught.value.cause is QuarantineCause.CONTRADICTION
            assert rt.statistics().backlog.pending == 0
    assert calls == []
    async with open_test_runtime(store, workflows=[shop]) as rt:
        run = await rt.submit(shop, Order("a book"), key="k", run_id="r")
        assert await run.result() == "a book shipped"


async def test_a_run_that_resumed_and_does_not_fit_later_gets_another_entry(
    autojump_clock: MockClock,
) -> None:
    @workflow(name="shop")
    async def shop_that_waits(ctx: Context, order: Order) -> str:
        await ctx.step(charge, order.item)
        await ctx.sleep(10)
        await ctx.step(ship)
        await ctx.sleep(10)
        return "shipped"

    store = MemoryStore()
    await begun(store)

    async def entries() -> int:
        events: list[str] = []
        async with open_test_runtime(store, workflows=[other]) as rt:
            await trio.sleep(20)
            assert (await stands(rt, "first")).state is State.QUARANTINED
            events = [each.event for each in await rt.history("first")]
        return events.count("quarantined")

    assert [await entries() for _ in range(2)] == [1, 1]
    async with open_test_runtime(store, workflows=[shop_that_waits]) as rt:
        await trio.sleep(5)
        assert (await stands(rt, "first")).steps_done == 2
    assert [await entries() for _ in range(2)] == [2, 2]


async def test_a_run_that_does_not_fit_for_another_cause_gets_another_entry(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    await begun(store)
    counts = []
    for flow in (shop_with_prices, shop_with_prices, shop_without_charge, shop_without_charge):
        async with open_test_runtime(store, workflows=[flow]) as rt:
            await trio.sleep(20)
            assert (await stands(rt, "first")).state is State.QUARANTINED
            history = await rt.history("first")
        counts.append([each.event for each in history].count("quarantined"))
    assert counts == [1, 1, 2, 2]


def without_source(body: str) -> Workflow[Any, Any]:
    """A workflow whose source cannot be read, so that it has no fingerprint."""
    made: dict[str, Any] = {"charge": charge, "ship": ship}
    exec(f"async def shop(ctx, order):\n    {body}", made)
    flow: Workflow[Any, Any] = workflow(name="shop")(made["shop"])
    assert flow.fingerprint() is None
    return flow


async def test_a_contradiction_of_code_without_a_fingerprint_is_tried_again(
    autojump_clock: MockClock,
) -> None:
    fits = without_source("await ctx.step(charge, 'a book'); await ctx.sleep(10); return 'done'")
    differs = without_source("await ctx.step(ship)")
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[fits]) as rt:
        await rt.submit(fits, "a book", key="k", run_id="r")
        await trio.sleep(1)
    async with open_test_runtime(store, workflows=[differs]) as rt:
        await trio.sleep(20)
        assert (await stands(rt, "r")).quarantine_cause is QuarantineCause.CONTRADICTION
    async with open_test_runtime(store, workflows=[fits]) as rt:
        await trio.sleep(20)
        assert (await stands(rt, "r")).state is State.SUCCEEDED


async def test_a_result_does_not_tell_of_a_quarantine_that_a_crash_could_undo(
    autojump_clock: MockClock,
) -> None:
    fits = without_source("await ctx.step(charge, 'a book'); await ctx.sleep(10); return 'done'")
    differs = without_source("await ctx.step(ship)")
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[fits]) as rt:
        await rt.submit(fits, "a book", key="k", run_id="r")
        await trio.sleep(1)
    store.latency = 1
    told = False
    async with open_test_runtime(store, workflows=[differs]) as rt:
        with pytest.raises(RunQuarantined):
            await (await handle(rt, "r")).result()
        told = True
        store.crash()
        await trio.sleep_forever()
    assert told
    store.latency = 0
    async with open_test_runtime(store, workflows=[fits]) as rt:
        events = [each.event for each in await rt.history("r")]
        assert "quarantined" in events
