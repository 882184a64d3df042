"""A record, the value under one key of one table: checksum, format version, fields.

A record is a CRC-32 (4 bytes), a format version (1 byte) and a msgpack array. The checksum covers
the table, the key, the version and the array, so that a record found in the wrong place is as
damaged as one with a flipped bit. Every function here may be called from any thread.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any
from zlib import crc32

from msgpack import Packer, unpackb

from keyrun.storage.errors import StoreCorrupt, StoreTooNew

VERSION = 1
_HEADER = Struct(">IB")
_HEADER_BYTES = _HEADER.size
_pack_header, _unpack_header = _HEADER.pack, _HEADER.unpack_from
_NO_FIELDS = b"\x90"
_SHOWN_KEY = 64


def seal(table: str, key: bytes, fields: Sequence[Any]) -> bytes:
    """Return the bytes of a record with a checksum over its table, key and fields. `fields` may
    contain None, bool, int, float, str, bytes, lists and dicts."""
    if type(fields) is not tuple and type(fields) is not list:
        kind = type(fields).__name__
        raise TypeError(f"the fields of a record must be a list or a tuple, got {kind}")
    # A shared packer is not safe in threads or if a finalizer seals a record, and it keeps the
    # memory of the largest record. A new packer costs 0.1 us.
    body: bytes = Packer(buf_size=512).pack(fields)
    seed = _seeds.get(table) or _seed_of(table, VERSION)
    return _pack_header(crc32(body, crc32(key, seed)), VERSION) + body


def seal_empty(table: str, key: bytes) -> bytes:
    """Return the bytes of a record without fields, whose key has everything."""
    seed = _seeds.get(table) or _seed_of(table, VERSION)
    return _pack_header(crc32(_NO_FIELDS, crc32(key, seed)), VERSION) + _NO_FIELDS


def unseal(table: str, key: bytes, raw: bytes) -> list[Any]:
    """Return the fields of a record that `seal` made. Tuples come back as lists.

    Raises `StoreCorrupt` if the checksum does not match the table, the key and the bytes, and
    `StoreTooNew` if the record has a newer format.
    """
    if len(raw) <= _HEADER_BYTES:
        raise _corrupt(table, key, f"it is only {len(raw)} bytes long")
    checksum, version = _unpack_header(raw)
    body = raw[_HEADER_BYTES:]
    today = version == VERSION
    seed = (today and _seeds.get(table)) or _seed_of(table, version)
    if checksum != crc32(body, crc32(key, seed)):
        raise _corrupt(table, key, "its checksum does not match")
    reader = _READERS.get(version)
    if reader is None:
        raise StoreTooNew(
            f"the record {_show(key)} in table {table!r} has format {version}, and this Keyrun "
            f"knows formats up to {VERSION}: it was written by a newer Keyrun; upgrade this one"
        )
    try:
        fields = reader(body)
    except Exception as error:  # whatever the bytes provoke, the answer is the same
        raise _corrupt(table, key, "its checksum matches but its content is not msgpack") from error
    if type(fields) is not list:
        raise _corrupt(table, key, "its checksum matches but its content is not a list of fields")
    return fields


def check(table: str, key: bytes, raw: bytes) -> None:
    """Raise the errors of `unseal`."""
    unseal(table, key, raw)


def _read_1(body: bytes) -> Any:
    return unpackb(body, strict_map_key=False, ext_hook=_no_extension)


# One reader per format ever written: records of an older Keyrun stay readable.
_READERS: dict[int, Callable[[bytes], Any]] = {1: _read_1}


def _no_extension(code: int, data: bytes) -> Any:
    raise ValueError(f"extension {code} in a record")


_seeds: dict[str, int] = {}
"""The start values of the checksums of today's format, by table."""


def _seed_of(table: str, version: int) -> int:
    # The zero byte keeps ("run", b"s...") and ("runs", b"...") apart.
    seed = crc32(table.encode() + b"\0") ^ version
    if version == VERSION:
        _seeds[table] = seed
    return seed


def _corrupt(table: str, key: bytes, what: str) -> StoreCorrupt:
    return StoreCorrupt(
        f"the record {_show(key)} in table {table!r} is damaged: {what}; "
        "run verify() to see what else is, and restore the store from a backup",
        table=table,
        key=key,
    )


def _show(key: bytes) -> str:
    return repr(key) if len(key) <= _SHOWN_KEY else f"{key[:_SHOWN_KEY]!r}..."
