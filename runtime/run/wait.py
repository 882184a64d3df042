"""A wait: a branch of a run that resumes at a time, or when it receives a signal.

A run whose branches all wait needs only its journal, so it can be evicted: see
`keyrun.runtime.waiting.eviction`.
"""

from math import inf
from typing import TYPE_CHECKING, NamedTuple

import trio

from keyrun.runtime.records.submission import EvictedWait
from keyrun.runtime.records.tables import Evicted

if TYPE_CHECKING:
    from keyrun.runtime.run.inbox import Signal

BACKOFF = "backoff"
TIMER = "timer"
_NAMED = 3


class Wait:
    """A wait of one branch.

    `label` is the text in the status, and `ident` the call that waits. `due` is a time of the wall
    clock, and `until` the same time on Trio's clock. `channel` is the channel of the signal that it
    waits for. Of several waits on one channel, the one with the lowest `rank` is first."""

    __slots__ = ("channel", "due", "event", "ident", "label", "rank", "signal", "until")

    def __init__(
        self,
        label: str,
        ident: str,
        *,
        timer: tuple[float, float] | None = None,
        now: float = 0.0,
        channel: str | None = None,
        rank: int = 0,
    ) -> None:
        self.label = label
        self.ident = ident
        self.channel = channel
        self.rank = rank
        self.signal: Signal | None = None
        self.event = trio.Event()
        self.due = self.until = inf
        if timer is not None:
            due, length = timer
            # A clock that was set back does not make the wait longer.
            self.due = min(due, now + length)
            self.until = trio.current_time() + self.due - now

    @property
    def over(self) -> bool:
        """Return whether the wait has ended."""
        # Smaller differences are below the resolution of the clock.
        return self.event.is_set() or self.until <= trio.current_time() + 1e-6


class Eviction(NamedTuple):
    """The waits of a run when it is evicted."""

    evicted_wait: EvictedWait
    until: float
    """When the first timer of the run is due, on Trio's clock."""
    waiting_on: str | None
    evicted: Evicted
    sent: int
    """The sequence number of the last signal that had arrived."""
    held: bool
    """Whether the run is paused and waits only for a resume."""


def waiting_on(waits: "list[Wait]") -> str | None:
    """Return the text of what a run waits for."""
    labels = list(dict.fromkeys(wait.label for wait in waits))
    more = len(labels) - _NAMED
    if more > 0:
        labels = [*labels[:_NAMED], f"{more} more"]
    return ", ".join(labels) or None
