"""The web as nodes see it: one request, and a judgement of what came back.

A connection that fails, a 5xx, 408, 425 and 429 are transient: another attempt may succeed, after
`Retry-After` where the server says so. Every other status that was not asked for is permanent.
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
from keyrun.flows import jsons
from keyrun.flows.errors import NodeFailed, NodeUnavailable
from keyrun.flows.extras import need

if TYPE_CHECKING:
    import httpx

TRANSIENT = frozenset({408, 425, 429})
LONGEST_WAIT = 86_400.0
"""Seconds for which a server can make the next attempt wait."""
_SAID = 300
_CREDENTIALS = re.compile(r"//[^/]*@")

_client: "trio.lowlevel.RunVar[httpx.AsyncClient]" = trio.lowlevel.RunVar("keyrun.flows.client")


@attrs.frozen(kw_only=True)
class Exchange:
    """A request, and what of its answers is one. `accept` are statuses beyond 2xx."""

    method: str
    url: str
    headers: dict[str, str]
    params: dict[str, Any] | None = None
    content: bytes | None = None
    accept: Collection[int] = ()
    follow_redirects: bool = False
    max_output: int

    async def perform(self) -> dict[str, Any]:
        """Send it: `{status, headers, body}`, where a JSON body is parsed, text is text, and the
        rest is bytes."""
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
                    # To leave here would leave the generators of httpx behind; cut off, they end.
                    await answer.aclose()
        except need("httpx", for_="an http node").ReadError:
            if len(body) <= self.max_output:
                raise
        if len(body) > self.max_output:
            raise self._too_large("more bytes than that")
        return bytes(body)

    def _too_large(self, size: str) -> OutputTooLarge:
        return OutputTooLarge(
            f"{self}: the answer has {size}, and the output of a node may have {self.max_output:,}"
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
            what += "; follow_redirects has it followed"
        raise NodeFailed(what)

    def __str__(self) -> str:
        # What is behind the path, or before the host, may be a secret.
        address = _CREDENTIALS.sub("//", self.url.partition("?")[0])
        return f"{self.method} {address}"


def _shared_client() -> "httpx.AsyncClient":
    """One client for all requests of a Trio run, so that connections are used again."""
    try:
        return _client.get()
    except LookupError:
        pass
    httpx = need("httpx", for_="an http node")
    # No cookies: what one run is told is nothing to another.
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
            raise NodeUnavailable(f"the answer says that it is JSON, and is not: {error}") from None
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
