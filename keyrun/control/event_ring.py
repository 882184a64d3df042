"""The event ring: the latest events of a runtime, as the text of a stream of server-sent events.

All subscribers of `/v1/events` share one ring, which is the only listener of the engine. Each
subscriber has a position in the ring. An event becomes text once, when the first subscriber reads
it. A subscriber that does not read keeps its position, which costs nothing, and receives a `missed`
event when the ring has gone past the position.

The id of an event is the epoch of the ring and the position. If a position has two events, the id
of the first one ends with `.1`. An id with another epoch is from another process, so what happened
between is unknown: the subscriber receives a `missed` event without a number.
"""

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import trio

from keyrun.control.json_text import dump
from keyrun.control.shapes import JSON
from keyrun.runtime.events.feed import Subscribers
from keyrun.runtime.events.subscription import check_kinds
from keyrun.runtime.events.types import Brief, Event, EventKind, Missed, in_full, run_of
from keyrun.runtime.records.checks import check_run_id

RING = 10_000
"""Entries of the ring. A step that starts and completes without waiting is one entry."""
LINGER = 60.0
"""Seconds that the ring stays up to date without subscribers, for those that connect again."""
MOST_AT_ONCE = 250
"""Events that one subscriber receives at once."""
PACE = 0.005
"""Seconds between two reads of a subscriber, for each subscriber. Many subscribers thus read
larger parts, less often."""
LEAST_PACE = 0.02
SHIFTS = 8
"""Subscribers that read at the same time share what they read. They read in this many shifts, so
that they do not hold the event loop."""
RETRY = "retry: 2000\n"
"""Tells browsers how many milliseconds to wait before they connect again."""

_ID = re.compile(r"([0-9a-f]+)-([0-9]{1,19})(?:\.([0-9]))?")
_STEP = frozenset({EventKind.STEP_STARTED, EventKind.STEP_COMPLETED})


SAMPLE_SECONDS = 0.25
MOST_PER_SECOND = 10_000


Shown = tuple[Event, bytes]
"""An event, and its text."""


class Sample(NamedTuple):
    """How a subscriber receives a sample of the events: at most `size` in each `seconds`."""

    size: int
    seconds: float

    @classmethod
    def of(cls, most_per_second: int) -> "Sample":
        """Return the sample with a number of events per second."""
        if not 1 <= most_per_second <= MOST_PER_SECOND:
            raise ValueError(
                f"most_per_second must be 1 to {MOST_PER_SECOND:,}, got {most_per_second}"
            )
        size = max(1, int(most_per_second * SAMPLE_SECONDS))
        return cls(size, size / most_per_second)


class Follower(Protocol):
    """Reads events as the text of a stream."""

    async def next(self, seconds: float) -> bytes | None:
        """Return the next events. An empty text if there are none within some seconds, and None
        after the last event."""

    def close(self) -> None:
        """Read no more events."""


class EventRing:
    """The latest events of a runtime, for any number of subscribers. All methods are called in the
    thread of the runtime."""

    run_id: str | None = None

    def __init__(
        self, subscribers: Subscribers, wall: Callable[[], float], size: int = RING
    ) -> None:
        self._subscribers = subscribers
        self._wall = wall
        self.size = size
        self.epoch = secrets.token_hex(4)
        self._slots: list[Any] = [None] * size
        """An entry is the event as the engine has it, or a list of events once it was read."""
        self.first = 0
        """The position of the first event since the ring is attached."""
        self.end_position = 0
        """The position of the next event."""
        self.over = False
        self._attached = False
        self._left_at: float | None = None
        self._news: trio.Event | None = None
        self._followers: set[RingFollower] = set()
        self._count = 0
        self._chunks: dict[Any, tuple[bytes, int]] = {}
        """What was read last, by position and filter, until the next event."""

    def take(self, events: Sequence[Event | Brief]) -> None:
        """Receive events. Called by the engine, so this only keeps them."""
        slots, size, at = self._slots, self.size, self.end_position
        for event in events:
            slots[at % size] = event
            at += 1
        self.end_position = at
        self._chunks.clear()
        if self._news is not None:
            self._news.set()
            self._news = None
        if self._left_at is not None and trio.current_time() - self._left_at > LINGER:
            self._left_at = None
            trio.lowlevel.current_trio_token().run_sync_soon(self._leave)

    def end(self) -> None:
        """Receive no more events, because the runtime closes."""
        self.over = True
        if self._news is not None:
            self._news.set()

    async def news(self) -> None:
        """Wait for the next event."""
        if self._news is None:
            self._news = trio.Event()
        await self._news.wait()

    def follow(self, arguments: Mapping[str, Any], last_id: str | None) -> "RingFollower":
        """Return a reader of events: those that follow the event with an id, or the next ones."""
        run_id, kinds = arguments.get("run_id"), arguments.get("kinds")
        buffer = arguments.get("buffer", self.size)
        if not 1 <= buffer <= self.size:
            raise ValueError(f"buffer must be 1 to {self.size}, got {buffer}")
        most_per_second = arguments.get("most_per_second")
        sample = None if most_per_second is None else Sample.of(most_per_second)
        self._attach()
        follower = RingFollower(
            self,
            None if run_id is None else check_run_id(run_id),
            check_kinds(kinds),
            min(buffer, self.size),
            self._count % SHIFTS / SHIFTS,
            sample,
        )
        self._count += 1
        self._left_at = None
        self._followers.add(follower)
        follower.begin(last_id)
        return follower

    def _attach(self) -> None:
        if not self._attached and not self.over:
            self._attached = True
            self.end_position += 1  # what happened while it was not attached
            self.first = self.end_position
            self._subscribers.add(self)

    def forget(self, follower: "RingFollower") -> None:
        """Serve a subscriber no longer."""
        self._followers.discard(follower)
        if not self._followers:
            self._left_at = trio.current_time()

    def _leave(self) -> None:
        if not self._followers:
            self._attached = False
            self._subscribers.remove(self)
            self._slots = [None] * self.size

    @property
    def pace(self) -> float:
        """Return the seconds between two reads of a subscriber."""
        return max(LEAST_PACE, len(self._followers) * PACE)

    def oldest(self, most: int) -> int:
        """Return the first position that a subscriber can read."""
        return max(self.first, self.end_position - most)

    def read(
        self, start: int, run_id: str | None, kinds: frozenset[EventKind] | None
    ) -> tuple[bytes, int]:
        """Return the events that match, as text, and the position that follows them."""
        asked = start, run_id, kinds
        known = self._chunks.get(asked)
        if known is None:
            found: list[Shown] = []
            at = start
            while at < self.end_position and len(found) < MOST_AT_ONCE:
                entry = self._slots[at % self.size]
                if type(entry) is not list:
                    if not _may_match(entry, run_id, kinds):
                        at += 1
                        continue
                    entry = self._slots[at % self.size] = self._shown(at, entry)
                found += _matching(entry, run_id, kinds)
                at += 1
            known = self._chunks[asked] = _text_of(found), at
        return known

    def newest(
        self, start: int, most: int, run_id: str | None, kinds: frozenset[EventKind] | None
    ) -> tuple[list[Shown], int, int]:
        """Return the newest events since a position that match, at most `most`, with the position
        of the first one and the number of the others."""
        matching: list[int] = []
        total = 0
        for at in range(start, self.end_position):
            count = _count(self._slots[at % self.size], run_id, kinds)
            if count:
                matching.append(at)
                total += count
        parts: list[list[Shown]] = []
        kept, first = 0, self.end_position
        while matching:
            found = self._matching_at(matching[-1], run_id, kinds)
            if kept + len(found) > most and kept:
                break
            first = matching.pop()
            kept += len(found)
            parts.append(found)
        return [each for part in reversed(parts) for each in part], first, total - kept

    def recent(
        self,
        after: str | None,
        run_id: str | None,
        kinds: frozenset[EventKind] | None,
        most: int,
    ) -> tuple[list[Event], str, int | None]:
        """Return the newest events that match and follow the event with an id, the id after which
        to ask again, and the number of the others. The number is None if it is not known. Without
        an id, return only the id after which to ask."""
        self._attach()
        if not self._followers:
            self._left_at = trio.current_time()
        cursor = f"{self.epoch}-{self.end_position - 1}"
        if after is None:
            return [], cursor, 0
        found = _ID.fullmatch(after)
        start = -1 if found is None or found[1] != self.epoch else int(found[2]) + 1
        if not self.first <= start <= self.end_position:
            return [], cursor, None
        oldest = max(start, self.oldest(self.size))
        shown, _, others = self.newest(oldest, most, run_id, kinds)
        return [event for event, _ in shown], cursor, others + oldest - start

    def _matching_at(
        self, at: int, run_id: str | None, kinds: frozenset[EventKind] | None
    ) -> list[Shown]:
        """Return the events of a position that match."""
        entry = self._slots[at % self.size]
        if type(entry) is not list:
            entry = self._slots[at % self.size] = self._shown(at, entry)
        return _matching(entry, run_id, kinds)

    def _shown(self, at: int, entry: Any) -> list[Shown]:
        """Return the events of an entry, also as text."""
        events: tuple[Any, ...] = (entry,)
        if type(entry) is tuple:
            events = in_full(entry)
        events = tuple(each for each in events if each is not None)
        places = [f"{at}.{number}" for number in range(1, len(events))] + [str(at)]
        return [
            (each, event_text(f"{self.epoch}-{place}", each))
            for place, each in zip(places, events, strict=True)
        ]

    def rest(
        self, at: int, skipped: int, run_id: str | None, kinds: frozenset[EventKind] | None
    ) -> bytes:
        """Return the events of a position that match, as text, without the first ones."""
        entry = self._slots[at % self.size]
        if type(entry) is not list:
            entry = self._slots[at % self.size] = self._shown(at, entry)
        return _text_of(_matching(entry[skipped:], run_id, kinds))

    def missed(self, at: int, count: int | None, *, sampled: bool = False) -> bytes:
        """Return the event that marks a gap before a position."""
        found = Missed(EventKind.MISSED, self._wall(), None, None, None, count, sampled)
        return event_text(f"{self.epoch}-{at - 1}", found)


def event_text(event_id: str, event: Event) -> bytes:
    """Return an event as a part of a stream of server-sent events."""
    name = f"id: {event_id}\nevent: {event.kind}\ndata: "
    return name.encode() + dump(JSON.writer(type(event))(event)) + b"\n\n"


def _matching(
    events: list[Shown], run_id: str | None, kinds: frozenset[EventKind] | None
) -> list[Shown]:
    """Return the events that match."""
    return [
        each
        for each in events
        if (kinds is None or each[0].kind in kinds) and (run_id is None or each[0].run_id == run_id)
    ]


def _text_of(events: Iterable[Shown]) -> bytes:
    return b"".join([text for _, text in events])


def _count(entry: Any, run_id: str | None, kinds: frozenset[EventKind] | None) -> int:
    """Return how many events of an entry match."""
    if type(entry) is list:
        return len(_matching(entry, run_id, kinds))
    if not _may_match(entry, run_id, kinds):
        return 0
    if type(entry) is tuple and len(entry) == 5:
        return 2 if kinds is None else len(_STEP & kinds)
    return 1


def _may_match(entry: Any, run_id: str | None, kinds: frozenset[EventKind] | None) -> bool:
    if run_id is not None and run_of(entry) != run_id:
        return False
    if kinds is None:
        return True
    if type(entry) is tuple and len(entry) == 5:
        return not _STEP.isdisjoint(kinds)
    return entry[0] in kinds


class RingFollower:
    """One subscriber of the ring."""

    def __init__(
        self,
        ring: EventRing,
        run_id: str | None,
        kinds: frozenset[EventKind] | None,
        most: int,
        shift: float,
        sample: Sample | None,
    ) -> None:
        self._ring = ring
        self._shift = shift
        self._sample = sample
        self._filter = run_id, kinds
        self._most = most
        self._position = 0
        self._said: bytes = b""
        """What is sent before the next events."""
        self._read_at = -1.0

    def begin(self, last_id: str | None) -> None:
        """Go to the event that follows an id, or to the next event."""
        self._position = self._ring.end_position
        if last_id is None:
            # An id to resume at, also if no event follows.
            self._said = f"{RETRY}id: {self._ring.epoch}-{self._position - 1}\n\n".encode()
        else:
            # The subscriber keeps its id until it has received what follows.
            self._said = f"{RETRY}\n".encode() + self._resume(last_id)

    def _resume(self, last_id: str) -> bytes:
        """Go to the event that follows an id. Return what is sent before the events from there."""
        ring, found = self._ring, _ID.fullmatch(last_id)
        if found is None or found[1] != ring.epoch:
            return ring.missed(self._position, None)
        at, part = int(found[2]), int(found[3] or 0)
        after = at if part else at + 1
        if not ring.first <= after <= ring.end_position:
            return ring.missed(self._position, None)
        self._position = after
        if not part or not ring.oldest(self._most) <= at < ring.end_position:
            return b""
        self._position = at + 1
        return ring.rest(at, part, *self._filter)

    async def next(self, seconds: float) -> bytes | None:
        """Return the next events; see `Follower`."""
        ring = self._ring
        with trio.move_on_after(seconds):
            await trio.sleep_until(self._next_read())
            while True:
                if self._said:
                    said, self._said = self._said, b""
                    return said
                oldest = ring.oldest(self._most)
                if self._position < oldest:
                    self._said = ring.missed(oldest, oldest - self._position)
                    self._position = oldest
                text = self._read()
                if self._said or text:
                    self._read_at = trio.current_time()
                    said, self._said = self._said, b""
                    return said + text
                if self._position < ring.end_position:
                    await trio.lowlevel.checkpoint()
                    continue
                if ring.over:
                    return None
                await ring.news()
                if self._sample is not None:
                    # Events that do not match must not be looked at one by one.
                    await trio.sleep_until(self._next_read())
        return b""

    def _next_read(self) -> float:
        """Return when to read again."""
        if self._read_at < 0:
            return 0.0
        if self._sample is not None:
            return self._read_at + self._sample.seconds
        pace = self._ring.pace
        return (self._read_at // pace + 1 + self._shift) * pace

    def _read(self) -> bytes:
        """Return the next events as text, or a sample of them."""
        ring = self._ring
        if self._sample is None:
            text, self._position = ring.read(self._position, *self._filter)
            return text
        self._read_at = trio.current_time()
        found, first, others = ring.newest(self._position, self._sample.size, *self._filter)
        self._position = ring.end_position
        said = ring.missed(first, others, sampled=True) if others else b""
        return said + _text_of(found)

    def close(self) -> None:
        """Read no more events."""
        self._ring.forget(self)
