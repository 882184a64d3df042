"""Checks of arguments. Each error names the argument and its value.

True and False are no numbers. An integer must fit into 64 bits: larger ones can be neither stored
nor added to a time.
"""

from collections.abc import Iterable
from typing import TypeGuard

_MOST = 2**63 - 1


def is_number(value: object) -> TypeGuard[float]:
    """Return whether `value` is a number."""
    if isinstance(value, int):
        return not isinstance(value, bool) and -_MOST <= value <= _MOST
    return isinstance(value, float)


def is_count(value: object, least: int) -> TypeGuard[int]:
    """Return whether `value` is a whole number of at least `least`."""
    return isinstance(value, int) and is_number(value) and value >= least


def number(name: str, value: float) -> None:
    """Raise if `value` is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} must be a number, got {value!r}")
    if isinstance(value, int) and abs(value) > _MOST:
        raise ValueError(
            f"{name} must fit into 64 bits, got an integer of {value.bit_length()} bits"
        )


def at_least(name: str, value: float, least: float) -> None:
    """Raise if `value` is not a number of at least `least`."""
    number(name, value)
    if value != value or value < least:
        raise ValueError(f"{name} must be at least {least}, got {value!r}")


def positive(name: str, value: float) -> None:
    """Raise if `value` is not a positive number."""
    at_least(name, value, 0)
    if value == 0:
        raise ValueError(f"{name} must be positive, got {value!r}")


def count(name: str, value: int, least: int) -> None:
    """Raise if `value` is not a whole number of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an integer, got {value!r}")
    at_least(name, value, least)


def flag(name: str, value: bool) -> None:
    """Raise if `value` is not True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, got {value!r}")


def instance(name: str, value: object, kind: type) -> None:
    """Raise if `value` is not an instance of `kind`."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__}, got {value!r}")


def several(name: str, value: object) -> None:
    """Raise if `value` is a string, or cannot be iterated over."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be a list, got {value!r}")


def function(name: str, value: object) -> None:
    """Raise if `value` cannot be called."""
    if not callable(value):
        raise TypeError(f"{name} must be callable, got {value!r}")
