"""The owner: performs operations on the runtime of this process."""

from collections.abc import AsyncIterator, Mapping
from typing import Any
from uuid import uuid4

from keyrun.control.operation import Operation
from keyrun.control.roles import Caller, Role, require
from keyrun.control.streams import EventRing, RingFollower
from keyrun.runtime.definitions.workflow import Registry, Workflow
from keyrun.runtime.entities.entity import EntityDefinition
from keyrun.runtime.errors import UnknownEntity
from keyrun.runtime.inspect.reader import Reader
from keyrun.runtime.inspect.statuses import StatusReader
from keyrun.runtime.partition import Partition
from keyrun.runtime.runtime import Runtime
from keyrun.storage.payload import PayloadCodec


class PlainRuntime(Runtime):
    """A runtime that returns results as plain data: a class is a dict of its fields. Callers in
    other processes do not have the classes, or read the data with classes of their own."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition)
        state = partition.state
        statuses = StatusReader(
            state.ledger,
            state.codec,
            Registry(()),
            live=partition.runs.live,
            quarantined=partition.supervisor.quarantined,
        )
        Reader.__init__(self, state.ledger, statuses, state.wall)
        self.decode_result = statuses.decode_result

    @property
    def registry(self) -> Registry:
        """The workflows of the runtime."""
        return self._partition.state.registry

    @property
    def codec(self) -> PayloadCodec:
        """The codec of the store."""
        return self._partition.state.codec

    def workflow(self, name: str) -> Workflow[Any, Any]:
        """Return the highest version of a workflow, or raise `UnknownWorkflow`."""
        return self.registry.latest(name)

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

    @staticmethod
    def operation(name: str) -> Operation:
        """Return an operation of the table."""
        from keyrun.control.table import OPERATIONS

        return OPERATIONS[name]

    async def perform(self, operation: Operation, arguments: Mapping[str, Any], part: str) -> Any:
        """Perform one part. `part` is the id of the part, which is the same in each repeat."""
        return await self._owner.perform(operation, arguments, self.caller, part)


class Owner:
    """Performs operations on one runtime, for callers in this and in other processes."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = PlainRuntime(runtime._partition)
        state = runtime._partition.state
        self._state = state
        self._events = EventRing(state.host.subscribers, state.wall)

    async def perform(
        self,
        operation: Operation,
        arguments: Mapping[str, Any],
        caller: Caller,
        operation_id: str | None = None,
    ) -> Any:
        """Perform an operation, and return its answer. A write with the id of an earlier write
        returns the answer of that write."""
        require(caller, operation.role, operation.name)
        operation.require(arguments)
        if operation.composite:
            delegate = Delegate(self, caller, operation_id or uuid4().hex)
            return await operation.function(delegate, **arguments)
        return await operation.function(self.runtime, **arguments)

    def stream(
        self, operation: Operation, arguments: Mapping[str, Any], caller: Caller
    ) -> AsyncIterator[Any]:
        """Return the answers of an operation that streams."""
        require(caller, operation.role, operation.name)
        operation.require(arguments)
        stream: Any = operation.function(self.runtime, **arguments)
        return stream  # type: ignore[no-any-return]

    async def follow(
        self, arguments: Mapping[str, Any], caller: Caller, last_id: str | None = None
    ) -> RingFollower:
        """Return a reader of the events of all runs, as the text of a stream. `last_id` is the id
        of the last event that the caller has received."""
        require(caller, Role.READ, "events")
        self._state.check_open()
        return self._events.follow(arguments, last_id)

    def trouble(self) -> str | None:
        """Return one word that says why the runtime accepts no work now, or None."""
        state = self._state
        if state.stopped or state.failure is not None:
            return "closed"
        if state.draining:
            return "draining"
        return None if state.recovered else "recovering"
