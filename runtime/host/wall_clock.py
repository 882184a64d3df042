"""The wall clock: detect that it was set, and follow it with a clock that never goes back."""

from collections.abc import Callable

import trio

TOLERANCE = 1.0
"""Seconds. Smaller differences are corrections of the clock, not jumps."""


class WallClock:
    """Reads the wall clock, and detects how far it was set since it was last read."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._time: float | None = None
        self._passed = 0.0

    def look(self) -> tuple[float, float]:
        """Return the time, and the seconds by which the clock was set forward, or back if they are
        negative."""
        now, passed = self._wall(), trio.current_time()
        jump = 0.0
        if self._time is not None:
            jump = now - self._time - (passed - self._passed)
        self._time, self._passed = now, passed
        return now, jump if abs(jump) > TOLERANCE else 0.0


class SteadyClock:
    """A clock that follows the wall clock forward and never goes back. Due times are measured by
    it, so a wall clock that is set back makes no run wait longer. Its time is stored when a run
    begins to wait, when the wall clock is found to be behind it, and when the runtime closes. So it
    does not go back across a restart either."""

    def __init__(self, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._ahead = float("-inf")

    def at_least(self, time: float) -> None:
        """Do not go back behind `time`, which an earlier process has stored."""
        self._ahead = max(self._ahead, time - trio.current_time())

    def __call__(self) -> float:
        now, wall = trio.current_time(), self._wall()
        ahead = wall - now
        if ahead > self._ahead:
            self._ahead = ahead
        # Smaller differences are below the resolution of the clock.
        return wall if self._ahead - ahead < 1e-5 else now + self._ahead
