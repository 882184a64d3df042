"""Errors of the payload codec, and the one inside it that collects the place on its way up.

`Misfit` is raised where a value does not fit and gathers the path to it while it passes through
the containers; the codec turns it into one of the public errors at its door.
"""

import json
from types import UnionType
from typing import Any, NewType, TypeVar, Union, get_args, get_origin

from keyrun._errors import KeyrunError, class_name

_SHOWN_KEY = 40
_SHOWN_STEPS = 12


class PayloadError(KeyrunError, ValueError):
    """Raised if a value cannot be stored, or stored bytes cannot be decoded."""


class PayloadMismatch(PayloadError):
    """Raised if a stored value does not fit the declared type, because the code has changed."""


class PayloadTypeError(KeyrunError, TypeError):
    """Raised if a value or a declared type is of a kind that cannot be stored."""


class Misfit(Exception):
    """A value that does not fit where it stands."""

    def __init__(self, reason: str, error: type[KeyrunError] = PayloadTypeError) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error
        self.root = "value"
        self._steps: list[str] = []

    def inside(self, step: str) -> "Misfit":
        """Return this error, seen from the container that has the value at `step`."""
        self._steps.append(step)
        return self

    @property
    def depth(self) -> int:
        return len(self._steps)

    @property
    def place(self) -> str:
        steps = self._steps[::-1]
        if len(steps) > _SHOWN_STEPS:
            steps[_SHOWN_STEPS:] = ["..."]
        return f"{self.root}{''.join(steps)}"

    def __str__(self) -> str:
        return f"{self.place}: {self.reason}"


class NestedTooDeep(Misfit):
    """A container below more levels of containers than there may be."""

    def __init__(self) -> None:
        super().__init__("nests too deep", PayloadError)


class TooLarge(Misfit):
    """A value of more items than a payload may have."""

    def __init__(self) -> None:
        super().__init__("holds too many items", PayloadError)


class Unsupported(Misfit):
    """A declared type that no value could be stored as."""


class Unresolved(Unsupported):
    """A declared class with an annotation that has no meaning, or not yet."""


def said_by(error: BaseException) -> str:
    """Return the text of an error, also if its `__str__` raises."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as other:
        return f"<{class_name(error)} whose str raised {class_name(other)}>"


def at_key(key: Any) -> str:
    """Return the text of the place behind a key."""
    text = json.dumps(key) if isinstance(key, str) else repr(key)
    return f"[{text if len(text) <= _SHOWN_KEY else text[:_SHOWN_KEY] + '...'}]"


def at_index(index: int) -> str:
    """Return the text of a place in a list or tuple."""
    return f"[{index}]"


def at_member(member: Any) -> str:
    """Return the text of the place of a member of a set."""
    return f" (member {at_key(member)[1:-1]})"


def a(kind: type) -> str:
    """Return the name of a class with its article: a set, an OrderedDict."""
    name = kind.__name__
    return f"{'an' if name[0] in 'AEIOUaeiou' else 'a'} {name}"


def name_of(declared: Any) -> str:
    """Return the name of a type as in source code: Order, list[Order], Order | None."""
    if declared is None or declared is type(None):
        return "None"
    if declared is ...:
        return "..."
    if hasattr(declared, "__metadata__"):
        return name_of(declared.__origin__)
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Union or origin is UnionType:
        return " | ".join(map(name_of, arguments))
    if origin is not None and arguments:
        return f"{name_of(origin)}[{', '.join(map(name_of, arguments))}]"
    if isinstance(declared, type | NewType | TypeVar) or origin is not None:
        return str(declared.__name__)
    return repr(declared).removeprefix("typing.")
