"""Nodes: how the processes that share a database reach the one that owns it.

Each process listens from the beginning, and writes its address into the lease when it claims. A
node that is not the owner that a request is for answers 421, and the client looks into the lease
again. See `sealing.py` for how nodes prove who they are.
"""

import json
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from keyrun.control.frames import PATH
from keyrun.control.http import HttpApi
from keyrun.control.listening import PEER, bind_tcp, bind_unix, serving, url_of
from keyrun.control.performer import Performer
from keyrun.control.problems import Refused
from keyrun.control.request import Receive, Request, Scope, Send
from keyrun.control.roles import Caller, Role
from keyrun.control.sealing import ClockDiffers, Nonces, Opener, Sealer, Signature, Unsealed
from keyrun.control.target import Target
from keyrun.control.transport import Connection, Disconnected, refusal
from keyrun.runtime.logger import logger

TIME = "keyrun-time"
"""The header with the time of the owner, for a node whose clock differs."""
SOCKET = "node.sock"


class _NodeGuard:
    """Admits a request whose signature was checked."""

    every = 60.0  # the signature was for the whole channel

    async def admit(self, request: Request) -> Caller:
        """Return the node that sent the request."""
        assert request.peer is not None
        return Caller(name=request.peer, role=Role.ADMIN)

    def check_host(self, request: Request) -> None:
        """Refuse every request of a browser."""
        raise Refused(404, "NotFound", "nodes serve no page")


class _Ownership:
    """What a node needs while it is the owner."""

    def __init__(
        self, performer: Performer, *, epoch: int, secret: str, now: Callable[[], float]
    ) -> None:
        self.api = HttpApi(performer, _NodeGuard())
        self.epoch = epoch
        self.secret = secret
        self.now = now
        self.nonces = Nonces()


class NodeApi:
    """The application behind the listener of a node."""

    def __init__(self) -> None:
        self._ownership: _Ownership | None = None

    @contextmanager
    def owning(
        self, performer: Performer, *, epoch: int, secret: str, now: Callable[[], float]
    ) -> Iterator[None]:
        """Perform the operations of other nodes while the block runs."""
        self._ownership = _Ownership(performer, epoch=epoch, secret=secret, now=now)
        try:
            yield
        finally:
            self._ownership = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path, query = scope["path"], scope["query_string"].decode("latin-1")
        if scope["method"] != "POST" or path != f"/v1{PATH}":
            await _refuse(send, 404, "nodes serve only the calls of other nodes")
            return
        ownership = self._ownership
        headers = dict(scope["headers"])
        try:
            signature = Signature.read(headers.get(b"authorization", b"").decode("latin-1"))
            if ownership is None or signature.epoch != ownership.epoch:
                await _refuse(send, 421, "this node is not the owner that the request is for")
                return
            signature.check(ownership.secret, "POST", f"{path}?{query}" if query else path)
            ownership.nonces.take(signature, ownership.now())
        except ClockDiffers as error:
            assert ownership is not None
            await _refuse(send, 401, str(error), (TIME.encode(), b"%.3f" % ownership.now()))
            return
        except Unsealed as error:
            await _refuse(send, 401, str(error))
            return
        # A node is trusted as a peer of the unix socket is: nothing is redacted for it.
        scope["state"] = {**(scope.get("state") or {}), PEER: f"node {signature.node}"}
        sealed = _SealedAnswers(ownership.secret, signature, receive, send)
        await ownership.api(scope, sealed.receive, sealed.send)


class _SealedAnswers:
    """The two bodies of a channel, as the owner sees them."""

    def __init__(self, secret: str, signature: Signature, receive: Receive, send: Send) -> None:
        self._opener = Opener(signature.key(secret, "request"))
        self._sealer = Sealer(signature.key(secret, "answer"))
        self._receive = receive
        self._send = send
        self._node = signature.node
        self._seals = False

    async def receive(self) -> Any:
        message = await self._receive()
        if message["type"] != "http.request":
            return message
        try:
            return {**message, "body": self._opener.open(message.get("body", b""))}
        except Unsealed as error:
            logger.warning(
                "the connection of node %s is closed: %s",
                self._node,
                error,
                extra={"event": "client_failed"},
            )
            return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._seals = message["status"] == 200
        elif self._seals and message.get("body"):
            message = {**message, "body": self._sealer.seal(message["body"])}
        await self._send(message)


async def _refuse(send: Send, status: int, detail: str, *headers: tuple[bytes, bytes]) -> None:
    body = json.dumps({"detail": detail}).encode()
    head = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*head, *headers]})
    await send({"type": "http.response.body", "body": body})


@attrs.frozen
class NodeListener:
    """The listener of a node."""

    api: NodeApi
    address: str
    """Where other nodes reach it."""
    cut_off: Callable[[], None]
    """Cuts off all connections."""


@asynccontextmanager
async def listening(
    at: tuple[str, int] | None, advertise: str | None
) -> AsyncIterator[NodeListener]:
    """Listen on a host and port, or on a unix socket in a folder that only this user can enter."""
    api, process = NodeApi(), os.getpid()
    if at is not None:
        listeners = bind_tcp(*at)
        async with serving(api, listeners) as cut_off:
            yield NodeListener(api, advertise or url_of(at[0], listeners), cut_off)
        return
    folder = Path(tempfile.mkdtemp(prefix="keyrun-"))
    try:
        async with serving(api, [bind_unix(folder / SOCKET)]) as cut_off:
            yield NodeListener(api, advertise or f"unix:{folder / SOCKET}", cut_off)
    finally:
        if os.getpid() == process:
            shutil.rmtree(folder, ignore_errors=True)


class Skew:
    """By how much the clock of the owner is ahead of that of this process."""

    seconds = 0.0

    def now(self) -> float:
        """Return the time of the owner, as far as it is known."""
        return time.time() + self.seconds


class NodeConnection(Connection):
    """A connection from one node to another."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        target: Target,
        namespace: str,
        *,
        node: str,
        epoch: int,
        secret: str,
        skew: Skew,
    ) -> None:
        super().__init__(stream, target, None, namespace)
        self._node = node
        self._epoch = epoch
        self._secret = secret
        self._skew = skew
        self._sealer: Sealer
        self._opener: Opener

    def _credentials(self, path: str) -> str:
        secret, now = self._secret, self._skew.now()
        signed = Signature.of(secret, "POST", path, node=self._node, epoch=self._epoch, time=now)
        self._sealer = Sealer(signed.key(secret, "request"))
        self._opener = Opener(signed.key(secret, "answer"))
        return signed.header()

    def _refusal(self, answer: Any, body: bytes) -> Exception:
        owner_time = dict(answer.headers).get(TIME.encode())
        if owner_time is not None:
            self._skew.seconds = float(owner_time) - time.time()
        error = refusal(answer.status_code, body, self._target)
        if answer.status_code == 401:
            # The lease has a new secret, or the clock was wrong.
            return Disconnected(str(error))
        return error

    def _sealed(self, frames: bytes) -> bytes:
        return self._sealer.seal(frames)

    def _unsealed(self, data: bytes) -> bytes:
        return self._opener.open(data)
