"""The functions and methods of CEL, except macros and `matches`."""

import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from keyrun.runtime.graphs.cel.errors import Unanswerable
from keyrun.runtime.graphs.cel.values import (
    CHARACTERS,
    LARGEST,
    SMALLEST,
    UNSIGNED,
    Frame,
    Type,
    Uint,
    charge,
    name_of,
    undefined,
)

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_DOUBLE = re.compile(
    r"[+-]?(?:inf|infinity|nan|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?)",
    re.ASCII | re.IGNORECASE,
)
_TIMESTAMP = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[Tt ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?"
    r"([Zz]|[+-][0-9]{2}:[0-9]{2})",
    re.ASCII,
)
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(h|ms|m|s|us|ns)", re.ASCII)
_DURATION = re.compile(rf"[+-]?(?:(?:{_PART.pattern})+|0)", re.ASCII)
_NANOSECONDS = {"h": 3600 * 10**9, "m": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}
_LONGEST_NUMBER = 400
"""Characters of a string that is converted to a number, a timestamp or a duration."""


def _size(frame: Frame, value: Any) -> int:
    if type(value) is str:
        # The size of a string is that of its UTF-8 encoding.
        if value.isascii():
            return len(value)
        charge(frame, len(value) // CHARACTERS)
        return len(value.encode(errors="surrogatepass"))
    if type(value) not in (list, dict, bytes):
        raise undefined("size", value)
    return len(value)


def _short(value: str, kind: str) -> str:
    if len(value) > _LONGEST_NUMBER:
        raise Unanswerable(f"a string of {len(value):,} characters cannot be converted to {kind}")
    return value


def _int(frame: Frame, value: Any) -> int:
    return _whole(value, int, SMALLEST, LARGEST)


def _uint(frame: Frame, value: Any) -> int:
    return _whole(value, Uint, 0, UNSIGNED)


def _whole(value: Any, kind: type[int], low: int, high: int) -> int:
    name = "int" if kind is int else "uint"
    if type(value) is str:
        if _INTEGER.fullmatch(_short(value, name)) is None or (low == 0 and value[0] == "-"):
            raise Unanswerable(f"{value!r} cannot be converted to {name}")
        number = int(value)
    elif type(value) in (int, Uint):
        number = int(value)
    elif type(value) is float:
        # The limits are those of a double: both ends of the range of an int are excluded.
        inside = low < value < float(high) if low else 0 <= value < float(high)
        if math.isnan(value) or not inside:
            raise Unanswerable(f"{value} is out of the range of {name}")
        number = int(value)
    else:
        raise undefined(name, value)
    if not low <= number <= high:
        raise Unanswerable(f"{number} is out of the range of {name}")
    return kind(number)


def _double(frame: Frame, value: Any) -> float:
    if type(value) is str:
        if _DOUBLE.fullmatch(_short(value, "double")) is None:
            raise Unanswerable(f"{value!r} cannot be converted to double")
    elif type(value) not in (int, Uint, float):
        raise undefined("double", value)
    return float(value)


def _string(frame: Frame, value: Any) -> str:
    match value:
        case str():
            return value
        case bool() | None:
            raise undefined("string", value)
        case int():
            return str(int(value))
        case float():
            return _decimal(value)
        case bytes():
            charge(frame, len(value) // CHARACTERS)
            return value.decode(errors="replace")
        case datetime():
            digits = "milliseconds" if value.microsecond % 1000 == 0 else "microseconds"
            return value.isoformat(timespec=digits if value.microsecond else "seconds")
        case timedelta():
            return _written(value)
    raise undefined("string", value)


def _decimal(value: float) -> str:
    """Return a double without an exponent, and without a fraction if it has none."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else str(value)
    written = format(Decimal(repr(value)), "f")
    return written.removesuffix(".0")


def _written(value: timedelta) -> str:
    """Return a duration as in 1h30m0s, 1.5s or 20ms, without leading units that are zero."""
    total = abs(value) // timedelta(microseconds=1)
    sign = "-" if value < timedelta() else ""
    if 0 < total < 1000:
        return f"{sign}{total}µs"
    if 0 < total < 10**6:
        return f"{sign}{_decimal(total / 1000)}ms"
    minutes, rest = divmod(total, 60 * 10**6)
    hours, minutes = divmod(minutes, 60)
    written = f"{_decimal(rest / 10**6)}s"
    if minutes or hours:
        written = f"{minutes}m{written}"
    return f"{sign}{hours}h{written}" if hours else f"{sign}{written}"


def _bytes(frame: Frame, value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if type(value) is not str:
        raise undefined("bytes", value)
    charge(frame, len(value) // CHARACTERS)
    return value.encode(errors="surrogatepass")


def _timestamp(frame: Frame, value: Any) -> datetime:
    if type(value) is datetime:
        return value
    if type(value) is not str:
        raise undefined("timestamp", value)
    found = _TIMESTAMP.fullmatch(_short(value, "timestamp"))
    try:
        if found is not None:
            day, time, fraction, zone = found.groups()
            offset = "+00:00" if zone in "Zz" else zone
            return datetime.fromisoformat(f"{day}T{time}{(fraction or '')[:7]}{offset}")
    except ValueError:
        pass
    raise Unanswerable(f"{value!r} is not a timestamp; write it as 2024-01-31T12:00:00Z")


def _duration(frame: Frame, value: Any) -> timedelta:
    if type(value) is timedelta:
        return value
    if type(value) is not str:
        raise undefined("duration", value)
    if _DURATION.fullmatch(_short(value, "duration")) is None:
        raise Unanswerable(f"{value!r} is not a duration; write it as 1h30m or 1.5s")
    total = sum(int(float(number) * _NANOSECONDS[unit]) for number, unit in _PART.findall(value))
    if total > LARGEST:
        raise Unanswerable(f"{value!r} is longer than a duration can be")
    length = timedelta(microseconds=total // 1000)
    return -length if value.startswith("-") else length


def _type(frame: Frame, value: Any) -> Type:
    return Type(name_of(value))


def _dyn(frame: Frame, value: Any) -> Any:
    return value


def _contains(frame: Frame, value: Any, part: Any) -> bool:
    _require_strings("contains", value, part)
    charge(frame, (len(value) + len(part)) // CHARACTERS)
    return part in value


def _starts_with(frame: Frame, value: Any, part: Any) -> bool:
    _require_strings("startsWith", value, part)
    charge(frame, len(part) // CHARACTERS)
    return bool(value.startswith(part))


def _ends_with(frame: Frame, value: Any, part: Any) -> bool:
    _require_strings("endsWith", value, part)
    charge(frame, len(part) // CHARACTERS)
    return bool(value.endswith(part))


def _require_strings(name: str, *values: Any) -> None:
    if any(type(value) is not str for value in values):
        raise undefined(name, *values)


def _part_of_time(
    name: str, of_timestamp: Callable[[datetime], int], unit: int | None = None
) -> Callable[[Frame, Any], int]:
    """Return a method that reads a part of a timestamp or, with the microseconds of a unit, counts
    the whole units of a duration, rounded toward zero."""

    def read(frame: Frame, value: Any) -> int:
        if type(value) is datetime:
            return of_timestamp(value)
        if type(value) is timedelta and unit is not None:
            units = abs(value) // timedelta(microseconds=unit)
            return units if value >= timedelta() else -units
        raise undefined(name, value)

    return read


FUNCTIONS: dict[str, Callable[[Frame, Any], Any]] = {
    "size": _size,
    "int": _int,
    "uint": _uint,
    "double": _double,
    "string": _string,
    "bytes": _bytes,
    "timestamp": _timestamp,
    "duration": _duration,
    "type": _type,
    "dyn": _dyn,
}
"""Functions of one argument."""
PREDICATES: dict[str, Callable[[Frame, Any, Any], bool]] = {
    "contains": _contains,
    "startsWith": _starts_with,
    "endsWith": _ends_with,
}
"""Methods of a string with one argument."""
METHODS: dict[str, Callable[[Frame, Any], Any]] = {
    "size": _size,
    "getFullYear": _part_of_time("getFullYear", lambda at: at.year),
    "getMonth": _part_of_time("getMonth", lambda at: at.month - 1),
    "getDayOfYear": _part_of_time("getDayOfYear", lambda at: at.timetuple().tm_yday - 1),
    "getDayOfMonth": _part_of_time("getDayOfMonth", lambda at: at.day - 1),
    "getDate": _part_of_time("getDate", lambda at: at.day),
    "getDayOfWeek": _part_of_time("getDayOfWeek", lambda at: at.isoweekday() % 7),
    "getHours": _part_of_time("getHours", lambda at: at.hour, 3600 * 10**6),
    "getMinutes": _part_of_time("getMinutes", lambda at: at.minute, 60 * 10**6),
    "getSeconds": _part_of_time("getSeconds", lambda at: at.second, 10**6),
    "getMilliseconds": _part_of_time("getMilliseconds", lambda at: at.microsecond // 1000, 1000),
}
"""Methods without arguments."""
