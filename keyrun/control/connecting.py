"""Connecting: open a client of a runtime in another process."""

import os
import ssl
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from keyrun.actors import checks
from keyrun.control.background import beside
from keyrun.control.remote import RemoteRuntime
from keyrun.control.target import Target
from keyrun.control.transport import Transport
from keyrun.extras import need
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.runtime import Runtime
from keyrun.storage.opening import is_url


@asynccontextmanager
async def connect(
    address: "str | os.PathLike[str]",
    *,
    token: str | None = None,
    workflows: Iterable[Workflow[Any, Any]] = (),
    call_timeout: float = 60.0,
    context: ssl.SSLContext | None = None,
    namespace: str | None = None,
) -> AsyncIterator[Runtime]:
    """Connect to the runtime of another process, and return a client that has the methods of
    `Runtime`: `async with connect("state/") as client: ...`.

    The owner of the store must run with `control=True`. If it ends, the client connects to the next
    owner, and repeats the calls that were not answered. Each write is applied once.

    - `address`: the directory of a store, `unix:PATH` for a socket, an address such as
      `http://host:8470` or `https://host/prefix`, or the URL of a PostgreSQL database.
    - `token`: the token for an address over HTTP.
    - `workflows`: workflows whose results have declared classes. Workflows that you pass to
      `submit` need not be in the list.
    - `call_timeout`: seconds that a call waits for a process that owns the store, before it raises
      `NoOwner`. A call that the owner has received has no timeout.
    - `context`: the TLS settings for an address with `https`, for example with the certificate of
      your own authority. Default: `ssl.create_default_context()`.
    - `namespace`: the namespace in the store. At another address than the URL of a database, a
      runtime with another namespace rejects the client. Default for a URL: `default`.
    """
    checks.several("workflows", workflows)
    checks.positive("call_timeout", call_timeout)
    if token is not None and (not isinstance(token, str) or not _is_word(token)):
        raise ValueError("token must be a string of printable ASCII characters without spaces")
    if context is not None:
        checks.instance("context", context, ssl.SSLContext)
    transport: Transport
    if is_url(address):
        if token is not None:
            raise ValueError("the URL of a database takes no token: the database has the secret")
        transport = _to_database(address, namespace or "default", call_timeout, context)
    else:
        transport = Transport(
            Target.of(address),
            token=token,
            call_timeout=call_timeout,
            context=context,
            namespace=namespace,
        )
    async with beside(transport.run):
        yield RemoteRuntime(transport, workflows)


def _to_database(
    url: Any, namespace: str, call_timeout: float, context: ssl.SSLContext | None
) -> Transport:
    need("psycopg", for_="the URL of a database", extra="postgres")
    from keyrun.control.postgres_place import LeaseTransport, PostgresStore

    store = PostgresStore(url, namespace=namespace)
    return LeaseTransport(store, call_timeout=call_timeout, context=context)


def _is_word(text: str) -> bool:
    return bool(text) and text.isascii() and text.isprintable() and " " not in text
