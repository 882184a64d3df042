"""The sync face of the runtime. `keyrun.hosting.generate` writes this file."""

# mypy: disable-error-code="misc"
from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    TypeVar,
    Unpack,
    overload,
)

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.faces.sync_bridge import SyncBridge
from keyrun.runtime.faces.sync_iterators import EntityProxy, Events, Outcomes, Watch
from keyrun.runtime.groups.handle import GroupHandle as TrioGroupHandle
from keyrun.runtime.groups.records import GroupStatus, MemberOutcome
from keyrun.runtime.handle import RunHandle as TrioRunHandle
from keyrun.runtime.limits import Limits
from keyrun.runtime.values import Priority, RunStatus, State
from keyrun.runtime.waiting.signals import Delivery

if TYPE_CHECKING:
    from keyrun.runtime.graphs.view import ExecutionGraph
    from keyrun.runtime.groups.records import Member
    from keyrun.runtime.inspect.approvals import ApprovalPage
    from keyrun.runtime.inspect.audit import AuditPage
    from keyrun.runtime.inspect.catalogs import GroupPage, SchedulePage
    from keyrun.runtime.inspect.counts import StoreCounts
    from keyrun.runtime.inspect.explain import Explanation
    from keyrun.runtime.inspect.family import Family
    from keyrun.runtime.inspect.history import History, HistoryPage
    from keyrun.runtime.inspect.key_view import KeyView
    from keyrun.runtime.inspect.keys import EntityStatus, KeyPage, KeyStatus
    from keyrun.runtime.inspect.pages import RunPage
    from keyrun.runtime.inspect.policies import PolicyStatus
    from keyrun.runtime.inspect.progress import Progress
    from keyrun.runtime.inspect.statistics import RuntimeStatistics
    from keyrun.runtime.inspect.workflows import WorkflowInfo
    from keyrun.runtime.queue.outbox import OutboxStatus
    from keyrun.runtime.queue.run_options import SubmitOptions, SubmitOrSignalOptions
    from keyrun.runtime.schedules.options import ScheduleOptions
    from keyrun.runtime.schedules.records import Misfire, ScheduleStatus
    from keyrun.runtime.schedules.timetable import Timetable

E = TypeVar("E")
I = TypeVar("I")  # noqa: E741 (the input)

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


class RunHandle(Generic[T]):
    """Refer to one run. `rt.submit` returns the handle of the run that it submitted, and
    `rt.run(run_id)` the handle of any run in the store."""

    __slots__ = ("_bridge", "_inner")

    def __init__(self, bridge: SyncBridge, inner: TrioRunHandle[T]) -> None:
        self._bridge = bridge
        self._inner = inner

    @property
    def newly_submitted(self) -> bool:
        """False if the run existed before the submit."""
        return self._inner.newly_submitted

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def run_id(self) -> str:
        """Return the id of the run, given or generated."""
        return self._inner.run_id

    @property
    def key(self) -> str:
        """Return the ordering key of the run.

        `rt.run(run_id)` does not read the store, so it does not know the key. The key of such a
        handle is known after the first call of the handle, for example `run.status()`."""
        return self._inner.key

    def result(self, *, timeout: float | None = None) -> T:
        """Wait for the end of the run, and return the value that the workflow returned.

        Raises `RunFailed` or `RunCancelled` if the run ended so, `RunQuarantined` if the run waits
        for an operator, `UnknownRun` if there is no such run or it was forgotten, and `StoreClosed`
        if the runtime closes before the run ends.

        With a `timeout`, raises `ResultTimeout`, which is a `TimeoutError`, if the run has not
        ended after that number of seconds. The run continues. With `timeout=0` the call does not
        wait."""
        submission = self._inner._submission
        if timeout is not None or submission is None:
            return self._bridge.call(self._inner.result, timeout=timeout)
        return self._inner._value_of(submission, self._bridge.wait_for_end(submission))

    def status(self) -> RunStatus:
        """Return the status of the run. Raises `UnknownRun` if there is no such run or it was
        forgotten."""
        return self._bridge.call(self._inner.status)

    def cancel(self) -> bool:
        """Request the cancellation of the run; see `rt.cancel`."""
        return self._bridge.call(self._inner.cancel)


class GroupHandle(Generic[T]):
    """Refer to one group. `rt.submit_group` and `rt.group` return a handle.

    `for outcome in group` yields a `MemberOutcome` for each member that has ended, then for
    the other members as they end."""

    __slots__ = ("_bridge", "_inner")

    def __init__(self, bridge: SyncBridge, inner: TrioGroupHandle[T]) -> None:
        self._bridge = bridge
        self._inner = inner

    @property
    def group_id(self) -> str:
        """The id of the group."""
        return self._inner.group_id

    @property
    def newly_submitted(self) -> bool:
        """False if the group existed before the submit."""
        return self._inner.newly_submitted

    def __repr__(self) -> str:
        return repr(self._inner)

    def status(self) -> GroupStatus:
        """Return the number of members in each state."""
        return self._bridge.call(self._inner.status)

    def results(self) -> dict[str, MemberOutcome[T]]:
        """Wait until all members have ended, and return their outcomes by member id, in the order
        of the group."""
        return self._bridge.call(self._inner.results)

    def __iter__(self) -> Iterator[MemberOutcome[T]]:
        return Outcomes(self._bridge, aiter(self._inner))

    def cancel(self) -> int:
        """Cancel all members that have not ended, and return their number."""
        return self._bridge.call(self._inner.cancel)


class Runtime:
    """Submit runs, and observe, signal, pause and cancel them. `open_runtime` returns a runtime.
    The methods that it has from `Reader` only read."""

    __slots__ = ("_bridge", "_inner")

    def __init__(self, bridge: SyncBridge) -> None:
        self._bridge = bridge
        self._inner = bridge.runtime

    @overload
    def submit(
        self, workflow: Workflow[None, T], input: None = None, **options: Unpack[SubmitOptions]
    ) -> RunHandle[T]: ...
    @overload
    def submit(
        self, workflow: Workflow[I, T], input: I, **options: Unpack[SubmitOptions]
    ) -> RunHandle[T]: ...
    def submit(
        self,
        workflow: Workflow[I, T],
        input: I | None = None,
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
        submission = self._inner._describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        return RunHandle(self._bridge, self._bridge.submit(submission, wait=True))

    @overload
    def submit_nowait(
        self, workflow: Workflow[None, T], input: None = None, **options: Unpack[SubmitOptions]
    ) -> RunHandle[T]: ...
    @overload
    def submit_nowait(
        self, workflow: Workflow[I, T], input: I, **options: Unpack[SubmitOptions]
    ) -> RunHandle[T]: ...
    def submit_nowait(
        self,
        workflow: Workflow[I, T],
        input: I | None = None,
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
        submission = self._inner._describe(
            workflow, input, key, run_id, headers, tags, priority, limits, delay
        )
        return RunHandle(self._bridge, self._bridge.submit(submission, wait=False))

    def run(self, run_id: str) -> RunHandle[Any]:
        """Return the handle of a run, whichever process submitted it.

        This reads nothing. The calls of the handle raise `UnknownRun` if no run has this id.
        `result()` returns the result as the workflow of the run declares it, in the version of the
        run."""
        return RunHandle(self._bridge, self._inner.run(run_id))

    def status(self, run_id: str, *, result: bool = True) -> RunStatus | None:
        """Return the status of a run, also after its end, or None if the run is unknown.

        With `result=False` the status leaves out the result, and needs neither the classes nor the
        `transform` with which the result was stored."""
        return self._bridge.call(self._inner.status, run_id, result=result)

    def cancel(self, run_id: str) -> bool:
        """Request the cancellation of a run.

        Return True while the run has not ended. Return False if the run has ended, is unknown, or
        has failed and only its compensations run. If no step is running, the run has ended when
        this returns, unless compensations have to run first."""
        return self._bridge.call(self._inner.cancel, run_id)

    def pause(self, run_id: str) -> bool:
        """Let the running step finish, then hold the run until `rt.resume`. Return whether this
        changed anything."""
        return self._bridge.call(self._inner.pause, run_id)

    def resume(self, run_id: str) -> bool:
        """Resume a paused run, and return whether this changed anything."""
        return self._bridge.call(self._inner.resume, run_id)

    def pause_key(self, key: str) -> None:
        """Let the running step of a key finish, then hold all runs of the key until
        `rt.resume_key`."""
        self._bridge.call(self._inner.pause_key, key)

    def resume_key(self, key: str) -> None:
        """Resume the runs of a paused key."""
        self._bridge.call(self._inner.resume_key, key)

    def pause_all(self) -> None:
        """Let the running steps finish, then hold all runs until `rt.resume_all`."""
        self._bridge.call(self._inner.pause_all)

    def resume_all(self) -> None:
        """Resume all runs, except runs and keys that were paused themselves."""
        self._bridge.call(self._inner.resume_all)

    def redrive(self, run_id: str) -> int:
        """Run a failed or quarantined run again, and return its new generation.

        The run resumes at the step that failed, with the code that is registered now. Raises
        `UnknownRun`, or `RunEnded` if the state of the run does not allow a redrive."""
        return self._bridge.call(self._inner.redrive, run_id)

    def forget(self, run_id: str) -> None:
        """Remove all records of a run that has ended or is quarantined.

        Raises `UnknownRun`, or `RunEnded` if the state of the run does not allow it."""
        self._bridge.call(self._inner.forget, run_id)

    def release_key(self, key: str) -> bool:
        """Lift the quarantine of a key, or redrive the quarantined run at the head of its queue.
        Return whether there was a quarantine."""
        return self._bridge.call(self._inner.release_key, key)

    def discard_outcomes(self) -> int:
        """Drop the outcomes that wait for `on_terminal`, and return their number.

        If the runtime has no hook, the store also stops collecting outcomes until a runtime with a
        hook opens it."""
        return self._bridge.call(self._inner.discard_outcomes)

    def signal(
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
        return self._bridge.call(
            self._inner.signal, run_id, name, payload, replace=replace, signal_id=signal_id
        )

    @overload
    def submit_or_signal(
        self,
        workflow: Workflow[None, T],
        input: None = None,
        **options: Unpack[SubmitOrSignalOptions],
    ) -> RunHandle[T]: ...
    @overload
    def submit_or_signal(
        self, workflow: Workflow[I, T], input: I, **options: Unpack[SubmitOrSignalOptions]
    ) -> RunHandle[T]: ...
    def submit_or_signal(
        self,
        workflow: Workflow[I, T],
        input: I | None = None,
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
        return RunHandle(
            self._bridge,
            self._bridge.call(
                self._inner.submit_or_signal,
                workflow,
                input,
                key=key,
                run_id=run_id,
                name=name,
                payload=payload,
                signal_id=signal_id,
                headers=headers,
                tags=tags,
                priority=priority,
                limits=limits,
            ),
        )

    def approve(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Approve a run that waits at `ctx.approval(gate)`.

        `by` says who decides. The history keeps `by`, `comment` and the time. Raises
        `GateNotWaiting` if the run does not wait at this gate."""
        self._bridge.call(self._inner.approve, run_id, gate, by=by, comment=comment)

    def reject(self, run_id: str, gate: str, *, by: str, comment: str = "") -> None:
        """Reject a run that waits at `ctx.approval(gate)`, which then raises `ApprovalRejected`.

        Raises `GateNotWaiting` if the run does not wait at this gate."""
        self._bridge.call(self._inner.reject, run_id, gate, by=by, comment=comment)

    @overload
    def call(
        self,
        entity: type[E],
        key: str,
        method: Callable[Concatenate[E, P], Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> R: ...
    @overload
    def call(
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
    def call(
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

        - `method`: the method, as in `rt.call(Account, "alice", Account.deposit, 10)`, or its
          name. With the method, type checkers know the arguments and the answer.
        - If the method raises, `call` raises the same exception and nothing is changed.
        - With a `request_id`, Keyrun keeps the answer for as long as it keeps ended runs. A repeat
          of the call returns the answer without running the method. Keyrun keeps an error, too,
          except `TransientError` and `CallTimeout`, and raises it as `CallFailed`.
        - `timeout` limits the method, not the wait before it. It comes before the `step_timeout`
          of the entity.
        - If the caller is cancelled, a call that has not begun is withdrawn, and a call that has
          begun is finished."""
        return self._bridge.call(
            self._inner.call,
            entity,
            key,
            method,
            *args,
            request_id=request_id,
            timeout=timeout,
            **kwargs,
        )

    def entity(
        self,
        entity: type[E],
        key: str,
        *,
        request_id: str | None = None,
        timeout: float | None = None,
    ) -> EntityProxy:
        """Return a proxy of the entity under a key.

        `rt.entity(Account, "alice").deposit(10)` calls a method like `rt.call`. For
        type checkers, a proxy with methods to is an instance of the class. They know nothing
        of the methods of a proxy that blocks: use `rt.call` there. A `request_id` is for one call:
        get a new proxy for the next call."""
        proxy = self._inner.entity(entity, key, request_id=request_id, timeout=timeout)
        return EntityProxy(self._bridge, proxy)

    def submit_group(self, group_id: str, members: Iterable[Member[Any, T]]) -> GroupHandle[T]:
        """Start many runs as one group, and return the handle of the group when they are durable.

        Keyrun accepts up to 1,000 members in one commit, completely or not at all, and more members
        in parts of that size. A repeat with the same members, in any order, is the same group: it
        accepts the members that are missing, and redrives members that failed, were cancelled or
        are quarantined. Other members under the same id raise `InputMismatch`."""
        return GroupHandle(
            self._bridge, self._bridge.call(self._inner.submit_group, group_id, members)
        )

    def group(self, group_id: str) -> GroupHandle[Any] | None:
        """Return the handle of a group, or None if the group is unknown or was forgotten."""
        found = self._bridge.call(self._inner.group, group_id)
        return None if found is None else GroupHandle(self._bridge, found)

    @overload
    def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[None, Any],
        input: None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleStatus: ...
    @overload
    def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[I, Any],
        input: I,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleStatus: ...
    def schedule(
        self,
        schedule_id: str,
        workflow: Workflow[I, Any],
        input: I | None = None,
        *,
        key: str,
        when: Timetable,
        misfire: Misfire = "fire_once",
        overlap: bool = False,
        paused: bool = False,
        headers: Mapping[str, str] | None = None,
        tags: Iterable[str] = (),
        priority: Priority = Priority.NORMAL,
        limits: Limits | None = None,
    ) -> ScheduleStatus:
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
        next firing unless `when` differs."""
        return self._bridge.call(
            self._inner.schedule,
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

    def pause_schedule(self, schedule_id: str) -> bool:
        """Stop the firings of a schedule until it is resumed, and return whether this changed
        anything. Runs that the schedule has started continue."""
        return self._bridge.call(self._inner.pause_schedule, schedule_id)

    def resume_schedule(self, schedule_id: str) -> bool:
        """Resume a paused schedule, and return whether this changed anything.

        Firings of the time in between are dropped. The exception is a schedule with `Once`: if its
        time has passed, `misfire` decides."""
        return self._bridge.call(self._inner.resume_schedule, schedule_id)

    def delete_schedule(self, schedule_id: str) -> bool:
        """Remove a schedule, and return whether it existed. Its runs stay."""
        return self._bridge.call(self._inner.delete_schedule, schedule_id)

    def events(
        self, *, run_id: str | None = None, kinds: Iterable[str] | None = None, buffer: int = 1024
    ) -> Events:
        """Subscribe to events, of all runs or of `run_id`, of all kinds or of `kinds`:

            with rt.events() as events:
                for event in events:
                    print(event)

        The subscription starts when the block is entered. Each event arrives after the commit that
        makes it true, in the order of the commits. A slow subscriber never slows the runtime down:
        while `buffer` events wait to be read, further events are dropped and counted in
        `events.dropped`."""
        return Events(self._bridge, self._inner.events(run_id=run_id, kinds=kinds, buffer=buffer))

    def watch(self, run_id: str, *, interval: float = 0.2) -> Watch:
        """Return an iterator of the progress of a run:

            for progress in rt.watch("order-7"):
                print(progress.percent)

        The iterator yields at once, then after each change, at most every `interval` seconds, and
        stops after the end of the run. A slow reader gets only the latest progress."""
        return Watch(self._bridge, self._inner.watch(run_id, interval=interval))

    def statistics(self) -> RuntimeStatistics:
        """Return a frozen snapshot of queue depths, slots, commits and other counters."""
        return self._bridge.now(self._inner.statistics)

    def policies(self) -> PolicyStatus:
        """Return the slots, and the policies of the steps that were called since the open: their
        circuit breakers, limits and resources, with the calls that run and wait."""
        return self._bridge.call(self._inner.policies)

    def history(self, run_id: str) -> History:
        """Return everything that happened to a run, with times. The history is empty if the run is
        unknown. You can save it to a file, and replay it against changed code with
        `keyrun.testing.replay`."""
        return self._bridge.call(self._inner.history, run_id)

    def history_page(
        self, run_id: str, *, limit: int = 1000, cursor: str | None = None
    ) -> HistoryPage:
        """Return one page of the history of a run, and read a bounded number of records for it. The
        page is empty if the run is unknown.

        - `limit`: the number of journal entries in a page.
        - `cursor`: the cursor of the page before."""
        return self._bridge.call(self._inner.history_page, run_id, limit=limit, cursor=cursor)

    def input(self, run_id: str) -> Any:
        """Return the input of a run, as plain data: a class is a dict of its fields. Raises
        `UnknownRun`, and `PayloadError` if a `transform` of the reader is needed to decode it.
        """
        return self._bridge.call(self._inner.input, run_id)

    def value(self, stored: bytes) -> Any:
        """Return what an event of a history carries (`happening.stored`) as plain data. Raises
        `PayloadError` if a `transform` of the reader is needed to decode it."""
        return self._inner.value(stored)

    def progress(self, run_id: str) -> Progress | None:
        """Return the progress of a run as of the last commit, or None if the run is unknown."""
        return self._bridge.call(self._inner.progress, run_id)

    def explain(self, run_id: str) -> Explanation | None:
        """Explain why a run does not move: one cause, and one sentence that names everything that
        the run waits for. Return None if the run is unknown.

        A runtime knows more than a reader: for a reader, a run that waits for a slot or a policy
        is running."""
        return self._bridge.call(self._inner.explain, run_id)

    def explain_key(self, key: str) -> Explanation:
        """Explain why the run at the head of the queue of a key does not move."""
        return self._bridge.call(self._inner.explain_key, key)

    def execution_graph(self, run_id: str) -> ExecutionGraph | None:
        """Return the nodes and edges of a run with their states, as of the last commit. None if the
        run is unknown or not a run of a graph."""
        return self._bridge.call(self._inner.execution_graph, run_id)

    def runs(
        self,
        *,
        state: State | Collection[State] | None = None,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        origin: str | None = None,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """List runs in the order in which they were submitted.

        Each argument that is given leaves out the runs that do not match it:

        - `state`: list only runs in this state, or in one of several states.
        - `key`: list only runs with this ordering key.
        - `workflow`: list only runs of the workflow with this name.
        - `version`: list only runs of this version of their workflow.
        - `tag`: list only runs that have this tag.
        - `step`: list only runs that are at this step, or that failed there. `"charge"` also
          stands for `"g1.0/charge#2"`.
        - `error`: list only runs that failed with this type of exception, for example
          `"ValueError"` or `"stripe.CardError"`, or because of it.
        - `origin`: list only runs that this source started, for example `"schedule:nightly"`.
        - `group`: list only members of this group.
        - `since`: list only runs that were submitted at this time or later, in seconds since the
          epoch.
        - `until`: list only runs that were submitted before this time, in seconds since the epoch.
        - `limit`: the number of runs in one page.
        - `after`: the id of the last run of the page before.
        - `newest_first`: list in the opposite order."""
        return self._bridge.call(
            self._inner.runs,
            state=state,
            key=key,
            workflow=workflow,
            version=version,
            step=step,
            error=error,
            tag=tag,
            origin=origin,
            group=group,
            since=since,
            until=until,
            limit=limit,
            after=after,
            newest_first=newest_first,
        )

    def find_runs(
        self,
        *,
        state: State | Collection[State] | None = None,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        origin: str | None = None,
        group: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> RunPage:
        """Return one page of the runs that match, and read a bounded number of records for it.

        `runs` looks until it has found `limit` runs, however many records that takes. A page of
        `find_runs` reads less than 10,000 records. If it has found fewer runs than `limit` by then,
        its cursor leads on, and it says how far it has looked. A cursor stays valid if runs are
        forgotten. The other parameters are those of `rt.runs`."""
        return self._bridge.call(
            self._inner.find_runs,
            state=state,
            key=key,
            workflow=workflow,
            version=version,
            step=step,
            error=error,
            tag=tag,
            origin=origin,
            group=group,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
        )

    def keys(
        self,
        *,
        key: str | None = None,
        quarantined: bool | None = None,
        limit: int = 100,
        after: str | None = None,
    ) -> list[KeyStatus]:
        """List the keys that have unfinished runs.

        - `key`: list only this key.
        - `quarantined`: list only keys that are quarantined or whose first run is, with False only
          the others. If Keyrun's own code failed for a key, only the runtime of that process
          reports the quarantine.
        - `limit`: the number of keys in one page.
        - `after`: the last key of the page before."""
        return self._bridge.call(
            self._inner.keys, key=key, quarantined=quarantined, limit=limit, after=after
        )

    def key_view(
        self, key: str, *, limit: int = 100, cursor: str | None = None, max_value: int = 65536
    ) -> KeyView:
        """Return what a key does and why, the runs in its queue, its state and its entities.

        - `limit`: the number of runs in one page.
        - `cursor`: the cursor of the page before.
        - `max_value`: the size in bytes up to which stored values are shown."""
        return self._bridge.call(
            self._inner.key_view, key, limit=limit, cursor=cursor, max_value=max_value
        )

    def entities(self, key: str) -> list[EntityStatus]:
        """List the entities that have a state under a key, sorted by name."""
        return self._bridge.call(self._inner.entities, key)

    def find_keys(
        self,
        *,
        key: str | None = None,
        quarantined: bool | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> KeyPage:
        """Return one page of the keys that have unfinished runs, and read a bounded number of
        records for it. It counts at most 1,000 runs of a key. The parameters are those of
        `rt.keys`."""
        return self._bridge.call(
            self._inner.find_keys, key=key, quarantined=quarantined, limit=limit, cursor=cursor
        )

    def find_approvals(
        self,
        *,
        key: str | None = None,
        workflow: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
    ) -> ApprovalPage:
        """Return one page of the approval gates that wait for a decision, over all unfinished runs,
        and read a bounded number of records for it.

        - `key`: return only gates of runs with this ordering key.
        - `workflow`: return only gates of runs of the workflow with this name.
        - `limit`: the number of gates after which the page ends. The gates of one run are always
          in one page.
        - `cursor`: the cursor of the page before. The gates are in the order of the keys.
        """
        return self._bridge.call(
            self._inner.find_approvals, key=key, workflow=workflow, limit=limit, cursor=cursor
        )

    def family(self, run_id: str, *, limit: int = 100, cursor: str | None = None) -> Family | None:
        """Return what started a run, and the children that it has started. None if the run is
        unknown.

        - `limit`: the number of children in one page.
        - `cursor`: the cursor of the page before."""
        return self._bridge.call(self._inner.family, run_id, limit=limit, cursor=cursor)

    def dead_letters(
        self,
        *,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        after: str | None = None,
        newest_first: bool = False,
    ) -> list[RunStatus]:
        """List the dead letters, oldest first: failed runs that stay until they are redriven or
        forgotten. The parameters are those of `rt.runs`."""
        return self._bridge.call(
            self._inner.dead_letters,
            key=key,
            workflow=workflow,
            version=version,
            step=step,
            error=error,
            tag=tag,
            since=since,
            until=until,
            limit=limit,
            after=after,
            newest_first=newest_first,
        )

    def find_dead_letters(
        self,
        *,
        key: str | None = None,
        workflow: str | None = None,
        version: int | None = None,
        step: str | None = None,
        error: str | None = None,
        tag: str | None = None,
        since: float | None = None,
        until: float | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> RunPage:
        """Return one page of the dead letters that match, and read a bounded number of records for
        it, as `find_runs` does for runs."""
        return self._bridge.call(
            self._inner.find_dead_letters,
            key=key,
            workflow=workflow,
            version=version,
            step=step,
            error=error,
            tag=tag,
            since=since,
            until=until,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
        )

    def outbox(self) -> OutboxStatus:
        """Return the number of outcomes that wait for `on_terminal`, and whether the store collects
        further outcomes."""
        return self._bridge.call(self._inner.outbox)

    def group_status(self, group_id: str) -> GroupStatus | None:
        """Return the status of a group, or None if the group is unknown."""
        return self._bridge.call(self._inner.group_status, group_id)

    def find_groups(self, *, limit: int = 100, cursor: str | None = None) -> GroupPage:
        """Return one page of the groups, sorted by id, and read a bounded number of records for it.
        `group_status` returns how far a group is."""
        return self._bridge.call(self._inner.find_groups, limit=limit, cursor=cursor)

    def schedules(self, *, limit: int = 100, after: str | None = None) -> list[ScheduleStatus]:
        """List schedules, sorted by id. `after` is the last id of the page before."""
        return self._bridge.call(self._inner.schedules, limit=limit, after=after)

    def find_schedules(self, *, limit: int = 100, cursor: str | None = None) -> SchedulePage:
        """Return one page of the schedules, sorted by id, and read a bounded number of records for
        it."""
        return self._bridge.call(self._inner.find_schedules, limit=limit, cursor=cursor)

    def workflows(self) -> tuple[WorkflowInfo, ...]:
        """Return the registered workflows in all versions, sorted by name and version, with the
        JSON Schema of their inputs and results. A reader knows the workflows that `open_reader`
        received."""
        return self._bridge.call(self._inner.workflows)

    def audit(
        self,
        *,
        since: float | None = None,
        until: float | None = None,
        who: str | None = None,
        operation: str | None = None,
        run_id: str | None = None,
        key: str | None = None,
        limit: int = 100,
        cursor: str | None = None,
        newest_first: bool = False,
    ) -> AuditPage:
        """List the writes that came in from outside, such as through the control plane: who did
        what, when, and with which result.

        - `since`: list only writes at this time or later, in seconds since the epoch.
        - `until`: list only writes before this time, in seconds since the epoch.
        - `who`: list only writes of this caller.
        - `operation`: list only writes of this kind: the name of a method, for example `"cancel"`.
        - `run_id`: list only writes about this run.
        - `key`: list only writes about this ordering key.
        - `limit`: the number of entries in one page.
        - `cursor`: the cursor of the page before.
        - `newest_first`: list in the opposite order.

        One call reads at most 10,000 entries. If few of them match, the page has fewer than `limit`
        entries, and its cursor continues behind the last entry that was read."""
        return self._bridge.call(
            self._inner.audit,
            since=since,
            until=until,
            who=who,
            operation=operation,
            run_id=run_id,
            key=key,
            limit=limit,
            cursor=cursor,
            newest_first=newest_first,
        )

    def counts(self) -> StoreCounts:
        """Return the number of unfinished runs by workflow, version and fingerprint of their code,
        and the number of runs that got False from `ctx.patched`, by name. The store keeps these
        counts, so this reads few records."""
        return self._bridge.call(self._inner.counts)

    def unfinished(self) -> dict[tuple[str, int], int]:
        """Return the number of unfinished runs, by workflow and version, from the counts that
        `counts` returns. Nothing is scanned."""
        return self._bridge.call(self._inner.unfinished)

    @property
    def unreadable(self) -> int:
        """Return the number of damaged records that the listings of this reader left out."""
        return self._inner.unreadable
