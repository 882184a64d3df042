"""The fields of attrs classes and dataclasses: their names, types and defaults.

Annotations that are strings are resolved, and the type variables of generic classes are replaced
by what they stand for, also in the fields that a class inherits.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar, get_args, get_origin, get_type_hints

import attrs

from keyrun.storage.misfit import Unsupported, name_of


@attrs.frozen(kw_only=True)
class Field:
    """One field. `default` makes the value of one that was added after the data was written."""

    name: str
    type: Any
    default: Callable[[Any], Any] | None


def fields_of(declared: Any) -> tuple[Field, ...]:
    """The fields of a class; `Unsupported` if its annotations cannot be resolved."""
    cls = get_origin(declared) or declared
    try:
        hints = get_type_hints(cls, include_extras=True)
    except Exception as error:  # an annotation may be any expression
        raise Unsupported(
            f"cannot store {name_of(cls)}: its annotations cannot be resolved ({error}); "
            "define the classes they name at the top of a module"
        ) from error
    arguments = _arguments(declared)
    return tuple(
        Field(
            name=name,
            type=_fill(hints.get(name, fallback), arguments.get(_home(cls, name), {})),
            default=default,
        )
        for name, fallback, default in _raw_fields(cls)
    )


def _raw_fields(cls: type) -> list[tuple[str, Any, Callable[[Any], Any] | None]]:
    if attrs.has(cls):
        return [(f.name, f.type or Any, _attrs_default(f.default)) for f in attrs.fields(cls)]
    return [(f.name, f.type, _dataclass_default(f)) for f in dataclasses.fields(cls)]


def _attrs_default(default: Any) -> Callable[[Any], Any] | None:
    if default is attrs.NOTHING:
        return None
    if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # typed as a function
        return lambda _: default
    return default.factory if default.takes_self else lambda _: default.factory()


def _dataclass_default(field: dataclasses.Field[Any]) -> Callable[[Any], Any] | None:
    if field.default is not dataclasses.MISSING:
        return lambda _: field.default
    factory = field.default_factory
    return None if factory is dataclasses.MISSING else lambda _: factory()


def _arguments(declared: Any) -> dict[type, dict[Any, Any]]:
    """What the type variables of each class in the ancestry stand for."""
    found: dict[type, dict[Any, Any]] = {}

    def visit(alias: Any, outer: dict[Any, Any]) -> None:
        cls = get_origin(alias) or alias
        if cls in found or cls in (Generic, Protocol):
            return
        values = [_fill(argument, outer) for argument in get_args(alias)]
        found[cls] = dict(zip(getattr(cls, "__parameters__", ()), values, strict=False))
        for base in getattr(cls, "__orig_bases__", cls.__bases__):
            visit(base, found[cls])

    visit(declared, {})
    return found


def _fill(hint: Any, arguments: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return arguments.get(hint, Any)
    parameters = getattr(hint, "__parameters__", ())
    if not parameters or (isinstance(hint, type) and get_origin(hint) is None):
        return hint
    return hint[tuple(arguments.get(parameter, Any) for parameter in parameters)]


def _home(cls: type, name: str) -> type:
    for base in cls.__mro__:
        if name in inspect.get_annotations(base):
            return base
    return cls
