"""The ledger: how runs are laid out in the tables of a store.

Every record key starts with the namespace. A run is known by its admission number; run ids and
ordering keys only lead to it, so a prefix of an id can never meet another id, and a forgotten id
that is used again leads to a new run.

| table   | key                  | what                                                      |
|---------|----------------------|-----------------------------------------------------------|
| runs    | number               | what was submitted; never changes                         |
| status  | number               | how the run stands; none while it was never touched       |
| ids     | run id               | the number, for ids that were given; others tell it       |
| queue   | ordering key, place  | the number: the order of runs that have not ended         |
| journal | number, sequence     | what a run remembers                                      |
| begun   | number, step         | steps that were started and have no outcome               |
| memo    | number, step         | what a step keeps from attempt to attempt                 |
| state   | ordering key         | the durable mapping of a key                              |
| delayed | due time, number     | runs that get their place when they are due               |
| ended   | end time, number     | ended runs, for retention                                 |
| dead    | number               | dead letters                                              |
| outbox  | number, generation   | ends that the terminal hook has not yet been told         |
| held    | ordering key         | keys that are paused; the empty key stands for all        |
| counter | name                 | the next admission number                                 |
"""

import struct
from hashlib import sha256
from typing import Any

import attrs

from keyrun.runtime.ids import number_in
from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.values import Failure, FailureKind, Priority, State
from keyrun.storage import Namespace, Store, StoreCorrupt
from keyrun.storage.record import seal, unseal

SHARD, EPOCH = 0, 0
"""Room for a store that several machines share: who owns a run, since when."""

NUMBER = struct.Struct(">Q")
_ENTRY = struct.Struct(">QI")
SEQUENCE = struct.Struct(">I")
_TIMED = struct.Struct(">QQ")

_PRIORITIES = {int(priority): priority for priority in Priority}
_STATES = {str(state): state for state in State}

SALVAGE = "salvage"
"""The origin of what stands in for a damaged run."""
SUBMITTED_AT = 12
"""Which field of a submission says when: listings look at it before they read all of them."""

MAX_KEY = 255
MAX_STEP = 350


@attrs.define(kw_only=True)
class Submission:
    """What was submitted. The number is given at admission; nothing changes after that."""

    number: int = 0
    run_id: str
    key: str
    workflow: str
    version: int
    input: bytes
    digest: bytes | None
    """Of the input; None where the id was made for the run, so that hardly anybody asks."""
    headers: dict[str, str]
    tags: tuple[str, ...]
    priority: Priority
    limits: ResolvedLimits
    submitted_at: float
    delay: float
    origin: str
    at_hand: bool = False
    """Whether this very object is in line, or driven: then the run has not ended. Not stored."""

    def fields(self) -> tuple[Any, ...]:
        """As they are stored."""
        return (
            SHARD,
            EPOCH,
            self.run_id,
            self.key,
            self.workflow,
            self.version,
            self.input,
            self.digest,
            self.headers,
            self.tags,
            self.priority._value_,
            self.limits.stored,
            self.submitted_at,
            self.delay,
            self.origin,
        )

    @classmethod
    def read(cls, number: int, fields: list[Any]) -> "Submission":
        """The inverse of `fields`."""
        (_, _, run_id, key, workflow, version, input_, digest, headers, tags, priority) = fields[
            :11
        ]
        limits, submitted_at, delay, origin = fields[11:15]
        return cls(
            number=number,
            run_id=run_id,
            key=key,
            workflow=workflow,
            version=version,
            input=input_,
            digest=digest,
            headers=headers,
            tags=tuple(tags),
            priority=_PRIORITIES[priority],
            limits=ResolvedLimits.read(limits),
            submitted_at=submitted_at,
            delay=delay,
            origin=origin,
        )


@attrs.define(kw_only=True)
class Standing:
    """How a run stands, as it is stored. `place` is None until a delayed run is due."""

    state: State = State.PENDING
    generation: int = 1
    place: int | None = None
    started_at: float | None = None
    deadline: float | None = None
    ended_at: float | None = None
    steps_done: int = 0
    step: str | None = None
    attempt: int = 0
    waiting_on: str | None = None
    result: bytes | None = None
    reason: str | None = None
    failure: Failure | None = None
    cancel_requested: bool = False
    paused: bool = False

    def fields(self) -> tuple[Any, ...]:
        """As they are stored."""
        return (
            self.state._value_,
            self.generation,
            self.place,
            self.started_at,
            self.deadline,
            self.ended_at,
            self.steps_done,
            self.step,
            self.attempt,
            self.waiting_on,
            self.result,
            self.reason,
            self.failure and write_failure(self.failure),
            self.cancel_requested,
            self.paused,
        )

    @classmethod
    def read(cls, fields: list[Any]) -> "Standing":
        """The inverse of `fields`."""
        state, generation, place, started_at, deadline, ended_at, steps_done, step = fields[:8]
        attempt, waiting_on, result, reason, failure, cancel_requested, paused = fields[8:]
        return cls(
            state=_STATES[state],
            generation=generation,
            place=place,
            started_at=started_at,
            deadline=deadline,
            ended_at=ended_at,
            steps_done=steps_done,
            step=step,
            attempt=attempt,
            waiting_on=waiting_on,
            result=result,
            reason=reason,
            failure=failure and read_failure(failure),
            cancel_requested=cancel_requested,
            paused=paused,
        )


def write_failure(failure: Failure | None) -> tuple[Any, ...] | None:
    """A failure as fields."""
    if failure is None:
        return None
    return (
        str(failure.kind),
        failure.reason,
        failure.step,
        failure.attempt,
        failure.error_type,
        failure.traceback,
        failure.elapsed,
        write_failure(failure.cause),
    )


def read_failure(fields: list[Any] | None) -> Failure | None:
    """The inverse of `write_failure`."""
    if fields is None:
        return None
    kind, reason, step, attempt, error_type, traceback, elapsed, cause = fields
    return Failure(
        kind=FailureKind(kind),
        reason=reason,
        step=step,
        attempt=attempt,
        error_type=error_type,
        traceback=traceback,
        elapsed=elapsed,
        cause=read_failure(cause),
    )


class Ledger:
    """Record keys of one namespace, and reading by them."""

    def __init__(self, space: Namespace) -> None:
        self.prefix = space.prefix
        self.store: Store = space.store

    def number(self, number: int) -> bytes:
        """The key of a run in `runs`, `status` and `dead`."""
        return self.prefix + NUMBER.pack(number)

    def run_id(self, run_id: str) -> bytes:
        return self.prefix + run_id.encode()

    def line(self, key: str) -> bytes:
        """What all places of an ordering key start with. The length in front keeps keys apart of
        which one begins with the other."""
        encoded = key.encode()
        return self.prefix + bytes([len(encoded)]) + encoded

    def place(self, key: str, place: int) -> bytes:
        return self.line(key) + NUMBER.pack(place)

    def entry(self, number: int, sequence: int) -> bytes:
        """The key of a journal entry."""
        return self.prefix + _ENTRY.pack(number, sequence)

    def step(self, number: int, step: str) -> bytes:
        """The key of a step in `begun` and `memo`. Names that are too long end in a hash."""
        name = step.encode()
        if len(name) > MAX_STEP:
            name = name[: MAX_STEP - 32] + sha256(name).digest()
        return self.prefix + NUMBER.pack(number) + name

    def timed(self, time: float, number: int) -> bytes:
        """The key of a run in an index by time, to the microsecond."""
        return self.prefix + _TIMED.pack(max(0, int(time * 1e6)), number)

    def outbox(self, number: int, generation: int) -> bytes:
        return self.prefix + _ENTRY.pack(number, generation)

    def name(self, name: str) -> bytes:
        return self.prefix + name.encode()

    def split_number(self, key: bytes) -> tuple[int, bytes]:
        """A number at the front of a record key, and the rest."""
        at = len(self.prefix)
        return NUMBER.unpack_from(key, at)[0], key[at + 8 :]

    def split_place(self, key: bytes) -> tuple[str, int]:
        """The ordering key and the place of a record key in `queue`."""
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
        """The time and the number of a record key in an index by time."""
        micros, number = _TIMED.unpack_from(key, len(self.prefix))
        return micros / 1e6, number

    async def get(self, table: str, key: bytes) -> list[Any] | None:
        """The fields under `key`."""
        raw = await self.store.get(table, key)
        return None if raw is None else unseal(table, key, raw)

    async def scan(
        self, table: str, prefix: bytes, *, after: bytes = b"", limit: int | None = None
    ) -> list[tuple[bytes, list[Any]]]:
        """Keys and fields in order; `after` excludes that key and what is before it."""
        rows = await self.store.scan(
            table, prefix=prefix, start=after + b"\0" if after else b"", limit=limit
        )
        return [(key, unseal(table, key, raw)) for key, raw in rows]

    async def submission(self, number: int) -> Submission | None:
        """What was submitted under `number`."""
        fields = await self.get("runs", self.number(number))
        return None if fields is None else Submission.read(number, fields)

    async def standing(self, number: int) -> Standing | None:
        """How the run stands, or None if it was never touched."""
        fields = await self.get("status", self.number(number))
        return None if fields is None else Standing.read(fields)

    async def find(self, run_id: str) -> int | None:
        """The number of a run id."""
        fields = await self.get("ids", self.run_id(run_id))
        if fields is not None:
            return int(fields[0])
        number = number_in(run_id)
        if number is None:
            return None
        try:
            submission = await self.submission(number)
        except StoreCorrupt:
            return number
        # What stands in for a damaged run has lost its id.
        known = submission is not None and (
            submission.run_id == run_id or submission.origin == SALVAGE
        )
        return number if known else None


def number_at(key: bytes, raw: bytes, place: int) -> int:
    """The number of the run that a record of `queue` gives this place to."""
    try:
        (number,) = unseal("queue", key, raw)
    except StoreCorrupt:
        # Most runs have the place that is their number.
        return place
    return int(number)


def sealed(table: str, key: bytes, *fields: Any) -> bytes:
    """`fields` as a record."""
    return seal(table, key, fields)
