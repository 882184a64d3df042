"""Calls: entity methods that run under a key, in order with the runs of that key.

1. A call waits in the queue of its key, in memory only. It runs after the runs that have a place in
   the queue when the call is made, and before runs that get a place later. If the first of these
   runs is held, the call is held, too.
2. The actor of the key runs the method. Like a step, a method needs a slot and has a timeout. Both
   cost nothing if the method does not suspend.
3. The new state and, for a call with a request id, the answer are staged together. The caller
   continues when that group is durable. So a call takes one commit, and before it nothing is
   stored: a call that a crash cuts off has not happened.
"""

from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any

import trio
from outcome import Error

from keyrun._waking import WAKE
from keyrun.actors.errors import shown
from keyrun.runtime.entities.entity import EntityDefinition, EntityMethod
from keyrun.runtime.entities.requests import AnswerStore, CallRequest
from keyrun.runtime.entities.state_cache import CachedState, StateCache
from keyrun.runtime.errors import CallFailed, CallTimeout, TransientError
from keyrun.runtime.internal_errors import INTERNAL_CODE, InternalError
from keyrun.runtime.run.draft import Draft
from keyrun.runtime.texts import named, needs_asyncio, traceback_of, type_of
from keyrun.runtime.user_errors import is_fatal, is_user_error
from keyrun.runtime.values import Failure, FailureKind
from keyrun.storage import StoreClosed, StoreCorrupt, StoreError
from keyrun.storage.payload import UNFIT
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun.actors import ActorSystem
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.run.partition_state import PartitionState
    from keyrun.runtime.run.performing import Performing
    from keyrun.runtime.run.running_step import RunningStep
    from keyrun.storage.group import Group

current_call: "ContextVar[EntityCall | None]" = ContextVar("keyrun.call", default=None)
"""The call whose method the current code is part of."""

_NOT_STORED = (TransientError, CallTimeout, StoreClosed)
"""Errors that are not kept as an answer: the same request may be made again."""

_USE_TRIO = (
    "entity methods run on Trio: use Trio instead of asyncio, as with trio.sleep, or call asyncio "
    "code in a step with @step(asyncio=True) and pass its result to the method"
)


class CallServices:
    """Everything that the calls of a partition share."""

    def __init__(
        self,
        partition: "PartitionState",
        actors: "ActorSystem[str, KeyQueue, None]",
        answers: AnswerStore,
        cache: StateCache,
    ) -> None:
        self.partition = partition
        self.actors = actors
        self.answers = answers
        self.cache = cache
        # Every call asks for these: an attribute of another object would be one more look-up each.
        self.slots = partition.slots
        self.codec = partition.codec
        self.redaction = partition.redaction
        self.commits = partition.commits
        self.suspension = actors.suspension
        self.running: dict[EntityCall, None] = {}
        """The calls whose method has suspended and not ended."""
        self.requested: dict[bytes, EntityCall] = {}
        """The calls with a request id that have no answer yet, by the record key of the answer."""

    def settled(self, call: "EntityCall") -> None:
        """Record that the answer of a call with a request id is durable, or will never come."""
        request = call.request
        if request is not None and self.requested.get(request.record) is call:
            del self.requested[request.record]
            if call.repeats is not None:
                call.repeats.set()


class EntityCall:
    """One call, and the task that waits for its answer.

    Trio calls the object if that task is cancelled. Then a call that has not begun is withdrawn,
    and a call that has begun is finished without a caller.
    """

    __slots__ = (
        "_group",
        "args",
        "caller",
        "definition",
        "error",
        "has_slot",
        "key",
        "kwargs",
        "method",
        "number",
        "over",
        "pending",
        "performing",
        "queue",
        "repeats",
        "request",
        "scope",
        "services",
        "task",
        "timeout",
        "trace",
        "until",
        "value",
    )

    def __init__(
        self,
        services: CallServices,
        definition: EntityDefinition,
        key: str,
        method: EntityMethod,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float,
    ) -> None:
        self.services = services
        self.definition = definition
        self.key = key
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.timeout = timeout
        self.request: CallRequest | None = None
        self.trace: Any = None
        """The context in which the call was made, if that is in a span."""
        self.performing: Performing | None = None
        """The operation from outside that made the call."""
        self.caller: EntityCall | RunningStep | None = None
        """The step or method that made the call, if there is one. It holds a key itself."""
        self.queue: KeyQueue | None = None
        self.number = 0
        """Runs with a smaller place go first."""
        self.task: trio.lowlevel.Task | None = None
        self.pending = True
        """Whether the call counts as waiting to be started."""
        self.has_slot = False
        self.scope: trio.CancelScope | None = None
        """The cancel scope of the method, once it has suspended."""
        self.until = inf
        """When the timeout of the method ends."""
        self.value: Any = None
        self.error: BaseException | None = None
        self.over = False
        """Whether the method has ended."""
        self.repeats: trio.Event | None = None
        """Set when the call is answered or withdrawn, for repeats of the same request."""
        self._group: Group | None = None
        """The commit group that the task waits for."""

    @property
    def name(self) -> str:
        """Return the names of the entity and of the method."""
        return f"{self.definition.name}.{self.method.name}"

    @property
    def about(self) -> tuple[str, str, str]:
        """Return an empty run id, the key and the name, for events."""
        return "", self.key, self.name

    @property
    def effects(self) -> bool:
        """Return whether the method may do more than change its state and return an answer."""
        return self.definition.effects

    @property
    def from_key(self) -> bool:
        """Return whether code that holds a key itself, a step or a method, made the call."""
        return self.caller is not None

    def begin_wait(self) -> None:
        """Take a slot and start the timeout, because the method suspends. A slot is free, because
        no other task has run since the method began."""
        with INTERNAL_CODE:
            services = self.services
            if not self.has_slot:
                self.has_slot = True
                services.slots.free -= 1
            services.running[self] = None
            self.scope = services.actors.scope(kept=True)
            self.until = self.scope.deadline = trio.current_time() + self.timeout

    def answer(self, value: Any) -> None:
        """Return an answer at once, because nothing has to be stored for it."""
        task, self.task = self.task, None
        self.value = value
        if task is not None:
            trio.lowlevel.reschedule(task, WAKE)

    def refuse(self, error: BaseException) -> None:
        """Raise `error` in the caller at once. Nothing of the call is stored."""
        task, self.task = self.task, None
        if self.request is not None:
            self.services.settled(self)
        if task is not None:
            trio.lowlevel.reschedule(task, Error(error))

    def crash(self, error: BaseException) -> None:
        """Refuse the call because its execution raised `error`, which ends the actor."""
        if self.pending:
            assert self.queue is not None
            self.queue.started(self)
        self.refuse(error if isinstance(error, Exception) else runtime_closed(self))

    def withdraw(self) -> None:
        """Remove a call that has not begun from the queue of its key."""
        queue, partition = self.queue, self.services.partition
        assert queue is not None
        assert queue.calls is not None
        queue.calls.remove(self)
        queue.started(self)
        self.services.settled(self)
        if not partition.closed and partition.failure is None:
            # The queue may be empty now.
            queue.wake()

    def abandon(self) -> None:
        """Withdraw the call and let it fail, because the runtime closes."""
        self.withdraw()
        self.refuse(runtime_closed(self))

    def __call__(self, _: object) -> trio.lowlevel.Abort:
        task, self.task = self.task, None
        group = self._group
        if group is not None:
            assert task is not None
            group.leave(task)
            self._settle_when_durable(group)
        elif self.pending:
            self.withdraw()
        return trio.lowlevel.Abort.SUCCEEDED

    async def execute(self) -> bool:
        """Run the method on the stored state, and answer the caller. Return whether the actor can
        continue in its cancel scope."""
        services, queue = self.services, self.queue
        assert queue is not None
        record = queue.entity(self.definition.encoded)
        state = services.cache.states.get(record)
        if state is None:
            state = await self._read_state(queue, record)
            if state is None:
                return True
        stored, _, known = state
        queue.started(self)
        try:
            draft = Draft(services.codec, stored, None, known)
        except UNFIT as error:
            if self.has_slot:
                services.slots.give()
            self.refuse(error)
            return True
        instance: Any = object.__new__(self.definition.cls)
        instance.key = self.key
        instance.state = draft
        instance.request_id = None if self.request is None else self.request.request_id
        value: Any = None
        raised: BaseException | None = None
        token = current_call.set(self)
        tracer = None if self.trace is None else services.partition.tracer
        entered = None if tracer is None else tracer.enter(self.trace)
        suspension = services.suspension
        suspension.callback = self.begin_wait
        try:
            value = await self.method.function(instance, *self.args, **self.kwargs)
        except BaseException as error:
            raised = error
            if needs_asyncio(error):
                BaseException.add_note(error, _USE_TRIO)
        suspension.callback = None
        current_call.reset(token)
        if tracer is not None:
            tracer.leave(entered)
        if instance.state is not draft and raised is None:
            raised = TypeError(
                f"{self.name} assigned to self.state, which would be lost; change the mapping in "
                "place, as with self.state.clear() and self.state.update(...)"
            )
        self.over = True
        if self.has_slot:
            services.slots.give()
        if self.scope is not None:
            raised = self._end_wait(self.scope, raised)
        if raised is None or self._is_answer(raised):
            try:
                self._settle(record, stored, draft, value, raised)
            except UNFIT as error:
                self._settle(record, stored, draft, None, error)
        return self.scope is None or not self.scope.cancel_called

    async def _read_state(self, queue: "KeyQueue", record: bytes) -> CachedState | None:
        """Return the stored state, or None if the state is damaged and the call was refused. No
        other task runs meanwhile."""
        services = self.services
        try:
            fields = await services.partition.ledger.get("entities", record)
        except StoreError as error:
            if self.has_slot:
                services.slots.give()
            if not isinstance(error, StoreCorrupt):
                raise
            queue.started(self)
            self.refuse(error)
            return None
        return services.cache.keep(record, b"" if fields is None else fields[0], None)

    def _end_wait(
        self, scope: trio.CancelScope, raised: BaseException | None
    ) -> BaseException | None:
        """Give the cancel scope of a method that has suspended back to the actor. Return the error
        of the method, which may be its timeout."""
        services = self.services
        services.running.pop(self, None)
        scope.deadline = inf
        late = trio.current_time() >= self.until
        if scope.cancel_called:
            services.actors.renew_scope()
            if raised is not None:
                if is_fatal(raised):
                    return raised
                if not late:
                    return runtime_closed(self)
        if not late:
            return raised
        error = CallTimeout(
            f"{self.name} of the key {self.key!r} exceeded its timeout of {self.timeout:g} s; "
            "nothing of the call is stored",
            key=self.key,
            step=self.name,
        )
        error.__cause__ = raised if isinstance(raised, Exception) else None
        return error

    def _is_answer(self, raised: BaseException) -> bool:
        """Return whether an error of the method is its answer. If not, the caller has received the
        error already."""
        if isinstance(raised, InternalError):
            raise raised.error
        if not is_user_error(raised):
            raise raised
        if not issubclass(type(raised), Exception):
            # In the task of the caller, the original exception would end more than the call.
            did = f"raised {named(raised, self.services.redaction)}"
            if isinstance(raised, SystemExit):
                code = self.services.redaction.text(shown(raised.code))
                did = f"called sys.exit({code})"
            error = RuntimeError(f"{self.name} {did}")
            error.__cause__ = raised
            self.refuse(error)
        elif isinstance(raised, _NOT_STORED):
            self.refuse(raised)
        else:
            return True
        return False

    def _settle(
        self,
        record: bytes,
        stored: bytes,
        draft: Draft,
        value: Any,
        error: BaseException | None,
    ) -> None:
        """Stage the new state and the answer, and let the caller wait for the commit."""
        services, queue, request = self.services, self.queue, self.request
        assert queue is not None
        payload = failure = None
        state, values, flat = stored, draft.values_, None
        if error is None:
            state, flat = b"", b""
            if values:
                flat = services.codec.encode_flat(values)
                state = services.codec.encode(values) if flat is None else flat
            if request is not None:
                payload = services.codec.encode(value, self.method.declared)
        elif request is None:
            self.refuse(error)
            return
        else:
            failure = self._failure(error)
            self.error = CallFailed(failure, key=self.key)
            self.error.__cause__ = error
        if state == stored and request is None:
            group = queue.group
            if group is None or group.durable:
                self.answer(value)
                return
            services.commits.open_group()  # raises if that group can no longer become durable
        else:
            group = queue.group = services.commits.open_group()
            sealed = None
            if state != stored and state:
                sealed = seal("entities", record, (state,))
            if request is not None:
                with group.together():
                    if state != stored:
                        group.table("entities")[record] = sealed
                    services.answers.stage(group, request, payload, failure)
                    if self.performing is not None:
                        self.performing.called(group, failure)
            else:
                group.table("entities")[record] = sealed
            if state != stored:
                # The state from before this call must not be used any more, however the call ends.
                services.cache.states.pop(record, None)
                known = None if flat is None else values.copy()
                services.cache.keep(record, state, group, known)
        self.value = value
        if self.task is None:
            group.hasten()
            self._settle_when_durable(group)
        else:
            self._group = group
            group.adopt(self.task)

    def _settle_when_durable(self, group: "Group") -> None:
        """Notify the repeats of the request when the answer is durable, because the caller no
        longer waits for it."""
        if self.request is not None:
            if group.durable:
                self.services.settled(self)
            else:
                group.when_durable(self.services.settled, self)

    def _failure(self, error: BaseException) -> Failure:
        name, redaction = self.name, self.services.redaction
        reason = f"{name} of the key {self.key!r} raised {named(error, redaction)}"
        if needs_asyncio(error):
            reason += f"; {_USE_TRIO}"
        return Failure(
            kind=FailureKind.STEP_FAILED,
            reason=reason,
            step=name,
            error_type=type_of(error),
            traceback=traceback_of(error, redaction),
        )


def runtime_closed(call: EntityCall) -> StoreClosed:
    """Return the error of a call that was not made or was cut off because the runtime closes."""
    return StoreClosed(
        f"the runtime was closed before {call.name} of the key {call.key!r} had finished; nothing "
        "of the call is stored; repeat the call when the runtime is open again"
    )
