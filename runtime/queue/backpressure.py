"""The backlog: runs that were accepted and never started, and how many of them there may be.

A run has started when its first step has a slot, or when it waits for something else than that.
"""

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from keyrun.runtime.errors import Backpressure
from keyrun.runtime.events import emitter
from keyrun.runtime.policies.saturation import Saturation

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.queue.key_queues import KeyQueues


@attrs.frozen(kw_only=True)
class BacklogStatistics:
    """How full it is and was. `saturations` counts the times that somebody had to wait."""

    pending: int
    saturations: int
    refused: int
    seconds_saturated: float


class PendingWork(Protocol):
    """A submission, or a call of an entity method, that waits for room."""

    @property
    def key(self) -> str:
        """Return the ordering key."""

    @property
    def about(self) -> tuple[str, str, str]:
        """Return the run id, the key and the workflow or method, for events."""


class Submitter:
    """Somebody who waits for room."""

    __slots__ = ("called", "key")

    def __init__(self, key: str) -> None:
        self.key = key
        self.called = trio.Event()


class Backlog:
    """Counts what waits to be started, and makes submitters wait when it is too much."""

    def __init__(
        self,
        queues: "KeyQueues",
        *,
        max_pending: int,
        max_pending_per_key: int,
        backpressure_timeout: float,
    ) -> None:
        self._queues = queues
        self._most = max_pending
        self._most_per_key = max_pending_per_key
        self._timeout = backpressure_timeout
        self.pending = 0
        self._counted_to = b""
        self._early: set[bytes] = set()
        """Places that were met before the index of places was counted up to them."""
        self._waiting: dict[Submitter, None] = {}
        """In the order in which they came."""
        self._saturation: Saturation[PendingWork] = Saturation(self._tell)
        self._refused = 0

    def full(self, key: str) -> bool:
        """Return whether one more run of this key would be too much."""
        if self.pending >= self._most:
            return True
        queue = self._queues.get(key)
        if queue is not None:
            return queue.pending >= self._most_per_key
        if not self._queues.at_gate and not self._queues.evicted:
            return False
        return self._queues.pending_of(key) >= self._most_per_key

    def enter(self, queue: "KeyQueue") -> None:
        """One more run waits to be started."""
        self.pending += 1
        queue.pending += 1

    def meet(self, queue: "KeyQueue", place: bytes) -> None:
        """A place that was there when the store was opened came into a window: it is counted here
        if the index of places was not counted up to it."""
        if place > self._counted_to and place not in self._early:
            self._early.add(place)
            self.enter(queue)

    def woken(self, queue: "KeyQueue", place: bytes) -> None:
        """A run that slept waits to be started again: it is counted here, and not once more where
        the index of places was not counted up to it."""
        self.enter(queue)
        if place > self._counted_to:
            self._early.add(place)

    def counts(self, place: bytes) -> bool:
        """The index of places is counted up to this one. Says whether it is to be counted yet."""
        self._counted_to = place
        if place in self._early:
            self._early.discard(place)
            return False
        return True

    def left(self, queue: "KeyQueue") -> None:
        """One run fewer waits."""
        self.pending -= 1
        queue.pending -= 1
        if self._waiting:
            self._call_next()

    def _call_next(self) -> None:
        if self.pending < self._most:
            for submitter in self._waiting:
                if not submitter.called.is_set() and not self.full(submitter.key):
                    submitter.called.set()
                    return

    def refuse(self, key: str) -> Backpressure:
        """What somebody gets who cannot wait, or has waited long enough."""
        self._refused += 1
        pending = self._queues.pending_of(key)
        if pending >= self._most_per_key:
            what = f"{pending} runs of the key {key!r} wait to be started"
        else:
            what = f"{self.pending} runs wait to be started"
        return Backpressure(f"{what}; submit more slowly, or raise the limit", key=key)

    async def wait_for_room(self, submission: PendingWork) -> None:
        """Wait until one more run is not too much; raises `Backpressure` after the timeout."""
        key = submission.key
        with self._saturation.wait(submission):
            submitter = Submitter(key)
            self._waiting[submitter] = None
            try:
                with trio.move_on_after(self._timeout):
                    while self.full(key):
                        submitter.called = trio.Event()
                        await submitter.called.wait()
                    return
                raise self.refuse(key)
            finally:
                del self._waiting[submitter]
                # Whoever was called and goes away passes the call on.
                self._call_next()

    def _tell(self, submission: PendingWork, waited: float, over: float | None) -> None:
        feed = self._queues.partition.feed
        if feed is not None:
            emitter.backpressure(
                feed, submission.about, depth=self.pending, waited=waited, duration=over
            )

    def statistics(self) -> BacklogStatistics:
        """A snapshot."""
        return BacklogStatistics(
            pending=self.pending,
            saturations=self._saturation.count,
            refused=self._refused,
            seconds_saturated=self._saturation.seconds,
        )
