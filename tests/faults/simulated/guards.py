"""Steps with policies, as pieces: so many at a time, so many per second, with shared resources, and
behind a circuit breaker. What they are held to is in `quotas`."""

from typing import Any

import cattrs

from keyrun import Context, Retry, StepFailed, TransientError, current_step, step
from keyrun.policies import CircuitBreaker, RateLimit, Resources
from tests.faults.simulated.acting import HANG, SOON, Act, Fault, play, scene
from tests.faults.simulated.pieces import PIECES, Piece, act_at_random, call
from tests.faults.simulated.quotas import FEW, OPEN_FOR, PAUSE, SEATS, TRIES, WIDE

POOL = Resources(seats=SEATS)
"""What all steps of a simulation share."""


async def _held(plan: dict[str, Any], guard: str) -> list[Any]:
    quotas = scene.world.quotas
    quotas.began(guard)
    failed = False
    try:
        return [await play(cattrs.structure(plan, Act)), current_step().step]
    except TransientError:
        failed = True
        raise
    finally:
        quotas.left(guard, failed=failed)


@step(retry=SOON, max_concurrent=FEW)
async def act_few(plan: dict[str, Any]) -> list[Any]:
    """Not too many at a time."""
    return await _held(plan, "few")


@step(retry=SOON, rate=RateLimit(1, per=PAUSE))
async def act_paced(plan: dict[str, Any]) -> list[Any]:
    """Not too often."""
    return await _held(plan, "paced")


@step(retry=SOON, resources=Resources(seats=WIDE))
async def act_wide(plan: dict[str, Any]) -> list[Any]:
    """Needs much of what there is."""
    return await _held(plan, "wide")


@step(retry=SOON, resources=Resources(seats=1))
async def act_narrow(plan: dict[str, Any]) -> list[Any]:
    """Needs little of it."""
    return await _held(plan, "narrow")


@step(
    retry=Retry.none(),
    breaker=CircuitBreaker(
        failure_rate=1.0, minimum_calls=TRIES, open_for=OPEN_FOR, half_open_successes=1
    ),
)
async def act_braked(plan: dict[str, Any]) -> list[Any]:
    """Fails, whenever it is called."""
    return await _held(plan, "braked")


FUNCTIONS = {"few": act_few, "paced": act_paced, "wide": act_wide, "narrow": act_narrow}


async def _play_guarded(ctx: Context, guard: str, plan: dict[str, Any]) -> Any:
    return await call(ctx, FUNCTIONS[guard], plan, timeout=HANG)


async def _play_braked(ctx: Context, plan: dict[str, Any]) -> str:
    try:
        await call(ctx, act_braked, plan)
    except StepFailed:
        return "braked"
    return "went through"


PIECES["guarded"] = Piece(
    weight=2,
    make=lambda random, depth: [
        random.choice(list(FUNCTIONS)),
        act_at_random(random, may_fail=random.random() < 0.3, doom=False, keeps=False).plain(),
    ],
    play=_play_guarded,
    paper=lambda paper, guard, plan: paper.step(cattrs.structure(plan, Act)),
)
PIECES["braked"] = Piece(
    weight=1,
    make=lambda random, depth: [
        (Act(faults=(Fault.FAIL,), seconds=random.choice((0.0, 0.3)), always=True)).plain()
    ],
    play=_play_braked,
    paper=lambda paper, plan: "braked",
    # It is no retry that its budget counts, but a step.
    apart=True,
)
