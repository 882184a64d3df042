"""Following: the iterators of the Python client, over connections that may break.

A stream comes from one owner. If its connection breaks, the iterator begins it again at the next
owner. A step of an iteration that is cancelled loses nothing.
"""

from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from time import time
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

import trio

from keyrun.control.frames import BEGUN, END, ITEM, WINDOW
from keyrun.control.operation import Operation
from keyrun.control.requests import MemberEnd
from keyrun.control.table import CALLS
from keyrun.control.transport import Attempts, Calls, Disconnected, Transport
from keyrun.runtime.events.types import Event, EventKind, Missed
from keyrun.runtime.groups.records import MemberOutcome
from keyrun.runtime.inspect.progress import Progress
from keyrun.storage import StoreClosed

T = TypeVar("T")


class Stream:
    """The answers of an operation that streams."""

    def __init__(
        self, transport: Transport, operation: Operation, arguments: dict[str, Any]
    ) -> None:
        self._transport = transport
        self._operation = operation
        self._arguments = operation.arguments_on_wire(arguments)
        self._attempts = Attempts(transport)
        self._found: deque[tuple[int, Any]] = deque()
        self._news = trio.lowlevel.ParkingLot()
        self._connection: Calls | None = None
        self._call = 0
        self._taken = 0

    @property
    def has_begun(self) -> bool:
        """Return whether the stream has begun, and has not ended or broken."""
        return self._connection is not None

    @property
    def has_more(self) -> bool:
        """Return whether an item has arrived."""
        return bool(self._found) and self._found[0][0] == ITEM

    async def begin(self) -> None:
        """Begin the stream as soon as there is an owner. Raises `NoOwner`."""
        while True:
            connection = await self._attempts.next()
            try:
                self._call = connection.begin(
                    self._operation.name, None, self._arguments, self._take
                )
                self._connection = connection
                kind, value = await self._next()
                if kind != BEGUN:
                    raise self._transport.error(self._operation, kind, value)
                return
            except Disconnected:
                self.close()
            except BaseException:
                self.close()
                raise

    def _take(self, kind: int, value: Any) -> None:
        self._found.append((kind, value))
        self._news.unpark()

    async def _next(self) -> tuple[int, Any]:
        while not self._found:
            if self._connection is None:
                return END, None
            await self._news.park()
        return self._found.popleft()

    async def next(self) -> Any:
        """Return the next item. Raises `StopAsyncIteration` at the end, and `Disconnected` if the
        connection broke."""
        kind, value = await self._next()
        if kind == ITEM:
            self._taken += 1
            if self._taken >= WINDOW // 2 and self._connection is not None:
                self._connection.take(self._call, self._taken)
                self._taken = 0
            return self._transport.read(self._operation, value)
        self.close()
        if kind == END:
            raise StopAsyncIteration
        raise self._transport.error(self._operation, kind, value)

    def close(self) -> None:
        """End the stream. A task that waits for an item finds the end."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.end(self._call, cancel=True)
        self._found.clear()
        self._taken = 0
        self._news.unpark_all()

    def drop(self) -> None:
        """End the stream from any thread."""
        if self._connection is not None:
            with suppress(trio.RunFinishedError):
                self._transport.token.run_sync_soon(self.close)


class Following(Generic[T]):
    """Iterates over a stream, and begins it again if its connection breaks."""

    def __init__(self, transport: Transport, name: str, arguments: dict[str, Any]) -> None:
        self._stream = Stream(transport, CALLS[name], arguments)
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        while not self._over:
            try:
                if not self._stream.has_begun:
                    await self._stream.begin()
                found = self._taken(await self._stream.next())
            except Disconnected:
                continue
            except (StopAsyncIteration, Exception):
                self._over = True
                raise
            if found is not None:
                return found
        raise StopAsyncIteration

    def _taken(self, item: Any) -> T | None:
        """Return what the iteration yields for an item. None if it has yielded it before the
        connection broke."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the iteration. You need not call this: an iterator without references is closed."""
        self._over = True
        self._stream.close()

    def __del__(self) -> None:
        self._stream.drop()


class RemoteWatch(Following[Progress]):
    """Iterate over the progress of a run in another process, until the run ends."""

    def __init__(self, transport: Transport, run_id: str, interval: float) -> None:
        super().__init__(transport, "watch", {"run_id": run_id, "interval": interval})
        self._last: Progress | None = None

    def _taken(self, item: Progress) -> Progress | None:
        last, self._last = self._last, item
        return None if item == last else item


class RemoteOutcomes(Following[MemberOutcome[Any]]):
    """Iterate over the ends of the members of a group in another process. `decoded` returns the
    outcome with the result as its workflow declares it."""

    def __init__(
        self,
        transport: Transport,
        group_id: str,
        decoded: Callable[[MemberEnd], MemberOutcome[Any]],
    ) -> None:
        super().__init__(transport, "member_ends", {"group_id": group_id})
        self._decoded = decoded
        self._seen: set[str] = set()

    def _taken(self, item: MemberEnd) -> MemberOutcome[Any] | None:
        member_id = item.outcome.member_id
        if member_id in self._seen:
            return None
        self._seen.add(member_id)
        return self._decoded(item)


class RemoteEvents:
    """Iterate over the events of a runtime in another process. If the connection breaks, the
    iterator begins again and marks the gap with a `Missed` event whose number is None: it is not
    known how many events were missed."""

    def __init__(
        self,
        transport: Transport,
        *,
        run_id: str | None,
        kinds: Iterable[EventKind] | None,
        buffer: int,
        most_per_second: int | None = None,
    ) -> None:
        self.run_id = run_id
        """The run of the subscription, or None for all runs."""
        self.dropped = 0
        """The number of events that were dropped so far, as far as it is known."""
        arguments = {
            "run_id": run_id,
            "kinds": None if kinds is None else sorted(kinds),
            "buffer": buffer,
            "most_per_second": most_per_second,
        }
        self._stream = Stream(transport, CALLS["events"], arguments)
        self._open = self._over = False

    async def __aenter__(self) -> Self:
        if self._over:
            raise RuntimeError("this subscription has ended; call events() again for a new one")
        await self._stream.begin()
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Receive no more events, and drop the events that were not read."""
        self._over = True
        self._stream.close()

    @property
    def has_more(self) -> bool:
        """Return whether the next step of the iteration returns an event without waiting."""
        return self._stream.has_more

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._open:
            raise RuntimeError(
                "the subscription is not open; use `async with runtime.events() as events:`"
            )
        try:
            if not self._over and not self._stream.has_begun:
                return await self._begin_again()
            event: Event = await self._stream.next()
        except Disconnected:
            return await self._begin_again()
        if isinstance(event, Missed):
            self.dropped += event.missed or 0
        return event

    async def _begin_again(self) -> Event:
        try:
            await self._stream.begin()
        except StoreClosed:
            self._over = True
            raise StopAsyncIteration from None
        return self.lost()

    def lost(self) -> Missed:
        """Return the event that marks a gap of unknown length."""
        return Missed(EventKind.MISSED, time(), self.run_id, None, None, None)
