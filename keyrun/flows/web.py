"""HTTP exchanges: send one request, and decide whether the response is a failure.

A failed connection and the statuses 5xx, 408, 425 and 429 are transient: another attempt may
succeed, after the time in `Retry-After` if there is one. All other statuses that the node does not
accept are permanent.
"""

import re
from collections.abc import Collection
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.errors import OutputTooLarge
from keyrun.extras import need
from keyrun.flows import jsons
from keyrun.flows.errors import NodeFailed, NodeUnavailable

if TYPE_CHECKING:
    import httpx

TRANSIENT = frozenset({408, 425, 429})
LONGEST_WAIT = 86_400.0
"""The longest `Retry-After`, in seconds."""
_SAID = 300
_CREDENTIALS = re.compile(r"//[^/]*@")

_client: "trio.lowlevel.RunVar[httpx.AsyncClient]" = trio.lowlevel.RunVar("keyrun.flows.client")


@attrs.frozen(kw_only=True)
class Exchange:
    """A request. `accept` are the statuses outside of 2xx that are not failures."""

    method: str
    url: str
    headers: dict[str, str]
    params: dict[str, Any] | None = None
    content: bytes | None = None
    accept: Collection[int] = ()
    follow_redirects: bool = False
    max_output: int

    async def perform(self) -> dict[str, Any]:
        """Send the request and return `{status, headers, body}`. A JSON body is parsed, text is
        text, and everything else is bytes."""
        httpx = need("httpx", for_="an http node")
        try:
            return await self._exchange(httpx)
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError) as error:
            raise NodeFailed(f"{self}: {error or type(error).__name__}") from error
        except httpx.TooManyRedirects as error:
            raise NodeFailed(f"{self}: {error}") from error
        except httpx.HTTPError as error:
            said = str(error) or type(error).__name__
            raise NodeUnavailable(f"{self}: {said}") from error

    async def _exchange(self, httpx: Any) -> dict[str, Any]:
        client = _shared_client()
        url = httpx.URL(self.url)
        if self.params:
            url = url.copy_merge_params(self.params)
        request = client.build_request(self.method, url, headers=self.headers, content=self.content)
        answer = await client.send(request, stream=True, follow_redirects=self.follow_redirects)
        try:
            body = await self._read(answer)
        finally:
            with trio.CancelScope(shield=True):
                await answer.aclose()
        self._judge(answer, body)
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return {"status": answer.status_code, "headers": headers, "body": _parsed(answer, body)}

    async def _read(self, answer: "httpx.Response") -> bytes:
        stated = answer.headers.get("content-length", "")
        if stated.isdecimal() and int(stated) > self.max_output:
            raise self._too_large(f"{int(stated):,} bytes")
        body = bytearray()
        try:
            async for chunk in answer.aiter_bytes():
                if len(body) <= self.max_output:
                    body += chunk
                elif not answer.is_closed:
                    # Leaving the loop would leave the generators of httpx open. This ends them.
                    await answer.aclose()
        except need("httpx", for_="an http node").ReadError:
            if len(body) <= self.max_output:
                raise
        if len(body) > self.max_output:
            raise self._too_large(f"more than {self.max_output:,} bytes")
        return bytes(body)

    def _too_large(self, size: str) -> OutputTooLarge:
        return OutputTooLarge(
            f"{self}: the response has {size}, and the limit of this node is {self.max_output:,}; "
            "set max_output to change it"
        )

    def _judge(self, answer: "httpx.Response", body: bytes) -> None:
        status = answer.status_code
        if 200 <= status < 300 or status in self.accept:
            return
        said = " ".join(body[:_SAID].decode(errors="replace").split())
        what = f"{self} answered {status} {answer.reason_phrase}".rstrip()
        what += f": {said}" if said else ""
        if status >= 500 or status in TRANSIENT:
            raise NodeUnavailable(what, retry_after=_retry_after(answer))
        if 300 <= status < 400:
            what += "; set follow_redirects to follow it"
        raise NodeFailed(what)

    def __str__(self) -> str:
        # The query and the credentials may be secret.
        address = _CREDENTIALS.sub("//", self.url.partition("?")[0])
        return f"{self.method} {address}"


def _shared_client() -> "httpx.AsyncClient":
    """Return the client of this Trio run, so that requests share connections."""
    try:
        return _client.get()
    except LookupError:
        pass
    httpx = need("httpx", for_="an http node")
    # No cookies: runs must not share them.
    jar = CookieJar(DefaultCookiePolicy(allowed_domains=()))
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=100, keepalive_expiry=5)
    client = httpx.AsyncClient(timeout=None, cookies=jar, limits=limits)
    _client.set(client)
    trio.lowlevel.spawn_system_task(_close_at_the_end, client)
    return _client.get()


async def _close_at_the_end(client: "httpx.AsyncClient") -> None:
    try:
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            await client.aclose()


def _parsed(answer: "httpx.Response", body: bytes) -> Any:
    kind = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        try:
            return jsons.loads(body) if body else None
        except ValueError as error:
            raise NodeUnavailable(
                f"the response is not JSON, but its type says so: {error}"
            ) from None
    if not kind or kind.startswith("text/") or kind.endswith(("xml", "javascript", "urlencoded")):
        return body.decode(answer.encoding or "utf-8", errors="replace")
    return body


def _retry_after(answer: "httpx.Response") -> float | None:
    stated = answer.headers.get("retry-after", "").strip()
    if stated.isdecimal():
        return min(float(stated), LONGEST_WAIT)
    try:
        at = parsedate_to_datetime(stated)
    except ValueError:
        return None
    wait = (at.replace(tzinfo=at.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
    return min(max(0.0, wait), LONGEST_WAIT)
