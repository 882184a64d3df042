"""Pieces: the small things that workflows made up at random are put together from.

A piece is a row of the table `PIECES`: how often it comes, how a plan for it is made up, how it is
played in a workflow, and what it comes to on paper. To have the simulation cover something more,
add a row.

A plan is a list that starts with the name of its piece, so it can be the input of a run. What is
left to chance or to timing (who wins a race, whether a crash cut off what may run once) comes to a
constant, so that the result of a run is known beforehand.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from random import Random
from typing import Any

import attrs
import cattrs

from keyrun import Context, FailureKind, StepFailed
from tests.faults.simulated.acting import (
    HANG,
    SOON,
    Act,
    Fault,
    act,
    act_once,
    act_shielded,
    act_undoable,
    scene,
    value_of,
)

Plan = list[Any]
Script = list[Plan]

FAILED = "failed"
"""What a failure that the workflow handles comes to."""


class Doomed(Exception):
    """On paper, the run fails here."""

    def __init__(self, kind: FailureKind, *, dead: bool = True) -> None:
        super().__init__(kind)
        self.kind = kind
        self.dead = dead


class Paper:
    """Plays a run through on paper. If it is `redriven`, what failed for good goes well the second
    time, and so does all that comes after it."""

    def __init__(
        self,
        run_id: str,
        *,
        budget: int | None = None,
        iterations: int | None = None,
        redriven: bool = False,
    ) -> None:
        self.run_id = run_id
        self._budget = budget
        self._iterations = iterations
        self._redriven = redriven
        self._again = False
        self._retries = self._begun = 0

    def step(self, plan: Act, *, handled: bool = False) -> Any:
        """What a step comes to."""
        self._begun += 1
        if self._iterations is not None and self._begun > self._iterations:
            raise Doomed(FailureKind.ITERATION_LIMIT, dead=False)
        kind = None if self._again else self._attempts(plan)
        if kind is None:
            return value_of(self.run_id, plan)
        if handled:
            return FAILED
        if not self._redriven:
            raise Doomed(kind)
        self._again = True
        return value_of(self.run_id, plan)

    def _attempts(self, plan: Act) -> FailureKind | None:
        for attempt, fault in enumerate(plan.faults, 1):
            if fault is Fault.NONE:
                return None
            if fault is Fault.REFUSE:
                return FailureKind.PERMANENT_ERROR
            if attempt == SOON.max_attempts:
                timeout = fault is Fault.HANG
                return FailureKind.STEP_TIMEOUT if timeout else FailureKind.STEP_FAILED
            if self._budget is not None and self._retries >= self._budget:
                return FailureKind.RETRY_BUDGET
            self._retries += 1
        return None


@attrs.frozen(kw_only=True)
class Piece:
    """One row. `make` gets chance and how deep pieces may still nest, and gives what comes after
    the name in a plan. `apart` pieces have no order inside, which budgets need."""

    weight: int
    make: Callable[[Random, int], list[Any]]
    play: Callable[..., Awaitable[Any]]
    paper: Callable[..., Any]
    nests: bool = False
    apart: bool = False


def made_up(random: Random, *, depth: int, most: int, only: Sequence[str] = ()) -> Script:
    """A script of pieces."""
    names = [
        name
        for name, piece in PIECES.items()
        if (depth or not piece.nests) and (not only or name in only)
    ]
    weights = [PIECES[name].weight for name in names]
    drawn = random.choices(names, weights, k=random.randint(1, most))
    return [[name, *PIECES[name].make(random, depth)] for name in drawn]


async def perform(ctx: Context, script: Script) -> list[Any]:
    """Play a script."""
    return [await PIECES[name].play(ctx, *rest) for name, *rest in script]


def on_paper(paper: Paper, script: Script) -> list[Any]:
    """What it comes to."""
    return [PIECES[name].paper(paper, *rest) for name, *rest in script]


def act_at_random(random: Random, *, may_fail: bool, doom: bool, keeps: bool = True) -> Act:
    """A step with faults, or without."""
    faults: list[Fault] = []
    if may_fail and random.random() < 0.35:
        kinds = (Fault.FAIL, Fault.BUG, Fault.HANG)
        faults = random.choices(kinds, k=random.randint(1, SOON.max_attempts - 1))
        if doom and random.random() < 0.3:
            faults.append(random.choice((Fault.REFUSE, Fault.FAIL, Fault.HANG)))
            faults += [Fault.FAIL] * (SOON.max_attempts - len(faults))
    return Act(
        name=random.choice(("act", "pay", "ship")),
        value=random.randrange(1_000_000),
        faults=tuple(faults),
        seconds=random.choice((0.0, 0.0, 0.1, random.uniform(0.0, 1.5))),
        keeps=keeps and random.random() < 0.6,
        notes=random.random() < 0.2,
    )


@cache
def _step(function: Any, name: str, timeout: float | None) -> Any:
    """The step under another name."""
    return function.options(name=name, timeout=timeout)


async def call(
    ctx: Context, function: Any, plan: dict[str, Any], *, timeout: float | None = None
) -> Any:
    """Call a step under its own name, and tell the world when its outcome is here."""
    try:
        value, step = await ctx.step(_step(function, plan["name"], timeout), plan)
    except StepFailed as error:
        if error.failure.step is not None:
            scene.world.delivered(ctx.run_id, error.failure.step)
        raise
    scene.world.delivered(ctx.run_id, step)
    return value


def _make_step(random: Random, depth: int) -> list[Any]:
    """On the main line it may fail for good, handled or not; in branches only if handled."""
    handled = random.random() < 0.5
    apart = depth < TOP
    plan = act_at_random(random, may_fail=True, doom=handled or not apart, keeps=not apart)
    return [plan.plain(), handled]


async def _play_step(ctx: Context, plan: dict[str, Any], handled: bool) -> Any:
    try:
        return await call(ctx, act, plan, timeout=HANG)
    except StepFailed:
        if not handled:
            raise
        return FAILED


def _paper_step(paper: Paper, plan: dict[str, Any], handled: bool) -> Any:
    return paper.step(cattrs.structure(plan, Act), handled=handled)


async def _play_undoable(ctx: Context, plan: dict[str, Any]) -> Any:
    return await call(ctx, act_undoable, plan)


async def _play_shielded(ctx: Context, plan: dict[str, Any]) -> Any:
    return await call(ctx, act_shielded, plan)


async def _play_once(ctx: Context, plan: dict[str, Any]) -> str:
    """It may have been interrupted: that is left to chance."""
    try:
        await call(ctx, act_once, plan)
    except StepFailed as error:
        if error.failure.kind is not FailureKind.INTERRUPTED:
            raise
    return "once"


def _paper_once(paper: Paper, plan: dict[str, Any]) -> str:
    paper.step(cattrs.structure(plan, Act))
    return "once"


async def _play_sleep(ctx: Context, seconds: float) -> str:
    await ctx.sleep(seconds)
    return "slept"


async def _play_signal(ctx: Context, name: str, after: float, payload: int) -> Any:
    """Somebody sends it, `after` so many seconds."""
    return await ctx.wait_signal(name)


async def _play_approval(ctx: Context, gate: str, after: float) -> str:
    return (await ctx.approval(gate)).comment


async def _play_dice(ctx: Context, number: int) -> str:
    world = scene.world
    world.rolled(ctx.run_id, f"random {number}", f"{ctx.random()}")
    world.rolled(ctx.run_id, f"uuid {number}", f"{ctx.uuid4()}")
    ctx.report(50, "half way")
    ctx.now()
    return "rolled"


async def _play_gather(ctx: Context, scripts: list[Script]) -> list[Any]:
    def branch(script: Script) -> Callable[[Context], Awaitable[Any]]:
        async def run(inner: Context) -> Any:
            return await perform(inner, script)

        return run

    return list(await ctx.gather(*map(branch, scripts)))


async def _play_race(ctx: Context, scripts: list[Script], plan: dict[str, Any]) -> str:
    """One branch fails for good, whatever the others do."""

    async def doomed(inner: Context) -> Any:
        return await call(inner, act, plan, timeout=HANG)

    def branch(script: Script) -> Callable[[Context], Awaitable[Any]]:
        async def run(inner: Context) -> Any:
            return await perform(inner, script)

        return run

    try:
        await ctx.gather(doomed, *map(branch, scripts))
    except StepFailed:
        return "lost"
    return "won"


async def _play_within(ctx: Context, seconds: float, script: Script) -> str:
    with ctx.move_on_after(seconds):
        await perform(ctx, script)
    return "over"


BRANCHED = ("step", "shielded", "undoable", "sleep", "dice", "gather", "child", "guarded")
"""What may be in branches and blocks: nothing that ends the run."""
TOP = 3
"""How deep pieces may nest."""


def _scripts(random: Random, depth: int) -> list[Script]:
    many = random.randint(1, 3)
    return [made_up(random, depth=depth - 1, most=2, only=BRANCHED) for _ in range(many)]


PIECES: dict[str, Piece] = {
    "step": Piece(weight=10, make=_make_step, play=_play_step, paper=_paper_step),
    "shielded": Piece(
        weight=2,
        make=lambda random, depth: [
            act_at_random(random, may_fail=False, doom=False, keeps=depth == TOP).plain()
        ],
        play=_play_shielded,
        paper=lambda paper, plan: paper.step(cattrs.structure(plan, Act)),
    ),
    "undoable": Piece(
        weight=4,
        make=lambda random, depth: [
            act_at_random(random, may_fail=False, doom=False, keeps=False).plain()
        ],
        play=_play_undoable,
        paper=lambda paper, plan: paper.step(cattrs.structure(plan, Act)),
    ),
    "once": Piece(
        weight=2,
        make=lambda random, depth: [
            act_at_random(random, may_fail=False, doom=False, keeps=False).plain()
        ],
        play=_play_once,
        paper=_paper_once,
    ),
    "sleep": Piece(
        weight=3,
        make=lambda random, depth: [random.choice((0.0, 0.2, random.uniform(0.0, 8.0)))],
        play=_play_sleep,
        paper=lambda paper, seconds: "slept",
    ),
    "signal": Piece(
        weight=2,
        make=lambda random, depth: [
            f"signal-{random.getrandbits(40)}",
            random.uniform(0.0, 6.0),
            random.getrandbits(30),
        ],
        play=_play_signal,
        paper=lambda paper, name, after, payload: payload,
    ),
    "approval": Piece(
        weight=1,
        make=lambda random, depth: [f"gate-{random.getrandbits(40)}", random.uniform(0.0, 6.0)],
        play=_play_approval,
        paper=lambda paper, gate, after: "fine",
    ),
    "dice": Piece(
        weight=1,
        make=lambda random, depth: [random.getrandbits(60)],
        play=_play_dice,
        paper=lambda paper, number: "rolled",
    ),
    "gather": Piece(
        weight=3,
        make=lambda random, depth: [_scripts(random, depth)],
        play=_play_gather,
        paper=lambda paper, scripts: [on_paper(paper, script) for script in scripts],
        nests=True,
        apart=True,
    ),
    "race": Piece(
        weight=1,
        make=lambda random, depth: [
            _scripts(random, depth),
            Act(faults=(Fault.REFUSE,), seconds=random.choice((0.0, 0.3)), always=True).plain(),
        ],
        play=_play_race,
        paper=lambda paper, scripts, plan: "lost",
        nests=True,
        apart=True,
    ),
    "within": Piece(
        weight=2,
        make=lambda random, depth: [
            random.uniform(0.1, 4.0),
            made_up(random, depth=depth - 1, most=3, only=BRANCHED),
        ],
        play=_play_within,
        paper=lambda paper, seconds, script: "over",
        nests=True,
        apart=True,
    ),
}
