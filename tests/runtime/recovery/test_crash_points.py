"""A run ends the same way, whichever of its commits the process is killed at."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from keyrun import (
    Context,
    PermanentError,
    Retry,
    Runtime,
    State,
    StepFailed,
    TransientError,
    current_step,
    step,
    workflow,
)
from keyrun.testing import CrashingLmdbStore, CrashPoint, RecordingHook, crash_points

SOON = Retry.fixed(max_attempts=3, delay=2)


class World:
    """What the steps did to the world, and what of that the store knows by now."""

    def __init__(self) -> None:
        self.executions: Counter[str] = Counter()

    def note(self) -> str:
        here = current_step()
        name = f"{here.run_id}:{here.step}"
        self.executions[name] += 1
        return name


world = World()


@step(retry=SOON)
async def flaky(failures: int) -> int:
    world.note()
    here = current_step()
    tried = here.memo["tried"] = here.memo.get("tried", 0) + 1
    if tried <= failures:
        raise TransientError(f"not yet, {tried}")
    return int(tried)


@step
async def add(amount: int) -> int:
    world.note()
    state = current_step().state
    state["total"] = state.get("total", 0) + amount
    state.setdefault("log", []).append(amount)
    return int(state["total"])


@step
async def refuse() -> None:
    world.note()
    raise PermanentError("never")


@step
async def plain(value: str) -> str:
    world.note()
    await trio.sleep(0.5)
    return value


@step(timeout=1, retry=SOON)
async def sluggish() -> int:
    """On the main line a timeout unwinds the whole workflow, which is driven again."""
    world.note()
    attempt = current_step().attempt
    if attempt == 1:
        await trio.sleep(100)
    return attempt


async def branch(ctx: Context) -> str:
    first = await ctx.step(plain, "left")
    await ctx.sleep(3)
    return first + await ctx.step(plain, "right")


async def doomed(ctx: Context) -> None:
    await ctx.step(plain, "before")
    await ctx.step(refuse)


async def slow(ctx: Context) -> None:
    await ctx.step(plain, "beside")
    await ctx.sleep(1000)
    await ctx.step(plain, "never")


@workflow
async def busy(ctx: Context, amount: int) -> list[Any]:
    told: list[Any] = [await ctx.step(add, amount)]
    told.append(await ctx.step(flaky, 2))
    told.append(await ctx.step(sluggish))
    told += await ctx.gather(ctx.step(flaky, 1), branch, ctx.step(plain, "p"))
    try:
        await ctx.gather(doomed, slow)
    except StepFailed as error:
        told.append(str(error.failure.kind))
    await ctx.sleep(5)
    told.append(await ctx.step(add, amount * 10))
    told.append(ctx.now() >= ctx.now())
    return told


@workflow
async def short(ctx: Context, amount: int) -> int:
    await ctx.step(flaky, 1)
    await ctx.gather(ctx.step(plain, "a"), ctx.step(plain, "b"))
    await ctx.sleep(1)
    return await ctx.step(add, amount)


async def two_runs(runtime: Runtime) -> list[Any]:
    first = await runtime.submit(busy, 1, key="k", run_id="first")
    second = await runtime.submit(busy, 2, key="k", run_id="second")
    other = await runtime.submit(busy, 5, key="other", run_id="other")
    results = [await first.result(), await second.result(), await other.result()]
    for run in (first, second, other):
        status = await run.status()
        assert status is not None
        assert status.state is State.SUCCEEDED
        assert status.steps_done == 10
    return results


EXPECTED = [
    [1, 3, 2, 2, "leftright", "p", "permanent_error", 11, True],
    [13, 3, 2, 2, "leftright", "p", "permanent_error", 33, True],
    [5, 3, 2, 2, "leftright", "p", "permanent_error", 55, True],
]


def check_executions(point: CrashPoint) -> None:
    """A crash costs at most one more execution of the steps that were not durable by then."""
    for name, count in world.executions.items():
        ident = name.partition(":")[2]
        least = {"flaky": 3, "g1.0/flaky": 2, "sluggish": 2}.get(ident, 1)
        assert least <= count <= least + point.crashes, (point, name, count)
    names = {name.partition(":")[2] for name in world.executions}
    assert "g2.1/plain#2" not in names


@pytest.mark.parametrize(("crashes", "every"), [(1, 1), (3, 5)])
async def test_a_crash_at_any_commit_leads_to_the_same_end(
    autojump_clock: MockClock, crashes: int, every: int
) -> None:
    tried = 0
    for point in crash_points(crashes=crashes, every=every):
        world.executions.clear()
        hook = RecordingHook()
        results = await point.run(two_runs, workflows=[busy], on_terminal=hook)
        assert results == EXPECTED, point
        check_executions(point)
        for run_id in ("first", "second", "other"):
            assert 1 <= len(hook.of(run_id)) <= 1 + point.crashes, point
        tried += point.crashes > 0
    assert tried > 40 // every


async def test_a_step_whose_outcome_is_durable_never_runs_again(
    autojump_clock: MockClock,
) -> None:
    """With the commit applied before each crash, only what was staged later is repeated."""
    for point in crash_points():
        world.executions.clear()
        durable: Counter[str] = Counter()

        async def scenario(runtime: Runtime, durable: Counter[str] = durable) -> None:
            status = await runtime.status("r")
            if status is not None:
                for happening in await runtime.history("r"):
                    if happening.event == "step_completed":
                        durable[f"r:{happening.step}"] = world.executions[f"r:{happening.step}"]
            run = await runtime.submit(short, 3, key="k", run_id="r")
            assert await run.result() == 3

        await point.run(scenario, workflows=[short])
        for name, count in durable.items():
            assert world.executions[name] == count, point


async def test_the_same_on_a_disk(autojump_clock: MockClock, tmp_path: Path) -> None:
    made = 0

    def store() -> CrashingLmdbStore:
        nonlocal made
        made += 1
        return CrashingLmdbStore(tmp_path / str(made))

    async def scenario(runtime: Runtime) -> int:
        run = await runtime.submit(short, 4, key="k", run_id="r")
        return await run.result()

    for point in crash_points(store):
        world.executions.clear()
        assert await point.run(scenario, workflows=[short]) == 4
        assert 1 <= world.executions["r:add"] <= 1 + point.crashes
    assert made > 10
