"""Acting: what a step of a planned run does, and the evidence that it leaves.

Every attempt writes down that it began and that it was left. One that is to fail first spoils the
key's state, which must come to nothing; one that succeeds adds to a sum that tells order and
repetition.
"""

from collections.abc import MutableMapping
from functools import lru_cache
from threading import Event
from typing import Any, Protocol

import trio

from keyrun import (
    Context,
    Continue,
    PermanentError,
    StepFailed,
    Succeed,
    TransientError,
    Turn,
    current_step,
    machine,
    step,
)
from keyrun.stress.evidence import Log, Mark
from keyrun.stress.plan import (
    FAILED_CALL,
    RETRY,
    Call,
    Fault,
    Plan,
    Stage,
    Way,
    fold,
    value_of,
)
from keyrun.types import CurrentStep, StepFunction


class Planner(Protocol):
    """Whoever knows what each run is to do."""

    def plan(self, number: int) -> Plan:
        """The plan of run `number`."""


class Scene:
    """What all steps of a process share: where they write, and what they are to do."""

    log: Log
    planner: Planner

    def __init__(self) -> None:
        self.plan = lru_cache(maxsize=10_000)(lambda number: self.planner.plan(number))


scene = Scene()


def keep(state: MutableMapping[str, Any], value: int) -> None:
    """Add to the key's state what a step that succeeds stands for."""
    state["count"] = state.get("count", 0) + 1
    state["sum"] = fold(state.get("sum", 0), value)


def _begin(plan: Plan, call: Call) -> tuple[CurrentStep, Fault]:
    current = current_step()
    scene.log.write(Mark.BEGUN, plan.number, call.name, current.attempt)
    fault = Fault.NONE
    if current.attempt <= len(call.faults):
        fault = call.faults[current.attempt - 1]
    if call.keeps and fault is not Fault.NONE:
        current.state["sum"] = -1
    return current, fault


def _end(plan: Plan, call: Call, current: CurrentStep, fault: Fault) -> int:
    if fault is Fault.FAIL:
        error = TransientError if plan.number % 2 else ValueError
        raise error(f"planned for attempt {current.attempt}")
    if fault is Fault.PERMANENT:
        raise PermanentError(f"planned for attempt {current.attempt}")
    value = value_of(plan, call.name)
    if call.keeps:
        keep(current.state, value)
    return value


@step(retry=RETRY)
async def act(number: int, name: str) -> int:
    """A step in the loop."""
    return await _act(number, name)


async def _act(number: int, name: str) -> int:
    plan = scene.plan(number)
    call = plan.calls[name]
    current, fault = _begin(plan, call)
    try:
        if fault in (Fault.TIMEOUT, Fault.HANG):
            await trio.sleep_forever()
        if call.wait:
            await trio.sleep(call.wait)
        return _end(plan, call, current, fault)
    finally:
        scene.log.write(Mark.LEFT, number, name, current.attempt)


@step(retry=RETRY)
def act_in_thread(number: int, name: str) -> int:
    """A step in a worker thread."""
    plan = scene.plan(number)
    call = plan.calls[name]
    current, fault = _begin(plan, call)
    try:
        Event().wait(call.wait)
        return _end(plan, call, current, fault)
    finally:
        scene.log.write(Mark.LEFT, number, name, current.attempt)


@lru_cache(maxsize=10_000)
def step_of(name: str, way: Way, limit: float | None, once: bool) -> StepFunction[[int, str], int]:
    """The step under its own name and timeout."""
    function = act_in_thread if way is Way.THREAD else act
    named = function.options(name=name)
    if once:
        named = named.options(at_most_once=True)
    return named if limit is None else named.options(timeout=limit)


async def play(ctx: Context, number: int, stage: Stage) -> list[int]:
    """One stage of a plan: what its steps are worth."""
    if stage.sleep:
        await ctx.sleep(stage.sleep)
    steps = [
        ctx.step(step_of(call.name, call.way, call.limit, call.once), number, call.name)
        for call in stage.calls
    ]
    if len(steps) > 1:
        return list(await ctx.gather(*steps))
    try:
        return [await steps[0]]
    except StepFailed:
        if not stage.calls[0].tolerated:
            raise
        return [FAILED_CALL]


async def perform(ctx: Context, number: int) -> int:
    """All stages, one after the other. The result tells which steps it is made of."""
    total = 0
    for stage in scene.plan(number).stages:
        for value in await play(ctx, number, stage):
            total = fold(total, value)
    return total


@machine(name="turning", retry=RETRY)
async def turning(t: Turn) -> Continue | Succeed:
    """The same as a machine: each stage is a turn, and a timer comes before the turn that has one.
    The payload is the number of the run, and then what it has come to."""
    number, total = t.payload if t.number else (t.payload, 0)
    stages = scene.plan(number).stages
    total = fold(total, await _act(number, stages[t.number].calls[0].name))
    if t.number + 1 == len(stages):
        return Succeed(total)
    return Continue([number, total], after=stages[t.number + 1].sleep)
