"""The HTTP API: an ASGI application over the table of operations.

It runs on Trio and on asyncio. It performs operations through a `Performer`: the owner of the store
in this process, on this or another event loop. Each answer that is not a stream is one JSON object.
An operation whose answer is no object has it under `result`.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import cached_property, partial
from importlib.resources import files
from typing import Any
from urllib.parse import parse_qsl, quote_from_bytes

from keyrun import __version__
from keyrun.control import batches, streams
from keyrun.control.answers import text_of
from keyrun.control.bodies import BODY_SECONDS, MAX_BODY, parsed, read_body, until_gone
from keyrun.control.channel import Channel
from keyrun.control.frames import MEDIA_TYPE as CHANNEL
from keyrun.control.frames import PATH
from keyrun.control.guard import SAFE, SECURITY_HEADERS, Guard, TokenGuard
from keyrun.control.json_text import dump, parse
from keyrun.control.lasting import while_admitted
from keyrun.control.operation import Operation
from keyrun.control.page import page_answer
from keyrun.control.performer import Performer
from keyrun.control.problems import MEDIA_TYPE, RETRY_AFTER, Refused, problem, status_of
from keyrun.control.redacting import Redacting
from keyrun.control.request import Receive, Request, Scope, Send
from keyrun.control.requests import Session
from keyrun.control.roles import Caller, NotAllowed, Role, require
from keyrun.control.routes import Routes, below
from keyrun.control.shapes import JSON, Misplaced
from keyrun.control.table import OPERATIONS
from keyrun.runtime.errors import UnknownRun
from keyrun.runtime.events.logs import log_error
from keyrun.runtime.host.tracing import caller_trace
from keyrun.runtime.logger import logger
from keyrun.runtime.texts import brief

MAX_HEADERS = 200
"""Headers that a request may have."""
MAX_QUERY = 16 * 1024
"""Bytes that a query string may have."""

Headers = list[tuple[bytes, bytes]]
Answer = tuple[int, Headers, bytes]

JSON_HEADERS = [(b"content-type", b"application/json"), *SECURITY_HEADERS]
PROBLEM_HEADERS = [(b"content-type", MEDIA_TYPE.encode()), *SECURITY_HEADERS]
TEXT_HEADERS = [(b"content-type", b"text/plain; charset=utf-8"), *SECURITY_HEADERS]


_write_session = JSON.writer(Session)

Handler = Callable[[Request, Caller, Send], Awaitable[Answer | None]]


class HttpApi:
    """The API as an ASGI application.

    - `performer`: performs the operations.
    - `guard`: decides who calls.
    - `max_body`: the number of bytes that the body of a request may have.
    - `body_seconds`: the number of seconds that a small body may take.
    - `conditions`: functions that return a word if the application is not ready, for `/readyz`.
    """

    def __init__(
        self,
        performer: Performer,
        guard: Guard,
        *,
        max_body: int = MAX_BODY,
        body_seconds: float = BODY_SECONDS,
        heartbeat: float = streams.HEARTBEAT,
        conditions: tuple[Callable[[], str | None], ...] = (),
    ) -> None:
        self._performer = performer
        self._guard = guard
        self._max_body = max_body
        self._body_seconds = body_seconds
        self._heartbeat = heartbeat
        self._conditions = conditions
        operations = [
            (each.verb, "/v1" + each.path, each) for each in OPERATIONS.values() if each.path
        ]
        own: list[tuple[str, str, Operation | Handler]] = [
            ("GET", "/v1/openapi.json", self._openapi),
            ("GET", "/v1/session", self._who),
            ("GET", "/metrics", self._metrics),
            ("POST", "/v1" + PATH, self._channel),
        ]
        self._sessions: dict[str, Callable[[Request], Awaitable[Answer]]] = {}
        """The handlers of requests that begin or end a session."""
        if isinstance(guard, TokenGuard):
            self._sessions = {"POST": self._log_in, "DELETE": self._log_out}
        self._routes = Routes[Operation | Handler]([*operations, *own])
        self._probes: dict[bytes, Callable[[], str | None]] = {
            b"livez": lambda: None,
            b"readyz": self._trouble,
        }

    @cached_property
    def _redacting(self) -> Redacting | None:
        return Redacting.of(self._performer.redaction)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1003})
            return
        kind, sending = b"", False

        async def tracked(message: Any) -> None:
            nonlocal kind, sending
            if message["type"] == "http.response.start":
                kind = dict(message["headers"])[b"content-type"]
            sending = True
            await send(message)
            sending = False

        try:
            answer = await self._answer(scope, receive, tracked)
        except (Refused, NotAllowed) as error:
            if kind:
                logger.warning(
                    "ended %s %s: %s",
                    scope["method"],
                    brief(scope["path"]),
                    error,
                    extra={"event": "request_ended"},
                )
                if not sending:
                    await send({"type": "http.response.body", "body": _last_part(kind, error)})
                return
            answer = self._problem(scope, error)
        except Exception as error:
            if kind:
                self._log("the answer to a request was not completed", error)
                raise
            answer = self._problem(scope, error)
        if answer is None:
            return
        status, headers, body = answer
        headers = [*headers, (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        if scope["method"] == "HEAD" or status == 304:
            body = b""
        await send({"type": "http.response.body", "body": body})

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> Answer | None:
        raw_path = scope.get("raw_path")
        if raw_path is None:
            raw_path = quote_from_bytes(scope["path"].encode()).encode()
        segments = below(raw_path, scope.get("root_path") or "")
        if len(segments) == 1 and segments[0] in self._probes and scope["method"] in SAFE:
            if scope["method"] == "OPTIONS":
                return 204, [*SECURITY_HEADERS, (b"allow", b"GET, HEAD, OPTIONS")], b""
            word = self._probes[segments[0]]()
            return (200, TEXT_HEADERS, b"ok") if word is None else _unready(word)
        if len(scope["headers"]) > MAX_HEADERS:
            raise Refused(431, "TooManyHeaders", f"a request may have {MAX_HEADERS} headers")
        request = Request(scope, receive)
        caller_trace.set(request.trace)
        method = request.method
        found = self._routes.find(segments)
        if method in self._sessions and segments == [b"v1", b"session"]:
            return await self._sessions[method](request)
        if found is None:
            page = page_answer(request, segments, self._guard)
            if page is not None:
                return page
        caller = await self._guard.admit(request)
        if found is None:
            raise Refused(404, "NotFound", "there is no such path; see /v1/openapi.json")
        targets, values = found
        target = targets.get("GET" if method == "HEAD" else method)
        if target is None:
            allowed = [*targets, "OPTIONS", *(["HEAD"] if "GET" in targets else [])]
            allow = (b"allow", ", ".join(allowed).encode())
            if method == "OPTIONS":
                return 204, [*SECURITY_HEADERS, allow], b""
            raise Refused(
                405, "MethodNotAllowed", f"this path takes {', '.join(targets)}", headers=[allow]
            )
        operation, names = target
        if not isinstance(operation, Operation):
            return await operation(request, caller, send)
        return await self._operate(request, caller, send, operation, names, values)

    async def _operate(
        self,
        request: Request,
        caller: Caller,
        send: Send,
        operation: Operation,
        names: list[str],
        values: list[str],
    ) -> Answer | None:
        """Perform an operation, or stream its answers."""
        require(caller, operation.role, operation.name)

        def check(now: Caller) -> None:
            require(now, operation.role, operation.name)

        if operation.name == "submit" and request.content_type == batches.MEDIA_TYPE:
            submitting = partial(
                batches.submit,
                self._performer,
                OPERATIONS["submit_many"],
                request,
                caller,
                send,
                max_line=self._max_body,
                seconds=self._body_seconds,
                prefix=operation_id_of(request),
            )
            await while_admitted(self._guard, request, submitting, check)
            return None
        if operation.verb in ("GET", "DELETE"):
            texts = _query(request)
            arguments = operation.read_texts(texts) if texts else {}
        else:
            if request.scope["query_string"]:
                raise Misplaced(f"{operation.name} takes its arguments in the body")
            arguments = await self._arguments(request, operation)
        if names:
            again = arguments.keys() & set(names)
            if again:
                raise Misplaced(f"{min(again)} is a part of the path, and was given again")
            places = {name: [value] for name, value in zip(names, values, strict=True)}
            arguments |= operation.read_texts(places)
        if operation.streams:
            stream = partial(self._stream, request, caller, send, operation, arguments)
            await while_admitted(self._guard, request, stream, check)
            return None
        operation_id = None
        if operation.writes:
            operation_id = operation_id_of(request)
            if operation.name == "submit" and operation_id and "run_id" not in arguments:
                arguments["run_id"], operation_id = operation_id, None
        performed = self._performer.perform(operation, arguments, caller, operation_id)
        if arguments.get("wait"):
            waiting = partial(until_gone, request, performed)
            answer = await while_admitted(self._guard, request, waiting, check)
        else:
            answer = await performed
        return await self._answer_of(operation, arguments, answer)

    async def _answer_of(
        self, operation: Operation, arguments: Mapping[str, Any], answer: Any
    ) -> Answer:
        """Return the answer with the result of an operation."""
        if answer is None and operation.may_have_no_answer:
            run_id = arguments.get("run_id")
            raise UnknownRun(
                f"{operation.name} has no answer for the run {run_id!r}: it is unknown or of "
                "another kind",
                run_id=run_id,
            )
        return 200, JSON_HEADERS, await text_of(operation, answer, self._redacting)

    async def _stream(
        self,
        request: Request,
        caller: Caller,
        send: Send,
        operation: Operation,
        arguments: Mapping[str, Any],
    ) -> None:
        if request.method == "HEAD":
            raise Refused(405, "MethodNotAllowed", "a stream has no HEAD")
        if operation.name == "events":
            last_id = request.text(b"last-event-id")
            follower = await self._performer.follow(arguments, caller, last_id)
            await streams.send_events(follower, request, send, self._heartbeat)
            return
        items = await self._performer.stream(operation, arguments, caller)
        async with aclosing(items):
            await streams.send_items(
                items, operation, request, send, self._heartbeat, self._redacting
            )

    async def _arguments(self, request: Request, operation: Operation) -> dict[str, Any]:
        body = await read_body(request, self._max_body, self._body_seconds)
        if not body:
            return {}
        if request.content_type != "application/json":
            raise Refused(
                415,
                "WrongContentType",
                "the body must be JSON, with the header Content-Type: application/json",
            )

        def read(body: bytes) -> dict[str, Any]:
            data = parse(body)
            if type(data) is not dict:
                raise Misplaced(
                    f"the body must be an object with the arguments of {operation.name}"
                )
            return operation.read_json(data)

        return await parsed(body, read)

    def _problem(self, scope: Scope, error: Exception) -> Answer:
        """Return the answer to a request that failed."""
        status = status_of(error)
        if status == 500:
            self._log(f"a request failed: {scope['method']} {brief(scope['path'])}", error)
        headers = [*PROBLEM_HEADERS, *getattr(error, "headers", ())]
        if status in (429, 503):
            headers.append((b"retry-after", b"%d" % RETRY_AFTER))
        return status, headers, dump(problem(error))

    def _log(self, message: str, error: Exception) -> None:
        log_error(message, error, self._performer.redaction, extra={"event": "request_failed"})

    def _trouble(self) -> str | None:
        words = (each() for each in (self._performer.trouble, *self._conditions))
        return next((word for word in words if word is not None), None)

    async def _openapi(self, request: Request, caller: Caller, send: Send) -> Answer:
        return 200, JSON_HEADERS, files("keyrun.control").joinpath("openapi.json").read_bytes()

    async def _who(self, request: Request, caller: Caller, send: Send) -> Answer:
        return 200, JSON_HEADERS, dump(_write_session(await self._performer.session(caller)))

    async def _metrics(self, request: Request, caller: Caller, send: Send) -> Answer:
        from keyrun.metrics import CONTENT_TYPE, text_of

        require(caller, Role.METRICS, "metrics")
        headers = [(b"content-type", CONTENT_TYPE.encode()), *SECURITY_HEADERS]
        return 200, headers, text_of(self._performer.measure())

    async def _channel(self, request: Request, caller: Caller, send: Send) -> None:
        """Serve a Python client."""
        if request.content_type != CHANNEL:
            raise Refused(
                415,
                "WrongContentType",
                f"Keyrun {__version__} answers a channel of the type {CHANNEL}, not "
                f"{request.content_type}; use the same version of Keyrun on both sides",
            )
        query = _query(request)
        asked, own = query.get("namespace"), self._performer.namespace
        if asked is not None and asked != [own]:
            raise Refused(
                409,
                "OtherNamespace",
                f"it serves the namespace {own!r} of the store, not {asked[0]!r}; all processes "
                "that join a store open the same namespace",
            )
        # A process that may open the unix socket may read the store, too, and needs the values.
        # Only a page for people asks for redacted ones.
        plain = request.peer is not None and "redacted" not in query
        redacting = None if plain else self._redacting
        channel = Channel(self._performer, caller, send, redacting)

        def check(now: Caller) -> None:
            channel.caller = now

        serve = partial(channel.serve, request.receive)
        await while_admitted(self._guard, request, serve, check)

    async def _log_in(self, request: Request) -> Answer:
        assert isinstance(self._guard, TokenGuard)
        cookie = self._guard.begin_session(request)
        return 200, [*JSON_HEADERS, cookie], b"{}"

    async def _log_out(self, request: Request) -> Answer:
        assert isinstance(self._guard, TokenGuard)
        await self._guard.admit(request)
        return 200, [*JSON_HEADERS, self._guard.end_session(request)], b"{}"


def _last_part(kind: bytes, error: Exception) -> bytes:
    """Return the end of an answer of a kind that has begun."""
    if kind.startswith(b"text/event-stream"):
        return streams.error_event(error)
    if kind == batches.MEDIA_TYPE.encode():
        return dump(problem(error)) + b"\n"
    return b""


def _unready(word: str) -> Answer:
    return 503, [*TEXT_HEADERS, (b"retry-after", b"%d" % RETRY_AFTER)], word.encode()


def operation_id_of(request: Request) -> str | None:
    """Return the id that makes a write safe to repeat."""
    given = request.text(b"keyrun-operation-id")
    if given is None:
        given = request.text(b"idempotency-key")
        if given is None:
            return None
    given = given.strip('"')
    if not 0 < len(given) <= 128 or not given.isascii() or not given.isprintable():
        raise Misplaced("Idempotency-Key must be 1 to 128 printable ASCII characters")
    return given


def _query(request: Request) -> dict[str, list[str]]:
    raw: bytes = request.scope["query_string"]
    if not raw:
        return {}
    if len(raw) > MAX_QUERY:
        raise Refused(414, "QueryTooLong", f"a query string may have {MAX_QUERY} bytes")
    try:
        pairs = parse_qsl(
            raw.decode("ascii"),
            keep_blank_values=True,
            strict_parsing=True,
            errors="strict",
            max_num_fields=200,
        )
    except ValueError:
        raise Refused(400, "BrokenQuery", "the query string is not valid") from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


async def _live(receive: Receive, send: Send) -> None:
    """Answer the lifespan protocol: the application has nothing to open."""
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        elif message["type"] == "lifespan.shutdown":
            await send({"type": "lifespan.shutdown.complete"})
            return
