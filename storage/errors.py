"""What can go wrong with a store, each with a way out in its message."""

from keyrun._errors import KeyrunError


class StoreError(KeyrunError, RuntimeError):
    """The store cannot do what was asked; nothing unacknowledged may be relied upon."""


class StoreClosed(StoreError):
    """The store is not open: enter it with `async with` first, or it has been left."""


class StoreCrashed(StoreError):
    """A test crashed the store; what was not durable is gone, as it was meant to be."""


class StoreReadOnly(StoreError):
    """The store was opened for reading only."""


class StoreLocked(StoreError):
    """Another process owns the store. `pid` names it when it is known."""

    def __init__(self, message: str, *, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid


class StoreFull(StoreError, OSError):
    """The disk, or the address space for the map, has no room for the commit."""


class TooManyTables(KeyrunError, ValueError):
    """The store has as many tables as it may have. Nothing was staged, and the store goes on."""

    def __init__(self, table: str, most: int) -> None:
        super().__init__(
            f"a store has at most {most} tables, and {table!r} would be one more; put its records "
            "into a table that is there, under a prefix of their own"
        )
        self.table = table


class StoreTooNew(StoreError):
    """Written by a newer Keyrun than this one."""


class StoreCorrupt(StoreError):
    """What was read is not what was written. `table` and `key` say where, when it is one record."""

    def __init__(self, message: str, *, table: str | None = None, key: bytes | None = None) -> None:
        super().__init__(message)
        self.table = table
        self.key = key
