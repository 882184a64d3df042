"""The due loop: one task that does work when it is due, and sleeps in between.

1. The work is a function that does everything that is due now. It returns the time on Trio's clock
   at which it has to be called again: `NOW`, or infinity to be called only after a wake-up.
2. `wake` calls the work at once. Call it when something may be due earlier than the work knew.
3. A wake-up that comes while the work runs is not lost: the work is called once more.
"""

from collections.abc import Awaitable, Callable
from math import inf
from typing import NoReturn

import trio

NOW = -inf
"""The work has to be called again at once, after other tasks have run."""


class DueLoop:
    """Calls `work` when it is due, and when it is woken."""

    __slots__ = ("_woken", "_work")

    def __init__(self, work: Callable[[], Awaitable[float]]) -> None:
        self._work = work
        self._woken = trio.Event()

    def wake(self) -> None:
        """Call the work soon, before the time that it returned."""
        self._woken.set()

    async def run(self) -> NoReturn:
        """Call the work until cancelled."""
        while True:
            # Before the work, so that a wake-up during the work is not lost.
            self._woken = trio.Event()
            until = await self._work()
            with trio.move_on_at(until):
                await self._woken.wait()
