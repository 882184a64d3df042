"""The root of every error that Keyrun raises.

A leaf: every folder may import it, and it imports nothing. Each folder derives its own errors
from `KeyrunError` and from the builtin that matches, so that both `except KeyrunError` and
`except TimeoutError` do what they say.
"""


class KeyrunError(Exception):
    """Base of all errors that Keyrun raises."""
