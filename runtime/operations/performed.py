"""Performed operations: apply each write from outside once, answer its repeats, and keep the log.

1. The answer and the entry of the audit log are in the commit of the write. A repeat, also after a
   crash, finds both the write and its answer, or neither.
2. A write that changed nothing, or that was rejected because of what the store has, is recorded
   after it, in a commit of its own.
3. A repeat that arrives while the first is under way waits until the first is durable or has
   failed.
4. Nothing is recorded of an error that a repeat may avoid: backpressure, a runtime that closes, a
   store that failed, a cancelled caller, or an invalid argument. The repeat is performed.
5. Answers expire after an hour. Entries of the log expire like ended runs, by age and by count.
"""

from collections.abc import Awaitable, Callable
from contextlib import suppress
from math import inf
from typing import TYPE_CHECKING, TypeVar

import trio

from keyrun.runtime.errors import InputMismatch, RuntimeFault
from keyrun.runtime.host.due_loop import NOW, DueLoop
from keyrun.runtime.records.damage import DAMAGE
from keyrun.runtime.records.operation import (
    ANSWER_AGE,
    REJECTIONS,
    Answer,
    AuditEntry,
    Write,
    WriteRequest,
)
from keyrun.runtime.records.tables import NUMBER, sealed
from keyrun.runtime.run.performing import Performing
from keyrun.storage.record import unseal

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.storage.group import Group

T = TypeVar("T")

PAGE = 200
"""Entries that one commit removes."""
_CURSOR = "expired_answers"
"""The record of `counter` that says up to which entry the answers have expired."""
_REJECTED = tuple(REJECTIONS.values())


class PerformedOperations:
    """Performs operations once, and keeps their answers and the audit log."""

    def __init__(
        self, partition: "PartitionState", *, keep_seconds: float, keep_count: float
    ) -> None:
        self._partition = partition
        self._keep_seconds = keep_seconds
        self._keep_count = keep_count
        self._under_way: dict[str, tuple[Performing, trio.Event]] = {}
        self._stored = 0
        """The number of entries of the log."""
        self._cursor = b""
        """The end of the record key of the last entry whose answer has expired."""
        self._loop = DueLoop(self._sweep_due)

    async def perform(
        self,
        operation: WriteRequest,
        function: Callable[[], Awaitable[T]],
        *,
        encode: Callable[[T], bytes],
        decode: Callable[[bytes], T],
    ) -> T:
        """Call `function`, which makes the write of the operation, and return its answer. If the
        operation was performed in the last hour, return the first answer instead, or raise the
        first rejection.

        `function` must call the method of `Runtime` in its own task. `encode` returns the answer as
        bytes to store, at most a few KiB, and `decode` returns the answer of these bytes. Neither
        is used for a call of an entity: its answer is stored under its request id, which is the
        operation id if the caller gave none. Raises `InputMismatch` if another operation had this
        id."""
        operation = operation.check()
        state, name = self._partition, operation.operation_id
        state.check_caller()
        while (other := self._under_way.get(name)) is not None:
            self._same(operation, other[0].operation.identity())
            await other[1].wait()
            state.check_caller()
        stored = await self._answer(operation) if operation.repeatable else None
        task, over = trio.lowlevel.current_task(), trio.Event()
        performing = Performing(
            operation,
            state.ledger,
            wall=state.wall,
            take_number=state.take_number,
            encode=encode,
            settled=self._settled,
            nurseries=len(task.child_nurseries),
        )
        if stored is not None:
            if (error := stored.error()) is not None:
                raise error
            if operation.write is not Write.CALL:
                return decode(stored.payload)
        else:
            self._under_way[name] = performing, over
        # A repeat of a call finds its answer by the request id, and stages nothing.
        state.performing[task] = performing
        try:
            try:
                answer = await function()
            finally:
                del state.performing[task]
            if performing.group is None and stored is None:
                about = await self._about(operation)
                with state.together() as group:
                    performing.stage(group, answer, about)
            if performing.group is not None:
                await performing.group.wait()
            return answer
        except _REJECTED as error:
            if performing.group is None and stored is None:
                about = await self._about(operation)
                with state.together() as group:
                    performing.reject(group, error, about)
                await group.wait()
            raise
        finally:
            if performing.group is None or performing.group.durable:
                self._over(performing)

    def _same(self, operation: WriteRequest, identity: bytes) -> None:
        """Raise `InputMismatch` unless this is the operation with that identity."""
        if operation.identity() != identity:
            raise InputMismatch(
                f"another operation was performed with the id {operation.operation_id!r}; make a "
                "new id for each operation, and repeat an operation unchanged",
                run_id=operation.run_id,
                key=operation.key,
            )

    async def _answer(self, operation: WriteRequest) -> Answer | None:
        """Return the stored answer of an operation that was performed in the last hour."""
        ledger = self._partition.ledger
        fields = await ledger.get("operations", ledger.name(operation.operation_id))
        if fields is None:
            return None
        answer = Answer.read(fields)
        if answer.at + ANSWER_AGE <= self._partition.wall():
            return None
        self._same(operation, answer.identity)
        return answer

    async def _about(self, operation: WriteRequest) -> "Submission | None":
        """Return the run that an operation is about, if there is one."""
        ledger = self._partition.ledger
        if operation.run_id is None:
            return None
        with suppress(*DAMAGE, RuntimeFault):
            number = await ledger.find(operation.run_id)
            return None if number is None else await ledger.submission(number)
        return None

    def _settled(self, performing: Performing) -> None:
        """Record that the records of an operation are durable."""
        self._stored += 1
        if self._stored == 1 or self._stored > self._keep_count:
            self._loop.wake()
        self._over(performing)

    def _over(self, performing: Performing) -> None:
        """Let the repeats of an operation continue."""
        name = performing.operation.operation_id
        known = self._under_way.get(name)
        if known is not None and known[0] is performing:
            del self._under_way[name]
            known[1].set()

    def close(self) -> None:
        """Let everything that waits find that the runtime was closed."""
        for performing, _ in list(self._under_way.values()):
            self._over(performing)

    async def run(self) -> None:
        """Remove answers and entries that expire, until cancelled."""
        ledger = self._partition.ledger
        with suppress(*DAMAGE):
            fields = await ledger.get("counter", ledger.name(_CURSOR))
            self._cursor = b"" if fields is None else fields[0]
        async for rows in ledger.pages("audit", size=5000):
            # The entries of this process were counted when they were durable.
            opened = self._partition.opened_at
            self._stored += sum(ledger.split_timed(key)[1] < opened for key, _ in rows)
        await self._loop.run()

    async def _sweep_due(self) -> float:
        """Remove what has expired. Return when more expires."""
        now = self._partition.wall()
        answers = await self._expire_answers(now)
        entries = await self._expire_entries(now)
        if NOW in (answers, entries):
            await self._partition.store.durable()
            return NOW
        due = min(answers, entries)
        return inf if due == inf else trio.current_time() + (due - now)

    async def _expire_answers(self, now: float) -> float:
        """Remove answers that have expired. Return the time at which the next one does, or
        `NOW`."""
        ledger, store = self._partition.ledger, self._partition.store
        start = ledger.prefix + self._cursor + b"\0" if self._cursor else b""
        rows = await store.scan("audit", prefix=ledger.prefix, start=start, limit=PAGE)
        gone: list[bytes] = []
        due = inf
        for key, raw in rows:
            due = ledger.split_timed(key)[0] + ANSWER_AGE
            if due > now:
                break
            self._cursor = key[len(ledger.prefix) :]
            answer = await self._answer_of(key, raw)
            if answer is not None:
                gone.append(answer)
        else:
            # Whatever is recorded from now on does not expire earlier.
            due = NOW if rows else now + ANSWER_AGE if self._stored else inf
        if rows and (due == NOW or gone):
            counter = ledger.name(_CURSOR)
            with store.open_group().together() as group:
                for name in gone:
                    group.delete("operations", name)
                group.put("counter", counter, sealed("counter", counter, self._cursor))
        return due

    async def _expire_entries(self, now: float) -> float:
        """Remove entries that have expired. Return the time at which the next one does, or
        `NOW`."""
        ledger, store = self._partition.ledger, self._partition.store
        rows = await store.scan("audit", prefix=ledger.prefix, limit=PAGE)
        for key, raw in rows:
            due = ledger.split_timed(key)[0] + self._keep_seconds
            if due > now and self._stored <= self._keep_count:
                return due
            name = await self._answer_of(key, raw)
            with store.open_group().together() as group:
                group.delete("audit", key)
                if name is not None:
                    group.delete("operations", name)
                self._remove_index(group, key, raw)
            self._stored -= 1
        return NOW if rows else inf

    async def _answer_of(self, key: bytes, raw: bytes) -> bytes | None:
        """Return the record key of the answer of the operation of an entry. None if there is none:
        it has expired, or its id belongs to a later operation."""
        ledger = self._partition.ledger
        with suppress(*DAMAGE):
            entry = AuditEntry.read(0.0, unseal("audit", key, raw))
            name = ledger.name(entry.operation_id)
            fields = await ledger.get("operations", name)
            if fields is not None and Answer.read(fields).entry == key[len(ledger.prefix) :]:
                return name
        return None

    def _remove_index(self, group: "Group", key: bytes, raw: bytes) -> None:
        ledger = self._partition.ledger
        with suppress(*DAMAGE):
            number = AuditEntry.read(0.0, unseal("audit", key, raw)).number
            if number is not None:
                prefix = ledger.prefix
                group.delete("audited", prefix + NUMBER.pack(number) + key[len(prefix) :])
