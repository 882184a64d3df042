"""Workflows made up at random, interrupted at random: driven again they take the same path."""

import os
from collections import Counter
from collections.abc import Awaitable, Callable
from math import inf
from random import Random
from typing import Any

import attrs
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
    UnknownRun,
    Workflow,
    current_step,
    step,
    workflow,
)
from keyrun.errors import WrongTask
from keyrun.storage import MemoryStore
from keyrun.testing import open_test_runtime

SEEDS = 1500 if os.environ.get("KEYRUN_SOAK") else 60

ran: Counter[str] = Counter()


@step(retry=Retry.none())
async def work(seconds: float, good: bool = True) -> None:
    ran[current_step().step] += 1
    await trio.sleep(seconds)
    if not good:
        raise PermanentError("refused")


@attrs.frozen
class Part:
    """One thing that a workflow does."""

    kind: str
    seconds: float
    inner: tuple[tuple["Part", ...], ...] = ()


PLAIN = ("step", "step", "sleep", "shielded", "handled", "refused", "tidied", "now")
NESTED = ("move_on", "move_on", "fail", "gather", "gather")


def made_up(random: Random, depth: int = 3) -> tuple[Part, ...]:
    def part() -> Part:
        kind = random.choice(PLAIN + NESTED * (depth > 0))
        seconds = random.uniform(0.1, 15 if kind in NESTED else 6)
        if kind not in NESTED:
            return Part(kind, seconds)
        count = random.randint(1, 3) if kind == "gather" else 1
        return Part(kind, seconds, tuple(made_up(random, depth - 1) for _ in range(count)))

    return tuple(part() for _ in range(random.randint(1, 4)))


async def play(ctx: Context, parts: tuple[Part, ...], path: list[str]) -> None:
    """Do it all, and note the path taken, except in branches: losers are not asked where they
    were when they lost."""
    for at, part in enumerate(parts):
        if part.kind in NESTED:
            path.append(f"{at} {await nested(ctx, part, path)}")
        else:
            await plain(ctx, part, path)
            path.append(f"{at} {part.kind}")


async def plain(ctx: Context, part: Part, path: list[str]) -> None:
    match part.kind:
        case "step":
            await ctx.step(work, part.seconds)
        case "sleep":
            await ctx.sleep(part.seconds)
        case "shielded":
            await ctx.step(work.options(shield=True), part.seconds)
        case "now":
            ctx.now()
        case "refused":
            await ctx.step(work, part.seconds, False)
        case "handled":
            try:
                await ctx.step(work, part.seconds, False)
            except StepFailed:
                path.append("handled")
        case "tidied":
            try:
                await ctx.step(work, part.seconds)
            finally:
                with trio.CancelScope(shield=True):
                    try:
                        await ctx.step(work, 1)
                    except WrongTask:
                        path.append("lost")


async def nested(ctx: Context, part: Part, path: list[str]) -> str:
    def branch(parts: tuple[Part, ...]) -> Callable[[Context], Awaitable[None]]:
        return lambda ctx: play(ctx, parts, [])

    try:
        if part.kind == "move_on":
            with ctx.move_on_after(part.seconds) as scope:
                await play(ctx, part.inner[0], path)
            return str(scope.expired)
        if part.kind == "fail":
            with ctx.fail_after(part.seconds):
                await play(ctx, part.inner[0], path)
        else:
            await ctx.gather(*map(branch, part.inner))
    except (StepFailed, TimeoutError) as error:
        return str(error)
    return "done"


async def drive(runtime: Runtime, flow: Workflow[Any, Any], seconds: float) -> None:
    """Let it run for a while; what was done before is not done again."""
    before: dict[str | None, int] = {}
    try:
        for each in await runtime.history("r"):
            if each.event == "step_completed":
                before[each.step] = ran[each.step or ""]
    except UnknownRun:
        pass
    await runtime.submit(flow, key="k", run_id="r")
    await trio.sleep(seconds)
    assert before == {name: ran[name or ""] for name in before}


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_workflow_made_up_at_random_takes_the_same_path(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    random = Random(seed)
    monkeypatch.setattr("trio._core._run._r", Random(seed))  # whom the scheduler lets run first
    parts = made_up(random)
    paths: list[list[str]] = []
    ran.clear()

    @workflow
    async def flow(ctx: Context) -> None:
        path: list[str] = []
        try:
            await play(ctx, parts, path)
        except StepFailed:
            path.append("failed")
        paths.append(path)
        await ctx.sleep(100_000)

    store = MemoryStore()
    for _ in range(random.randint(0, 3)):
        patience = random.choice([0, 1, 100])
        evict_after = random.choice([0.2, 3.0, inf])
        async with open_test_runtime(
            store, workflows=[flow], drain_timeout=patience, evict_after=evict_after
        ) as runtime:
            await drive(runtime, flow, random.uniform(0.5, 12))
            if random.random() < 0.6:
                store.crash()
                await trio.sleep_forever()
        await trio.sleep(random.uniform(0, 8) * random.randint(0, 1))
    for _ in range(3):
        async with open_test_runtime(store, workflows=[flow]) as runtime:
            await drive(runtime, flow, 1000)
            if await runtime.pause("r"):
                # It may have left memory; then this has it driven again.
                await runtime.resume("r")
                await trio.sleep(1)
            status = await runtime.status("r")
            assert status is not None
            assert status.state is State.WAITING, status.reason
    assert len(paths) >= 3
    assert all(path == paths[0] for path in paths), parts
