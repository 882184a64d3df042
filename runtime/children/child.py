"""Children: workflows that a workflow starts and waits for.

A child without a key is a part of its parent's run: its calls are in the parent's journal, in a
branch of their own. A child with another key is a run of its own in the queue of that key. One
commit has its admission and the journal entry of the parent. One commit has its end and the message
to the parent.
"""

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any
from zlib import crc32

import trio

from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.errors import (
    ChildCancelled,
    ChildFailed,
    ScopeTimeout,
    StepFailed,
    TooDeep,
)
from keyrun.runtime.internal_errors import from_user, is_internal
from keyrun.runtime.pass_end import Halt
from keyrun.runtime.records.journal_entry import CHILD, CallKind
from keyrun.runtime.records.submission import read_failure
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.expected import INSIDE, REMEDY
from keyrun.runtime.run.scope import FailAfter
from keyrun.runtime.steps.attempts import ready
from keyrun.runtime.steps.execution import read_outcome
from keyrun.runtime.texts import workflow_error
from keyrun.runtime.user_errors import has, is_user_error
from keyrun.runtime.values import UNSET, Failure, FailureKind, State
from keyrun.runtime.waiting.receive import receive
from keyrun.storage import StoreError
from keyrun.storage.payload import UNFIT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from keyrun.runtime.run.run import Run

MAX_DEPTH = 5


class ChildVerdict(BaseException):
    """The verdict of a child that is a part of its parent's run. It is not an `Exception`, so that
    `except Exception` in the child does not catch it."""

    def __init__(self, reason: str, *, cancelled: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.cancelled = cancelled


def _check_depth(branch: Branch) -> int:
    """Return the depth of the next child. Raise `TooDeep` if it is more than `MAX_DEPTH`."""
    parent = branch.run.submission.parent
    depth = (0 if parent is None else parent.depth) + branch.depth + 1
    if depth > MAX_DEPTH:
        raise TooDeep(
            f"children may be nested at most {MAX_DEPTH} deep; to make a chain of runs, submit the "
            "next run from a step",
            run_id=branch.run.run_id,
            key=branch.run.key,
        )
    return depth


async def child_in_run(
    branch: Branch,
    workflow: Workflow[Any, Any],
    input_: Any,
    call: "Callable[[Branch, Workflow[Any, Any], Any], Coroutine[Any, Any, Any]]",
) -> Any:
    """Drive a child as a part of its parent's run."""
    if workflow.kind != "function":
        raise from_user(
            TypeError(
                f"{workflow.name!r} is a {workflow.kind}, which needs a journal of its own; give "
                "it a key of its own: ctx.child(..., key=...)"
            )
        )
    run = branch.run
    with run.guarded():
        branch.check()
        depth = _check_depth(branch)
        codec = run.partition.codec
        ident = branch.name("child()")
        prefix = ident.replace("child()", "child", 1).replace("#", "") + "/"
        branch.pass_by(ident[len(branch.prefix) :] + INSIDE)
        # The child gets a copy of its input, as a run of its own would.
        given = codec.decode(codec.encode(input_, workflow.input_type), workflow.input_type)
        child = branch.part(prefix)
        child.depth = depth - (0 if run.submission.parent is None else run.submission.parent.depth)
        limit = workflow.limits.run_timeout
        limited = None if limit is UNSET or limit is None else FailAfter(child, float(limit))
        try:
            with limited or nullcontext():
                result = await call(child, workflow, given)
            encoded = codec.encode(result, workflow.result_type)
            return codec.decode(encoded, workflow.result_type)
        except ChildVerdict as verdict:
            kind = State.CANCELLED if verdict.cancelled else State.FAILED
            own = Failure(kind=FailureKind.VERDICT, reason=verdict.reason)
            raise _error(run, ident, workflow.name, kind, verdict.reason, own) from None
        except (StepFailed, ChildFailed, ChildCancelled) as error:
            raise _error(run, ident, workflow.name, State.FAILED, None, error.failure) from error
        except BaseException as error:
            if has(error, Halt) or not is_user_error(error) or is_internal(error):
                raise
            if issubclass(type(error), StoreError) and run.partition.failure is not None:
                raise
            own = workflow_error(error, run.partition.redaction)
            if limited is not None and limited.fired and isinstance(error, ScopeTimeout):
                said = f"the child exceeded its run_timeout of {limit:g} s"
                own = Failure(kind=FailureKind.RUN_TIMEOUT, reason=said, step=own.step)
            raise _error(run, ident, workflow.name, State.FAILED, None, own) from error
        finally:
            branch.leave(child)


async def child_run(branch: Branch, workflow: Workflow[Any, Any], input_: Any, key: str) -> Any:
    """Start a child under another key, and wait for its end."""
    run = branch.run
    branch.check()
    depth = _check_depth(branch)
    ident = branch.name("child()")
    is_new = branch.ask(ident)
    memory = run.journal.memory(ident)
    mark = _mark(run, workflow, input_, key)
    if None not in (memory.child, mark) and memory.child != mark:
        said = f"the journal has the child {ident!r} with another workflow, key or input"
        raise run.contradicted(f"{said}; {REMEDY}", ident)
    branch.check_place(ident, memory)
    if memory.channel is None and memory.outcome is None:
        if branch.bound:
            await branch.admit()
        if is_new:
            await branch.start_new(ident)
        if run.is_dry_run:
            return await run.dry_run_wait(f"child {workflow.name}")
        if run.is_stopped():
            await ready(run)
        memory.child = mark
        await run.partition.services.children.admit(
            run, ident, memory, workflow, input_, key, depth
        )
    channel = memory.channel or str(memory.payload[0])
    child_id = channel.removeprefix(CHILD)
    if memory.outcome is None and not run.is_dry_run:
        await run.partition.services.children.check_cycle(run, child_id, key)
    try:
        label = f"child {child_id}"
        sent = await receive(branch, ident, CallKind.CHILD, channel, label, None, asked=True)
    except trio.Cancelled:
        if memory.outcome is None and not memory.rank and run.going and not run.is_dry_run:
            run.partition.services.children.orphan(run, child_id)
        raise
    assert sent is not None
    state, result, failure, reason = sent[0]
    if not run.is_dry_run:
        run.partition.services.children.end_received(run, child_id)
    if state == State.SUCCEEDED:
        return read_outcome(run, ident, result, workflow.result_type)
    raise _error(run, ident, child_id, State(state), reason, read_failure(failure))


def _mark(run: "Run", workflow: Workflow[Any, Any], input_: Any, key: str) -> int | None:
    """Return a checksum of a child, or None if its input cannot be encoded."""
    try:
        given = run.partition.codec.canonical(input_, workflow.input_type)
    except UNFIT:
        return None
    return crc32(f"{workflow.name}\0{key}\0".encode() + given)


def _error(
    run: "Run",
    ident: str,
    child: str,
    state: State,
    reason: str | None,
    cause: Failure | None,
) -> Exception:
    """Return the error that the parent receives for a child that did not succeed, with the chain of
    causes."""
    if state is State.CANCELLED:
        said = f"the child {child} was cancelled" + (f": {reason}" if reason else "")
        failure = Failure(kind=FailureKind.CHILD_FAILED, reason=said, step=ident, cause=cause)
        return ChildCancelled(said, reason=reason, failure=failure, run_id=run.run_id, key=run.key)
    why = reason or (cause.reason if cause else "for an unknown reason")
    said = f"the child {child} failed: {why}"
    failure = Failure(kind=FailureKind.CHILD_FAILED, reason=said, step=ident, cause=cause)
    return ChildFailed(said, failure=failure, run_id=run.run_id, key=run.key)
