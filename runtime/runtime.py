"""The public `Runtime`: submit runs, observe them, signal, hold and cancel them.

Each method checks its arguments and calls the service of its feature. Services that few programs
use are imported by the first call.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from keyrun.actors import checks
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.entities.entity import EntityProxy
from keyrun.runtime.errors import UnknownRun
from keyrun.runtime.events.subscription import Events, check_kinds
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.host.callers import on_trio, wrong_caller
from keyrun.runtime.inspect.reader import Reader
from keyrun.runtime.limits import Limits
from keyrun.runtime.partition import Partition
from keyrun.runtime.records.checks import check_key, check_run_id
from keyrun.runtime.records.damage import DAMAGE, stand_in, trace
from keyrun.runtime.records.operation import Write
from keyrun.runtime.records.submission import StatusRecord, Submission
from keyrun.runtime.run.quarantine import is_kept
from keyrun.runtime.texts import check_text
from keyrun.runtime.values import Priority, RunStatus
from keyrun.runtime.waiting.receive import check_channel
from keyrun.runtime.waiting.run_end import wait_for_end
from keyrun.runtime.waiting.signals import Delivery

if TYPE_CHECKING:
    from keyrun.runtime.groups.handle import GroupHandle
    from keyrun.runtime.groups.records import Member
    from keyrun.runtime.inspect.explain import Explainer
    from keyrun.runtime.inspect.policies import PolicyStatus
    from keyrun.runtime.inspect.statistics import RuntimeStatistics
    from keyrun.runtime.inspect.watch import Watch
    from keyrun.runtime.queue.run_options import SubmitOptions, SubmitOrSignalOptions
    from keyrun.runtime.schedules.options import ScheduleOptions
    from keyrun.runtime.schedules.records import Misfire, ScheduleStatus
    from keyrun.runtime.schedules.timetable import Timetable
    from keyrun.storage.group import Group

E = TypeVar("E")
I = TypeVar("I")  # noqa: E741 (the input)
P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def without_suspending(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the value of a coroutine that only reads the store. Reads never suspend."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return cast(T, stop.value)
    coroutine.close()
    raise AssertionError("a read of the store suspended")


BY_SIGNAL = "message"
"""The origin of a run that `submit_or_signal` started."""


class Runtime(Reader):
    """Submit runs, and observe, signal, pause and cancel them. `open_runtime` returns a runtime.
    The methods that it has from `Reader` only read."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(partition.state.ledger, partition.statuses, partition.state.wall)
        self._partition = partition
        self._admission = partition.admission
        self._control = partition.control
        self._operations = partition.operations
        self.decode_result = partition.statuses.decode_result
        self._run_table = partition.runs
        self._describe = partition.admission.describe

    @overload
    async def submit(
        self,
        workflow: Workflow[None, T],
        input: None = None,
        **options: "Unpack[SubmitOptions]",
    ) -> RunHandle[T]: ...
    @overload
    async def submit(
        self,
        workflow: Workflow[I, T],
        input: I,
        **options: "Unpack[SubmitOptions]",
    ) -> RunHandle[T]: ...
    async def submit(
        self,
        workflow: Workflow[I, T],
        input: I | None = None,  # noqa: A002
        *,
        key: str,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> RunHandle[T]:
        """Start a run, and return its handle when the run is durable.

        - `workflow`, `input`: the workflow to run, in its highest registered version, and its
          input.
        - `key`: the ordering key. Runs of one key execute one after the other.
        - `run_id`: 1 to 128 characters of `A-Z a-z 0-9 _ -`. Keyrun generates an id if you pass
          none. If a run with this id, key, workflow and input exists, `submit` returns the handle
          of that run and ignores the other arguments. If its key, workflow or input differs,
          `submit` raises `InputMismatch`.
        - `headers`: strings by name, for example a trace id, at most 64 KiB encoded. The workflow,
          its steps and the terminal hook can read them.
        - `tags`: words by which `rt.runs` can list runs.
        - `priority`: decides which keys get free slots first.
        - `limits`: limits of this run. A limit that is not set comes from the workflow, then from
          the runtime.
        - `delay`: seconds until the run enters the queue of its key. Until then it holds nothing,
          and other runs of the key execute.

        If too many runs wait to start, `submit` waits up to `backpressure_timeout` seconds, then
        raises `Backpressure`."""
        described = self._admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        self._partition.state.check_caller()
        if run_id is not None or self._must_wait(key):
            return await self._admit(described, wait=True)
        await self._admission.admit(described).wait()
        return RunHandle(self, described, True)

    @overload
    async def submit_nowait(
        self,
        workflow: Workflow[None, T],
        input: None = None,
        **options: "Unpack[SubmitOptions]",
    ) -> RunHandle[T]: ...
    @overload
    async def submit_nowait(
        self,
        workflow: Workflow[I, T],
        input: I,
        **options: "Unpack[SubmitOptions]",
    ) -> RunHandle[T]: ...
    async def submit_nowait(
        self,
        workflow: Workflow[I, T],
        input: I | None = None,  # noqa: A002
        *,
        key: str,
        run_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
        delay: float = 0,
    ) -> RunHandle[T]:
        """Start a run like `submit`, but raise `Backpressure` at once if the queue is full."""
        described = self._admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        self._partition.state.check_caller()
        if run_id is not None or self._must_wait(key):
            return await self._admit(described, wait=False)
        await self._admission.admit(described).wait()
        return RunHandle(self, described, True)

    def _admit_at_once(self, described: Submission) -> "tuple[RunHandle[Any], Group | None] | None":
        """Admit a run, or find the run that has its id, and return the handle with the group that
        makes the run durable. Return None if the run has to wait before it is admitted: then call
        `_admit`."""
        found = self._found_at_once(described)
        if found is True:
            return RunHandle(self, described, True), self._admission.admit(described)
        return found or None

    def _found_at_once(self, described: Submission) -> "tuple[RunHandle[Any], Group | None] | bool":
        """Return the run that has the id of a run, or whether the run can be admitted at once. This
        stages nothing."""
        partition = self._partition
        if not partition.state.recovered:
            return False
        known = without_suspending(self._admission.known(described)) if described.run_id else None
        if known is not None:
            return RunHandle(self, known.submission, False), known.group
        if partition.backlog.full(described.key):
            return False
        if partition.instances is not None:
            partition.instances.check(described)
        return True

    def _must_wait(self, key: str) -> bool:
        """Return whether a run without a given id may have to wait before it is admitted, or may be
        part of an operation."""
        partition = self._partition
        full = partition.backlog.full(key) or partition.instances is not None
        return full or not partition.state.recovered or bool(partition.state.performing)

    async def _admit(self, described: Submission, *, wait: bool) -> RunHandle[Any]:
        """Admit a run when the queue has room, or return the run that has its id."""
        partition, admission, key = self._partition, self._admission, described.key
        if not partition.state.recovered:
            await partition.state.counted.wait()
        # Nothing may be awaited between this and the admission that yields to another submit.
        known = await admission.known(described)
        while known is None and partition.backlog.full(key):
            if not wait:
                raise partition.backlog.refuse(key)
            await partition.backlog.wait_for_room(described)
            known = await admission.known(described)
        if known is None:
            if partition.instances is not None:
                partition.instances.check(described)
            handle = RunHandle[Any](self, described, True)
            if partition.state.performing:
                with partition.state.together() as group:
                    admission.admit(described)
                    partition.state.applied(Write.SUBMIT, handle, described)
            else:
                group = admission.admit(described)
            await group.wait()
            return handle
        if known.group is not None:
            await known.group.wait()
        return RunHandle(self, known.submission, False)

    def run(self, run_id: str) -> RunHandle[Any]:
        """Return the handle of a run, whichever process submitted it.

        This reads nothing. The calls of the handle raise `UnknownRun` if no run has this id.
        `result()` returns the result as the workflow of the run declares it, in the version of the
        run."""
        return RunHandle(self, check_run_id(run_id), False)

    async def find_submission(self, run_id: str) -> Submission:
        """Return what was submitted under a run id. Raises `UnknownRun`."""
        number = await self._number(run_id)
        live = self._partition.runs.live(number)
        if live is not None:
            return live.submission
        try:
            found = await self._ledger.submission(number)
        except DAMAGE:
            found = stand_in(number, await trace(self._ledger, number), b"")
        if found is None:
            raise UnknownRun(f"the run {run_id!r} was forgotten", run_id=run_id)
        return found

    async def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        """Return the status of a run, also after its end, or None if the run is unknown.

        With `result=False` the status leaves out the result, and needs neither the classes nor the
        `transform` with which the result was stored."""
        number = await self._ledger.find(run_id)
        return None if number is None else await self._status(number, result=result)

    async def status_of(self, about: Submission) -> RunStatus | None:
        """Return the status of a run, or None if it was forgotten."""
        return await self._status(about.number, result=True)

    async def _status(self, number: int, *, result: bool) -> RunStatus | None:
        partition = self._partition
        run = partition.runs.live(number)
        if run is not None and run.status.state.terminal:
            # An end that is only staged has not happened yet.
            await run.gate()
        return await self._statuses.status(number, result=result)

    def wait_for_end(self, submission: Submission) -> Awaitable[StatusRecord | None]:
        """Return an awaitable of the last status of a run: its end or its quarantine, or None if
        the run was forgotten. Await it at once."""
        partition = self._partition
        if not on_trio(partition.state.host.thread):
            raise wrong_caller("on Trio")
        if submission.at_hand and not partition.state.operator:
            return wait_for_end(partition.runs, submission.number)
        return self._find_end(submission)

    async def _find_end(self, about: Submission) -> StatusRecord | None:
        """Return what `wait_for_end` promises, for a run that may have ended or left memory."""
        partition, number = self._partition, about.number
        live = partition.runs.live(number)
        if live is None:
            try:
                status = await partition.state.ledger.current_status(number)
                if status is not None and status.state.terminal:
                    return status
                submission = await partition.state.ledger.submission(number)
            except DAMAGE as error:
                return StatusRecord.damaged(error)
            if submission is None:
                return None
            held = partition.supervisor.quarantined.get(submission.key)
            if held is not None and held.number == number:
                return held.status
            if status is not None and status.quarantine is not None:
                workflow = partition.state.registry.find(submission.workflow, submission.version)
                if partition.state.operator or is_kept(status.quarantine, workflow):
                    return status
            if partition.state.operator:
                raise RuntimeError(
                    f"the run {submission.run_id!r} has not ended, and the store is open for an "
                    "operator, so no run continues; open it with open_runtime to run it"
                )
        elif live.status.quarantine is not None:
            await live.gate()
            if live.status.quarantine is not None:
                return live.status
        return await wait_for_end(partition.runs, number)

    async def cancel(self, run_id: str) -> bool:
        """Request the cancellation of a run.

        Return True while the run has not ended. Return False if the run has ended, is unknown, or
        has failed and only its compensations run. If no step is running, the run has ended when
        this returns, unless compensations have to run first."""
        return await self._control.cancel(run_id)

    async def pause(self, run_id: str) -> bool:
        """Let the running step finish, then hold the run until `rt.resume`. Return whether this
        changed anything."""
        return await self._control.pause(run_id, True)

    async def resume(self, run_id: str) -> bool:
        """Resume a paused run, and return whether this changed anything."""
        return await self._control.pause(run_id, False)

    async def pause_key(self, key: str) -> None:
        """Let the running step of a key finish, then hold all runs of the key until
        `rt.resume_key`."""
        await self._control.pause_key(check_key(key), True)

    async def resume_key(self, key: str) -> None:
        """Resume the runs of a paused key."""
        await self._control.pause_key(check_key(key), False)

    async def pause_all(self) -> None:
        """Let the running steps finish, then hold all runs until `rt.resume_all`."""
        await self._control.pause_key("", True)

    async def resume_all(self) -> None:
        """Resume all runs, except runs and keys that were paused themselves."""
        await self._control.pause_key("", False)

    async def redrive(self, run_id: str) -> int:
        """Run a failed or quarantined run again, and return its new generation.

        The run resumes at the step that failed, with the code that is registered now. Raises
        `UnknownRun`, or `RunEnded` if the state of the run does not allow a redrive."""
        return await self._partition.redrive.redrive(run_id)

    async def forget(self, run_id: str) -> None:
        """Remove all records of a run that has ended or is quarantined.

        Raises `UnknownRun`, or `RunEnded` if the state of the run does not allow it."""
        await self._partition.redrive.forget(run_id)

    async def release_key(self, key: str) -> bool:
        """Lift the quarantine of a key, or redrive the quarantined run at the head of its queue.
        Return whether there was a quarantine."""
        return await self._partition.redrive.release(check_key(key))

    async def discard_outcomes(self) -> int:
        """Drop the outcomes that wait for `on_terminal`, and return their number.

        If the runtime has no hook, the store also stops collecting outcomes until a runtime with a
        hook opens it."""
        partition = self._partition
        partition.state.check_caller()
        return await partition.outbox.discard(collecting=partition.delivery is not None)

    async def signal(
        self,
        run_id: str,
        name: str,
        payload: Any = None,
        *,
        replace: bool = False,
        signal_id: str | None = None,
    ) -> Delivery:
        """Send a run a signal that it receives with `ctx.wait_signal(name)`, now or later.

        Return when the signal is durable: `Delivery.DELIVERED` if the run waited for it, otherwise
        `Delivery.BUFFERED`. A run receives signals of one name in the order in which they were
        sent. With `replace=True` this signal replaces the signals of the same name that the run has
        not received yet. A repeat with the same `signal_id` changes nothing, also after the run
        has received the signal and ended. Raises `UnknownRun` or `RunEnded`."""
        check_signal(name, signal_id)
        encoded = self._partition.state.codec.encode(payload)
        return await self._partition.signals.send(
            run_id, name, encoded, replace=replace, signal_id=signal_id
        )

    @overload
    async def submit_or_signal(
        self,
        workflow: Workflow[None, T],
        input: None = None,
        **options: "Unpack[SubmitOrSignalOptions]",
    ) -> RunHandle[T]: ...
    @overload
    async def submit_or_signal(
        self,
        workflow: Workflow[I, T],
        input: I,
        **options: "Unpack[SubmitOrSignalOptions]",
    ) -> RunHandle[T]: ...
    async def submit_or_signal(
        self,
        workflow: Workflow[I, T],
        input: I | None = None,  # noqa: A002
        *,
        key: str,
        run_id: str,
        name: str,
        payload: Any = None,
        signal_id: str | None = None,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
    ) -> RunHandle[T]:
        """Send the signal `name` to a run, and start the run if no run has this id.

        A new run and its first signal are one commit. `newly_submitted` of the handle says whether
        the run is new. Return when the signal is durable. If the run exists, Keyrun ignores `input`
        and the options after `signal_id`. Raises `InputMismatch` if the run has another key or
        workflow, and `RunEnded` if it has ended. A new run waits under backpressure, as in
        `rt.submit`."""
        check_signal(name, signal_id)
        check_run_id(run_id)
        partition = self._partition
        admission, encoded = partition.admission, partition.state.codec.encode(payload)
        described = admission.describe(
            workflow, input, key, run_id, headers, tags, priority, limits, 0
        )
        described.origin = BY_SIGNAL
        if not partition.state.recovered:
            await partition.state.counted.wait()
        while True:
            # Nothing may be awaited between this and the admission that yields to another submit.
            known = await admission.known(described, any_input=True)
            if known is None and partition.backlog.full(key):
                await partition.backlog.wait_for_room(described)
            elif known is None:
                with partition.state.together() as group:
                    admission.admit(described)
                    partition.signals.begin_with(group, described, name, encoded, signal_id)
                    handle = RunHandle[Any](self, described, True)
                    partition.state.applied(Write.SUBMIT_OR_SIGNAL, handle, described)
                await group.wait()
                return handle
            else:
                if known.group is not None:
                    await known.group.wait()
                about = known.submission
                handle = RunHandle(self, about, False)
                try:
                    await partition.signals.send(
                        run_id,
                        name,
                        encoded,
                        signal_id=signal_id,
                        only_to=about.number,
                        handle=handle,
                    )
                except UnknownRun:
                    # The run was forgotten in between: start it, or signal its successor.
                    continue
                return handle

    async def approve(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Approve a run that waits at `ctx.approval(gate)`.

        `by` says who decides. The history keeps `by`, `comment` and the time. Raises
        `GateNotWaiting` if the run does not wait at this gate."""
        await self._decide(run_id, gate, True, by, comment)

    async def reject(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Reject a run that waits at `ctx.approval(gate)`, which then raises `ApprovalRejected`.

        Raises `GateNotWaiting` if the run does not wait at this gate."""
        await self._decide(run_id, gate, False, by, comment)

    async def _decide(self, run_id: str, gate: str, approved: bool, by: str, comment: str) -> None:
        """Check a decision at a gate and send it."""
        if not isinstance(gate, str) or not gate:
            raise ValueError(f"gate must be a non-empty string, got {gate!r}")
        if not isinstance(by, str) or not by:
            raise ValueError(f"by must say who decides, got {by!r}")
        if not isinstance(comment, str):
            raise TypeError(f"comment must be a string, got {comment!r}")
        for what, text in (("gate", gate), ("by", by), ("comment", comment)):
            check_text(text, what)
        await self._partition.signals.decide(run_id, gate, [approved, by, comment])

    @overload
    async def call(
        self,
        entity: type[E],
        key: str,
        method: Callable[Concatenate[E, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    async def call(
        self,
        entity: type,
        key: str,
        method: str,
        /,
        *args: Any,
        request_id: str | None = None,
        timeout: float | None = None,
        **kwargs: Any,
    ) -> Any: ...
    async def call(  # type: ignore[misc]  # P may have a timeout, too
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
        """Call a method of the entity under a key, and return its answer when the changes of the
        method are durable. The call takes its turn in the queue of the key.

        - `method`: the method, as in `await rt.call(Account, "alice", Account.deposit, 10)`, or its
          name. With the method, type checkers know the arguments and the answer.
        - If the method raises, `call` raises the same exception and nothing is changed.
        - With a `request_id`, Keyrun keeps the answer for as long as it keeps ended runs. A repeat
          of the call returns the answer without running the method. Keyrun keeps an error, too,
          except `TransientError` and `CallTimeout`, and raises it as `CallFailed`.
        - `timeout` limits the method, not the wait before it. It comes before the `step_timeout`
          of the entity.
        - If the caller is cancelled, a call that has not begun is withdrawn, and a call that has
          begun is finished.
        """
        definition, limit = self._partition.dispatcher.known(entity)
        if timeout is not None:
            checks.positive("timeout", timeout)
        return await self._partition.dispatcher.call(
            definition,
            check_key(key),
            definition.method(method),
            limit if timeout is None else timeout,
            request_id,
            *args,
            **kwargs,
        )

    def entity(
        self,
        entity: type[E],
        key: str,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> E:
        """Return a proxy of the entity under a key.

        `await rt.entity(Account, "alice").deposit(10)` calls a method like `rt.call`. For
        type checkers, a proxy with methods to await is an instance of the class. They know nothing
        of the methods of a proxy that blocks: use `rt.call` there. A `request_id` is for one call:
        get a new proxy for the next call."""
        dispatcher = self._partition.dispatcher
        definition, limit = dispatcher.known(entity)
        if timeout is not None:
            checks.positive("timeout", timeout)
            limit = timeout
        proxy = EntityProxy(dispatcher.call, definition, check_key(key), limit, request_id)
        return cast(E, proxy)

    async def submit_group(
        self, group_id: str, members: "Iterable[Member[Any, T]]"
    ) -> "GroupHandle[T]":
        """Start many runs as one group, and return the handle of the group when they are durable.

        Keyrun accepts up to 1,000 members in one commit, completely or not at all, and more members
        in parts of that size. A repeat with the same members, in any order, is the same group: it
        accepts the members that are missing, and redrives members that failed, were cancelled or
        are quarantined. Other members under the same id raise `InputMismatch`.
        """
        checks.several("members", members)
        return await self._partition.groups.submit(group_id, list(members))

    async def group(self, group_id: str) -> "GroupHandle[Any] | None":
        """Return the handle of a group, or None if the group is unknown or was forgotten."""
        return await self._partition.groups.find(check_text(group_id, "group_id"))

    @overload
    async def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[None, Any],
        input: None = None,
        **options: "Unpack[ScheduleOptions]",
    ) -> "ScheduleStatus": ...
    @overload
    async def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[I, Any],
        input: I,
        **options: "Unpack[ScheduleOptions]",
    ) -> "ScheduleStatus": ...
    async def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[I, Any],
        input: I | None = None,  # noqa: A002
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
        """Start runs of a workflow at the times of `when`, and return the status of the schedule.

        - `when`: `Once(...)`, `Every(...)` or `Cron(...)`.
        - `misfire`: Times that pass together, because no runtime was open, the clock jumped or the
          process was slow, start one run for the latest of them. With `"skip"`, times that passed
          while no runtime was open, or that the clock jumped over, start no run.
        - `overlap`: By default a firing is skipped while the run of the last firing has not ended.
          With `overlap=True` it starts a run.
        - `paused`: Create the schedule without firing it. It applies only to a new schedule.
        - The other arguments are those of `rt.submit`.

        A repeat with the same arguments changes nothing. Other arguments under the same id replace
        the schedule: its counters, its last run and whether it is paused stay, and so does the
        next firing unless `when` differs.
        """
        from keyrun.runtime.schedules.declared import Schedule

        declared: Schedule[Any] = Schedule(
            schedule_id,
            workflow,
            input,
            key=key,
            when=when,
            misfire=misfire,
            overlap=overlap,
            paused=paused,
            headers=headers,
            tags=tags,
            priority=priority,
            limits=limits,
        )
        return await self._partition.schedules.put(declared)

    async def pause_schedule(self, schedule_id: str) -> bool:
        """Stop the firings of a schedule until it is resumed, and return whether this changed
        anything. Runs that the schedule has started continue."""
        check_text(schedule_id, "schedule_id")
        return await self._partition.schedules.pause(schedule_id, True)

    async def resume_schedule(self, schedule_id: str) -> bool:
        """Resume a paused schedule, and return whether this changed anything.

        Firings of the time in between are dropped. The exception is a schedule with `Once`: if its
        time has passed, `misfire` decides."""
        check_text(schedule_id, "schedule_id")
        return await self._partition.schedules.pause(schedule_id, False)

    async def delete_schedule(self, schedule_id: str) -> bool:
        """Remove a schedule, and return whether it existed. Its runs stay."""
        check_text(schedule_id, "schedule_id")
        return await self._partition.schedules.delete(schedule_id)

    def events(
        self,
        *,
        run_id: str | None = None,
        kinds: Iterable[str] | None = None,
        buffer: int = 1024,
    ) -> Events:
        """Subscribe to events, of all runs or of `run_id`, of all kinds or of `kinds`:

            async with rt.events() as events:
                async for event in events:
                    print(event)

        The subscription starts when the block is entered. Each event arrives after the commit that
        makes it true, in the order of the commits. A slow subscriber never slows the runtime down:
        while `buffer` events wait to be read, further events are dropped and counted in
        `events.dropped`."""
        partition = self._partition
        return Events(
            partition.state.host.subscribers,
            partition.state.wall,
            run_id=None if run_id is None else check_run_id(run_id),
            kinds=check_kinds(kinds),
            buffer=buffer,
            check_open=partition.state.check_caller,
        )

    def watch(self, run_id: str, *, interval: float = 0.2) -> "Watch":
        """Return an async iterator of the progress of a run:

            async for progress in rt.watch("order-7"):
                print(progress.percent)

        The iterator yields at once, then after each change, at most every `interval` seconds, and
        stops after the end of the run. A slow reader gets only the latest progress."""
        from keyrun.runtime.inspect.watch import Changes, Watch

        partition = self._partition
        changes = Changes(check_run_id(run_id), partition.state.host.subscribers, partition.runs)
        partition.state.check_open()
        return Watch(run_id, self._ledger.find, self._inspector.look, interval, changes)

    @cached_property
    def _explainer(self) -> "Explainer":
        from keyrun.runtime.inspect.explain import Explainer, Inside

        partition = self._partition
        if partition.state.operator:
            return Explainer(self._statuses, None)
        inside = Inside(
            partition.state,
            partition.runs,
            partition.queues,
            partition.instances,
            partition.dispatcher.running,
        )
        return Explainer(self._statuses, inside)

    def statistics(self) -> "RuntimeStatistics":
        """Return a frozen snapshot of queue depths, slots, commits and other counters."""
        from keyrun.runtime.inspect.statistics import RuntimeStatistics

        partition = self._partition
        host, slots = partition.state.host, partition.state.slots
        return RuntimeStatistics(
            live=len(partition.runs.all_live()),
            keys=len(partition.queues),
            quarantined_keys=len(partition.supervisor.quarantined),
            running_steps=slots.total - slots.free,
            waiting_for_slot=slots.waiting,
            loop=host.loop_statistics(),
            backlog=partition.backlog.statistics(),
            commits=partition.state.store.statistics(),
            circuits=host.gates.circuits(),
            gates=host.gates.statuses(),
            waiting_outcomes=partition.outbox.waiting,
        )

    async def policies(self) -> "PolicyStatus":
        """Return the slots, and the policies of the steps that were called since the open: their
        circuit breakers, limits and resources, with the calls that run and wait."""
        from keyrun.runtime.inspect.policies import policies

        state = self._partition.state
        state.check_caller()
        return policies(state.host, state.wall)

    def _queues(self) -> dict[str, int]:
        """Return the number of waiting calls by step."""
        return {each.step: each.waiting for each in self._partition.state.host.gates.statuses()}


def check_signal(name: str, signal_id: str | None) -> None:
    """Raise unless a signal may have this name and id."""
    check_channel(name)
    if signal_id is not None:
        check_channel(signal_id, "signal_id")
