"""Which kind of class a declared type is.

Pydantic is never imported here. A model can only exist after the application has imported it.
"""

import sys
from enum import Enum
from typing import Any

import attrs


def has_attributes(cls: type) -> bool:
    """Return whether it is an attrs class or a dataclass."""
    return attrs.has(cls) or hasattr(cls, "__dataclass_fields__")


def is_typed_dict(cls: type) -> bool:
    """Return whether it is a TypedDict, of `typing` or of `typing_extensions`."""
    return issubclass(cls, dict) and hasattr(cls, "__required_keys__")


def is_named_tuple(cls: type) -> bool:
    """Return whether it is a NamedTuple, or made with `collections.namedtuple`."""
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_model(cls: type) -> bool:
    """Return whether it is a model of Pydantic 2."""
    pydantic = sys.modules.get("pydantic.main")
    base: Any = getattr(pydantic, "BaseModel", None)
    return base is not None and cls is not base and issubclass(cls, base)


def must_be_declared(cls: type) -> bool:
    """Return whether values of this class come back only where the class is declared."""
    return issubclass(cls, Enum) or has_attributes(cls) or is_named_tuple(cls) or is_model(cls)
