"""JSON as nodes exchange it: strict, with text for values that JSON cannot represent."""

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import attrs

_SMALLEST, _LARGEST = -(2**63), 2**64 - 1
"""The integers that the store can hold."""
_DIGITS = 20
"""The characters of the longest of them."""


def dumps(value: Any) -> str:
    """Return `value` as JSON."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=as_text
    )


def pieces(value: Any, *, indent: int) -> Iterator[str]:
    """Yield `value` as indented JSON, piece by piece."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=indent, default=as_text)
    return encoder.iterencode(value)


def loads(text: str | bytes) -> Any:
    """Parse JSON. Raise `ValueError` for other text, and for NaN and Infinity.

    An integer that has more than 64 bits becomes text with the same digits, because the store
    cannot hold it as a number."""
    try:
        return json.loads(text, parse_constant=_reject, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def _integer(digits: str) -> int | str:
    if len(digits) <= _DIGITS and _SMALLEST <= (number := int(digits)) <= _LARGEST:
        return number
    return digits


def as_text(value: Any) -> Any:
    """Return the JSON form of a value that JSON itself does not have."""
    match value:
        case date():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
        case bytes():
            return b64encode(value).decode()
        case Enum():
            return value.value
    if attrs.has(type(value)):
        return attrs.asdict(value, recurse=False)
    raise TypeError(f"a {type(value).__name__} cannot be written as JSON")


def _reject(name: str) -> None:
    raise ValueError(f"{name} is not a number")
