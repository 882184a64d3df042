"""Workflows made up at random, interrupted at random, and resumed with changed code.

A run that is quarantined has done nothing new. A run that is not resumes with the changed code, and
every call that the journal has is still in the blocks that it was in."""

import os
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import attrs
import pytest
import trio
from trio.testing import MockClock

from keyrun import Context, State, StepFailed, Workflow, workflow
from keyrun.runtime.run.branch import Branch
from keyrun.status import History
from keyrun.storage import MemoryStore
from keyrun.testing import EPOCH, open_test_runtime
from tests.runtime.run.test_random_workflows import NESTED, Part, made_up, play, ran

SEEDS = 3000 if os.environ.get("KEYRUN_SOAK") else 150
FOUND = [] if SEEDS >= 3000 else [228, 837, 1613, 2122]
"""Seeds that were wrong once: what was held started after another branch had contradicted the
journal, a block ended without a call that the journal had in it, and `ctx.now()` left an entry in a
block that had expired before it (837: or had been left)."""
FOUND_ACROSS = [] if SEEDS >= 3000 else [198, 360, 389, 872]
"""Seeds whose changed code took calls behind an expired block for calls in it, or the other way
round."""


BLOCKS = ("move_on", "fail")


Change = Callable[[Random, tuple[Part, ...]], tuple[Part, ...]]


def altered(random: Random, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The same with one call more, one less, or one elsewhere."""
    deeper = [at for at, part in enumerate(parts) if part.kind in NESTED]
    if deeper and random.random() < 0.6:
        at = random.choice(deeper)
        inner = list(parts[at].inner)
        branch = random.randrange(len(inner))
        inner[branch] = altered(random, inner[branch])
        return (*parts[:at], attrs.evolve(parts[at], inner=tuple(inner)), *parts[at + 1 :])
    at = random.randrange(len(parts))
    match random.choice(["more", "less", "elsewhere"]):
        case "more":
            new = Part(random.choice(["step", "sleep", "handled", "now"]), 1.5)
            return (*parts[:at], new, *parts[at:])
        case "less":
            return (*parts[:at], *parts[at + 1 :])
    rest = [*parts[:at], *parts[at + 1 :]]
    rest.insert(random.randrange(len(rest) + 1), parts[at])
    return tuple(rest)


def across(random: Random, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """The same with calls on the other side of the end of a block, if there is one."""
    blocks = [at for at, part in enumerate(parts) if part.kind in BLOCKS]
    deeper = [at for at, part in enumerate(parts) if part.kind in NESTED]
    if not deeper:
        return altered(random, parts)
    if not blocks or random.random() < 0.5:
        at = random.choice(deeper)
        branch = random.randrange(len(parts[at].inner))
        changed = list(parts[at].inner)
        changed[branch] = across(random, changed[branch])
        return (*parts[:at], attrs.evolve(parts[at], inner=tuple(changed)), *parts[at + 1 :])
    at = random.choice(blocks)
    inner, behind = parts[at].inner[0], parts[at + 1 :]
    if behind and random.random() < 0.7:
        inner = (*inner[: random.randrange(len(inner) + 1)], behind[0])
        behind = behind[random.randrange(2) :]
    else:
        cut = random.randrange(len(inner))
        inner, behind = inner[:cut], (*inner[cut:], *behind)
    return (*parts[:at], attrs.evolve(parts[at], inner=(inner,)), *behind)


def flow(parts: tuple[Part, ...]) -> Workflow[Any, Any]:
    @workflow(name="flow")
    async def made(ctx: Context) -> None:
        with suppress(StepFailed):
            await play(ctx, parts, [])
        await ctx.wait_signal("end")

    return made


def watch_blocks(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Return a mapping of each call to the blocks in which the code asked for it last."""
    blocks: dict[str, list[str]] = {}
    name = Branch.name

    def noted(branch: Branch, base: str) -> str:
        ident = name(branch, base)
        scopes = branch.run.journal.scopes
        blocks[ident] = [
            block for block, scope in scopes.items() if branch.prefix.startswith(scope.prefix)
        ]
        return ident

    monkeypatch.setattr(Branch, "name", noted)
    return blocks


def known_of(history: History, until: float) -> set[str]:
    """Return the calls that the journal had at a time."""
    return {
        each.step or ""
        for each in history
        if each.at < until or (each.event == "interrupted" and (each.began_at or 0) < until)
    }


@pytest.mark.parametrize(
    ("change", "seed"),
    [
        *((altered, seed) for seed in (*range(SEEDS), *FOUND)),
        *((across, seed) for seed in (*range(SEEDS), *FOUND_ACROSS)),
    ],
)
async def test_a_run_of_changed_code_does_nothing_new_before_it_is_quarantined(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, seed: int, change: Change
) -> None:
    random = Random(seed)
    monkeypatch.setattr("trio._core._run._r", Random(seed))  # whom the scheduler lets run first
    parts = made_up(random)
    old, new = flow(parts), flow(change(random, parts))
    ran.clear()
    blocks = watch_blocks(monkeypatch)
    store = MemoryStore()
    async with open_test_runtime(store, workflows=[old], drain_timeout=0) as runtime:
        await runtime.submit(old, key="k", run_id="r")
        await trio.sleep(random.uniform(0.5, 30))
        if random.random() < 0.6:
            store.crash()
            await trio.sleep_forever()
    before, placed = set(ran), dict(blocks)
    await trio.sleep(1)
    reopened = EPOCH + trio.current_time()
    blocks.clear()
    async with open_test_runtime(store, workflows=[new]) as runtime:
        if await runtime.pause("r"):
            # It may have left memory; then this has it driven again.
            await runtime.resume("r")
        await trio.sleep(1000)
        status = await runtime.status("r")
        history = await runtime.history("r")
    assert status is not None
    if status.state is State.QUARANTINED:
        assert set(ran) <= before, (set(ran) - before, status.reason)
        return
    assert status.state is State.WAITING, status.reason
    ended = {each.step for each in history if each.event in ("scope_expired", "scope_finished")}
    for ident in known_of(history, reopened).intersection(placed, blocks):
        was = [block for block in placed[ident] if block in ended]
        assert [block for block in blocks[ident] if block in ended] == was, ident
    async with open_test_runtime(store, workflows=[new]) as runtime:
        await runtime.pause("r")
        await runtime.resume("r")
        await trio.sleep(10)
        status = await runtime.status("r")
    assert status is not None
    assert status.state is State.WAITING, status.reason
