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

from keyrun.runtime.events.types import Brief, Event, EventKind, Missed, in_full

if TYPE_CHECKING:
    from keyrun.runtime.events.feed import Subscribers


def check_kinds(kinds: Iterable[str] | None) -> frozenset[EventKind] | None:
    """`kinds` if they are kinds of events."""
    if kinds is None:
        return None
    if isinstance(kinds, str):
        kinds = (kinds,)
    try:
        return frozenset(map(EventKind, kinds))
    except ValueError as error:
        raise ValueError(f"{error}; the kinds are {', '.join(EventKind)}") from None


class Events:
    """An async iterator of events, inside its block; `Runtime.events` makes it.

    Iterating gives way to other tasks only when there is nothing to give, so at most a buffer's
    worth of events is handled in one go.
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
        if isinstance(buffer, bool) or not isinstance(buffer, int) or buffer < 1:
            raise ValueError(f"buffer must be a whole number of at least 1, got {buffer!r}")
        self._subscribers = subscribers
        self._wall = wall
        self._check_open = check_open
        self.run_id = run_id
        self._kinds = kinds
        self._size = buffer
        self._buffer: deque[Event | Brief] = deque()
        self._second: Event | None = None
        """The other half of what was read last."""
        self._gap = 0
        """Events that were dropped behind what is in the buffer."""
        self._news: trio.Event | None = None
        self._open = self._over = False
        self.dropped = 0
        """How many events were dropped so far."""

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
        """Listen from now on."""
        if self._over:
            raise RuntimeError("this subscription has ended; call events() again for another")
        self._check_open()
        self._open = True
        self._subscribers.add(self)

    def close(self) -> None:
        """Listen no longer, and forget what was not read."""
        self._subscribers.remove(self)
        self.skip()
        self.end()

    def skip(self) -> None:
        """Forget what was not read."""
        self._buffer.clear()
        self._second = None
        self._gap = 0

    def end(self) -> None:
        """Nothing will come any more."""
        self._over = True
        self._wake()

    def take(self, events: Sequence[Event | Brief]) -> None:
        """These happened, in this order."""
        if self._kinds is not None:
            events = [event for event in _apart(events) if event.kind in self._kinds]
            if not events:
                return
        room = self._size - len(self._buffer)
        if self._gap:
            # What comes after a gap stands behind the word of it.
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
        # On the way of every event that is read, so what is meant is put together in place.
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

    async def _is_gap(self) -> bool:
        """Wait for what comes next: whether it is the word of a gap."""
        while not self._buffer:
            if self._gap:
                return True
            if self._over:
                raise StopAsyncIteration
            if not self._open:
                raise RuntimeError("enter it first: async with runtime.events() as events: ...")
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
