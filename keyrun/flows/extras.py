"""Extras: libraries that only flows need, and what to install where they are missing."""

from importlib import import_module
from typing import Any

from keyrun.errors import KeyrunError


class ExtraMissing(KeyrunError, ImportError):
    """A library that comes with an extra of Keyrun is not installed."""


def need(library: str, *, for_: str, extra: str = "flows") -> Any:
    """The module `library`, or an error that says what to install."""
    try:
        return import_module(library)
    except ImportError as error:
        if error.name is not None and library.partition(".")[0] != error.name.partition(".")[0]:
            raise
        raise ExtraMissing(
            f"{for_} needs {library.partition('.')[0]}, which is not installed: "
            f"pip install keyrun[{extra}]",
            name=error.name,
        ) from error
