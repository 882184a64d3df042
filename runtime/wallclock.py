"""The wall clock, watched for jumps: somebody sets it, or the machine was asleep."""

from collections.abc import Callable

import trio

TOLERANCE = 1.0
"""Seconds. Clocks that are kept right by small steps do not jump."""


class WallClock:
    """Tells the time, and by how much it differs from what has passed since it was last asked."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._time: float | None = None
        self._passed = 0.0

    def look(self) -> tuple[float, float]:
        """The time, and how far the clock was set forward, or back if that is negative."""
        now, passed = self._wall(), trio.current_time()
        jump = 0.0
        if self._time is not None:
            jump = now - self._time - (passed - self._passed)
        self._time, self._passed = now, passed
        return now, jump if abs(jump) > TOLERANCE else 0.0
