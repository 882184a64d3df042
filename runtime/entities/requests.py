"""Requests: the answers of calls that were made with a request id, kept for a while.

An answer is stored in the commit that holds what the call did, so a repeat, also after a crash,
finds both or neither. They are kept as long as ended runs, and an index by time says which are the
oldest.
"""

from contextlib import suppress
from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any

import attrs
import trio

from keyrun.runtime.entities.bloom_filter import Sieve
from keyrun.runtime.entities.entity import Kind, Method
from keyrun.runtime.errors import CallFailed, InputMismatch
from keyrun.runtime.host.due_loop import NOW, DueLoop
from keyrun.runtime.records.submission import read_failure, write_failure
from keyrun.runtime.recovery.retention import PAGE, Retention
from keyrun.runtime.texts import brief
from keyrun.runtime.values import Failure
from keyrun.storage import StoreCorrupt
from keyrun.storage.native import pack
from keyrun.storage.record import seal, unseal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.storage.group import Group

MAX_REQUEST_ID = 255
_PLAIN = frozenset({type(None), bool, int, float, str, bytes})


@attrs.define(kw_only=True, eq=False)
class Request:
    """What a caller asks for who may ask again."""

    kind: Kind
    key: str
    request_id: str
    method: Method
    record: bytes
    digest: bytes
    """Of the method and its arguments."""

    def check(self, digest: bytes) -> None:
        """Raise unless something else that was asked for under this id is the same."""
        if digest != self.digest:
            raise InputMismatch(
                f"the request {self.request_id!r} of the entity {self.kind.name!r} was made with "
                "another method or other arguments; use another request_id, or repeat exactly "
                "what was asked",
                key=self.key,
            )


def check_request_id(request_id: object) -> str:
    """`request_id` if it can be one."""
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


class Requests:
    """Stores answers, finds them, and removes them when their time is over."""

    def __init__(self, partition: "Partition", retention: Retention) -> None:
        self._partition = partition
        self._retention = retention
        self._answered = 0
        self._sieve = Sieve()
        self._loop = DueLoop(self._sweep_due)

    def describe(
        self,
        kind: Kind,
        key: str,
        method: Method,
        request_id: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Request:
        """What is asked for, checked."""
        check_request_id(request_id)
        named = f"{kind.name}\0{request_id}".encode()
        return Request(
            kind=kind,
            key=key,
            request_id=request_id,
            method=method,
            record=self._partition.ledger.key_prefix(key) + sha256(named).digest(),
            digest=self._digest(method, args, kwargs),
        )

    def _digest(self, method: Method, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The same whether an argument is given by position or by name."""
        canonical, types = self._partition.codec.canonical, method.types
        by_position = list(args)
        if not kwargs and not types and _PLAIN.issuperset(map(type, args)):
            # The same bytes with less ado, except for what is too large or no Unicode.
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

    def lacks(self, request: Request) -> bool:
        """Whether it is known at once that there is no answer."""
        return self._sieve.lacks(request.record)

    async def answer(self, request: Request) -> tuple[bool, Any]:
        """Whether there is an answer, and which. Raises `CallFailed` if that is what it was.
        Nothing is awaited here that lets another task run."""
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
        self, group: "Group", request: Request, payload: bytes | None, failure: Failure | None
    ) -> None:
        """Stage what came of a call."""
        partition, record = self._partition, request.record
        now = partition.wall()
        fields = (
            request.kind.name,
            request.request_id,
            request.method.name,
            request.digest,
            now,
            payload,
            None if failure is None else write_failure(failure),
        )
        tables = group.tables
        tables["requests"][record] = seal("requests", record, fields)
        index = partition.ledger.timed(now, partition.take_number())
        tables["answered"][index] = seal("answered", index, (record,))
        self._answered += 1
        self._sieve.add(record)
        if self._answered == 1 or self._answered > self._retention.count:
            group.when_durable(self._loop.wake)

    async def run(self) -> None:
        """Remove answers when their time is over, for ever."""
        stored = await self._count()
        self._answered += stored
        await self._fill_sieve()
        await self._loop.run()

    async def _sweep_due(self) -> float:
        """Remove the answers whose time is over. Return when the next one's is."""
        store, ledger = self._partition.store, self._partition.ledger
        rows = await store.scan("answered", prefix=ledger.prefix, limit=PAGE)
        now, swept = self._partition.wall(), 0
        for index, raw in rows:
            due = ledger.split_timed(index)[0] + self._retention.age
            if due > now and self._answered <= self._retention.count:
                break
            group = store.open_group()
            group.delete("answered", index)
            with suppress(StoreCorrupt):  # what it leads to stays, and is found as before
                group.delete("requests", unseal("answered", index, raw)[0])
            self._answered -= 1
            swept += 1
        if swept:
            await store.durable()
            return NOW
        oldest = ledger.split_timed(rows[0][0])[0] if rows else inf
        return trio.current_time() + (oldest + self._retention.age - now)

    async def _count(self) -> int:
        ledger, total = self._partition.ledger, 0
        async for rows in ledger.pages("answered", size=5000):
            # Those of this process were counted when they were staged.
            total += sum(ledger.split_timed(key)[1] < self._partition.opened_at for key, _ in rows)
        return total

    async def _fill_sieve(self) -> None:
        """Know all that is stored. The index by time does not, if a record of it was damaged."""
        async for rows in self._partition.ledger.pages("requests", size=5000):
            for record, _ in rows:
                self._sieve.add(record)
        self._sieve.whole = True
