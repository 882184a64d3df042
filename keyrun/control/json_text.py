"""JSON text: reads the bodies of requests, and writes answers.

Python's parser accepts what no two programs read alike: repeated keys, NaN, numbers that become
infinite, and halves of surrogate pairs. `parse` rejects them and names the place.
"""

import json
import re
from collections.abc import Callable
from math import isfinite
from typing import Any

from keyrun.control.problems import Refused

_LONE = re.compile(r"[\ud800-\udfff]")
_ESCAPED = re.compile(rb"\\u[dD][89a-fA-F]")
_HUGE = re.compile(rb"\d{300}|[eE]\+?\d{3}")

_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class BrokenJson(Refused):
    """Raised if a text is not JSON. The message names the place."""

    def __init__(self, detail: str) -> None:
        super().__init__(400, "BrokenJson", detail)


class _Fault:
    """Stands in the parsed data for what JSON does not have."""

    def __init__(self, complaint: str) -> None:
        self.complaint = complaint


def dump(value: Any) -> bytes:
    """Return the JSON text of a value, in one line."""
    return _write(value).encode("utf-8", "backslashreplace")


def parse(data: bytes) -> Any:
    """Return the value of a JSON text. Raise `BrokenJson` if the text is not valid."""
    faults = []

    def fault(complaint: str) -> _Fault:
        faults.append(found := _Fault(complaint))
        return found

    def mapping(pairs: list[tuple[str, Any]]) -> Any:
        read = dict(pairs)
        if len(read) == len(pairs):
            return read
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        return fault(f"the key {twice!r} occurs twice")

    try:
        value = json.loads(
            data.decode(),
            object_pairs_hook=mapping,
            parse_constant=lambda name: fault(f'{name} is no JSON; write {{"$float": ...}}'),
        )
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
    if faults:
        _reject(value, lambda each: each.complaint if isinstance(each, _Fault) else None)
        raise BrokenJson(faults[0].complaint)  # inside of an object that has another fault
    if _ESCAPED.search(data):
        _reject(value, _is_broken_text)
    if _HUGE.search(data):
        _reject(value, _is_infinite)
    return value


def _is_broken_text(value: Any) -> str | None:
    if isinstance(value, str) and _LONE.search(value):
        return f"{value!r} has half of a surrogate pair"
    return None


def _is_infinite(value: Any) -> str | None:
    if isinstance(value, float) and not isfinite(value):
        return "the number is too large"
    return None


def _reject(value: Any, complaint: Callable[[Any], str | None]) -> None:
    """Raise `BrokenJson` with the place of the first value that has a complaint."""
    left: list[tuple[str, Any]] = [("$", value)]
    while left:
        place, each = left.pop()
        said = complaint(each)
        if said is not None:
            raise BrokenJson(f"{place}: {said}")
        if isinstance(each, list):
            left += reversed([(f"{place}[{at}]", item) for at, item in enumerate(each)])
        elif isinstance(each, dict):
            for name in each:
                said = complaint(name)
                if said is not None:
                    raise BrokenJson(f"{place}: the key {said}")
            left += reversed([(f"{place}.{name}", item) for name, item in each.items()])
