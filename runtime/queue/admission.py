"""Admission: accept a run once, however often it is submitted.

The identity of a run is its id, key, workflow and the hash of its input. A submit with the same
identity returns the existing run. A submit with the same id and anything else is rejected. Submits
share commits, and a duplicate of a submit that is being committed waits for the same commit.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple

import attrs

from keyrun.actors import checks
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import InputMismatch
from keyrun.runtime.events import emitter
from keyrun.runtime.limits import Limits, ResolvedLimits
from keyrun.runtime.metrics import BUCKET
from keyrun.runtime.records.checks import check_headers, check_key, check_run_id, check_tags
from keyrun.runtime.records.ids import RunIds
from keyrun.runtime.records.submission import AS_PENDING, SALVAGED, Submission
from keyrun.runtime.records.tables import placed, sealed
from keyrun.runtime.texts import brief
from keyrun.runtime.values import UNSET, Priority
from keyrun.storage import StoreCorrupt
from keyrun.storage.payload import UNFIT, PayloadCodec
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun.runtime.queue.delays import Delays
    from keyrun.runtime.queue.instance_limits import Instances
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.storage.group import Group


class Admitted(NamedTuple):
    """A run that existed before a submit, and the group that makes it durable, if it is not
    durable yet."""

    submission: Submission
    group: "Group | None"


def check_arguments(
    key: str,
    run_id: str | None,
    headers: Mapping[str, str] | None,
    tags: Iterable[str],
    priority: Priority,
    limits: Limits | None,
    delay: float,
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Raise unless a run may have these arguments. Return the headers and the tags."""
    check_key(key)
    if run_id is not None:
        check_run_id(run_id)
    if delay != 0 and not _is_delay(delay):
        raise ValueError(f"delay must be 0 to 1e10 seconds, got {brief(delay)}")
    if not isinstance(priority, Priority):
        raise TypeError(f"priority must be a Priority, got {brief(priority)}")
    if limits is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits must be Limits, got {brief(limits)}")
    return (
        {} if headers is None else check_headers(headers),
        () if tags == () else check_tags(tags),
    )


def encode_input(codec: PayloadCodec, workflow: str, value: Any, declared: Any) -> bytes:
    """Return the encoded input of a workflow. An error names the workflow."""
    try:
        return codec.encode(value, declared)
    except UNFIT as error:
        error.args = (f"the input of the workflow {workflow!r}: {error}",)
        raise


class Admission:
    """Accepts runs."""

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
        self._entering = partition.counts.entering
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
        """Check the arguments of a submit, and return the submission. Its number, and its id if it
        has none, are set at admission. The run continues the trace of this
        task."""
        partition = self._partition
        latest = partition.registry.latest(workflow)
        checked_headers, checked_tags = check_arguments(
            key, run_id, headers, tags, priority, limits, delay
        )
        if partition.tracer is not None:
            checked_headers = partition.tracer.joined(checked_headers)
        return Submission(
            number=0,
            run_id=run_id or "",
            key=key,
            workflow=latest.name,
            version=latest.version,
            input=encode_input(partition.codec, latest.name, input_, latest.input_type),
            digest=None if run_id is None else self._digest(latest, input_),
            headers=checked_headers,
            tags=checked_tags,
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
        """Return the run that has the id of a submit, if the submit gives one. Raise
        `InputMismatch` if it is another run. With `any_input`, it may have another input."""
        run_id = submission.run_id
        if not run_id:
            return None
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
                f"the run {brief(run_id)} is damaged, and its submission is lost; "
                f"forget({brief(run_id)}), then submit it again, or use another run_id"
            )
        self._same(submission, stored, any_input=any_input)
        return Admitted(stored, None)

    def _same(self, asked: Submission, known: Submission, *, any_input: bool) -> None:
        """Raise `InputMismatch` if a submission does not repeat the known one with its id."""
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
            f"or submit the same {different}",
            run_id=known.run_id,
            key=known.key,
        )

    def _digest_of(self, known: Submission) -> bytes | None:
        """Return the digest of an input that was stored without one. None if its workflow cannot
        read the input."""
        workflow = self._partition.registry.latest(known.workflow)
        try:
            input_ = self._partition.codec.decode(known.input, workflow.input_type)
            return self._digest(workflow, input_)
        except UNFIT:
            return None

    def admit(self, submission: Submission) -> "Group":
        """Stage a run with its place at the end of its key's queue."""
        partition = self._partition
        partition.check_open()
        number = submission.number = partition.take_number()
        group = partition.commits.open_group()
        given = bool(submission.run_id)
        if not given:
            submission.run_id = self._ids.make(submission.submitted_at, number)
        if partition.feed is not None or submission.delay or self._instances is not None:
            with partition.together():
                self._stage(submission, group, given=given)
                if submission.delay:
                    self._delays.stage(group, submission)
                if self._instances is not None:
                    self._instances.submitted(group, submission)
                if partition.feed is not None:
                    emitter.submitted(partition.feed, group, submission)
        else:
            self._stage(submission, group, given=given)
        return group

    def _stage(self, submission: Submission, group: "Group", *, given: bool) -> None:
        """Stage the records that every run has. Outside of a block, nothing that can fail is called
        between the first and the last record, so that they are staged as a whole."""
        partition, queues = self._partition, self._queues
        ledger, number, run_id = partition.ledger, submission.number, submission.run_id
        record = ledger.number(number)
        runs, stored = group.table("runs"), seal("runs", record, submission.fields())
        ids, name, named = None, b"", b""
        if given:
            ids, name = group.table("ids"), ledger.run_id(run_id)
            named = sealed("ids", name, number)
        places, place, there = None, b"", b""
        if not submission.delay:
            queue, places = queues.get(submission.key), group.table("queue")
            place = queue.place(number) if queue else ledger.place(submission.key, number)
            there = seal("queue", place, placed(submission))
        counted = submission.workflow, submission.version, *AS_PENDING
        callbacks = group.callbacks
        queues.enter(submission.key)
        group.when_dropped(queues.leave, submission.key)
        runs[record] = stored
        if ids is not None:
            ids[name] = named
            self._committing[run_id] = (submission, group)
            callbacks += (self._committed, (run_id,))
            group.when_dropped(self._committed, run_id)
        if places is not None:
            places[place] = there
            callbacks += (queues.admitted, (submission,))
        self._entering.append(counted)
        if partition.metrics is not None:
            partition.metrics.of(submission.workflow).submitted += 1
            if places is not None:
                partition.metrics.pending[number >> BUCKET] += 1

    def _committed(self, run_id: str) -> None:
        del self._committing[run_id]


def _is_delay(delay: object) -> bool:
    return checks.is_number(delay) and 0 <= delay < 1e10


def _own_limits(workflow: Workflow[Any, Any]) -> Limits:
    """Return the limits of a workflow, with the attempts of its retry policy."""
    if workflow.retry is None or workflow.limits.max_attempts is not UNSET:
        return workflow.limits
    return attrs.evolve(workflow.limits, max_attempts=workflow.retry.max_attempts)
