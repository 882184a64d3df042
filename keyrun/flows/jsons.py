"""JSON, as nodes exchange it with the world: strict, and with the values that it has no form for
as text."""

import json
from base64 import b64encode
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import attrs


def dumps(value: Any) -> str:
    """`value` as JSON."""
    return json.dumps(
        value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=as_text
    )


def pieces(value: Any, *, indent: int) -> Iterator[str]:
    """Yield `value` as indented JSON, piece by piece."""
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=indent, default=as_text)
    return encoder.iterencode(value)


def loads(text: str | bytes) -> Any:
    """What a JSON text says; `ValueError` if it is none, NaN and Infinity included."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except RecursionError as error:
        raise ValueError("it is nested too deep") from error


def as_text(value: Any) -> Any:
    """What stands in JSON for a value that it has no form for."""
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
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no number")
