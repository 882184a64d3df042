"""The fields that a class declares, which templates may use."""

import dataclasses

import attrs


def fields_of(kind: type) -> frozenset[str]:
    """Return the names of the fields of an attrs class or a dataclass."""
    if attrs.has(kind):
        return frozenset(field.name for field in attrs.fields(kind))
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind))
    return frozenset()
