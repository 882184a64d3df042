"""Gated attempts: wait until the policies of a step let its attempt begin."""

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from keyrun.runtime.definitions.step import StepFunction
from keyrun.runtime.errors import CircuitOpen, StepFailed
from keyrun.runtime.events import emitter
from keyrun.runtime.host.step_gates import GatePass
from keyrun.runtime.records.journal_entry import CallRecord
from keyrun.runtime.steps.outcome import gave_up
from keyrun.runtime.texts import type_of
from keyrun.runtime.values import Failure, FailureKind

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run


async def guarded(
    run: "Run",
    step: StepFunction[..., Any],
    ident: str,
    memory: CallRecord,
    attempt: Coroutine[Any, Any, Any],
    passed: GatePass | None,
    again: object,
) -> Any:
    """Await `attempt` when the policies of its step let it begin. Return `again` if the run was
    paused meanwhile. `passed` is the pass of an attempt that the gate has already admitted."""
    begun, before = passed is not None, memory.attempts
    try:
        if passed is None:
            passed = await _enter(run, step, ident, memory)
            if run.is_stopped():
                return again
        begun = True
        return await attempt
    finally:
        if not begun:
            attempt.close()
        if passed is not None:
            passed.end(memory, before)


async def _enter(
    run: "Run", step: StepFunction[..., Any], ident: str, memory: CallRecord
) -> GatePass:
    await run.gate()
    while run.is_stopped():
        await run.hold()
    rank = step.set.priority
    gate = run.partition.host.gates.of(step)
    if gate.lacks:
        raise _impossible(run, ident, memory, gate.lacks)
    try:
        rank = run.submission.priority if rank is None else rank
        return await gate.enter(run, rank, step.set.name, ident)
    except CircuitOpen as error:
        raise _refused(run, ident, memory, error) from error


def _impossible(run: "Run", ident: str, memory: CallRecord, lacks: str) -> StepFailed:
    """Stage and return the error of a step that requires more resources than the process has, and
    would wait forever."""
    failure = Failure(
        kind=FailureKind.PERMANENT_ERROR,
        reason=f"step {ident!r} was not called: it {lacks}",
        step=ident,
        attempt=memory.attempts,
        cause=memory.failure,
    )
    return _emitted(run, gave_up(run, ident, memory, failure), failure)


def _refused(run: "Run", ident: str, memory: CallRecord, error: CircuitOpen) -> StepFailed:
    """Stage and return the error of a step whose circuit breaker is open."""
    failure = Failure(
        kind=FailureKind.CIRCUIT_OPEN,
        reason=f"step {ident!r} was not called: {error}",
        step=ident,
        attempt=memory.attempts,
        error_type=type_of(error),
        cause=memory.failure,
        numbers=error.status.numbers(),
    )
    return _emitted(run, gave_up(run, ident, memory, failure), failure)


def _emitted(run: "Run", final: StepFailed, failure: Failure) -> StepFailed:
    """Emit the failure of a step that was not called, and return its error."""
    if run.partition.feed is not None:
        emitter.step_failed(run.partition.feed, run, failure)
    return final
