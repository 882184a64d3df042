"""Load: fill the image with the records of a part, and replay the commits behind them.

Both come from one transaction, in which all statements see the same commits. The database sends
the records in the order of their keys, so the image only appends.
"""

from keyrun.storage.postgres import statements
from keyrun.storage.postgres.image import Image
from keyrun.storage.postgres.wire import Wire

CHUNK = 20_000
"""The most records that are collected before they are written to the image."""
CHUNK_BYTES = 4 << 20

_SIGNATURE = 19
"""Bytes at the beginning of a binary COPY, before the first record."""
_NULL = b"\xff\xff\xff\xff"


async def load(wire: Wire, part: int, image: Image) -> int:
    """Fill the image with the records of a part. Return the position of the fold."""
    await wire.run(statements.BEGIN_SNAPSHOT)
    await wire.run(statements.PLAN_BY_INDEX)
    folded = int((await wire.run(statements.FOLDED, part)).texts()[0] or 0)
    records = _Records(image)
    await wire.copy(statements.copy_records(part), records.take)
    records.flush()
    changes = _Changes(image)
    await wire.copy(statements.copy_log(part, folded), changes.take)
    changes.flush()
    await wire.run(statements.COMMIT)
    return folded


class _Copied:
    """Reads the messages of a binary COPY with the columns table, key and value."""

    def __init__(self) -> None:
        self._is_first = True
        self._header = b""
        """The bytes of a record before its key: the number of columns, and the table."""
        self.table = ""

    def take(self, message: memoryview) -> None:
        row = bytes(message)
        if self._is_first:
            self._is_first = False
            row = row[_SIGNATURE:]
            if not row:
                return
        header = self._header
        if not row.startswith(header) or not header:
            if len(row) <= 2:
                return  # the end
            end = 6 + int.from_bytes(row[2:6], "big")
            self.begin(row[6:end].decode())
            header = self._header = row[:end]
        start = len(header) + 4
        end = start + int.from_bytes(row[start - 4 : start], "big")
        size = row[end : end + 4]
        self.record(row[start:end], None if size == _NULL else row[end + 4 :])

    def begin(self, table: str) -> None:
        """Take the table of the next records."""
        self.table = table

    def record(self, key: bytes, value: bytes | None) -> None:
        """Take a record."""
        raise NotImplementedError


class _Records(_Copied):
    """Appends records to the image."""

    def __init__(self, image: Image) -> None:
        super().__init__()
        self._image = image
        self._chunk: list[tuple[bytes, bytes]] = []
        self._size = 0

    def begin(self, table: str) -> None:
        self.flush()
        self.table = table

    def record(self, key: bytes, value: bytes | None) -> None:
        assert value is not None
        self._chunk.append((key, value))
        self._size += len(value)
        if len(self._chunk) == CHUNK or self._size > CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if self._chunk:
            self._image.fill(self.table, self._chunk)
            self._chunk = []
            self._size = 0


class _Changes(_Copied):
    """Applies the commits behind the records, in their order."""

    def __init__(self, image: Image) -> None:
        super().__init__()
        self._image = image
        self._tables: dict[str, dict[bytes, bytes | None]] = {}
        self._count = self._size = 0

    def record(self, key: bytes, value: bytes | None) -> None:
        self._tables.setdefault(self.table, {})[key] = value
        self._count += 1
        self._size += len(value or b"")
        if self._count == CHUNK or self._size > CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        if self._tables:
            self._image.apply(self._tables)
            self._tables = {}
            self._count = self._size = 0
