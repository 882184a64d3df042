"""The fields that a class declares, which templates may use."""

import dataclasses

import attrs

_found: dict[type, frozenset[str]] = {}


def fields_of(kind: type) -> frozenset[str]:
    """Return the names of the fields of an attrs class or a dataclass."""
    found = _found.get(kind)
    if found is None:
        found = _found[kind] = _declared(kind)
    return found


def _declared(kind: type) -> frozenset[str]:
    if attrs.has(kind):
        return frozenset(field.name for field in attrs.fields(kind))
    if dataclasses.is_dataclass(kind):
        return frozenset(field.name for field in dataclasses.fields(kind))
    return frozenset()
