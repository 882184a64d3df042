"""Runs that go on with an empty journal, again and again."""

from random import Random
from typing import Any

from keyrun import Context, workflow
from tests.faults.simulated.acting import scene
from tests.faults.simulated.pieces import Paper, made_up, on_paper, perform

TURNS = ("step", "shielded", "sleep", "dice", "child", "guarded")


@workflow(name="looping")
async def looping(ctx: Context, given: list[Any]) -> list[Any]:
    """Plays one script after the other, each in a journal of its own."""
    times, scripts = given
    scene.world.passed(ctx.run_id)
    scene.world.continued(ctx.run_id, times)
    worth = await perform(ctx, scripts[times])
    if times + 1 < len(scripts):
        ctx.continue_as([times + 1, scripts])
    return worth


def loop_at_random(random: Random) -> list[Any]:
    """An input for it."""
    many = random.randint(2, 4)
    return [0, [made_up(random, depth=2, most=2, only=TURNS) for _ in range(many)]]


def last_turn(paper: Paper, given: list[Any]) -> Any:
    """What it comes to."""
    worth = [on_paper(paper, script) for script in given[1]]
    return worth[-1]
