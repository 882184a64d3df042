"""Operations: writes that came in from outside, such as through the control plane, as records.

An operation has an id that its caller made before its first attempt. The commit of the write also
has the records of its operation:

| table      | key                    | record                                                     |
|------------|------------------------|------------------------------------------------------------|
| audit      | time, sequence         | an entry of the audit log: who did what, and the result    |
| operations | operation id           | the answer, for a repeat, and the key of the entry. There  |
|            |                        | is none if the caller cannot repeat the operation.         |
| audited    | number, time, sequence | empty: finds the entries about a run, for its history      |

The answer is kept for an hour, and the entry for as long as ended runs. Forgetting a run removes
its records in `audited`, not the entry.
"""

import re
from enum import StrEnum
from hashlib import sha256
from typing import Any

import attrs

from keyrun.runtime.errors import (
    GateNotWaiting,
    InputMismatch,
    RunEnded,
    RuntimeFault,
    UnknownGroup,
    UnknownRun,
)
from keyrun.runtime.texts import brief, check_text, clean

ANSWER_AGE = 3600.0
"""Seconds that the answer of an operation is kept for repeats."""
MAX_SUMMARY = 500
"""Characters of a summary or a result that are stored."""
MOST_NAMED = 10
"""Runs that the result of an operation on several runs names."""
_ID = re.compile(r"[A-Za-z0-9_.:-]{1,128}", re.ASCII)

REJECTIONS: dict[str, type[RuntimeFault]] = {
    each.__name__: each
    for each in (UnknownRun, RunEnded, GateNotWaiting, InputMismatch, UnknownGroup)
}
"""Errors that depend on what the store has, and are answers: a repeat raises the same error. Any
other error leaves no record, because nothing was changed, and a repeat tries again."""

Rejection = tuple[str, str, str | None, str | None, str | None]
"""The type of an error with its message, run id, key and step."""


class Write(StrEnum):
    """Name the writes of a runtime. The names are those of the methods, and are stored. Below them
    are writes that consist of several others."""

    SUBMIT = "submit"
    SUBMIT_GROUP = "submit_group"
    SUBMIT_OR_SIGNAL = "submit_or_signal"
    CALL = "call"
    SIGNAL = "signal"
    APPROVE = "approve"
    REJECT = "reject"
    CANCEL = "cancel"
    PAUSE = "pause"
    RESUME = "resume"
    PAUSE_KEY = "pause_key"
    RESUME_KEY = "resume_key"
    PAUSE_ALL = "pause_all"
    RESUME_ALL = "resume_all"
    REDRIVE = "redrive"
    FORGET = "forget"
    RELEASE_KEY = "release_key"
    SCHEDULE = "schedule"
    PAUSE_SCHEDULE = "pause_schedule"
    RESUME_SCHEDULE = "resume_schedule"
    DELETE_SCHEDULE = "delete_schedule"
    DISCARD_OUTCOMES = "discard_outcomes"
    SUBMIT_MANY = "submit_many"
    SUBMIT_TOGETHER = "submit_together"
    CANCEL_GROUP = "cancel_group"
    BULK = "bulk"


_SEVERAL = (Write.SUBMIT_MANY, Write.SUBMIT_TOGETHER, Write.CANCEL_GROUP, Write.BULK)
SINGLE_WRITES = tuple(each for each in Write if each not in _SEVERAL)
"""The writes that are methods of a runtime."""


@attrs.frozen(kw_only=True)
class WriteRequest:
    """A write that came in from outside: who does what to what."""

    operation_id: str
    """1 to 128 characters of A-Z, a-z, 0-9 and `_.:-`, made before the first attempt."""
    write: Write
    who: str
    role: str = ""
    run_id: str | None = None
    key: str | None = None
    target: str = ""
    """The id of a schedule or a group."""
    summary: str = ""
    """The other arguments, as short text."""
    digest: bytes = b""
    """A hash of the arguments. A repeat with another hash is another operation."""
    repeatable: bool = True
    """Whether the caller knows the id, so that it can repeat the operation. Otherwise no answer is
    stored."""

    def check(self) -> "WriteRequest":
        """Return the operation with texts that can be stored. Raise if a field is invalid."""
        if not isinstance(self.operation_id, str) or not _ID.fullmatch(self.operation_id):
            raise ValueError(
                "operation_id must be 1 to 128 characters of A-Z, a-z, 0-9, '_', '.', ':' and "
                f"'-', got {brief(self.operation_id)}"
            )
        if not isinstance(self.write, Write):
            raise TypeError(f"write must be a Write, got {brief(self.write)}")
        check_text(self.who, "who")
        summary, target = cut(self.summary), cut(self.target)
        if (summary, target) == (self.summary, self.target):
            return self
        return attrs.evolve(self, summary=summary, target=target)

    def identity(self) -> bytes:
        """Return a hash of everything that is the same in each repeat."""
        parts = (self.write.value, self.who, self.run_id, self.key, self.target, self.digest)
        return sha256(repr(parts).encode(errors="backslashreplace")).digest()


@attrs.frozen(kw_only=True)
class Answer:
    """The stored answer of an operation."""

    at: float
    entry: bytes
    """The end of the record key of its entry in `audit`: time and sequence."""
    identity: bytes
    payload: bytes
    rejection: Rejection | None = None
    """The error, if the write was rejected."""

    def fields(self) -> tuple[Any, ...]:
        """Return the fields to store."""
        return self.at, self.entry, self.identity, self.payload, self.rejection

    @classmethod
    def read(cls, fields: list[Any]) -> "Answer":
        """Return the value that `fields` wrote."""
        at, entry, identity, payload, rejection = fields[:5]
        return cls(at=at, entry=entry, identity=identity, payload=payload, rejection=rejection)

    def error(self) -> RuntimeFault | None:
        """Return the error to raise, if the write was rejected."""
        if self.rejection is None:
            return None
        name, message, run_id, key, step = self.rejection
        return REJECTIONS[name](message, run_id=run_id, key=key, step=step)


def rejection_of(error: RuntimeFault) -> Rejection:
    """Return what is stored of an error in `REJECTIONS`."""
    return type(error).__name__, clean(str(error)), error.run_id, error.key, error.step


@attrs.frozen(kw_only=True)
class AuditEntry:
    """Describe one write that came in from outside: who did what, when, and with which result."""

    at: float
    """When it was done, in seconds since the epoch."""
    operation: str
    """The name of the method, for example `cancel`."""
    who: str
    """The name of the caller."""
    role: str
    """The role of the caller."""
    run_id: str | None
    """The run that it is about."""
    key: str | None
    """The ordering key that it is about, or that of the run."""
    target: str
    """The id of the schedule or the group that it is about, or an empty string."""
    summary: str
    """Its other arguments, as short text."""
    result: str
    """The answer or the error, as short text."""
    error: str | None
    """The type of the error, if the write was rejected."""
    operation_id: str
    """The id that the caller gave it."""
    number: int | None = attrs.field(default=None, repr=False)
    """The admission number of the run."""

    def fields(self) -> tuple[Any, ...]:
        """Return the fields to store. The record key has the time."""
        return (
            self.operation_id,
            self.operation,
            self.who,
            self.role,
            self.run_id,
            self.key,
            self.target,
            self.summary,
            self.result,
            self.error,
            self.number,
        )

    @classmethod
    def read(cls, at: float, fields: list[Any]) -> "AuditEntry":
        """Return the value that `fields` wrote."""
        operation_id, operation, who, role, run_id, key = fields[:6]
        target, summary, result, error, number = fields[6:11]
        return cls(
            at=at,
            operation=operation,
            who=who,
            role=role,
            run_id=run_id,
            key=key,
            target=target,
            summary=summary,
            result=result,
            error=error,
            operation_id=operation_id,
            number=number,
        )


@attrs.frozen
class Pause:
    """Since when a run, a key or the runtime is paused, and who paused it, if that is known: a
    caller from outside."""

    at: float
    by: str | None

    @classmethod
    def read(cls, fields: object) -> "Pause | None":
        """Return the pause in stored fields. None if they have none: an older Keyrun wrote them."""
        match fields:
            case [float(at), str() | None as by]:
                return cls(at, by)
        return None


def result_text(answer: object) -> str:
    """Return an answer as short text. Answers that are objects have an id at most."""
    if answer is None or isinstance(answer, bool | int | str):
        return "done" if answer is None else cut(str(answer))
    if isinstance(answer, list):
        done = [each.run_id for each in answer if getattr(each, "newly_submitted", False)]
        named = f": {', '.join(done[:MOST_NAMED])}" if done else ""
        return f"{len(done)} of {len(answer)}{named}{', ...' if len(done) > MOST_NAMED else ''}"
    changed = getattr(answer, "changed", None)
    if isinstance(changed, int):
        return f"{changed} changed"
    for name in ("run_id", "group_id", "schedule_id"):
        found = getattr(answer, name, None)
        if isinstance(found, str):
            new = getattr(answer, "newly_submitted", True)
            return found if new else f"{found} (existed)"
    return "done"


def cut(text: str) -> str:
    """Return a text that can be stored, at most `MAX_SUMMARY` characters long."""
    text = clean(text)
    return text if len(text) <= MAX_SUMMARY else text[: MAX_SUMMARY - 3] + "..."
