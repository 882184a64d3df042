"""A namespace: the part of a store that one runtime has to itself.

Namespaces share the tables, the commits and the fsyncs of their store; only the keys are apart. A
record key is the namespace, a NUL byte, and the key that you gave.
"""

import re
from typing import TYPE_CHECKING

from keyrun.storage.batch import Batch

if TYPE_CHECKING:
    from keyrun.storage.store import Store

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def check_name(name: object) -> None:
    """Raise if `name` cannot be the name of a namespace."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(
            f"namespace must be 1 to 64 of A-Z, a-z, 0-9, '_', '.' and '-', got {name!r}"
        )


class Namespace:
    """Read and write one namespace of a store. `store.namespace(name)` returns this."""

    __slots__ = ("name", "prefix", "store")

    def __init__(self, store: "Store", name: str) -> None:
        check_name(name)
        self.store = store
        """The store."""
        self.name = name
        """The name of the namespace."""
        self.prefix = name.encode() + b"\0"
        """The prefix of all keys of the namespace."""

    def full(self, key: bytes) -> bytes:
        """Return the key with the prefix of the namespace. `seal` and `unseal` take this key."""
        return self.prefix + key

    def batch(self) -> Batch:
        """Return an empty batch whose keys are of this namespace. Pass it to `Store.stage` or
        `Store.commit`."""
        return Batch(self.prefix)

    async def get(self, table: str, key: bytes) -> bytes | None:
        """Return the record under `key` as of the last durable commit, or None."""
        return await self.store.get(table, self.prefix + key)

    async def scan(
        self,
        table: str,
        *,
        prefix: bytes = b"",
        start: bytes = b"",
        stop: bytes | None = None,
        limit: int | None = None,
        reverse: bool = False,
    ) -> list[tuple[bytes, bytes]]:
        """Return records of this namespace in key order, like `Store.scan`."""
        own = self.prefix
        rows = await self.store.scan(
            table,
            prefix=own + prefix,
            start=own + start,
            stop=None if stop is None else own + stop,
            limit=limit,
            reverse=reverse,
        )
        cut = len(own)
        return [(key[cut:], value) for key, value in rows]

    def __repr__(self) -> str:
        return f"<Namespace {self.name!r} of {self.store!r}>"
