"""The HTTP API of a runtime as an ASGI application, to serve or to mount in another application.

@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with keyrun.asyncio.open_runtime("state", workflows=[checkout]) as rt:
        app.mount("/keyrun", keyrun.web.app(rt, authorize=user_of, allowed_hosts=["shop.org"]))
        yield
"""

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from keyrun.control.options import Control
from keyrun.extras import need
from keyrun.runtime.faces.asyncio_face import Runtime as AsyncioRuntime
from keyrun.runtime.runtime import Runtime

if TYPE_CHECKING:
    from keyrun.control.guard import Authorize, Guard
    from keyrun.control.http import HttpApi
    from keyrun.control.performer import Performer

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")

__all__ = ["Control", "app"]


def app(
    rt: Runtime | AsyncioRuntime,
    *,
    authorize: "Authorize | None" = None,
    tokens: str | os.PathLike[str] | None = None,
    allowed_hosts: Iterable[str] = LOCAL_HOSTS,
    max_body: int = 32 * 1024 * 1024,
) -> "HttpApi":
    """Return the HTTP API of an open runtime as an ASGI application.

    - `rt`: a runtime of `keyrun` or of `keyrun.asyncio`. The server must run on the event loop of
      the runtime.
    - `authorize`: a function or an async function. It takes the `starlette.requests.Request`, and
      returns the user and one of the roles `read`, `submit`, `operate` and `admin`, or None to
      refuse the request. The user is in the audit log.
    - `tokens`: the path of a token file. Requests with one of its tokens are admitted without
      `authorize`.
    - `allowed_hosts`: the values of the Host header that browsers may use, such as `shop.org` or
      `localhost:8000`. `*` allows all, which is safe only behind a proxy that checks the host.
    - `max_body`: the number of bytes that the body of a request may have.

    Pass `authorize`, `tokens` or both."""
    for library in ("anyio", "starlette"):
        need(library, for_="keyrun.web", extra="control")
    from keyrun.control.guard import ApplicationGuard, TokenGuard
    from keyrun.control.http import HttpApi
    from keyrun.control.tokens import TokenFile

    if authorize is None and tokens is None:
        raise TypeError("app requires authorize or tokens, so that not everybody is admitted")
    file = None if tokens is None else TokenFile(tokens)
    guard: Guard
    if authorize is not None:
        guard = ApplicationGuard(authorize, file, allowed_hosts)
    else:
        guard = TokenGuard(file, allowed_hosts)
    return HttpApi(_performer(rt), guard, max_body=max_body)


def _performer(rt: object) -> "Performer":
    from keyrun.control.remote import RemoteRuntime

    if isinstance(rt._bridge.runtime if isinstance(rt, AsyncioRuntime) else rt, RemoteRuntime):
        raise TypeError(
            "app requires a runtime that has its store alone, and this one shares a store or is a "
            "client: pass control=Control(http=...) to open_runtime, which serves the HTTP API "
            "from the process that owns the store"
        )
    if isinstance(rt, AsyncioRuntime):
        from keyrun.control.hosted import AsyncioOwner

        return AsyncioOwner(rt._bridge)
    if isinstance(rt, Runtime):
        from keyrun.control.owner import Owner

        return Owner(rt)
    raise TypeError(
        "app requires a runtime of keyrun.open_runtime or keyrun.asyncio.open_runtime, got "
        f"{rt!r}; a program with threads can run `keyrun serve` instead"
    )
