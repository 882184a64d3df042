"""The ledger: how the records of runs are laid out in the tables of a store.

Every record key starts with the namespace. Records of a run are found by its admission number. Run
ids and ordering keys only lead to the number. So an id that is a prefix of another id cannot
collide with it, and a forgotten id that is used again leads to a new run.

| table   | key                  | record                                                    |
|---------|----------------------|-----------------------------------------------------------|
| runs    | number               | the submission; never changes, except by a redrive        |
| status  | number               | the status; none while the run was never touched          |
| ids     | run id               | the number, for ids that were given; generated ids have it |
| queue   | ordering key, place  | the number: the order of unfinished runs, with the        |
|         |                      | priority if it is not NORMAL, and whether the run is evicted |
| timers  | due time, number     | key and place of evicted runs that wait for a time        |
| signals | number, sequence     | signals that the run has not taken                        |
| sent    | number, signal id    | ids of signals that were sent, to recognise a repeat      |
| journal | number, sequence     | the journal of the run                                    |
| begun   | number, step         | start markers of steps without an outcome                 |
| memo    | number, step         | the memo of a step, which survives attempts               |
| reports | number, step         | progress of a running step, or without a step of the workflow |
| state   | ordering key         | the durable mapping of a key                              |
| entities | ordering key, class | the state of an entity under a key                        |
| requests, answered |          | see `keyrun.runtime.entities.requests`                    |
| delayed | due time, number     | runs that get their place when they are due               |
| ended   | end time, number     | ended runs, for retention                                 |
| dead    | number               | dead letters                                              |
| outcomes | ordering key, sequence, number, generation | outcomes that wait for the terminal |
|         |                      | hook, see `keyrun.runtime.queue.outbox`                   |
| outbox  | number, generation   | the same, as an older Keyrun stored them                  |
| held    | ordering key         | keys that are paused; the empty key stands for all        |
| instances | number             | runs of workflows that limit their instances              |
| plans   | workflow, version    | the shape of a graph, for readers without its code        |
| schedules, firings |          | see `keyrun.runtime.schedules.records`                    |
| groups, members, former |     | see `keyrun.runtime.groups.records`                       |
| children |                     | see `keyrun.runtime.children.child_runs`                  |
| audit, operations, audited | | see `keyrun.runtime.records.operation`                 |
| unfinished, unpatched |       | see `keyrun.runtime.records.run_counts`                   |
| counter | name                 | the next admission number, the clock, counts, the open mark, |
|         |                      | the workflows of unfinished runs that the open does not have |
"""

import struct
from collections.abc import Collection
from contextlib import suppress
from enum import IntEnum
from hashlib import sha256
from typing import Any, NamedTuple

from keyrun.runtime.errors import InvalidRunId
from keyrun.runtime.records.ids import lost_id, number_in
from keyrun.runtime.records.pages import Pages, Rows
from keyrun.runtime.records.submission import SALVAGED, StatusRecord, Submission
from keyrun.runtime.texts import brief
from keyrun.runtime.values import Priority
from keyrun.storage import Namespace, Store, StoreCorrupt
from keyrun.storage.record import seal, unseal

NUMBER = struct.Struct(">Q")
_ENTRY = struct.Struct(">QI")
pack_sequence = struct.Struct(">I").pack
"""Packs the number of a journal entry, the last part of its key."""
_TIMED = struct.Struct(">QQ")

# Looking a member up in its enum takes as long as a call.
_NORMAL = Priority.NORMAL

_UNREGISTERED = "unregistered"

MAX_KEY = 255
MAX_RUN_ID = 128
MAX_STEP = 350


class Ledger:
    """Builds the record keys of one namespace, and reads records by them."""

    def __init__(self, space: Namespace) -> None:
        self.namespace = space.name
        self.prefix = space.prefix
        self.namespace = space.name
        self.store: Store = space.store

    def number(self, number: int) -> bytes:
        """Return the key of a run in `runs`, `status` and `dead`."""
        return self.prefix + NUMBER.pack(number)

    def run_id(self, run_id: str) -> bytes:
        return self.prefix + run_id.encode()

    def key_prefix(self, key: str) -> bytes:
        """Return the prefix of all places of an ordering key. It starts with the length of the key,
        so that a key which is a prefix of another key cannot collide with it."""
        encoded = key.encode()
        return self.prefix + bytes([len(encoded)]) + encoded

    def place(self, key: str, place: int) -> bytes:
        return self.key_prefix(key) + NUMBER.pack(place)

    def entry(self, number: int, sequence: int) -> bytes:
        """Return the key of a journal entry."""
        return self.prefix + _ENTRY.pack(number, sequence)

    def step(self, number: int, step: str) -> bytes:
        """Return the key of a step in `begun` and `memo`. A name that is too long ends in a
        hash."""
        name = step.encode()
        if len(name) > MAX_STEP:
            name = name[: MAX_STEP - 32] + sha256(name).digest()
        return self.prefix + NUMBER.pack(number) + name

    def timed(self, time: float, number: int) -> bytes:
        """Return the key of a run in an index by time, to the microsecond."""
        return self.prefix + _TIMED.pack(int(time * 1e6) if time > 0 else 0, number)

    def sequenced(self, number: int, sequence: int) -> bytes:
        """Return the key of a signal to a run."""
        return self.prefix + _TIMED.pack(number, sequence)

    def outbox(self, number: int, generation: int) -> bytes:
        """Return the key of an outcome that waits for the hook, as an older Keyrun stored it."""
        return self.prefix + _ENTRY.pack(number, generation)

    def outcome(self, key: str, sequence: int, number: int, generation: int) -> bytes:
        """Return the key of an outcome that waits for the hook."""
        return self.key_prefix(key) + NUMBER.pack(sequence) + _ENTRY.pack(number, generation)

    def plan(self, workflow: str, version: int) -> bytes:
        """Return the key of the shape of a graph."""
        return self.name(f"{workflow}\0{version}")

    def name(self, name: str) -> bytes:
        return self.prefix + name.encode()

    def split_number(self, key: bytes) -> tuple[int, bytes]:
        """Return the number at the front of a record key, and the rest of the key."""
        at = len(self.prefix)
        return NUMBER.unpack_from(key, at)[0], key[at + 8 :]

    def split_place(self, key: bytes) -> tuple[str, int]:
        """Return the ordering key and the place in a record key of `queue`."""
        at = len(self.prefix)
        try:
            end = at + 1 + key[at]
            return key[at + 1 : end].decode(), NUMBER.unpack_from(key, end)[0]
        except (IndexError, UnicodeDecodeError, struct.error):
            raise StoreCorrupt(
                f"the key {key!r} in table 'queue' is damaged; run verify() to see what else is, "
                "and restore the store from a backup",
                table="queue",
                key=key,
            ) from None

    def split_timed(self, key: bytes) -> tuple[float, int]:
        """Return the time and the number in a record key of an index by time."""
        micros, number = _TIMED.unpack_from(key, len(self.prefix))
        return micros / 1e6, number

    async def get(self, table: str, key: bytes) -> list[Any] | None:
        """Return the fields of the record under `key`, or None if there is no record."""
        raw = await self.store.get(table, key)
        return None if raw is None else unseal(table, key, raw)

    async def scan(
        self, table: str, prefix: bytes, *, after: bytes = b"", limit: int | None = None
    ) -> list[tuple[bytes, list[Any]]]:
        """Return keys and fields in order. `after` excludes this key and all keys before it."""
        rows = await self.store.scan(
            table, prefix=prefix, start=after + b"\0" if after else b"", limit=limit
        )
        return [(key, unseal(table, key, raw)) for key, raw in rows]

    def pages(
        self,
        table: str,
        *,
        size: int,
        prefix: bytes | None = None,
        start: bytes = b"",
        stop: bytes | None = None,
    ) -> Pages:
        """Read the records of a table, without a `prefix` all of this namespace, in pages of `size`
        records."""
        given = self.prefix if prefix is None else prefix
        return Pages(self.store, table, size=size, prefix=given, start=start, stop=stop)

    async def submission(self, number: int) -> Submission | None:
        """Return the submission with this admission number."""
        key = self.number(number)
        raw = await self.store.get("runs", key)
        return None if raw is None else self.read_submission(key, raw)

    def read_submission(self, key: bytes, raw: bytes) -> Submission:
        """Return the submission in a record of `runs`."""
        return self.submission_of(key, unseal("runs", key, raw))

    def submission_of(self, key: bytes, fields: list[Any]) -> Submission:
        """Return the submission in the fields of a record of `runs`."""
        try:
            return Submission.read(self.split_number(key)[0], fields)
        except (TypeError, ValueError, IndexError) as error:
            raise wrong_content("runs", key) from error

    async def status(self, number: int) -> StatusRecord | None:
        """Return the stored status of a run, or None if the run has none yet."""
        key = self.number(number)
        raw = await self.store.get("status", key)
        return None if raw is None else self.read_status(key, raw)

    async def current_status(self, number: int) -> StatusRecord | None:
        """Return the status of a run in the open that has the store, or had it last.

        An evicted run whose workflow this open does not have is quarantined. Its status record says
        that it waits, because the run is not loaded before it has something to do."""
        status = await self.status(number)
        if status is None or status.evicted_wait is None or status.state.terminal:
            return status
        missing = await self.unregistered()
        submission = await self.submission(number) if missing else None
        if submission is None or (submission.workflow, submission.version) not in missing:
            return status
        return status.unregistered(submission)

    async def unregistered(self) -> frozenset[tuple[str, int]]:
        """Return the workflows and versions with unfinished runs that are not registered in the
        open that has the store, or had it last."""
        try:
            fields = await self.get("counter", self.name(_UNREGISTERED))
        except StoreCorrupt:
            return frozenset()
        return frozenset((name, version) for name, version in fields or ())

    async def keep_unregistered(self, missing: Collection[tuple[str, int]]) -> None:
        """Stage the workflows and versions with unfinished runs that are not registered."""
        key, group = self.name(_UNREGISTERED), self.store.open_group()
        if missing:
            group.put("counter", key, sealed("counter", key, *sorted(missing)))
        elif await self.store.get("counter", key) is not None:
            group.delete("counter", key)

    def read_status(self, key: bytes, raw: bytes) -> StatusRecord:
        """Return the status in a record of `status`."""
        fields = unseal("status", key, raw)
        try:
            return StatusRecord.read(fields)
        except (TypeError, ValueError) as error:
            raise wrong_content("status", key) from error

    async def find(self, run_id: str) -> int | None:
        """Return the number of a run id. None if no run has this id, or the id is not valid."""
        if not isinstance(run_id, str):
            raise InvalidRunId(f"run_id must be a string, got {brief(run_id)}")
        if len(run_id) > MAX_RUN_ID or not run_id.isascii():
            return None
        try:
            fields = await self.get("ids", self.run_id(run_id))
        except StoreCorrupt:
            number = await self._search(run_id)
            if number is None:
                raise
            return number
        if fields is not None:
            return int(fields[0])
        number = number_in(run_id)
        if number is None:
            return None
        try:
            submission = await self.submission(number)
        except StoreCorrupt:
            return number
        if submission is None:
            return None
        # The submission that replaces a damaged one may have lost its id.
        lost = submission.origin == SALVAGED and submission.run_id == lost_id(number)
        return number if lost or submission.run_id == run_id else None

    async def head(self, key: str, *, most: int | None = None) -> int | None:
        """Return the number of the head run of a key: the first run that does not yield its key
        while it is evicted. With `most`, look at about this number of runs only."""
        places = self.pages("queue", prefix=self.key_prefix(key), size=1)
        seen = 0
        while rows := await places.next():
            if (number := self.head_of(rows)) is not None:
                return number
            seen += len(rows)
            if most is not None and seen >= most:
                return None
            # Most keys have no run that yields, so the first place is enough.
            places.size = 100
        return None

    def head_of(self, places: Rows) -> int | None:
        """Return the number of the first run at these places that does not yield its key."""
        for record, raw in places:
            there = at_place(record, raw, self.split_place(record)[1])
            if there.evicted is not Evicted.YIELDS:
                return there.number
        return None

    async def _search(self, run_id: str) -> int | None:
        """Return the number of a run id whose record in `ids` is damaged, by reading all runs."""
        async for rows in self.pages("runs", size=1000):
            for key, raw in rows:
                with suppress(StoreCorrupt):
                    if self.read_submission(key, raw).run_id == run_id:
                        return self.split_number(key)[0]
        return None


class Evicted(IntEnum):
    """Whether a run is evicted, and whether it holds or yields its key. The numbers are stored."""

    NO = 0
    HOLDS = 1
    YIELDS = 2


class Placed(NamedTuple):
    """The run that has a place in a queue.

    If the record is damaged, its key may be damaged, too. The run is then a guess, which
    `loading.assemble` checks."""

    number: int
    priority: Priority = Priority.NORMAL
    evicted: Evicted = Evicted.NO
    damaged: bool = False


def at_place(key: bytes, raw: bytes, place: int) -> Placed:
    """Return the run that a record of `queue` gives this place to."""
    try:
        number, *rest = unseal("queue", key, raw)
    except StoreCorrupt:
        # Most runs have the place that is their number.
        return Placed(place, damaged=True)
    if not rest:
        return Placed(number)
    priority, *evicted = rest
    return Placed(number, Priority(priority), Evicted(evicted[0]) if evicted else Evicted.NO)


def number_at(key: bytes, raw: bytes, place: int) -> int:
    """Return the number of the run that a record of `queue` gives this place to."""
    return at_place(key, raw, place).number


def placed(submission: Submission, evicted: Evicted = Evicted.NO) -> tuple[int, ...]:
    """Return the fields of a record of `queue`: the number, then what differs from the default."""
    if evicted is not Evicted.NO:
        return submission.number, int(submission.priority), int(evicted)
    if submission.priority is _NORMAL:
        return (submission.number,)
    return submission.number, int(submission.priority)


def wrong_content(table: str, key: bytes) -> StoreCorrupt:
    """Return the error for a record whose checksum matches but whose fields do not."""
    return StoreCorrupt(
        f"the record {key!r} in table {table!r} is damaged: its checksum matches but it contains "
        "something else; restore the store from a backup",
        table=table,
        key=key,
    )


def misplaced(submission: Submission, record: bytes) -> StoreCorrupt:
    """Return the error for a record of `queue` that leads to a run of another key."""
    return StoreCorrupt(
        f"the record {record!r} in table 'queue' is damaged: it leads to the run "
        f"{submission.run_id!r}, whose key is {submission.key!r}",
        table="queue",
        key=record,
    )


def sealed(table: str, key: bytes, *fields: Any) -> bytes:
    """Return `fields` as a record with a checksum."""
    return seal(table, key, fields)
