"""Forwarding: perform operations in the process that owns a store, as a client of it."""

import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import trio

from keyrun.control.event_ring import MOST_AT_ONCE, RETRY, event_text
from keyrun.control.following import RemoteEvents, Stream
from keyrun.control.operation import Operation
from keyrun.control.requests import Session
from keyrun.control.roles import Caller, NotAllowed, require
from keyrun.control.table import CALLS
from keyrun.control.transport import Disconnected, Transport
from keyrun.runtime.errors import NoOwner


class Forwarder:
    """Performs operations in the process that owns a store. That process decides what this one may
    do, and the name of this process is in its audit log."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def perform(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        caller: Caller,
        operation_id: str | None = None,
    ) -> Any:
        """Perform an operation, and return its answer."""
        require(caller, operation.role, operation.name)
        operation.require(arguments)
        with _refused():
            return await self._transport.call(operation, dict(arguments), operation_id)

    async def session(self) -> Session:
        """Return what this process may do there."""
        with _refused():
            found: Session = await self._transport.call(CALLS["about"], {})
            return found

    async def stream(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller
    ) -> AsyncGenerator[Any, None]:
        """Begin an operation that streams, and return its answers. Close them at the end."""
        require(caller, operation.role, operation.name)
        operation.require(arguments)
        stream = Stream(self._transport, operation, dict(arguments))
        with _refused():
            await stream.begin()
        return self._items(stream)

    async def _items(self, stream: Stream) -> AsyncGenerator[Any, None]:
        try:
            while True:
                try:
                    item = await stream.next()
                except StopAsyncIteration:
                    return
                except Disconnected as error:
                    raise self._transport.no_owner(str(error)) from error
                yield item
        finally:
            stream.close()

    async def follow(self, arguments: Mapping[str, Any], last_id: str | None) -> "ForwardedEvents":
        """Return a reader of the events of all runs."""
        given: dict[str, Any] = {"run_id": None, "kinds": None, "buffer": 1024, **arguments}
        events = RemoteEvents(self._transport, **given)
        with _refused():
            await events.__aenter__()
        return ForwardedEvents(events, last_id)


@contextmanager
def _refused() -> Iterator[None]:
    """Let a refusal of the other process be a refusal of this one."""
    try:
        yield
    except PermissionError as error:
        raise NotAllowed(str(error)) from error


class ForwardedEvents:
    """Reads the events of another process as the text of a stream. Their ids are those of this
    reader, so a page that connects again has missed an unknown number of them."""

    def __init__(self, events: RemoteEvents, last_id: str | None) -> None:
        self._events = events
        self._epoch = secrets.token_hex(4)
        self._number = 0
        self._said = RETRY.encode()
        if last_id is None:
            self._said += f"id: {self._epoch}-0\n\n".encode()
        else:
            self._said += b"\n" + self._text(events.lost())

    def _text(self, event: Any) -> bytes:
        self._number += 1
        return event_text(f"{self._epoch}-{self._number}", event)

    async def next(self, seconds: float) -> bytes | None:
        """Return the next events; see `Follower`."""
        said, self._said = self._said, b""
        if said:
            return said
        texts: list[bytes] = []
        with trio.move_on_after(seconds):
            try:
                texts.append(self._text(await anext(self._events)))
                while self._events.has_more and len(texts) < MOST_AT_ONCE:
                    texts.append(self._text(await anext(self._events)))
            except (StopAsyncIteration, NoOwner):
                return b"".join(texts) or None
        return b"".join(texts)

    def close(self) -> None:
        """Read no more events."""
        self._events.close()
