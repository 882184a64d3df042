"""The dispatcher: accepts calls of entities, and runs the calls that are next in a key's queue.

Calls that wait count as pending work. `max_pending` and `max_pending_per_key` limit them together
with the runs, and backpressure makes their callers wait like the submitters of runs.
"""

from collections.abc import Coroutine, Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import trio
from sniffio import thread_local

from keyrun._waking import WaiterPool
from keyrun.runtime.entities.call_waits import CallWaits, call_of_own_key, is_workflow_code
from keyrun.runtime.entities.calls import CallServices, EntityCall, current_call, runtime_closed
from keyrun.runtime.entities.entity import EntityDefinition, EntityMethod, definition_of, is_entity
from keyrun.runtime.entities.requests import AnswerStore, CallRequest
from keyrun.runtime.entities.state_cache import StateCache
from keyrun.runtime.errors import UnknownEntity
from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.records.operation import Write
from keyrun.runtime.run.running_step import running
from keyrun.runtime.texts import brief
from keyrun.runtime.values import Priority

if TYPE_CHECKING:
    from keyrun.actors import ActorSystem
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.queue.key_queues import KeyQueues
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.services import EvictionOfRun
    from keyrun.runtime.tuning import Tuning


class Dispatcher:
    """The calls of one partition."""

    def __init__(
        self,
        partition: "PartitionState",
        entities: Iterable[type],
        *,
        actors: "ActorSystem[str, KeyQueue, None]",
        queues: "KeyQueues",
        eviction: "EvictionOfRun",
        waits: CallWaits,
        answers: AnswerStore,
        tuning: "Tuning",
    ) -> None:
        self._partition = partition
        self._backlog = queues.backlog
        self._queues = queues
        self._eviction = eviction
        self._turn = tuning.calls_per_turn
        self._known: dict[type, tuple[EntityDefinition, float]] = {}
        """The entities of this runtime, with the timeout of their methods."""
        names: dict[str, EntityDefinition] = {}
        for each in entities:
            if not is_entity(each):
                raise TypeError(
                    f"entities must be classes decorated with @entity, got {brief(each)}"
                )
            definition = definition_of(each)
            if names.setdefault(definition.name, definition) is not definition:
                raise ValueError(f"two entities are called {definition.name!r}")
            timeout = ResolvedLimits.of(definition.limits, partition.limits).step_timeout
            self._known[each] = definition, inf if timeout is None else timeout
        self._services = CallServices(
            partition, actors, answers, StateCache(tuning.entity_cache_bytes)
        )
        self.running = self._services.running
        """The calls whose method has suspended and not ended."""
        self.answers = answers
        self.waits = waits
        self._waiters = WaiterPool()

    def known(self, entity: type) -> tuple[EntityDefinition, float]:
        """Return the definition of an entity of this runtime and the timeout of its methods."""
        try:
            known = self._known.get(entity)
        except TypeError:  # unhashable, so not a class
            known = None
        if known is None:
            definition = definition_of(entity)
            names = ", ".join(sorted(each.name for each, _ in self._known.values())) or "none"
            raise UnknownEntity(
                f"{definition.name!r} is not an entity of this runtime, which has: {names}; pass "
                "it to open_runtime(entities=[...])"
            )
        return known

    def call(
        self,
        definition: EntityDefinition,
        key: str,
        method: EntityMethod,
        timeout: float,
        request_id: str | None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call a method under a key that was checked. Await the result to get the answer when it is
        durable."""
        call = EntityCall(self._services, definition, key, method, args, kwargs, timeout)
        if self._partition.tracer is not None:
            call.trace = self._partition.tracer.caller_context()
        if self._partition.performing:
            performing = self._partition.performing.get(trio.lowlevel.current_task())
            if performing is not None and performing.operation.write is Write.CALL:
                call.performing = performing
                request_id = request_id or performing.operation.operation_id
        if request_id is not None:
            call.request = self.answers.describe(definition, key, method, request_id, args, kwargs)
        caller = current_call.get() or running.get()
        if caller is not None and not caller.over:
            call.caller = caller
            return self.waits.wait(call, self._answer)
        return self._answer(call)

    async def _answer(self, call: EntityCall) -> Any:
        """Return the answer of a call when it is durable."""
        partition, request = self._partition, call.request
        if (
            partition.draining
            or partition.closed
            or not partition.recovered
            or self._backlog.full(call.key)
            or thread_local.name != "trio"
            or (request is not None and not self._is_first(request))
        ):
            found, value = await self._accept(call)
            if found:
                await trio.lowlevel.checkpoint()
                return value
        elif request is not None:
            self._services.requested[request.record] = call
        self._enqueue(call)
        await self._waiters.wait(call)
        if request is not None:
            self._services.settled(call)
        if call.error is not None:
            raise call.error
        return call.value

    def _is_first(self, request: CallRequest) -> bool:
        """Return whether it is certain that a request has no answer and is not being made."""
        return request.record not in self._services.requested and self.answers.lacks(request)

    async def _accept(self, call: EntityCall) -> tuple[bool, Any]:
        """Return whether the request has an answer, and the answer. If it has none, the call may be
        enqueued when this returns, and no other call makes the same request."""
        self._partition.check_caller()
        request, requested = call.request, self._services.requested
        while request is None:
            if not self._must_wait(call):
                return False, None
            await self._wait_for_room(call)
        while True:
            other = requested.get(request.record)
            if other is not None:
                assert other.request is not None
                request.check(other.request.digest)
                if other.repeats is None:
                    other.repeats = trio.Event()
                await other.repeats.wait()
                continue
            found, value = await self.answers.answer(request)
            if found:
                return True, value
            if not self._must_wait(call):
                requested[request.record] = call
                return False, None
            await self._wait_for_room(call)

    def _must_wait(self, call: EntityCall) -> bool:
        """Return whether a call has to wait, or is refused, before it may be enqueued."""
        partition = self._partition
        if partition.closed or not partition.recovered or self._backlog.full(call.key):
            return True
        # A step must not fail because of a drain: it is cut off while it waits.
        return partition.draining and call.caller is None

    async def _wait_for_room(self, call: EntityCall) -> None:
        partition = self._partition
        partition.check_caller()
        if partition.draining and call.caller is None:
            raise runtime_closed(call)
        if not partition.recovered:
            await partition.counted.wait()
        elif self._backlog.full(call.key):
            await self._backlog.wait_for_room(call)

    def _enqueue(self, call: EntityCall) -> None:
        """Put a call into the queue of its key."""
        queue = call.queue = self._queues.of(call.key)
        head = queue.head
        if head is not None and is_workflow_code(head):
            self._services.settled(call)
            raise call_of_own_key(call, head)
        call.number = self._partition.next_number
        call.task = trio.lowlevel.current_task()
        if queue.calls is None:
            queue.calls = [call]
        else:
            queue.calls.append(call)
        self._backlog.enter(queue)
        try:
            if head is not None and head.waiting_branches:
                self._eviction.overtake(head)
            if not queue.awake:
                queue.wake()
        except BaseException:
            # The task does not wait for the answer, so the actor must not find the call.
            call.withdraw()
            raise

    async def serve(self, queue: "KeyQueue") -> bool | None:
        """Run the calls that are next in a queue. Return whether the actor may continue with the
        runs of the queue. False means that the queue is held, and None that the actor has to look
        at the queue again later."""
        partition, slots = self._partition, self._partition.slots
        turn = 0
        while queue.calls and queue.head is None and not partition.draining:
            if queue.unread:
                await queue.read_window()
                continue
            call = queue.calls[0]
            if queue.evicted_head is not None or (
                queue.window and queue.window[0][0] < call.number
            ):
                return True
            if queue.paused or partition.stopped:
                return False
            group = queue.group
            if group is not None and not group.durable and call.effects:
                await group.wait()
                continue
            if turn == self._turn:
                return None
            turn += 1
            if not slots.free:
                await slots.take(Priority.NORMAL)
                if queue.calls[:1] != [call] or queue.paused or partition.stopped:
                    slots.give()
                    continue
                call.has_slot = True
            del queue.calls[0]
            try:
                if not await call.execute():
                    return None
            except BaseException as error:
                call.crash(error)
                raise
        return True

    def wake_queues(self) -> None:
        """Wake the queues that have calls, because a pause has ended."""
        for queue in list(self._queues):
            if queue.calls:
                queue.wake()

    def drain(self) -> None:
        """Refuse the calls that have not begun. Steps and methods keep waiting for their calls
        until they are cut off."""
        self._abandon_queued(from_keys=False)

    def cut_off(self) -> None:
        """Cancel the methods that still run."""
        for call in list(self.running):
            if call.scope is not None:
                call.scope.cancel()

    def close(self) -> None:
        """Refuse all calls that have no answer."""
        self._abandon_queued(from_keys=True)
        for call in list(self.running):
            call.refuse(runtime_closed(call))
        for call in list(self._services.requested.values()):
            self._services.settled(call)

    def _abandon_queued(self, *, from_keys: bool) -> None:
        for queue in list(self._queues):
            for call in list(queue.calls or ()):
                if from_keys or not call.from_key:
                    call.abandon()
