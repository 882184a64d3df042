"""The context: what a workflow function can ask for."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime
from hashlib import sha256
from inspect import iscoroutine
from random import Random
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from keyrun.runtime.children import child
from keyrun.runtime.definitions.step import StepFunction, as_step
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.execution.gather import gather
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.journal_entry import CallDone
from keyrun.runtime.run import reports
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.continue_as import identity, what_keeps
from keyrun.runtime.run.contradiction import halt
from keyrun.runtime.run.journal import CallKind, Entry
from keyrun.runtime.run.patches import check_patch, patched
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.scope import FailAfter, MoveOnAfter, watched
from keyrun.runtime.steps.execution import perform
from keyrun.runtime.texts import a_reason
from keyrun.runtime.values import Failure, FailureKind
from keyrun.runtime.verdicts import CancelVerdict, Continuation
from keyrun.runtime.waiting.receive import (
    Approval,
    check_channel,
    check_gate,
    check_timeout,
    wait_approval,
    wait_signal,
)
from keyrun.runtime.waiting.sleep import check_seconds, sleep

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
I = TypeVar("I")  # noqa: E741 (the input)


class DurableCall(Generic[R]):
    """A step that was asked for and begins when it is awaited, or given to `gather`."""

    __slots__ = ("_args", "_kwargs", "_step", "branch")

    def __init__(
        self,
        branch: Branch,
        step: StepFunction[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.branch = branch
        self._step = step
        self._args = args
        self._kwargs = kwargs

    def __await__(self) -> Generator[Any, Any, R]:
        branch = self.branch
        call = perform(branch, self._step, self._args, self._kwargs)
        return (watched(branch, call) if branch.bound else call).__await__()

    def on(self, branch: Branch) -> Coroutine[Any, Any, R]:
        """The same call in another branch."""
        call = perform(branch, self._step, self._args, self._kwargs)
        return watched(branch, call) if branch.bound else call


class ChildCall(DurableCall[R]):
    """A child that was asked for and begins when it is awaited, or given to `gather`."""

    __slots__ = ("_input", "_key", "_workflow")

    def __init__(
        self, branch: Branch, workflow: Workflow[Any, R], input_: Any, key: str | None
    ) -> None:
        self.branch = branch
        self._workflow = workflow
        self._input = input_
        self._key = key

    def __await__(self) -> Generator[Any, Any, R]:
        return self.on(self.branch).__await__()

    def on(self, branch: Branch) -> Coroutine[Any, Any, R]:
        """The same call in another branch."""
        with branch.run.guarded():
            if self._key is None or self._key == branch.run.key:
                return child.inside(branch, self._workflow, self._input, _call)
            return watched(branch, child.apart(branch, self._workflow, self._input, self._key))


async def _call(branch: Branch, workflow: Workflow[Any, Any], input_: Any) -> Any:
    context = Context(branch, input_)
    try:
        if workflow.takes_input:
            return await workflow.function(context, input_)
        return await workflow.function(context)
    except BaseException as error:
        from_user(error)
        raise


async def _call_part(function: Callable[["Context"], Awaitable[Any]], context: "Context") -> Any:
    """Call an async function that was given to `gather`."""
    try:
        return await function(context)
    except BaseException as error:
        from_user(error)
        raise


Part = DurableCall[A] | Callable[["Context"], Awaitable[A]]


class Context:
    """What a workflow gets as its first argument. Everything durable goes through it."""

    __slots__ = ("_run", "branch", "input")

    def __init__(self, branch: Branch, input_: Any) -> None:
        self.branch = branch
        self._run: Run = branch.run
        self.input = input_

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self._run.run_id

    @property
    def key(self) -> str:
        """The ordering key."""
        return self._run.key

    @property
    def headers(self) -> dict[str, str]:
        """What was given to `submit`."""
        return dict(self._run.submission.headers)

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for this run to be cancelled."""
        return self._run.standing.cancel_requested

    @overload
    def step(
        self, function: StepFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> DurableCall[R]: ...
    @overload
    def step(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> DurableCall[R]: ...
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> DurableCall[Any]:
        """Call `function` durably: its outcome is remembered, and given back without calling it
        when this run is driven again. Raises `StepFailed` when it failed for good."""
        if type(function) is not StepFunction:
            function = as_step(function)
        try:
            return DurableCall(self.branch, function, args, kwargs)
        except BaseException as error:
            self._run.guard(error)
            raise

    @overload
    async def gather(self, a: Part[A], b: Part[B], /) -> tuple[A, B]: ...
    @overload
    async def gather(self, a: Part[A], b: Part[B], c: Part[C], /) -> tuple[A, B, C]: ...
    @overload
    async def gather(self, *parts: Part[Any]) -> tuple[Any, ...]: ...
    async def gather(self, *parts: Any) -> tuple[Any, ...]:
        """Do several things at once: steps, and async functions that get a context of their own.
        The first failure cancels the others and is raised."""
        for part in parts:
            if not isinstance(part, DurableCall) and not callable(part):
                for each in parts:
                    if iscoroutine(each):
                        each.close()  # nobody will await it
                raise TypeError(
                    "gather takes ctx.step(...) and ctx.child(...), and async functions of a "
                    f"context, as in lambda ctx: ctx.wait_signal('go'), got {part!r}"
                )

        def start(part: Any, branch: Branch) -> Awaitable[Any]:
            if isinstance(part, DurableCall):
                return part.on(branch)
            return _call_part(part, Context(branch, self.input))

        with self._run.guarded():
            return await gather(self.branch, parts, start)

    def child(
        self,
        workflow: Workflow[I, R],
        input: I = None,  # type: ignore[assignment]  # noqa: A002
        *,
        key: str | None = None,
    ) -> DurableCall[R]:
        """Run another workflow and wait for its result: as a part of this run, or, with another
        `key`, as a run of its own in the order of that key. Raises `ChildFailed` or
        `ChildCancelled`. To be awaited, or given to `gather`."""
        if not isinstance(workflow, Workflow):
            raise TypeError(f"ctx.child takes a workflow, got {workflow!r}")
        if key is not None:
            check_key(key)
        with self._run.guarded():
            return ChildCall(self.branch, workflow, input, key)

    async def sleep(self, seconds: float) -> None:
        """Wait. The time is counted from the first time that this is reached, crashes or not."""
        check_seconds(seconds)
        await watched(self.branch, sleep(self.branch, seconds))

    async def wait_signal(self, name: str, timeout: float | None = None) -> Any:
        """Wait until somebody calls `runtime.signal(run_id, name, payload)`, now or before this was
        reached; the payload. Raises `SignalTimeout` after `timeout` seconds."""
        check_channel(name)
        check_timeout(timeout)
        return await watched(self.branch, wait_signal(self.branch, name, timeout))

    async def approval(self, gate: str, timeout: float | None = None) -> Approval:
        """Wait until a person calls `runtime.approve(run_id, gate, by=...)`. Raises
        `ApprovalRejected` if they reject, and `SignalTimeout` after `timeout` seconds. The second
        time, the gate is called `gate#2`."""
        check_gate(gate)
        check_timeout(timeout)
        return await watched(self.branch, wait_approval(self.branch, gate, timeout))

    def move_on_after(self, seconds: float) -> MoveOnAfter:
        """A block that is cut off `seconds` after it was first entered, crashes or not:
        `with ctx.move_on_after(5) as scope: ...`, and then `scope.expired`. What was not done by
        then is cancelled and never started again."""
        check_seconds(seconds)
        with self._run.guarded():
            return MoveOnAfter(self.branch, seconds)

    def fail_after(self, seconds: float) -> FailAfter:
        """The same, but a block that is cut off raises `ScopeTimeout`."""
        check_seconds(seconds)
        with self._run.guarded():
            return FailAfter(self.branch, seconds)

    async def checkpoint(self) -> None:
        """Return when all that this run has done is durable. Only workflows with a `checkpoint` of
        their own need it: others wait before every step."""
        run = self._run
        with run.guarded():
            self.branch.check()
            if run.is_dry_run:
                return
            if run.cadence is not None:
                run.cadence.reset()
            await run.partition.store.durable()

    def patched(self, name: str) -> bool:
        """Whether a run takes a change of the code: `if ctx.patched("name"):` in front of it.

        The answer is False if the run came past this place with the code before the change: if,
        when it first asks for this name, its journal has calls that were not replayed yet. It is
        stored, and holds for this name in the whole run, in every branch, also after a redrive.
        `continue_as` asks anew. Remove the `if` when `keyrun stats` counts no run that got False.
        """
        check_patch(name)
        with self._run.guarded():
            self.branch.check()
            return patched(self.branch, name)

    def now(self) -> datetime:
        """The time at which this was first reached."""
        with self._run.guarded():
            return datetime.fromtimestamp(_now(self.branch), UTC)

    def random(self) -> float:
        """A number in [0, 1), the same whenever this run is driven again."""
        with self._run.guarded():
            return Random(self._seed("random()")).random()

    def uuid4(self) -> UUID:
        """A random UUID, the same whenever this run is driven again."""
        with self._run.guarded():
            return UUID(bytes=self._seed("uuid4()")[:16], version=4)

    def report(self, percent: float, message: str = "") -> None:
        """Say how far the run is, for those who watch. The last word counts, and is with the next
        commit. Nothing else may depend on it: it is not in the journal."""
        reports.check(percent, message)
        with self._run.guarded():
            self.branch.check()
            reports.of_run(self._run, percent, message)

    def fail(self, reason: str) -> NoReturn:
        """End the run as failed, by the workflow's own judgement: no dead letter."""
        self._end("ctx.fail()", a_reason(reason), cancelled=False)

    def cancel(self, reason: str) -> NoReturn:
        """End the run as cancelled, for a reason of the workflow's own."""
        self._end("ctx.cancel()", a_reason(reason), cancelled=True)

    def continue_as(self, input: Any = None) -> NoReturn:  # noqa: A002
        """Go on as the same run with another input and an empty journal: for loops without end,
        which so cost the same in their tenth year as on their first day. Branches beside this one
        are cancelled. Limits of steps and retries count anew, the deadline of the run stays.

        Raises `RuntimeError` if a step was done that has a compensation."""
        run = self._run
        with run.guarded():
            self.branch.check()
            kept = what_keeps(run)
        if self.branch.depth:
            raise RuntimeError(
                "a child that is a part of its parent's run cannot go on with an empty journal; "
                "give it a key of its own: ctx.child(..., key=...)"
            )
        if kept is not None:
            raise RuntimeError(kept)
        with run.guarded():
            self.branch.check_asked("ctx.continue_as()")
            encoded = run.partition.codec.encode(input, run.workflow.input_type)
            raise halt(run, Continuation(encoded))

    def _end(self, asked: str, reason: str, *, cancelled: bool) -> NoReturn:
        """End the run as its workflow decided; in a child that is a part of the run, the child."""
        with self._run.guarded():
            self.branch.check()
            if self.branch.depth:
                raise from_user(child.Verdict(reason, cancelled=cancelled))
            self.branch.check_asked(asked)
            if cancelled:
                raise halt(self._run, CancelVerdict(reason))
            raise halt(self._run, Failure(kind=FailureKind.VERDICT, reason=reason))

    def _seed(self, base: str) -> bytes:
        self.branch.check()
        return sha256(identity(self._run, self.branch.name(base))).digest()


def _now(branch: Branch) -> float:
    """Return the time at which the next call of `now` was first reached."""
    run = branch.run
    branch.check()
    ident = branch.name("now()")
    branch.ask_at_once(ident)
    memory = run.journal.memory(ident)
    if memory.outcome is None and branch.bound and branch.cut_off_next:
        return run.partition.wall()
    if memory.outcome is None:
        memory.call = CallKind.NOW
        memory.payload = run.partition.wall()
        at = run.partition.wall()
        run.write(CallDone(ident, at, CallKind.NOW, None, 1, None, memory.payload))
        run.journal.settled(ident, memory, Entry.DONE)
    else:
        run.journal.deliver(memory)
    return float(memory.payload)
