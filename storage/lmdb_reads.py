"""The reads of an LMDB environment, for the store that has it open.

Each read is a memory lookup in a read transaction that ends before the call returns, since a long
one keeps old pages from being used again. While a snapshot is held, all reads are of one commit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from typing import Any

import lmdb

from keyrun.storage.errors import StoreClosed, StoreCorrupt
from keyrun.storage.identity import META_TABLE

Rows = list[tuple[bytes, bytes]]

_inherited: list[Any] = []
"""Environments and snapshots of a parent process. Closing one here would take the parent's place
among the readers, and the pages that the parent reads could be overwritten."""


class LmdbReads:
    """Reads records of the open `environment`, and closes it.

    `databases` are those that are open already; a writer in this process shares them.
    `are_complete` says that they are all that exist: LMDB cannot open one while a transaction
    writes. `place` names the store in errors, and `disowned` returns the error for reads in a
    forked child.
    """

    def __init__(
        self,
        environment: lmdb.Environment,
        databases: dict[str, Any],
        *,
        place: str,
        disowned: Callable[[], StoreClosed],
        are_complete: bool = False,
    ) -> None:
        self._environment: lmdb.Environment | None = environment
        self._databases = databases
        self._are_complete = are_complete
        self._place = place
        self._disowned = disowned
        self._held: lmdb.Transaction[bytes] | None = None
        """The snapshot of all reads between `hold` and `release`."""

    @property
    def environment(self) -> lmdb.Environment:
        """The environment."""
        if self._environment is None:
            raise self._disowned()
        return self._environment

    @property
    def is_held(self) -> bool:
        """Whether reads are of a snapshot."""
        return self._held is not None

    def close(self) -> None:
        """Close the environment. A forked child has nothing to close."""
        self.release()
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def forked(self) -> None:
        """Leave everything to the parent process."""
        _inherited.extend((self._environment, self._held))
        self._environment = self._held = None

    def tables(self) -> set[str]:
        """Return the names of all tables of records."""
        return set(self._names()) - {META_TABLE}

    def _names(self) -> list[str]:
        try:
            return [bytes(name).decode() for name in self.environment.dbs()]
        except (lmdb.Error, UnicodeDecodeError) as error:
            raise self._unreadable(META_TABLE, error) from error

    def get(self, table: str, key: bytes) -> bytes | None:
        """Return the record under `key`, or None."""
        database = self._database(table)
        if database is None:
            return None
        try:
            if self._held is not None:
                return self._held.get(key, db=database)
            with self._snapshot() as transaction:
                return transaction.get(key, db=database)
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    def scan(
        self, table: str, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
    ) -> Rows:
        """Return at most `limit` records with start <= key < stop, in key order or its reverse."""
        return self.scan_each(table, [(start, stop)], limit, reverse)[0]

    def get_many(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the records under `keys` that exist."""
        database = self._database(table)
        if database is None:
            return {}
        try:
            with self._reading() as transaction, transaction.cursor(db=database) as cursor:
                return dict(cursor.getmulti(keys))
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    def scan_each(
        self,
        table: str,
        ranges: Sequence[tuple[bytes, bytes | None]],
        limit: int | None,
        reverse: bool,
    ) -> list[Rows]:
        """Return the records of `scan` for each range, as of one commit."""
        database = self._database(table)
        if database is None:
            return [[] for _ in ranges]
        try:
            with self._reading() as transaction, transaction.cursor(db=database) as cursor:
                return [_rows(cursor, start, stop, limit, reverse) for start, stop in ranges]
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    @contextmanager
    def view(self) -> Iterator[None]:
        """Return a block in which all reads are of one commit."""
        if self._held is not None:
            yield
            return
        self.hold()
        try:
            yield
        finally:
            self.release()

    def hold(self) -> None:
        """Read from the last commit, and nothing later, until `release`."""
        self._snapshot().abort()  # adopts a map that has grown
        # LMDB knows a table in a snapshot only if it was opened before. Tables are never removed.
        if not self._are_complete and len(names := self._names()) > len(self._databases):
            for name in names:
                self._database(name)
        self._held = self._snapshot()

    def release(self) -> None:
        """Read from the latest commit again. A forked child has nothing to release."""
        held, self._held = self._held, None
        if held is not None:
            held.abort()

    def _snapshot(self) -> "lmdb.Transaction[bytes]":
        environment = self.environment
        try:
            return environment.begin()
        except lmdb.MapResizedError:
            environment.set_mapsize(0)
            return environment.begin()

    def _reading(self) -> "AbstractContextManager[lmdb.Transaction[bytes]]":
        return self._snapshot() if self._held is None else nullcontext(self._held)

    def _database(self, table: str) -> Any:
        database = self._databases.get(table)
        if database is None:
            if self._held is not None or self._are_complete:
                return None  # the table does not exist, or is younger than the snapshot
            self._snapshot().abort()  # adopts a map that has grown
            try:
                database = self.environment.open_db(table.encode(), create=False)
            except (lmdb.NotFoundError, lmdb.ReadonlyError):
                return None
            self._databases[table] = database
        return database

    def _unreadable(self, table: str, error: Exception) -> StoreCorrupt:
        return StoreCorrupt(
            f"the table {table!r} of {self._place} cannot be read: {error}; run verify() to see "
            "what is damaged, and restore the store from a backup",
            table=table,
        )


def _rows(cursor: Any, start: bytes, stop: bytes | None, limit: int | None, reverse: bool) -> Rows:
    """Return the records of a scan. The cursor may be anywhere before."""
    rows = []
    if reverse:
        found = cursor.last() if stop is None or not cursor.set_range(stop) else cursor.prev()
        if found:
            for key, value in islice(cursor.iterprev(), limit):
                if key < start:
                    break
                rows.append((key, value))
    elif cursor.set_range(start) if start else cursor.first():
        for key, value in islice(cursor.iternext(), limit):
            if stop is not None and key >= stop:
                break
            rows.append((key, value))
    return rows
