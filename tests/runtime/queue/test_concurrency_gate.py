"""Keys whose runs wait to be started: let in by turns, and hardly in memory until then."""

import attrs
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from keyrun import Context, Priority, State, Workflow, current_step, step, workflow
from keyrun.runtime.tuning import Tuning
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime
from tests.runtime.fragile import FragileStore


class Gate:
    """A workflow of one step that waits until it is let through."""

    def __init__(self) -> None:
        self.open = trio.Event()
        self.begun: list[tuple[str, int]] = []

        @step
        async def wait(number: int) -> None:
            self.begun.append((current_step().key, number))
            await self.open.wait()

        @workflow
        async def job(ctx: Context, number: int) -> int:
            await ctx.step(wait, number)
            return number

        self.job: Workflow[int, int] = job


@pytest.fixture
def gate() -> Gate:
    return Gate()


FORGETFUL = Tuning(gate_window=2, gate_slack=1)
"""Hardly anything that waits is kept in memory."""
SLACK = Tuning().gate_slack


def tasks() -> int:
    return trio.lowlevel.current_statistics().tasks_living


async def test_keys_that_wait_for_a_slot_have_no_task(
    autojump_clock: MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job], max_concurrent_steps=4, drain_timeout=0
    ) as rt:
        for number in range(1000):
            await rt.submit(gate.job, number, key=f"k{number}")
        await wait_all_tasks_blocked()
        assert len(gate.begun) == 4
        assert tasks() < 4 + SLACK + 50
        gate.open.set()
        await (await rt.submit(gate.job, 1000, key="k1000")).result()
        await trio.sleep(1)
    assert sorted(gate.begun) == sorted((f"k{n}", n) for n in range(1001))
    # Those that were let in together may begin in any order.
    most = 4 + SLACK
    assert all(abs(at - number) <= most for at, (_, number) in enumerate(gate.begun))


async def test_what_is_known_by_name_only_runs_once_each_and_in_order(
    autojump_clock: MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job], max_concurrent_steps=1, tuning=FORGETFUL
    ) as rt:
        handles = [
            await rt.submit(gate.job, number, key=f"k{number % 20}") for number in range(100)
        ]
        await wait_all_tasks_blocked()
        assert len(rt._partition.queues.at_gate) > 10
        assert rt.statistics().backlog.pending == 99
        gate.open.set()
        assert [await handle.result() for handle in handles] == list(range(100))
        assert rt.statistics().backlog.pending == 0
        assert not rt._partition.queues.at_gate
        assert not rt._partition.queues.gate.under_way
    for key in range(20):
        assert [n for k, n in gate.begun if k == f"k{key}"] == list(range(key, 100, 20))


async def test_a_backlog_that_was_left_is_known_by_name_only_and_all_of_it_runs(
    autojump_clock: MockClock, gate: Gate
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[gate.job], tuning=FORGETFUL) as rt:
        await rt.pause_all()
        for number in range(200):
            await rt.submit(gate.job, number, key=f"k{number % 50}")
    async with open_test_runtime(
        store, workflows=[gate.job], max_concurrent_steps=2, tuning=FORGETFUL
    ) as rt:
        await wait_all_tasks_blocked()
        assert len(rt._partition.queues) < 10
        assert rt.statistics().backlog.pending == 200
        await rt.resume_all()
        gate.open.set()
        await (await rt.submit(gate.job, 200, key="k0")).result()
        await trio.sleep(1)
    for key in range(1, 50):
        assert [n for k, n in gate.begun if k == f"k{key}"] == list(range(key, 200, 50))
    assert [n for k, n in gate.begun if k == "k0"] == [0, 50, 100, 150, 200]


async def test_runs_of_a_key_that_is_known_by_name_only_can_be_cancelled_and_paused(
    autojump_clock: MockClock, gate: Gate
) -> None:
    async with open_test_runtime(
        workflows=[gate.job], max_concurrent_steps=1, tuning=FORGETFUL
    ) as rt:
        for number in range(40):
            await rt.submit(gate.job, number, key=f"k{number % 20}", run_id=f"r{number}")
        await wait_all_tasks_blocked()
        assert "k15" in rt._partition.queues.at_gate
        assert await rt.cancel("r15")
        assert await rt.pause("r36")
        assert rt.statistics().backlog.pending == 38
        gate.open.set()
        await (await rt.submit(gate.job, 35, key="k15", run_id="r35")).result()
        assert ("k15", 15) not in gate.begun
        await trio.sleep(1)
        assert ("k16", 36) not in gate.begun
        await rt.resume("r36")
        await (await rt.submit(gate.job, 36, key="k16", run_id="r36")).result()
        assert rt.statistics().backlog.pending == 0


async def test_a_key_whose_last_end_is_being_committed_stays_in_memory(
    autojump_clock: MockClock, gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    store = FragileStore()
    async with open_test_runtime(
        store,
        workflows=[gate.job],
        max_concurrent_steps=1,
        tuning=Tuning(gate_window=0, gate_slack=1),
    ) as rt:
        await rt.submit(gate.job, 0, key="a", run_id="first")
        for key in "bc":
            await rt.submit(gate.job, 0, key=key)
        second = await rt.submit(gate.job, 1, key="a")
        await trio.sleep(1)
        assert gate.begun == [("a", 0)]
        store.latency = 10
        with trio.move_on_after(15):
            # The request is committed first, and then the end.
            await rt.cancel("first")
        gate.open.set()
        assert await second.result() == 1
        await trio.sleep(100)
        assert [number for key, number in gate.begun if key == "a"] == [0, 1]
        assert {status.state for status in await rt.runs()} == {State.SUCCEEDED, State.CANCELLED}
    assert "Keyrun failed" not in caplog.text


async def test_a_high_priority_does_not_wait_behind_all_who_came_before(
    autojump_clock: MockClock,
) -> None:
    sizes = Tuning(gate_slack=0)
    begun: list[str] = []

    @step
    async def note() -> None:
        begun.append(current_step().key)
        await trio.sleep(1)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(note)

    async with open_test_runtime(workflows=[job], max_concurrent_steps=1, tuning=sizes) as rt:
        for number in range(50):
            await rt.submit(job, key=f"normal-{number}")
        await rt.submit(job, key="high", priority=Priority.HIGH)
        await trio.sleep(100)
    assert len(begun) == 51
    assert begun.index("high") < 6


async def test_keys_that_are_held_before_they_begin_keep_nobody_out(
    autojump_clock: MockClock, gate: Gate
) -> None:
    sizes = Tuning(gate_slack=0)
    gate.open.set()
    async with open_test_runtime(workflows=[gate.job], max_concurrent_steps=2, tuning=sizes) as rt:
        for number in range(10):
            await rt.pause_key(f"held-{number}")
            await rt.submit(gate.job, number, key=f"held-{number}")
        await wait_all_tasks_blocked()
        assert await (await rt.submit(gate.job, 7, key="free")).result() == 7
        for number in range(10):
            await rt.resume_key(f"held-{number}")
        await trio.sleep(1)
    assert len(gate.begun) == 11


async def test_a_key_that_is_asked_for_while_the_index_is_read_keeps_its_order(
    autojump_clock: MockClock, gate: Gate
) -> None:
    sizes = attrs.evolve(FORGETFUL, startup_page=5)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[gate.job], tuning=sizes) as rt:
        await rt.pause_all()
        for number in range(10):
            await rt.submit(gate.job, number, key=f"a{number}")
        for number in range(13):
            await rt.submit(gate.job, number, key="zzz")
    gate.open.set()
    async with open_test_runtime(store, workflows=[gate.job], tuning=sizes) as rt:
        while rt.statistics().backlog.pending < 15:
            await trio.lowlevel.checkpoint()
        await rt.resume_key("zzz")
        await rt.resume_all()
        await trio.sleep(100)
        assert rt.statistics().backlog.pending == 0
    assert [number for key, number in gate.begun if key == "zzz"] == list(range(13))


@pytest.mark.parametrize("gathered", [False, True])
async def test_workflows_that_wait_for_runs_of_other_keys_do_not_keep_them_out(
    autojump_clock: MockClock, gathered: bool
) -> None:
    sizes = Tuning(gate_slack=0)

    @step
    async def one() -> int:
        return 1

    @workflow
    async def child(ctx: Context) -> int:
        return await ctx.step(one)

    @workflow
    async def parent(ctx: Context, number: int) -> int:
        async def wait(_: Context) -> int:
            return await (await rt.submit(child, key=f"c{number}", run_id=f"c{number}")).result()

        return (await ctx.gather(wait))[0] if gathered else await wait(ctx)

    async with open_test_runtime(
        workflows=[child, parent], max_concurrent_steps=1, tuning=sizes
    ) as rt:
        await rt.pause_all()
        handles = [await rt.submit(parent, number, key=f"p{number}") for number in range(20)]
        await rt.resume_all()
        with trio.fail_after(100):
            assert [await handle.result() for handle in handles] == [1] * 20


@pytest.mark.parametrize("at_hand", [2, 1000])
async def test_a_priority_is_known_again_after_a_restart(
    autojump_clock: MockClock, at_hand: int
) -> None:
    sizes = Tuning(gate_slack=0, gate_window=at_hand)
    begun: list[str] = []

    @step
    async def note() -> None:
        begun.append(current_step().key)
        await trio.sleep(1)

    @workflow
    async def job(ctx: Context) -> None:
        await ctx.step(note)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[job], tuning=sizes) as rt:
        await rt.pause_all()
        for number in range(50):
            await rt.submit(job, key=f"low-{number}", priority=Priority.LOW)
        await rt.submit(job, key="z-high", priority=Priority.HIGH)
        await rt.resume_all()
        store.crash()
    begun.clear()
    async with open_test_runtime(
        store, workflows=[job], max_concurrent_steps=1, tuning=sizes
    ) as rt:
        await rt.resume_all()
        await trio.sleep(100)
    assert len(begun) == 51
    assert begun.index("z-high") < 6


async def test_runs_that_start_before_they_are_counted_are_counted_once(
    autojump_clock: MockClock, gate: Gate
) -> None:
    sizes = Tuning(startup_page=1, queue_window=1)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[gate.job], drain_timeout=0, tuning=sizes) as rt:
        for number in range(50):
            await rt.submit(gate.job, number, key="a")
            await rt.submit(gate.job, number, key="z")
    gate.open.set()
    async with open_test_runtime(store, workflows=[gate.job], tuning=sizes) as rt:
        counts = [0]
        # The index of places is read from "a" on, and "z" is begun before.
        await rt.resume_key("z")
        while len(set(gate.begun)) < 100:
            await trio.lowlevel.checkpoint()
            counts.append(rt.statistics().backlog.pending)
        await wait_all_tasks_blocked()
        assert min(counts) >= 0
        assert rt.statistics().backlog.pending == 0


async def test_a_line_that_was_forgotten_takes_no_other_with_it(
    autojump_clock: MockClock, gate: Gate
) -> None:
    gate.open.set()
    async with open_test_runtime(workflows=[gate.job]) as rt:
        partition = rt._partition
        await (await rt.submit(gate.job, 1, key="k")).result()
        partition.queues.of("k").wake()
        former = partition.queues.of("k")
        await wait_all_tasks_blocked()
        assert partition.queues.get("k") is None
        present = partition.queues.of("k")
        partition.backlog.enter(present)
        former.wake()
        await wait_all_tasks_blocked()
        assert partition.queues.get("k") is present
