"""The guard: decides who calls, before anything else of a request is looked at.

| caller | credential | checks |
|---|---|---|
| peer of the unix socket | the mode of the socket's file | none: the role is admin |
| program on TCP | `Authorization: Bearer` with a token of the token file | any Host |
| web page | the cookie that it got for a token | Host, and the origin of writes |
| user of an application | the answer of `authorize` | Host, and the origin of writes |

A page of another site can make a browser send requests with cookies. The checks of Host and of the
origin keep these requests out: a name that an attacker has pointed at this machine is not in the
list of hosts, and a browser says where a request comes from.
"""

import re
from collections.abc import Awaitable, Callable, Iterable
from inspect import isawaitable
from typing import Any, Protocol
from urllib.parse import quote

from keyrun.control.problems import Refused
from keyrun.control.request import Request
from keyrun.control.roles import Caller, Role
from keyrun.control.tokens import SESSION_SECONDS, Tokens

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The hosts that a guard allows if it gets no others."""
COOKIE = "keyrun_session"
"""The name of the cookie, without the port of the server."""

JSON_TYPES = frozenset({"application/json", "application/x-ndjson"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})

SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]
"""The headers of every answer."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9_.-]+)(?::(\d{1,5}))?")

Authorize = Callable[[Any], "tuple[str, str] | Awaitable[tuple[str, str] | None] | None"]
"""What an application passes: takes a `starlette.requests.Request`, and returns the user and the
role, or None."""


class Guard(Protocol):
    """Decides who calls."""

    every: float
    """Seconds after which a request that lasts is admitted again, or ended."""

    async def admit(self, request: Request) -> Caller:
        """Return who calls, or raise `Refused`."""

    def check_host(self, request: Request) -> None:
        """Raise `Refused` unless the request names an allowed host. What anybody may read, such as
        the files of the page, needs no other check."""


def is_host(text: str) -> bool:
    """Return whether a text is a host, with or without a port."""
    return _HOST.fullmatch(text) is not None


class Hosts:
    """The hosts that requests of browsers may name: `example.org` with any port, or
    `example.org:8000`. `*` allows all."""

    def __init__(self, allowed: Iterable[str]) -> None:
        if isinstance(allowed, str):
            raise TypeError(f"allowed_hosts must be several strings, got {allowed!r}")
        self._allowed = frozenset(each.lower() for each in allowed)
        for each in self._allowed - {"*"}:
            if not is_host(each):
                raise ValueError(f"allowed_hosts has {each!r}, which is not a host or host:port")

    def check(self, request: Request) -> None:
        """Raise `Refused` unless the request names an allowed host."""
        given = (request.text(b"host") or "").lower()
        match = _HOST.fullmatch(given)
        if match is None:
            raise Refused(400, "BadHost", "the request requires a valid Host header")
        if "*" not in self._allowed and not self._allowed & {given, match[1]}:
            raise Refused(
                403,
                "HostNotAllowed",
                f"the host {given!r} is not allowed; add it to the allowed hosts, or use a token",
            )


def check_origin(request: Request) -> None:
    """Raise `Refused` if a page of another site may have made the browser send this request."""
    if request.method in SAFE:
        return
    site = request.text(b"sec-fetch-site")
    if site is not None:
        same = site == "same-origin"
    else:
        scheme, _, host = (request.text(b"origin") or "").partition("://")
        same = scheme in ("http", "https") and host.lower() == (request.text(b"host") or "").lower()
    if not same:
        raise Refused(
            403,
            "CrossSite",
            "a write without a Bearer token must come from a page of this server: it requires "
            "Sec-Fetch-Site same-origin, or an Origin that equals Host",
        )
    if request.content_type not in JSON_TYPES:
        raise Refused(
            415,
            "WrongContentType",
            "a write without a Bearer token requires the header Content-Type: application/json",
        )


def _unauthorized(detail: str) -> Refused:
    return Refused(401, "NotAuthorized", detail, headers=[(b"www-authenticate", b"Bearer")])


class TokenGuard:
    """Admits peers of the unix socket, tokens, and cookies that stand for tokens.

    Without tokens, only peers of the unix socket are admitted."""

    every = 1.0

    def __init__(
        self, tokens: Tokens | None = None, allowed_hosts: Iterable[str] = LOCAL_HOSTS
    ) -> None:
        self._tokens = tokens
        self._hosts = Hosts(allowed_hosts)

    async def admit(self, request: Request) -> Caller:
        """Return who calls, or raise `Refused`."""
        peer = request.peer
        if peer is not None:
            return Caller(name=peer, role=Role.ADMIN)
        token = request.bearer
        if token is not None:
            caller = None if self._tokens is None else self._tokens.caller(token)
            if caller is None:
                raise _unauthorized("the token is not valid; it may have been replaced")
            return caller
        self._hosts.check(request)
        check_origin(request)
        cookie = request.cookie(cookie_name(request))
        caller = None
        if self._tokens is not None and cookie is not None:
            caller = self._tokens.of_session(cookie)
        if caller is None:
            raise _unauthorized("send a token: Authorization: Bearer TOKEN")
        return caller

    def check_host(self, request: Request) -> None:
        """Raise `Refused` unless the request names an allowed host."""
        if request.peer is None:
            self._hosts.check(request)

    def begin_session(self, request: Request) -> tuple[bytes, bytes]:
        """Return the header that sets a cookie for the token of a request."""
        token = request.bearer
        value = None
        if self._tokens is not None and token is not None:
            value = self._tokens.session(token)
        if value is None:
            raise _unauthorized("a session requires a token: Authorization: Bearer TOKEN")
        return _set_cookie(request, value, SESSION_SECONDS)

    def end_session(self, request: Request) -> tuple[bytes, bytes]:
        """End the session of a request, and return the header that removes the cookie."""
        cookie = request.cookie(cookie_name(request))
        if cookie is not None and self._tokens is not None:
            self._tokens.end_session(cookie)
        return _set_cookie(request, "", 0)


def _set_cookie(request: Request, value: str, seconds: int) -> tuple[bytes, bytes]:
    path = quote((request.scope.get("root_path") or "").rstrip("/") + "/")
    secure = "; Secure" if request.scope.get("scheme") == "https" else ""
    named = f"{cookie_name(request)}={value}; Path={path}; Max-Age={seconds}"
    return b"set-cookie", f"{named}; HttpOnly; SameSite=Strict{secure}".encode()


def cookie_name(request: Request) -> str:
    """Return the name of the cookie. It has the port, because browsers send the cookies of a host
    to all its ports: several pages may be open, each of another server."""
    host = _HOST.fullmatch(request.text(b"host") or "")
    port = None if host is None else host[2]
    return COOKIE if port is None else f"{COOKIE}_{port}"


class ApplicationGuard:
    """Admits the users that an application has logged in. If the guard has tokens, they are
    admitted, too."""

    every = 10.0  # the application may ask a database

    def __init__(
        self,
        authorize: Authorize,
        tokens: Tokens | None = None,
        allowed_hosts: Iterable[str] = LOCAL_HOSTS,
    ) -> None:
        self._authorize = authorize
        self._tokens = tokens
        self._hosts = Hosts(allowed_hosts)

    async def admit(self, request: Request) -> Caller:
        """Return who calls, or raise `Refused`."""
        token = request.bearer
        if token is not None and self._tokens is not None:
            caller = self._tokens.caller(token)
            if caller is not None:
                return caller
        self._hosts.check(request)
        if token is None:
            check_origin(request)
        from starlette.requests import Request as ForApplication

        try:
            answer = self._authorize(ForApplication(request.scope))
            if isawaitable(answer):
                answer = await answer
            if answer is not None:
                user, role = answer
                return Caller(name=str(user), role=Role(role))
        except (TypeError, ValueError) as error:
            # These are errors of callers elsewhere.
            raise RuntimeError(
                f"authorize failed; it must return the user and one of the roles {', '.join(Role)},"
                " or None"
            ) from error
        raise _unauthorized("log in to the application first")

    def check_host(self, request: Request) -> None:
        """Raise `Refused` unless the request names an allowed host."""
        self._hosts.check(request)
