"""JSON text: reads the bodies of requests, and writes answers.

Python's parser accepts what no two programs read alike: repeated keys, NaN, numbers that become
infinite, and halves of surrogate pairs. `parse` rejects them and names the place.
"""

import json
import re
from collections.abc import Callable
from json.encoder import encode_basestring
from math import isfinite
from typing import Any

from keyrun.control.problems import Refused
from keyrun.control.shapes import Misplaced

_LONE = re.compile(r"[\ud800-\udfff]")
_ESCAPED = re.compile(rb"\\u[dD][89a-fA-F]")
_TOP = "the body"
_HUGE = re.compile(rb"\d{300}|[eE]\+?\d{3}")


def _unknown(value: object) -> Any:
    raise TypeError(f"{type(value).__name__} is no JSON")


# `JSONEncoder.encode` makes a new one of these for each text.
_write: Any = json.encoder.c_make_encoder(  # type: ignore[attr-defined]
    None, _unknown, encode_basestring, None, ":", ",", False, False, False
)


class BrokenJson(Refused):
    """Raised if a text is not JSON. The message names the place."""

    def __init__(self, detail: str) -> None:
        super().__init__(400, "BrokenJson", detail)


class _Fault(Exception):
    """Describes what JSON does not have. It stands in the parsed data in its place."""

    def __init__(self, complaint: str) -> None:
        super().__init__(complaint)
        self.complaint = complaint


def _mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    read = dict(pairs)
    if len(read) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Fault(f"the key {twice!r} occurs twice")
    return read


def _constant(name: str) -> Any:
    raise _Fault(f'{name} is no JSON; write {{"$float": ...}}')


def _kept(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a hook that leaves the fault in the data, to find its place."""

    def call(given: Any) -> Any:
        try:
            return hook(given)
        except _Fault as fault:
            return fault

    return call


_read = json.JSONDecoder(object_pairs_hook=_mapping, parse_constant=_constant).decode
_read_with_faults = json.JSONDecoder(
    object_pairs_hook=_kept(_mapping), parse_constant=_kept(_constant)
).decode


def dump(value: Any) -> bytes:
    """Return the JSON text of a value, in one line."""
    return "".join(_write(value, 0)).encode("utf-8", "backslashreplace")


def parse(data: bytes) -> Any:
    """Return the value of a JSON text. Raise `BrokenJson` if the text is not valid, and `Misplaced`
    if it has a value that Python does not have."""
    try:
        text = data.decode()
        try:
            value = _read(text)
        except _Fault as fault:
            value = _read_with_faults(text)
            _reject(value, _complaint, BrokenJson)
            raise BrokenJson(fault.complaint) from None  # of an object that has another fault
    except UnicodeDecodeError as error:
        raise BrokenJson(f"the text is not UTF-8: byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise BrokenJson(
            f"the text is not JSON: {error.msg} at line {error.lineno} column {error.colno}"
        ) from None
    except RecursionError:
        raise BrokenJson("the text nests too deep") from None
    except ValueError:  # a limit of Python
        raise BrokenJson("the text has an integer with too many digits") from None
    if _ESCAPED.search(data):
        _reject(value, _is_broken_text, Misplaced)
    if _HUGE.search(data):
        _reject(value, _is_infinite, Misplaced)
    return value


def _complaint(value: Any) -> str | None:
    return value.complaint if isinstance(value, _Fault) else None


def _is_broken_text(value: Any) -> str | None:
    if isinstance(value, str) and _LONE.search(value):
        return f"{value!r} has half of a surrogate pair"
    return None


def _is_infinite(value: Any) -> str | None:
    if isinstance(value, float) and not isfinite(value):
        return "the number is too large"
    return None


def _reject(
    value: Any, complaint: Callable[[Any], str | None], error: Callable[[str], Exception]
) -> None:
    """Raise an error with the place of the first value that has a complaint."""
    left: list[tuple[str, Any]] = [("", value)]
    while left:
        place, each = left.pop()
        said = complaint(each)
        if said is not None:
            raise error(f"{place or _TOP}: {said}")
        if isinstance(each, list):
            left += reversed([(f"{place}[{at}]", item) for at, item in enumerate(each)])
        elif isinstance(each, dict):
            for name in each:
                said = complaint(name)
                if said is not None:
                    raise error(f"{place or _TOP}: the key {said}")
            inside = f"{place}." if place else ""
            left += reversed([(f"{inside}{name}", item) for name, item in each.items()])
