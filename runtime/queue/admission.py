"""Admission: how a run gets in, once, whoever submits it how often.

A run's identity is its id, key, workflow and the hash of its input. The same again is the same
run; a different one under the id is refused. Submits share commits, and a duplicate of one that is
still being committed waits for the same commit.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import InputMismatch
from keyrun.runtime.events import emitter
from keyrun.runtime.limits import Limits, ResolvedLimits
from keyrun.runtime.records.checks import check_headers, check_key, check_run_id, check_tags
from keyrun.runtime.records.ids import RunIds
from keyrun.runtime.records.submission import SALVAGED, Submission
from keyrun.runtime.records.tables import placed, sealed
from keyrun.runtime.texts import brief
from keyrun.runtime.values import UNSET, Priority
from keyrun.storage import StoreCorrupt
from keyrun.storage.payload import PayloadError, PayloadTypeError
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun.runtime.queue.delays import Delays
    from keyrun.runtime.queue.instance_limits import Instances
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.storage.group import Group


class Admitted(NamedTuple):
    """A run that was there before a submit, and the group that makes it durable if it is not."""

    submission: Submission
    group: "Group | None"


class Admission:
    """Takes runs in."""

    def __init__(
        self,
        partition: "PartitionState",
        queues: "KeyQueues",
        delays: "Delays",
        instances: "Instances | None",
    ) -> None:
        self._partition = partition
        self._queues = queues
        self._delays = delays
        self._instances = instances
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
        self._queues.enter(submission.key)
        partition.unfinished.admitted(submission)
        if submission.delay:
            self._delays.stage(group, submission)
        else:
            queue = self._queues.get(submission.key)
            place = queue.place(number) if queue else ledger.place(submission.key, number)
            tables["queue"][place] = seal("queue", place, placed(submission))
            group.when_durable(self._queues.admitted, submission)
        if self._instances is not None:
            self._instances.submitted(group, submission)
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
