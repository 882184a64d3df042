"""How many runs may wait to be started, and what happens when there are too many."""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
import trio

from keyrun import Backpressure, Context, Runtime, Workflow, step, workflow
from keyrun.runtime.host.slots import Slots
from keyrun.runtime.queue.key_queues import KeyQueues
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.runs import RunTable
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission
    from keyrun.runtime.run.partition_state import PartitionState


class Gate:
    """A workflow of one step that waits until it is let through."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.done: list[str] = []

        @step
        async def wait(name: str) -> None:
            await self.open.wait()
            self.done.append(name)

        @workflow
        async def job(ctx: Context, name: str) -> None:
            await ctx.step(wait, name)

        self.job: Workflow[str, None] = job


@pytest.fixture
def gate() -> Gate:
    return Gate()


async def fill(rt: Runtime, gate: Gate, *keys: str) -> None:
    for key in keys:
        await rt.submit(gate.job, key, key=key)
    await trio.testing.wait_all_tasks_blocked()


async def test_a_submit_beyond_the_bound_waits_until_there_is_room(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    async with open_test_runtime(workflows=[gate.job], max_pending=3, max_concurrent_steps=1) as rt:
        await fill(rt, gate, "running", "a", "b", "c")
        assert rt.statistics().backlog.pending == 3

        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill, rt, gate, "d")
            await trio.sleep(5)
            assert rt.statistics().backlog.pending == 3
            assert rt.statistics().backlog.saturations == 1
            assert await rt.status("d") is None
            gate.open.set()
        await trio.testing.wait_all_tasks_blocked()
        statistics = rt.statistics().backlog
    assert gate.done == ["running", "a", "b", "c", "d"]
    assert statistics.pending == 0
    assert statistics.refused == 0
    assert statistics.seconds_saturated == pytest.approx(5)


async def test_a_submit_that_waited_too_long_is_refused_with_the_depth(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job],
        max_pending=2,
        max_concurrent_steps=1,
        backpressure_timeout=7,
        drain_timeout=0,
    ) as rt:
        await fill(rt, gate, "running", "a", "b")
        before = trio.current_time()
        with pytest.raises(Backpressure, match="2 runs wait to start") as caught:
            await rt.submit(gate.job, "c", key="c", run_id="c")
        assert trio.current_time() - before == pytest.approx(7)
        assert caught.value.key == "c"
        assert isinstance(caught.value, TimeoutError)
        assert await rt.status("c") is None
        statistics = rt.statistics()
    assert statistics.backlog.refused == 1
    assert statistics.backlog.seconds_saturated == pytest.approx(7)
    assert statistics.keys == 3


async def test_submit_nowait_is_refused_at_once(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job], max_pending=1, max_concurrent_steps=1, drain_timeout=0
    ) as rt:
        await fill(rt, gate, "running", "a")
        before = trio.current_time()
        with pytest.raises(Backpressure, match="1 runs wait"):
            await rt.submit_nowait(gate.job, "b", key="b")
        assert trio.current_time() == before
        assert rt.statistics().backlog.refused == 1


async def test_the_bound_per_key_names_the_key_and_spares_the_others(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job], max_pending_per_key=2, backpressure_timeout=1, drain_timeout=0
    ) as rt:
        await fill(rt, gate, "hot", "hot", "hot")
        with pytest.raises(Backpressure, match="2 runs of the key 'hot' wait"):
            await rt.submit(gate.job, "hot", key="hot")
        with pytest.raises(Backpressure, match="2 runs of the key 'hot' wait"):
            await rt.submit_nowait(gate.job, "hot", key="hot")
        await rt.submit_nowait(gate.job, "cold", key="cold")


async def test_a_full_key_does_not_hold_up_submitters_of_other_keys(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job],
        max_pending=2,
        max_pending_per_key=1,
        max_concurrent_steps=1,
        drain_timeout=0,
    ) as rt:
        await fill(rt, gate, "hot", "hot", "other")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fill, rt, gate, "hot")
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(fill, rt, gate, "cold")
            await trio.testing.wait_all_tasks_blocked()
            # Room in all, but none for the key of whoever came first.
            assert await rt.cancel((await rt.runs(key="other"))[0].run_id)
            await trio.testing.wait_all_tasks_blocked()
            assert len(await rt.runs(key="cold")) == 1
            assert len(await rt.runs(key="hot")) == 2
            nursery.cancel_scope.cancel()


async def test_the_bound_is_never_exceeded_and_nothing_accepted_is_lost(
    autojump_clock: trio.testing.MockClock,
) -> None:
    most = [0]
    done: list[int] = []

    @step
    async def work(name: int) -> None:
        most[0] = max(most[0], rt.statistics().backlog.pending)
        await trio.sleep(0.1)
        done.append(name)

    @workflow
    async def job(ctx: Context, name: int) -> None:
        await ctx.step(work, name)

    accepted: list[int] = []
    async with open_test_runtime(
        MemoryStore(latency=0.01),
        workflows=[job],
        max_pending=10,
        max_pending_per_key=4,
        max_concurrent_steps=2,
        backpressure_timeout=3,
    ) as rt:

        async def submit(name: int) -> None:
            try:
                handle = await rt.submit(job, name, key=f"k{name % 5}")
            except Backpressure:
                return
            accepted.append(name)
            most[0] = max(most[0], rt.statistics().backlog.pending)
            await handle.result()

        async with trio.open_nursery() as nursery:
            for name in range(120):
                nursery.start_soon(submit, name)
        statistics = rt.statistics().backlog
    assert most[0] == 10
    assert 50 < len(accepted) < 120
    assert sorted(done) == sorted(accepted)
    assert statistics.refused == 120 - len(accepted)
    assert statistics.pending == 0


async def test_waiting_submitters_are_let_in_in_the_order_in_which_they_came(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    accepted: list[int] = []
    async with open_test_runtime(workflows=[gate.job], max_pending=1, max_concurrent_steps=1) as rt:
        await fill(rt, gate, "running", "a")

        async def submit(name: int) -> None:
            await rt.submit(gate.job, str(name), key=f"k{name}")
            accepted.append(name)

        async with trio.open_nursery() as nursery:
            for name in range(10):
                nursery.start_soon(submit, name)
                await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
    assert accepted == [*range(10)]


async def test_a_submitter_that_gives_up_submits_nothing(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job], max_pending=1, max_concurrent_steps=1, drain_timeout=0
    ) as rt:
        await fill(rt, gate, "running", "a")
        with trio.move_on_after(5) as scope:
            await rt.submit(gate.job, "gone", key="gone", run_id="gone")
        assert scope.cancelled_caught
        gate.open.set()
        await trio.sleep(1)
        assert await rt.status("gone") is None
        assert rt.statistics().backlog.pending == 0
        assert rt.statistics().backlog.refused == 0
        assert rt.statistics().backlog.seconds_saturated == pytest.approx(5)


async def test_a_submitter_that_gives_up_as_it_is_called_passes_the_room_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    ledger = Ledger(MemoryStore().namespace("default"))
    partition = SimpleNamespace(
        ledger=ledger, slots=Slots(1), recovered=True, feed=None, metrics=None
    )
    queues = KeyQueues(
        cast("PartitionState", partition),
        RunTable(ledger),
        Tuning(),
        max_pending=1,
        max_pending_per_key=1,
        backpressure_timeout=30.0,
    )
    backlog, queue = queues.backlog, queues.of("k")
    backlog.enter(queue)
    let_in: list[str] = []
    scope = trio.CancelScope()

    async def wait(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await backlog.wait_for_room(cast("Submission", SimpleNamespace(key="k")))
            let_in.append(name)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait, "gone", scope)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(wait, "next", trio.CancelScope())
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        backlog.leave(queue)
    assert let_in == ["next"]


async def test_a_repeat_of_a_run_is_answered_however_full_it_is(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job], max_pending=1, max_concurrent_steps=1, drain_timeout=0
    ) as rt:
        await fill(rt, gate, "running")
        await rt.submit(gate.job, "a", key="a", run_id="a")
        again = await rt.submit_nowait(gate.job, "a", key="a", run_id="a")
        assert not again.newly_submitted


async def test_paused_runs_count_as_waiting_to_be_started(
    autojump_clock: trio.testing.MockClock, gate: Gate
) -> None:
    gate.open.set()
    async with open_test_runtime(workflows=[gate.job], max_pending=3) as rt:
        await rt.pause_all()
        await fill(rt, gate, "a", "b", "c")
        with pytest.raises(Backpressure):
            await rt.submit_nowait(gate.job, "d", key="d")
        await rt.resume_all()
        await trio.testing.wait_all_tasks_blocked()
        await rt.submit_nowait(gate.job, "d", key="d")


@pytest.mark.parametrize("crash", [True, False])
async def test_the_counts_are_right_again_after_a_restart(
    autojump_clock: trio.testing.MockClock, gate: Gate, crash: bool
) -> None:
    store = MemoryStore()
    options: dict[str, Any] = {
        "workflows": [gate.job],
        "max_pending": 6,
        "max_pending_per_key": 2,
        "max_concurrent_steps": 1,
        "drain_timeout": 0,
    }
    async with open_test_runtime(store, **options) as rt:
        await fill(rt, gate, "hot", "hot", "hot", "a", "b")
        await rt.submit(gate.job, "later", key="later", delay=1000)
        cancelled = await rt.submit(gate.job, "c", key="c")
        assert await cancelled.cancel()
        assert rt.statistics().backlog.pending == 5
        if crash:
            store.crash()
    async with open_test_runtime(store, **options) as rt:
        with pytest.raises(Backpressure, match="'hot'"):
            await rt.submit_nowait(gate.job, "hot", key="hot")
        await trio.testing.wait_all_tasks_blocked()
        # The one that ran has started; another has the slot.
        assert rt.statistics().backlog.pending == 4
        await rt.submit_nowait(gate.job, "d", key="d")
        await rt.submit_nowait(gate.job, "e", key="e")
        with pytest.raises(Backpressure, match="6 runs wait"):
            await rt.submit_nowait(gate.job, "f", key="f")
        gate.open.set()
        await trio.sleep(2000)
        assert rt.statistics().backlog.pending == 0
        assert rt.statistics().keys == 0
    assert sorted(gate.done) == ["a", "b", "d", "e", "hot", "hot", "hot", "later"]
