"""Extras: libraries that only flows need, and what to install where they are missing."""

from importlib import import_module
from typing import Any

from keyrun.errors import MissingExtra


def need(library: str, *, for_: str, extra: str = "flows") -> Any:
    """The module `library`, or an error that says what to install."""
    name = library.partition(".")[0]
    try:
        return import_module(library)
    except ImportError as error:
        if error.name is not None and name != error.name.partition(".")[0]:
            raise
        said = f'{for_} needs {name}, which is not installed: pip install "keyrun[{extra}]"'
        raise MissingExtra(said) from error
