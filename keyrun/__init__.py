"""Keyrun: a durable actor runtime for Python on Trio. This is the front door.

It gives what `keyrun.runtime` lists, and the errors of the store and of what is put into it.
"""

from keyrun.errors import KeyrunError as KeyrunError
from keyrun.runtime import *  # noqa: F403 (one list of names is enough)
from keyrun.storage import PayloadError as PayloadError
from keyrun.storage import PayloadTypeError as PayloadTypeError
from keyrun.storage import StoreClosed as StoreClosed
from keyrun.storage import StoreCorrupt as StoreCorrupt
from keyrun.storage import StoreError as StoreError
from keyrun.storage import StoreFull as StoreFull
from keyrun.storage import StoreLocked as StoreLocked

__version__ = "0.1.0"
