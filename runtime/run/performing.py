"""Performing: one operation from outside that a task performs, until its answer is durable.

The service that stages a write calls `PartitionState.applied` in the block that stages it, with
the answer that it will return. If the task performs an operation of that name, the records of the
operation are staged in the same group. A write of another name in the same task is a part of the
operation and has no record of its own.
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
    ) -> None:
        """`encode` returns the answer as bytes to store. `settled` is called when the records are
        durable."""
        self._ledger = ledger
        self._wall = wall
        self._take_number = take_number
        self._encode = encode
        self._settled = settled
        self._suffix: bytes | None = None
        self.operation = operation
        self.group: Group | None = None
        """The group with the records of the operation, once they are staged."""

    def stage(self, group: "Group", answer: object, about: "Submission | None" = None) -> None:
        """Stage the records of the operation with its answer. A later answer replaces it."""
        operation = self.operation
        payload = b"" if operation.write is Write.CALL else self._encode(answer)
        self._stage(group, about, result_text(answer), payload)

    def reject(self, group: "Group", error: RuntimeFault, about: "Submission | None") -> None:
        """Stage the records of an operation that was rejected."""
        self._stage(group, about, cut(str(error)), b"", type(error).__name__, rejection_of(error))

    def called(self, group: "Group", failure: Failure | None) -> None:
        """Stage the records of a call of an entity. Its answer is stored with its request id."""
        said = "done" if failure is None else cut(failure.reason)
        self._stage(group, None, said, b"", None if failure is None else failure.error_type)

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
        if self._suffix is None:
            self._suffix = ledger.timed(at, self._take_number())[len(ledger.prefix) :]
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
        answer = Answer(
            at=at,
            entry=self._suffix,
            identity=operation.identity(),
            payload=payload,
            rejection=rejection,
        )
        record = ledger.prefix + self._suffix
        group.put("audit", record, sealed("audit", record, *entry.fields()))
        name = ledger.name(operation.operation_id)
        group.put("operations", name, sealed("operations", name, *answer.fields()))
        if number is not None and operation.write is not Write.FORGET:
            index = ledger.prefix + NUMBER.pack(number) + self._suffix
            group.put("audited", index, sealed("audited", index))
        if self.group is not group:
            group.when_dropped(setattr, self, "group", self.group)
            group.when_durable(self._settled, self)
            self.group = group
