"""Keyrun: a durable actor runtime for Python on Trio. This is the front door."""

from keyrun.errors import KeyrunError

__all__ = ["KeyrunError", "__version__"]
__version__ = "0.1.0"
