"""Slots: limit how many steps run at once, and decide which waiting step gets the next slot.

Inside one priority, the first to wait is the first to get a slot. Priorities take turns, so that
many steps of priority HIGH do not starve those of priority LOW. A step that waits for anything else
holds no slot.
"""

from collections import deque

import trio

from keyrun.runtime.values import Priority

TURNS = (
    Priority.HIGH,
    Priority.NORMAL,
    Priority.HIGH,
    Priority.LOW,
    Priority.HIGH,
    Priority.NORMAL,
    Priority.HIGH,
)
"""The priority that gets each slot that becomes free: of seven slots, four, two and one."""


class Slots:
    """A semaphore with priorities."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self._waiting: dict[Priority, deque[trio.lowlevel.Task]] = {p: deque() for p in Priority}
        self._turn = 0
        self.waiting = 0
        self._owed = 0

    def take_nowait(self) -> bool:
        """Take a slot if one is free. If one is free, no step waits."""
        if self.free:
            self.free -= 1
            return True
        return False

    async def take(self, priority: Priority) -> None:
        """Wait for a slot."""
        task = trio.lowlevel.current_task()
        queue = self._waiting[priority]
        queue.append(task)
        self.waiting += 1

        def leave(_: object) -> trio.lowlevel.Abort:
            queue.remove(task)
            self.waiting -= 1
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(leave)

    def give(self) -> None:
        """Give a slot back. If a step waits, it gets the slot at once."""
        if not self.waiting:
            self.free += 1
            return
        if self._owed:
            self._owed -= 1
            self.waiting -= 1
            return
        while True:
            queue = self._waiting[TURNS[self._turn]]
            self._turn = (self._turn + 1) % len(TURNS)
            if queue:
                self.waiting -= 1
                trio.lowlevel.reschedule(queue.popleft())
                return

    def owe(self) -> None:
        """Take the next slot that is given back, without waiting for it."""
        self._owed += 1
        self.waiting += 1
