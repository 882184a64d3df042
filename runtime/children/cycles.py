"""Circles: runs that wait for children which wait for them would wait for ever.

A run waits for its children, and what a step or an entity's method calls is waited for, too. A
child or a call waits for whoever holds its key, unless that is itself; a run that lets others go
ahead while it waits holds none. A circle is found when it closes, which is when a child is admitted
or a call comes in, by walking from one to the next.
"""

from typing import TYPE_CHECKING

from keyrun.runtime.records.tables import Sleep, at_place
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Engine

PAGE = 500

Kin = tuple[str, int]
"""The key and the number of a child, or 0 of a call."""


async def circle(engine: "Engine", parent: int, child: Kin) -> list[Kin] | None:
    """The children that lead from a child back to its parent, itself first. Only those count who
    came before it, since who came later looks for itself: so it is the youngest in what is found,
    and one of a circle always is."""
    return await _walk(engine, parent, [child], {child[1]})


async def chain(engine: "Engine", key: str, target: str) -> list[str] | None:
    """The keys that lead from one to another, each of which waits for the next. Nothing is awaited
    here that lets another task run."""
    paths, seen = [[(key, 0)]], {(key, 0)}
    while paths:
        path = paths.pop()
        if path[-1][0] == target:
            return [key for key, _ in path]
        steps = _called(engine, path[-1][0])
        if engine.children.used:
            holder = await _holder(engine, path[-1][0])
            steps += await _waited_for(engine, path[-1][1], holder)
        for step in steps:
            if step not in seen:
                seen.add(step)
                paths.append([*path, step])
    return None


async def _walk(
    engine: "Engine", target: int, path: list[Kin], seen: set[int | str]
) -> list[Kin] | None:
    key, number = path[-1]
    holder = await _holder(engine, key)
    if holder == target:
        return path
    for step in _called(engine, key) + await _waited_for(engine, number, holder):
        if step[1] == target:
            return [*path, step]
        if step[1] < path[0][1] and (step[1] or step[0]) not in seen:
            seen.add(step[1] or step[0])
            found = await _walk(engine, target, [*path, step], seen)
            if found is not None:
                return found
    return None


def _called(engine: "Engine", key: str) -> list[Kin]:
    """What code has called that holds a key."""
    return [(called, 0) for called in engine.reception.waits.keys(key)]


async def _waited_for(engine: "Engine", number: int, holder: int | None) -> list[Kin]:
    """The children that a run, and the one that holds its key, wait for."""
    steps = await _children(engine, number) if number else []
    if holder is not None and holder != number:
        steps += await _children(engine, holder)
    return steps


async def _holder(engine: "Engine", key: str) -> int | None:
    """The run that lets nobody of its key go ahead, if there is one."""
    ledger = engine.ledger
    places = ledger.pages("queue", prefix=ledger.line(key), size=PAGE)
    while rows := await places.next():
        for record, raw in rows:
            there = at_place(record, raw, ledger.split_place(record)[1])
            if there.sleep is Sleep.HOLDS:
                return there.number
            if there.sleep is Sleep.NO:
                yields = await _yields(engine, there.number)
                if not yields:
                    return None if yields is None else there.number
    return None


async def _yields(engine: "Engine", number: int) -> bool | None:
    """Whether a run lets others go ahead while it waits; None if it has not begun, as then none has
    that comes after it."""
    run = engine.runs.live(number)
    if run is not None:
        workflow = run.workflow
    else:
        try:
            standing = await engine.ledger.standing(number)
            submission = await engine.ledger.submission(number)
        except StoreCorrupt:
            return True  # it is set aside when its turn comes
        if standing is None or standing.started_at is None or submission is None:
            return None
        workflow = engine.registry.find(submission.workflow, submission.version)
    return workflow is not None and workflow.while_waiting == "yield"


async def _children(engine: "Engine", parent: int) -> list[Kin]:
    """Those that a run waits for."""
    rows = await engine.store.scan("children", prefix=engine.ledger.number(parent))
    return [child for child in (_open(*row) for row in rows) if child is not None]


def _open(record: bytes, raw: bytes) -> Kin | None:
    try:
        _, key, ended, orphaned = unseal("children", record, raw)
    except StoreCorrupt:
        return None
    return None if ended or orphaned else (key, int.from_bytes(record[-8:], "big"))
