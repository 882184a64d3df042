"""The JSON form of plain values: what JSON does not have is an object with one key, such as
`{"$bytes": "AP8="}`.

`to_json` and `from_json` keep the type and the content of each value. Of a time they keep the
offset and the name of an IANA zone, and not the name of a fixed offset. At a place with a declared
type, the plans in `keyrun.storage.plan` also read the form that people write, such as a time as a
string.
"""

import math
import re
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any
from uuid import UUID

from keyrun.storage.misfit import Misfit, at_index, at_key

_INTEGER = re.compile(r"-?[0-9]{1,20}")
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?")

LARGEST = 2**53
"""The largest integer that every JSON reader takes without a loss."""


def _bytes(text: str) -> bytes:
    return b64decode(text, validate=True)


def _time(text: str) -> datetime:
    """Return the time of a text such as `2026-01-31T14:00:00+01:00[Europe/Berlin]`."""
    text, bracket, zone = text.removesuffix("]").partition("[")
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError("it requires a time zone, such as Z or +01:00")
    if not bracket:
        return moment
    from zoneinfo import ZoneInfo

    try:
        return moment.astimezone(ZoneInfo(zone))
    except (OverflowError, OSError, LookupError, ValueError) as error:
        raise ValueError(f"the time zone {zone!r} is unknown or does not fit") from error


def _text_of_time(moment: datetime) -> str:
    zone = getattr(moment.tzinfo, "key", None)
    return moment.isoformat() + (f"[{zone}]" if zone else "")


def _decimal(text: str) -> Decimal:
    try:
        return Decimal(text)
    except InvalidOperation:
        raise ValueError("it is not a decimal number") from None


def _float(text: str) -> float:
    if text in ("nan", "inf", "-inf"):
        return float(text)
    if not _NUMBER.fullmatch(text) or not math.isfinite(number := float(text)):
        raise ValueError("it must be a number, 'nan', 'inf' or '-inf'")
    return number


def _int(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError("it must be an integer of at most 20 digits")
    return int(text)


PARSERS: dict[type, Callable[[str], Any]] = {
    bytes: _bytes,
    datetime: _time,
    date: date.fromisoformat,
    Decimal: _decimal,
    UUID: UUID,
}
"""How the text of each type that JSON does not have is read."""

TEXTS: dict[str, Callable[[str], Any]] = {
    "$bytes": _bytes,
    "$datetime": _time,
    "$date": date.fromisoformat,
    "$decimal": _decimal,
    "$uuid": UUID,
    "$int": _int,
    "$float": _float,
}
"""The keys of the objects that stand for a value, and how their text is read."""


def parse(kind: type, text: str) -> Any:
    """Return the value of a text at a place for `kind`."""
    return _parsed(PARSERS[kind], kind.__name__, text)


def _parsed(parser: Callable[[str], Any], name: str, text: Any) -> Any:
    if type(text) is not str:
        raise Misfit(f"expected the text of a {name}, got {text!r}")
    try:
        return parser(text)
    except (ValueError, NotBase64) as error:
        raise Misfit(f"{text!r} is not the text of a {name}: {error}") from error


def to_json(value: Any) -> Any:
    """Return the JSON form of a plain value."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -LARGEST <= value <= LARGEST else {"$int": str(value)}
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case list():
            return [to_json(item) for item in value]
        case tuple():
            return {"$tuple": [to_json(item) for item in value]}
        case dict():
            items = {key: to_json(item) for key, item in value.items()}
            return {"$dict": items} if _stands_for(items) else items
        case bytes():
            return {"$bytes": b64encode(value).decode()}
        case datetime():
            return {"$datetime": _text_of_time(value)}
        case date():
            return {"$date": value.isoformat()}
        case Decimal():
            return {"$decimal": str(value)}
        case UUID():
            return {"$uuid": str(value)}
    raise TypeError(f"expected a plain value, got {value!r}")


def from_json(data: Any) -> Any:
    """Return the plain value of a JSON form. Raise `Misfit` with the place if it is not valid."""
    if type(data) is list:
        return _each(data)
    if type(data) is not dict:
        return data
    if not _stands_for(data):
        return _items(data)
    ((name, content),) = data.items()
    try:
        if name == "$dict":
            if type(content) is not dict:
                raise Misfit(f"expected an object, got {content!r}")
            return _items(content)
        if name == "$tuple":
            if type(content) is not list:
                raise Misfit(f"expected an array, got {content!r}")
            return tuple(_each(content))
        return _parsed(TEXTS[name], name.removeprefix("$"), content)
    except Misfit as misfit:
        raise misfit.inside(at_key(name)) from None


def _stands_for(data: dict[str, Any]) -> bool:
    """Return whether an object stands for another value, or looks like it."""
    if len(data) != 1:
        return False
    (name,) = data
    return name in TEXTS or name in ("$dict", "$tuple")


def _each(data: list[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        for item in data:
            done.append(from_json(item))
    except Misfit as misfit:
        raise misfit.inside(at_index(len(done))) from None
    return done


def _items(data: dict[str, Any]) -> dict[str, Any]:
    done, name = {}, ""
    try:
        for name, item in data.items():
            done[name] = from_json(item)
    except Misfit as misfit:
        raise misfit.inside(at_key(name)) from None
    return done
