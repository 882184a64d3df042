"""The concurrency gate: limits the number of keys whose actor is active before its run has begun.

The actor of a key has a task and a run in memory, which costs kilobytes. So the gate admits only
somewhat more keys than there are slots. The others wait here, by priority as for slots. If many
keys wait, only their names are in memory.
"""

from collections import deque
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.host.slots import TURNS
from keyrun.runtime.values import Priority

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.tuning import Tuning

LOOK_AFTER, MOST_LOOK_AFTER = 1.0, 60.0
"""Seconds after which the gate checks whether the admitted keys are stuck, at first and later."""


class ConcurrencyGate:
    """Admits keys in order."""

    def __init__(self, partition: "PartitionState", queues: "KeyQueues", tuning: "Tuning") -> None:
        self._partition = partition
        self._key_queues = queues
        self._at_hand = tuning.gate_window
        self._most = partition.slots.total + tuning.gate_slack
        self._queues: dict[Priority, deque[str]] = {priority: deque() for priority in Priority}
        self._turn = 0
        self._crowded = trio.Event()
        self._stuck = 0
        """The number of admitted keys that have not made progress for a while."""
        self.queued = 0
        self.under_way = 0
        """The number of admitted keys whose first run has not begun."""

    @property
    def room(self) -> int:
        """Return the number of keys that would be admitted now."""
        return 0 if self.is_closed() else self._most + self._stuck - self.under_way

    def is_closed(self) -> bool:
        """Return whether no key would be admitted now."""
        return self.under_way >= self._most + self._stuck or self._partition.paused

    async def run(self) -> None:
        """Admit more keys if the admitted ones are stuck, until cancelled. A branch of an admitted
        run may wait for something else than a slot, for example for a key that waits here."""
        slots, look_after = self._partition.slots, LOOK_AFTER
        while True:
            if not self.queued or self._partition.paused:
                self._crowded = trio.Event()
                await self._crowded.wait()
                look_after = LOOK_AFTER
            await trio.sleep(look_after)
            idle = self.queued and slots.free and not slots.waiting
            self._stuck = self.under_way if idle else 0
            if idle:
                self.fill()
            else:
                look_after = min(2 * look_after, MOST_LOOK_AFTER)

    def enqueue(self, queue: "KeyQueue", priority: Priority) -> None:
        """Let a key wait until it is admitted."""
        queue.queued = True
        self._queues[priority].append(queue.key)
        self.queued += 1
        self._crowded.set()
        if self.queued > self._at_hand and queue.unload():
            self._key_queues.keep_name_at_gate(queue.key, queue.pending)

    def find(self, key: str, priority: Priority) -> bool:
        """Count one more run of a key that was found in the store, if only the name of the key is
        in memory: there may be a million keys. Return whether the run was counted."""
        queues = self._key_queues
        if queues.get(key) is not None:
            return False
        if not queues.is_at_gate(key):
            if self.queued <= self._at_hand:
                return False
            queues.keep_name_at_gate(key, 0)
            self._queues[priority].append(key)
            self.queued += 1
            self._crowded.set()
        queues.enter(key)
        return True

    def leave(self) -> None:
        """Record that the first run of an admitted key has begun, or that it has none."""
        self.under_way -= 1
        if self.queued:
            self.fill()

    def fill(self) -> None:
        """Admit the waiting keys for which there is room."""
        self._crowded.set()
        while self.queued and not self.is_closed() and not self._partition.draining:
            waiting = self._queues[TURNS[self._turn]]
            self._turn = (self._turn + 1) % len(TURNS)
            if not waiting:
                continue
            self._admit(waiting[0])
            # Afterwards, so that the key still waits here if that raises an internal error.
            waiting.popleft()
            self.queued -= 1

    def _admit(self, key: str) -> None:
        """Wake the queue of a key, if the key still waits here."""
        queue = self._key_queues.of(key)
        if queue.queued:
            queue.queued = False
            try:
                queue.wake()
            except BaseException:
                queue.queued = True
                raise
