"""Keyrun: a durable actor runtime for Python on Trio. This is the front door.

It gives what `keyrun.runtime` lists, and the errors of the store and of what is put into it.
"""

from typing import TYPE_CHECKING

from keyrun import runtime
from keyrun.errors import KeyrunError as KeyrunError
from keyrun.storage import PayloadError as PayloadError
from keyrun.storage import PayloadTypeError as PayloadTypeError
from keyrun.storage import StoreClosed as StoreClosed
from keyrun.storage import StoreCorrupt as StoreCorrupt
from keyrun.storage import StoreError as StoreError
from keyrun.storage import StoreFull as StoreFull
from keyrun.storage import StoreLocked as StoreLocked

if TYPE_CHECKING:
    from keyrun.runtime import *  # noqa: F403 (one list of names is enough)
else:
    # Some of it is imported by the first who asks for it, so it cannot all be taken over here.
    __all__ = [
        *runtime.__all__,
        "KeyrunError",
        "PayloadError",
        "PayloadTypeError",
        "StoreClosed",
        "StoreCorrupt",
        "StoreError",
        "StoreFull",
        "StoreLocked",
    ]

    def __getattr__(name: str) -> object:
        if name not in runtime.__all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(runtime, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


__version__ = "0.1.0"
