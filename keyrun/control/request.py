"""A request: what the API reads from the scope of a server."""

from collections.abc import Awaitable, Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from keyrun.control.problems import Refused
from keyrun.runtime.host.tracing import FIELDS, trace_fields

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

_SINGLE = frozenset(
    b"host authorization origin sec-fetch-site content-length content-type last-event-id"
    b" idempotency-key keyrun-operation-id".split()
)
"""Headers that a request may have once, because each part of a server may take another one."""


class Request:
    """One request."""

    __slots__ = ("headers", "method", "receive", "scope")

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope = scope
        self.receive = receive
        self.method: str = scope["method"]
        headers: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name not in headers:
                headers[name] = value
            elif name in _SINGLE:
                raise Refused(400, "RepeatedHeader", f"the header {name.decode()} occurs twice")
            else:
                headers[name] += (b"; " if name == b"cookie" else b", ") + value
        if b"content-length" in headers and b"transfer-encoding" in headers:
            # A proxy may end the body elsewhere, and take the rest for another request.
            raise Refused(
                400,
                "TwoLengths",
                "a request has Content-Length or Transfer-Encoding, not both",
                headers=[(b"connection", b"close")],
            )
        self.headers = headers

    def text(self, name: bytes) -> str | None:
        """Return a header as text. None if the request does not have it."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1").strip()

    @property
    def trace(self) -> dict[str, str] | None:
        """Return the headers that name the span of the caller, or None."""
        return trace_fields({name: self.text(name.encode()) for name in FIELDS})

    def cookie(self, name: str) -> str | None:
        """Return a cookie. None if the request does not have it."""
        given = self.text(b"cookie")
        if given is None:
            return None
        for each in given.split(";"):
            key, _, value = each.strip().partition("=")
            if key == name:
                try:
                    return SimpleCookie(f"x={value}")["x"].value
                except (CookieError, KeyError):
                    return None
        return None

    @property
    def content_type(self) -> str:
        """Return the media type of the body, without parameters."""
        return (self.text(b"content-type") or "").partition(";")[0].strip().lower()

    @property
    def bearer(self) -> bytes | None:
        """Return the token of the request."""
        given = self.headers.get(b"authorization")
        if given is None or given[:7].lower() != b"bearer ":
            return None
        return given[7:].strip()

    @property
    def peer(self) -> str | None:
        """Return the name of the peer, if the request came through a unix socket."""
        peer: str | None = (self.scope.get("state") or {}).get("keyrun_peer")
        return peer
