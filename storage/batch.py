"""A batch: puts and deletes over several tables that are applied whole or not at all.

The last word on a key wins, so a batch holds at most one operation per key and can be merged into
another by laying it on top.
"""

import re
from collections.abc import Mapping

from keyrun.storage.errors import BatchTooLarge

MAX_KEY_BYTES = 511
"""The longest key that LMDB allows, namespace included."""

Tables = Mapping[str, Mapping[bytes, bytes | None]]
"""table -> key -> value, or None where the key is deleted."""

_checked: set[str] = set()
"""Valid names of tables, to check each of them once."""

_TABLE_NAME = re.compile(r"[a-z][a-z0-9_]{0,31}")


def check_table(table: str) -> None:
    """Raise ValueError unless `table` can name a table."""
    if isinstance(table, str) and table in _checked:
        return
    if not isinstance(table, str) or not _TABLE_NAME.fullmatch(table):
        raise ValueError(
            f"table must be 1 to 32 of a-z, 0-9 and _, starting with a letter, got {table!r}"
        )
    if len(_checked) < 128:
        _checked.add(table)


def check_key(key: bytes) -> None:
    """Raise unless `key` can be the key of a record."""
    if not isinstance(key, bytes):
        raise TypeError(f"key must be bytes, got {type(key).__name__}")
    if not 0 < len(key) <= MAX_KEY_BYTES:
        raise ValueError(f"key must have 1 to {MAX_KEY_BYTES} bytes, got {len(key)}")


def size_of(tables: Tables) -> int:
    """Return the bytes of all keys and values."""
    return sum(
        len(key) + (0 if value is None else len(value))
        for operations in tables.values()
        for key, value in operations.items()
    )


def check_size(tables: Tables, limit: int) -> None:
    """Raise unless keys and values have at most `limit` bytes together."""
    size = size_of(tables)
    if size > limit:
        raise BatchTooLarge(
            f"the batch has {size} bytes, and the store commits at most {limit} at once; divide "
            "the batch, or keep large data outside and store where it is"
        )


class Batch:
    """Collect puts and deletes over several tables. A store applies all of them or none. If you
    change a key twice, the last change counts."""

    __slots__ = ("_prefix", "tables")

    def __init__(self, prefix: bytes = b"") -> None:
        self._prefix = prefix
        self.tables: dict[str, dict[bytes, bytes | None]] = {}

    def put(self, table: str, key: bytes, value: bytes) -> None:
        """Write `value` under `key`, and replace a value that is there."""
        if type(value) is not bytes:
            raise TypeError(f"value must be bytes, got {type(value).__name__}")
        operations = self.tables.get(table)
        if operations is None or type(key) is not bytes:
            self._set(table, key, value)
            return
        full = self._prefix + key if self._prefix else key
        if 0 < len(full) <= MAX_KEY_BYTES:
            operations[full] = value
        else:
            check_key(full)

    def delete(self, table: str, key: bytes) -> None:
        """Remove `key`. A key that does not exist is ignored."""
        self._set(table, key, None)

    def _set(self, table: str, key: bytes, value: bytes | None) -> None:
        if not isinstance(key, bytes):
            raise TypeError(f"key must be bytes, got {type(key).__name__}")
        full = self._prefix + key
        check_key(full)
        operations = self.tables.get(table)
        if operations is None:
            operations = self._add(table)
        operations[full] = value

    def _add(self, table: str) -> dict[bytes, bytes | None]:
        check_table(table)
        operations = self.tables[table] = {}
        return operations

    def __len__(self) -> int:
        return sum(map(len, self.tables.values()))

    def __repr__(self) -> str:
        return f"Batch({len(self)} operations in {sorted(self.tables)})"
