"""The reception: takes calls of entities in, and serves those that are next in the line of a key.

Calls that wait count as work that was not started: `max_pending` and `max_pending_per_key` bound
them together with the runs, and they have to wait at the entrance like these.
"""

from collections.abc import Callable, Coroutine, Iterable
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from keyrun._waking import WaiterPool
from keyrun.runtime.entities.call_waits import Waits, is_driven_here, of_own_key
from keyrun.runtime.entities.calls import Call, left, perform, serving
from keyrun.runtime.entities.entity import Kind, Method, kind_of
from keyrun.runtime.entities.requests import Request, Requests
from keyrun.runtime.entities.state_cache import State, States
from keyrun.runtime.errors import UnknownEntity
from keyrun.runtime.limits import ResolvedLimits
from keyrun.runtime.recovery.retention import Retention
from keyrun.runtime.run.running_step import running
from keyrun.runtime.values import Priority
from keyrun.storage import StoreCorrupt, StoreError

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.runtime.queue.key_queue import KeyQueue

TURN = 32
"""Calls of one key that are served before other keys have their turn."""


class Dispatcher:
    """Where calls come in."""

    def __init__(
        self, partition: "Partition", entities: Iterable[type], retention: Retention
    ) -> None:
        self._partition = partition
        self._known: dict[type, tuple[Kind, float]] = {}
        """What is called, and how long its methods may take."""
        names: dict[str, Kind] = {}
        for each in entities:
            kind = kind_of(each)
            if names.setdefault(kind.name, kind) is not kind:
                raise ValueError(f"two entities are called {kind.name!r}")
            timeout = ResolvedLimits.of(kind.limits, partition.limits).step_timeout
            self._known[each] = kind, inf if timeout is None else timeout
        self.requests = Requests(partition, retention)
        self.states = States()
        self.running: dict[Call, None] = {}
        """Those whose method waits for something."""
        self._asked: dict[bytes, Call] = {}
        """Those with a request id that have no answer yet, by the record it will be in."""
        self._waiters = WaiterPool()
        self.waits = Waits(partition)

    def known(self, entity: type) -> tuple[Kind, float]:
        """What this runtime knows of an entity, and how long its methods may take."""
        known = self._known.get(entity)
        if known is None:
            kind = kind_of(entity)
            names = ", ".join(sorted(each.name for each, _ in self._known.values())) or "none"
            raise UnknownEntity(
                f"{kind.name!r} is not an entity of this runtime, which has: {names}; give it to "
                "open_runtime(entities=[...])"
            )
        return known

    def call(
        self,
        kind: Kind,
        key: str,
        method: Method,
        timeout: float,
        request_id: str | None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, Any]:
        """Call a method under a key that was checked. To be awaited: gives its answer when that is
        durable."""
        call = Call(self._partition, kind, key, method, args, kwargs, timeout)
        if request_id is not None:
            call.request = self.requests.describe(kind, key, method, request_id, args, kwargs)
        above = serving.get() or running.get()
        if above is not None and not above.over:
            call.above = above
            return self.waits.wait(call, self._answer)
        return self._answer(call)

    async def _answer(self, call: Call) -> Any:
        """What a call comes to, when that is durable."""
        partition, request = self._partition, call.request
        if (
            partition.draining
            or partition.closed
            or not partition.recovered
            or partition.backlog.full(call.key)
            or (request is not None and not self._is_first(request))
        ):
            found, value = await self._let_in(call)
            if found:
                await trio.lowlevel.checkpoint()
                return value
        elif request is not None:
            self._asked[request.record] = call
        self._enter(call)
        await self._waiters.wait(call)
        if request is not None:
            self.settled(call)
        if call.error is not None:
            raise call.error
        return call.value

    def _is_first(self, request: Request) -> bool:
        """Whether a request is known to have no answer, and nobody makes it."""
        return request.record not in self._asked and self.requests.lacks(request)

    async def _let_in(self, call: Call) -> tuple[bool, Any]:
        """Whether what is asked for has been answered, and how. If not, the call may come in, and
        nobody else makes that request from here on."""
        request = call.request
        while request is None:
            if not self._is_hindered(call):
                return False, None
            await self._make_way(call)
        while True:
            other = self._asked.get(request.record)
            if other is not None:
                assert other.request is not None
                request.check(other.request.digest)
                if other.told is None:
                    other.told = trio.Event()
                await other.told.wait()
                continue
            found, value = await self.requests.answer(request)
            if found:
                return True, value
            if not self._is_hindered(call):
                self._asked[request.record] = call
                return False, None
            await self._make_way(call)

    def settled(self, call: Call) -> None:
        """A call with a request id has its answer, durably, or will have none."""
        request = call.request
        if request is not None and self._asked.get(request.record) is call:
            del self._asked[request.record]
            if call.told is not None:
                call.told.set()

    def _is_hindered(self, call: Call) -> bool:
        """Whether it takes more than a look to know that a call may come in."""
        partition = self._partition
        if partition.closed or not partition.recovered or partition.backlog.full(call.key):
            return True
        # A step must not fail because of a drain: it is cut off while it waits.
        return partition.draining and call.above is None

    async def _make_way(self, call: Call) -> None:
        partition = self._partition
        partition.check_open()
        if partition.draining and call.above is None:
            raise left(call)
        if not partition.recovered:
            await partition.counted.wait()
        elif partition.backlog.full(call.key):
            await partition.backlog.wait_for_room(call)

    def _enter(self, call: Call) -> None:
        """Put a call into the line of its key."""
        partition = self._partition
        queue = call.queue = partition.queue(call.key)
        head = queue.head
        if head is not None and is_driven_here(head):
            self.settled(call)
            raise of_own_key(call, head)
        call.number = partition.next_number
        call.task = trio.lowlevel.current_task()
        if queue.calls is None:
            queue.calls = [call]
        else:
            queue.calls.append(call)
        partition.backlog.enter(queue)
        if head is not None and head.parked:
            partition.eviction.overtake(head)
        if not queue.awake:
            queue.wake()

    def withdraw(self, call: Call) -> None:
        """A call that has not begun will not begin."""
        queue, partition = call.queue, self._partition
        assert queue is not None
        assert queue.calls is not None
        queue.calls.remove(call)
        queue.started()
        self.settled(call)
        if not partition.closed and partition.failure is None:
            # There may be nothing in the line any more.
            queue.wake()

    async def serve(self, queue: "KeyQueue") -> bool | None:
        """Serve the calls that are next in a line. Says whether it goes on with its runs; if not,
        it is held, or to be looked at again where the answer is None."""
        partition, slots = self._partition, self._partition.slots
        turn = 0
        while queue.calls and queue.head is None and not partition.draining:
            if queue.unread:
                await queue.read_window(queue)
                continue
            call = queue.calls[0]
            if queue.sleeper is not None or (queue.window and queue.window[0][0] < call.number):
                return True
            if queue.paused or partition.stopped:
                return False
            group = queue.group
            if group is not None and not group.durable and call.kind.effects:
                await group.wait()
                continue
            if turn == TURN:
                return None
            turn += 1
            if not slots.free:
                await slots.take(Priority.NORMAL)
                if queue.calls[:1] != [call] or queue.paused or partition.stopped:
                    slots.give()
                    continue
                call.slot = True
            del queue.calls[0]
            record = call.record = queue.entity(call.kind)
            state = self.states.kept.get(record)
            if state is None:
                state = await self._read(queue, call)
                if state is None:
                    continue
            await perform(call, state)
            if call.scope is not None and call.scope.cancel_called:
                return None
        return True

    async def _read(self, queue: "KeyQueue", call: Call) -> State | None:
        """Read the state that a call is about; None if the call is refused since it is damaged.
        Nothing is awaited here that lets another task run."""
        partition, record = self._partition, call.record
        try:
            fields = await partition.ledger.get("entities", record)
        except StoreError as error:
            call.begun = True
            queue.started()
            call.refuse(error)
            if call.slot:
                partition.slots.give()
            if not isinstance(error, StoreCorrupt):
                raise
            return None
        return self.states.keep(record, b"" if fields is None else fields[0], None)

    def look_again(self) -> None:
        """What was paused may go on."""
        for queue in list(self._partition.queues.values()):
            if queue.calls:
                queue.wake()

    def drain(self) -> None:
        """Nothing more begins: send those away who wait for it. Steps and methods go on waiting,
        until they are cut off."""
        self._refuse_waiting(lambda call: call.above is None)

    def cut_off(self) -> None:
        """Cancel the methods that still run."""
        for call in list(self.running):
            if call.scope is not None:
                call.scope.cancel()

    def close(self) -> None:
        """No call will be answered any more."""
        self._refuse_waiting(lambda call: True)
        for call in list(self.running):
            call.refuse(left(call))
        for call in list(self._asked.values()):
            self.settled(call)

    def _refuse_waiting(self, chosen: Callable[[Call], bool]) -> None:
        for queue in list(self._partition.queues.values()):
            for call in list(queue.calls or ()):
                if chosen(call):
                    self.withdraw(call)
                    call.refuse(left(call))
