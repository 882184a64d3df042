"""The values of CEL: which Python value stands for which, and what operators do with them.

| CEL | Python |
|---|---|
| null, bool, double, string, bytes, list, map | None, bool, float, str, bytes, list, dict |
| int, uint | int (64 bits, signed), Uint |
| timestamp, duration | datetime (aware), timedelta |

The data of a condition is used where it is and is never copied as a whole: `plain` converts a value
when the condition reads it. Every function whose work grows with its operands charges the budget of
the evaluation, which is an item of the frame.
"""

import math
import operator
from collections.abc import Callable, Mapping, Sized
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any

import attrs

from keyrun.runtime.graphs.cel.errors import MissingKey, OverBudget, Unanswerable
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.values import Failure

SMALLEST, LARGEST = -(2**63), 2**63 - 1
"""The range of an int."""
UNSIGNED = 2**64 - 1
"""The largest uint."""
CHARACTERS = 8
"""Characters, or bytes, of a string that one operation compares or copies."""
COMPARISON = 3
"""Operations for the comparison of two items."""

Frame = list[Any]
"""One evaluation: the values of the four names, the operations that are left, and the variables of
macros."""
LEFT = 7
"""The index of the operations that are left."""


class Uint(int):
    """An unsigned integer."""

    __slots__ = ()


@attrs.frozen
class Type:
    """The value of `type(x)`."""

    name: str


_NAMES = {
    type(None): "null",
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    list: "list",
    dict: "map",
    datetime: "timestamp",
    timedelta: "duration",
    Type: "type",
}
_SIMPLE = frozenset(_NAMES) - {int, datetime}
_NUMBERS = frozenset((int, Uint, float))
_SCALARS = frozenset((int, bool, type(None)))
_ORDERED = frozenset((bool, int, Uint, float, str, bytes, datetime, timedelta))


def name_of(value: object) -> str:
    """Return the name of the CEL type of a value."""
    return _NAMES.get(type(value), type(value).__name__)


def charge(frame: Frame, operations: int) -> None:
    """Take operations from the budget."""
    left = frame[LEFT] = frame[LEFT] - operations
    if left < 0:
        raise OverBudget


def plain(frame: Frame, value: Any) -> Any:
    """Return a value of the data as CEL sees it. An object is a map of its fields."""
    kind = type(value)
    if kind in _SIMPLE or (kind is int and SMALLEST <= value <= LARGEST):
        return value
    if isinstance(value, Enum):
        return plain(frame, value.value)
    if isinstance(value, int):
        return _number(int(value))
    if isinstance(value, datetime):
        return value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    if isinstance(value, Sized):
        charge(frame, len(value))
    return _converted(value)


def _number(value: int) -> int | float:
    """Return a Python int of any size as an int, a uint or a double."""
    if SMALLEST <= value <= LARGEST:
        return value
    if 0 <= value <= UNSIGNED:
        return Uint(value)
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def _converted(value: Any) -> Any:
    """Convert the rarer types of data."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, list | tuple | set | frozenset):
        return list(value)
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float | Decimal):
        return float(value)
    if isinstance(value, timedelta):
        return value + timedelta()
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    if isinstance(value, Failure):
        return {
            "kind": str(value.kind),
            "reason": value.reason,
            "step": value.step,
            "attempt": value.attempt,
            "error_type": value.error_type,
        }
    if attrs.has(type(value)):
        names = [field.name for field in attrs.fields(type(value))]
    elif hasattr(type(value), "__dataclass_fields__"):
        names = list(type(value).__dataclass_fields__)
    else:
        raise Unanswerable(f"a value of type {type(value).__name__} cannot be used in a condition")
    try:
        return {name: getattr(value, name) for name in names}
    except BaseException as error:  # a class of the user can do anything here
        from_user(error)
        raise


def undefined(sign: str, *operands: object) -> Unanswerable:
    """Return the error for operands that an operator or function does not accept."""
    kinds = " and ".join(map(name_of, operands))
    hint = ""
    if len(operands) == 2 and name_of(operands[0]) != name_of(operands[1]):
        hint = "; convert one of them with int(), double() or string()"
    return Unanswerable(f"{sign!r} is not defined for {kinds}{hint}")


def field(frame: Frame, value: Any, name: str) -> Any:
    """Return a field of a map, not yet converted by `plain`."""
    if type(value) is not dict:
        value = plain(frame, value)
        if type(value) is not dict:
            raise Unanswerable(f"a value of type {name_of(value)} has no field {name!r}")
    try:
        return value[name]
    except KeyError:
        raise MissingKey(name) from None


def has_field(value: Any, name: str) -> bool:
    """Return whether a map has a field."""
    if type(value) is not dict:
        raise Unanswerable(f"a value of type {name_of(value)} has no fields")
    return name in value


def with_items(value: Any) -> Any:
    """Return a value that `[...]` can follow, or raise."""
    if type(value) is not dict and type(value) is not list:
        raise undefined("[]", value)
    return value


def item(frame: Frame, value: Any, key: Any) -> Any:
    """Return the value of a key of a map, or an item of a list."""
    if type(value) is dict:
        if not _is_key(key):
            raise Unanswerable(f"a map key must be a string or an int, got {name_of(key)}")
        if type(key) is str or type(key) is int:
            try:
                return plain(frame, value[key])
            except KeyError:
                pass
        raise MissingKey(key)
    if type(key) is not int and type(key) is not Uint:
        raise Unanswerable(f"the index of a list must be an int, got {name_of(key)}")
    if not 0 <= key < len(value):
        raise Unanswerable(f"the index {key} is out of range of a list with {len(value)} items")
    return plain(frame, value[key])


def _is_key(value: object) -> bool:
    return type(value) in (str, int, Uint, bool)


def contains(frame: Frame, wanted: Any, value: Any) -> bool:
    """Return `wanted in value`."""
    if type(value) is dict:
        if not _is_key(wanted):
            raise Unanswerable(f"a map key must be a string or an int, got {name_of(wanted)}")
        return (type(wanted) is str or type(wanted) is int) and wanted in value
    if type(value) is not list:
        raise undefined("in", wanted, value)
    kind = type(wanted)
    for each in value:
        charge(frame, COMPARISON)
        # Most lists hold one type of scalars.
        if each == wanted if kind is type(each) in _SCALARS else equal(frame, wanted, each):
            return True
    return False


def equal(frame: Frame, one: Any, other: Any) -> bool:
    """Return `one == other`. Values of different types are not equal, except for numbers."""
    left = [(one, other)]
    while left:
        one, other = left.pop()
        one, other = plain(frame, one), plain(frame, other)
        kind = type(one)
        if kind is not type(other):
            if kind not in _NUMBERS or type(other) not in _NUMBERS:
                return False
            if kind is float or type(other) is float:
                one, other = float(one), float(other)
            if one != other:
                return False
        elif kind is list:
            if len(one) != len(other):
                return False
            charge(frame, COMPARISON * len(one))
            left.extend(zip(one, other, strict=True))
        elif kind is dict:
            if len(one) != len(other):
                return False
            charge(frame, COMPARISON * len(one))
            for key, value in one.items():
                if key not in other:
                    return False
                left.append((value, other[key]))
        else:
            if kind is str or kind is bytes:
                charge(frame, min(len(one), len(other)) // CHARACTERS)
            if one != other:
                return False
    return True


def ordered(
    frame: Frame, sign: str, compare: Callable[[Any, Any], bool], one: Any, other: Any
) -> bool:
    """Return `one < other`, or the same for another operator of order."""
    kind = type(one)
    if kind is not type(other):
        if kind not in _NUMBERS or type(other) not in _NUMBERS:
            raise undefined(sign, one, other)
        if kind is float or type(other) is float:
            one, other = float(one), float(other)
    elif kind not in _ORDERED:
        raise undefined(sign, one, other)
    elif kind is str or kind is bytes:
        charge(frame, min(len(one), len(other)) // CHARACTERS)
    if one != one or other != other:
        raise Unanswerable(f"{sign!r} is not defined for NaN")
    return compare(one, other)


def _add(frame: Frame, one: Any, other: Any) -> Any:
    kinds = type(one), type(other)
    match kinds:
        case (a, b) if a is b and a in _NUMBERS:
            return _fitting(one + other, one)
        case (a, b) if a is b and a in (str, bytes):
            charge(frame, (len(one) + len(other)) // CHARACTERS)
            return one + other
        case (a, b) if a is b is list:
            charge(frame, len(one) + len(other))
            return one + other
        case (a, b) if b is timedelta and a in (datetime, timedelta):
            return _moment(operator.add, one, other)
    raise undefined("+", one, other)


def _subtract(frame: Frame, one: Any, other: Any) -> Any:
    kind = type(one)
    if kind is type(other) and kind in _NUMBERS:
        return _fitting(one - other, one)
    if (kind is datetime and type(other) in (datetime, timedelta)) or (
        kind is timedelta and type(other) is timedelta
    ):
        return _moment(operator.sub, one, other)
    raise undefined("-", one, other)


def _multiply(frame: Frame, one: Any, other: Any) -> Any:
    if type(one) is not type(other) or type(one) not in _NUMBERS:
        raise undefined("*", one, other)
    return _fitting(one * other, one)


def _divide(frame: Frame, one: Any, other: Any) -> Any:
    kind = type(one)
    if kind is not type(other) or kind not in _NUMBERS:
        raise undefined("/", one, other)
    if other == 0:
        if kind is not float:
            raise Unanswerable("division by zero")
        if one == 0 or one != one:
            return math.nan
        return math.copysign(math.inf, one) * math.copysign(1, other)
    if kind is float:
        return one / other
    quotient = abs(one) // abs(other)
    return _fitting(quotient if (one < 0) == (other < 0) else -quotient, one)


def _remainder(frame: Frame, one: Any, other: Any) -> Any:
    kind = type(one)
    if kind is not type(other) or kind not in (int, Uint):
        raise undefined("%", one, other)
    if other == 0:
        raise Unanswerable("remainder of a division by zero")
    if one == SMALLEST and other == -1:
        raise Unanswerable("the result is out of the range of an int")
    rest = abs(one) % abs(other)
    return kind(rest if one >= 0 else -rest)


def _fitting(result: Any, like: Any) -> Any:
    """Return a result of arithmetic as the type of its operands, if that can hold it."""
    kind = type(like)
    if kind is float:
        return result
    low, high = (SMALLEST, LARGEST) if kind is int else (0, UNSIGNED)
    if not low <= result <= high:
        raise Unanswerable(f"the result {result} is out of the range of {name_of(like)}")
    return kind(result)


def _moment(apply: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    try:
        return apply(one, other)
    except OverflowError:
        raise Unanswerable("the result is out of the range of timestamps and durations") from None


def negative(value: Any) -> Any:
    """Return `-value`."""
    if type(value) is float:
        return -value
    if type(value) is bool:
        # The library that compiled conditions before accepts this, too.
        return not value
    if type(value) is not int:
        raise undefined("-", value)
    # The smallest int has no opposite. CEL's implementations in Rust and Go return it unchanged.
    return value if value == SMALLEST else -value


def not_bool(value: object, place: str) -> Unanswerable:
    """Return the error for an operand that must be true or false."""
    return Unanswerable(f"{place} requires true or false, got {name_of(value)}")


ARITHMETIC: dict[str, Callable[[Frame, Any, Any], Any]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "/": _divide,
    "%": _remainder,
}
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
