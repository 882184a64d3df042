"""Calls: methods of entities that run under a key, in order with the runs of that key.

1. A call stands in the line of its key, in memory only. It goes after the runs that have a place by
   then and before those that get one later; whatever holds the first of them holds it, too.
2. Its method runs in the actor of the key, in the place of a step: with a slot and a timeout, which
   cost nothing if it waits for nothing.
3. What it made of the state, and with a request id its answer, are staged together, and its caller
   is woken when that group is durable. So there is one commit, and before it nothing is stored: a
   call that a crash cuts off has not happened.
"""

from contextvars import ContextVar
from math import inf
from typing import TYPE_CHECKING, Any

import trio
from outcome import Error

from keyrun._waking import WAKE
from keyrun.actors.errors import shown
from keyrun.runtime.entities.entity import Kind, Method
from keyrun.runtime.entities.requests import Request
from keyrun.runtime.entities.state_cache import State
from keyrun.runtime.errors import CallFailed, CallTimeout, TransientError
from keyrun.runtime.run.draft import Draft
from keyrun.runtime.texts import named, traceback_of, type_of
from keyrun.runtime.user_errors import is_fatal, is_user_error
from keyrun.runtime.values import Failure, FailureKind
from keyrun.storage import PayloadError, PayloadTypeError, StoreClosed
from keyrun.storage.record import seal

if TYPE_CHECKING:
    from keyrun.runtime.partition import Partition
    from keyrun.runtime.queue.key_queue import KeyQueue
    from keyrun.runtime.run.running_step import RunningStep
    from keyrun.storage.group import Group

serving: "ContextVar[Call | None]" = ContextVar("keyrun.call", default=None)
"""The call that the code is part of."""


class Call:
    """One call, and the task that waits for its answer. Trio calls it if that is cancelled: what
    has not begun is withdrawn, and what has is finished with nobody to tell."""

    __slots__ = (
        "_group",
        "above",
        "args",
        "begun",
        "error",
        "key",
        "kind",
        "kwargs",
        "method",
        "number",
        "over",
        "partition",
        "queue",
        "record",
        "request",
        "scope",
        "slot",
        "task",
        "timeout",
        "told",
        "until",
        "value",
    )

    def __init__(
        self,
        partition: "Partition",
        kind: Kind,
        key: str,
        method: Method,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        timeout: float,
    ) -> None:
        self.partition = partition
        self.kind = kind
        self.key = key
        self.method = method
        self.args = args
        self.kwargs = kwargs
        self.timeout = timeout
        self.request: Request | None = None
        self.above: Call | RunningStep | None = None
        """What calls it, if that holds a key itself."""
        self.queue: KeyQueue | None = None
        self.record = b""
        """Where the state is."""
        self.number = 0
        """Runs with a place before it go first."""
        self.task: trio.lowlevel.Task | None = None
        self.begun = False
        self.slot = False
        self.scope: trio.CancelScope | None = None
        self.until = inf
        self.value: Any = None
        self.error: BaseException | None = None
        self.over = False
        self.told: trio.Event | None = None
        """Set when it is answered or withdrawn, for those who ask for the same."""
        self._group: Group | None = None
        """What its task waits for."""

    @property
    def name(self) -> str:
        """What is called."""
        return f"{self.kind.name}.{self.method.name}"

    @property
    def about(self) -> tuple[str, str, str]:
        """Run id, which it has not, key and what is called, for those who tell of it."""
        return "", self.key, self.name

    def wait_begins(self) -> None:
        """The method has to wait: it takes the slot that nobody can have taken meanwhile, and its
        time is counted."""
        partition = self.partition
        if not self.slot:
            self.slot = True
            partition.slots.free -= 1
        partition.dispatcher.running[self] = None
        self.scope = partition.actors.scope(kept=True)
        self.until = self.scope.deadline = trio.current_time() + self.timeout

    def answer(self, value: Any) -> None:
        """Nothing has to be stored for this answer."""
        task, self.task = self.task, None
        self.value = value
        if task is not None:
            trio.lowlevel.reschedule(task, WAKE)

    def refuse(self, error: BaseException) -> None:
        """Have the caller get `error` at once: nothing of the call is stored."""
        task, self.task = self.task, None
        if self.request is not None:
            self.partition.dispatcher.settled(self)
        if task is not None:
            trio.lowlevel.reschedule(task, Error(error))

    def __call__(self, _: object) -> trio.lowlevel.Abort:
        task, self.task = self.task, None
        group = self._group
        if group is not None:
            assert task is not None
            group.leave(task)
            self._outlive(group)
        elif not self.begun:
            self.partition.dispatcher.withdraw(self)
        return trio.lowlevel.Abort.SUCCEEDED

    def settle(self, stored: bytes, draft: Draft, value: Any, error: BaseException | None) -> None:
        """The method is done: stage what came of it, and have the caller wait for the commit."""
        partition, queue, request = self.partition, self.queue, self.request
        assert queue is not None
        payload = failure = None
        state, values, flat = stored, draft.values_, None
        if error is None:
            state, flat = b"", b""
            if values:
                flat = partition.codec.encode_flat(values)
                state = partition.codec.encode(values) if flat is None else flat
            if request is not None:
                payload = partition.codec.encode(value, self.method.declared)
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
            partition.commits.open_group()  # raises if that group can no longer become durable
        else:
            group = queue.group = partition.commits.open_group()
            if state != stored:
                record = self.record
                sealed = seal("entities", record, (state,)) if state else None
                group.tables["entities"][record] = sealed
                known = None if flat is None else values.copy()
                partition.dispatcher.states.keep(record, state, group, known)
            if request is not None:
                partition.dispatcher.requests.stage(group, request, payload, failure)
        self.value = value
        if self.task is None:
            group.hasten()
            self._outlive(group)
        else:
            self._group = group
            group.adopt(self.task)

    def _outlive(self, group: "Group") -> None:
        """Nobody waits for the answer: those who ask for the same are told of it all the same."""
        if self.request is not None:
            if group.durable:
                self.partition.dispatcher.settled(self)
            else:
                group.when_durable(self.partition.dispatcher.settled, self)

    def _failure(self, error: BaseException) -> Failure:
        name = self.name
        return Failure(
            kind=FailureKind.STEP_FAILED,
            reason=f"{name} of the key {self.key!r} raised {named(error)}",
            step=name,
            error_type=type_of(error),
            traceback=traceback_of(error),
        )


_NOT_STORED = (TransientError, CallTimeout, StoreClosed)
"""What is no answer: the same request may be made again."""
_UNFIT = (PayloadError, PayloadTypeError)


async def perform(call: Call, state: State) -> None:
    """Run the method of a call, on the state as it is stored, and see to its answer."""
    stored, _, known = state
    partition, queue, cls = call.partition, call.queue, call.kind.cls
    assert queue is not None
    call.begun = True
    queue.started()
    try:
        draft = Draft(partition.codec, stored, None, known)
    except _UNFIT as error:
        if call.slot:
            partition.slots.give()
        call.refuse(error)
        return
    instance: Any = object.__new__(cls)
    instance.key = call.key
    instance.state = draft
    instance.request_id = None if call.request is None else call.request.request_id
    value: Any = None
    raised: BaseException | None = None
    token = serving.set(call)
    suspension = partition.suspension
    suspension.callback = call.wait_begins
    try:
        value = await call.method.function(instance, *call.args, **call.kwargs)
    except BaseException as error:
        raised = error
    suspension.callback = None
    serving.reset(token)
    if instance.state is not draft and raised is None:
        raised = TypeError(
            f"{call.name} assigned to self.state, which would be lost: change it in place, as with "
            "self.state.clear() and self.state.update(...)"
        )
    call.over = True
    if call.slot:
        partition.slots.give()
    try:
        if call.scope is not None:
            raised = _after_waiting(call, raised)
        if raised is not None and not _is_answer(call, raised):
            return
        try:
            call.settle(stored, draft, value, raised)
        except _UNFIT as error:
            call.settle(stored, draft, None, error)
    except BaseException as error:
        call.refuse(error if isinstance(error, Exception) else left(call))
        raise


def _is_answer(call: Call, raised: BaseException) -> bool:
    """Whether what a method raised is its answer. If not, the caller has it already."""
    if not is_user_error(raised):
        raise raised
    if not issubclass(type(raised), Exception):
        # Raised in the task of the caller, it would end more than the call.
        did = f"raised {named(raised)}"
        if isinstance(raised, SystemExit):
            did = f"called sys.exit({shown(raised.code)})"
        error = RuntimeError(f"{call.name} {did}")
        error.__cause__ = raised
        call.refuse(error)
    elif isinstance(raised, _NOT_STORED):
        call.refuse(raised)
    else:
        return True
    return False


def _after_waiting(call: Call, raised: BaseException | None) -> BaseException | None:
    """What a method that has waited came to, once its scope is given back."""
    scope, partition = call.scope, call.partition
    assert scope is not None
    partition.dispatcher.running.pop(call, None)
    scope.deadline = inf
    late = trio.current_time() >= call.until
    if scope.cancel_called:
        partition.actors.renew_scope()
        if raised is not None:
            if is_fatal(raised):
                return raised
            if not late:
                return left(call)
    if not late:
        return raised
    error = CallTimeout(
        f"{call.name} of the key {call.key!r} took longer than its timeout of {call.timeout:g} s, "
        "and nothing of it is stored",
        key=call.key,
        step=call.name,
    )
    error.__cause__ = raised if isinstance(raised, Exception) else None
    return error


def left(call: Call) -> StoreClosed:
    """What a caller gets whose call cannot be made, or was cut off, since all ends."""
    return StoreClosed(
        f"the runtime was left before {call.name} of the key {call.key!r} was done, and nothing of "
        "it is stored; call it again when the runtime is open"
    )
