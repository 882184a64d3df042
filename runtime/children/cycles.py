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
    from keyrun.runtime.partition import Partition

PAGE = 500

Kin = tuple[str, int]
"""The key and the number of a child, or 0 of a call."""


async def circle(partition: "Partition", parent: int, child: Kin) -> list[Kin] | None:
    """The children that lead from a child back to its parent, itself first. Only those count who
    came before it, since who came later looks for itself: so it is the youngest in what is found,
    and one of a circle always is."""
    return await _walk(partition, parent, [child], {child[1]})


async def chain(partition: "Partition", key: str, target: str) -> list[str] | None:
    """The keys that lead from one to another, each of which waits for the next. Nothing is awaited
    here that lets another task run."""
    paths, seen = [[(key, 0)]], {(key, 0)}
    while paths:
        path = paths.pop()
        if path[-1][0] == target:
            return [key for key, _ in path]
        steps = _called(partition, path[-1][0])
        if partition.children.used:
            holder = await _holder(partition, path[-1][0])
            steps += await _waited_for(partition, path[-1][1], holder)
        for step in steps:
            if step not in seen:
                seen.add(step)
                paths.append([*path, step])
    return None


async def _walk(
    partition: "Partition", target: int, path: list[Kin], seen: set[int | str]
) -> list[Kin] | None:
    key, number = path[-1]
    holder = await _holder(partition, key)
    if holder == target:
        return path
    for step in _called(partition, key) + await _waited_for(partition, number, holder):
        if step[1] == target:
            return [*path, step]
        if step[1] < path[0][1] and (step[1] or step[0]) not in seen:
            seen.add(step[1] or step[0])
            found = await _walk(partition, target, [*path, step], seen)
            if found is not None:
                return found
    return None


def _called(partition: "Partition", key: str) -> list[Kin]:
    """What code has called that holds a key."""
    return [(called, 0) for called in partition.dispatcher.waits.keys(key)]


async def _waited_for(partition: "Partition", number: int, holder: int | None) -> list[Kin]:
    """The children that a run, and the one that holds its key, wait for."""
    steps = await _children(partition, number) if number else []
    if holder is not None and holder != number:
        steps += await _children(partition, holder)
    return steps


async def _holder(partition: "Partition", key: str) -> int | None:
    """The run that lets nobody of its key go ahead, if there is one."""
    ledger = partition.ledger
    places = ledger.pages("queue", prefix=ledger.key_prefix(key), size=PAGE)
    while rows := await places.next():
        for record, raw in rows:
            there = at_place(record, raw, ledger.split_place(record)[1])
            if there.sleep is Sleep.HOLDS:
                return there.number
            if there.sleep is Sleep.NO:
                yields = await _yields(partition, there.number)
                if not yields:
                    return None if yields is None else there.number
    return None


async def _yields(partition: "Partition", number: int) -> bool | None:
    """Whether a run lets others go ahead while it waits; None if it has not begun, as then none has
    that comes after it."""
    run = partition.runs.live(number)
    if run is not None:
        workflow = run.workflow
    else:
        try:
            standing = await partition.ledger.standing(number)
            submission = await partition.ledger.submission(number)
        except StoreCorrupt:
            return True  # it is set aside when its turn comes
        if standing is None or standing.started_at is None or submission is None:
            return None
        workflow = partition.registry.find(submission.workflow, submission.version)
    return workflow is not None and workflow.while_waiting == "yield"


async def _children(partition: "Partition", parent: int) -> list[Kin]:
    """Those that a run waits for."""
    rows = await partition.store.scan("children", prefix=partition.ledger.number(parent))
    return [child for child in (_open(*row) for row in rows) if child is not None]


def _open(record: bytes, raw: bytes) -> Kin | None:
    try:
        _, key, ended, orphaned = unseal("children", record, raw)
    except StoreCorrupt:
        return None
    return None if ended or orphaned else (key, int.from_bytes(record[-8:], "big"))
