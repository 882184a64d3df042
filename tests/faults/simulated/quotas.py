"""Quotas: how many steps with a policy may run, and when, held against those that do.

Every step that has something in its way reports here when an attempt begins and when it is over.
"""

from collections import Counter
from collections.abc import Callable
from math import inf

import trio

TICK = 1e-6
FEW = 2
"""Steps of one function that may run at a time."""
PAUSE = 0.5
"""Seconds between two calls of what has a rate."""
LATE = 1
"""Calls that may be so late that the next ones seem early."""
SEATS = 3
"""What there is to share of a resource."""
WIDE = 2
"""What a step of the larger kind needs of it."""
TRIES = 2
"""Failures in a row after which a circuit is open."""
OPEN_FOR = 3.0
UNDER_WAY = 1.0
"""Seconds for which calls that were let through before may still wait for a commit."""


class Quotas:
    """What runs now, and what is to be kept to."""

    def __init__(self, breach: Callable[[str], None]) -> None:
        self._breach = breach
        self._running: Counter[str] = Counter()
        self._paced: list[float] = []
        self._failed: list[float] = []
        self._opened = -inf

    def restarted(self) -> None:
        """Limits are about one process."""
        self._running.clear()
        self._paced.clear()
        self._failed.clear()
        self._opened = -inf

    def began(self, guard: str) -> None:
        """An attempt has begun of a step that is guarded so."""
        now = trio.current_time()
        running = self._running
        running[guard] += 1
        if running["few"] > FEW:
            self._breach(f"{running['few']} steps run at a time, and {FEW} may")
        taken = WIDE * running["wide"] + running["narrow"]
        if taken > SEATS:
            self._breach(f"steps hold {taken} seats, and there are {SEATS}")
        if guard == "paced":
            self._paced.append(now)
            self._check_rate()
        if guard == "braked" and UNDER_WAY < now - self._opened < OPEN_FOR - TICK:
            self._breach(f"a circuit is open since {self._opened:.3f}, and a step was called")

    def left(self, guard: str, *, failed: bool) -> None:
        """It is over."""
        self._running[guard] -= 1
        now = trio.current_time()
        if guard == "braked" and failed and now >= self._opened + OPEN_FOR - TICK:
            # A probe, if it was open before; else one of those that are counted for a minute.
            self._failed = [*(at for at in self._failed if at > now - 60.0), now]
            if self._opened > -inf or len(self._failed) >= TRIES:
                self._opened = now

    def _check_rate(self) -> None:
        """A step that was let through may still wait for a commit."""
        calls = self._paced
        for first in range(len(calls) - 1):
            many, took = len(calls) - first, calls[-1] - calls[first]
            if (many - 1 - LATE) * PAUSE > took + TICK:
                self._breach(f"{many} calls within {took:.3f} s, and one per {PAUSE} s may be made")
                return
