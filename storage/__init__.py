"""The store interface, its records, and the LMDB, PostgreSQL and in-memory stores.

A store keeps bytes under ordered keys in named tables. A batch is stored completely or not at all,
and many batches share one sync. This package knows nothing of actors or workflows.
"""

from keyrun.storage.batch import Batch
from keyrun.storage.compact import compact
from keyrun.storage.errors import (
    BatchTooLarge,
    OwnershipUncertain,
    StoreClosed,
    StoreCorrupt,
    StoreCrashed,
    StoreError,
    StoreFull,
    StoreLocked,
    StoreLost,
    StoreReadOnly,
    StoreTooNew,
    TooManyTables,
)
from keyrun.storage.group_commit import CommitStatistics
from keyrun.storage.lmdb_store import LmdbStore
from keyrun.storage.memory import MemoryStore
from keyrun.storage.namespace import Namespace
from keyrun.storage.opening import store_at
from keyrun.storage.payload import (
    PayloadCodec,
    PayloadError,
    PayloadMismatch,
    PayloadTypeError,
    Transform,
)
from keyrun.storage.record import seal, unseal
from keyrun.storage.store import Store
from keyrun.storage.verify import Damage, Verification, verify

__all__ = [
    "Batch",
    "BatchTooLarge",
    "CommitStatistics",
    "Damage",
    "LmdbStore",
    "MemoryStore",
    "Namespace",
    "OwnershipUncertain",
    "PayloadCodec",
    "PayloadError",
    "PayloadMismatch",
    "PayloadTypeError",
    "Store",
    "StoreClosed",
    "StoreCorrupt",
    "StoreCrashed",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "StoreLost",
    "StoreReadOnly",
    "StoreTooNew",
    "TooManyTables",
    "Transform",
    "Verification",
    "compact",
    "seal",
    "store_at",
    "unseal",
    "verify",
]
