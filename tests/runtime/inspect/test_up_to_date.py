"""The status of a run never contradicts its history, whatever commit a crash came after."""

from contextlib import suppress
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    Continue,
    Graph,
    NodeInput,
    PermanentError,
    Retry,
    RunFailed,
    Runtime,
    SignalTimeout,
    State,
    Succeed,
    TransientError,
    Turn,
    current_step,
    machine,
    open_reader,
    step,
    workflow,
)
from keyrun.storage import MemoryStore
from keyrun.storage.batch import Tables
from keyrun.testing import CrashingMemoryStore, crash_points, open_test_runtime, virtual_wall


@step
async def quick(value: int = 1) -> int:
    return value


@step
async def slow(seconds: float) -> None:
    await trio.sleep(seconds)


@step(retry=Retry.fixed(max_attempts=2, delay=3, jitter=0))
async def flaky() -> None:
    if current_step().attempt == 1:
        raise TransientError("again")


@workflow(name="function")
async def function(ctx: Context) -> None:
    await ctx.step(quick)
    await ctx.step(slow, 5)
    await ctx.step(flaky)
    await ctx.sleep(2)
    await ctx.step(quick)
    await ctx.step(quick)
    with suppress(SignalTimeout):
        await ctx.wait_signal("go", timeout=3)
    await ctx.step(quick)
    await ctx.step(slow, 5)


@workflow(name="journals")
async def journals(ctx: Context, number: int | None) -> None:
    await ctx.step(quick)
    await ctx.step(quick)
    if number != 2:
        ctx.continue_as((number or 0) + 1)
    await ctx.step(slow, 1)


async def node(given: NodeInput) -> int:
    return 1


async def slow_node(given: NodeInput) -> None:
    await trio.sleep(3)


def graph() -> Graph:
    made = Graph("graph")
    made.node("a", node)
    made.node("b", node)
    made.node("c", slow_node)
    made.edge("a", "b")
    made.edge("b", "c")
    return made


@machine(name="machine")
async def turning(t: Turn) -> Any:
    return Succeed() if t.number == 3 else Continue(after=t.number % 2)


class Observed(CrashingMemoryStore):
    """Compares the status with the history after every commit."""

    reader: Any = None
    compared = 0

    async def _commit(self, tables: Tables) -> None:
        await super()._commit(tables)
        if self.reader is not None:
            await self.compare()

    async def compare(self) -> None:
        status = await self.reader.status("r")
        if status is None:
            return
        self.compared += 1
        history = list(await self.reader.history("r"))
        generation = [each.event for each in history].count("redriven")
        events = [each.event for each in history]
        if status.workflow == "function":
            assert status.steps_done == events.count("step_completed")
        starts = [each.at for each in history if each.event == "started"]
        started = starts[generation] if len(starts) > generation else None
        assert status.started_at == started, events
        assert (status.state is State.PENDING) == (started is None)
        progress = await self.reader.progress("r")
        assert (progress.state, progress.steps_done) == (status.state, status.steps_done)
        (listed,) = await self.reader.runs()
        assert listed == status
        assert await self.reader.runs(state=status.state) == [status]


FLOWS = [function, journals, graph(), turning]


@pytest.mark.parametrize("flow", FLOWS, ids=lambda flow: flow.name)
async def test_the_status_agrees_with_the_history_after_every_commit(
    flow: Any, autojump_clock: MockClock
) -> None:
    store = Observed()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        async with open_reader(store, wall=virtual_wall) as store.reader:
            await (await runtime.submit(flow, key="k", run_id="r")).result()
            await store.compare()
        store.reader = None
    assert store.compared > 3


async def test_a_run_that_a_kill_cut_off_at_once_was_started_and_stays_so(
    autojump_clock: MockClock,
) -> None:
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[function]) as runtime:
        await runtime.submit(function, key="k", run_id="r")
        began = virtual_wall()
        await trio.sleep(0.01)  # the first step is durable; the status is not yet
        store.crash()
    await trio.sleep(60)
    async with open_reader(store, wall=virtual_wall) as reader:
        status = await reader.status("r")
        assert status is not None
        assert (status.state, status.steps_done) == (State.RUNNING, 1)
        assert status.started_at == pytest.approx(began)
    async with open_test_runtime(store, workflows=[function]) as runtime:
        run = await runtime.submit(function, key="k", run_id="r")
        await run.result()
        status = await run.status()
        assert status is not None
        assert status.started_at == pytest.approx(began)
        progress = await runtime.progress("r")
        assert progress is not None
        assert progress.elapsed is not None
        assert progress.elapsed > 60


@pytest.mark.parametrize("flow", [function, graph()], ids=lambda flow: flow.name)
async def test_the_start_of_a_run_is_the_same_whichever_commit_it_crashed_at(
    flow: Any, autojump_clock: MockClock
) -> None:
    async def scenario(runtime: Runtime) -> tuple[float | None, list[float]]:
        run = await runtime.submit(flow, key="k", run_id="r")
        await run.result()
        status = await run.status()
        assert status is not None
        starts = [each.at for each in await runtime.history("r") if each.event == "started"]
        return status.started_at, starts

    for point in crash_points():
        started, told = await point.run(scenario, workflows=[flow])
        assert [started] == told, point


async def test_a_redriven_run_that_a_kill_cut_off_was_started_when_it_was_redriven(
    autojump_clock: MockClock,
) -> None:
    broken = True

    @step
    async def fragile() -> None:
        if broken:
            raise PermanentError("broken")

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step(quick)
        await ctx.step(fragile)
        await ctx.step(slow, 5)

    store = MemoryStore()
    async with open_test_runtime(store, workflows=[flow]) as runtime:
        run = await runtime.submit(flow, key="k", run_id="r")
        with pytest.raises(RunFailed):
            await run.result()
        await trio.sleep(60)
        broken = False
        await runtime.redrive("r")
        again = virtual_wall()
        await trio.sleep(0.01)
        store.crash()
    async with open_reader(store, wall=virtual_wall) as reader:
        status = await reader.status("r")
        assert status is not None
        assert (status.state, status.steps_done, status.generation) == (State.RUNNING, 2, 2)
        assert status.started_at == pytest.approx(again)
