"""The Python client: a `Runtime` whose calls another process performs.

`RemoteRuntime` has the methods of `Runtime`. Those that are an operation of the table are derived
from it. The others name a workflow or an entity, encode a payload, or return a handle.
"""

import inspect
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
)
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import attrs

from keyrun.actors import checks
from keyrun.control.client_trace import joined
from keyrun.control.following import RemoteEvents, RemoteOutcomes, RemoteWatch
from keyrun.control.operation import Operation
from keyrun.control.problems import raised_by
from keyrun.control.requests import (
    MemberEnd,
    NewMember,
    RunEnd,
    Submitted,
    SubmittedGroup,
    When,
    WholeHistory,
)
from keyrun.control.shapes import CODEC, Payload
from keyrun.control.submits import Submits
from keyrun.control.table import CALLS
from keyrun.control.transport import Transport
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.entities.entity import (
    EntityDefinition,
    EntityMethod,
    EntityProxy,
    definition_of,
)
from keyrun.runtime.errors import CallFailed, NoOwner, UnknownRun
from keyrun.runtime.events.subscription import check_buffer, check_kinds
from keyrun.runtime.groups.handle import GroupHandle
from keyrun.runtime.groups.records import (
    GroupStatus,
    Member,
    MemberOutcome,
    check_group_id,
    members_by_id,
    naming_member,
)
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.inspect.history import History, HistoryPage
from keyrun.runtime.inspect.pages import RunPage
from keyrun.runtime.inspect.watch import check_interval
from keyrun.runtime.limits import DEFAULTS, Limits, ResolvedLimits
from keyrun.runtime.queue.admission import check_arguments, encode_input
from keyrun.runtime.records.checks import check_key, check_run_id
from keyrun.runtime.records.exported import parse
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.runtime import Runtime, check_signal
from keyrun.runtime.texts import brief
from keyrun.runtime.values import Priority, RunStatus
from keyrun.runtime.waiting.signals import Delivery

if TYPE_CHECKING:
    from keyrun.runtime.inspect.statistics import RuntimeStatistics
    from keyrun.runtime.schedules.records import Misfire, ScheduleStatus
    from keyrun.runtime.schedules.timetable import Timetable

E = TypeVar("E")
T = TypeVar("T")

_NO_LIMITS = ResolvedLimits.of(DEFAULTS)


class RemoteRuntime(Runtime):
    """Submit runs to the runtime of another process, and observe, signal, pause and cancel them.
    `keyrun.connect` returns one. It has the methods of `Runtime`.

    If the method of an entity raises an exception, `call` raises the same exception if its class is
    builtin, and otherwise `CallFailed`: classes of the application do not travel."""

    def __init__(self, transport: Transport, workflows: Iterable[Workflow[Any, Any]] = ()) -> None:
        # A runtime of another process has no partition here, so there is nothing to set up.
        self._transport = transport
        self._submits = Submits(transport)
        self._workflows = {(each.name, each.version): each for each in workflows}

    async def _perform(
        self, operation: Operation, arguments: dict[str, Any], operation_id: str | None = None
    ) -> Any:
        """Perform an operation in the process that owns the store."""
        return await self._transport.call(operation, arguments, operation_id)

    async def _do(self, name: str, /, **arguments: Any) -> Any:
        return await self._perform(CALLS[name], arguments)

    def _lifted(self, status: RunStatus) -> RunStatus:
        """Return a status whose result has the type that its workflow declares, if it is known."""
        if status.result is None:
            return status
        payload = CODEC.encode(status.result)
        result = RemoteRuntime.decode_result(self, status.workflow, status.version, payload)
        return attrs.evolve(status, result=result)

    def decode_result(self, workflow: str, version: int, payload: bytes) -> Any:
        """Return a result as its workflow declares it, or as plain data."""
        known = self._workflows.get((workflow, version))
        return CODEC.decode(payload, Any if known is None else known.result_type)

    # Submitting

    def _describe(
        self,
        workflow: Any,
        input_: Any,
        key: str,
        run_id: str | None,
        headers: Mapping[str, str] | None,
        tags: Iterable[str],
        priority: Priority,
        limits: Limits | None,
        delay: float,
    ) -> Any:
        """Check the arguments of a submit, and return them as they travel. The run continues the
        trace of this task, because its call may travel with those of other tasks."""
        arguments = self._arguments(
            workflow, input_, key, run_id, headers, tags, priority, limits, delay
        )
        headers = joined(arguments.pop("headers", {}))
        return {**arguments, "headers": headers} if headers else arguments

    def _arguments(
        self,
        workflow: Any,
        input_: Any,
        key: str,
        run_id: str | None,
        headers: Mapping[str, str] | None,
        tags: Iterable[str],
        priority: Priority,
        limits: Limits | None,
        delay: float,
    ) -> dict[str, Any]:
        """Check the arguments of a new run, and return them as they travel."""
        checked_headers, checked_tags = check_arguments(
            key, run_id, headers, tags, priority, limits, delay
        )
        name, declared = workflow, Any
        if isinstance(workflow, Workflow):
            self._workflows.setdefault((workflow.name, workflow.version), workflow)
            name, declared = workflow.name, workflow.input_type
        elif not isinstance(workflow, str):
            raise TypeError(f"submit requires a workflow, got {brief(workflow)}")
        encoded = encode_input(CODEC, name, input_, declared)
        arguments: dict[str, Any] = {
            "workflow": name,
            "input": Payload("input", encoded=encoded),
            "key": key,
        }
        given = {
            "run_id": run_id,
            "headers": checked_headers,
            "tags": list(checked_tags),
            "limits": limits,
            "delay": delay,
        }
        arguments |= {option: value for option, value in given.items() if value}
        if priority is not Priority.NORMAL:
            arguments["priority"] = priority
        return arguments

    def _admit_at_once(self, described: Any) -> Any:
        return None

    async def _admit(self, described: Any, *, wait: bool) -> RunHandle[Any]:
        return self._handle(await self._submits.submit(described, wait=wait))

    def _handle(self, found: Submitted) -> RunHandle[Any]:
        return RunHandle(self, about(found), found.newly_submitted)

    async def submit(self, workflow: Any, input: Any = None, **options: Any) -> Any:  # noqa: A002
        """Start a run; see `Runtime.submit`."""
        return await self._admit(self._described(workflow, input, **options), wait=True)

    async def submit_nowait(self, workflow: Any, input: Any = None, **options: Any) -> Any:  # noqa: A002
        """Start a run unless the queue is full; see `Runtime.submit_nowait`."""
        return await self._admit(self._described(workflow, input, **options), wait=False)

    def _described(
        self,
        workflow: Any,
        input_: Any,
        *,
        key: str,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> Any:
        return RemoteRuntime._describe(
            self, workflow, input_, key, run_id, headers, tags, priority, limits, delay
        )

    async def submit_or_signal(
        self,
        workflow: Any,
        input: Any = None,  # noqa: A002
        *,
        run_id: str,
        name: str,
        payload: Any = None,
        signal_id: str | None = None,
        **options: Any,
    ) -> Any:
        """Send a signal, and start the run if there is none; see `Runtime.submit_or_signal`."""
        described = self._described(workflow, input, run_id=run_id, **options)
        check_signal(name, signal_id)
        more = {"name": name, "payload": _payload(payload), "signal_id": signal_id}
        return self._handle(await self._do("submit_or_signal", **described, **more))

    async def submit_group(
        self, group_id: str, members: Iterable[Member[Any, Any]]
    ) -> GroupHandle[Any]:
        """Start many runs as one group; see `Runtime.submit_group`."""
        check_group_id(group_id)
        new: list[NewMember] = []
        for member_id, each in members_by_id(group_id, members).items():
            with naming_member(group_id, member_id):
                described = self._arguments(
                    each.workflow,
                    each.input,
                    each.key,
                    None,
                    each.headers,
                    each.tags,
                    each.priority,
                    each.limits,
                    each.delay,
                )
            new.append(NewMember(member_id=member_id, **described))
        found: SubmittedGroup = await self._do("submit_group", group_id=group_id, members=new)
        return RemoteGroup(self, group_id, found.newly_submitted)

    async def group(self, group_id: str) -> GroupHandle[Any] | None:
        """Return the handle of a group, or None if it is unknown."""
        found = await self.group_status(group_id)
        return None if found is None else RemoteGroup(self, group_id, False)

    def _outcome_of(self, end: MemberEnd) -> MemberOutcome[Any]:
        """Return the end of a member with the result as its workflow declares it."""
        outcome = end.outcome
        if outcome.result is None or end.workflow is None or end.version is None:
            return outcome
        encoded = CODEC.encode(outcome.result)
        return attrs.evolve(outcome, result=self.decode_result(end.workflow, end.version, encoded))

    # Runs

    async def find_submission(self, run_id: str) -> Submission:
        """Return which run has an id. Raises `UnknownRun`."""
        return about(await self._do("find_run", run_id=run_id))

    async def status_of(self, about: Submission) -> RunStatus | None:
        """Return the status of a run, or None if it was forgotten."""
        found = await self._do("status_of_run", run_id=about.run_id, number=about.number)
        return None if found is None else self._lifted(found)

    def wait_for_end(self, submission: Submission) -> Awaitable[StatusRecord | None]:
        """Return an awaitable of the last status of a run."""
        return self._find_end(submission)

    async def _find_end(self, about: Submission) -> StatusRecord | None:
        found: RunEnd | None = await self._do(
            "wait_for_end", run_id=about.run_id, number=about.number
        )
        return None if found is None else found.status()

    async def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        """Return the status of a run, or None if the run is unknown."""
        try:
            found: RunStatus = await self._do("status", run_id=run_id)
        except UnknownRun:
            return None
        return self._lifted(found) if result else attrs.evolve(found, result=None)

    async def history(self, run_id: str) -> History:
        """Return everything that happened to a run; see `Runtime.history`."""
        found: WholeHistory = await self._do("whole_history", run_id=run_id)
        records = None if found.export is None else parse(found.export)
        return History(records, story=tuple(found.events))

    async def history_page(
        self, run_id: str, *, limit: int = 1000, cursor: str | None = None
    ) -> HistoryPage:
        """Return one page of the history of a run; see `Runtime.history_page`."""
        page: HistoryPage = await self._do("stored_page", run_id=run_id, limit=limit, cursor=cursor)
        return page

    def value(self, stored: bytes) -> Any:
        """Return what an event of a history carries as plain data."""
        return CODEC.decode(stored)

    async def signal(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        replace: bool = False,
        signal_id: str | None = None,
    ) -> Delivery:
        """Send a signal; see `Runtime.signal`."""
        check_signal(name, signal_id)
        found: Delivery = await self._do(
            "signal",
            run_id=run_id,
            name=name,
            payload=_payload(payload),
            replace=replace,
            signal_id=signal_id,
        )
        return found

    async def unfinished(self) -> dict[tuple[str, int], int]:
        """Return the number of unfinished runs, by workflow and version."""
        found = (await self.counts()).unfinished
        return {(each.workflow, each.version): each.runs for each in found}

    # Entities

    async def call(  # type: ignore[override]
        self,
        entity: type,
        key: str,
        method: str | Callable[..., Any],
        /,
        *args: Any,
        request_id: str | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a method of an entity; see `Runtime.call`."""
        definition = definition_of(entity)
        return await self._call(
            definition,
            check_key(key),
            definition.method(method),
            timeout,
            request_id,
            *args,
            **kwargs,
        )

    async def _call(
        self,
        definition: EntityDefinition,
        key: str,
        method: EntityMethod,
        timeout: float | None,
        request_id: str | None,
        /,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # Raises if the arguments do not fit. The method does not run.
        unstarted: Any = method.function(None, *args, **kwargs)
        unstarted.close()
        types = method.types
        named = dict(zip(method.parameters, args, strict=False))
        written = [_payload(value, types.get(name, Any)) for name, value in named.items()]
        try:
            answer = await self._do(
                "call",
                entity=definition.name,
                key=key,
                method=method.name,
                args=[*written, *(_payload(value) for value in args[len(named) :])],
                kwargs={
                    name: _payload(each, types.get(name, Any)) for name, each in kwargs.items()
                },
                request_id=request_id,
                timeout=timeout,
            )
        except CallFailed as error:
            if request_id is None:
                raise raised_by(error) from None
            raise
        return CODEC.decode(CODEC.encode(answer), method.declared)

    def entity(
        self,
        entity: type[E],
        key: str,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> E:
        """Return a proxy of an entity; see `Runtime.entity`."""
        if timeout is not None:
            checks.positive("timeout", timeout)
        definition = definition_of(entity)
        limit = cast(float, timeout)  # None: the runtime decides
        return cast(E, EntityProxy(self._call, definition, check_key(key), limit, request_id))

    # Schedules

    async def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[Any, Any],
        input: Any = None,  # noqa: A002
        *,
        key: str,
        when: "Timetable",
        misfire: "Misfire" = "fire_once",
        overlap: bool = False,
        paused: bool = False,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
    ) -> "ScheduleStatus":
        """Start runs of a workflow at certain times; see `Runtime.schedule`."""
        described = self._described(
            workflow, input, key=key, headers=headers, tags=tags, priority=priority, limits=limits
        )
        found: ScheduleStatus = await self._do(
            "schedule",
            schedule_id=schedule_id,
            when=When.of(when),
            misfire=misfire,
            overlap=overlap,
            paused=paused,
            **described,
        )
        return found

    # Streams

    def events(  # type: ignore[override]
        self,
        *,
        run_id: str | None = None,
        kinds: Iterable[str] | None = None,
        buffer: int = 1024,
    ) -> RemoteEvents:
        """Subscribe to events; see `Runtime.events`."""
        return RemoteEvents(
            self._transport,
            run_id=None if run_id is None else check_run_id(run_id),
            kinds=check_kinds(kinds),
            buffer=check_buffer(buffer),
        )

    def watch(self, run_id: str, *, interval: float = 0.2) -> RemoteWatch:  # type: ignore[override]
        """Return an async iterator of the progress of a run; see `Runtime.watch`."""
        return RemoteWatch(self._transport, check_run_id(run_id), check_interval(interval))

    @property
    def unreadable(self) -> int:
        """Raise an error: the process of the owner counts the damaged records of its listings."""
        raise RuntimeError(
            "the number of unreadable records is not known to a client: read rt.unreadable in the "
            "process that owns the store, or run `keyrun verify` on the store"
        )

    def statistics(self) -> "RuntimeStatistics":
        """Return the statistics that the owner has sent last. It sends them every 5 seconds. Raises
        `NoOwner` if there is no connection to an owner."""
        connection = self._transport.connection
        if connection is None or connection.statistics is None:
            raise NoOwner(
                f"{self._transport.target} has sent no statistics, because it is not connected; "
                "call statistics() after another call has returned"
            )
        found: RuntimeStatistics = self._transport.read(CALLS["statistics"], connection.statistics)
        return found


def _payload(value: Any, declared: Any = Any) -> Payload:
    return Payload("payload", encoded=CODEC.encode(value, declared))


def about(found: Submitted | Submission) -> Submission:
    """Return what a handle needs of a submission. The rest is in the process of the owner."""
    return Submission(
        number=found.number,
        run_id=found.run_id,
        key=found.key,
        workflow=found.workflow,
        version=found.version,
        input=b"",
        digest=None,
        headers={},
        tags=(),
        priority=Priority.NORMAL,
        limits=_NO_LIMITS,
        submitted_at=0.0,
        delay=0.0,
        origin="",
    )


def _derived(operation: Operation) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return the method of the client for an operation that is a method of `Runtime`."""
    signature = inspect.signature(operation.function)
    lifts, is_page = operation.result == list[RunStatus], operation.result is RunPage

    @wraps(operation.function)
    async def method(self: RemoteRuntime, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(self, *args, **kwargs).arguments)
        del given["self"]
        answer = await self._perform(operation, given)
        if is_page:
            return attrs.evolve(answer, runs=tuple(map(self._lifted, answer.runs)))
        return list(map(self._lifted, answer)) if lifts else answer

    return method


for _operation in CALLS.values():
    if getattr(Runtime, _operation.name, None) is _operation.function:
        setattr(RemoteRuntime, _operation.name, _derived(_operation))


class RemoteGroup(GroupHandle[T]):
    """Refer to one group in the runtime of another process."""

    __slots__ = ("_runtime",)

    def __init__(self, runtime: RemoteRuntime, group_id: str, newly: bool) -> None:
        self._runtime = runtime
        self.group_id = group_id
        self.newly_submitted = newly

    async def status(self) -> GroupStatus:
        """Return the number of members in each state."""
        found: GroupStatus = await self._runtime._do("group", group_id=self.group_id)
        return found

    def __aiter__(self) -> AsyncIterator[MemberOutcome[T]]:
        runtime = self._runtime
        return RemoteOutcomes(runtime._transport, self.group_id, runtime._outcome_of)

    async def cancel(self) -> int:
        """Cancel all members that have not ended, and return their number."""
        found: int = await self._runtime._do("cancel_group", group_id=self.group_id)
        return found
