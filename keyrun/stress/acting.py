"""The steps and workflows of a planned run, and the log that they write.

Every attempt writes a line when it begins and a line when it ends. An attempt that is planned to
fail first changes the state of its key, and Keyrun must discard this change. An attempt that
succeeds adds its value to a sum that depends on the order of the steps and on repetitions.
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
    PlannedFault,
    PlannedRun,
    PlannedStep,
    Stage,
    Way,
    fold,
    value_of,
)
from keyrun.types import CurrentStep, StepFunction


class Planner(Protocol):
    """Has the plan of each run."""

    def plan(self, number: int) -> PlannedRun:
        """Return the plan of run `number`."""


class Scene:
    """Has what all steps of a process share: the log and the plans."""

    log: Log
    planner: Planner

    def __init__(self) -> None:
        self.plan = lru_cache(maxsize=10_000)(lambda number: self.planner.plan(number))


scene = Scene()


def keep(state: MutableMapping[str, Any], value: int) -> None:
    """Add the value of a step that succeeds to the state of its key."""
    state["count"] = state.get("count", 0) + 1
    state["sum"] = fold(state.get("sum", 0), value)


def _begin(plan: PlannedRun, call: PlannedStep) -> tuple[CurrentStep, PlannedFault]:
    current = current_step()
    scene.log.write(Mark.BEGUN, plan.number, call.name, current.attempt)
    fault = PlannedFault.NONE
    if current.attempt <= len(call.faults):
        fault = call.faults[current.attempt - 1]
    if call.keeps and fault is not PlannedFault.NONE:
        current.state["sum"] = -1
    return current, fault


def _end(plan: PlannedRun, call: PlannedStep, current: CurrentStep, fault: PlannedFault) -> int:
    if fault is PlannedFault.FAIL:
        error = TransientError if plan.number % 2 else ValueError
        raise error(f"planned for attempt {current.attempt}")
    if fault is PlannedFault.PERMANENT:
        raise PermanentError(f"planned for attempt {current.attempt}")
    value = value_of(plan, call.name)
    if call.keeps:
        keep(current.state, value)
    return value


@step(retry=RETRY)
async def act(number: int, name: str) -> int:
    """Perform a planned call as a step in the event loop."""
    return await _act(number, name)


async def _act(number: int, name: str) -> int:
    plan = scene.plan(number)
    call = plan.calls[name]
    current, fault = _begin(plan, call)
    try:
        if fault in (PlannedFault.TIMEOUT, PlannedFault.HANG):
            await trio.sleep_forever()
        if call.wait:
            await trio.sleep(call.wait)
        return _end(plan, call, current, fault)
    finally:
        scene.log.write(Mark.LEFT, number, name, current.attempt)


@step(retry=RETRY)
def act_in_thread(number: int, name: str) -> int:
    """Perform a planned call as a step in a worker thread."""
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
    """Return the step with the name and the timeout of its call."""
    function = act_in_thread if way is Way.THREAD else act
    named = function.options(name=name)
    if once:
        named = named.options(at_most_once=True)
    return named if limit is None else named.options(timeout=limit)


async def play(ctx: Context, number: int, stage: Stage) -> list[int]:
    """Run one stage of a plan, and return the values of its steps."""
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
    """Run all stages, one after the other. The result depends on all steps and on their order."""
    total = 0
    for stage in scene.plan(number).stages:
        for value in await play(ctx, number, stage):
            total = fold(total, value)
    return total


@machine(name="turning", retry=RETRY)
async def turning(t: Turn) -> Continue | Succeed:
    """Run a plan as a machine. Each stage is a turn, and waits for its timer first. The payload is
    the number of the run, and in later turns also its sum so far."""
    number, total = t.payload if t.number else (t.payload, 0)
    stages = scene.plan(number).stages
    total = fold(total, await _act(number, stages[t.number].calls[0].name))
    if t.number + 1 == len(stages):
        return Succeed(total)
    return Continue([number, total], after=stages[t.number + 1].sleep)
