"""The JSON documents that `--json` prints, one object per line.

Programs read these documents: fields may be added, and no field is removed or gets another
meaning. Times are ISO 8601 in UTC, and durations are seconds. A time that is unknown, because its
record is damaged, is 0 in the status and null here.
"""

import json
import math
from base64 import b64encode
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from uuid import UUID

from keyrun.cli.times import utc

if TYPE_CHECKING:
    # A command prints one kind of document. It does not import the others.
    from collections.abc import Iterable

    from keyrun import Failure, RunStatus, State
    from keyrun.graphs import ExecutionGraph
    from keyrun.groups import GroupStatus
    from keyrun.schedules import ScheduleStatus
    from keyrun.status import (
        AuditEntry,
        CompensationProgress,
        EntityStatus,
        Explanation,
        GroupSummary,
        Happening,
        ItemCounts,
        KeyStatus,
        OpenGate,
        Progress,
        StoreCounts,
    )
    from keyrun.storage import Damage, Verification

Document = dict[str, Any]


def line(document: Any) -> str:
    """Return a document as one line of ASCII, which every terminal can show."""
    return json.dumps(plain(document), separators=(",", ":"), allow_nan=False)


def plain(value: Any) -> Any:
    """Return a payload as JSON: dates, decimals and UUIDs as text, bytes as base64."""
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else str(value)
        case dict():
            return {str(key): plain(item) for key, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case bytes():
            return {"base64": b64encode(value).decode()}
        case date():
            return value.isoformat()
        case Decimal() | UUID():
            return str(value)
    return repr(value)


def run_counts(counted: "Iterable[tuple[tuple[str, int, State, str], int]]") -> Document:
    """Return the number of runs by workflow, version, state and error."""
    return {
        "runs": [
            {
                "workflow": workflow,
                "version": version,
                "state": str(state),
                "error": error or None,
                "runs": runs,
            }
            for (workflow, version, state, error), runs in counted
        ]
    }


def counts(found: "StoreCounts") -> Document:
    """Return the counts of a store."""
    return {
        "unfinished": [
            {
                "workflow": each.workflow,
                "version": each.version,
                "runs": each.runs,
                "by_fingerprint": [
                    {"fingerprint": code, "runs": runs}
                    for code, runs in each.by_fingerprint.items()
                ],
            }
            for each in found.unfinished
        ],
        "unpatched": [
            {"workflow": each.workflow, "patch": each.patch, "runs": each.runs}
            for each in found.unpatched
        ],
    }


def run(status: "RunStatus") -> Document:
    """Return a run."""
    return {
        "run_id": status.run_id,
        "key": status.key,
        "workflow": status.workflow,
        "version": status.version,
        "state": str(status.state),
        "step": status.step,
        "attempt": status.attempt,
        "steps_done": status.steps_done,
        "submitted_at": utc(status.submitted_at or None),
        "started_at": utc(status.started_at),
        "ended_at": utc(status.ended_at),
        "deadline": utc(status.deadline),
        "headers": status.headers,
        "tags": list(status.tags),
        "origin": status.origin,
        "waiting_on": status.waiting_on,
        "result": plain(status.result),
        "reason": status.reason,
        "failure": failure(status.failure),
        "generation": status.generation,
        "waiting_until": utc(status.waiting_until),
        "quarantine_cause": _cause(status),
        "compensating": status.compensating,
        "compensation": compensation(status.compensation),
    }


def _cause(status: "RunStatus | KeyStatus") -> str | None:
    return None if status.quarantine_cause is None else str(status.quarantine_cause)


def failure(failed: "Failure | None") -> Document | None:
    """Return the failure of a run, a step or an attempt."""
    if failed is None:
        return None
    return {
        "kind": str(failed.kind),
        "reason": failed.reason,
        "step": failed.step,
        "attempt": failed.attempt,
        "error_type": failed.error_type,
        "traceback": failed.traceback,
        "elapsed": failed.elapsed,
        "cause": failure(failed.cause),
        "numbers": failed.numbers,
        "left": list(failed.left),
    }


def compensation(progress: "CompensationProgress | None") -> Document | None:
    """Return the progress of a compensation."""
    if progress is None:
        return None
    return {
        "total": progress.total,
        "done": progress.done,
        "step": progress.step,
        "left": list(progress.left),
    }


def explanation(found: "Explanation") -> Document:
    """Return why a run or a key does not move."""
    return {
        "run_id": found.run_id,
        "key": found.key,
        "cause": str(found.cause),
        "sentence": found.sentence,
        "step": found.step,
        "holder": found.holder,
        "holder_key": found.holder_key,
        "until": utc(found.until),
        "by": found.by,
    }


def items(counts: "ItemCounts | None") -> Document | None:
    """Return the items of a map."""
    if counts is None:
        return None
    return {
        "total": counts.total,
        "done": counts.done,
        "failed": counts.failed,
        "running": counts.running,
    }


def happening(happened: "Happening", value: Any) -> Document:
    """Return an event of the history of a run, with the value that it carries."""
    return {
        "at": utc(happened.at or None),
        "event": happened.event,
        "step": happened.step,
        "attempt": happened.attempt,
        "began_at": utc(happened.began_at),
        "delay": happened.delay,
        "failure": failure(happened.failure),
        "detail": happened.detail,
        "value": plain(value),
    }


def graph(drawn: "ExecutionGraph") -> Document:
    """Return a run of a graph with its nodes and edges."""
    return {
        "run_id": drawn.run_id,
        "workflow": drawn.workflow,
        "version": drawn.version,
        "state": str(drawn.state),
        "percent": drawn.percent,
        "compensation": compensation(drawn.compensation),
        "nodes": [
            {
                "id": node.id,
                "state": str(node.state),
                "turns": node.turns,
                "attempt": node.attempt,
                "began_at": utc(node.began_at),
                "ended_at": utc(node.ended_at),
                "mean": node.mean,
                "failure": failure(node.failure),
                "items": items(node.items),
                "within": node.within,
            }
            for node in drawn.nodes
        ],
        "edges": [
            {
                "source": edge.source,
                "target": edge.target,
                "on": edge.on,
                "port": edge.port,
                "when": edge.when,
                "back": edge.back,
                "taken": edge.taken,
            }
            for edge in drawn.edges
        ],
    }


def progress(status: "Progress") -> Document:
    """Return the progress of a run."""
    return {
        "run_id": status.run_id,
        "key": status.key,
        "workflow": status.workflow,
        "state": str(status.state),
        "percent": status.percent,
        "message": status.message,
        "steps": {
            "done": status.steps.done,
            "running": status.steps.running,
            "retrying": status.steps.retrying,
            "waiting": status.steps.waiting,
            "failed": status.steps.failed,
        },
        "nodes": status.nodes,
        "items": {name: items(counts) for name, counts in status.items.items()},
        "running": [
            {
                "step": each.step,
                "attempt": each.attempt,
                "began_at": utc(each.began_at),
                "percent": each.percent,
                "message": each.message,
            }
            for each in status.running
        ],
        "waiting_on": status.waiting_on,
        "last_error": failure(status.last_error),
        "rate": status.rate,
        "elapsed": status.elapsed,
        "time_left": status.time_left,
        "compensating": status.compensating,
        "compensation": compensation(status.compensation),
    }


def key(status: "KeyStatus") -> Document:
    """Return a key."""
    return {
        "key": status.key,
        "runs": status.runs,
        "head": status.head,
        "state": str(status.state),
        "paused": status.paused,
        "quarantined": status.quarantined,
        "reason": status.reason,
        "waiting_on": status.waiting_on,
        "waiting_until": utc(status.waiting_until),
        "quarantine_cause": _cause(status),
    }


def entity(status: "EntityStatus") -> Document:
    """Return an entity with the size of its state."""
    return {"key": status.key, "entity": status.name, "bytes": status.size}


def group_summary(found: "GroupSummary") -> Document:
    """Return a group in a listing."""
    return {
        "group_id": found.group_id,
        "created_at": utc(found.created_at),
        "size": found.size,
    }


def group(status: "GroupStatus") -> Document:
    """Return a group with the number of its members in each state."""
    return {
        "group_id": status.group_id,
        "created_at": utc(status.created_at),
        "size": status.size,
        "accepted": status.accepted,
        "ended": status.ended,
        "complete": status.complete,
        "counts": {str(state): count for state, count in status.counts.items()},
    }


def approval(gate: "OpenGate") -> Document:
    """Return a gate that waits for a decision."""
    return {
        "run_id": gate.run_id,
        "key": gate.key,
        "workflow": gate.workflow,
        "version": gate.version,
        "gate": gate.gate,
        "since": utc(gate.since or None),
        "deadline": utc(gate.deadline),
    }


def audit(entry: "AuditEntry") -> Document:
    """Return an entry of the audit log."""
    return {
        "at": utc(entry.at),
        "operation": entry.operation,
        "who": entry.who,
        "role": entry.role,
        "run_id": entry.run_id,
        "key": entry.key,
        "target": entry.target,
        "summary": entry.summary,
        "result": entry.result,
        "error": entry.error,
        "operation_id": entry.operation_id,
    }


def schedule(status: "ScheduleStatus") -> Document:
    """Return a schedule. Fields that its kind does not have are null."""
    from keyrun.schedules import Cron, Every, Once

    when = status.when
    return {
        "schedule_id": status.schedule_id,
        "workflow": status.workflow,
        "key": status.key,
        "kind": status.kind,
        "at": utc(when.at) if isinstance(when, Once) else None,
        "every": when.seconds if isinstance(when, Every) else None,
        "start": utc(when.start) if isinstance(when, Every) else None,
        "cron": when.expression if isinstance(when, Cron) else None,
        "timezone": when.timezone if isinstance(when, Cron) else None,
        "misfire": status.misfire,
        "overlap": status.overlap,
        "paused": status.paused,
        "next_at": utc(status.next_at),
        "last_at": utc(status.last_at),
        "last_run_id": status.last_run_id,
        "last_state": None if status.last_state is None else str(status.last_state),
        "fired": status.fired,
        "skipped": status.skipped,
        "missed": status.missed,
        "problem": status.problem,
    }


def verification(found: "Verification") -> Document:
    """Return the report of `verify`."""
    return {
        "path": str(found.path),
        "ok": found.ok,
        "records": found.records,
        "tables": found.tables,
        "structure_checked": found.structure_checked,
        "damage": [damage(each) for each in found.damage],
    }


def damage(found: "Damage") -> Document:
    """Return a damaged record. The key of the record is in hexadecimal digits."""
    record = None if found.key is None else found.key.hex()
    return {"problem": found.problem, "table": found.table, "key": record}
