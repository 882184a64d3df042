"""The owner for code on an asyncio loop: performs operations on the Trio side of the runtime."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

from keyrun.control.event_ring import RingFollower
from keyrun.control.operation import Operation
from keyrun.control.owner import Owner
from keyrun.control.requests import Session
from keyrun.control.roles import Caller
from keyrun.runtime.faces.asyncio_bridge import AsyncioBridge
from keyrun.runtime.faces.asyncio_iterators import Outcomes
from keyrun.runtime.inspect.measure import MetricFamily
from keyrun.storage import StoreClosed


class AsyncioOwner:
    """Performs operations on a runtime of `keyrun.asyncio`. It is called on the loop of that
    runtime."""

    def __init__(self, bridge: AsyncioBridge) -> None:
        self._bridge = bridge
        self._owner = Owner(bridge.runtime)
        self.namespace = self._owner.namespace
        self.redaction = self._owner.redaction

    async def perform(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        caller: Caller,
        operation_id: str | None = None,
    ) -> Any:
        """Perform an operation, and return its answer; see `Owner.perform`."""
        return await self._bridge.call(
            self._owner.perform, operation, arguments, caller, operation_id
        )

    async def stream(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller
    ) -> AsyncGenerator[Any, None]:
        """Begin an operation that streams, and return its answers; see `Owner.stream`."""
        inner = await self._bridge.call(self._owner.stream, operation, arguments, caller)
        return self._items(inner)

    async def _items(self, inner: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        items = Outcomes[Any](self._bridge, inner)
        try:
            async for item in items:
                yield item
        finally:
            items.stop()

    async def follow(
        self, arguments: Mapping[str, Any], caller: Caller, last_id: str | None = None
    ) -> "AsyncioFollower":
        """Return a reader of the events of all runs; see `Owner.follow`."""
        follower = await self._bridge.call(self._owner.follow, arguments, caller, last_id)
        return AsyncioFollower(self._bridge, follower)

    async def session(self, caller: Caller) -> Session:
        """Return what a caller may do here."""
        return await self._owner.session(caller)

    def measure(self) -> list[MetricFamily]:
        """Return everything that monitoring reads."""
        return self._bridge.now(self._owner.measure)

    def trouble(self) -> str | None:
        """Return one word that says why the runtime accepts no work now, or None."""
        return self._owner.trouble()


class AsyncioFollower:
    """Reads events as the text of a stream, on an asyncio loop."""

    def __init__(self, bridge: AsyncioBridge, inner: RingFollower) -> None:
        self._bridge = bridge
        self._inner = inner

    async def next(self, seconds: float) -> bytes | None:
        """Return the next events; see `RingFollower.next`."""
        try:
            return await self._bridge.call(self._inner.next, seconds)
        except StoreClosed:
            return None

    def close(self) -> None:
        """Read no more events."""
        with suppress(StoreClosed):
            self._bridge.post(self._inner.close)
