"""The table of operations. To add an operation, add an entry here, and a test.

Most entries are methods of `Runtime`. `operations.py` has the functions of the others.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from keyrun.control import operations
from keyrun.control.bulk import bulk
from keyrun.control.operation import Operation
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
    )


_ENTRIES = (
    _entry("POST /runs", SUBMIT, operations.submit),
    _entry("POST /batches", SUBMIT, operations.submit_many),
    _entry(
        "POST /runs/{run_id}/submit-or-signal",
        SUBMIT,
        operations.submit_or_signal,
        like=operations.submit,
    ),
    _entry("POST /runs/{run_id}/signals/{name}", SUBMIT, operations.signal),
    _entry("POST /runs/{run_id}/gates/{gate}/approve", OPERATE, Runtime.approve),
    _entry("POST /runs/{run_id}/gates/{gate}/reject", OPERATE, Runtime.reject),
    _entry("POST /runs/{run_id}/cancel", OPERATE, Runtime.cancel),
    _entry("POST /runs/{run_id}/pause", OPERATE, Runtime.pause),
    _entry("POST /runs/{run_id}/resume", OPERATE, Runtime.resume),
    _entry("POST /runs/{run_id}/redrive", OPERATE, Runtime.redrive),
    _entry("DELETE /runs/{run_id}", ADMIN, Runtime.forget),
    _entry("GET /runs", READ, Runtime.find_runs, like=Runtime.runs),
    _entry("GET /runs/{run_id}", READ, operations.status),
    _entry("GET /runs/{run_id}/result", READ, operations.result),
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
    _entry("POST /keys/{key}/pause", OPERATE, Runtime.pause_key),
    _entry("POST /keys/{key}/resume", OPERATE, Runtime.resume_key),
    _entry("POST /keys/{key}/release", OPERATE, Runtime.release_key),
    _entry("POST /entities/{entity}/{key}/{method}", SUBMIT, operations.call),
    _entry("POST /bulk/{action}", OPERATE, bulk, composite=True, like=Runtime.runs),
    _entry("POST /pause", OPERATE, Runtime.pause_all),
    _entry("POST /resume", OPERATE, Runtime.resume_all),
    _entry("GET /dead-letters", READ, Runtime.find_dead_letters, like=Runtime.runs),
    _entry("GET /approvals", READ, Runtime.find_approvals),
    _entry("GET /workflows", READ, Runtime.workflows),
    _entry("GET /policies", READ, Runtime.policies),
    _entry("GET /audit", OPERATE, Runtime.audit),
    _entry("GET /groups", READ, Runtime.find_groups),
    _entry("POST /groups/{group_id}", SUBMIT, operations.submit_group),
    _entry("GET /groups/{group_id}", READ, operations.group),
    _entry("GET /groups/{group_id}/outcomes", READ, operations.outcomes, streams=True),
    _entry("POST /groups/{group_id}/cancel", OPERATE, operations.cancel_group),
    _entry("GET /schedules", READ, Runtime.find_schedules),
    _entry("PUT /schedules/{schedule_id}", OPERATE, operations.schedule, like=operations.submit),
    _entry("POST /schedules/{schedule_id}/pause", OPERATE, Runtime.pause_schedule),
    _entry("POST /schedules/{schedule_id}/resume", OPERATE, Runtime.resume_schedule),
    _entry("DELETE /schedules/{schedule_id}", ADMIN, Runtime.delete_schedule),
    _entry("GET /outbox", READ, Runtime.outbox),
    _entry("DELETE /outbox", ADMIN, Runtime.discard_outcomes),
    _entry("GET /events", READ, operations.events, streams=True),
    _entry("GET /statistics", READ, operations.statistics),
    _entry("GET /counts", READ, Runtime.counts),
    _entry("GET", READ, Runtime.runs),
    _entry("GET", READ, Runtime.keys),
    _entry("GET", READ, Runtime.dead_letters),
    _entry("GET", READ, Runtime.schedules),
)

OPERATIONS = {each.name: each for each in _ENTRIES}
"""All operations, by name."""

_FOR_CLIENTS = (
    _entry("GET", READ, operations.find_run),
    _entry("GET", READ, operations.status_of_run),
    _entry("GET", READ, operations.wait_for_end),
    _entry("GET", READ, Runtime.group_status),
    _entry("GET", READ, Runtime.history_page),
)
CALLS = OPERATIONS | {each.name: each for each in _FOR_CLIENTS}
"""All operations, and those that only Python clients need, by name. The latter have no route."""
