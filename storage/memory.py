"""A store in memory, for tests: the semantics of the durable stores at the speed of a dict.

`crash()` loses exactly the records that a process would lose when it is killed, so a test can end a
runtime as `kill -9` does, and open the same store again.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable

import trio

from keyrun.storage.batch import Tables
from keyrun.storage.store import Store


class _Table:
    """A dict with its keys in order."""

    __slots__ = ("keys", "records")

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.keys: list[bytes] = []

    def apply(self, key: bytes, value: bytes | None) -> None:
        known = key in self.records
        if value is not None:
            self.records[key] = value
            if not known:
                insort(self.keys, key)
        elif known:
            del self.records[key]
            del self.keys[bisect_left(self.keys, key)]


class MemoryStore(Store):
    """Keep records in memory, for tests. The records outlive the `async with` block: open the same
    object again to simulate a restart.

    - `latency`: seconds that each commit takes, on Trio's clock.
    - `apply_first`: By default a commit is applied at the end of its latency, so a crash before
      that loses it. With `apply_first` it is applied at the beginning and answered `latency`
      seconds later, as by the child process of an `LmdbStore`. A crash in between keeps a batch
      that was not acknowledged.
    """

    def __init__(self, *, latency: float = 0.0, apply_first: bool = False) -> None:
        if not latency >= 0:
            raise ValueError(f"latency must be at least 0, got {latency!r}")
        super().__init__()
        self.latency = latency
        """Seconds that each commit takes."""
        self.apply_first = apply_first
        """Whether a commit is applied before its latency."""
        self._tables: dict[str, _Table] = {}
        """The records that reads show."""
        self._unpublished: Tables = {}
        """The records that are durable and not readable yet."""

    async def _open(self) -> None:
        await trio.lowlevel.checkpoint()

    async def _close(self) -> None:
        self._publish(self._unpublished)
        await trio.lowlevel.checkpoint()

    def _tables_there(self) -> Iterable[str]:
        return self._tables

    async def _commit(self, tables: Tables) -> None:
        group = self._opened()
        if self.apply_first:
            self._unpublished = tables
        await trio.sleep(self.latency)
        if group.failure is not None:
            raise group.failure
        self._unpublished = tables

    def _publish(self, tables: Tables) -> None:
        self._unpublished = {}
        self._apply(tables)

    def _apply(self, tables: Tables) -> None:
        for name, operations in tables.items():
            table = self._tables.setdefault(name, _Table())
            for key, value in operations.items():
                table.apply(key, value)

    async def _get(self, table: str, key: bytes) -> bytes | None:
        found = self._tables.get(table)
        return found.records.get(key) if found else None

    async def _scan(
        self, table: str, start: bytes, stop: bytes | None, limit: int | None, reverse: bool
    ) -> list[tuple[bytes, bytes]]:
        found = self._tables.get(table)
        if found is None:
            return []
        first = bisect_left(found.keys, start)
        last = len(found.keys) if stop is None else bisect_left(found.keys, stop)
        if limit is not None and last - first > limit:
            first, last = (last - limit, last) if reverse else (first, first + limit)
        keys = found.keys[first:last]
        if reverse:
            keys.reverse()
        return [(key, found.records[key]) for key in keys]

    def __repr__(self) -> str:
        return "MemoryStore()"
