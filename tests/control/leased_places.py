"""Processes that share a leased store, as tasks of one Trio loop on virtual time.

A `Town` has the database, and the members that can own it. Any of them can be cut off from the
database and from the other members. A member that is stopped for long loses the store to another.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from functools import partial
from math import inf
from typing import Any

import trio

from keyrun.control.loopback import Loopback
from keyrun.control.options import Control
from keyrun.control.owner import Owner
from keyrun.control.performer import Performer
from keyrun.control.places import Open
from keyrun.control.target import Target
from keyrun.control.transport import Disconnected, Transport
from keyrun.hosting.trio_host import opened
from keyrun.runtime.open import Companion
from keyrun.runtime.runtime import Runtime
from keyrun.storage import Store, StoreError
from keyrun.testing import EPOCH
from tests.control.joiners import OPTIONS
from tests.leases import Database, LeasedStore

TTL = 10.0


class Link(Loopback):
    """A connection from one member to another."""

    def __init__(self, owner: Performer) -> None:
        super().__init__(owner)
        self.scope = trio.CancelScope()

    async def run(self) -> None:
        with self.scope:
            await super().run()
        raise Disconnected("the link is cut")


class Town:
    """The members that share a database."""

    def __init__(self, *, ttl: float = TTL, latency: float = 0.01) -> None:
        self.database = Database(ttl=ttl, latency=latency)
        self.serving: dict[LeasedStore, Performer] = {}
        """The owners whose control plane answers. A former owner may be among them."""
        self._links: dict[Link, tuple[LeasedStore, LeasedStore]] = {}
        self._cut: set[frozenset[LeasedStore]] = set()

    def store(self, name: str) -> LeasedStore:
        """Return the store of one more member."""
        return LeasedStore(self.database, name)

    def cut(self, one: LeasedStore, other: LeasedStore) -> None:
        """Cut the connection between two members."""
        self._cut.add(frozenset((one, other)))
        self._break(lambda ends: set(ends) == {one, other})

    def mend(self) -> None:
        """Mend all connections between members."""
        self._cut.clear()

    def _break(self, chosen: Any) -> None:
        for link, ends in list(self._links.items()):
            if chosen(ends):
                link.scope.cancel()

    def link(self, client: LeasedStore) -> Link:
        """Connect a member to the owner that the database names."""
        holder = self.database.holder
        if client.is_cut:
            raise Disconnected("the database does not answer")
        owner = None if holder is None else self.serving.get(holder)
        if holder is None or owner is None or frozenset((client, holder)) in self._cut:
            raise Disconnected(f"{holder!r} does not answer")
        link = Link(owner)
        self._links[link] = client, holder
        return link

    def close(self, store: LeasedStore) -> None:
        """Close the control plane of a member."""
        del self.serving[store]
        self._break(lambda ends: ends[1] is store)

    def place(
        self, store: Store, open_: Open, *, namespace: str, control: Control, call_timeout: float
    ) -> "TownPlace":
        """Return the place of a member."""
        assert isinstance(store, LeasedStore)
        return TownPlace(self, store, open_, call_timeout)

    def member(self, store: LeasedStore, **options: Any) -> Any:
        """Open a member."""
        clock = trio.lowlevel.current_clock()
        return opened(
            store, **{**self.options, "wall": lambda: EPOCH + clock.current_time(), **options}
        )

    @property
    def options(self) -> dict[str, Any]:
        """The options of a member on any host."""
        return {
            **OPTIONS,
            "when_locked": "join",
            "place": self.place,
            "lifespan": None,
            "on_terminal": None,
        }


class TownTransport(Transport):
    """Connects to whichever member owns the database."""

    def __init__(self, town: Town, store: LeasedStore, call_timeout: float) -> None:
        super().__init__(Target(host="town"), call_timeout=call_timeout)
        self._town = town
        self._store = store

    async def _opened(self) -> Link:  # type: ignore[override]
        await trio.sleep(0.001)
        return self._town.link(self._store)


class TownPlace:
    """The place of one member."""

    lasts = False
    retry_most = 0.5

    def __init__(self, town: Town, store: LeasedStore, open_: Open, call_timeout: float) -> None:
        self._open = open_
        self.transport: Transport = TownTransport(town, store, call_timeout)
        self._town = town
        self._store = store

    def open(self, *, companion: Companion) -> AbstractAsyncContextManager[Runtime]:
        return self._open(companion=companion)

    def entered(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    @asynccontextmanager
    async def serve(self, engine: Runtime) -> AsyncIterator[Performer]:
        owner = self._town.serving[self._store] = Owner(engine)
        try:
            yield owner
        finally:
            self._town.close(self._store)

    async def wait_until_free(self) -> None:
        await self._store.wait_until_free()

    def may_pass(self, error: StoreError) -> bool:
        return "does not answer" in str(error)

    def holder(self, error: StoreError) -> str:
        return str(error)

    def advice(self, error: StoreError, trouble: str) -> str:
        return f"{error} ({trouble})"

    def __str__(self) -> str:
        return repr(self._store)


class Resident:
    """A member in a task of its own, which can leave and come back."""

    def __init__(self, town: Town, name: str, nursery: trio.Nursery, **options: Any) -> None:
        self.town = town
        self.store = town.store(name)
        self._nursery = nursery
        self._options = options
        self._over = trio.Event()
        self._ended = trio.Event()
        self.rt: Any = None

    @property
    def owns(self) -> bool:
        """Whether it has an engine that has not lost its store."""
        return self.rt is not None and self.rt.engine is not None

    async def enter(self) -> "Resident":
        """Open its block."""
        self._over, self._ended = trio.Event(), trio.Event()
        await self._nursery.start(self._run)
        return self

    async def _run(self, task_status: "trio.TaskStatus[None]") -> None:
        try:
            async with self.town.member(self.store, **self._options) as self.rt:
                task_status.started()
                await self._over.wait()
        finally:
            self.rt = None
            self._ended.set()

    async def leave(self) -> None:
        """Leave its block."""
        self._over.set()
        await self._ended.wait()


@asynccontextmanager
async def residents(town: Town, *names: str, **options: Any) -> AsyncIterator[list[Resident]]:
    """Open members of a town, the owner first, and let all of them leave at the end."""
    async with trio.open_nursery() as nursery, AsyncExitStack() as stack:
        found = []
        for name in names:
            found.append(await Resident(town, name, nursery, **options).enter())
            stack.push_async_callback(found[-1].leave)
        yield found


async def until(condition: Any, *, seconds: float = inf) -> None:
    """Wait until a condition is true."""
    with trio.fail_after(seconds):
        while not condition():
            await trio.sleep(0.05)


__all__ = ["Resident", "Town", "partial", "residents", "until"]
