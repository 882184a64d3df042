"""Iterators for threads: events, progress, outcomes of a group."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import suppress
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from keyrun.runtime.events.subscription import Events as TrioEvents
from keyrun.runtime.events.types import Event
from keyrun.runtime.faces.calls import Ended, next_events, next_of
from keyrun.runtime.faces.sync_bridge import SyncBridge
from keyrun.runtime.inspect.progress import Progress
from keyrun.storage import StoreClosed

T = TypeVar("T")


class Outcomes(Generic[T]):
    """Iterate over the items of an iterator of the Trio side."""

    _following: "Callable[[Any], Coroutine[Any, Any, Any]]" = staticmethod(next_of)

    def __init__(self, bridge: SyncBridge, inner: AsyncIterator[Any]) -> None:
        self._bridge = bridge
        self._inner = inner

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        found: T | Ended = self._bridge.call(self._following, self._inner)
        if isinstance(found, Ended):
            raise StopIteration
        return found


class Watch(Outcomes[Progress]):
    """Iterate over the progress of a run: `for progress in rt.watch("order-7"): ...`."""

    def close(self) -> None:
        """Stop the watch. You need not call this: a watch without references is closed."""


class _Batches(Outcomes[list[Event]]):
    _following = staticmethod(next_events)


class Events:
    """Iterate over events: `with rt.events() as events: for event in events: ...`."""

    def __init__(self, bridge: SyncBridge, inner: TrioEvents) -> None:
        self._bridge = bridge
        self._inner = inner
        self._batches = _Batches(bridge, inner)
        self._batch: list[Event] = []
        """Events that have arrived, the next one last."""
        self._was_entered = False

    @property
    def dropped(self) -> int:
        """The number of events that were dropped so far."""
        return self._inner.dropped

    def __enter__(self) -> Self:
        self._bridge.call(self._inner.__aenter__)
        self._was_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with suppress(StoreClosed):
            self._bridge.post(self._inner.close)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Event:
        if not self._was_entered:
            raise RuntimeError(
                "the subscription is not open; use `with runtime.events() as events:`"
            )
        if not self._batch:
            self._batch = next(self._batches)
            self._batch.reverse()
        return self._batch.pop()


class EntityProxy:
    """Stands for an entity under one key. Calling a method of the proxy calls the entity, and
    blocks until there is an answer."""

    def __init__(self, bridge: SyncBridge, inner: object) -> None:
        self._bound = bridge, inner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        bridge, inner = self._bound
        method = getattr(inner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            return bridge.call(method, *args, **kwargs)

        return call

    def __repr__(self) -> str:
        return repr(self._bound[1])
