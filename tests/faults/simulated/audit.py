"""The audit: when all is over, whether the books are right.

What could only be seen at the end: that every run which was acknowledged is there and has ended as
it must, that the hook heard of every end, and that the state of each key is what its finished steps
come to.
"""

from itertools import groupby
from typing import TYPE_CHECKING

from keyrun import FailureKind, State
from keyrun.runtime.records.journal_entry import EntryKind
from keyrun.storage import PayloadCodec
from tests.faults.simulated.casting import Role
from tests.faults.simulated.world import UNDO, Known, World, log_of

if TYPE_CHECKING:
    from tests.faults.simulated.simulation import Simulation

TOLERANCE = 0.002


def audit(simulation: "Simulation") -> None:
    """Look at everything, and tell the world what is wrong."""
    world = simulation.world
    for role in simulation.roles:
        if role.run_id not in world.forgotten:
            _ending(simulation, role)
        elif world.peek.number(role.run_id) is not None:
            world.breach(f"{role.run_id} was forgotten, and is there")
    for affair in simulation.affairs:
        affair.audit(world)
    forgotten = world.forgotten.values()
    for (number, generation), state in world.ends.items():
        # Whoever forgets a run wants to hear nothing more of it.
        if (number, generation) not in world.told and number not in forgotten:
            world.breach(f"the hook never heard that run {number}/{generation} is {state}")
    for key in {role.key for role in simulation.roles}:
        _state(world, key)
    left = world.peek.unfinished()
    if left:
        world.breach(f"all has ended, and there is something left: {left}")


def _ending(simulation: "Simulation", role: Role) -> None:
    world, run_id = simulation.world, role.run_id
    known = world.runs.get(run_id)
    number = world.peek.number(run_id)
    if known is None or not known.acknowledged or number is None:
        world.breach(f"{run_id} is not there")
        return
    status = world.peek.status(number)
    _undone(world, known, number, status.state)
    foreseen = role.foreseen(redriven=status.generation > 1)
    kind = None if status.failure is None else status.failure.kind
    ended = f"{run_id} is {status.state} ({kind}), and must be"
    if known.cancelled and status.state is not State.CANCELLED:
        world.breach(f"{ended} cancelled")
    if status.state is State.CANCELLED:
        if run_id not in simulation.asked:
            world.breach(f"{ended} {foreseen.state}: nobody cancelled it")
    elif kind is FailureKind.RUN_TIMEOUT and role.run_timeout is not None:
        assert status.started_at is not None
        assert status.ended_at is not None
        took = status.ended_at - status.started_at
        if took < role.run_timeout - TOLERANCE and not simulation.jumps:
            world.breach(f"{run_id} timed out after {took:.3f} s of {role.run_timeout:.3f} s")
    elif (status.state, kind) != (foreseen.state, foreseen.kind):
        world.breach(f"{ended} {foreseen.state} ({foreseen.kind})")
    elif status.state is State.SUCCEEDED:
        assert status.result is not None
        result = PayloadCodec().decode(status.result)
        if result != foreseen.result:
            world.breach(f"{run_id} came to {result}, and must come to {foreseen.result}")


def _undone(world: World, known: Known, number: int, state: State) -> None:
    """A run that comes to no good end has undone what it did, the last first, and no other has."""
    journal = world.peek.journal(number)
    expected = [] if state is State.SUCCEEDED else list(journal.undoable or ())[::-1]
    if known.undone != expected:
        world.breach(f"{known.run_id} has undone {known.undone}, and must have {expected}")
    for step in expected:
        memory = journal.memories.get(UNDO + step)
        if memory is None or memory.outcome is not EntryKind.DONE:
            world.breach(f"{known.run_id} has ended and {step} is not undone")


def _state(world: World, key: str) -> None:
    """The state of a key holds each finished step that keeps once, run by run in order."""
    log = log_of(world.peek.state(key))
    if len(log) != len(set(log)):
        world.breach(f"a step wrote twice into the state of {key}: {log}")
    expected = set()
    for known in world.runs.values():
        number = world.peek.number(known.run_id)
        if known.key != key or number is None:
            continue
        memories = world.peek.journal(number).memories
        turns = world.peek.status(number).steps_done
        for step in known.kept:
            if step.startswith("turn-"):
                done = int(step.partition("-")[2]) < turns
            else:
                done = step in memories and memories[step].outcome is EntryKind.DONE
            if done:
                expected.add((known.run_id, step))
    if set(log) != expected:
        world.breach(f"the state of {key} has {sorted(log)}, and its steps are {sorted(expected)}")
    blocks = [run_id for run_id, _ in groupby(log, lambda entry: entry[0])]
    first = [
        run_id
        for run_id in blocks
        if _generations(world, run_id) == 1 and not world.runs[run_id].yields
    ]
    places = [number for run_id in first if (number := world.peek.number(run_id)) is not None]
    if len(first) != len(set(first)):
        world.breach(f"runs of {key} were not one after the other: {blocks}")
    undelayed = [
        number
        for run_id, number in zip(first, places, strict=True)
        if not world.runs[run_id].delayed
    ]
    if undelayed != sorted(undelayed):
        world.breach(f"runs of {key} were not in order: {blocks}")


def _generations(world: World, run_id: str) -> int:
    number = world.peek.number(run_id)
    return 0 if number is None else world.peek.status(number).generation
