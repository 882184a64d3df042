"""The operations that are not simply a method of `Runtime`: they name workflows and entities, take
payloads, or wait.

The first paragraph of a docstring is the help. Lines such as "- `key`: ..." describe arguments.
"""

from collections.abc import AsyncIterable, AsyncIterator
from contextlib import closing
from functools import lru_cache
from inspect import signature
from typing import Any, Literal, TypeVar

import trio

from keyrun.control.event_ring import Sample
from keyrun.control.overview import Overview
from keyrun.control.owner import Delegate, PlainRuntime
from keyrun.control.problems import problem
from keyrun.control.requests import (
    DeadLetterErrors,
    HistoryEntries,
    HistoryEntry,
    MemberEnd,
    NewMember,
    NewRun,
    NotSubmitted,
    RecentEvents,
    RunEnd,
    Session,
    Submitted,
    SubmittedGroup,
    When,
    WholeHistory,
)
from keyrun.control.shapes import CODEC, NOTHING, UNSTORABLE, Misplaced, Payload
from keyrun.runtime.definitions.annotations import declared_types
from keyrun.runtime.errors import Backpressure, UnknownGroup, UnknownRun
from keyrun.runtime.events.subscription import Events, check_kinds
from keyrun.runtime.events.types import Event, EventKind, Missed
from keyrun.runtime.groups.records import GroupStatus, Member, MemberOutcome
from keyrun.runtime.handle import RunHandle
from keyrun.runtime.inspect.history import History, HistoryPage
from keyrun.runtime.inspect.progress import Progress
from keyrun.runtime.inspect.statistics import RuntimeStatistics
from keyrun.runtime.limits import Limits
from keyrun.runtime.records.checks import check_run_id
from keyrun.runtime.records.operation import Write
from keyrun.runtime.records.submission import Submission
from keyrun.runtime.schedules.records import ScheduleStatus
from keyrun.runtime.texts import brief
from keyrun.runtime.values import Priority, RunStatus
from keyrun.runtime.waiting.signals import Delivery
from keyrun.storage import StoreError
from keyrun.storage.group import Group

T = TypeVar("T")

_signature = lru_cache(1000)(signature)

EVENTS_AT_ONCE = 100
"""Events of a history that are decoded in one pass of the loop."""
RUNS_AT_ONCE = 100
"""Runs of a batch or of a group that are read or admitted in one pass of the loop."""
MOST_RECENT = 1000
"""Events in one answer."""
LONGEST_WAIT = 60.0
"""The longest time in seconds that one call waits for the end of a run."""


async def submit(
    rt: PlainRuntime,
    workflow: str,
    input: Payload = NOTHING,  # noqa: A002
    *,
    key: str,
    run_id: str | None = None,
    headers: dict[str, str] | None = None,
    tags: list[str] = [],  # noqa: B006 (never changed)
    priority: Priority = Priority.NORMAL,
    limits: Limits | None = None,
    delay: float = 0,
    nowait: bool = False,
) -> Submitted:
    """Start a run, and return when it is durable.

    - `workflow`: the name of the workflow. The run takes its highest registered version.
    - `input`: the input of the workflow, of the type that the workflow declares.
    - `key`: the ordering key. Runs of one key execute one after the other.
    - `run_id`: the id of the run: 1 to 128 characters of A-Z, a-z, 0-9, '_' and '-'. With an id,
      the call is safe to repeat.
    - `headers`: strings by name.
    - `tags`: words by which runs can be listed.
    - `priority`: decides which keys get free slots first.
    - `limits`: limits of this run.
    - `delay`: seconds until the run enters the queue of its key.
    - `nowait`: fail at once if too many runs wait to start, instead of waiting for room.
    """
    wanted = rt.workflow(workflow)
    value = input.read(wanted.input_type)
    call: Any = rt.submit_nowait if nowait else rt.submit
    try:
        handle: RunHandle[Any] = await call(
            wanted,
            value,
            key=key,
            run_id=run_id,
            headers=headers,
            tags=tags,
            priority=priority,
            limits=limits,
            delay=delay,
        )
    except UNSTORABLE as error:
        raise input.misplaced(error) from error.__cause__
    return Submitted.of(handle)


async def submit_many(rt: PlainRuntime, runs: list[NewRun]) -> list[Submitted | NotSubmitted]:
    """Start many runs, and return when they are durable. Runs that are started together share a
    commit.

    - `runs`: the runs. They are admitted in this order. A run that cannot be submitted has its
      problem in the answer, and the other runs are submitted.
    """
    state = rt._partition.state
    if not state.recovered:
        await state.counted.wait()
    answers: list[Submitted | NotSubmitted] = []
    commits: dict[Group, None] = {}
    has_room = True
    while has_room and len(answers) < len(runs):
        if answers:
            await trio.lowlevel.checkpoint()
        with state.together() as group:
            commits[group] = None
            for each in runs[len(answers) : len(answers) + RUNS_AT_ONCE]:
                found = _admitted(rt, each, commits)
                if found is None:
                    has_room = False
                    break
                if isinstance(found, Exception):
                    answers.append(_not_submitted(each, found))
                else:
                    answers.append(found)
            if len(answers) == len(runs):
                state.applied(Write.SUBMIT_MANY, answers)
    is_full = False
    for each in runs[len(answers) :]:
        try:
            described = _described(rt, each)
            admitted = rt._admit_at_once(described)
            if admitted is None:
                admitted = await rt._admit(described, wait=not is_full), None
            answers.append(Submitted.of(admitted[0]))
            if admitted[1] is not None:
                commits[admitted[1]] = None
        except Exception as error:
            # The runs that follow do not wait for room as well, one after the other.
            is_full = is_full or isinstance(error, Backpressure)
            answers.append(_not_submitted(each, error))
    for commit in commits:
        await commit.wait()
    return answers


async def submit_together(rt: PlainRuntime, runs: list[NewRun]) -> list[Submitted | None]:
    """Start the runs that the tasks of one client submit at the same time, in one commit. The
    answer is None for a run that has to wait for room or that is rejected: the client submits it
    alone, which waits or raises the error.

    - `runs`: the runs. They are admitted in this order.
    """
    state = rt._partition.state
    if not state.recovered:
        await state.counted.wait()
    answers: list[Submitted | None] = []
    commits: dict[Group, None] = {}
    with state.together() as group:
        commits[group] = None
        for each in runs:
            found = _admitted(rt, each, commits)
            if isinstance(found, StoreError):
                raise found
            answers.append(None if isinstance(found, Exception) else found)
        state.applied(Write.SUBMIT_TOGETHER, answers)
    for commit in commits:
        await commit.wait()
    return answers


def _admitted(
    rt: PlainRuntime, new: NewRun, commits: dict[Group, None]
) -> Submitted | Exception | None:
    """Admit a run in the present block, or find the run that has its id. Return the error of a run
    that is rejected, and None for one that has to wait. `commits` gets the commit of a run that is
    not durable yet. An error while the run is staged is raised, and drops the block."""
    try:
        described = _described(rt, new)
        found = rt._found_at_once(described)
    except Exception as error:
        return error
    if found is True:
        rt._admission.admit(described)
        return Submitted.of_run(described, newly_submitted=True)
    if found is False:
        return None
    handle, commit = found
    if commit is not None:
        commits[commit] = None
    return Submitted.of(handle)


def _not_submitted(new: NewRun, error: Exception) -> NotSubmitted:
    if isinstance(error, UNSTORABLE):
        error = new.input.misplaced(error)
    return NotSubmitted.of(problem(error))


def _described(rt: PlainRuntime, new: NewRun) -> Submission:
    wanted = rt.workflow(new.workflow)
    return rt._admission.describe(
        wanted,
        new.input.read(wanted.input_type),
        new.key,
        new.run_id,
        new.headers,
        new.tags,
        new.priority,
        new.limits,
        new.delay,
    )


async def submit_or_signal(
    rt: PlainRuntime,
    workflow: str,
    input: Payload = NOTHING,  # noqa: A002
    *,
    key: str,
    run_id: str,
    name: str,
    payload: Payload = NOTHING,
    signal_id: str | None = None,
    headers: dict[str, str] | None = None,
    tags: list[str] = [],  # noqa: B006 (never changed)
    priority: Priority = Priority.NORMAL,
    limits: Limits | None = None,
) -> Submitted:
    """Send a signal to a run, and start the run if there is none with this id.

    - `workflow`: the name of the workflow to start if there is no run.
    - `input`: the input of the run that starts.
    - `run_id`: the id of the run.
    - `name`: the name of the signal.
    - `payload`: the payload of the signal.
    - `signal_id`: a repeat with the same id changes nothing.
    """
    wanted = rt.workflow(workflow)
    handle: RunHandle[Any] = await rt.submit_or_signal(
        wanted,
        input.check(wanted.input_type),
        key=key,
        run_id=run_id,
        name=name,
        payload=payload.check(),
        signal_id=signal_id,
        headers=headers,
        tags=tags,
        priority=priority,
        limits=limits,
    )
    return Submitted.of(handle)


async def submit_group(rt: PlainRuntime, group_id: str, members: list[NewMember]) -> SubmittedGroup:
    """Start many runs as one group.

    - `group_id`: the id of the group. A repeat with the same members is the same group.
    - `members`: the runs of the group.
    """
    read: list[Member[Any, Any]] = []
    for each in members:
        if read and len(read) % RUNS_AT_ONCE == 0:
            await trio.lowlevel.checkpoint()
        wanted = rt.workflow(each.workflow)
        read.append(
            Member(
                wanted,
                each.input.check(wanted.input_type),
                key=each.key,
                member_id=each.member_id,
                headers=each.headers,
                tags=each.tags,
                priority=each.priority,
                limits=each.limits,
                delay=each.delay,
            )
        )
    group = await rt.submit_group(group_id, read)
    return SubmittedGroup(group_id=group.group_id, newly_submitted=group.newly_submitted)


async def signal(
    rt: PlainRuntime,
    run_id: str,
    name: str,
    payload: Payload = NOTHING,
    *,
    replace: bool = False,
    signal_id: str | None = None,
) -> Delivery:
    """Send a signal to a run, and return when it is durable.

    - `run_id`: the id of the run.
    - `name`: the name of the signal.
    - `payload`: the payload of the signal.
    - `replace`: replace the signals of this name that the run has not received yet.
    - `signal_id`: a repeat with the same id changes nothing.
    """
    return await rt.signal(run_id, name, payload.check(), replace=replace, signal_id=signal_id)


async def call(
    rt: PlainRuntime,
    entity: str,
    key: str,
    method: str,
    args: list[Payload] = [],  # noqa: B006 (never changed)
    kwargs: dict[str, Payload] = {},  # noqa: B006 (never changed)
    *,
    request_id: str | None = None,
    timeout: float | None = None,
) -> Any:
    """Call a method of an entity, and return its answer when its changes are durable.

    - `entity`: the name of the entity.
    - `key`: the ordering key.
    - `method`: the name of the method.
    - `args`: the arguments of the method, by position.
    - `kwargs`: the arguments of the method, by name.
    - `request_id`: a repeat with the same id returns the answer without running the method.
    - `timeout`: seconds that the method may take.
    """
    definition = rt.entity_named(entity)
    wanted = definition.method(method)
    types, names = wanted.types, wanted.parameters
    given = [*args, *kwargs.values()]
    if not given or not all(each.is_encoded for each in given):
        types = declared_types(wanted.function)
        try:
            _signature(wanted.function).bind(None, *args, **kwargs)
        except TypeError as error:
            raise Misplaced(f"the arguments of {entity}.{method} do not fit: {error}") from None
    declared = [types.get(name, Any) for name in names] + [Any] * len(args)
    values = [each.read(kind) for kind, each in zip(declared, args, strict=False)]
    named = {name: each.read(types.get(name, Any)) for name, each in kwargs.items()}
    answer = await rt.call(
        definition.cls, key, method, *values, request_id=request_id, timeout=timeout, **named
    )
    return CODEC.decode(CODEC.encode(answer, wanted.declared))


async def schedule(
    rt: PlainRuntime,
    schedule_id: str,
    workflow: str,
    input: Payload = NOTHING,  # noqa: A002
    *,
    key: str,
    when: When,
    misfire: Literal["fire_once", "skip"] = "fire_once",
    overlap: bool = False,
    paused: bool = False,
    headers: dict[str, str] | None = None,
    tags: list[str] = [],  # noqa: B006 (never changed)
    priority: Priority = Priority.NORMAL,
    limits: Limits | None = None,
) -> ScheduleStatus:
    """Start runs of a workflow at certain times.

    - `schedule_id`: the id of the schedule. The same id with other arguments replaces it.
    - `workflow`: the name of the workflow of which each firing starts a run.
    - `input`: the input of each run.
    - `when`: the times.
    - `misfire`: whether times that passed while no runtime was open start one run.
    - `overlap`: start a run although the run of the last firing has not ended.
    - `paused`: create the schedule without firing it.
    """
    wanted = rt.workflow(workflow)
    value = input.check(wanted.input_type)
    put: Any = rt.schedule
    status: ScheduleStatus = await put(
        schedule_id,
        wanted,
        value,
        key=key,
        when=when.timetable(),
        misfire=misfire,
        overlap=overlap,
        paused=paused,
        headers=headers,
        tags=tags,
        priority=priority,
        limits=limits,
    )
    return status


async def status(rt: PlainRuntime, run_id: str, *, wait: float = 0) -> RunStatus:
    """Return the status of a run, or wait for its end.

    - `run_id`: the id of the run.
    - `wait`: seconds to wait for the end of the run, at most 60. The call returns earlier if the
      run ends or is quarantined.
    """
    found = await rt.status(run_id)
    if found is None:
        raise UnknownRun(f"no run has the id {brief(run_id)}, or it was forgotten", run_id=run_id)
    seconds = _seconds(wait)
    if seconds and not found.state.terminal:
        with trio.move_on_after(seconds):
            await rt.wait_for_end(await rt.find_submission(run_id))
        found = await rt.status(run_id) or found
    return found


async def result(rt: PlainRuntime, run_id: str, *, wait: float = 0) -> Any:
    """Return the result of a run, or say how it ended without one.

    - `run_id`: the id of the run.
    - `wait`: seconds to wait for the end of the run, at most 60.
    """
    return await rt.run(run_id).result(timeout=_seconds(wait))


def _seconds(wait: float) -> float:
    """Return how long a call waits."""
    if not wait >= 0:
        raise Misplaced(f"wait must be a number of seconds, at least 0, got {wait!r}")
    return min(wait, LONGEST_WAIT)


async def find_run(rt: PlainRuntime, run_id: str) -> Submitted:
    """Return which run has an id."""
    about = await rt.find_submission(run_id)
    return Submitted.of(RunHandle(rt, about, False))


async def status_of_run(rt: PlainRuntime, run_id: str, number: int) -> RunStatus | None:
    """Return the status of the run with this id and number, or None if it was forgotten."""
    found = await rt.find_number(run_id)
    return await rt.status(run_id) if found == number else None


async def wait_for_end(rt: PlainRuntime, run_id: str, number: int) -> RunEnd | None:
    """Wait until the run with this id and number has ended or is quarantined. Return None if it was
    forgotten."""
    if await rt.find_number(run_id) != number:
        return None
    end = await rt.wait_for_end(await rt.find_submission(run_id))
    return None if end is None else RunEnd.of(end, rt.value)


async def history(
    rt: PlainRuntime, run_id: str, *, limit: int = 1000, cursor: str | None = None
) -> HistoryEntries:
    """Return one page of what happened to a run, with times and values.

    - `limit`: the number of journal entries after which the page ends.
    """
    page = await rt.history_page(run_id, limit=limit, cursor=cursor)
    if not page.events:
        raise UnknownRun(f"no run has the id {brief(run_id)}, or it was forgotten", run_id=run_id)
    events: list[HistoryEntry] = []
    for at in range(0, len(page.events), EVENTS_AT_ONCE):
        await trio.lowlevel.checkpoint()
        events += [
            HistoryEntry.of(each, rt.value) for each in page.events[at : at + EVENTS_AT_ONCE]
        ]
    return HistoryEntries(events=events, cursor=page.cursor)


async def _exported(history: History) -> str:
    """Return a history as text, and let other tasks run if it is long."""
    if len(history) <= EVENTS_AT_ONCE:
        return history.to_json()
    return await trio.to_thread.run_sync(history.to_json)


async def whole_history(rt: PlainRuntime, run_id: str) -> WholeHistory:
    """Return everything that happened to a run. It is empty if the run is unknown."""
    found = await rt.history(run_id)
    return WholeHistory(
        events=[rt.decrypted(each) for each in found],
        export=None if found.records is None else await _exported(found),
    )


async def stored_page(
    rt: PlainRuntime, run_id: str, *, limit: int = 1000, cursor: str | None = None
) -> HistoryPage:
    """Return one page of what happened to a run. It is empty if the run is unknown.

    - `limit`: the number of journal entries after which the page ends.
    """
    page = await rt.history_page(run_id, limit=limit, cursor=cursor)
    return HistoryPage(events=tuple(map(rt.decrypted, page.events)), cursor=page.cursor)


async def export(rt: PlainRuntime, run_id: str) -> str:
    """Return the history of a run as text, which can be replayed against changed code."""
    return await _exported(await rt.history(run_id))


async def group(rt: PlainRuntime, group_id: str) -> GroupStatus:
    """Return the status of a group."""
    found = await rt.group_status(group_id)
    if found is None:
        raise UnknownGroup(f"no group has the id {group_id!r}, or all its runs were forgotten")
    return found


async def cancel_group(rt: PlainRuntime, group_id: str) -> int:
    """Cancel all runs of a group that have not ended, and return their number."""
    found = await rt.group(group_id)
    if found is None:
        raise UnknownGroup(f"no group has the id {group_id!r}, or all its runs were forgotten")
    return await found.cancel()


async def events(
    rt: PlainRuntime,
    *,
    run_id: str | None = None,
    kinds: list[EventKind] | None = None,
    buffer: int = 1024,
    most_per_second: int | None = None,
) -> AsyncIterator[Event]:
    """Stream events, of all runs or of one run, of all kinds or of some kinds.

    - `run_id`: send only events of this run.
    - `kinds`: send only events of these kinds.
    - `buffer`: events that may wait to be sent. More events are dropped and counted.
    - `most_per_second`: the number of events that are sent in a second, at most 10,000. If there
      are more, they are a sample: an event of the kind `missed` with `sampled` has the number of
      the others.
    """
    sample = None if most_per_second is None else Sample.of(most_per_second)
    if sample is not None:
        buffer = min(buffer, sample.size)
    found = rt.events(run_id=run_id, kinds=kinds, buffer=buffer)
    found.open()
    return _events(found) if sample is None else _sampled(found, sample)


async def _events(found: Events) -> AsyncIterator[Event]:
    with closing(found):
        async for event in found:
            yield event


async def _sampled(found: Events, sample: Sample) -> AsyncIterator[Event]:
    """Read the buffer, which has the size of a sample, once in the time of a sample."""
    taken, began = 0, 0.0
    with closing(found):
        async for event in found:
            if not taken:
                began = trio.current_time()
            yield event._replace(sampled=True) if isinstance(event, Missed) else event
            taken += 1
            if taken >= sample.size or not found.has_more:
                await trio.sleep_until(began + sample.seconds)
                taken = 0


async def recent_events(
    rt: PlainRuntime,
    *,
    after: str | None = None,
    run_id: str | None = None,
    kinds: list[EventKind] | None = None,
    limit: int = 200,
) -> RecentEvents:
    """Return the newest events since the answer before, for callers that cannot read a stream. The
    first call returns only a cursor.

    - `after`: the cursor of the answer before. The runtime keeps the latest 10,000 events for a
      minute after the last call.
    - `run_id`: return only events of this run.
    - `kinds`: return only events of these kinds.
    - `limit`: the number of events in one answer, at most 1,000. The answer has the number of the
      others.
    """
    if not 1 <= limit <= MOST_RECENT:
        raise Misplaced(f"limit must be 1 to {MOST_RECENT:,}, got {limit}")
    return rt.recent_events(
        after, None if run_id is None else check_run_id(run_id), check_kinds(kinds), limit
    )


async def watch(rt: PlainRuntime, run_id: str, *, interval: float = 0.2) -> AsyncIterator[Progress]:
    """Stream the progress of a run until the run ends.

    - `run_id`: the id of the run.
    - `interval`: the least number of seconds between two answers.
    """
    if await rt.status(run_id, result=False) is None:
        raise UnknownRun(f"no run has the id {brief(run_id)}, or it was forgotten", run_id=run_id)
    return _each(rt.watch(run_id, interval=interval))


async def _each(items: AsyncIterable[T]) -> AsyncIterator[T]:
    async for item in items:
        yield item


async def outcomes(rt: PlainRuntime, group_id: str) -> AsyncIterator[MemberOutcome[Any]]:
    """Stream the ends of the members of a group, first those that have ended."""
    found = await rt.group(group_id)
    if found is None:
        raise UnknownGroup(f"no group has the id {group_id!r}, or all its runs were forgotten")
    return _each(found)


async def about(performer: Delegate) -> Session:
    """Return who calls, and which runtime this is."""
    return performer.session


async def member_ends(rt: PlainRuntime, group_id: str) -> AsyncIterator[MemberEnd]:
    """Stream the ends of the members of a group with their workflows, first those that have
    ended."""
    return _member_ends(rt, await outcomes(rt, group_id))


async def _member_ends(
    rt: PlainRuntime, ends: AsyncIterator[MemberOutcome[Any]]
) -> AsyncIterator[MemberEnd]:
    async for each in ends:
        status = await rt.status(each.run_id, result=False)
        yield MemberEnd(
            outcome=each,
            workflow=None if status is None else status.workflow,
            version=None if status is None else status.version,
        )


async def statistics(rt: PlainRuntime) -> RuntimeStatistics:
    """Return a snapshot of queue depths, slots, commits and other counters."""
    return rt.statistics()


async def overview(rt: PlainRuntime) -> Overview:
    """Return the numbers that change all the time: runs by state, ended runs, attempts of steps,
    commits and queues. It is cheap enough to be asked once a second."""
    return await rt.overview()


async def dead_letter_errors(
    rt: PlainRuntime,
    *,
    workflow: str | None = None,
    key: str | None = None,
    tag: str | None = None,
    since: float | None = None,
    until: float | None = None,
    limit: int = 1000,
    cursor: str | None = None,
) -> DeadLetterErrors:
    """Return the errors of one page of the dead letters, with the number of runs of each. The
    newest dead letters come first. Add up the pages to count all dead letters.

    - `limit`: the number of dead letters after which the page ends.
    """
    page = await rt.find_dead_letters(
        workflow=workflow,
        key=key,
        tag=tag,
        since=since,
        until=until,
        limit=limit,
        cursor=cursor,
        newest_first=True,
    )
    return DeadLetterErrors.of(page)
