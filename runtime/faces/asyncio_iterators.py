"""Iterators for code on an asyncio loop: events, progress, outcomes of a group."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from keyrun.runtime.events.subscription import Events as TrioEvents
from keyrun.runtime.events.types import Event
from keyrun.runtime.faces.asyncio_bridge import AsyncioBridge, retrieve
from keyrun.runtime.faces.calls import Ended, next_events, next_of
from keyrun.runtime.inspect.progress import Progress
from keyrun.storage import StoreClosed

T = TypeVar("T")
X = TypeVar("X")


class Outcomes(Generic[T]):
    """Iterate over the items of an iterator of the Trio side. If a step of the iteration is
    cancelled, nothing is lost: the next step returns the item."""

    _following: "Callable[[Any], Coroutine[Any, Any, Any]]" = staticmethod(next_of)

    def __init__(self, bridge: AsyncioBridge, inner: AsyncIterator[Any]) -> None:
        self._bridge = bridge
        self._inner = inner
        self._next: asyncio.Future[T | Ended] | None = None
        self._cancel: Callable[[], None] | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> T:
        if self._next is None:
            self._next, self._cancel = self._bridge.begin(self._following, self._inner)
            self._next.add_done_callback(retrieve)  # the iteration may end with a cancelled step
        waiting = self._next
        try:
            found = await asyncio.shield(waiting)
        finally:
            if waiting.done():
                self._next = self._cancel = None
        if isinstance(found, Ended):
            raise StopAsyncIteration
        return found

    def stop(self) -> None:
        """Cancel a step of the iteration that is under way on the Trio side."""
        if self._cancel is not None:
            with suppress(StoreClosed):
                self._cancel()
            self._next = self._cancel = None


class Watch(Outcomes[Progress]):
    """Iterate over the progress of a run: `async for progress in rt.watch("order-7"): ...`."""

    def close(self) -> None:
        """Stop the watch. You need not call this: a watch without references is closed."""
        self.stop()


class _Batches(Outcomes[list[Event]]):
    _following = staticmethod(next_events)


class Events:
    """Iterate over events: `async with rt.events() as events: async for event in events: ...`."""

    def __init__(self, bridge: AsyncioBridge, inner: TrioEvents) -> None:
        self._bridge = bridge
        self._inner = inner
        self._batches = _Batches(bridge, inner)
        self._batch: list[Event] = []
        """Events that have arrived, the next one last."""

    @property
    def dropped(self) -> int:
        """The number of events that were dropped so far."""
        return self._inner.dropped

    async def __aenter__(self) -> Self:
        await self._bridge.call(self._inner.__aenter__)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._batches.stop()
        with suppress(StoreClosed):
            self._bridge.post(self._inner.close)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        if not self._batch:
            self._batch = await anext(self._batches)
            self._batch.reverse()
        return self._batch.pop()


class EntityProxy:
    """Stands for an entity under one key. Calling a method of the proxy calls the entity."""

    def __init__(self, bridge: AsyncioBridge, inner: object) -> None:
        self._bound = bridge, inner

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        bridge, inner = self._bound
        method = getattr(inner, name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await bridge.call(method, *args, **kwargs)

        return call

    def __repr__(self) -> str:
        return repr(self._bound[1])
