"""Peeking: what a store in memory holds durably, at this very moment and without waiting.

A step that is about to have an effect looks here whether all is on the disk that must be: a promise
is checked when it counts, not when all is over.
"""

from bisect import bisect_left
from typing import Any

from keyrun.runtime.records.ids import number_in
from keyrun.runtime.records.journal_entry import decode
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.records.tables import Ledger
from keyrun.runtime.run.journal import Journal
from keyrun.storage import MemoryStore, PayloadCodec
from keyrun.storage.record import unseal
from keyrun.storage.store import upper_bound


class Peek:
    """Reads the records of one namespace of a `MemoryStore`."""

    def __init__(self, store: MemoryStore, namespace: str = "default") -> None:
        self._store = store
        self.ledger = Ledger(store.namespace(namespace))
        self._codec = PayloadCodec()

    def _get(self, table: str, key: bytes) -> list[Any] | None:
        found = self._store._tables.get(table)
        raw = None if found is None else found.records.get(key)
        return None if raw is None else unseal(table, key, raw)

    def _scan(self, table: str, prefix: bytes) -> list[tuple[bytes, list[Any]]]:
        found = self._store._tables.get(table)
        if found is None:
            return []
        above = upper_bound(prefix)
        last = len(found.keys) if above is None else bisect_left(found.keys, above)
        keys = found.keys[bisect_left(found.keys, prefix) : last]
        return [(key, unseal(table, key, found.records[key])) for key in keys]

    def number(self, run_id: str) -> int | None:
        """The admission number of a run, which ids that were made tell by themselves."""
        fields = self._get("ids", self.ledger.run_id(run_id))
        if fields is not None:
            return int(fields[0])
        number = number_in(run_id)
        there = number is not None and self._get("runs", self.ledger.number(number)) is not None
        return number if there else None

    def submission(self, number: int) -> Submission:
        """What was submitted."""
        key = self.ledger.number(number)
        fields = self._get("runs", key)
        assert fields is not None, f"run {number} is gone"
        return self.ledger.submission_of(key, fields)

    def status(self, number: int) -> StatusRecord:
        """How a run stands."""
        fields = self._get("status", self.ledger.number(number))
        return StatusRecord() if fields is None else StatusRecord.read(fields)

    def journal(self, number: int) -> Journal:
        """What a run remembers."""
        journal = Journal()
        for key, fields in self._scan("journal", self.ledger.number(number)):
            journal.fold(int.from_bytes(key[-4:], "big"), decode(fields))
        return journal

    def begun(self, number: int, step: str) -> bool:
        """Whether the start of a step is on the disk."""
        return self._get("begun", self.ledger.step(number, step)) is not None

    def queue(self, key: str) -> list[int]:
        """The runs of a key that have a place and have not ended, in order."""
        return [int(fields[0]) for _, fields in self._scan("queue", self.ledger.key_prefix(key))]

    def state(self, key: str) -> dict[str, Any]:
        """The durable mapping of a key."""
        fields = self._get("state", self.ledger.key_prefix(key))
        found: dict[str, Any] = {} if fields is None else self._codec.decode(fields[0])
        return found

    def unfinished(self) -> dict[str, int]:
        """How many records there are in tables that are empty when all has ended."""
        tables = ("queue", "begun", "delayed", "outcomes")
        counts = {table: len(self._scan(table, self.ledger.prefix)) for table in tables}
        return {table: count for table, count in counts.items() if count}
