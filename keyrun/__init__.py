"""Keyrun: a durable actor runtime for Python on Trio. This is the front door.

It gives what `keyrun.runtime` lists, and the errors of the store and of what is put into it. They
are imported by the first who asks for one of them: the command line, or a program that is only
about actors, does not wait for the rest.
"""

import importlib
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from keyrun import actors as actors
    from keyrun import runtime as runtime
    from keyrun import storage as storage
    from keyrun._errors import KeyrunError as KeyrunError
    from keyrun.runtime import *  # noqa: F403 (one list of names is enough)
    from keyrun.storage import PayloadError as PayloadError
    from keyrun.storage import PayloadTypeError as PayloadTypeError
    from keyrun.storage import StoreClosed as StoreClosed
    from keyrun.storage import StoreCorrupt as StoreCorrupt
    from keyrun.storage import StoreError as StoreError
    from keyrun.storage import StoreFull as StoreFull
    from keyrun.storage import StoreLocked as StoreLocked
else:
    _FOLDERS = ("actors", "runtime", "storage")
    _ERRORS = {
        "KeyrunError": "_errors",
        "PayloadError": "storage",
        "PayloadTypeError": "storage",
        "StoreClosed": "storage",
        "StoreCorrupt": "storage",
        "StoreError": "storage",
        "StoreFull": "storage",
        "StoreLocked": "storage",
    }

    def __getattr__(name: str) -> object:
        if name in _FOLDERS:
            return importlib.import_module(f"keyrun.{name}")
        if name == "__all__":
            return [*importlib.import_module("keyrun.runtime").__all__, *_ERRORS]
        if not name.startswith("_"):
            home = importlib.import_module(f"keyrun.{_ERRORS.get(name, 'runtime')}")
            if name in _ERRORS or name in home.__all__:
                found = globals()[name] = getattr(home, name)
                return found
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_FOLDERS, *__getattr__("__all__")})
