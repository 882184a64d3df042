"""Clients of a runtime, over a channel in memory or over its socket."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

import trio

from keyrun import Runtime, Workflow
from keyrun.control.background import beside
from keyrun.control.loopback import Loopback
from keyrun.control.owner import Owner
from keyrun.control.remote import RemoteRuntime
from keyrun.control.target import Target
from keyrun.control.transport import Transport


@asynccontextmanager
async def linked(
    rt: Runtime, *, workflows: Iterable[Workflow[Any, Any]] = (), call_timeout: float = 60.0
) -> AsyncIterator[RemoteRuntime]:
    """Open a client of a runtime in this process, over a channel in memory."""
    transport = Transport(Target(), call_timeout=call_timeout)
    async with beside(lambda: transport.use(Loopback(Owner(rt)))):
        client = RemoteRuntime(transport, workflows)
        # Not by sleeping: virtual time stands still.
        while (connection := transport.connection) is None or connection.statistics is None:
            await trio.lowlevel.checkpoint()
        try:
            yield client
        finally:
            transport.close()


async def connected(client: Any) -> None:
    """Wait until a client has a connection and has heard from its owner."""
    with trio.fail_after(30):
        while (found := client._transport.connection) is None or found.statistics is None:
            await trio.sleep(0.01)
