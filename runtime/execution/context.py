"""The context: what a workflow function can ask for."""

from collections.abc import Awaitable, Callable, Coroutine, Generator
from datetime import UTC, datetime
from hashlib import sha256
from inspect import iscoroutine
from logging import Logger, LoggerAdapter
from random import Random
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, overload
from uuid import UUID

from keyrun.actors import checks
from keyrun.runtime.children import child
from keyrun.runtime.definitions.step import StepFunction, as_step
from keyrun.runtime.definitions.workflow import Workflow
from keyrun.runtime.execution.gather import gather
from keyrun.runtime.execution.run_log import RunLog
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.pass_end import CancelVerdict, Continuation
from keyrun.runtime.records.checks import check_key
from keyrun.runtime.records.journal_entry import CallDone, CallKind, EntryKind
from keyrun.runtime.run import reports
from keyrun.runtime.run.branch import Branch
from keyrun.runtime.run.continue_as import identity, why_not_continued
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.scope import FailAfter, MoveOnAfter, watched
from keyrun.runtime.steps.execution import perform
from keyrun.runtime.texts import a_reason, check_text
from keyrun.runtime.values import Failure, FailureKind
from keyrun.runtime.waiting.receive import (
    Approval,
    check_channel,
    check_gate,
    check_timeout,
    wait_approval,
    wait_signal,
)
from keyrun.runtime.waiting.sleep import sleep

MAX_PATCH = 200
"""Bytes of the name of a patch."""

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
I = TypeVar("I")  # noqa: E741 (the input)


class DurableCall(Generic[R]):
    """Refer to a call that `ctx.step` or `ctx.child` describes. The call starts when you await it
    or pass it to `ctx.gather`."""

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
        """Return the same call in another branch."""
        call = perform(branch, self._step, self._args, self._kwargs)
        return watched(branch, call) if branch.bound else call


class ChildCall(DurableCall[R]):
    """Refer to a child that starts when you await this object or pass it to `ctx.gather`."""

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
        """Return the same call in another branch."""
        with branch.run.guarded():
            if self._key is None or self._key == branch.run.key:
                return child.child_in_run(branch, self._workflow, self._input, _call)
            return watched(branch, child.child_run(branch, self._workflow, self._input, self._key))


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
    """Give a workflow its durable operations. A workflow receives a context as its first argument.

    Keyrun journals the outcomes of these calls. After a crash it calls the workflow again, and the
    calls that have an outcome return it at once. Use a context only in its own workflow or branch;
    otherwise it raises `WrongTask`."""

    __slots__ = ("_run", "branch", "input")

    def __init__(self, branch: Branch, input_: Any) -> None:
        self.branch = branch
        self._run: Run = branch.run
        self.input = input_
        """The input of the run."""

    @property
    def run_id(self) -> str:
        """Return the id of the run."""
        return self._run.run_id

    @property
    def key(self) -> str:
        """Return the ordering key of the run."""
        return self._run.key

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that `rt.submit` received."""
        return dict(self._run.submission.headers)

    @property
    def cancel_requested(self) -> bool:
        """Return whether a cancellation of the run was requested."""
        return self._run.status.cancel_requested

    @property
    def log(self) -> LoggerAdapter[Logger]:
        """Return a logger: `ctx.log.info("charged %s", receipt)`.

        Its records have `run`, `key`, `workflow` and `step` as attributes, where `step` is the last
        step that this branch called. The name of the logger is `keyrun.workflow`. When the workflow
        is replayed, the lines of the calls that the journal has are not logged again."""
        return RunLog(self.branch)

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
    @overload
    def step(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> DurableCall[R]: ...
    def step(self, function: Any, /, *args: Any, **kwargs: Any) -> DurableCall[Any]:
        """Call a step and return its result: `await ctx.step(charge, order)`.

        Keyrun stores the result. When the workflow is replayed, the call returns the stored result
        without calling the function again. Raises `StepFailed` if the step failed and is not
        retried. A plain function is a step with default options."""
        if type(function) is not StepFunction:
            if isinstance(function, Workflow):
                raise TypeError(
                    f"ctx.step takes a step, got the workflow {function.name!r}: use ctx.child"
                )
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
        """Run several calls concurrently, and return a tuple of their results.

        Pass `ctx.step(...)` and `ctx.child(...)` without `await`, and async functions that take a
        context of their own. If one fails, `gather` cancels the others and raises its exception."""
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

    @overload
    def child(
        self,
        workflow: Workflow[None, R],
        input: None = None,
        *,
        key: str | None = None,
    ) -> DurableCall[R]: ...
    @overload
    def child(
        self,
        workflow: Workflow[I, R],
        input: I,
        *,
        key: str | None = None,
    ) -> DurableCall[R]: ...
    def child(
        self,
        workflow: Workflow[I, R],
        input: I | None = None,  # noqa: A002
        *,
        key: str | None = None,
    ) -> DurableCall[R]:
        """Run another workflow and return its result: `await ctx.child(invoice, order)`.

        Without a `key`, or with the key of this run, the child is a part of this run. With another
        `key` it is a run of its own in the queue of that key. Raises `ChildFailed` or
        `ChildCancelled`."""
        if not isinstance(workflow, Workflow):
            raise TypeError(f"ctx.child takes a workflow, got {workflow!r}")
        if key is not None:
            check_key(key)
        with self._run.guarded():
            return ChildCall(self.branch, workflow, input, key)

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds, which count from the first time that the run reaches this
        call. A crash or a restart does not start the wait again."""
        checks.at_least("seconds", seconds, 0)
        await watched(self.branch, sleep(self.branch, seconds))

    async def wait_signal(self, name: str, timeout: float | None = None) -> Any:
        """Wait for a signal and return its payload.

        `rt.signal(run_id, name, payload)` sends the signal, before or after the run reaches this
        call. Raises `SignalTimeout` if no signal arrives within `timeout` seconds."""
        check_channel(name)
        check_timeout(timeout)
        return await watched(self.branch, wait_signal(self.branch, name, timeout))

    async def approval(self, gate: str, timeout: float | None = None) -> Approval:
        """Wait for the decision of a person, and return the approval.

        `rt.approve(run_id, gate, by=...)` and `rt.reject` decide. Raises `ApprovalRejected` after a
        rejection, and `SignalTimeout` if no decision arrives within `timeout` seconds. If a run
        asks at the same gate a second time, that gate is called `gate#2`."""
        check_gate(gate)
        check_timeout(timeout)
        return await watched(self.branch, wait_approval(self.branch, gate, timeout))

    def move_on_after(self, seconds: float) -> MoveOnAfter:
        """Limit the time of a block: `with ctx.move_on_after(5) as scope: ...`.

        The time counts from the first time that the run enters the block, crashes and restarts
        included. When it is over, Keyrun cancels the block and never starts its unfinished calls
        again. The workflow continues after the block, where `scope.expired` is True."""
        checks.at_least("seconds", seconds, 0)
        with self._run.guarded():
            return MoveOnAfter(self.branch, seconds)

    def fail_after(self, seconds: float) -> FailAfter:
        """Limit the time of a block like `ctx.move_on_after`, and raise `ScopeTimeout` when the
        time is over."""
        checks.at_least("seconds", seconds, 0)
        with self._run.guarded():
            return FailAfter(self.branch, seconds)

    async def checkpoint(self) -> None:
        """Wait until everything that this run has done is durable.

        Only workflows with a `checkpoint` policy need this. Other workflows wait before every
        step."""
        run = self._run
        with run.guarded():
            self.branch.check()
            if run.is_dry_run:
                return
            if run.checkpointer is not None:
                run.checkpointer.reset()
            await run.partition.store.durable()

    def patched(self, name: str) -> bool:
        """Return whether this run takes a change of the code. Put the changed code behind
        `if ctx.patched("name"):`.

        The answer is False if the run passed this place with the code before the change: its
        journal has calls that were not replayed yet when the run first asks for this name. Keyrun
        stores the answer. It holds for this name in the whole run, in every branch, also after a
        redrive. After `ctx.continue_as` the run asks again. Remove the `if` when `keyrun stats`
        counts no run that got False.
        """
        check_patch(name)
        with self._run.guarded():
            self.branch.check()
            return _patched(self.branch.run, name)

    def now(self) -> datetime:
        """Return the UTC time at which the run first reached this call."""
        with self._run.guarded():
            return datetime.fromtimestamp(_now(self.branch), UTC)

    def random(self) -> float:
        """Return a random number in [0, 1), which is the same in every replay."""
        with self._run.guarded():
            return Random(self._seed("random()")).random()

    def uuid4(self) -> UUID:
        """Return a random UUID, which is the same in every replay."""
        with self._run.guarded():
            return UUID(bytes=self._seed("uuid4()")[:16], version=4)

    def report(self, percent: float, message: str = "") -> None:
        """Report the progress of the run to `rt.progress` and `rt.watch`.

        `percent` is a number from 0 to 100. The latest report is stored with the next commit. It is
        not in the journal, so nothing else may depend on it."""
        reports.check(percent, message)
        with self._run.guarded():
            self.branch.check()
            reports.of_run(self._run, percent, message)

    def fail(self, reason: str) -> NoReturn:
        """End the run as failed with the failure kind `verdict`. The run is not a dead letter."""
        self._end("ctx.fail()", a_reason(reason), cancelled=False)

    def cancel(self, reason: str) -> NoReturn:
        """End the run as cancelled, with a reason."""
        self._end("ctx.cancel()", a_reason(reason), cancelled=True)

    def continue_as(self, input: Any = None) -> NoReturn:  # noqa: A002
        """Continue the same run with another input and an empty journal.

        Use this for endless loops: each round costs the same. Other branches of the run are
        cancelled. The limits of steps and retries count from zero again. The deadline of the run
        stays. Raises `RuntimeError` if a step with a compensation has run, and in a child that is a
        part of the run of its parent."""
        run = self._run
        with run.guarded():
            self.branch.check()
            kept = why_not_continued(run)
        if self.branch.depth:
            raise RuntimeError(
                "a child without a key is a part of its parent's run, so it cannot call "
                "continue_as; give it a key: ctx.child(..., key=...)"
            )
        if kept is not None:
            raise RuntimeError(kept)
        with run.guarded():
            self.branch.check_asked("ctx.continue_as()")
            encoded = run.partition.codec.encode(input, run.workflow.input_type)
            raise run.halt(Continuation(encoded))

    def _end(self, asked: str, reason: str, *, cancelled: bool) -> NoReturn:
        """End the run as its workflow decided; in a child that is a part of the run, the child."""
        with self._run.guarded():
            self.branch.check()
            reason = self._run.partition.redaction.text(reason)
            if self.branch.depth:
                raise from_user(child.ChildVerdict(reason, cancelled=cancelled))
            self.branch.check_asked(asked)
            if cancelled:
                raise self._run.halt(CancelVerdict(reason))
            verdict = Failure(kind=FailureKind.VERDICT, reason=reason, step=self.branch.node)
            raise self._run.halt(verdict)

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
        run.journal.settled(ident, memory, EntryKind.DONE)
    else:
        run.journal.deliver(memory)
    return float(memory.payload)


def check_patch(name: object) -> None:
    """Raise ValueError if a patch cannot have this name."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"the name of a patch must be a non-empty string, got {name!r}")
    if len(check_text(name, "the name of a patch").encode()) > MAX_PATCH:
        raise ValueError(f"the name of a patch must have at most {MAX_PATCH} bytes, got {name!r}")


def _patched(run: Run, name: str) -> bool:
    """Return the answer of `ctx.patched` that the run has for this name. If it has none, answer
    whether the whole journal was replayed, and store the answer."""
    status, journal = run.status, run.journal
    known = (status.patches or {}).get(name)
    if known is not None:
        return known
    answer = journal.expected is None and journal.caught_up()
    status.patches = {**(status.patches or {}), name: answer}
    if not run.is_dry_run:
        run.partition.counts.patched(run.submission, {name: answer}, 1)
        run.note("", "patched", f"{name}: {str(answer).lower()}")
        run.store_status()
    return answer
