"""Cycle detection: runs that wait for each other in a cycle would wait forever.

A run waits for its children. A step or an entity method waits for the entities that it calls. A
child or a call waits for the run that holds its key, unless that is itself. A run that yields its
key while it waits holds no key. A cycle is found when it closes, which is when a child is admitted
or a call arrives, by walking from one to the next.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from keyrun.runtime.records.tables import Evicted, at_place
from keyrun.storage import StoreCorrupt
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable

PAGE = 500

Waited = tuple[str, int]
"""The key and the number of a child, or 0 of a call."""


class Cycles:
    """Finds runs and calls that wait for each other in a cycle."""

    called_by: Callable[[str], Iterable[str]]
    """Returns the keys that entities of a key have called and wait for. The wiring sets it."""
    has_children: Callable[[], bool]
    """Returns whether any run has children under other keys. The wiring sets it."""

    def __init__(self, partition: "PartitionState", runs: "RunTable") -> None:
        self._partition = partition
        self._runs = runs

    async def find(self, parent: int, child: Waited) -> list[Waited] | None:
        """Return the children that lead from a child back to its parent, the child first. Children
        that are younger than this child do not count, because they are checked themselves. So the
        child is the youngest in the cycle that is found."""
        return await self._walk(parent, [child], {child[1]})

    async def chain(self, key: str, target: str) -> list[str] | None:
        """Return the keys that lead from one key to another, each of which waits for the next. No
        other task runs meanwhile."""
        paths, seen = [[(key, 0)]], {(key, 0)}
        while paths:
            path = paths.pop()
            if path[-1][0] == target:
                return [key for key, _ in path]
            steps = self._called(path[-1][0])
            if self.has_children():
                holder = await self._holder(path[-1][0])
                steps += await self._waited_for(path[-1][1], holder)
            for step in steps:
                if step not in seen:
                    seen.add(step)
                    paths.append([*path, step])
        return None

    async def _walk(
        self, target: int, path: list[Waited], seen: set[int | str]
    ) -> list[Waited] | None:
        key, number = path[-1]
        holder = await self._holder(key)
        if holder == target:
            return path
        for step in self._called(key) + await self._waited_for(number, holder):
            if step[1] == target:
                return [*path, step]
            if step[1] < path[0][1] and (step[1] or step[0]) not in seen:
                seen.add(step[1] or step[0])
                found = await self._walk(target, [*path, step], seen)
                if found is not None:
                    return found
        return None

    def _called(self, key: str) -> list[Waited]:
        """Return the keys of the calls that the code which holds a key waits for."""
        return [(called, 0) for called in self.called_by(key)]

    async def _waited_for(self, number: int, holder: int | None) -> list[Waited]:
        """Return the children that a run and the holder of its key wait for."""
        steps = await self._children(number) if number else []
        if holder is not None and holder != number:
            steps += await self._children(holder)
        return steps

    async def _holder(self, key: str) -> int | None:
        """Return the run that holds a key, if there is one."""
        ledger = self._partition.ledger
        places = ledger.pages("queue", prefix=ledger.key_prefix(key), size=PAGE)
        while rows := await places.next():
            for record, raw in rows:
                there = at_place(record, raw, ledger.split_place(record)[1])
                if there.evicted is Evicted.HOLDS:
                    return there.number
                if there.evicted is Evicted.NO:
                    yields = await self._yields(there.number)
                    if not yields:
                        return None if yields is None else there.number
        return None

    async def _yields(self, number: int) -> bool | None:
        """Return whether a run yields its key while it waits. None if it has not begun: then no run
        after it has begun either."""
        run = self._runs.live(number)
        if run is not None:
            workflow = run.workflow
        else:
            try:
                status = await self._partition.ledger.status(number)
                submission = await self._partition.ledger.submission(number)
            except StoreCorrupt:
                return True  # the run is set aside when it is loaded
            if status is None or status.started_at is None or submission is None:
                return None
            workflow = self._partition.registry.find(submission.workflow, submission.version)
        return workflow is not None and workflow.while_waiting == "yield"

    async def _children(self, parent: int) -> list[Waited]:
        """Return the children that a run waits for."""
        rows = await self._partition.store.scan(
            "children", prefix=self._partition.ledger.number(parent)
        )
        return [child for child in (_open(*row) for row in rows) if child is not None]


def _open(record: bytes, raw: bytes) -> Waited | None:
    try:
        _, key, ended, orphaned = unseal("children", record, raw)
    except StoreCorrupt:
        return None
    return None if ended or orphaned else (key, int.from_bytes(record[-8:], "big"))
