"""A leased store in memory: a database that grants its records to one store at a time.

Several stores of one process share a `Database`, as processes share a real one. All of it runs on
Trio's clock, so hours of leases take milliseconds.
"""

from collections.abc import Callable
from copy import deepcopy
from math import inf

import trio

from keyrun.storage import StoreError, StoreLocked, StoreLost
from keyrun.storage.batch import Tables
from keyrun.storage.memory import MemoryStore, _Table


class Database:
    """Records, and the lease of their owner. With `ttl=inf` a lease never runs out by itself."""

    def __init__(self, *, ttl: float = inf, latency: float = 0.0) -> None:
        self.ttl = ttl
        self.latency = latency
        """Seconds from a commit to its answer."""
        self.tables: dict[str, _Table] = {}
        self.epoch = 0
        self.expires = -inf
        self.holder: LeasedStore | None = None
        self.commits: list[int] = []
        """The epoch of each accepted commit."""

    def is_free(self) -> bool:
        """Return whether a store can claim the records."""
        return self.holder is None or self.expires <= trio.current_time()

    def apply(self, tables: Tables) -> None:
        """Make records durable."""
        for name, operations in tables.items():
            table = self.tables.setdefault(name, _Table())
            for key, value in operations.items():
                table.apply(key, value)


class LeasedStore(MemoryStore):
    """A store whose ownership can end. Reads come from an image of its own."""

    leased = True

    def __init__(self, database: Database, name: str = "store") -> None:
        super().__init__()
        self.database = database
        self.name = name
        self.loses_answers = False
        """Whether commits are applied, and this store does not learn of it while it is cut off."""
        self._trio_clock: trio.abc.Clock | None = None
        self._distrusts = False
        self._trusted_until = -inf
        self._epoch = 0
        self._on_trusted: list[Callable[[], None]] = []
        self._answers = trio.Event()
        self._answers.set()
        self._beat = trio.CancelScope()

    @property
    def trusted_until(self) -> float:
        return self._trusted_until

    @property
    def epoch(self) -> int:
        return self._epoch

    def clock(self) -> float:
        """Return the time on Trio's clock, in any thread."""
        assert self._trio_clock is not None
        return self._trio_clock.current_time()

    def is_trusted(self) -> bool:
        return self.clock() < self._trusted_until

    def when_trusted(self, callback: Callable[[], None]) -> None:
        self._on_trusted.append(callback)
        if self.is_trusted():
            self._call_trusted()

    def _call_trusted(self) -> None:
        callbacks, self._on_trusted = self._on_trusted, []
        for callback in callbacks:
            callback()

    def distrust(self) -> None:
        """Do not trust the lease until `trust`, although commits succeed."""
        self._distrusts = True
        self._trusted_until = -inf

    def trust(self) -> None:
        """Trust the lease again."""
        self._distrusts = False
        self._renew(self.clock())

    def trust_in_thread(self) -> None:
        """Do the same where Trio does not run."""
        self._trusted_until = inf

    def lose(self) -> None:
        """Let another owner take the records. This store finds out at once."""
        self.database.epoch += 1
        self.database.holder = None
        self._find_out()

    def cut(self) -> None:
        """Cut the connection to the database."""
        self._answers = trio.Event()

    def mend(self) -> None:
        """Restore the connection to the database."""
        self._answers.set()

    async def wait_until_free(self) -> None:
        while self.is_cut or not self.database.is_free():
            await trio.sleep(min(self.database.ttl, 10) / 50)

    @property
    def is_cut(self) -> bool:
        return not self._answers.is_set()

    async def _open(self) -> None:
        self._trio_clock = trio.lowlevel.current_clock()
        self._distrusts = self.loses_answers = False
        await trio.lowlevel.checkpoint()
        database = self.database
        if self.is_cut:
            raise StoreError("the database does not answer")
        if not database.is_free():
            raise StoreLocked(f"{database.holder!r} owns the records")
        database.epoch += 1
        database.holder, self._epoch = self, database.epoch
        self._tables = deepcopy(database.tables)
        self._renew(self.clock())
        if database.ttl < inf:
            self._beat = trio.CancelScope()
            trio.lowlevel.spawn_system_task(self._keep_beating, self._beat)

    async def _close(self) -> None:
        self._beat.cancel()
        self._trusted_until = -inf
        if self._owns() and not self.is_cut:
            self.database.holder = None
        await trio.lowlevel.checkpoint()

    def _owns(self) -> bool:
        return self.database.epoch == self.epoch

    def _renew(self, sent: float) -> None:
        self.database.expires = trio.current_time() + self.database.ttl
        if not self._distrusts:
            self._trusted_until = sent + self.database.ttl * 0.9
            self._call_trusted()

    def _lost(self) -> StoreLost:
        return StoreLost(f"{self!r} has the epoch {self.epoch}, not {self.database.epoch}")

    def _find_out(self) -> None:
        if self._group is not None:
            self._group.fail(self._lost())

    async def _keep_beating(self, beat: trio.CancelScope) -> None:
        with beat:
            while True:
                await trio.sleep(self.database.ttl / 4)
                sent = self.clock()
                await self._answers.wait()
                if not self._owns():
                    self._find_out()
                    return
                self._renew(sent)

    async def _commit(self, tables: Tables) -> None:
        sent, group = self.clock(), self._opened()
        await trio.sleep(self.database.latency / 2)
        while self.is_cut and group.failure is None:
            with trio.move_on_after(0.1):
                await self._answers.wait()
        if group.failure is not None:
            raise group.failure
        if not self._owns():
            raise self._lost()
        self.database.apply(tables)
        self.database.commits.append(self.epoch)
        while self.loses_answers and group.failure is None:
            await trio.sleep(0.1)
        if not self._owns():
            raise self._lost()
        self._renew(sent)
        await trio.sleep(self.database.latency / 2)
        if group.failure is not None:
            raise group.failure
        self._unpublished = tables

    def __repr__(self) -> str:
        return f"LeasedStore({self.name!r})"
