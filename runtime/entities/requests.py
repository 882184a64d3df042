"""Requests: calls that were made with a request id, and the answers that are kept for repeats.

The commit that holds the changes of a call also holds its answer. So a repeat, also after a crash,
finds both or neither. Answers are kept for as long as ended runs. An index by time says which are
the oldest.
"""

from contextlib import suppress
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.entities.entity import EntityDefinition, EntityMethod
from keyrun.runtime.errors import CallFailed, InputMismatch
from keyrun.runtime.host.due_loop import NOW, DueLoop
from keyrun.runtime.records.submission import read_failure, write_failure
from keyrun.runtime.texts import brief
from keyrun.runtime.values import Failure
from keyrun.storage import StoreCorrupt
from keyrun.storage.native import pack
from keyrun.storage.record import seal, unseal

if TYPE_CHECKING:
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.storage.group import Group

MAX_REQUEST_ID = 255
PAGE = 200
"""Answers that one commit removes."""
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})
_SLOTS = 1 << 22
"""The size of the Bloom filter in bytes, allocated with the first answer. With a million answers,
one read in six finds no answer."""
_LAST_SLOT = _SLOTS - 1


@attrs.define(kw_only=True, eq=False)
class CallRequest:
    """A call that its caller may repeat."""

    definition: EntityDefinition
    key: str
    request_id: str
    method: EntityMethod
    record: bytes
    """The record key of the answer."""
    digest: bytes
    """The hash of the method and its arguments."""

    def check(self, digest: bytes) -> None:
        """Raise `InputMismatch` unless another request with this id has the same digest."""
        if digest != self.digest:
            raise InputMismatch(
                f"the request {self.request_id!r} of the entity {self.definition.name!r} was made "
                "with another method or other arguments; use another request_id, or repeat the "
                "call unchanged",
                key=self.key,
            )


def check_request_id(request_id: object) -> str:
    """Return `request_id`, or raise `ValueError` if it cannot be one."""
    if isinstance(request_id, str):
        if request_id.isascii() and 0 < len(request_id) <= MAX_REQUEST_ID:
            return request_id
        with suppress(UnicodeEncodeError):
            if 0 < len(request_id.encode()) <= MAX_REQUEST_ID:
                return request_id
    raise ValueError(
        f"request_id must be a string of 1 to {MAX_REQUEST_ID} bytes as UTF-8, got "
        f"{brief(request_id)}"
    )


class BloomFilter:
    """Recognises most requests that have no stored answer, so that no read is needed.

    The filter marks two positions for each record key, taken from its hash. A request whose
    positions are not both marked was never stored. If other requests have marked both positions,
    the store is read and has no answer."""

    __slots__ = ("_slots", "complete")

    def __init__(self) -> None:
        self._slots = bytearray()
        self.complete = False
        """Whether the filter contains everything that is stored."""

    def add(self, record: bytes) -> None:
        """Add the record key of an answer."""
        if not self._slots:
            self._slots = bytearray(_SLOTS)
        # The hash is of the whole record key, because many keys may use the same request ids.
        number = hash(record)
        self._slots[number & _LAST_SLOT] = self._slots[number >> 32 & _LAST_SLOT] = 1

    def lacks(self, record: bytes) -> bool:
        """Return whether it is certain that a request has no stored answer."""
        slots = self._slots
        if not self.complete or not slots:
            return self.complete
        number = hash(record)
        return not (slots[number & _LAST_SLOT] and slots[number >> 32 & _LAST_SLOT])


class AnswerStore:
    """Stores answers, finds them, and removes them when they expire."""

    def __init__(
        self,
        partition: "PartitionState",
        *,
        keep_seconds: float,
        keep_count: float,
        page: int = PAGE,
    ) -> None:
        self._partition = partition
        self._keep_seconds = keep_seconds
        self._keep_count = keep_count
        self._page = page
        self._stored = 0
        self._filter = BloomFilter()
        self._loop = DueLoop(self._sweep_due)

    def describe(
        self,
        definition: EntityDefinition,
        key: str,
        method: EntityMethod,
        request_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> CallRequest:
        """Check the request id, and return the request."""
        check_request_id(request_id)
        named = f"{definition.name}\0{request_id}".encode()
        return CallRequest(
            definition=definition,
            key=key,
            request_id=request_id,
            method=method,
            record=self._partition.ledger.key_prefix(key) + sha256(named).digest(),
            digest=self._digest(method, args, kwargs),
        )

    def _digest(self, method: EntityMethod, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """Return a hash that is the same whether an argument is given by position or by name."""
        canonical, types = self._partition.codec.canonical, method.types
        by_position = list(args)
        if not kwargs and not types and _PLAIN.issuperset(map(type, args)):
            # The same bytes, faster. Values that are too large or not valid Unicode raise.
            try:
                return sha256(pack([method.name, by_position, kwargs])).digest()
            except (ValueError, OverflowError):
                pass
        if kwargs:
            kwargs = dict(kwargs)
            for name in method.parameters[len(args) :]:
                if name not in kwargs:
                    break
                by_position.append(kwargs.pop(name))
        if types:
            for at, name in enumerate(method.parameters[: len(by_position)]):
                if name in types:
                    by_position[at] = canonical(by_position[at], types[name])
            for name in types.keys() & kwargs.keys():
                kwargs[name] = canonical(kwargs[name], types[name])
        return sha256(canonical([method.name, by_position, kwargs])).digest()

    def lacks(self, request: CallRequest) -> bool:
        """Return whether it is certain, without a read, that there is no answer."""
        return self._filter.lacks(request.record)

    async def answer(self, request: CallRequest) -> tuple[bool, Any]:
        """Return whether there is an answer, and the answer. Raise `CallFailed` if the method
        failed. No other task runs meanwhile."""
        if self.lacks(request):
            return False, None
        partition = self._partition
        fields = await partition.ledger.get("requests", request.record)
        if fields is None:
            return False, None
        _, _, _, digest, _, payload, failed = fields
        request.check(digest)
        failure = read_failure(failed)
        if failure is not None:
            raise CallFailed(failure, key=request.key)
        return True, partition.codec.decode(payload, request.method.declared)

    def stage(
        self, group: "Group", request: CallRequest, payload: bytes | None, failure: Failure | None
    ) -> None:
        """Stage the answer or the failure of a call."""
        partition, record = self._partition, request.record
        now = partition.wall()
        fields = (
            request.definition.name,
            request.request_id,
            request.method.name,
            request.digest,
            now,
            payload,
            None if failure is None else write_failure(failure),
        )
        group.table("requests")[record] = seal("requests", record, fields)
        index = partition.ledger.timed(now, partition.take_number())
        group.table("answered")[index] = seal("answered", index, (record,))
        self._stored += 1
        group.when_dropped(self._take_back)
        self._filter.add(record)
        if self._stored == 1 or self._stored > self._keep_count:
            group.when_durable(self._loop.wake)

    def _take_back(self) -> None:
        """Take back an answer that was not staged."""
        self._stored -= 1

    async def run(self) -> None:
        """Remove answers that expire, until cancelled."""
        stored = await self._count()
        self._stored += stored
        await self._fill_filter()
        await self._loop.run()

    async def _sweep_due(self) -> float:
        """Remove the answers that have expired. Return when the next answer expires."""
        store, ledger = self._partition.store, self._partition.ledger
        rows = await store.scan("answered", prefix=ledger.prefix, limit=self._page)
        now, swept = self._partition.wall(), 0
        for index, raw in rows:
            due = ledger.split_timed(index)[0] + self._keep_seconds
            if due > now and self._stored <= self._keep_count:
                break
            with store.open_group().together() as group:
                group.delete("answered", index)
                with suppress(StoreCorrupt):  # the answer stays, and repeats still find it
                    group.delete("requests", unseal("answered", index, raw)[0])
            self._stored -= 1
            swept += 1
        if swept:
            await store.durable()
            return NOW
        oldest = ledger.split_timed(rows[0][0])[0] if rows else inf
        return trio.current_time() + (oldest + self._keep_seconds - now)

    async def _count(self) -> int:
        ledger, total = self._partition.ledger, 0
        async for rows in ledger.pages("answered", size=5000):
            # The answers of this process were counted when they were staged.
            total += sum(ledger.split_timed(key)[1] < self._partition.opened_at for key, _ in rows)
        return total

    async def _fill_filter(self) -> None:
        """Add everything that is stored. The index by time may lack some, if it was damaged."""
        async for rows in self._partition.ledger.pages("requests", size=5000):
            for record, _ in rows:
                self._filter.add(record)
        self._filter.complete = True
