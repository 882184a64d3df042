"""The owner: performs operations on the runtime of this process."""

from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import suppress
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import uuid4

import attrs
from msgpack import packb, unpackb

from keyrun import __version__
from keyrun.control.event_ring import EventRing, RingFollower
from keyrun.control.operation import Operation
from keyrun.control.overview import Overview, OverviewReader
from keyrun.control.requests import NewRun, RecentEvents, Session, Submitted, SubmittedGroup
from keyrun.control.roles import Caller, Role, require
from keyrun.control.shapes import WIRE, LargePayload
from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.entities.entity import EntityDefinition
from keyrun.runtime.errors import UnknownEntity
from keyrun.runtime.events.types import EventKind
from keyrun.runtime.groups.handle import GroupHandle
from keyrun.runtime.groups.members import GroupMembers
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.inspect.history import Happening
from keyrun.runtime.inspect.measure import MetricFamily, measure
from keyrun.runtime.inspect.reader import Reader
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.operations.performed import PerformedOperations
from keyrun.runtime.partition import Partition
from keyrun.runtime.records.operation import Write, WriteRequest
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.texts import brief
from keyrun.storage import LmdbStore
from keyrun.storage.payload import PayloadCodec, PayloadError

TARGETS = ("schedule_id", "group_id")
"""Arguments that say what a write is about, if that is no run and no key."""


class PlainStatuses(StatusReader):
    """Reads results as plain data."""

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        return LargePayload.value(self.codec, payload)


class PlainRuntime(Runtime):
    """A runtime that returns results as plain data: a class is a dict of its fields. Callers in
    other processes do not have the classes, or read the data with classes of their own."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        state = partition.state
        statuses = PlainStatuses(
            state.ledger,
            state.codec,
            state.registry,
            live=partition.runs.live,
            quarantined=partition.supervisor.quarantined,
            plain=True,
        )
        Reader.__init__(self, state.ledger, statuses, state.wall)
        self.decode_result = statuses.decode_result
        self._members = GroupMembers(state, partition.runs, statuses)
        self._overview = OverviewReader(partition)
        self.ring = EventRing(state.host.subscribers, state.wall)
        """The latest events."""

    def value(self, stored: bytes) -> Any:
        return LargePayload.value(self.codec, stored)

    def recent_events(
        self, after: str | None, run_id: str | None, kinds: frozenset[EventKind] | None, most: int
    ) -> RecentEvents:
        """Return the newest events since an answer before."""
        self._partition.state.check_open()
        events, cursor, missed = self.ring.recent(after, run_id, kinds, most)
        return RecentEvents(events=events, cursor=cursor, missed=missed)

    async def overview(self) -> Overview:
        """Return the numbers that change all the time."""
        return await self._overview.read(self.statistics())

    @property
    def namespace(self) -> str:
        """Return the namespace in the store."""
        return self._ledger.namespace

    @property
    def registry(self) -> Registry:
        """Return the workflows of the runtime."""
        return self._partition.state.registry

    @property
    def codec(self) -> PayloadCodec:
        """Return the codec of the store."""
        return self._partition.state.codec

    @property
    def performed(self) -> PerformedOperations:
        """Return the service that performs writes once, and keeps the audit log."""
        return self._operations

    def decrypted(self, happening: Happening) -> Happening:
        """Return an event of a history whose value is encoded without the transform of the store.
        Callers in other processes do not have it."""
        stored = happening.stored
        if stored is not None:
            with suppress(PayloadError):
                return attrs.evolve(happening, stored=self.codec.unwrap(stored))
        return happening

    async def group(self, group_id: str) -> GroupHandle[Any] | None:
        """Return the handle of a group, or None if the group is unknown or was forgotten."""
        found = await super().group(group_id)
        if found is None:
            return None
        return GroupHandle(self._members, found._cancel, group_id, found.newly_submitted)

    def workflow(self, name: str) -> Workflow[Any, Any]:
        """Return the highest version of a workflow, or raise `UnknownWorkflow`."""
        return self.registry.latest(name)

    async def find_number(self, run_id: str) -> int | None:
        """Return the admission number of the run with an id, or None if there is none."""
        return await self._ledger.find(run_id)

    def entity_named(self, name: str) -> EntityDefinition:
        """Return an entity by its name, or raise `UnknownEntity`."""
        known = {each.name: each for each, _ in self._partition.dispatcher._known.values()}
        definition = known.get(name)
        if definition is None:
            raise UnknownEntity(
                f"{name!r} is not an entity of this runtime, which has: "
                f"{', '.join(sorted(known)) or 'none'}; pass it to open_runtime(entities=[...])"
            )
        return definition


class Delegate:
    """Performs the parts of an operation that consists of others."""

    def __init__(self, owner: "Owner", caller: Caller, operation_id: str) -> None:
        self._owner = owner
        self.runtime = owner.runtime
        self.caller = caller
        self.operation_id = operation_id

    @property
    def session(self) -> Session:
        """Return who calls."""
        return session_of(self.caller, self._owner.namespace)

    @staticmethod
    def operation(name: str) -> Operation:
        """Return an operation of the table."""
        from keyrun.control.table import OPERATIONS

        return OPERATIONS[name]

    async def perform(self, operation: Operation, arguments: Mapping[str, Any], part: str) -> Any:
        """Perform one part. `part` is the id of the part, which is the same in each repeat."""
        return await self._owner.perform(operation, arguments, self.caller, part)


def session_of(caller: Caller, namespace: str, read_only: str | None = None) -> Session:
    """Return what a caller may do in this process."""
    return Session(
        name=caller.name,
        role=caller.role,
        namespace=namespace,
        version=__version__,
        read_only=read_only,
    )


def part_of(operation_id: str, part: str) -> str:
    """Return the id of a part of an operation, which is the same in each repeat."""
    return sha256(f"{operation_id}/{part}".encode()).hexdigest()[:32]


def named(runs: Iterable[NewRun], operation_id: str) -> list[NewRun]:
    """Return new runs that all have an id. A batch may have several commits, and a repeat finds the
    runs of those that were durable."""
    return [
        each
        if each.run_id is not None
        else attrs.evolve(each, run_id=part_of(operation_id, str(at)))
        for at, each in enumerate(runs)
    ]


def is_short(value: object) -> bool:
    """Return whether an argument is in the audit log."""
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return isinstance(value, bool | int | float | str)


def described(
    operation: Operation,
    arguments: Mapping[str, Any],
    caller: Caller,
    operation_id: str,
    *,
    repeatable: bool = True,
) -> WriteRequest:
    """Return a write as it is recorded. Payloads are only in its hash."""
    about = {name: arguments[name] for name in ("run_id", "key") if arguments.get(name)}
    target = next((arguments[name] for name in TARGETS if name in arguments), "")
    rest = {
        name: [str(each) for each in value] if isinstance(value, list) else value
        for name, value in arguments.items()
        if name not in about and name not in TARGETS and is_short(value)
    }
    written = repr(sorted(arguments.items())) if repeatable else ""
    return WriteRequest(
        operation_id=operation_id,
        write=Write(operation.name),
        who=caller.name,
        role=str(caller.role),
        target=target,
        summary=", ".join(f"{name}={brief(value)}" for name, value in rest.items()),
        digest=sha256(written.encode(errors="backslashreplace")).digest(),
        repeatable=repeatable,
        **about,
    )


def answer_of(answer: Any) -> Any:
    """Return the answer of an operation for what the method of `Runtime` returns."""
    if isinstance(answer, RunHandle):
        return Submitted.of(answer)
    if isinstance(answer, GroupHandle):
        return SubmittedGroup(group_id=answer.group_id, newly_submitted=answer.newly_submitted)
    return answer


class Owner:
    """Performs operations on one runtime, for callers in this and in other processes."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = PlainRuntime(runtime._partition)
        state = runtime._partition.state
        self._state = state
        self.redaction = state.redaction
        self._tuning = runtime._partition.tuning
        self.namespace = state.ledger.prefix[:-1].decode()

    async def perform(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        caller: Caller,
        operation_id: str | None = None,
    ) -> Any:
        """Perform an operation, and return its answer. A write with the id of an earlier write
        returns the answer of that write, for an hour."""
        require(caller, operation.role, operation.name)
        operation.require(arguments)
        if operation.name == "submit_many" and operation_id is not None:
            arguments = {"runs": named(arguments["runs"], operation_id)}
        repeatable = operation_id is not None
        operation_id = operation_id or uuid4().hex
        writes = operation.writes
        if operation.composite:
            delegate = Delegate(self, caller, operation_id)
            perform = partial(operation.function, delegate, **arguments)
            writes = not arguments.get("preview", True)
            # The calls of one bulk operation have the same id.
            operation_id = part_of(operation_id, arguments.get("cursor") or "")
        else:
            perform = partial(operation.function, self.runtime, **arguments)
        if not writes:
            return await perform()
        return await self.runtime.performed.perform(
            described(operation, arguments, caller, operation_id, repeatable=repeatable),
            perform,
            encode=lambda answer: packb(operation.write_wire(answer_of(answer))),
            decode=lambda data: WIRE.reader(operation.result)(unpackb(data)),
        )

    async def stream(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller
    ) -> AsyncGenerator[Any, None]:
        """Begin an operation that streams, and return its answers. Close them at the end."""
        require(caller, operation.role, operation.name)
        operation.require(arguments)
        answers: AsyncGenerator[Any, None] = await operation.function(self.runtime, **arguments)
        return answers

    async def follow(
        self, arguments: Mapping[str, Any], caller: Caller, last_id: str | None = None
    ) -> RingFollower:
        """Return a reader of the events of all runs, as the text of a stream. `last_id` is the id
        of the last event that the caller has received."""
        require(caller, Role.READ, "events")
        self._state.check_open()
        return self.runtime.ring.follow(arguments, last_id)

    async def session(self, caller: Caller) -> Session:
        """Return what a caller may do here."""
        return session_of(caller, self.namespace)

    def measure(self) -> list[MetricFamily]:
        """Return everything that monitoring reads. Call this in Trio's thread."""
        return measure(self.runtime._partition.measured())

    def trouble(self) -> str | None:
        """Return one word that says why the runtime accepts no work now, or is likely to fail soon,
        or None. May be called in any thread."""
        state = self._state
        if state.closed or state.failure is not None:
            return "closed"
        if state.draining:
            return "draining"
        if not state.recovered:
            return "recovering"
        if not state.store.is_trusted():
            return "untrusted"
        if state.host.watchdog.loop.late_by() > self._tuning.stalled_after:
            return "stalled"
        if state.commits.committing_for() > self._tuning.stalled_after:
            return "commit"
        if isinstance(state.store, LmdbStore) and state.store.disk_free() < self._tuning.least_disk:
            return "disk"
        return None
