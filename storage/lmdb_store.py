"""The LMDB store: a directory that one process writes and any number of processes read.

Reads are memory lookups in the loop's thread. Writes go through a committer.

The child of the process committer commits before it answers. While such a commit is under way,
reads come from a snapshot of the commit before it. This keeps no pages that LMDB would use
otherwise: a writer never uses the pages of the commit right before its own.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
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
    StoreError,
    StoreFull,
    StoreLocked,
    StoreReadOnly,
)
from keyrun.storage.lmdb_reads import LmdbReads
from keyrun.storage.store import Store

CommitterName = Literal["inline", "process"]

DEFAULT_MAP_SIZE = 1 << 36
_MIN_MAP_SIZE = 1 << 20
_ORPHAN_TIMEOUT = 5.0


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
        self._reads: LmdbReads | None = None
        self._committer: Committer | None = None
        self._lock: ownership.OwnerLock | None = None
        self._fork_token: Any = None
        self._held_for_commit = False
        """Whether reads are of a snapshot because a commit is under way."""
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
        self._reads = self._reads_of(environment, {})

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
                self._committer = InlineCommitter(hand)
                self._reads = self._reads_of(environment, hand.databases)
            else:
                environment.close()
                self._committer = await ProcessCommitter.start(
                    self.path, map_size=self._map_size, lock=self._lock.fileno()
                )
                self._reads = self._reads_of(self._open_environment(read_only=True), {})
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

    def _reads_of(self, environment: lmdb.Environment, databases: dict[str, Any]) -> LmdbReads:
        return LmdbReads(
            environment, databases, place=str(self.path), disowned=self._of_parent_process
        )

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
        reads, self._reads = self._reads, None
        lock, self._lock = self._lock, None
        self._held_for_commit = False
        if committer is not None:
            await committer.close()
        if reads is not None:
            reads.close()
        if lock is not None:
            lock.release()

    def _forked(self) -> None:
        if self._reads is not None:
            self._reads.forked()
        if self._committer is not None:
            self._committer.forked()
        if self._lock is not None:
            self._lock.drop()
        self._committer = self._lock = None
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
        return self._opened_reads().tables()

    async def _commit(self, tables: Tables) -> None:
        committer = self._committer
        assert committer is not None
        reads = self._opened_reads()
        if committer.suspends and not reads.is_held:
            reads.hold()
            self._held_for_commit = True
        await committer.commit(tables)

    def _publish(self, tables: Tables) -> None:
        # A failed commit is never published, so its snapshot stays until the store is closed.
        if self._held_for_commit:
            self._held_for_commit = False
            self._opened_reads().release()

    async def _get(self, table: str, key: bytes) -> bytes | None:
        return self._opened_reads().get(table, key)

    async def _scan(
        self, table: str, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        return self._opened_reads().scan(table, start, stop, limit, reverse)

    async def _get_many(self, table: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        return self._opened_reads().get_many(table, keys)

    async def _scan_each(
        self,
        table: str,
        ranges: Sequence[tuple[bytes, bytes | None]],
        limit: int | None,
        reverse: bool,
    ) -> list[list[tuple[bytes, bytes]]]:
        return self._opened_reads().scan_each(table, ranges, limit, reverse)

    def view(self) -> AbstractContextManager[None]:
        return self._opened_reads().view()

    def _opened_reads(self) -> LmdbReads:
        if self._reads is None:
            raise self._not_open()
        return self._reads

    def __repr__(self) -> str:
        return f"LmdbStore({str(self.path)!r})"
