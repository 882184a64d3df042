"""The entrance: keys whose first run waits to be started, and how many of them may be under way.

A key that is served has a task and its run in memory, which costs kilobytes; so only somewhat
more keys than there are slots are let in. The others stand here by name, those of a high priority
first as for slots. A long queue is of names only: what there is to run is in the store.
"""

from collections import deque
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.host.slots import TURNS
from keyrun.runtime.values import Priority

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.runtime.queue.key_queue import KeyQueue

SLACK = 64
"""Keys that may be under way beyond the number of slots, so that no slot waits for its run."""

PATIENCE, MOST_PATIENCE = 1.0, 60.0
"""Seconds after which somebody looks whether those under way are stuck, at first and later."""

AT_HAND = 10_000
"""Keys in the queue that are kept in memory with what they have to run."""


class ConcurrencyGate:
    """Lets keys in, in order."""

    def __init__(self, partition: "Partition", slots: int) -> None:
        self._partition = partition
        self._most = slots + SLACK
        self._queues: dict[Priority, deque[str]] = {priority: deque() for priority in Priority}
        self._turn = 0
        self._crowded = trio.Event()
        self._stuck = 0
        """How many are under way that did not get any further for a while."""
        self.queued = 0
        self.under_way = 0
        """Keys that were let in and whose first run has not begun."""
        self.dormant: dict[str, int] = {}
        """Keys that are known by name only, and how many of their runs wait to be started."""

    @property
    def room(self) -> int:
        """How many more would be let in right now."""
        return 0 if self.closed else self._most + self._stuck - self.under_way

    @property
    def closed(self) -> bool:
        """Whether nobody is let in right now."""
        return self.under_way >= self._most + self._stuck or self._partition.paused

    async def run(self) -> None:
        """See to it that those who are under way and wait for something else than a slot, in
        branches of theirs, keep nobody out for long: they may wait for who is not let in."""
        slots, patience = self._partition.slots, PATIENCE
        while True:
            if not self.queued or self._partition.paused:
                self._crowded = trio.Event()
                await self._crowded.wait()
                patience = PATIENCE
            await trio.sleep(patience)
            idle = self.queued and slots.free and not slots.waiting
            self._stuck = self.under_way if idle else 0
            if idle:
                self.fill()
            else:
                patience = min(2 * patience, MOST_PATIENCE)

    def enqueue(self, queue: "KeyQueue", priority: Priority) -> None:
        """Put a line at the end of the queue, to be let in when its turn comes."""
        queue.queued = True
        self._queues[priority].append(queue.key)
        self.queued += 1
        self._crowded.set()
        if self.queued > AT_HAND and queue.forget():
            self.dormant[queue.key] = queue.pending
            del self._partition.queues[queue.key]

    def find(self, key: str, priority: Priority) -> bool:
        """One more run of this key was found in the store. Says whether it is one that is known by
        name only; there may be a million of them."""
        if key in self._partition.queues or (key not in self.dormant and self.queued <= AT_HAND):
            return False
        if key not in self.dormant:
            self.dormant[key] = 0
            self._queues[priority].append(key)
            self.queued += 1
            self._crowded.set()
        self.dormant[key] += 1
        self._partition.backlog.pending += 1
        return True

    def leave(self) -> None:
        """One key fewer is under way."""
        self.under_way -= 1
        if self.queued:
            self.fill()

    def fill(self) -> None:
        """Let in whoever may come."""
        self._crowded.set()
        while self.queued and not self.closed and not self._partition.draining:
            waiting = self._queues[TURNS[self._turn]]
            self._turn = (self._turn + 1) % len(TURNS)
            if not waiting:
                continue
            key = waiting.popleft()
            self.queued -= 1
            queue = self._partition.queue(key)
            if queue.queued:
                queue.queued = False
                queue.wake()
