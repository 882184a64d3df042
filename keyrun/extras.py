"""Optional libraries: import them, or raise an error that says what to install."""

from importlib import import_module
from typing import Any

from keyrun.errors import MissingExtra


def need(library: str, *, for_: str, extra: str = "flows") -> Any:
    """Import and return the module `library`. Raise `MissingExtra` if it is not installed."""
    name = library.partition(".")[0]
    try:
        return import_module(library)
    except ImportError as error:
        if error.name is not None and name != error.name.partition(".")[0]:
            raise
        raise MissingExtra(
            f"{for_} requires {name}, which is not installed; install the extra {extra!r} in a "
            f'clone of Keyrun: pip install ".[{extra}]"'
        ) from error
