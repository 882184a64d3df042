"""Load: fill the image with the records of a part, and replay the commits behind them.

Both come from one transaction, in which all statements see the same commits. The database sends
the records in the order of their keys, so the image only appends.
"""

from keyrun.storage.postgres import statements
from keyrun.storage.postgres.image import Image
from keyrun.storage.postgres.wire import Wire

CHUNK_BYTES = 4 << 20
"""The bytes that are collected before they are written to the image."""

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
    changes.apply()
    await wire.run(statements.COMMIT)
    return folded


class _Copied:
    """Collects the records of a binary COPY with the columns table, key and value."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self.table = ""
        """The table of the records that are collected."""
        self.chunk: list[tuple[bytes, bytes | None]] = []
        self._size = 0
        self._is_first = True
        self._header = b""
        """The bytes of a record before its key: the number of columns, and the table."""

    def take(self, message: memoryview) -> None:
        row = bytes(message)
        if self._is_first:
            self._is_first = False
            row = row[_SIGNATURE:]
            if not row:
                return
        header = self._header
        if not header or not row.startswith(header):
            if len(row) <= 2:
                return  # the end
            end = 6 + int.from_bytes(row[2:6], "big")
            self.flush()
            self.table = row[6:end].decode()
            header = self._header = row[:end]
        start = len(header) + 4
        end = start + int.from_bytes(row[start - 4 : start], "big")
        value = None if row[end : end + 4] == _NULL else row[end + 4 :]
        self.chunk.append((row[start:end], value))
        self._size += len(row)
        if self._size > CHUNK_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what was collected."""
        chunk, self.chunk, self._size = self.chunk, [], 0
        if chunk:
            self.write(chunk)

    def write(self, chunk: list[tuple[bytes, bytes | None]]) -> None:
        """Write records of one table."""
        raise NotImplementedError


class _Records(_Copied):
    """Appends records to the image."""

    def write(self, chunk: list[tuple[bytes, bytes | None]]) -> None:
        self.image.fill(self.table, chunk)  # type: ignore[arg-type]  # records have values


class _Changes(_Copied):
    """Applies the commits behind the records, in their order."""

    def __init__(self, image: Image) -> None:
        super().__init__(image)
        self._tables: dict[str, dict[bytes, bytes | None]] = {}
        self._staged = 0

    def write(self, chunk: list[tuple[bytes, bytes | None]]) -> None:
        self._tables.setdefault(self.table, {}).update(chunk)
        self._staged += sum(len(value or b"") + 100 for _, value in chunk)
        if self._staged > CHUNK_BYTES:
            self.apply()

    def apply(self) -> None:
        """Apply everything that was collected."""
        if self._tables:
            self.image.apply(self._tables)
            self._tables = {}
            self._staged = 0
