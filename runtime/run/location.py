"""Where a run is. Only the run table changes it."""

from enum import Enum


class Location(Enum):
    """Where a run is that has not ended."""

    QUEUED = "queued"
    """It waits in the queue of its key."""
    LIVE = "live"
    """It is at the head of its key and in memory."""
    EVICTING = "evicting"
    """Its coroutine is being cancelled so that the run can leave memory."""
    EVICTED = "evicted"
    """It left memory to wait for a timer, a signal, a child or a resume."""
    WAKING = "waking"
    """It was evicted. The commit that puts it back into its queue is under way."""
    DELAYED = "delayed"
    """It gets its place in the order when its delay is over."""
