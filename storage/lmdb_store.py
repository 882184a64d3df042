"""The LMDB store: a directory that one process writes and any number of processes read.

Reads are memory lookups in the loop's thread, each in a read transaction that ends before the
call returns, since a long one keeps old pages from being used again. Writes go through a
committer.

The child of the process committer commits before it answers. While such a commit is under way,
reads come from a snapshot of the commit before it. This keeps no pages that LMDB would use
otherwise: a writer never uses the pages of the commit right before its own.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from shutil import disk_usage
from time import monotonic
from typing import Any, Literal, get_args

import lmdb
import trio

from keyrun.storage import identity, ownership, writer
from keyrun.storage.batch import Tables
from keyrun.storage.committer import Committer, InlineCommitter, ProcessCommitter
from keyrun.storage.errors import (
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from keyrun.storage.store import Store

CommitterName = Literal["inline", "process"]

DEFAULT_MAP_SIZE = 1 << 36
_MIN_MAP_SIZE = 1 << 20
_ORPHAN_TIMEOUT = 5.0

_inherited: list[Any] = []
"""Environments and snapshots of a parent process. Closing one here would take the parent's place
among the readers, and the pages that the parent reads could be overwritten."""


class LmdbStore(Store):
    """Keep records in a directory, with LMDB. One process writes, and any number of processes read.

    - `path`: the directory. It is created if it does not exist.
    - `committer`: With `"inline"`, commits run in the thread of the event loop. With `"process"`
      they run in a child process. If in doubt, use `"inline"`.
    - `map_size`: the address space in bytes. It is not disk space, and grows by itself.
    - `read_only`: Read a store that another process may own, and write nothing.
    """

    max_tables = writer.MAX_TABLES

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        committer: CommitterName = "inline",
        map_size: int = DEFAULT_MAP_SIZE,
        read_only: bool = False,
    ) -> None:
        if committer not in get_args(CommitterName):
            raise ValueError(f"committer must be 'inline' or 'process', got {committer!r}")
        if map_size < _MIN_MAP_SIZE:
            raise ValueError(f"map_size must be at least {_MIN_MAP_SIZE} bytes, got {map_size}")
        super().__init__()
        self.path = Path(path)
        """The directory of the store."""
        self.read_only = read_only
        """Whether the store was opened for reading only."""
        self._committer_name = committer
        self._map_size = map_size
        self._environment: lmdb.Environment | None = None
        self._databases: dict[str, Any] = {}
        self._committer: Committer | None = None
        self._lock: ownership.OwnerLock | None = None
        self._fork_token: Any = None
        self._view: lmdb.Transaction[bytes] | None = None
        """The snapshot of all reads in a `view`, and while a commit is under way."""
        self._held_for_commit = False
        self._opened_by = 0

    def size(self) -> int:
        """Return the size of the data file in bytes. It does not shrink by itself."""
        return (self.path / identity.DATA_FILE).stat().st_size

    def disk_free(self) -> int:
        """Return the free space in bytes on the disk of the store."""
        return disk_usage(self.path).free

    async def _open(self) -> None:
        self._opened_by = os.getpid()
        try:
            if self.read_only:
                self._open_for_reading()
            else:
                await self._open_for_writing()
        except StoreError:
            raise
        except (lmdb.Error, OSError) as error:
            raise self._cannot_open(error) from error
        self._fork_token = ownership.disown_after_fork(self._forked)

    def _open_for_reading(self) -> None:
        expected = identity.check_data_file(self.path)
        if expected is None:
            raise StoreError(f"there is no Keyrun store at {self.path}")
        environment = self._open_environment(read_only=True)
        try:
            identity.check_length(environment, self.path)
            identity.check_same(self.path, expected, identity.stored_identity(environment))
        except BaseException:
            environment.close()
            raise
        self._environment = environment

    async def _open_for_writing(self) -> None:
        if self.path.exists() and not self.path.is_dir():
            raise StoreError(f"{self.path} is a file; a store is a directory")
        identity.make_directory(self.path)
        self._lock = await self._acquire()
        try:
            expected = identity.check_data_file(self.path)
            try:
                environment = self._open_environment()
            except lmdb.InvalidError:
                if expected is not None or not identity.put_aside_unfinished(self.path):
                    raise
                environment = self._open_environment()
            try:
                if not identity.check_length(environment, self.path):
                    identity.extend_data_file(environment, self.path)
                identity.adopt(environment, self.path, expected)
                environment.reader_check()
            except BaseException:
                environment.close()
                raise
            if self._committer_name == "inline":
                hand = writer.Writer(environment)
                self._databases = hand.databases
                self._committer = InlineCommitter(hand)
                self._environment = environment
            else:
                environment.close()
                self._committer = await ProcessCommitter.start(
                    self.path, map_size=self._map_size, lock=self._lock.fileno()
                )
                self._environment = self._open_environment(read_only=True)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self._let_go()
            raise

    async def _acquire(self) -> ownership.OwnerLock:
        give_up_at = monotonic() + _ORPHAN_TIMEOUT
        while True:
            try:
                return ownership.OwnerLock(self.path)
            except StoreLocked as error:
                if not ownership.owner_has_ended(error) or monotonic() > give_up_at:
                    raise
            await trio.sleep(0.01)

    def _open_environment(self, *, read_only: bool = False) -> lmdb.Environment:
        return writer.open_environment(str(self.path), map_size=self._map_size, read_only=read_only)

    def _cannot_open(self, error: Exception) -> StoreError:
        places = (self.path, *self.path.absolute().parents)
        there = next(place for place in places if os.path.exists(place))  # noqa: PTH110 (never raises)
        kind, sentence = writer.explain(error, str(there))
        if kind == writer.FULL:
            return StoreFull(sentence)
        way_out = ""
        if "already open in this process" in str(error):
            way_out = " Share that Store object: a runtime has all methods of a reader."
        return StoreError(f"cannot open the store {self.path}: {error}{way_out}")

    async def _close(self) -> None:
        ownership.forget_fork(self._fork_token)
        await self._let_go()

    async def _let_go(self) -> None:
        committer, self._committer = self._committer, None
        environment, self._environment = self._environment, None
        lock, self._lock = self._lock, None
        self._databases = {}
        if committer is not None:
            await committer.close()
        self._release()
        if environment is not None:
            environment.close()
        if lock is not None:
            lock.release()

    def _forked(self) -> None:
        _inherited.extend((self._environment, self._view))
        self._view = None
        if self._committer is not None:
            self._committer.forked()
        if self._lock is not None:
            self._lock.drop()
        self._environment = self._committer = self._lock = None
        if self._group is not None:
            self._group.disown(self._of_parent_process())

    def _of_parent_process(self) -> StoreClosed:
        return StoreClosed(
            f"the store {self.path} was opened by process {self._opened_by} and cannot be used "
            "after a fork; open it in one process only, after forking"
        )

    def _refuses_writes(self) -> StoreError | None:
        if not self.read_only:
            return None
        return StoreReadOnly(f"the store {self.path} was opened read-only; nothing can be written")

    def _tables_there(self) -> Iterable[str]:
        return set(self._table_names()) - {identity.META_TABLE}

    def _table_names(self) -> list[str]:
        try:
            return [bytes(name).decode() for name in self._mapped().dbs()]
        except (lmdb.Error, UnicodeDecodeError) as error:
            raise self._unreadable(identity.META_TABLE, error) from error

    async def _commit(self, tables: Tables) -> None:
        committer = self._committer
        assert committer is not None
        if committer.suspends and self._view is None:
            self._hold()
            self._held_for_commit = True
        await committer.commit(tables)

    def _publish(self, tables: Tables) -> None:
        # A failed commit is never published, so its snapshot stays until the store is closed.
        if self._held_for_commit:
            self._release()

    async def _get(self, table: str, key: bytes) -> bytes | None:
        database = self._database(table)
        if database is None:
            return None
        try:
            if self._view is not None:
                return self._view.get(key, db=database)
            with self._snapshot() as transaction:
                return transaction.get(key, db=database)
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    async def _scan(
        self, table: str, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        database = self._database(table)
        if database is None:
            return []
        try:
            with self._reading() as transaction, transaction.cursor(db=database) as cursor:
                return _rows(cursor, start, stop, limit, reverse)
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    async def _get_many(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        database = self._database(table)
        if database is None:
            return {}
        try:
            with self._reading() as transaction, transaction.cursor(db=database) as cursor:
                return dict(cursor.getmulti(keys))
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    async def _scan_each(
        self,
        table: str,
        ranges: Sequence[tuple[bytes, bytes | None]],
        limit: int | None,
        reverse: bool,
    ) -> list[list[tuple[bytes, bytes]]]:
        database = self._database(table)
        if database is None:
            return [[] for _ in ranges]
        try:
            with self._reading() as transaction, transaction.cursor(db=database) as cursor:
                return [_rows(cursor, start, stop, limit, reverse) for start, stop in ranges]
        except lmdb.Error as error:
            raise self._unreadable(table, error) from error

    def _unreadable(self, table: str, error: Exception) -> StoreCorrupt:
        return StoreCorrupt(
            f"the table {table!r} of {self.path} cannot be read: {error}; run verify() to see what "
            "is damaged, and restore the store from a backup",
            table=table,
        )

    @contextmanager
    def view(self) -> Iterator[None]:
        if self._view is not None:
            yield
            return
        self._hold()
        try:
            yield
        finally:
            self._release()

    def _hold(self) -> None:
        """Read from the last commit, and nothing later, until `_release`."""
        self._snapshot().abort()  # adopts a map that has grown
        # LMDB knows a table in a snapshot only if it was opened before. Tables are never removed.
        names = self._table_names()
        if len(names) > len(self._databases):
            for name in names:
                self._database(name)
        self._view = self._snapshot()

    def _release(self) -> None:
        """Read from the latest commit again. A forked child has nothing to release."""
        self._held_for_commit = False
        view, self._view = self._view, None
        if view is not None:
            view.abort()

    def _snapshot(self) -> "lmdb.Transaction[bytes]":
        environment = self._mapped()
        try:
            return environment.begin()
        except lmdb.MapResizedError:
            environment.set_mapsize(0)
            return environment.begin()

    def _reading(self) -> "AbstractContextManager[lmdb.Transaction[bytes]]":
        return self._snapshot() if self._view is None else nullcontext(self._view)

    def _database(self, table: str) -> Any:
        database = self._databases.get(table)
        if database is None:
            if self._view is not None:
                return None  # the table is younger than the snapshot
            self._snapshot().abort()  # adopts a map that has grown
            try:
                database = self._mapped().open_db(table.encode(), create=False)
            except (lmdb.NotFoundError, lmdb.ReadonlyError):
                return None
            self._databases[table] = database
        return database

    def _mapped(self) -> lmdb.Environment:
        if self._environment is None:
            raise self._of_parent_process()
        return self._environment

    def __repr__(self) -> str:
        return f"LmdbStore({str(self.path)!r})"


def _rows(
    cursor: Any, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
) -> list[tuple[bytes, bytes]]:
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
