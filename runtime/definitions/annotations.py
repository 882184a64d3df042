"""Annotations: which types the parameters and the result of a function are declared with."""

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

from keyrun.storage.misfit import Unsupported
from keyrun.storage.payload import PayloadTypeError
from keyrun.storage.typed import Plans

_SCALARS = frozenset({Any, None, type(None), bool, int, float, str, bytes})


def declared_types(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of the parameters that have an annotation, and of `return`. An annotation
    that cannot be resolved is left out, for example a name that only the type checker imports."""
    try:
        return get_type_hints(function)
    except Exception:
        return _one_by_one(function)


def _one_by_one(function: Callable[..., Any]) -> dict[str, Any]:
    written = inspect.unwrap(function)
    found: dict[str, Any] = {}
    for name, annotation in getattr(written, "__annotations__", {}).items():
        holder = SimpleNamespace(__annotations__={name: annotation})
        try:
            found |= get_type_hints(holder, getattr(written, "__globals__", {}))
        except Exception:  # an annotation may be any expression
            continue
    return found


def require_storable(declared: Any, place: str, *, resolved: bool = False) -> None:
    """Raise `PayloadTypeError` if no value could be stored as `declared`. With `resolved`, an
    annotation inside it that cannot be resolved is an error, too."""
    try:
        if declared in _SCALARS:
            return
    except TypeError:  # unhashable, such as Annotated[int, []]
        pass
    try:
        Plans().require(declared, resolved=resolved)
    except Unsupported as misfit:
        raise PayloadTypeError(
            f"{place} cannot be stored: {str(misfit).removeprefix('value: ')}"
        ) from misfit.__cause__
