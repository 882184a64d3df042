"""The places of a key: the order of its runs, of which a small window is in memory.

The order is that of the places in the store. What is beyond the window stays there until its turn
comes. Runs that sleep have their place and are not in the window; the one that holds the key while
it sleeps is known by its number.
"""

from bisect import bisect
from typing import TYPE_CHECKING

from keyrun.runtime.records.tables import NUMBER, Sleep, at_place
from keyrun.runtime.values import Priority

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.records.submission import Submission
    from keyrun.storage.group import Group

WINDOW = 64


class Places:
    """Which runs of a key come next."""

    __slots__ = (
        "_last",
        "_more",
        "_overtaken",
        "_prefix",
        "_rank",
        "_told",
        "group",
        "key",
        "partition",
        "sleeper",
        "window",
    )

    def __init__(self, partition: "Partition", key: str, *, known: bool) -> None:
        self.partition = partition
        self.key = key
        self._prefix = partition.ledger.key_prefix(key)
        self.window: list[tuple[int, int, Submission | None]] = []
        """Place, number, and what was submitted if it is still at hand."""
        self._last = 0
        """The last place that came into the window."""
        self._more = not known
        self._rank = Priority.NORMAL
        """The priority of the first run that was found in the store."""
        self._overtaken = False
        """Whether the index has more of this key than the reading of it at the start brought."""
        self._told = False
        """Whether a run got a place that is not in the window, since that was last read."""
        self.group: Group | None = None
        """The group that ends the last run: nothing of the next may happen before it is durable."""
        self.sleeper: int | None = None
        """The run that has left memory to wait, and lets nobody go ahead of it."""

    def place(self, place: int) -> bytes:
        """The record key of a place in this line."""
        return self._prefix + NUMBER.pack(place)

    def entity(self, name: bytes) -> bytes:
        """Return the record key of the state that an entity of this name keeps under this key."""
        return self._prefix + name

    def found(self, place: int, number: int, priority: Priority) -> None:
        """The index of places, read in order, has this one. Whoever has driven all that was found
        reads on by itself."""
        if len(self.window) < WINDOW and place > self._last and not self._overtaken:
            if not self.window:
                self._rank = priority
            self._last = place
            self.window.append((place, number, None))
        else:
            self._overtaken = True

    def listed(self) -> None:
        """The index of places has no more of this key than was found."""
        self._more = self._more and (self._overtaken or self._told)

    def put(self, place: int, number: int, submission: "Submission | None") -> None:
        """A run has a place, durably, behind all others."""
        if self._more or len(self.window) >= WINDOW:
            self._more = self._told = True
        elif place > self._last:
            # Else it was read from the store between its commit and the news of it.
            self._last = place
            self.window.append((place, number, submission))
            if submission is not None:
                submission.at_hand = True

    def put_back(self, place: int, number: int) -> None:
        """A run that had left memory is awake, durably. The one that held the line comes first,
        others where their place is."""
        known = any(other == number for _, other, _ in self.window)
        if self.sleeper == number:
            self.sleeper = None
            if not known:
                self.window.insert(0, (place, number, None))
        elif not known and not (self._more and place > self._last):
            at = bisect(self.window, place, key=lambda item: item[0])
            self.window.insert(at, (place, number, None))
            self._last = max(self._last, place)

    def bring_forward(self, place: int, number: int, queue: "KeyQueue") -> None:
        """After a restart this run goes on first, whoever is before it."""
        if place > self._last:
            self._more = self._overtaken = True
            if not self.partition.recovered:
                self.partition.backlog.meet(queue, self.place(place))
        self.window = [item for item in self.window if item[1] != number]
        self.window.insert(0, (place, number, None))

    def blank(self) -> None:
        """Know nothing of the runs: they are read from the store when the line is served."""
        for _, _, submission in self.window:
            if submission is not None:
                submission.at_hand = False
        self.window = []
        self._last = 0
        self._more = self._overtaken = True

    def first_priority(self) -> Priority:
        """That of the first run, as far as it is at hand."""
        submission = self.window[0][2] if self.window else None
        return self._rank if submission is None else submission.priority

    def remove(self, number: int) -> None:
        """A run has no place here any more."""
        self.forget_submission(number)
        if self.sleeper == number:
            self.sleeper = None
        self.window = [item for item in self.window if item[1] != number]

    def forget_submission(self, number: int) -> None:
        """A run in the window was changed: it must be read from the store when its turn comes."""
        for at, (place, other, submission) in enumerate(self.window):
            if other == number:
                self.window[at] = (place, number, None)
                if submission is not None:
                    submission.at_hand = False

    @property
    def unread(self) -> bool:
        """Whether the store has to be asked which run is the first."""
        return self._more and not self.window

    async def read_window(self, queue: "KeyQueue") -> None:
        """Read which runs come next."""
        partition = self.partition
        ledger, store = partition.ledger, partition.store
        self._told = False
        self._overtaken = True
        if self.group is not None:
            # The index must not show runs whose end is only staged.
            await self.group.wait()
        if self.partition.runs.has_unsaved(self.key):
            # Nor runs that slept, and were ended or woken.
            await store.durable()
        while not self.window:
            start = self.place(self._last + 1) if self._last else b""
            rows = await store.scan("queue", prefix=self._prefix, start=start, limit=WINDOW)
            self._more = self._told or len(rows) == WINDOW
            for key, raw in rows:
                place = self._last = ledger.split_place(key)[1]
                number, priority, sleep = at_place(key, raw, place)
                if sleep is not Sleep.NO:
                    if sleep is Sleep.HOLDS:
                        self.sleeper = number
                    continue
                if not partition.recovered and place < partition.opened_at:
                    partition.backlog.meet(queue, key)
                if not self.window:
                    self._rank = priority
                self.window.append((place, number, None))
            if len(rows) < WINDOW:
                return
