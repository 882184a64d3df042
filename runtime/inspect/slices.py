"""Slices: a long read leaves the event loop to other tasks, and a page reads a bounded number of
records.

A reader shares the event loop with all runs. So a read of any length goes in slices of about
`SLICE` seconds. Each slice has a view of the store of its own, and other tasks run between two
slices.
"""

from time import perf_counter

import trio

FIRST = 32
"""Records in the first slice."""
SLICE = 0.002
"""Seconds after which other tasks run."""
BUDGET = 7000
"""Records after which a page ends. The records of the last run of a page come on top."""
JOURNAL = 2000
"""Journal entries of one run that a page reads at most."""
RUN = 12
"""Records besides the journal that the status of an unfinished run takes, about."""
ENDED_RUN = 4
"""Records that the status of an ended run takes."""


class PageBudget:
    """The size of the next slice, and the records that a page may still read."""

    __slots__ = ("_began", "_most", "left", "size")

    def __init__(self, *, first: int | None = None, most: int = 512) -> None:
        self.size = min(FIRST if first is None else first, most)
        """Records in the next slice."""
        self.left = BUDGET
        """Records that the page may still read."""
        self._most = most
        self._began = perf_counter()

    def begin(self) -> None:
        """Begin a slice."""
        self._began = perf_counter()

    @property
    def over(self) -> bool:
        """Return whether the slice has taken long enough."""
        return perf_counter() - self._began > SLICE / 2

    async def end(self) -> None:
        """End a slice: adapt the size of the next one to the time that this one took, and let other
        tasks run."""
        taken = perf_counter() - self._began
        if taken > SLICE:
            self.size = max(1, self.size // 2)
        elif taken < SLICE / 2:
            self.size = min(self._most, self.size * 2)
        await trio.lowlevel.checkpoint()
        self._began = perf_counter()

    async def pause(self) -> None:
        """Let other tasks run if the slice has taken long enough."""
        if self.over:
            await trio.lowlevel.checkpoint()
            self._began = perf_counter()
