"""Performing: one operation from outside that a task performs, until its answer is durable.

The service that stages a write calls `PartitionState.applied` in the block that stages it, with
the answer that it will return. If the task performs an operation of that name, the records of the
operation are staged in the same group. A write of another name in the same task, or in a task that
it waits for, is a part of the operation: it has no entry of its own, and the history of its run has
the entry of the operation.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from keyrun.runtime.errors import RuntimeFault
from keyrun.runtime.records.operation import (
    Answer,
    AuditEntry,
    Rejection,
    Write,
    WriteRequest,
    cut,
    rejection_of,
    result_text,
)
from keyrun.runtime.records.tables import NUMBER, sealed
from keyrun.runtime.values import Failure

if TYPE_CHECKING:
    from keyrun.runtime.records.submission import Submission
    from keyrun.runtime.records.tables import Ledger
    from keyrun.storage.group import Group


class Performing:
    """An operation that is under way."""

    __slots__ = (
        "_encode",
        "_ledger",
        "_settled",
        "_suffix",
        "_take_number",
        "_wall",
        "group",
        "nurseries",
        "operation",
    )

    def __init__(
        self,
        operation: WriteRequest,
        ledger: "Ledger",
        *,
        wall: Callable[[], float],
        take_number: Callable[[], int],
        encode: Callable[[Any], bytes],
        settled: "Callable[[Performing], None]",
        nurseries: int,
    ) -> None:
        """`encode` returns the answer as bytes to store. `settled` is called when the records are
        durable. `nurseries` is the number of nurseries that the task has open already."""
        self._ledger = ledger
        self._wall = wall
        self._take_number = take_number
        self._encode = encode
        self._settled = settled
        self._suffix: bytes | None = None
        self.nurseries = nurseries
        self.operation = operation
        self.group: Group | None = None
        """The group with the records of the operation, once they are staged."""

    def stage(self, group: "Group", answer: object, about: "Submission | None" = None) -> None:
        """Stage the records of the operation with its answer. A later answer replaces it."""
        operation = self.operation
        stores = operation.repeatable and operation.write is not Write.CALL
        # The answer of a method of an entity is a payload.
        said = "done" if operation.write is Write.CALL else result_text(answer)
        self._stage(group, about, said, self._encode(answer) if stores else b"")
        if isinstance(answer, list):
            end = self._end(self._wall())
            for each in answer:
                number = getattr(each, "number", None)
                if number is not None:
                    self._index(group, number, end)

    def reject(self, group: "Group", error: RuntimeFault, about: "Submission | None") -> None:
        """Stage the records of an operation that was rejected."""
        self._stage(group, about, cut(str(error)), b"", type(error).__name__, rejection_of(error))

    def called(self, group: "Group", failure: Failure | None) -> None:
        """Stage the records of a call of an entity. Its answer is stored with its request id."""
        said = "done" if failure is None else cut(failure.reason)
        self._stage(group, None, said, b"", None if failure is None else failure.error_type)

    def mention(self, group: "Group", about: "Submission") -> None:
        """Stage that the operation is about this run, among others."""
        self._index(group, about.number, self._end(self._wall()))

    def _index(self, group: "Group", number: int, end: bytes) -> None:
        index = self._ledger.prefix + NUMBER.pack(number) + end
        group.table("audited")[index] = sealed("audited", index)

    def _end(self, at: float) -> bytes:
        """Return the end of the record key of the entry: time and sequence."""
        if self._suffix is None:
            self._suffix = self._ledger.timed(at, self._take_number())[len(self._ledger.prefix) :]
        return self._suffix

    def _stage(
        self,
        group: "Group",
        about: "Submission | None",
        said: str,
        payload: bytes,
        error: str | None = None,
        rejection: Rejection | None = None,
    ) -> None:
        operation, ledger = self.operation, self._ledger
        at = self._wall()
        end = self._end(at)
        key, run_id, number = operation.key, operation.run_id, None
        if about is not None:
            key, run_id, number = about.key, about.run_id, about.number
        entry = AuditEntry(
            at=at,
            operation=operation.write.value,
            who=operation.who,
            role=operation.role,
            run_id=run_id,
            key=key,
            target=operation.target,
            summary=operation.summary,
            result=said,
            error=error,
            operation_id=operation.operation_id,
            number=number,
        )
        record = ledger.prefix + end
        group.put("audit", record, sealed("audit", record, *entry.fields()))
        if operation.repeatable:
            answer = Answer(
                at=at,
                entry=end,
                identity=operation.identity(),
                payload=payload,
                rejection=rejection,
            )
            name = ledger.name(operation.operation_id)
            group.put("operations", name, sealed("operations", name, *answer.fields()))
        if number is not None and operation.write is not Write.FORGET:
            self._index(group, number, end)
        if self.group is not group:
            group.when_dropped(setattr, self, "group", self.group)
            group.when_durable(self._settled, self)
            self.group = group
