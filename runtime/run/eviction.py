"""An eviction: how a waiting run leaves memory."""

from typing import NamedTuple

from keyrun.runtime.records.submission import EvictedWait
from keyrun.runtime.records.tables import Sleep


class Eviction(NamedTuple):
    """What a run waits for when it leaves memory."""

    evicted_wait: EvictedWait
    until: float
    """When its first timer is due, on Trio's clock."""
    waiting_on: str | None
    sleep: Sleep
    sent: int
    """The sequence number of the last signal that it had by then."""
    held: bool
    """Whether it waits only to be resumed."""
