"""The writer: the only code that writes to an LMDB environment.

The inline committer calls it in the loop's own thread; run as a program it is the child of the
process committer, which gets batches over a socket. It imports nothing of Keyrun, so that the
child starts fast and holds only what it needs.
"""

import errno
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import lmdb
import msgpack

MAX_TABLES = 128
MAX_READERS = 1024
CHECK_READERS_EVERY = 4096
READERS_FILE = "lock.mdb"
HEADER = struct.Struct("<Q")

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_READERS_BYTES = 64 * (MAX_READERS + 2)
"""A cache line for each reader, and two for the shared part."""

FULL = "full"
FAILED = "failed"


def open_environment(
    path: str, *, map_size: int, read_only: bool = False, sync: bool = True
) -> lmdb.Environment:
    """Open with the flags that keep every acknowledged commit over a power loss. `writemap` stays
    off: with it a full disk ends the process by SIGBUS."""
    _reserve_readers(path)
    return lmdb.open(
        path,
        map_size=map_size,
        # The store needs one table itself, and a search for a missing table takes a place, too.
        max_dbs=MAX_TABLES + 2,
        max_readers=MAX_READERS,
        readonly=read_only,
        sync=sync,
        metasync=sync,
        create=not read_only,
    )


def _reserve_readers(path: str) -> None:
    """Reserve room on the disk for the table of readers, which LMDB writes through a map.

    This does nothing if the table exists. Closing its file would drop the locks that LMDB holds on
    it in this process.
    """
    file = os.path.join(path, READERS_FILE)  # noqa: PTH118 (pathlib is slow to start)
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        if os.path.exists(file) and os.path.getsize(file) >= _READERS_BYTES:  # noqa: PTH110, PTH202
            return
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.posix_fallocate(descriptor, 0, _READERS_BYTES)
        finally:
            os.close(descriptor)
    except OSError as error:
        # LMDB reports other errors better, and accepts a read-only file system.
        if error.errno in _NO_ROOM:
            raise


def explain(error: Exception, path: str) -> tuple[str, str]:
    """Return the kind of a failure, and a sentence that describes it.

    A disk that fills up in the middle of a page is a short write to LMDB, which calls it an I/O
    error; so the free space decides.
    """
    code = getattr(error, "code", None) or getattr(error, "errno", None)
    space = os.statvfs(path)
    # The last blocks of a disk are often reserved for root, or too fragmented to be used.
    nearly_full = space.f_bavail * space.f_frsize < 1 << 16
    if code in _NO_ROOM or (code == errno.EIO and nearly_full):
        return FULL, f"no space left for {path}: {error}; make room, then open the store again"
    if code == errno.ENOMEM:
        return FULL, f"no address space for a larger map of {path}: {error}; raise the limit"
    return FAILED, f"the commit to {path} failed: {error}; open the store again to continue"


class Writer:
    """Applies tables to an environment, each call one transaction and one sync."""

    def __init__(self, environment: lmdb.Environment) -> None:
        self.environment = environment
        self.databases: dict[str, Any] = {}
        self._commits = 0

    def apply(self, tables: Mapping[str, Mapping[bytes, bytes | None]]) -> None:
        """Write all of `tables` or nothing. When this returns, they are on the disk."""
        self.finish(self.prepare(tables), tables)

    def prepare(self, tables: Mapping[str, Mapping[bytes, bytes | None]]) -> Any:
        """Write `tables` in a transaction that is open, and that no read shows. Pass it to `finish`
        or abort it before the next call."""
        self._commits += 1
        if self._commits % CHECK_READERS_EVERY == 0:
            # The pages of the snapshot of a killed reader could not be used again.
            self.environment.reader_check()
        while True:
            transaction = None
            try:
                self._open_databases(tables)
                transaction = self.environment.begin(write=True)
                for table, operations in tables.items():
                    _write(transaction, self.databases[table], operations)
                return transaction
            except lmdb.MapFullError:
                # Nothing was applied. The map may grow when no transaction is open.
                if transaction is not None:
                    transaction.abort()
                self._grow()
            except BaseException:
                if transaction is not None:
                    transaction.abort()
                raise

    def finish(self, transaction: Any, tables: Mapping[str, Mapping[bytes, bytes | None]]) -> None:
        """Commit a transaction that has written `tables`."""
        while True:
            try:
                transaction.commit()
                return
            except lmdb.MapFullError:
                self._grow()
                transaction = self.prepare(tables)

    def append(self, table: str, records: list[tuple[bytes, bytes]]) -> None:
        """Write records in the order of their keys, all of which are above those of the table."""
        self._open_databases((table,))
        while True:
            try:
                with self.environment.begin(write=True) as transaction:
                    with transaction.cursor(db=self.databases[table]) as cursor:
                        cursor.putmulti(records, append=True)
                return
            except lmdb.MapFullError:
                self._grow()

    def _open_databases(self, tables: Iterable[str]) -> None:
        for table in tables:
            while table not in self.databases:
                try:
                    self.databases[table] = self.environment.open_db(table.encode())
                except lmdb.MapFullError:
                    self._grow()

    def _grow(self) -> None:
        self.environment.set_mapsize(2 * self.environment.info()["map_size"])


def _write(transaction: Any, database: Any, operations: Mapping[bytes, bytes | None]) -> None:
    puts: Any = operations.items()
    if None in operations.values():
        puts = [item for item in puts if item[1] is not None]
        for key, value in operations.items():
            if value is None:
                transaction.delete(key, db=database)
    with transaction.cursor(db=database) as cursor:
        cursor.putmulti(puts)


def receive(connection: socket.socket) -> Any:
    """Return the next message, or None if the other side has closed the socket."""
    header = _exactly(connection, HEADER.size)
    body = header and _exactly(connection, HEADER.unpack(header)[0])
    return body and msgpack.unpackb(body, strict_map_key=False, use_list=True)


def frame(message: Any) -> bytes:
    """Return `message` in its form on the socket."""
    body: bytes = msgpack.packb(message)
    return HEADER.pack(len(body)) + body


def _exactly(connection: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            return None
        parts += part
    return bytes(parts)


def serve(connection: socket.socket, writer: Writer) -> None:
    """Apply each message and answer it: None when it is durable, or [kind, sentence]. Return when
    the other side has closed the socket, or after the first failure."""
    path = writer.environment.path()
    connection.sendall(frame(None))
    while (tables := receive(connection)) is not None:
        try:
            writer.apply(tables)
        except Exception as error:
            connection.sendall(frame(explain(error, path)))
            return
        connection.sendall(frame(None))


def main(path: str, descriptor: str, map_size: str) -> None:
    """Run the child process."""
    # Ctrl-C and the SIGTERM of a service manager reach the whole process group. The parent decides
    # when to stop, because its drain still needs this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with socket.socket(fileno=int(descriptor)) as connection:
        try:
            environment = open_environment(path, map_size=int(map_size))
        except Exception as error:
            connection.sendall(frame(explain(error, path)))
            return
        try:
            serve(connection, Writer(environment))
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            environment.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
