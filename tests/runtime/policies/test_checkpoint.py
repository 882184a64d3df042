"""Checkpoint cadences: what a crash repeats is what was said, and no more."""

from itertools import pairwise
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, Graph, NodeInput, Runtime, current_step, step, workflow
from keyrun.events import EventKind
from keyrun.policies import EverySeconds, EverySteps, Manual
from keyrun.storage import MemoryStore
from keyrun.testing import CrashingMemoryStore, CrashPoint, crash_points, open_test_runtime

STEPS = 12
ran: list[str] = []


@step
async def work(number: int) -> int:
    ran.append(current_step().step)
    return number


@step(at_most_once=True)
async def once(number: int) -> int:
    ran.append(current_step().step)
    return number


def made(checkpoint: Any) -> Any:
    @workflow(name="flow", checkpoint=checkpoint)
    async def flow(ctx: Context) -> int:
        total = 0
        for number in range(STEPS):
            total += await ctx.step(work, number)
            if isinstance(checkpoint, Manual) and number % 3 == 2:
                await ctx.checkpoint()
        return total

    return flow


def graph(checkpoint: Any) -> Graph:
    async def node(given: NodeInput) -> int:
        ran.append(current_step().step)
        return given.iteration

    made = Graph("flow", checkpoint=checkpoint)
    for number in range(STEPS):
        made.node(f"n{number}", node)
        if number:
            made.edge(f"n{number - 1}", f"n{number}")
    return made


async def repeated(flow: Any, point: CrashPoint) -> tuple[int, int]:
    """How many steps that were done are done again after a crash, and how many commits it took."""
    ran.clear()

    async def scenario(runtime: Runtime) -> Any:
        return await (await runtime.submit(flow, key="k", run_id="r")).result()

    await point.run(scenario, workflows=[flow])
    return len(ran) - STEPS, point.store.commits


@pytest.mark.parametrize("make", [made, graph])
@pytest.mark.parametrize(
    ("checkpoint", "most"), [(None, 1), (EverySteps(1), 1), (EverySteps(4), 4), (Manual(), STEPS)]
)
async def test_a_crash_repeats_no_more_steps_than_stated(
    make: Any, checkpoint: Any, most: int, autojump_clock: MockClock
) -> None:
    flow = make(checkpoint)
    if make is made and isinstance(checkpoint, Manual):
        most = 3
    again = [(await repeated(flow, point))[0] for point in crash_points()]
    assert max(again) <= most
    if most > 1:
        assert max(again) > 1


async def test_fewer_waits_take_fewer_commits(autojump_clock: MockClock) -> None:
    commits = {}
    for checkpoint in (None, EverySteps(4)):
        store = CrashingMemoryStore()
        point = CrashPoint(store, 1, applied=True, crashes=0)
        commits[checkpoint] = (await repeated(made(checkpoint), point))[1]
    assert commits[EverySteps(4)] < commits[None] - 6


async def test_every_so_many_seconds(autojump_clock: MockClock) -> None:
    @step
    async def second(number: int) -> int:
        ran.append(current_step().step)
        await trio.sleep(0.01)
        return number

    @workflow(checkpoint=EverySeconds(0.04))
    async def flow(ctx: Context) -> None:
        for number in range(STEPS):
            await ctx.step(second, number)

    again = [(await repeated(flow, point))[0] for point in crash_points()]
    assert max(again) <= 6


@pytest.mark.parametrize("compensated", [False, True])
@pytest.mark.parametrize("make", ["function", "graph"])
@pytest.mark.parametrize(
    ("checkpoint", "in_a_row"),
    [
        (None, {1}),
        (EverySteps(4), {4}),
        (EverySeconds(0.45), {3, 4, 5}),
        (Manual(), {STEPS}),
    ],
)
async def test_steps_that_take_their_time_wait_for_the_disk_only_so_often(
    checkpoint: Any, in_a_row: set[int], make: str, compensated: bool, autojump_clock: MockClock
) -> None:
    times: list[float] = []

    async def undo(given: Any) -> None:
        pass

    @step(compensate=undo if compensated else None)
    async def tenth(given: Any) -> None:
        times.append(trio.current_time())
        await trio.sleep(0.1)

    @workflow(name="flow", checkpoint=checkpoint)
    async def flow(ctx: Context) -> None:
        for number in range(STEPS):
            await ctx.step(tenth, number)

    chain = Graph("flow", checkpoint=checkpoint)
    for number in range(STEPS):
        chain.node(f"n{number}", tenth)
        if number:
            chain.edge(f"n{number - 1}", f"n{number}")
    chosen: Any = flow if make == "function" else chain
    async with open_test_runtime(MemoryStore(latency=0.1), workflows=[chosen]) as runtime:
        await (await runtime.submit(chosen, key="k")).result()
    rows = [1]
    for before, after in pairwise(times):
        if after - before > 0.15:
            rows.append(0)
        rows[-1] += 1
    assert set(rows[:-1] or rows) <= in_a_row


@pytest.mark.parametrize("make", [made, graph])
@pytest.mark.parametrize("checkpoint", [EverySteps(4), EverySeconds(1), Manual()])
async def test_every_step_is_told_to_who_listens_when_it_is_durable(
    make: Any, checkpoint: Any, autojump_clock: MockClock
) -> None:
    flow, told = make(checkpoint), 0
    async with open_test_runtime(MemoryStore(latency=1), workflows=[flow]) as runtime:
        async with runtime.events(kinds=[EventKind.STEP_COMPLETED]) as events:
            run = await runtime.submit(flow, key="k")
            began = trio.current_time()
            async for _ in events:
                assert trio.current_time() >= began + 1
                told += 1
                if told == STEPS:
                    break
        await run.result()


async def test_at_most_once_steps_wait_for_all_that_came_before(
    autojump_clock: MockClock,
) -> None:
    @workflow(checkpoint=Manual())
    async def flow(ctx: Context) -> None:
        for number in range(5):
            await ctx.step(work, number)
        await ctx.step(once, 5)

    async def scenario(runtime: Runtime) -> str:
        run = await runtime.submit(flow, key="k", run_id="r")
        while (status := await run.status()) is None or not status.state.terminal:
            await trio.sleep(1)
        return str(status.state)

    for point in crash_points():
        ran.clear()
        await point.run(scenario, workflows=[flow])
        assert ran.count("once") <= 1
        if "once" in ran:
            # Nothing before it is repeated once it has begun.
            assert "work" not in "".join(ran[ran.index("once") :])


@pytest.mark.parametrize("odd", [lambda: EverySteps(0), lambda: EverySeconds(-1)])
def test_odd_cadences_are_refused(odd: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        odd()


def test_a_checkpoint_must_be_a_cadence() -> None:
    with pytest.raises(TypeError, match="checkpoint must be EverySteps"):
        made(5)
