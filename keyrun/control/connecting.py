"""Connecting: open a client of a runtime in another process."""

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from keyrun.actors import checks
from keyrun.control.background import beside
from keyrun.control.remote import RemoteRuntime
from keyrun.control.target import Target
from keyrun.control.transport import Transport
from keyrun.runtime.definitions.workflow import Workflow


@asynccontextmanager
async def connect(
    address: "str | os.PathLike[str]",
    *,
    token: str | None = None,
    workflows: Iterable[Workflow[Any, Any]] = (),
    call_timeout: float = 60.0,
) -> AsyncIterator[RemoteRuntime]:
    """Connect to the runtime of another process:
    `async with keyrun.connect("state/") as client: ...`. The client has the methods of `Runtime`.

    - `address`: the directory of a store, `unix:PATH` for a socket, or an address such as
      `http://host:8470`.
    - `token`: the token for an address over HTTP.
    - `workflows`: workflows whose results have declared classes. Workflows that you pass to
      `submit` need not be in the list.
    - `call_timeout`: seconds that a call waits for a process that owns the store, before it raises
      `NoOwner`. A call that the owner has received has no timeout.
    """
    checks.several("workflows", workflows)
    checks.positive("call_timeout", call_timeout)
    if token is not None and (not isinstance(token, str) or not token):
        raise ValueError("token must be a non-empty string")
    transport = Transport(Target.of(address), token=token, call_timeout=call_timeout)
    async with beside(transport.run):
        yield RemoteRuntime(transport, workflows)
