"""Backpressure: limit the number of runs that were accepted and have not started.

A run has started when its first step has a slot, or when it waits for anything else than a slot.
"""

from typing import TYPE_CHECKING, Protocol

import attrs
import trio

from keyrun.runtime.errors import Backpressure
from keyrun.runtime.events import emitter
from keyrun.runtime.saturation import Saturation

if TYPE_CHECKING:
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.queue.key_queues import KeyQueues


@attrs.frozen(kw_only=True)
class BacklogStatistics:
    """Count the runs that wait to start, and the backpressure so far."""

    pending: int
    """The number of runs that have not started."""
    limit: int
    """The number of runs that may wait to start: `max_pending`."""
    waiting: int
    """The number of submits that wait for room."""
    saturations: int
    """The number of times that backpressure began."""
    refused: int
    """The number of submits that raised `Backpressure`."""
    seconds_saturated: float
    """Seconds of backpressure in all."""


class PendingWork(Protocol):
    """A submission, or a call of an entity method, that waits for room."""

    @property
    def key(self) -> str:
        """Return the ordering key."""

    @property
    def about(self) -> tuple[str, str, str]:
        """Return the run id, the key and the workflow or method, for events."""


class Pending(Protocol):
    """A run or a call that may count as waiting to be started."""

    pending: bool


class Submitter:
    """A submit or a call that waits for room."""

    __slots__ = ("key", "woken")

    def __init__(self, key: str) -> None:
        self.key = key
        self.woken = trio.Event()


class Backlog:
    """Counts the runs and calls that wait to be started, and makes submitters wait if there are too
    many."""

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
        """Places that were counted before the count of the index came to them."""
        self._waiting: dict[Submitter, None] = {}
        """The submitters that wait, in order."""
        self._saturation: Saturation[PendingWork] = Saturation(self._report)
        self._refused = 0

    def full(self, key: str) -> bool:
        """Return whether there is no room for one more run of this key."""
        if self.pending >= self._most:
            return True
        queue = self._queues.get(key)
        if queue is not None:
            return queue.pending >= self._most_per_key
        if not self._queues.at_gate and not self._queues.evicted:
            return False
        return self._queues.pending_of(key) >= self._most_per_key

    def enter(self, queue: "KeyQueue") -> None:
        """Count one more run that waits to be started."""
        self.pending += 1
        queue.pending += 1

    def count_early(self, queue: "KeyQueue", place: bytes) -> None:
        """Count a place that came into the window of its queue, if it was stored before the open
        and the count of the index has not reached it."""
        if place > self._counted_to and place not in self._early:
            self._early.add(place)
            self.enter(queue)

    def enter_woken(self, queue: "KeyQueue", place: bytes) -> None:
        """Count an evicted run that was woken. The count of the index does not count it again."""
        self.enter(queue)
        if place > self._counted_to:
            self._early.add(place)

    def count_place(self, place: bytes) -> bool:
        """Record that the count of the index has reached this place. Return whether the place has
        to be counted."""
        self._counted_to = place
        if place in self._early:
            self._early.discard(place)
            return False
        return True

    def leave(self, queue: "KeyQueue", started: Pending | None = None) -> None:
        """Count one run or call fewer that waits to be started. Nothing is called between the
        counts and the mark of `started`, so that an internal error cannot separate them."""
        self.pending -= 1
        queue.pending -= 1
        if started is not None:
            started.pending = False
        if self._waiting:
            self._wake_next()

    def _wake_next(self) -> None:
        if self.pending < self._most:
            for submitter in self._waiting:
                if not submitter.woken.is_set() and not self.full(submitter.key):
                    submitter.woken.set()
                    return

    def refuse(self, key: str) -> Backpressure:
        """Return the error of a submitter that does not wait, or has waited for the timeout."""
        self._refused += 1
        pending = self._queues.pending_of(key)
        if pending >= self._most_per_key:
            what = f"{pending} runs of the key {key!r} wait to start"
            limit = "max_pending_per_key"
        else:
            what, limit = f"{self.pending} runs wait to start", "max_pending"
        return Backpressure(f"{what}; submit more slowly, or raise {limit}", key=key)

    async def wait_for_room(self, submission: PendingWork) -> None:
        """Wait until there is room for one more run. Raise `Backpressure` after the timeout."""
        key = submission.key
        metrics, began = self._queues.partition.metrics, trio.current_time()
        with self._saturation.wait(submission):
            submitter = Submitter(key)
            self._waiting[submitter] = None
            try:
                with trio.move_on_after(self._timeout):
                    while self.full(key):
                        submitter.woken = trio.Event()
                        await submitter.woken.wait()
                    return
                raise self.refuse(key)
            finally:
                del self._waiting[submitter]
                if metrics is not None:
                    _, _, workflow = submission.about
                    metrics.of(workflow).backpressure.add(trio.current_time() - began)
                # This submitter may have been woken and leave without using the room.
                self._wake_next()

    def _report(self, submission: PendingWork, waited: float, over: float | None) -> None:
        feed = self._queues.partition.feed
        if feed is not None:
            emitter.backpressure(
                feed, submission.about, depth=self.pending, waited=waited, duration=over
            )

    def statistics(self) -> BacklogStatistics:
        """Return a snapshot of the counts."""
        return BacklogStatistics(
            pending=self.pending,
            limit=self._most,
            waiting=self._saturation.waiting,
            saturations=self._saturation.count,
            refused=self._refused,
            seconds_saturated=self._saturation.seconds,
        )
