"""Saturation: count and report the periods in which calls wait for room.

A period begins when the first call waits, and ends when no call waits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

W = TypeVar("W")

Report = Callable[[W, float, float | None], None]
"""Receives the call that waits, the seconds that it has waited, and at the end of a period the
length of the period."""


class Saturation(Generic[W]):
    """Counts the calls that wait. `report`, if there is one, is called at the beginning and at the
    end of a period."""

    def __init__(self, report: "Report[W] | None" = None) -> None:
        self._report = report
        self.waiting = 0
        self.count = 0
        """The number of periods."""
        self._since = 0.0
        self._seconds = 0.0

    @contextmanager
    def wait(self, call: W) -> Iterator[None]:
        """Count `call` as waiting while the block runs."""
        began = trio.current_time()
        if not self.waiting:
            self.count += 1
            self._since = began
            if self._report is not None:
                self._report(call, 0.0, None)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            if not self.waiting:
                now = trio.current_time()
                seconds = now - self._since
                self._seconds += seconds
                if self._report is not None:
                    self._report(call, now - began, seconds)

    @property
    def seconds(self) -> float:
        """Return the seconds of all periods."""
        ongoing = trio.current_time() - self._since if self.waiting else 0.0
        return self._seconds + ongoing
