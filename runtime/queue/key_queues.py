"""The key queues of a partition: know which keys are in memory, and what is known of the others.

A key is known in one of four ways:

1. Its queue is in memory: it has something to do, or is paused.
2. Only its name is in memory, because it waits at the concurrency gate and many others do, too.
3. Only its name is in memory, because a run that holds it was evicted.
4. Not at all: it has no unfinished run. Its empty queue may be kept for a while, because many a key
   gets its next run soon.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from keyrun.runtime.queue.backpressure import Backlog
from keyrun.runtime.queue.concurrency_gate import ConcurrencyGate
from keyrun.runtime.queue.key_queue import KeyQueue

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.runs import RunTable
    from keyrun.runtime.tuning import Tuning
    from keyrun.storage import StoreCorrupt
    from keyrun.storage.group import Group


class SetAside(Protocol):
    """Quarantines a run whose records are damaged."""

    async def __call__(
        self,
        number: int,
        error: "StoreCorrupt",
        *,
        key: str | None = None,
        place: int | None = None,
    ) -> None: ...


class KeyQueues:
    """Finds, makes and drops the queues of a partition."""

    wake_actor: Callable[[str, KeyQueue], None]
    """Passes a queue to the actor of its key. The wiring sets it."""
    set_aside: SetAside
    """Quarantines a damaged run. The wiring sets it."""

    def __init__(
        self,
        partition: "PartitionState",
        runs: "RunTable",
        tuning: "Tuning",
        *,
        max_pending: int,
        max_pending_per_key: int,
        backpressure_timeout: float,
    ) -> None:
        self.partition = partition
        self.runs = runs
        self.window = tuning.queue_window
        self.gate = ConcurrencyGate(partition, self, tuning)
        self.backlog = Backlog(
            self,
            max_pending=max_pending,
            max_pending_per_key=max_pending_per_key,
            backpressure_timeout=backpressure_timeout,
        )
        self._queues: dict[str, KeyQueue] = {}
        self.at_gate: dict[str, int] = {}
        """Keys that wait at the gate and are known by name: how many of their runs wait."""
        self.evicted: dict[str, tuple[int, int]] = {}
        """Keys that an evicted run holds and that are known by name: its number, and how many runs
        wait behind it."""
        self._empty: dict[str, KeyQueue] = {}
        self._pooled = self._most_empty = tuning.pooled_queues
        self._completed: dict[str, Group] = {}
        """The group that ends the last run of a dropped queue, until it is durable. Before that the
        store shows a run that has ended, and nothing of the key may be read or begun."""

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[KeyQueue]:
        return iter(self._queues.values())

    def get(self, key: str) -> KeyQueue | None:
        """Return the queue of a key if it is in memory."""
        return self._queues.get(key)

    def of(self, key: str) -> KeyQueue:
        """Return the queue of a key. It is made if it is not in memory."""
        queue = self._queues.get(key)
        if queue is None:
            evicted = self.evicted.pop(key, None)
            at_gate = self.at_gate.pop(key, 0)
            queue = self._empty.pop(key, None)
            known = self.partition.recovered and not at_gate and evicted is None
            if queue is None or not known:
                queue = KeyQueue(self, key, known=known)
                if self._completed:
                    queue.group = self._completed.pop(key, None)
            self._queues[key] = queue
            if at_gate:
                queue.revive(at_gate)
            if evicted is not None:
                queue.revive_evicted(*evicted)
        return queue

    def pending_of(self, key: str) -> int:
        """Return how many runs of a key wait to be started."""
        queue = self._queues.get(key)
        if queue is not None:
            return queue.pending
        return self.at_gate.get(key, 0) or self.evicted.get(key, (0, 0))[1]

    def enter(self, key: str) -> None:
        """Count one more run of a key that waits to be started."""
        queue = self._queues.get(key)
        if queue is None:
            if key in self.at_gate:
                self.at_gate[key] += 1
                self.backlog.pending += 1
                return
            if key in self.evicted:
                number, pending = self.evicted[key]
                self.evicted[key] = number, pending + 1
                self.backlog.pending += 1
                return
            queue = self.of(key)
        self.backlog.enter(queue)

    def leave(self, key: str) -> None:
        """Take back what `enter` counted, because the run was not staged."""
        if key in self.at_gate:
            self.at_gate[key] -= 1
            self.backlog.pending -= 1
        elif key in self.evicted:
            number, pending = self.evicted[key]
            self.evicted[key] = number, pending - 1
            self.backlog.pending -= 1
        else:
            self.backlog.leave(self.of(key))

    def admitted(self, submission: "Submission") -> None:
        """Add a run whose place is durable. A key that is known by name only stays so."""
        queue = self._queues.get(submission.key)
        if queue is None and submission.key not in self.at_gate:
            if submission.key in self.evicted:
                return
            queue = self.of(submission.key)
        if queue is not None:
            queue.admit(submission)

    def found_evicted(self, key: str, number: int) -> None:
        """Record that an evicted run, found in the store, holds its key."""
        queue = self._queues.get(key)
        if queue is None and key not in self.at_gate:
            # It may have been found before, and later runs may have been counted.
            self.evicted[key] = number, self.evicted.get(key, (0, 0))[1]
        elif self.runs.live(number) is None:
            self.of(key).evicted_head = number

    def wake_up(self, key: str, place: int, number: int) -> None:
        """Put an evicted run back into its queue, durably."""
        queue, partition = self.of(key), self.partition
        if partition.recovered or place >= partition.opened_at:
            self.backlog.enter(queue)
        else:
            self.backlog.enter_woken(queue, queue.place(place))
        queue.wake_up(place, number)

    def is_held_by_evicted(self, key: str) -> bool:
        """Return whether only the name of a key is known, because an evicted run holds it."""
        return key in self.evicted

    def is_at_gate(self, key: str) -> bool:
        """Return whether only the name of a key is known, because it waits at the gate."""
        return key in self.at_gate

    def keep_name_at_gate(self, key: str, pending: int) -> None:
        """Keep only the name of a key that waits at the gate."""
        self.at_gate[key] = pending
        self._queues.pop(key, None)

    def keep_name(self, queue: KeyQueue, evicted: int) -> None:
        """Keep only the name of a key that an evicted run holds. Do nothing if another queue of the
        key has replaced this one."""
        if self._queues.get(queue.key) is queue and queue.unload():
            self.evicted[queue.key] = (evicted, queue.pending)
            del self._queues[queue.key]

    def drop(self, queue: KeyQueue) -> None:
        """Drop a queue with nothing in it. The actor of an evicted run may have woken a queue that
        was dropped before."""
        kept = queue.pending or queue.paused or queue.evicted_head is not None
        if self._queues.get(queue.key) is queue and not kept:
            del self._queues[queue.key]
            if self.partition.recovered and queue.reusable():
                self._keep_empty(queue)
            elif queue.group is not None and not queue.group.durable:
                self._completed[queue.key] = queue.group
                queue.group.when_durable(self._forget_completed, queue.key, queue.group)
            queue.entered()

    def _forget_completed(self, key: str, group: "Group") -> None:
        if self._completed.get(key) is group:
            del self._completed[key]

    def _keep_empty(self, queue: KeyQueue) -> None:
        """Keep an empty queue for the next run of its key. When there are too many, all are dropped
        whose last outcome is durable: a call of an entity has to wait for that."""
        if len(self._empty) >= self._most_empty:
            for other in list(self._empty.values()):
                if other.group is None or other.group.durable:
                    del self._empty[other.key]
            self._most_empty = max(self._pooled, 2 * len(self._empty))
        self._empty[queue.key] = queue
