"""Plans: what the runs of a random world do, made up from a seed, as the input of one workflow."""

from random import Random

import attrs
import trio

from keyrun import (
    Context,
    PermanentError,
    Retry,
    SignalTimeout,
    TransientError,
    current_step,
    step,
    workflow,
)
from tests.faults.evidence import Evidence

MAX_ATTEMPTS = 3
SIGNAL = "news"
KINDS = ("quick", "quick", "slow", "slow", "noted", "once", "sleep", "pair", "limited", "listen")


@attrs.frozen
class Phase:
    """One thing that a run does."""

    kind: str
    seconds: float


@attrs.frozen
class Life:
    """One run from its submission until it is forgotten; its id may have another life then."""

    run_id: str
    number: int
    key: str
    luck: int
    """Seeds what its steps come to."""
    phases: tuple[Phase, ...]

    def __str__(self) -> str:
        return f"{self.run_id}.{self.number}"


def make_up(random: Random, run_id: str, number: int, key: str) -> Life:
    """A life for a run id."""
    phases = tuple(
        Phase(random.choice(KINDS), round(random.uniform(0.01, 3.0), 2))
        for _ in range(random.randint(1, 4))
    )
    return Life(run_id, number, key, random.getrandbits(32), phases)


class Told:
    """What the steps of the world that is being played report to."""

    evidence = Evidence()


async def _act(life: Life, seconds: float) -> str:
    """What every step does: it tells that it begins, and how it ends."""
    evidence, current = Told.evidence, current_step()
    assert current.attempt <= MAX_ATTEMPTS
    generation = current._run.status.generation
    execution = evidence.begin(life, generation, current.step)
    ending = "cut"
    try:
        if seconds:
            await trio.sleep(seconds)
        lot = Random(f"{life.luck} {current.step} {execution}").random()
        if lot < 0.06:
            ending = "permanent"
            raise PermanentError("the plan says so")
        if lot < 0.22:
            ending = "transient"
            raise TransientError("the plan says so")
        ending = "done"
        return f"{current.step}:{execution}"
    finally:
        evidence.end(life, current.step, execution, ending)


@step
async def quick(life: Life) -> str:
    return await _act(life, 0)


@step(timeout=100)
async def slow(life: Life, seconds: float) -> str:
    return await _act(life, seconds)


@step
async def noted(life: Life, seconds: float) -> str:
    state = current_step().state
    done = await _act(life, seconds)
    state["done"] = [*state.get("done", []), f"{life} {done}"]
    return done


@step(at_most_once=True)
async def once(life: Life, seconds: float) -> str:
    return await _act(life, seconds)


@step
async def hear(life: Life, said: int | None, before: str) -> str:
    """Tell which signal a wait returned, and which step was done before the wait began."""
    Told.evidence.hear(life, current_step().step, said, before)
    return await _act(life, 0)


@workflow(retry=Retry.exponential(max_attempts=MAX_ATTEMPTS, base=0.5, max_delay=2.0))
async def living(ctx: Context, life: Life) -> list[str]:
    """Go through the phases, and say which executions of steps it was given the values of."""
    given: list[str] = []
    for phase in life.phases:
        seconds = phase.seconds
        match phase.kind:
            case "quick":
                given.append(await ctx.step(quick, life))
            case "slow":
                given.append(await ctx.step(slow, life, seconds))
            case "noted":
                given.append(await ctx.step(noted, life, seconds))
            case "once":
                given.append(await ctx.step(once, life, seconds))
            case "sleep":
                await ctx.sleep(seconds)
            case "pair":
                given += await ctx.gather(ctx.step(slow, life, seconds), ctx.step(quick, life))
            case "listen":
                given.append(await ctx.step(quick, life))
                try:
                    said = await ctx.wait_signal(SIGNAL, timeout=seconds)
                except SignalTimeout:
                    said = None
                given.append(await ctx.step(hear, life, said, given[-1]))
            case "limited":
                with ctx.move_on_after(seconds):
                    given.append(await ctx.step(slow, life, seconds / 2))
                    await ctx.sleep(1.0)
    # So that every sitting of a run is seen by a step of its own.
    given.append(await ctx.step(quick, life))
    return given


@step
async def recite() -> list[str]:
    return list(current_step().state.get("done", []))


@workflow
async def reciting(ctx: Context) -> list[str]:
    """What the steps of a key that took a note did, in order."""
    return await ctx.step(recite)
