"""Arrays: the records of a group commit as three binary arrays, of tables, keys and values.

The value of a deleted key is NULL. Arrays let the database move a commit into records with one
statement, and they are far faster to make than one statement for each record.
"""

from struct import Struct

import attrs

from keyrun.storage.batch import MAX_KEY_BYTES, Tables

TEXT_ARRAY = 1009
BYTEA_ARRAY = 1001

_TEXT = 25
_BYTEA = 17
_NULL = b"\xff\xff\xff\xff"
_HEADER = Struct("!iiIii")
"""Dimensions, whether there are NULLs, the type of the elements, their number, the first index."""
_EMPTY_HEADER = Struct("!iiI")
_LENGTH = Struct("!i")
_LENGTHS = [_LENGTH.pack(length) for length in range(4096)]


@attrs.frozen
class Arrays:
    """The records of one group commit."""

    tables: bytes
    keys: bytes
    values: bytes

    @property
    def size(self) -> int:
        """The size in bytes."""
        return len(self.tables) + len(self.keys) + len(self.values)


def encode(tables: Tables) -> Arrays:
    """Return the records of `tables` as arrays."""
    names: list[bytes] = []
    keys: list[bytes] = []
    values: list[bytes] = []
    count = 0
    lengths = _LENGTHS
    for table, operations in tables.items():
        count += len(operations)
        name = table.encode()
        names.append((lengths[len(name)] + name) * len(operations))
        for key, value in operations.items():
            keys += (lengths[len(key)], key)
            if value is None:
                values.append(_NULL)
            elif len(value) < 4096:
                values += (lengths[len(value)], value)
            else:
                values += (_LENGTH.pack(len(value)), value)
    return Arrays(
        _array(_TEXT, names, count), _array(_BYTEA, keys, count), _array(_BYTEA, values, count)
    )


def _array(element: int, parts: list[bytes], count: int) -> bytes:
    if not count:
        return _EMPTY_HEADER.pack(0, 0, element)
    return _HEADER.pack(1, 1, element, count, 1) + b"".join(parts)


EMPTY = encode({})
"""The arrays of a commit without records."""

assert len(_LENGTHS) > MAX_KEY_BYTES
