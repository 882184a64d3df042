"""The outbox: outcomes of ended runs that the terminal hook has not received yet, in the store.

Rules:

- The commit that ends a run also puts its whole outcome into the outbox. The entry stays until the
  hook has returned for it, or until `discard` drops it. Retention and `forget` remove the run, not
  the entry.
- A store collects from the first open with a hook until `discard`, also in opens without a hook.
- Entries are ordered by ordering key, then by sequence number. Sequence numbers grow with every
  end, so the entries of one key are in the order of its ends.
- The number of entries is kept in the store. No call reads the whole outbox, except `discard` and
  the conversion of entries that an older Keyrun wrote.
- Entries of an older Keyrun name a run, whose own record has the outcome. `convert` converts
  them. Until it has ended, nothing is delivered and no ended run may change: delivery,
  `discard`, `forget`, `redrive` and retention wait for `converted`.
"""

import struct
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs
import trio

from keyrun.runtime.logger import logger
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.pages import Rows
from keyrun.runtime.records.submission import GENERATION, StatusRecord, Submission
from keyrun.runtime.records.tables import NUMBER, Ledger, wrong_content
from keyrun.storage import StoreClosed, StoreCorrupt
from keyrun.storage.record import seal, unseal
from keyrun.storage.store import upper_bound

if TYPE_CHECKING:
    from keyrun.storage.group import Group

TABLE = "outcomes"
LEGACY_TABLE = "outbox"
"""Entries of an older Keyrun: number and generation of a run, whose own record has the outcome."""
PAGE = 1000
PAGE_BYTES = 4_000_000
"""Bytes of entries that are read before other tasks run."""
FIRST = 1 << 32
"""The first sequence number in a store with entries of an older Keyrun: those get lower ones, as
their runs ended before."""

_COUNTS = "outbox"
_RUN = struct.Struct(">QI")
"""The end of a record key: the admission number and the generation."""
_LEGACY_ORDER = struct.Struct(">QQQI")


@attrs.frozen(kw_only=True)
class StoredOutcome:
    """The outcome of one end, as an entry of the outbox has it."""

    number: int
    run_id: str
    key: str
    workflow: str
    version: int
    headers: dict[str, str]
    status: StatusRecord

    @staticmethod
    def encode(submission: Submission, status: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the fields of an entry. `status` has the fields of the terminal record."""
        return (
            submission.run_id,
            submission.workflow,
            submission.version,
            submission.headers,
            status,
        )

    @classmethod
    def decode(cls, number: int, key: str, fields: list[Any]) -> "StoredOutcome":
        """Return the outcome that `encode` wrote. The record key has the admission number and the
        ordering key."""
        run_id, workflow, version, headers, status = fields[:5]
        return cls(
            number=number,
            run_id=run_id,
            key=key,
            workflow=workflow,
            version=version,
            headers=headers,
            status=StatusRecord.read(status),
        )

    def outcome_id(self, namespace: bytes) -> str:
        """Return an id of this end, which is the same in every repeat and different for every other
        end. A run id that was forgotten and used again belongs to another number."""
        status = self.status
        parts = (self.run_id, self.number, status.generation, status.ended_at)
        return sha256(namespace + repr(parts).encode()).hexdigest()[:32]


@attrs.frozen
class OutboxEntry:
    """An entry of the outbox, not decoded yet."""

    key: str
    sequence: int
    record: bytes
    raw: bytes


@attrs.frozen(kw_only=True)
class OutboxStatus:
    """Describe the outbox of the terminal hook."""

    waiting: int
    """The number of outcomes that wait for the hook."""
    collecting: bool
    """Whether the store collects further outcomes for the hook."""


class Outbox:
    """The outbox of one namespace. Only its owner may write to it."""

    def __init__(self, ledger: Ledger, *, converted_at_once: int = 100) -> None:
        self._converted_at_once = converted_at_once
        self._ledger = ledger
        self._store = ledger.store
        self._record = ledger.name(_COUNTS)
        self.collecting = False
        """Whether the end of a run goes to the outbox."""
        self.waiting = 0
        """The number of entries, including staged ones."""
        self._next = 1
        self._discarded = 0
        """Entries up to this sequence number are dropped by `discard`."""
        self._discarding = trio.Lock()
        self.converting = False
        """Whether there are entries of an older Keyrun that `convert` has to convert."""
        self._converted_to = 0
        """The last sequence number that was given to an entry of an older Keyrun."""
        self._conversion_ended = trio.Event()

    async def open(self, *, hook: bool) -> None:
        """Read the state of the outbox. With a hook, the store collects from now on. The caller
        waits for the commit, and starts `convert` if there is something to convert."""
        counts = await _read(self._ledger)
        self.waiting, self._next = counts.waiting, counts.following
        self._converted_to = counts.converted_to
        legacy = await self._store.scan(LEGACY_TABLE, prefix=self._ledger.prefix, limit=1)
        self.converting = bool(legacy)
        if self.converting:
            self._next = max(self._next, FIRST)
        self.collecting = counts.collecting or hook or self.converting
        if self.collecting:
            self._write(self._store.open_group())

    async def converted(self) -> None:
        """Return when the outbox has no entries of an older Keyrun any more."""
        if self.converting:
            await self._conversion_ended.wait()
            if self.converting:
                raise StoreClosed(
                    "the runtime was closed while it converted its outbox; open it again"
                )

    def put(self, group: "Group", submission: Submission, status: tuple[Any, ...]) -> None:
        """Stage the outcome of a run whose end is staged in `group`. `status` has the fields of its
        terminal record."""
        sequence = self._next
        self._next = sequence + 1
        self._put(group, sequence, submission, status)

    def _put(
        self, group: "Group", sequence: int, submission: Submission, status: tuple[Any, ...]
    ) -> None:
        record = self._ledger.outcome(
            submission.key, sequence, submission.number, status[GENERATION]
        )
        fields = StoredOutcome.encode(submission, status)
        group.table(TABLE)[record] = seal(TABLE, record, fields)
        self._count(group, 1)

    def _count(self, group: "Group", by: int) -> None:
        """Stage that there is one entry more, or one fewer."""
        self.waiting += by
        group.when_dropped(self._take_back, by)
        self._write(group)

    def _take_back(self, by: int) -> None:
        self.waiting -= by

    async def first(self, key: str, after: int) -> OutboxEntry | None:
        """Return the oldest entry of `key` whose sequence number is above `after`."""
        ledger = self._ledger
        start = ledger.place(key, max(after, self._discarded) + 1)
        rows = await self._store.scan(TABLE, prefix=ledger.key_prefix(key), start=start, limit=1)
        if not rows:
            return None
        record, raw = rows[0]
        return OutboxEntry(key, _sequence(record), record, raw)

    async def read(self, entry: OutboxEntry) -> StoredOutcome:
        """Return the outcome in an entry, or in the records of the run if the entry is damaged.
        Raise one of `DAMAGE` if neither can be read."""
        ledger = self._ledger
        number, generation = _RUN.unpack(entry.record[-_RUN.size :])
        try:
            return _decode(number, entry)
        except DAMAGE:
            with ledger.store.view():
                submission = await ledger.submission(number)
                status = await ledger.status(number)
            if submission is None or status is None or status.generation != generation:
                raise
            fields = StoredOutcome.encode(submission, status.fields())
            return StoredOutcome.decode(number, entry.key, [*fields])

    async def next_key(self, cursor: bytes) -> tuple[str, bytes] | None:
        """Return the first ordering key with entries at or after `cursor`, and the cursor behind
        it. Start with an empty cursor."""
        ledger = self._ledger
        while rows := await self._store.scan(TABLE, prefix=ledger.prefix, start=cursor, limit=1):
            record = rows[0][0]
            with suppress(StoreCorrupt):
                key = ledger.split_place(record)[0]
                end = upper_bound(ledger.key_prefix(key))
                assert end is not None
                return key, end
            cursor = record + b"\0"
        return None

    def remove(self, entry: OutboxEntry) -> "Group | None":
        """Stage the removal of an entry that the hook has received. Return None if `discard` drops
        the entry."""
        if entry.sequence <= self._discarded:
            return None
        with self._store.open_group().together() as group:
            group.delete(TABLE, entry.record)
            self._count(group, -1)
        return group

    async def discard(self, *, collecting: bool) -> int:
        """Drop the present entries, and return their number. `collecting` says whether later ends
        go to the outbox."""
        await self.converted()
        async with self._discarding:
            self.collecting = collecting
            self._discarded = last = self._next - 1
            self._write(self._store.open_group())
            # After this, the removals that were staged before are durable, so no entry is counted
            # twice.
            await self._store.durable()
            dropped = 0
            async for rows in _pages(self._ledger, LEGACY_TABLE):
                # The conversion has left only damaged entries.
                group = self._store.open_group()
                for record, _ in rows:
                    group.delete(LEGACY_TABLE, record)
                    dropped += 1
                await self._store.durable(group)
            async for rows in _pages(self._ledger, TABLE):
                group = self._store.open_group()
                for record, _ in rows:
                    if _sequence(record) <= last:
                        group.delete(TABLE, record)
                        dropped += 1
                        self.waiting -= 1
                self._write(group)
                await self._store.durable(group)
            return dropped

    def _write(self, group: "Group") -> None:
        fields = (self.collecting, self.waiting, self._next, self._converted_to)
        group.table("counter")[self._record] = seal("counter", self._record, fields)

    async def convert(self) -> None:
        """Convert the entries of an older Keyrun, in the order of the ends. An entry is converted
        in one commit, so a crash in between loses nothing."""
        try:
            logger.info(
                "converting the ends that wait for on_terminal to a new format",
                extra={"event": "outbox_converted"},
            )
            ends = await self._convert()
            logger.info(
                "converted %d ends that wait for on_terminal",
                ends,
                extra={"event": "outbox_converted"},
            )
            self.converting = False
        finally:
            self._conversion_ended.set()

    async def _convert(self) -> int:
        found: list[bytes] = []
        # Entries of an older Keyrun are small, except for runs that were redriven.
        async for rows in self._ledger.pages(LEGACY_TABLE, size=self._converted_at_once):
            for record, _ in rows:
                order = await self._legacy_order(record)
                if order is not None:
                    found.append(order)
        found.sort()
        entries = size = 0
        for order in found:
            _, _, number, generation = _LEGACY_ORDER.unpack(order)
            with suppress(*DAMAGE):
                end = await self._legacy_end(number, generation)
                if end is None:
                    continue
                submission, status = end
                with self._store.open_group().together() as group:
                    self._converted_to += 1
                    self._put(group, self._converted_to, submission, status.fields())
                    group.delete(LEGACY_TABLE, self._ledger.outbox(number, generation))
                entries += 1
                size += len(status.result or b"")
                if entries == self._converted_at_once or size > PAGE_BYTES:
                    await self._store.durable(group)
                    entries = size = 0
        await self._store.durable()
        return len(found)

    async def _legacy_order(self, record: bytes) -> bytes | None:
        """Return bytes that sort entries of an older Keyrun by the time of the end. None if there
        is nothing to convert: the run was forgotten, or a record is damaged."""
        number, rest = self._ledger.split_number(record)
        generation = int.from_bytes(rest, "big")
        try:
            end = await self._legacy_end(number, generation)
        except DAMAGE as error:
            logger.error(
                "the end of run number %d cannot be read; the next open tries it again: %s",
                number,
                error,
                extra={"number": number, "event": "hook_failed"},
            )
            return None
        if end is None:
            self._store.open_group().delete(LEGACY_TABLE, record)
            return None
        status = end[1]
        ended = int((status.ended_at or 0.0) * 1e6)
        return _LEGACY_ORDER.pack(max(0, ended), status.place or 0, number, generation)

    async def _legacy_end(
        self, number: int, generation: int
    ) -> tuple[Submission, StatusRecord] | None:
        """Return the end of a generation of a run, or None if the run was forgotten."""
        ledger = self._ledger
        damage: StoreCorrupt | None = None
        with ledger.store.view():
            submission = await ledger.submission(number)
            try:
                kept = await ledger.get(LEGACY_TABLE, ledger.outbox(number, generation))
            except StoreCorrupt as error:
                # Unless the run was redriven, its own record has the same end.
                kept, damage = None, error
            status = StatusRecord.read(kept) if kept else await ledger.status(number)
        if submission is None or status is None or status.generation != generation:
            if damage is not None:
                raise damage
            return None
        return submission, status


def _decode(number: int, entry: OutboxEntry) -> StoredOutcome:
    fields = unseal(TABLE, entry.record, entry.raw)
    try:
        return StoredOutcome.decode(number, entry.key, fields)
    except (TypeError, ValueError, KeyError) as error:
        raise wrong_content(TABLE, entry.record) from error


def _sequence(record: bytes) -> int:
    sequence: int = NUMBER.unpack_from(record, len(record) - NUMBER.size - _RUN.size)[0]
    return sequence


async def outbox_status(ledger: Ledger) -> OutboxStatus:
    """Return the state of the outbox, for a reader. Entries of an older Keyrun are counted."""
    counts = await _read(ledger)
    legacy = 0
    async for rows in _pages(ledger, LEGACY_TABLE):
        legacy += len(rows)
    collecting = counts.collecting or legacy > 0
    return OutboxStatus(waiting=counts.waiting + legacy, collecting=collecting)


class _Counts(NamedTuple):
    """The record about the outbox in the table `counter`."""

    collecting: bool = False
    waiting: int = 0
    following: int = 1
    """The next sequence number."""
    converted_to: int = 0
    """The last sequence number that was given to an entry of an older Keyrun."""


async def _read(ledger: Ledger) -> _Counts:
    try:
        return _Counts(*(await ledger.get("counter", ledger.name(_COUNTS)) or ()))
    except DAMAGE as error:
        # There was a record, so the store has been opened with a hook.
        waiting, last, converted_to = 0, 0, 0
        async for rows in _pages(ledger, TABLE):
            waiting += len(rows)
            for record, _ in rows:
                last = max(last, _sequence(record))
                if _sequence(record) < FIRST:
                    converted_to = max(converted_to, _sequence(record))
        logger.error(
            "the count of ends that wait for on_terminal cannot be read; counted %d: %s",
            waiting,
            error,
            extra={"event": "counter_lost"},
        )
        return _Counts(True, waiting, last + 1, converted_to)


async def _pages(ledger: Ledger, table: str) -> AsyncIterator[Rows]:
    """Yield all records of a table in pages. Entries may be large: a page has at most `PAGE`
    records, and fewer if the last page was large."""
    pages = ledger.pages(table, size=16)
    async for rows in pages:
        taken = sum(len(raw) for _, raw in rows)
        pages.size = max(1, min(PAGE, 2 * pages.size, pages.size * PAGE_BYTES // (taken + 1)))
        yield rows
