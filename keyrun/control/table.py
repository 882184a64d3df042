"""The table of operations. To add an operation, add an entry here, and a test.

Most entries are methods of `Runtime`. `operations.py` has the functions of the others.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from keyrun.control import operations
from keyrun.control.bulk import bulk
from keyrun.control.operation import Command, Idle, Operation
from keyrun.control.roles import Role
from keyrun.runtime.runtime import Runtime

READ, SUBMIT, OPERATE, ADMIN = Role.READ, Role.SUBMIT, Role.OPERATE, Role.ADMIN


def _entry(
    route: str,
    role: Role,
    function: Callable[..., Any],
    *,
    streams: bool = False,
    composite: bool = False,
    like: Callable[..., Any] | None = None,
    idle: Idle = Idle.YES,
    command: Command | None = None,
) -> Operation:
    verb, _, path = route.partition(" ")
    known: Callable[..., Awaitable[Any]] = function
    return Operation(
        name=function.__name__,
        function=known,
        verb=verb,
        path=path,
        role=role,
        streams=streams,
        composite=composite,
        like=like,
        idle=idle,
        command=command,
    )


_ENTRIES = (
    _entry(
        "POST /runs",
        SUBMIT,
        operations.submit,
        idle=Idle.WITH_APP,
        command=Command(
            name="submit",
            summary="Start a run",
            done="Submitted {answer.run_id}, key {answer.key}.",
        ),
    ),
    _entry("POST /batches", SUBMIT, operations.submit_many, idle=Idle.WITH_APP),
    _entry(
        "POST /runs/{run_id}/submit-or-signal",
        SUBMIT,
        operations.submit_or_signal,
        like=operations.submit,
        idle=Idle.WITH_APP,
        command=Command(
            name="submit-or-signal",
            summary="Signal a run, or start it",
            done="The signal {name} of {answer.run_id} is stored.",
        ),
    ),
    _entry(
        "POST /runs/{run_id}/signals/{name}",
        SUBMIT,
        operations.signal,
        command=Command(
            name="signal",
            past="signalled",
            summary="Signal a run, or all that match",
            done="The signal {name} of {run_id} is {answer}.",
        ),
    ),
    _entry(
        "POST /runs/{run_id}/gates/{gate}/approve",
        OPERATE,
        Runtime.approve,
        command=Command(
            name="approve",
            past="approved",
            summary="Approve a run, or all that match",
            done="Approved {gate} of {run_id}, by {by}.",
        ),
    ),
    _entry(
        "POST /runs/{run_id}/gates/{gate}/reject",
        OPERATE,
        Runtime.reject,
        command=Command(
            name="reject",
            past="rejected",
            summary="Reject a run, or all that match",
            done="Rejected {gate} of {run_id}, by {by}.",
        ),
    ),
    _entry(
        "POST /runs/{run_id}/cancel",
        OPERATE,
        Runtime.cancel,
        command=Command(
            name="cancel",
            past="cancelled",
            summary="Cancel a run, or all that match",
            done="The cancellation of {run_id} is stored.",
            unchanged="Nothing was cancelled: {run_id} has ended, or only compensates its failure.",
            about="A running step is cancelled, and compensations run before the run ends.",
        ),
    ),
    _entry(
        "POST /runs/{run_id}/pause",
        OPERATE,
        Runtime.pause,
        command=Command(
            name="pause",
            past="paused",
            summary="Pause a run, or all that match",
            done="Paused {run_id}.",
            unchanged="Nothing was paused: {run_id} has ended or is paused already.",
            about="A running step ends first. Then the run is held until it is resumed.",
        ),
    ),
    _entry(
        "POST /runs/{run_id}/resume",
        OPERATE,
        Runtime.resume,
        command=Command(
            name="resume",
            past="resumed",
            summary="Resume a run, or all that match",
            done="Resumed {run_id}.",
            unchanged="Nothing was resumed: {run_id} is not paused.",
            about="A run stays held while its key, or the whole runtime, is paused.",
        ),
    ),
    _entry(
        "POST /runs/{run_id}/redrive",
        OPERATE,
        Runtime.redrive,
        command=Command(
            name="redrive",
            past="redriven",
            summary="Run again what has failed",
            done="Redriven {run_id}. This is its generation {answer}.",
            about="The run resumes at the step that failed. A quarantined run is tried again.",
        ),
    ),
    _entry(
        "DELETE /runs/{run_id}",
        ADMIN,
        Runtime.forget,
        command=Command(
            name="forget",
            past="removed",
            summary="Remove ended runs",
            done="Removed {run_id} and all its records.",
            about="A quarantined run can be removed, too. The audit log keeps its entries.",
        ),
    ),
    _entry("GET /runs", READ, Runtime.find_runs, like=Runtime.runs),
    _entry("GET /runs/{run_id}", READ, operations.status),
    _entry(
        "GET /runs/{run_id}/result",
        READ,
        operations.result,
        command=Command(
            name="result",
            summary="Print the result of a run",
            about="The exit code is 1 if the run failed, 3 if it was cancelled, 5 if quarantined.",
        ),
    ),
    _entry("GET /runs/{run_id}/history", READ, operations.history),
    _entry("GET /runs/{run_id}/export", READ, operations.export),
    _entry("GET /runs/{run_id}/input", READ, Runtime.input),
    _entry("GET /runs/{run_id}/progress", READ, Runtime.progress),
    _entry("GET /runs/{run_id}/watch", READ, operations.watch, streams=True),
    _entry("GET /runs/{run_id}/explain", READ, Runtime.explain),
    _entry("GET /runs/{run_id}/graph", READ, Runtime.execution_graph),
    _entry("GET /runs/{run_id}/family", READ, Runtime.family),
    _entry("GET /keys", READ, Runtime.find_keys, like=Runtime.keys),
    _entry("GET /keys/{key}", READ, Runtime.key_view),
    _entry("GET /keys/{key}/explain", READ, Runtime.explain_key),
    _entry("GET /keys/{key}/entities", READ, Runtime.entities),
    _entry(
        "POST /keys/{key}/pause",
        OPERATE,
        Runtime.pause_key,
        command=Command(
            name="pause-key",
            summary="Pause all runs of a key",
            done="Paused the key {key}.",
            about="A running step ends first. Later runs of the key are held, too.",
        ),
    ),
    _entry(
        "POST /keys/{key}/resume",
        OPERATE,
        Runtime.resume_key,
        command=Command(
            name="resume-key", summary="Resume the runs of a key", done="Resumed the key {key}."
        ),
    ),
    _entry(
        "POST /keys/{key}/release",
        OPERATE,
        Runtime.release_key,
        command=Command(
            name="release",
            past="released",
            summary="Release quarantined keys",
            done="Released the key {key}.",
            unchanged="Nothing was released: the key {key} is not quarantined.",
            about="If the first run of the key is quarantined, it is tried again.",
        ),
    ),
    _entry(
        "POST /entities/{entity}/{key}/{method}",
        SUBMIT,
        operations.call,
        idle=Idle.NO,
        command=Command(name="call", summary="Call a method of an entity"),
    ),
    _entry("POST /bulk/{action}", OPERATE, bulk, composite=True, like=Runtime.runs),
    _entry(
        "POST /pause",
        OPERATE,
        Runtime.pause_all,
        command=Command(
            name="pause-all",
            summary="Pause all runs",
            done="Paused all runs.",
            about="Running steps end first. Later runs are held, too.",
        ),
    ),
    _entry(
        "POST /resume",
        OPERATE,
        Runtime.resume_all,
        command=Command(
            name="resume-all",
            summary="Resume all runs",
            done="Resumed all runs, except runs and keys that were paused themselves.",
        ),
    ),
    _entry("GET /dead-letters", READ, Runtime.find_dead_letters, like=Runtime.runs),
    _entry("GET /dead-letters/errors", READ, operations.dead_letter_errors, like=Runtime.runs),
    _entry("GET /approvals", READ, Runtime.find_approvals),
    _entry("GET /workflows", READ, Runtime.workflows),
    _entry("GET /policies", READ, Runtime.policies),
    _entry("GET /audit", OPERATE, Runtime.audit),
    _entry("GET /groups", READ, Runtime.find_groups),
    _entry(
        "POST /groups/{group_id}",
        SUBMIT,
        operations.submit_group,
        idle=Idle.WITH_APP,
        command=Command(
            name="groups submit",
            summary="Start many runs as a group",
            done="The group {answer.group_id} is submitted.",
        ),
    ),
    _entry("GET /groups/{group_id}", READ, operations.group),
    _entry("GET /groups/{group_id}/outcomes", READ, operations.outcomes, streams=True),
    _entry(
        "POST /groups/{group_id}/cancel",
        OPERATE,
        operations.cancel_group,
        command=Command(
            name="groups cancel",
            summary="Cancel the runs of a group",
            done="Runs of {group_id} that were cancelled: {answer}.",
        ),
    ),
    _entry("GET /schedules", READ, Runtime.find_schedules),
    _entry(
        "PUT /schedules/{schedule_id}",
        OPERATE,
        operations.schedule,
        like=operations.submit,
        idle=Idle.WITH_APP,
        command=Command(
            name="schedules put",
            summary="Create or replace a schedule",
            done="The schedule {answer.schedule_id} is stored.",
        ),
    ),
    _entry(
        "POST /schedules/{schedule_id}/pause",
        OPERATE,
        Runtime.pause_schedule,
        command=Command(
            name="schedules pause",
            summary="Stop the firings of a schedule",
            done="Paused the schedule {schedule_id}.",
            unchanged="Nothing was paused: there is no such schedule, or it is paused already.",
            about="Runs that the schedule has started continue.",
        ),
    ),
    _entry(
        "POST /schedules/{schedule_id}/resume",
        OPERATE,
        Runtime.resume_schedule,
        command=Command(
            name="schedules resume",
            summary="Let a paused schedule fire",
            done="Resumed the schedule {schedule_id}.",
            unchanged="Nothing was resumed: there is no such schedule, or it is not paused.",
        ),
    ),
    _entry(
        "DELETE /schedules/{schedule_id}",
        ADMIN,
        Runtime.delete_schedule,
        command=Command(
            name="schedules delete",
            summary="Remove a schedule",
            done="Removed the schedule {schedule_id}. Its runs stay.",
            unchanged="Nothing was removed: there is no such schedule.",
        ),
    ),
    _entry("GET /outbox", READ, Runtime.outbox),
    _entry("DELETE /outbox", ADMIN, Runtime.discard_outcomes),
    _entry("GET /events", READ, operations.events, streams=True),
    _entry("GET /recent-events", READ, operations.recent_events),
    _entry("GET /statistics", READ, operations.statistics),
    _entry("GET /overview", READ, operations.overview),
    _entry("GET /counts", READ, Runtime.counts),
    _entry("GET", READ, Runtime.runs),
    _entry("GET", READ, Runtime.keys),
    _entry("GET", READ, Runtime.dead_letters),
    _entry("GET", READ, Runtime.schedules),
)

OPERATIONS = {each.name: each for each in _ENTRIES}
"""All operations, by name."""

_FOR_CLIENTS = (
    _entry("POST", SUBMIT, operations.submit_together, idle=Idle.WITH_APP),
    _entry("GET", READ, operations.about, composite=True),
    _entry("GET", READ, operations.find_run),
    _entry("GET", READ, operations.whole_history),
    _entry("GET", READ, operations.stored_page),
    _entry("GET", READ, operations.status_of_run),
    _entry("GET", READ, operations.wait_for_end),
    _entry("GET", READ, operations.member_ends, streams=True),
    _entry("GET", READ, Runtime.group_status),
)
CALLS = OPERATIONS | {each.name: each for each in _FOR_CLIENTS}
"""All operations, and those that only Python clients need, by name. The latter have no route."""
