"""The base class of Keyrun's errors.

A private leaf: every package may import it, and it imports nothing. Each package derives its errors
from `KeyrunError` and from the matching builtin, so that `except KeyrunError` and
`except TimeoutError` both work.
"""


class KeyrunError(Exception):
    """Base of all errors that Keyrun raises. `except KeyrunError` catches all of them."""
