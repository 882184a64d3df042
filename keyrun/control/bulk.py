"""Bulk operations: one write on all runs that match a filter, or on their keys, page by page.

A call looks at one page of runs, and its cursor leads to the next. Each run is written with an
operation id that is derived from the id of the bulk, so a call can be repeated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import trio

from keyrun.control.operation import Operation
from keyrun.control.owner import part_of
from keyrun.control.problems import name_of
from keyrun.control.roles import require
from keyrun.control.shapes import NOTHING, Misplaced, Payload
from keyrun.runtime.errors import RuntimeFault
from keyrun.runtime.runtime import Runtime
from keyrun.runtime.values import RunStatus, State

Action = Literal[
    "cancel",
    "pause",
    "resume",
    "redrive",
    "forget",
    "signal",
    "approve",
    "reject",
    "release_key",
]
"""The operations that can be performed in bulk, by their names in the table."""

MOST = 1000
"""Runs that one call writes or previews."""
EXAMPLES = 20
"""Runs, and failures, that an answer names."""
AT_ONCE = 64
"""Writes that are under way at once, so that they share commits."""

_ENDED = frozenset(state for state in State if state.terminal)
_ONGOING = frozenset(State) - _ENDED
_FITTING: dict[str, frozenset[State]] = {
    "cancel": _ONGOING,
    "pause": _ONGOING,
    "resume": _ONGOING,
    "redrive": frozenset({State.FAILED, State.QUARANTINED}),
    "forget": _ENDED | {State.QUARANTINED},
    "signal": _ONGOING,
    "approve": _ONGOING,
    "reject": _ONGOING,
    "release_key": frozenset({State.QUARANTINED}),
}
"""The states of the runs that each action applies to."""

OWN = ("name", "payload", "replace", "gate", "by", "comment")
"""The arguments of `bulk` that are arguments of its action."""


@attrs.frozen(kw_only=True)
class BulkFailure:
    """A run that a bulk operation has not changed because of an error."""

    run_id: str
    """The id of the run."""
    error: str
    """The name of the error."""
    detail: str
    """What happened."""


@attrs.frozen(kw_only=True)
class BulkResult:
    """What one call of a bulk operation has found and done."""

    bulk_id: str
    """The id of the bulk. Pass it as `Idempotency-Key` to repeat the call or to continue."""
    preview: bool
    """Whether the call has changed nothing, because it was a preview."""
    examined: int
    """The number of runs that Keyrun looked at."""
    examined_until: float | None
    """When the last of these runs was submitted. None if the call looked at no run."""
    matched: int
    """The number of runs that match."""
    changed: int
    """The number of runs that were changed."""
    examples: list[str]
    """The ids of the first runs that match."""
    failures: list[BulkFailure]
    """The first runs that were not changed because of an error."""
    failed: int
    """The number of runs that were not changed because of an error."""
    cursor: str | None
    """Pass it to continue with the runs that follow. None if there are no more."""


async def bulk(
    performer: Any,
    action: Action,
    *,
    state: list[State] | None = None,
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
    name: str | None = None,
    payload: Payload = NOTHING,
    replace: bool = False,
    gate: str | None = None,
    by: str | None = None,
    comment: str = "",
    preview: bool = True,
    limit: int = 100,
    cursor: str | None = None,
) -> BulkResult:
    """Perform an action on all runs that match, page by page. At least one filter is required.

    - `action`: what to do with each run, or with its key.
    - `name`: for `signal`, the name of the signal.
    - `payload`: for `signal`, the payload of the signal.
    - `replace`: for `signal`, replace the signals of this name that a run has not received yet.
    - `gate`: for `approve` and `reject`, the name of the gate. Only runs that wait there match.
    - `by`: for `approve` and `reject`, the name of the person who decides.
    - `comment`: for `approve` and `reject`, what the workflow receives with the decision.
    - `preview`: change nothing, and return what would be changed.
    - `limit`: the number of runs that one call changes, at most 1,000.
    """
    operation: Operation = performer.operation(action)
    require(performer.caller, operation.role, f"bulk {action}")
    values = (name, payload, replace, gate, by, comment)
    given = {
        each: value
        for each, value in zip(OWN, values, strict=True)
        if value is not NOTHING and value not in (None, False, "")
    }
    _check(operation, given)
    filters: dict[str, Any] = {
        "state": state or None,
        "key": key,
        "workflow": workflow,
        "version": version,
        "step": step,
        "error": error,
        "tag": tag,
        "origin": origin,
        "group": group,
        "since": since,
        "until": until,
    }
    if all(each is None for each in filters.values()):
        raise Misplaced(f"bulk requires at least one filter: {', '.join(filters)}")
    if not 1 <= limit <= MOST:
        raise Misplaced(f"limit must be 1 to {MOST:,}, got {limit}")
    fitting = _FITTING[action]
    filters["state"] = fitting if not state else fitting.intersection(state)
    rt: Runtime = performer.runtime
    if not filters["state"]:
        raise Misplaced(f"no run in the state {', '.join(state or ())} can be changed by {action}")
    page = await rt.find_runs(**filters, limit=limit, cursor=cursor)
    runs = [each for each in page.runs if gate is None or _is_at_gate(each, gate)]
    done = _Done(performer, operation, given)
    if not preview:
        await done.write(runs)
    return BulkResult(
        bulk_id=performer.operation_id,
        preview=preview,
        examined=page.examined,
        examined_until=page.examined_until,
        matched=len(runs),
        changed=done.changed,
        examples=[each.run_id for each in runs[:EXAMPLES]],
        failures=done.failures[:EXAMPLES],
        failed=len(done.failures),
        cursor=page.cursor,
    )


def _check(operation: Operation, given: Mapping[str, Any]) -> None:
    """Raise `Misplaced` unless these are arguments that an action takes and requires."""
    unknown = given.keys() - operation.parameters.keys()
    if unknown:
        raise Misplaced(f"{operation.name} has no argument {min(unknown)!r}")
    target = next(iter(operation.parameters))
    operation.require({target: "", **given})
    if "payload" in given:
        given["payload"].check()


def _is_at_gate(run: RunStatus, gate: str) -> bool:
    """Return whether a run waits at a gate, or may do so: a status names only a few waits."""
    waits = f", {run.waiting_on}, "
    return f", approval {gate}, " in waits or waits.endswith(" more, ")


class _Done:
    """What has been written."""

    def __init__(self, performer: Any, operation: Operation, given: Mapping[str, Any]) -> None:
        self._performer = performer
        self._operation = operation
        self._given = given
        self._is_of_key = "key" in operation.parameters
        self.changed = 0
        self.failures: list[BulkFailure] = []

    async def write(self, runs: Sequence[RunStatus]) -> None:
        """Write all runs, some of them at once."""
        left = iter(runs)

        async def work() -> None:
            for run in left:
                await self._write(run)

        async with trio.open_nursery() as nursery:
            for _ in range(min(AT_ONCE, len(runs))):
                nursery.start_soon(work)

    async def _write(self, run: RunStatus) -> None:
        performer = self._performer
        part = part_of(performer.operation_id, run.run_id)
        target = {"key": run.key} if self._is_of_key else {"run_id": run.run_id}
        try:
            answer = await performer.perform(self._operation, {**target, **self._given}, part)
        except RuntimeFault as error:
            failure = BulkFailure(run_id=run.run_id, error=name_of(error), detail=str(error))
            self.failures.append(failure)
        else:
            self.changed += answer is not False
