"""Quotas: how many steps with a policy may run, and when, held against those that do.

Every step that has something in its way reports here when an attempt begins and when it is over.
"""

from collections import Counter
from collections.abc import Callable

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


class Quotas:
    """What runs now, and what is to be kept to."""

    def __init__(self, breach: Callable[[str], None]) -> None:
        self._breach = breach
        self._running: Counter[str] = Counter()
        self._paced: list[float] = []
        self._failed: list[float] = []

    def restarted(self) -> None:
        """Limits are about one process."""
        self._running.clear()
        self._paced.clear()
        self._failed.clear()

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
        opened = len(self._failed) >= TRIES
        if guard == "braked" and opened and now < self._failed[-1] + OPEN_FOR - TICK:
            self._breach(f"a circuit is open since {self._failed[-1]:.3f}, and a step was called")

    def left(self, guard: str, *, failed: bool) -> None:
        """It is over."""
        self._running[guard] -= 1
        if guard == "braked" and failed:
            self._failed.append(trio.current_time())

    def _check_rate(self) -> None:
        """A step that was let through may still wait for a commit."""
        calls = self._paced
        for first in range(len(calls) - 1):
            many, took = len(calls) - first, calls[-1] - calls[first]
            if (many - 1 - LATE) * PAUSE > took + TICK:
                self._breach(f"{many} calls within {took:.3f} s, and one per {PAUSE} s may be made")
                return
