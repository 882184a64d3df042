"""The msgpack extensions: how tuple, datetime, date, Decimal and UUID are written and read.

Each scalar has one spelling only: what is read is written again and must give the same bytes, so
that no two payloads stand for the same value. The codes and layouts are for ever.
"""

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Context, Decimal
from struct import Struct
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from msgpack import ExtType

from keyrun.storage.misfit import Misfit, PayloadError, a

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

# A tuple is an array whose first element is this mark. An extension that holds packed bytes would
# be copied once per level and need a packer per level.
TUPLE_MARK = ExtType(1, b"")
# The first byte of the stored mark. Data without this byte has no tuples.
TUPLE_MARK_BYTE = 0xC7

_MICROSECOND = timedelta(microseconds=1)
_LOCAL_TIME = Struct(">HBBBBBIB")
_OFFSET = re.compile(r"(-?[0-9]{1,12})(?:=(.*))?", re.DOTALL)
# The context of the thread decides how str() spells a Decimal; this one never changes.
_SPELLING = Context(capitals=1)


def to_extension(value: Any) -> Any:
    """Return a value that msgpack can write in place of `value`. This is the default hook of the
    packer."""
    kind = type(value)
    if kind is tuple:
        return [TUPLE_MARK, *value]
    scalar = _BY_KIND.get(kind)
    if scalar is None:
        raise Misfit(f"cannot store {a(kind)}")
    return ExtType(scalar.code, scalar.write(value))


def from_extension(code: int, data: bytes) -> Any:
    """Return the value of an extension type. The mark of a tuple stays unchanged. This is the
    extension hook of the unpacker."""
    if code == TUPLE_MARK.code and not data:
        return TUPLE_MARK
    scalar = _BY_CODE.get(code)
    if scalar is None:
        raise PayloadError(f"it holds an extension of unknown code {code}")
    try:
        value = scalar.read(data)
        exact = scalar.write(value) == data
    except PayloadError:
        raise
    except Exception as error:  # parsers and time zone files raise what they like
        raise PayloadError(f"it holds a damaged {scalar.kind.__name__}") from error
    if not exact:
        raise PayloadError(f"it holds a damaged {scalar.kind.__name__}")
    return value


def _write_datetime(value: datetime) -> bytes:
    # The local time, the fold, then the zone: nothing for UTC, an offset in microseconds with
    # perhaps "=" and a name, or "@" and the key of a ZoneInfo.
    zone = value.tzinfo
    if zone is UTC:
        text = ""
    elif type(zone) is timezone:
        text = _write_offset(zone)
    elif zone is None:
        raise Misfit(
            "cannot store a datetime without a time zone; give it one, for instance with "
            ".replace(tzinfo=timezone.utc)"
        )
    elif type(zone).__module__.startswith("pydantic_core."):
        # What Pydantic parsed. It comes back as the timezone with this offset, which is equal.
        text = _write_offset(timezone(zone.utcoffset(None) or timedelta()))
    else:
        text = _write_key(zone)
    return (
        _LOCAL_TIME.pack(
            value.year,
            value.month,
            value.day,
            value.hour,
            value.minute,
            value.second,
            value.microsecond,
            value.fold,
        )
        + text.encode()
    )


def _write_key(zone: tzinfo) -> str:
    from zoneinfo import ZoneInfo

    if type(zone) is not ZoneInfo or zone.key is None:
        raise Misfit(
            f"cannot store a datetime whose time zone is {a(type(zone))}; convert it with "
            ".astimezone(timezone.utc) or to a zoneinfo.ZoneInfo with a key"
        )
    try:
        _zone(zone.key)
    except PayloadError as error:
        raise Misfit(str(error), PayloadError) from error
    return f"@{zone.key}"


def _write_offset(zone: timezone) -> str:
    # A zone with the default name is stored like a zone without a name.
    offset, name = zone.utcoffset(None), zone.tzname(None)
    unnamed = timezone(offset)
    if name != unnamed.tzname(None):
        return f"{offset // _MICROSECOND}={name}"
    return "" if unnamed is UTC else str(offset // _MICROSECOND)


def _read_datetime(data: bytes) -> datetime:
    year, month, day, hour, minute, second, micro, fold = _LOCAL_TIME.unpack_from(data)
    zone = _read_zone(data[_LOCAL_TIME.size :].decode())
    return datetime(year, month, day, hour, minute, second, micro, zone, fold=fold)


def _read_zone(text: str) -> "timezone | ZoneInfo":
    if not text:
        return UTC
    if text[0] == "@":
        return _zone(text[1:])
    match = _OFFSET.fullmatch(text)
    if match is None:
        raise ValueError("no time zone")
    offset = timedelta(microseconds=int(match[1]))
    return timezone(offset) if match[2] is None else timezone(offset, match[2])


def _zone(key: str) -> "ZoneInfo":
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(key)
    except Exception as error:  # KeyError, ValueError or an OSError, by key and platform
        raise PayloadError(
            f"the time zone {key!r} is not known on this machine; install the tzdata package"
        ) from error


class _Scalar(NamedTuple):
    code: int
    kind: type
    write: Callable[[Any], bytes]
    read: Callable[[bytes], Any]


_SCALARS = (
    _Scalar(2, datetime, _write_datetime, _read_datetime),
    _Scalar(
        3,
        date,
        lambda day: day.isoformat().encode(),
        lambda data: date.fromisoformat(data.decode()),
    ),
    _Scalar(
        4,
        Decimal,
        lambda number: _SPELLING.to_sci_string(number).encode(),
        lambda data: Decimal(data.decode()),
    ),
    _Scalar(5, UUID, lambda uuid: uuid.bytes, lambda data: UUID(bytes=data)),
)
_BY_KIND = {scalar.kind: scalar for scalar in _SCALARS}
_BY_CODE = {scalar.code: scalar for scalar in _SCALARS}
