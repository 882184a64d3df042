"""The wall clock: detect that it was set, and follow it with a clock that never goes back."""

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


class SteadyClock:
    """The wall clock, if nobody had ever set it back. What is due is measured by it: a clock that
    is set forward is followed, one that is set back makes nothing wait longer. What it says is
    stored when a run begins to wait, when the wall clock is seen to be behind it and when the
    runtime is left, so that it does not go back across a restart either."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ahead = float("-inf")

    def at_least(self, time: float) -> None:
        """It was this late when somebody last looked."""
        self._ahead = max(self._ahead, time - trio.current_time())

    def __call__(self) -> float:
        now, wall = trio.current_time(), self._wall()
        ahead = wall - now
        if ahead > self._ahead:
            self._ahead = ahead
        # What is less than the clock can tell is not set back.
        return wall if self._ahead - ahead < 1e-5 else now + self._ahead
