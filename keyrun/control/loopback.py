"""Loopback: a channel to the runtime of this process.

A process that shares a store uses it while it owns the store itself, for calls that another owner
did not answer and for streams: they have the same form wherever the owner is.
"""

from collections.abc import Mapping
from typing import Any

from keyrun.control.channel import Channel
from keyrun.control.performer import Performer
from keyrun.control.roles import ITSELF
from keyrun.control.transport import Calls


class Loopback(Calls):
    """A connection to the owner in this process."""

    def __init__(self, owner: Performer) -> None:
        super().__init__()
        self._channel = Channel(owner, ITSELF, self._send)

    async def run(self) -> None:
        try:
            await self._channel.serve(self._receive)
        finally:
            self._break()

    async def _receive(self) -> Mapping[str, Any]:
        return {"type": "http.request", "body": await self._taken(), "more_body": True}

    async def _send(self, message: Mapping[str, Any]) -> None:
        self._feed(message.get("body", b""))
