"""A subscription: one listener's bounded view of the feed.

The runtime never waits for a listener. While the buffer of a slow listener is full, new events are
dropped and counted, and a `Missed` event marks the gap. Events in the buffer stay, in order. A step
that starts and completes without suspending takes one place in the buffer.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

import trio

from keyrun.actors import checks
from keyrun.runtime.events.types import Brief, Event, EventKind, Missed, in_full

if TYPE_CHECKING:
    from keyrun.runtime.events.feed import Subscribers


def check_kinds(kinds: Iterable[str] | None) -> frozenset[EventKind] | None:
    """Return `kinds` as a set. Raise ValueError if one is not a kind of event."""
    if kinds is None:
        return None
    if isinstance(kinds, str):
        kinds = (kinds,)
    checks.several("kinds", kinds)
    try:
        return frozenset(map(EventKind, kinds))
    except ValueError as error:
        raise ValueError(f"{error}; the kinds are {', '.join(EventKind)}") from None


def check_buffer(buffer: int) -> int:
    """Return the size of a buffer. Raise ValueError if it is not a number of at least 1."""
    if not checks.is_count(buffer, 1):
        raise ValueError(f"buffer must be a whole number of at least 1, got {buffer!r}")
    return buffer


class Events:
    """Iterate over events. `rt.events` returns this.

    The iterator yields to other tasks only when no event is left, so a program handles at most
    `buffer` events in one go.
    """

    def __init__(
        self,
        subscribers: "Subscribers",
        wall: Callable[[], float],
        *,
        run_id: str | None,
        kinds: frozenset[EventKind] | None,
        buffer: int,
        check_open: Callable[[], None],
    ) -> None:
        self._subscribers = subscribers
        self._wall = wall
        self._check_open = check_open
        self.run_id = run_id
        """The run of the subscription, or None for all runs."""
        self._kinds = kinds
        self._size = check_buffer(buffer)
        self._buffer: deque[Event | Brief] = deque()
        self._second: Event | None = None
        """The second event of the item that was read last."""
        self._gap = 0
        """The number of events that were dropped after those in the buffer."""
        self._news: trio.Event | None = None
        self._open = self._over = False
        self.dropped = 0
        """The number of events that were dropped so far."""

    async def __aenter__(self) -> Self:
        self.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def open(self) -> None:
        """Receive events from now on."""
        if self._over:
            raise RuntimeError("this subscription has ended; call events() again for a new one")
        self._check_open()
        self._open = True
        self._subscribers.add(self)

    def close(self) -> None:
        """Receive no more events, and drop the events that were not read."""
        self._subscribers.remove(self)
        self.skip()
        self.end()

    def skip(self) -> None:
        """Drop the events that were not read."""
        self._buffer.clear()
        self._second = None
        self._gap = 0

    def end(self) -> None:
        """End the iteration after the events in the buffer."""
        self._over = True
        self._wake()

    def take(self, events: Sequence[Event | Brief]) -> None:
        """Put events into the buffer, as far as there is room."""
        if self._kinds is not None:
            events = [event for event in _apart(events) if event.kind in self._kinds]
            if not events:
                return
        room = self._size - len(self._buffer)
        if self._gap:
            # The event that marks the gap comes before the events after the gap.
            if room > 1:
                self._buffer.append(self._missed())
                room -= 1
            else:
                room = 0
        if len(events) > room:
            lost = sum(1 for _ in _apart(events[room:]))
            self._gap += lost
            self.dropped += lost
            events = events[:room]
        self._buffer.extend(events)
        if self._news is not None:
            self._wake()

    def _missed(self) -> Missed:
        missed, self._gap = self._gap, 0
        return Missed(EventKind.MISSED, self._wall(), self.run_id, None, None, missed)

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        # Every event is read here: in full only now, so that most of the work is in this task.
        event = self._second
        if event is not None:
            self._second = None
            return event
        if not self._buffer and await self._is_gap():
            return self._missed()
        item = self._buffer.popleft()
        if type(item) is not tuple:
            return cast(Event, item)
        event, self._second = in_full(item)
        return event

    @property
    def has_more(self) -> bool:
        """Return whether the next step of the iteration returns an event without waiting."""
        return bool(self._second is not None or self._buffer or self._gap)

    async def _is_gap(self) -> bool:
        """Wait for the next event. Return whether it marks a gap."""
        while not self._buffer:
            if self._gap:
                return True
            if self._over:
                raise StopAsyncIteration
            if not self._open:
                raise RuntimeError(
                    "the subscription is not open; use `async with runtime.events() as events:`"
                )
            if self._news is None:
                self._news = trio.Event()
            await self._news.wait()
        return False


def _apart(events: Iterable[Event | Brief]) -> Iterator[Event]:
    for item in events:
        if type(item) is tuple:
            event, second = in_full(item)
            yield event
            if second is not None:
                yield second
        else:
            yield cast(Event, item)
