"""A wait: one branch of a run that goes on when its time has come, or when it is sent something.

A run all of whose branches wait needs nothing but its journal, so it can leave memory: see
`parking`.
"""

from math import inf
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from keyrun.runtime.run.inbox import Signal

BACKOFF = "backoff"
TIMER = "timer"
_NAMED = 3


class Wait:
    """What one branch waits for. `label` is how the status puts it; `due` is a time of the wall
    clock, `until` the same on Trio's; `channel` is what it may be sent something on, and `rank`
    who comes first of several that wait on one."""

    __slots__ = ("channel", "due", "event", "label", "rank", "signal", "until")

    def __init__(
        self,
        label: str,
        *,
        timer: tuple[float, float] | None = None,
        now: float = 0.0,
        channel: str | None = None,
        rank: int = 0,
    ) -> None:
        self.label = label
        self.channel = channel
        self.rank = rank
        self.signal: Signal | None = None
        self.event = trio.Event()
        self.due = self.until = inf
        if timer is not None:
            due, length = timer
            # A clock that was set back does not make it longer.
            self.due = min(due, now + length)
            self.until = trio.current_time() + self.due - now

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for any more."""
        # What is less than the clock can tell is no time.
        return self.event.is_set() or self.until <= trio.current_time() + 1e-6


def waiting_on(waits: "list[Wait]") -> str | None:
    """What a run waits on, in a few words."""
    labels = list(dict.fromkeys(wait.label for wait in waits))
    more = len(labels) - _NAMED
    if more > 0:
        labels = [*labels[:_NAMED], f"{more} more"]
    return ", ".join(labels) or None
