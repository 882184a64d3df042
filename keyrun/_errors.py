"""The base class of Keyrun's errors, and the name of a class for messages.

A private leaf: every package may import it, and it imports nothing. Each package derives its errors
from `KeyrunError` and from the matching builtin, so that `except KeyrunError` and
`except TimeoutError` both work.
"""


class KeyrunError(Exception):
    """Base of all errors that Keyrun raises. `except KeyrunError` catches all of them."""


_CLASS_NAME = type.__dict__["__name__"].__get__


def class_name(value: object) -> str:
    """Return the name of the class of a value, also if the `__name__` of its metaclass raises."""
    name: str = _CLASS_NAME(type(value))
    return name
