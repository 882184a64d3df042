"""A performer: what the HTTP API, the channels and the batches call to perform operations.

`Owner` performs them with a runtime on Trio, and `AsyncioOwner` with one on asyncio.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any, Protocol

from keyrun.control.event_ring import Follower
from keyrun.control.operation import Operation
from keyrun.control.requests import Session
from keyrun.control.roles import Caller
from keyrun.runtime.inspect.measure import MetricFamily
from keyrun.runtime.redaction import Redaction


class Performer(Protocol):
    """Performs operations on the runtime that owns a store."""

    namespace: str
    """The namespace of the runtime."""
    redaction: Redaction
    """What log lines and answers show."""

    async def perform(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        caller: Caller,
        operation_id: str | None = None,
    ) -> Any:
        """Perform an operation, and return its answer."""

    async def stream(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller
    ) -> AsyncGenerator[Any, None]:
        """Begin an operation that streams, and return its answers. Close them at the end."""

    async def follow(
        self, arguments: Mapping[str, Any], caller: Caller, last_id: str | None
    ) -> Follower:
        """Return a reader of the events of all runs."""

    async def session(self, caller: Caller) -> Session:
        """Return what a caller may do here."""

    def measure(self) -> list[MetricFamily]:
        """Return everything that monitoring reads."""

    def trouble(self) -> str | None:
        """Return one word that says why operations cannot be performed now, or None."""
