"""The front: listens on TCP before a runtime is open, and until it has drained.

Probes are answered all the time. Everything else is refused with 503 while no runtime is open, so
clients connect again, and find the runtime that opens next.
"""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from math import inf
from typing import Any, NoReturn

from keyrun.control.http import HttpApi
from keyrun.control.listening import bind_tcp, serving, url_of
from keyrun.control.problems import Refused
from keyrun.control.request import Receive, Request, Scope, Send
from keyrun.control.roles import Caller
from keyrun.runtime.redaction import SHOW_ALL


class _NotOpen:
    """The guard and the performer while no runtime is open."""

    namespace = ""
    every = inf
    redaction = SHOW_ALL

    def __init__(self, word: str) -> None:
        self._word = word

    def trouble(self) -> str:
        """Return the word that says why no runtime is open."""
        return self._word

    async def admit(self, request: Request) -> Caller:
        """Refuse every request."""
        self._refuse()

    def _refuse(self) -> NoReturn:
        raise Refused(503, "StoreClosed", f"the runtime is {self._word}; send the request again")

    def check_host(self, request: Request) -> None:
        """Refuse every request."""
        self._refuse()

    async def perform(self, *_: Any, **__: Any) -> Any:
        """Perform nothing, because no request is admitted."""
        raise AssertionError("a request was admitted")

    stream = follow = session = perform

    def measure(self) -> NoReturn:
        """Measure nothing, because no request is admitted."""
        raise AssertionError("a request was admitted")


class _NotOwner(_NotOpen):
    """The guard and the performer while another process owns the store."""

    def __init__(self, word: Callable[[], str]) -> None:
        super().__init__("a client")
        self._now = word

    def trouble(self) -> str:
        """Return the word that says whether there is an owner."""
        return self._now()

    def _refuse(self) -> NoReturn:
        raise Refused(421, "NotOwner", "this process does not own the store; ask its owner")


def _api_of(nobody: _NotOpen) -> HttpApi:
    return HttpApi(nobody, nobody)


def _not_open(word: str) -> HttpApi:
    return _api_of(_NotOpen(word))


class Front:
    """The application behind a listener: the API of a runtime while `answering`."""

    def __init__(self, url: str) -> None:
        self.url = url
        """The address of the listener."""
        self._api = _not_open("opening")
        self._cut_off: Callable[[], None] = lambda: None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        await self._api(scope, receive, send)

    def disown(self, word: Callable[[], str]) -> None:
        """Answer, until `answering`, that another process owns the store. `word` returns what
        `/readyz` answers."""
        self._api = _api_of(_NotOwner(word))

    @contextmanager
    def answering(self, api: HttpApi) -> Iterator[None]:
        """Let an API answer while the block runs. Then the runtime drains: requests that are under
        way are cut off."""
        self._api = api
        try:
            yield
        finally:
            self._api = _not_open("draining")
            self._cut_off()

    @classmethod
    @asynccontextmanager
    async def opened(cls, host: str, port: int) -> "AsyncIterator[Front]":
        """Listen on a host and port while the block runs."""
        listeners = bind_tcp(host, port)
        front = cls(url_of(host, listeners))
        async with serving(front, listeners) as front._cut_off:
            yield front
