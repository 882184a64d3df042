"""Admission: how a run gets in, once, whoever submits it how often.

A run's identity is its id, key, workflow and the hash of its input. The same again is the same
run; a different one under the id is refused. Submits share commits, and a duplicate of one that is
still being committed waits for the same commit.
"""

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import InputMismatch, InvalidKey, InvalidRunId, ReservedHeader
from keyrun.runtime.events import emitter
from keyrun.runtime.limits import Limits, ResolvedLimits
from keyrun.runtime.records.ids import RunIds
from keyrun.runtime.records.submission import SALVAGED, Submission
from keyrun.runtime.records.tables import MAX_KEY, placed, sealed
from keyrun.runtime.texts import brief, check_text
from keyrun.runtime.values import UNSET, Priority
from keyrun.storage import StoreCorrupt
from keyrun.storage.native import pack
from keyrun.storage.payload import PayloadError, PayloadTypeError
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.storage.group import Group

_RUN_ID = re.compile(r"[A-Za-z0-9_-]{1,128}")

MAX_HEADERS = 64 * 1024
"""Bytes that the headers of a run may have, encoded."""


def check_key(key: object) -> str:
    """`key` if it can be an ordering key."""
    if not isinstance(key, str):
        raise InvalidKey(f"key must be a string, got {brief(key)}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"key must be valid Unicode, got {brief(key)}") from None
    if not 0 < size <= MAX_KEY:
        raise InvalidKey(f"key must have 1 to {MAX_KEY} bytes as UTF-8, got {size}", key=key)
    return key


def check_run_id(run_id: object) -> str:
    """`run_id` if it can be one."""
    if not isinstance(run_id, str) or not _RUN_ID.fullmatch(run_id):
        raise InvalidRunId(
            f"run_id must be 1 to 128 of A-Z, a-z, 0-9, '_' and '-', got {brief(run_id)}"
        )
    return run_id


def check_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """A copy of `headers` if they may be carried along."""
    taken: dict[str, str] = {}
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must map strings to strings, got {brief(headers)}")
    for name, value in headers.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise TypeError(
                f"headers must map strings to strings, got {brief(name)}: {brief(value)}"
            )
        if name.startswith("keyrun."):
            raise ReservedHeader(
                f"header names starting with 'keyrun.' are reserved: {brief(name)}"
            )
        name = check_text(name, "the name of a header")
        taken[name] = check_text(value, f"the header {brief(name)}")
    size = len(pack(taken))
    if size > MAX_HEADERS:
        largest = max(taken, key=lambda name: len(name.encode()) + len(taken[name].encode()))
        raise ValueError(
            f"the headers of a run may have {MAX_HEADERS:,} bytes, got {size:,}; the largest is "
            f"{brief(largest)} with {len(taken[largest].encode()):,} bytes: put it into the input, "
            "or store it elsewhere and pass a reference"
        )
    return taken


def check_tags(tags: Iterable[str]) -> tuple[str, ...]:
    """`tags` as a tuple of strings."""
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise TypeError(f"tags must be several strings, such as a tuple of them, got {brief(tags)}")
    taken = tuple(tags)
    for tag in taken:
        if not isinstance(tag, str) or not tag:
            raise TypeError(f"tags must be non-empty strings, got {brief(tag)}")
    return tuple(check_text(tag, "a tag") for tag in taken)


class Admitted(NamedTuple):
    """A run that was there before a submit, and the group that makes it durable if it is not."""

    submission: Submission
    group: "Group | None"


class Admission:
    """Takes runs in."""

    def __init__(self, partition: "Partition") -> None:
        self._partition = partition
        self._ids = RunIds()
        self._resolved: dict[Workflow[Any, Any], ResolvedLimits] = {}
        self._committing: dict[str, tuple[Submission, Group]] = {}

    def describe(
        self,
        workflow: Workflow[Any, Any],
        input_: Any,
        key: str,
        run_id: str | None,
        headers: Mapping[str, str] | None,
        tags: Iterable[str],
        priority: Priority,
        limits: Limits | None,
        delay: float,
    ) -> Submission:
        """What is to be submitted, checked; the number, and the id if there is none, are given at
        admission."""
        partition = self._partition
        latest = partition.registry.latest(workflow)
        check_key(key)
        if run_id is not None:
            check_run_id(run_id)
        if delay and not _is_delay(delay):
            raise ValueError(f"delay must be 0 to 1e10 seconds, got {brief(delay)}")
        if not isinstance(priority, Priority):
            raise TypeError(f"priority must be a Priority, got {brief(priority)}")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits must be Limits, got {brief(limits)}")
        return Submission(
            run_id=run_id or "",
            key=key,
            workflow=latest.name,
            version=latest.version,
            input=partition.codec.encode(input_, latest.input_type),
            digest=None if run_id is None else self._digest(latest, input_),
            headers={} if headers is None else check_headers(headers),
            tags=() if tags == () else check_tags(tags),
            priority=priority,
            limits=self._limits(latest, limits),
            submitted_at=partition.wall(),
            delay=delay,
            origin="submit",
        )

    def _digest(self, workflow: Workflow[Any, Any], input_: Any) -> bytes:
        canonical = self._partition.codec.canonical(input_, workflow.input_type)
        return sha256(canonical).digest()

    def _limits(self, workflow: Workflow[Any, Any], limits: Limits | None) -> ResolvedLimits:
        if limits is not None:
            return ResolvedLimits.of(limits, _own_limits(workflow), self._partition.limits)
        known = self._resolved.get(workflow)
        if known is None:
            known = ResolvedLimits.of(_own_limits(workflow), self._partition.limits)
            self._resolved[workflow] = known
        return known

    async def known(self, submission: Submission, *, any_input: bool = False) -> Admitted | None:
        """The run that has this id already, if it is the same one; with `any_input` also if it was
        given another input."""
        run_id = submission.run_id
        committing = self._committing.get(run_id)
        if committing is not None:
            self._same(submission, committing[0], any_input=any_input)
            return Admitted(committing[0], committing[1])
        number = await self._partition.ledger.find(run_id)
        if number is None:
            return None
        stored = await self._partition.ledger.submission(number)
        if stored is None:
            return None
        if stored.origin == SALVAGED:
            raise StoreCorrupt(
                f"the run {brief(run_id)} is damaged, and what was submitted with it is lost; "
                f"forget({brief(run_id)}), then submit it again, or use another run_id"
            )
        self._same(submission, stored, any_input=any_input)
        return Admitted(stored, None)

    def _same(self, asked: Submission, known: Submission, *, any_input: bool) -> None:
        """Raise unless a submission repeats the one that is known under its id."""
        if asked.key != known.key:
            different = "key"
        elif asked.workflow != known.workflow:
            different = "workflow"
        elif not any_input and asked.digest != (known.digest or self._digest_of(known)):
            different = "input"
        else:
            return
        raise InputMismatch(
            f"the run {known.run_id!r} was submitted with another {different}; use another run_id, "
            "or repeat exactly what was submitted",
            run_id=known.run_id,
            key=known.key,
        )

    def _digest_of(self, known: Submission) -> bytes | None:
        """The digest of an input that was stored without one; None if it cannot be read today."""
        workflow = self._partition.registry.latest(known.workflow)
        try:
            input_ = self._partition.codec.decode(known.input, workflow.input_type)
            return self._digest(workflow, input_)
        except (PayloadError, PayloadTypeError):
            return None

    def admit(self, submission: Submission) -> "Group":
        """Stage a run with its place at the end of its key's line."""
        partition = self._partition
        if partition.closed:
            partition.check_open()
        ledger = partition.ledger
        number = submission.number = partition.take_number()
        group = partition.commits.open_group()
        tables = group.tables
        given = bool(submission.run_id)
        if not given:
            submission.run_id = self._ids.make(submission.submitted_at, number)
        record = ledger.number(number)
        # First: if it cannot be stored, nothing else of the run is staged.
        tables["runs"][record] = seal("runs", record, submission.fields())
        if given:
            name = ledger.run_id(submission.run_id)
            tables["ids"][name] = sealed("ids", name, number)
            self._committing[submission.run_id] = (submission, group)
            group.when_durable(self._committed, submission.run_id)
        partition.enter(submission.key)
        partition.unfinished.admitted(submission)
        if submission.delay:
            partition.delays.stage(group, submission)
        else:
            queue = partition.queues.get(submission.key)
            place = queue.place(number) if queue else ledger.place(submission.key, number)
            tables["queue"][place] = seal("queue", place, placed(submission))
            group.when_durable(partition.admitted, submission)
        if partition.instances is not None:
            partition.instances.submitted(group, submission)
        if partition.feed is not None:
            emitter.submitted(partition.feed, group, submission)
        return group

    def _committed(self, run_id: str) -> None:
        del self._committing[run_id]


def _is_delay(delay: object) -> bool:
    return isinstance(delay, int | float) and not isinstance(delay, bool) and 0 <= delay < 1e10


def _own_limits(workflow: Workflow[Any, Any]) -> Limits:
    """The limits of a workflow; its retry policy says something about attempts, too."""
    if workflow.retry is None or workflow.limits.max_attempts is not UNSET:
        return workflow.limits
    return attrs.evolve(workflow.limits, max_attempts=workflow.retry.max_attempts)
