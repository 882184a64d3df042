"""Instance limits: limit the number of runs of one workflow that have started and not ended.

A run that exceeds the limit waits at the head of its key's queue, which is woken when another run
ends. The store has the runs that count, so that after a restart no other run starts in their place.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from keyrun.runtime.errors import Backpressure
from keyrun.runtime.records.tables import NUMBER, sealed

if TYPE_CHECKING:
    from keyrun.runtime.definitions.workflow import Workflow
    from keyrun.runtime.records.submission import Submission
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.run.services import KeyQueueOfRun
    from keyrun.storage.group import Group


class Instances:
    """The runs that count, by workflow, and the queues whose head waits for room."""

    def __init__(
        self, partition: "PartitionState", workflows: "Iterable[Workflow[Any, Any]]"
    ) -> None:
        self._partition = partition
        self._most: dict[str, int] = {}
        self._rejects: set[str] = set()
        for each in workflows:
            if each.instances is not None:
                self._most[each.name] = each.instances
                if each.when_full == "reject":
                    self._rejects.add(each.name)
        self._inside: dict[str, set[int]] = {name: set() for name in self._most}
        self._waiting: dict[str, dict[int, KeyQueueOfRun]] = {name: {} for name in self._most}

    async def recover(self) -> None:
        """Read the runs that counted when the store was last used."""
        ledger = self._partition.ledger
        for key, fields in await ledger.scan("instances", ledger.prefix):
            name, number = fields[0], NUMBER.unpack(key[-8:])[0]
            if name in self._inside:
                self._inside[name].add(number)

    def enter(self, run: "Run") -> bool:
        """Count a run if there is room, or if it has begun before. Return False if it has to wait:
        its queue is woken when there is room."""
        name = run.submission.workflow
        inside = self._inside.get(name)
        if inside is None or run.number in inside:
            return True
        if run.submission.parent is not None:
            # Its parent, which waits for it, may be the run that counts.
            return True
        if len(inside) >= self._most[name] and run.status.started_at is None:
            self._waiting[name][run.number] = run.queue
            return False
        self._admit(self._partition.store.open_group(), name, run.number)
        return True

    def is_waiting(self, number: int) -> bool:
        """Return whether a run waits for room."""
        return any(number in waiting for waiting in self._waiting.values())

    def check(self, submission: "Submission") -> None:
        """Raise `Backpressure` if a workflow with `when_full="reject"` has no room."""
        name = submission.workflow
        if name in self._rejects and len(self._inside[name]) >= self._most[name]:
            raise Backpressure(
                f"{len(self._inside[name])} runs of {name!r} are active, and its limit is "
                f"{self._most[name]}; submit the run again when one of them has ended",
                key=submission.key,
            )

    def submitted(self, group: "Group", submission: "Submission") -> None:
        """Count a run that was admitted, if its workflow has `when_full="reject"`."""
        if submission.workflow in self._rejects:
            self._admit(group, submission.workflow, submission.number)

    def _admit(self, group: "Group", name: str, number: int) -> None:
        key = self._partition.ledger.number(number)
        group.put("instances", key, sealed("instances", key, name))
        self._inside[name].add(number)
        group.when_dropped(self._inside[name].discard, number)

    def left(self, group: "Group", run: "Run") -> None:
        """Stage that a run has ended. When that is durable, there is room for another."""
        self.dropped(group, run.submission)

    def dropped(self, group: "Group", submission: "Submission") -> None:
        """Stage that a run was removed. When that is durable, there is room for another."""
        name, number = submission.workflow, submission.number
        if name in self._inside:
            self._waiting[name].pop(number, None)
            if number in self._inside[name]:
                group.delete("instances", self._partition.ledger.number(number))
                group.when_durable(self._leave, name, number)

    def _leave(self, name: str, number: int) -> None:
        inside, waiting = self._inside[name], self._waiting[name]
        inside.discard(number)
        while waiting and len(inside) < self._most[name]:
            # The run counts from here on, so that no later run starts before it.
            following = next(iter(waiting))
            queue = waiting.pop(following)
            self._admit(self._partition.store.open_group(), name, following)
            queue.wake()
