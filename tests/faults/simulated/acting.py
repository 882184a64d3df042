"""Acting: what an attempt does in the simulated world, and what it suffers as planned."""

from enum import StrEnum
from typing import Any
from zlib import crc32

import attrs
import cattrs
import trio

from keyrun import (
    Compensation,
    NodeInput,
    PermanentError,
    Retry,
    TransientError,
    current_step,
    step,
)
from tests.faults.simulated.world import World

SOON = Retry.fixed(max_attempts=3, delay=0.5)
HANG = 2.0
"""Seconds that an attempt has which is to run out of time."""


class Fault(StrEnum):
    """What becomes of one attempt."""

    NONE = "none"
    FAIL = "fail"
    BUG = "bug"
    REFUSE = "refuse"
    HANG = "hang"


@attrs.frozen(kw_only=True)
class Act:
    """What a step is to do. `faults` are those of its first attempts, in the first generation of
    its run unless `always`; after them all goes well. `keeps`: it writes into the state of the key.
    `notes`: it keeps a memo."""

    name: str = "act"
    value: int = 0
    faults: tuple[Fault, ...] = ()
    seconds: float = 0.0
    keeps: bool = False
    notes: bool = False
    always: bool = False
    owner: str = ""
    """Whose worth it counts to, if its run has an id that nobody knows beforehand."""

    def plain(self) -> dict[str, Any]:
        """As it goes into the input of a run."""
        return attrs.asdict(self) | {"faults": [str(fault) for fault in self.faults]}


class Scene:
    """Where the steps find the world that they are part of."""

    world: World


scene = Scene()


def value_of(run_id: str, act: Act) -> int:
    """What a step is worth, so that one that is missing, or is another's, is seen."""
    return crc32(f"{act.owner or run_id} {act.value}".encode())


async def play(act: Act, *, once: bool = False) -> int:
    """One attempt, in a step or a turn of a machine."""
    here, world = current_step(), scene.world
    generation = world.began(here, keeps=act.keeps, once=once)
    try:
        fault = Fault.NONE
        if (generation == 1 or act.always) and here.attempt <= len(act.faults):
            fault = act.faults[here.attempt - 1]
        if act.notes:
            if generation == 1:
                world.remembered(here, here.memo.get("attempt", 0))
            here.memo["attempt"] = here.attempt
        if act.keeps:
            # Also by an attempt that will fail: nothing of that may stay.
            here.state["log"] = [*here.state.get("log", []), [here.run_id, here.step]]
        if act.seconds:
            await trio.sleep(act.seconds)
        match fault:
            case Fault.FAIL:
                raise TransientError("as planned")
            case Fault.BUG:
                raise ZeroDivisionError("as planned")
            case Fault.REFUSE:
                raise PermanentError("as planned")
            case Fault.HANG:
                await trio.sleep_forever()
        return value_of(here.run_id, act)
    finally:
        world.left(here)


@step(retry=SOON)
async def act(plan: dict[str, Any]) -> list[Any]:
    """A step: what it is worth, and what it is called."""
    return [await play(cattrs.structure(plan, Act)), current_step().step]


@step(retry=SOON)
async def undo(given: Compensation) -> None:
    """Undo a step. It may fail once, as any other."""
    plan = Act(faults=(Fault.FAIL,) if len(given.step) % 2 else (), seconds=0.1, always=True)
    scene.world.undoes(current_step().run_id, given.step)
    await play(plan)


@step(retry=SOON, compensate=undo)
async def act_undoable(plan: dict[str, Any]) -> list[Any]:
    """The same; it is undone when the run comes to no good end."""
    return [await play(cattrs.structure(plan, Act)), current_step().step]


@step(retry=SOON, shield=True)
async def act_shielded(plan: dict[str, Any]) -> list[Any]:
    """The same; a cancel only tells it."""
    return [await play(cattrs.structure(plan, Act)), current_step().step]


async def act_node(given: NodeInput) -> int:
    """A node of a graph: its plan is in the input of the run, under its name."""
    node = current_step().step
    return await play(cattrs.structure(given.run_input[node], Act))


@step(at_most_once=True)
async def act_once(plan: dict[str, Any]) -> list[Any]:
    """The same; it is never started twice."""
    return [await play(cattrs.structure(plan, Act), once=True), current_step().step]
