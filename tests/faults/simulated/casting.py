"""Casting: the runs of a simulation, made up at random, and how each of them must end.

A kind of workflow is a row of the table `KINDS`: the workflow, how an input for it is made up, and
what that comes to on paper. To have the simulation cover another kind, add a row.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import attrs
import cattrs

from keyrun import (
    Context,
    Continue,
    FailureKind,
    Limits,
    Priority,
    State,
    Succeed,
    Turn,
    Workflow,
    machine,
    workflow,
)
from tests.faults.simulated import guards  # noqa: F401 (its pieces)
from tests.faults.simulated.acting import SOON, Act, play, scene
from tests.faults.simulated.affairs import ticking
from tests.faults.simulated.family import nested
from tests.faults.simulated.graphs import DETOUR, DIAMOND, SAGA, around, in_turn, plans
from tests.faults.simulated.looping import last_turn, loop_at_random, looping
from tests.faults.simulated.pieces import (
    PIECES,
    TOP,
    Doomed,
    Paper,
    Script,
    act_at_random,
    made_up,
    on_paper,
    perform,
)


@workflow(name="scripted")
async def scripted(ctx: Context, script: Script) -> list[Any]:
    """A function that plays a script."""
    scene.world.passed(ctx.run_id)
    return await perform(ctx, script)


@workflow(name="yielding", while_waiting="yield")
async def yielding(ctx: Context, script: Script) -> list[Any]:
    """The same, and others go ahead while it waits."""
    scene.world.passed(ctx.run_id)
    return await perform(ctx, script)


@machine(name="turning", retry=SOON, limits=Limits(step_timeout=2.0))
async def turning(t: Turn) -> Continue | Succeed:
    """A machine of which each turn is an act; the payload carries what they come to."""
    plan, worth = t.payload if t.number else (t.payload, [])
    act, after = plan[t.number]
    worth = [*worth, await play(cattrs.structure(act, Act))]
    if t.number + 1 == len(plan):
        return Succeed(worth)
    return Continue([plan, worth], after=after)


@attrs.frozen(kw_only=True)
class Kind:
    """One row. `ordered` says of an input whether one thing happens after the other in it: only
    then are budgets exact."""

    weight: int
    workflow: Workflow[Any, Any]
    make: Callable[[Random], Any]
    paper: Callable[[Paper, Any], Any]
    ordered: Callable[[Any], bool]


def _turns(random: Random) -> list[Any]:
    acts = [act_at_random(random, may_fail=True, doom=True) for _ in range(random.randint(1, 4))]
    return [[act.plain(), random.choice((0.0, 0.0, 1.0))] for act in acts]


KINDS: dict[str, Kind] = {
    "function": Kind(
        weight=5,
        workflow=scripted,
        make=lambda random: made_up(random, depth=TOP, most=5),
        paper=on_paper,
        ordered=lambda script: not any(PIECES[name].apart for name, *_ in script),
    ),
    "yielding": Kind(
        weight=2,
        workflow=yielding,
        make=lambda random: made_up(random, depth=TOP, most=5),
        paper=on_paper,
        ordered=lambda script: not any(PIECES[name].apart for name, *_ in script),
    ),
    "machine": Kind(
        weight=2,
        workflow=turning,
        make=_turns,
        paper=lambda paper, turns: [paper.step(cattrs.structure(act, Act)) for act, _ in turns],
        ordered=lambda turns: True,
    ),
    "looping": Kind(
        weight=2,
        workflow=looping,
        make=loop_at_random,
        paper=last_turn,
        ordered=lambda given: False,
    ),
    "diamond": Kind(
        weight=1,
        workflow=DIAMOND,
        make=plans("abcd", doomed="abcd"),
        paper=in_turn,
        ordered=lambda given: False,
    ),
    "detour": Kind(
        weight=1,
        workflow=DETOUR,
        make=plans("abce", doomed="b"),
        paper=around,
        ordered=lambda given: False,
    ),
    "saga": Kind(
        weight=1,
        workflow=SAGA,
        make=plans("abc", doomed="bc"),
        paper=in_turn,
        ordered=lambda given: False,
    ),
}

WORKFLOWS = [*(kind.workflow for kind in KINDS.values()), nested, ticking]


@attrs.frozen(kw_only=True)
class Foreseen:
    """How a run ends that nobody disturbs."""

    state: State
    kind: FailureKind | None = None
    dead: bool = False
    result: Any = None


@attrs.frozen(kw_only=True)
class Role:
    """One run: what it does, and what is done to it. Times are seconds from the beginning."""

    run_id: str
    key: str
    kind: str
    input: Any
    at: float
    delay: float = 0.0
    budget: int | None = None
    iterations: int | None = None
    run_timeout: float | None = None
    priority: Priority = Priority.NORMAL
    cancel_at: float | None = None
    pause_at: float | None = None
    pause_for: float = 0.0
    pause_key: bool = False
    redrives: bool = False
    forgets: bool = False

    @property
    def workflow(self) -> Workflow[Any, Any]:
        """What it is a run of."""
        return KINDS[self.kind].workflow

    @property
    def limits(self) -> Limits:
        """What it is submitted with."""
        given = {"run_timeout": self.run_timeout, "retry_budget": self.budget}
        if self.iterations is not None:
            given["max_iterations"] = self.iterations
        return Limits(**{name: value for name, value in given.items() if value is not None})  # type: ignore[arg-type]

    @property
    def undoes(self) -> bool:
        """Whether something of it may have to be undone, after which it is not redriven."""
        return "undoable" in str(self.input) or self.kind == "saga"

    @property
    def messages(self) -> list[Any]:
        """The plans of signals and approvals that it waits for."""
        if self.workflow not in (scripted, yielding):
            return []
        return [plan for plan in self.input if plan[0] in ("signal", "approval")]

    def foreseen(self, *, redriven: bool = False) -> Foreseen:
        """How it ends if nobody disturbs it."""
        paper = Paper(
            self.run_id, budget=self.budget, iterations=self.iterations, redriven=redriven
        )
        try:
            result = KINDS[self.kind].paper(paper, self.input)
        except Doomed as doomed:
            return Foreseen(state=State.FAILED, kind=doomed.kind, dead=doomed.dead)
        return Foreseen(state=State.SUCCEEDED, result=result)


def cast(random: Random, *, runs: int, keys: int, span: float) -> list[Role]:
    """The runs of one simulation."""
    roles = []
    for number in range(runs):
        kind = random.choices(list(KINDS), [each.weight for each in KINDS.values()])[0]
        given = KINDS[kind].make(random)
        ordered = KINDS[kind].ordered(given)
        limited = random.random()
        cancelled, paused = random.random() < 0.15, random.random() < 0.2
        at = random.choice((0.0, random.uniform(0.0, span)))
        roles.append(
            Role(
                run_id=f"run-{number}",
                key=f"key-{random.randrange(keys)}",
                kind=kind,
                input=given,
                at=at,
                delay=random.uniform(0.1, 5.0) if random.random() < 0.1 else 0.0,
                budget=random.randrange(3) if ordered and limited < 0.15 else None,
                iterations=random.randint(1, 3) if ordered and 0.15 < limited < 0.25 else None,
                run_timeout=random.uniform(0.5, 6.0) if 0.3 < limited < 0.4 else None,
                priority=random.choice(list(Priority)),
                cancel_at=at + random.uniform(0.0, 6.0) if cancelled else None,
                pause_at=at + random.uniform(0.0, 4.0) if paused else None,
                pause_for=random.uniform(0.0, 6.0),
                pause_key=random.random() < 0.4,
                redrives=random.random() < 0.5,
                # What wrote into the state of its key has to be there when that is looked at.
                forgets=random.random() < 0.25 and "'keeps': True" not in str(given),
            )
        )
    return roles
