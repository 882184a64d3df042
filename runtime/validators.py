"""Validators of attrs fields. Each one names the field and the value that it rejects."""

from collections.abc import Callable
from math import isinf
from typing import Any

import attrs

from keyrun.actors import checks
from keyrun.runtime.values import UNSET

Validator = Callable[[Any, "attrs.Attribute[Any]", Any], None]
"""A validator of an attrs field. It raises `ValueError` with the name of the field."""


def positive(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Raise if a field is not a positive number."""
    if not checks.is_number(value) or not value > 0:
        raise ValueError(f"{attribute.name} must be positive, got {value!r}")


def positive_and_finite(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
    """Raise if a field is not a positive number, or is infinite."""
    positive(instance, attribute, value)
    if isinf(value):
        raise ValueError(f"{attribute.name} must be finite, got {value!r}")


def at_least(least: int) -> Validator:
    """Return a validator that raises if a field is not a whole number of at least `least`."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if not checks.is_count(value, least):
            raise ValueError(
                f"{attribute.name} must be a whole number of at least {least}, got {value!r}"
            )

    return check


def if_set(validator: Validator) -> Validator:
    """Return a validator that accepts None and `UNSET` as well."""

    def check(instance: object, attribute: "attrs.Attribute[Any]", value: Any) -> None:
        if value is not UNSET and value is not None:
            validator(instance, attribute, value)

    return check
