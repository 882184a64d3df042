"""Saturation: count and report the periods in which calls wait for room.

A period begins when the first call waits, and ends when no call waits.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

import trio

W = TypeVar("W")

Tell = Callable[[W, float, float | None], None]
"""Takes who waits, the seconds that it has waited, and at the end the seconds of the saturation."""


class Saturation(Generic[W]):
    """Counts those that wait. `tell` is called at the beginning and at the end."""

    def __init__(self, tell: "Tell[W]") -> None:
        self._tell = tell
        self.waiting = 0
        self.count = 0
        """How often somebody had to wait while nobody else did."""
        self._since = 0.0
        self._seconds = 0.0

    @contextmanager
    def wait(self, who: W) -> Iterator[None]:
        """Count `who` as one that waits."""
        began = trio.current_time()
        if not self.waiting:
            self.count += 1
            self._since = began
            self._tell(who, 0.0, None)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1
            if not self.waiting:
                now = trio.current_time()
                seconds = now - self._since
                self._seconds += seconds
                self._tell(who, now - began, seconds)

    @property
    def seconds(self) -> float:
        """How long it lasted in all."""
        ongoing = trio.current_time() - self._since if self.waiting else 0.0
        return self._seconds + ongoing
