"""Children, as a piece: a workflow that others start, inside their own run or under a key of its
own, one by one or side by side."""

from random import Random
from typing import Any

from keyrun import ChildFailed, Context, workflow
from tests.faults.simulated.acting import scene
from tests.faults.simulated.pieces import (
    FAILED,
    PIECES,
    TOP,
    Paper,
    Piece,
    Script,
    made_up,
    on_paper,
    perform,
)

NESTS = ("nest-0", "nest-1")
"""Keys that only children have, so that nobody waits for somebody who waits for it."""
SMALL = ("step", "shielded", "sleep", "dice", "guarded")
"""What children do."""

Task = list[Any]
"""What tells it apart, whether it fails in the end, whether it is a run of its own, its script."""


@workflow(name="nested")
async def nested(ctx: Context, task: Task) -> list[Any]:
    """A child, or a member of a group."""
    name, fails, own, script = task
    if own:
        scene.world.passed(ctx.run_id)
        scene.world.started(name, ctx.run_id)
    worth = await perform(ctx, script)
    if fails:
        ctx.fail("as planned")
    return worth


def task_at_random(random: Random, *, own: bool) -> Task:
    """Something to do for one."""
    name = f"task-{random.getrandbits(40)}"
    script = made_up(random, depth=1, most=2, only=SMALL)
    for piece in script:
        for plan in piece:
            if own and isinstance(plan, dict):
                plan["owner"] = name
    return [name, random.random() < 0.2, own, script]


def worth_of(task: Task) -> Any:
    """What it comes to."""
    name, fails, _, script = task
    return FAILED if fails else on_paper(Paper(name), script)


def _make_child(random: Random, depth: int) -> list[Any]:
    key = random.choice((None, *NESTS))
    return [key, task_at_random(random, own=key is not None), depth == TOP]


async def _play_child(ctx: Context, key: str | None, task: Task, alone: bool) -> Any:
    """What is not `alone` has steps beside it, which need not wait for its end."""
    try:
        worth: Any = await ctx.child(nested, task, key=key)
    except ChildFailed:
        worth = FAILED
    if key is not None and alone:
        scene.world.over(task[0], ctx.run_id)
    return worth


def _paper_child(paper: Paper, key: str | None, task: Task, alone: bool) -> Any:
    if key is not None:
        return worth_of(task)
    _, fails, _, script = task
    worth: Script = on_paper(paper, script)
    return FAILED if fails else worth


PIECES["child"] = Piece(
    weight=3, make=_make_child, play=_play_child, paper=_paper_child, apart=True
)
