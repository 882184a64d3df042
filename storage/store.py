"""The store: ordered records in named tables, read one by one or by range, written in batches.

The interface is small on purpose, so that another database can stand behind it: a store says how
to open and close, how to read, and how to make a set of tables durable whole or not at all.
Everything else, group commit above all, is here and the same for all stores.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from math import inf
from types import TracebackType
from typing import ClassVar, Self

import trio

from keyrun.storage.batch import Batch, Tables, check_key, check_size, check_table
from keyrun.storage.errors import (
    StoreClosed,
    StoreCrashed,
    StoreError,
    StoreLocked,
    StoreLost,
    StoreReadOnly,
)
from keyrun.storage.group import Group
from keyrun.storage.group_commit import CommitStatistics, GroupCommit
from keyrun.storage.namespace import Namespace


def upper_bound(prefix: bytes) -> bytes | None:
    """Return the smallest key above all keys that start with `prefix`. None if there is none."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes([stem[-1] + 1]) if stem else None


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return the time of `Store.trusted_until`, in seconds. It passes also while the machine
    sleeps, and cannot be set."""
    return time.clock_gettime(_CLOCK)


logger = logging.getLogger("keyrun.storage")

_RETRY_EVERY = 0.05
"""Seconds between two attempts to open a store that another process owns."""

_EXPECTED = (StoreCrashed, StoreReadOnly)
"""Failures that the close of a store does not raise again."""
_REPORTED = (*_EXPECTED, StoreLost)
"""Failures that the close of a store does not log."""


class Store(ABC):
    """Define the interface of all stores: ordered records in named tables, written in batches.

    Open a store with `async with`. Several blocks may share one store. The store is closed when the
    last block ends: staged records are committed, and staging more raises `StoreClosed`.

    A store has at most `max_tables` tables. A table stays once a record was committed to it. A
    batch that needs one more table raises `TooManyTables` when it is staged.

    The rule of reads: `get` and `scan` never suspend, and show the last commit that has returned.
    A batch is not readable while it is only staged, nor while its commit is under way, even if a
    database or another process has applied it already. It becomes readable when its commit has
    returned. Its `when_durable` callbacks and waiters follow before any other task runs, so no
    task reads a record that the owner of the record does not know to be durable. A batch whose
    commit failed, or was under way in a crash, is not readable until the store is opened again.

    The rule is about one `Store` object. A reader in another process may see a batch earlier.

    The rule of trust: a store in a database may get another owner. The database rejects the commits
    of the owner before, and `when_failed` reports `StoreLost` to this process. No effect may
    begin after `trusted_until`, because another process may own the store then. An untrusted store
    is not lost: its commits wait, and `when_trusted` reports that effects may begin again. A commit
    that has returned is good, also after `trusted_until`. Embedded stores are always trusted.
    """

    max_tables: ClassVar[int] = 128
    """The number of tables that a store may have."""
    leased: ClassVar[bool] = False
    """Whether the store may get another owner while it is open."""
    max_batch_bytes: ClassVar[int | None] = None
    """The number of bytes that a batch may have, if the store limits it."""
    full_group_bytes: ClassVar[int | None] = None
    """The number of bytes at which a group takes no more records, if the store limits it."""

    def __init__(self) -> None:
        self._group: GroupCommit | None = None
        self._users = 0
        self._lifecycle_lock = trio.Lock()
        self._claimed: set[str] = set()

    @abstractmethod
    async def _open(self) -> None:
        """Open the records, or raise a `StoreError` that says what to do."""

    def _refuses_writes(self) -> StoreError | None:
        """Return the error for writes to this store, if it cannot be written."""
        return None

    @abstractmethod
    async def _close(self) -> None:
        """Close the records. Nothing is staged any more."""

    @abstractmethod
    def _tables_there(self) -> Iterable[str]:
        """Return the tables of the store that was just opened."""

    @abstractmethod
    async def _commit(self, tables: Tables) -> None:
        """Apply all of `tables` or nothing. Return when it would survive a power loss. Reads must
        not show `tables` before `_publish`, or before the store is opened again."""

    @abstractmethod
    def _publish(self, tables: Tables) -> None:
        """Let reads show `tables`, which `_commit` has made durable. A store whose `_commit` never
        suspends, and which shows them itself, has nothing to do."""

    @abstractmethod
    async def _get(self, table: str, key: bytes) -> bytes | None:
        """Return the record under `key`. None if there is no such record or table."""

    @abstractmethod
    async def _scan(
        self, table: str, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        """Return at most `limit` records with start <= key < stop, in key order or its reverse."""

    async def get(self, table: str, key: bytes) -> bytes | None:
        """Return the record under `key` as of the last durable commit, or None."""
        self._opened()
        check_table(table)
        check_key(key)
        return await self._get(table, key)

    async def scan(
        self,
        table: str,
        *,
        prefix: bytes = b"",
        start: bytes = b"",
        stop: bytes | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Return records in key order as of one durable commit.

        The keys start with `prefix`, and are at least `start` and less than `stop`. There are at
        most `limit` records. With `reverse=True` the scan begins at the end. To page through a
        large table, pass the last key and a NUL byte as the next `start`."""
        self._opened()
        check_table(table)
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be at least 0, got {limit}")
        above = upper_bound(prefix)
        if above is not None and (stop is None or above < stop):
            stop = above
        start = max(start, prefix)
        if limit == 0 or (stop is not None and start >= stop):
            return []
        return await self._scan(table, start, stop, limit, reverse)

    async def get_many(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the records under `keys` that exist, as of one durable commit. One call costs
        about as much as a few calls of `get`."""
        self._opened()
        check_table(table)
        for key in keys:
            check_key(key)
        return await self._get_many(table, keys)

    async def _get_many(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        with self.view():
            found = [(key, await self._get(table, key)) for key in keys]
        return {key: raw for key, raw in found if raw is not None}

    async def scan_each(
        self,
        table: str,
        prefixes: Sequence[bytes],
        *,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[list[tuple[bytes, bytes]]]:
        """Return the records of `scan` for each of `prefixes`, all as of one durable commit."""
        self._opened()
        check_table(table)
        if limit is not None and limit < 1:
            raise ValueError(f"limit must be at least 1, got {limit}")
        ranges = [(prefix, upper_bound(prefix)) for prefix in prefixes]
        return await self._scan_each(table, ranges, limit, reverse)

    async def _scan_each(
        self,
        table: str,
        ranges: Sequence[tuple[bytes, bytes | None]],
        limit: int | None,
        reverse: bool,
    ) -> list[list[tuple[bytes, bytes]]]:
        with self.view():
            return [await self._scan(table, start, stop, limit, reverse) for start, stop in ranges]

    def view(self) -> AbstractContextManager[None]:
        """Return a context manager in which all reads show the same commit. Await only reads of
        this store in the block."""
        return nullcontext()

    @property
    def group_commit(self) -> GroupCommit:
        """Return the group commit of this store, while it is open."""
        return self._opened()

    def namespace(self, name: str) -> Namespace:
        """Return the view of one namespace."""
        return Namespace(self, name)

    @asynccontextmanager
    async def claim(self, name: str) -> AsyncIterator[None]:
        """Hold a namespace for the time of a block. A second claim by this process raises
        `StoreLocked`. The lock of the store keeps other processes away."""
        if name in self._claimed:
            raise StoreLocked(
                f"the namespace {name!r} of {self!r} belongs to another runtime of this process; "
                "use that one, or give this one a namespace of its own"
            )
        self._claimed.add(name)
        try:
            yield
        finally:
            self._claimed.discard(name)

    def open_group(self) -> Group:
        """Return the group of records that the next commit makes durable, to which records can be
        added without a copy. It is closed at a later `await`, so ask for it again after each."""
        group = self._group
        if group is None:
            group = self._opened()
        return group.open_group()

    def stage(self, batch: Batch) -> Group:
        """Add `batch` to the next commit, and return its group for `durable`. The commit starts as
        soon as a task waits for it, and otherwise within 50 ms. Batches that are staged without an
        `await` in between share a commit."""
        if self.max_batch_bytes is not None:
            check_size(batch.tables, self.max_batch_bytes)
        group = self.open_group()
        group.merge(batch.tables)
        return group

    @property
    def trusted_until(self) -> float:
        """The end of the time in which this process certainly owns the store, on the clock of
        `boottime`. It is in the past while ownership is not certain."""
        return inf

    def is_trusted(self) -> bool:
        """Return whether effects may begin, that is, whether `trusted_until` is in the future."""
        return True

    def when_trusted(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, in the loop, when the store is trusted. If it is trusted now, call
        it at once. It must not raise. It is not called after the store was lost or closed."""
        callback()

    @property
    def epoch(self) -> int:
        """The number of owners that the store has had. It grows with each open of a store in a
        database. It is 0 for embedded stores."""
        return 0

    @property
    def clock_offset(self) -> float:
        """The wall clock of the store minus the wall clock of this machine, in seconds."""
        return 0.0

    async def wait_until_free(self) -> None:
        """Return when the store, which is not open and has another owner, may be free. Another
        process may be faster to open it."""
        await trio.sleep(_RETRY_EVERY)

    def when_failed(self, callback: Callable[[StoreError], None]) -> None:
        """Call `callback` when a commit fails. After that the store accepts no more writes."""
        self._opened().on_failure.append(callback)

    def hasten(self) -> None:
        """Start the next commit as soon as possible, even if no task waits for it."""
        self.open_group().hasten()

    async def durable(self, group: Group | None = None) -> None:
        """Wait until `group`, which `stage` returned, is durable. Without a group, wait for
        everything that was staged before this call."""
        if group is None or not group.durable:
            await self._opened().durable(group)

    async def commit(self, batch: Batch) -> None:
        """Stage `batch` and wait until it is durable."""
        await self.durable(self.stage(batch))

    def crash(self) -> None:
        """Lose everything that is not durable, like a killed process. This is for tests.

        Blocks that have the store open cannot write any more. Once they have ended, you can open
        the store again with the records that were durable."""
        self._opened().fail(StoreCrashed("the store crashed before this was durable"))

    def statistics(self) -> CommitStatistics:
        """Return the statistics of commits since the store was opened."""
        return self._opened().statistics()

    def _opened(self) -> GroupCommit:
        if self._group is None:
            raise self._not_open()
        return self._group

    def _not_open(self) -> StoreClosed:
        return StoreClosed(
            f"{self!r} is not open: use it inside of the block that opens it, which is "
            "`async with store:` or that of the runtime"
        )

    async def __aenter__(self) -> Self:
        async with self._lifecycle_lock:
            if self._users == 0:
                await self._open()
                try:
                    tables = set(self._tables_there())
                except BaseException:
                    with trio.CancelScope(shield=True):
                        await self._close()
                    raise
                self._group = GroupCommit(
                    self._commit,
                    self._publish,
                    tables=tables,
                    max_tables=self.max_tables,
                    full_bytes=self.full_group_bytes,
                )
                self._group.start(self._refuses_writes())
            self._users += 1
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with trio.CancelScope(shield=True):
            async with self._lifecycle_lock:
                self._users -= 1
                if self._users:
                    return
                group = self._opened()
                await group.stop()
                self._group = None
                await self._close()
        failure = group.failure
        if failure is not None and error is not None and not isinstance(failure, _REPORTED):
            logger.error("%r was closed after a failed commit: %s", self, failure)
        if failure is not None and error is None and not isinstance(failure, _EXPECTED):
            if isinstance(failure, StoreLost):
                raise group.refusal()
            raise StoreError(
                f"{self!r} was closed after a failed commit; records that were not acknowledged "
                "by then may be missing"
            ) from failure
