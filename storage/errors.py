"""The errors of a store. The message of each says what to do."""

from keyrun._errors import KeyrunError


class StoreError(KeyrunError, RuntimeError):
    """Raised if the store cannot do what was asked. Changes that were not acknowledged may be
    missing."""


class StoreClosed(StoreError):
    """Raised if the store is not open. Enter it with `async with` first."""


class StoreCrashed(StoreError):
    """Raised after a test crashed the store. Records that were not durable are lost."""


class StoreReadOnly(StoreError):
    """Raised by a write to a store that was opened for reading only."""


class StoreLocked(StoreError):
    """Raised if another process, or another runtime of this process, owns the store."""

    def __init__(self, message: str, *, pid: int | None = None, waited: float = 0.0) -> None:
        super().__init__(message)
        self.pid = pid
        """The id of the process that owns the store, if it is known."""
        self.waited = waited
        """The number of seconds that `open_runtime` waited for the store."""


class StoreLost(StoreError):
    """Raised if another process owns the store now, or if its database lost commits that were
    acknowledged. Commits that were not acknowledged are lost. You can open the store again."""


class OwnershipUncertain(StoreLost):
    """Raised by `current_step().check_owner()` if it is not certain at the moment that this process
    owns the store. The store may be lost, or its database may not answer."""

    attempt: object = None
    """The attempt that asked."""


class BatchTooLarge(KeyrunError, ValueError):
    """Raised if a batch has more bytes than the store can commit at once. Nothing of the batch is
    staged, and you can continue to use the store."""


class StoreFull(StoreError, OSError):
    """Raised if the disk, or the address space of the store, has no room for a commit."""


class TooManyTables(KeyrunError, ValueError):
    """Raised if a batch needs one table more than a store may have. Nothing of the batch is staged,
    and you can continue to use the store."""

    def __init__(self, table: str, most: int) -> None:
        super().__init__(
            f"a store has at most {most} tables, so {table!r} cannot be added; put its records "
            "into an existing table, with a prefix of their own"
        )
        self.table = table
        """The table that would be one too many."""


class StoreTooNew(StoreError):
    """Raised if a newer Keyrun wrote the store. Upgrade this one."""


class StoreCorrupt(StoreError):
    """Raised if a record, or the store, fails its check."""

    def __init__(self, message: str, *, table: str | None = None, key: bytes | None = None) -> None:
        super().__init__(message)
        self.table = table
        """The table of the damaged record. None if the damage is not about one record."""
        self.key = key
        """The key of the damaged record. None if the damage is not about one record."""
