"""Stores that break when they are told to."""

from keyrun.storage import MemoryStore
from keyrun.storage.batch import Tables


class FragileStore(MemoryStore):
    """Crashes instead of making its `crash_at`-th commit, counted from 1 since it was made."""

    def __init__(self, *, latency: float = 0.0) -> None:
        super().__init__(latency=latency)
        self.crash_at: int | None = None
        self.commits = 0

    async def _commit(self, tables: Tables) -> None:
        self.commits += 1
        if self.commits == self.crash_at:
            self.crash()
        await super()._commit(tables)

    def damage(self, table: str, key: bytes) -> None:
        """Flip a bit of a record, as a bad disk does."""
        records = self._tables[table].records
        raw = bytearray(records[key])
        raw[-1] ^= 1
        records[key] = bytes(raw)

    def keys(self, table: str) -> list[bytes]:
        """The keys of the records in a table."""
        found = self._tables.get(table)
        return list(found.keys) if found else []


class FullDisk(MemoryStore):
    """Fails to commit once `full` is set."""

    full = False

    async def _commit(self, tables: Tables) -> None:
        if self.full:
            raise OSError(28, "No space left on device")
        await super()._commit(tables)
