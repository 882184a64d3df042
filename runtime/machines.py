"""Machines: workflows that are written as one function, which Keyrun calls once per turn.

A turn is a step. It returns what the next turn is. The store keeps only the latest turn, so a
machine may run for years at a constant cost on disk.
"""

import inspect
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import attrs

from keyrun.actors import checks
from keyrun.actors.errors import shown
from keyrun.runtime.definitions.step import StepFunction, StepOptions
from keyrun.runtime.definitions.workflow import WhileWaiting, Workflow
from keyrun.runtime.events import emitter
from keyrun.runtime.internal_errors import from_user
from keyrun.runtime.limits import Limits
from keyrun.runtime.pass_end import CancelVerdict
from keyrun.runtime.policies.retry import Retry
from keyrun.runtime.records.journal_entry import (
    CallDone,
    CallKind,
    CallRecord,
    EntryKind,
    NextTurn,
    Timer,
)
from keyrun.runtime.run.draft import Draft
from keyrun.runtime.run.run import Run
from keyrun.runtime.run.wait import TIMER, Wait
from keyrun.runtime.steps.attempts import attempts, ready
from keyrun.runtime.steps.current_step import CurrentStep, current_step
from keyrun.runtime.steps.execution import read_outcome
from keyrun.runtime.steps.inline_start import too_many_iterations
from keyrun.runtime.steps.outcome import step_failed
from keyrun.runtime.texts import a_reason
from keyrun.runtime.values import Failure, FailureKind
from keyrun.runtime.waiting.receive import check_channel, check_timeout

if TYPE_CHECKING:
    from keyrun.runtime.execution.context import Context
    from keyrun.runtime.run.branch import Branch


@attrs.frozen
class Continue:
    """Start the next turn: at once, after a time, or when the run receives a signal."""

    payload: Any = None
    """The payload of the next turn."""
    after: float = attrs.field(default=0.0, kw_only=True)
    """Seconds until the next turn starts."""
    on_signal: str | None = attrs.field(default=None, kw_only=True)
    """The name of the signal that starts the next turn."""
    timeout: float | None = attrs.field(default=None, kw_only=True)
    """Seconds to wait for the signal. Then the turn starts without a signal."""

    @after.validator
    def _check(self, attribute: object, value: float) -> None:
        if not checks.is_number(value) or not value >= 0:
            raise ValueError(f"after must be at least 0 seconds, got {value!r}")

    def __attrs_post_init__(self) -> None:
        check_timeout(self.timeout)
        if self.on_signal is None:
            if self.timeout is not None:
                raise ValueError("timeout requires on_signal; to wait for a time, give after")
            return
        check_channel(self.on_signal, "on_signal")
        if self.after:
            raise ValueError(
                "a turn waits for a time or a signal: give after or on_signal, not both"
            )

    def timer(self, now: float) -> Timer | None:
        """Return when the next turn is due and the length of that wait, or None if it has no
        limit."""
        length = self.timeout if self.on_signal is not None else self.after or None
        return None if length is None else Timer(now + length, float(length))


@attrs.frozen
class Succeed:
    """End the run as succeeded."""

    result: Any = None
    """The result of the run."""


@attrs.frozen
class Fail:
    """End the run as failed with the failure kind `verdict`. The run is not a dead letter."""

    reason: str = attrs.field(converter=a_reason)
    """A sentence for people."""


@attrs.frozen
class Cancel:
    """End the run as cancelled."""

    reason: str = attrs.field(converter=a_reason)
    """A sentence for people."""


Verdict = Continue | Succeed | Fail | Cancel
_LAST = {"succeed": Succeed, "fail": Fail, "cancel": Cancel}
"""The verdicts that end a machine, by their stored name."""


@attrs.frozen
class TurnSignal:
    """Describe the signal that a turn waited for."""

    name: str
    """The name of the signal."""
    payload: Any
    """The payload that `rt.signal` received."""


class Turn:
    """Describe one turn of a machine. A machine receives a turn as its argument."""

    __slots__ = ("number", "payload", "signal")

    def __init__(self, number: int, payload: Any, signal: TurnSignal | None = None) -> None:
        self.number = number
        """The number of the turn, from 0."""
        self.payload = payload
        """The input of the run in the first turn, then the payload of `Continue`."""
        self.signal = signal
        """The signal that the turn waited for. None if it waited for none, or the wait timed
        out."""

    @property
    def run_id(self) -> str:
        """Return the id of the run."""
        return current_step().run_id

    @property
    def key(self) -> str:
        """Return the ordering key of the run."""
        return current_step().key

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that `rt.submit` received."""
        return current_step().headers

    @property
    def attempt(self) -> int:
        """Return the number of this attempt of the turn, from 1."""
        return current_step().attempt

    @property
    def state(self) -> Draft:
        """Return the durable mapping of the key; see `current_step().state`."""
        return current_step().state

    @property
    def memo(self) -> Draft:
        """Return a mapping that survives the attempts of this turn."""
        return current_step().memo

    @property
    def cancel_requested(self) -> bool:
        """Return whether a cancellation of the run was requested."""
        return current_step().cancel_requested


def machine(
    *,
    name: str | None = None,
    version: int = 1,
    limits: Limits = Limits(),  # noqa: B008 (frozen)
    retry: Retry | None = None,
    shield: bool = False,
    while_waiting: WhileWaiting = "hold",
) -> Callable[[Callable[[Turn], Coroutine[Any, Any, Verdict]]], Workflow[Any, Any]]:
    """Make a workflow of `async def turn(t: Turn)`, which returns `Continue`, `Succeed`, `Fail` or
    `Cancel`. `max_iterations` limits the number of turns."""

    def decorate(function: Callable[[Turn], Coroutine[Any, Any, Verdict]]) -> Workflow[Any, Any]:
        if not inspect.iscoroutinefunction(function):
            raise TypeError(f"@machine requires an async function, got {function!r}")
        step: StepFunction[..., Any] = StepFunction(
            function, StepOptions(name="turn", shield=shield), Any
        )
        step.complete = _turned

        async def loop(context: "Context", input_: Any) -> Any:
            try:
                return await _run(context.branch, step, input_)
            except BaseException as error:
                context.branch.run.guard(error)
                raise

        loop.__doc__ = function.__doc__
        return Workflow(
            loop,
            name=name or function.__name__,
            version=version,
            limits=limits,
            retry=retry,
            input_type=Any,
            result_type=Any,
            kind="machine",
            while_waiting=while_waiting,
            written=function,
        )

    return decorate


async def _run(branch: "Branch", step: StepFunction[..., Any], input_: Any) -> Any:
    run = branch.run
    branch.check()
    branch.check_asked("a turn")
    while True:
        turn = run.journal.turn
        if turn is not None and (turn.timer or turn.channel):
            turn = await _wait(run, turn)
        number = 0 if turn is None else turn.number
        if number >= run.submission.limits.most_iterations:
            raise too_many_iterations(run, number + 1, "the machine began turn")
        payload = input_ if turn is None else read_outcome(run, f"turn-{number - 1}", turn.payload)
        signal = None
        if turn is not None and turn.signal is not None:
            sent = read_outcome(run, f"signal {turn.channel}", turn.signal)
            signal = TurnSignal(turn.channel or "", sent)
        match await _turn(branch, step, Turn(number, payload, signal)):
            case Succeed(result=result):
                return result
            case Fail(reason=reason):
                said = run.partition.redaction.text(reason)
                raise run.halt(Failure(kind=FailureKind.VERDICT, reason=said))
            case Cancel(reason=reason):
                raise run.halt(CancelVerdict(run.partition.redaction.text(reason)))


async def _wait(run: Run, turn: NextTurn) -> NextTurn:
    """Wait until the next turn is due or its signal arrives. One commit takes the signal and stores
    it with the turn."""
    if turn.signal is not None:
        return turn
    label = TIMER if turn.channel is None else f"signal {turn.channel}"
    now = run.partition.steady()
    wait = Wait(label, "turn", timer=turn.timer, now=now, channel=turn.channel, rank=1)
    inbox = run.open_inbox
    if turn.channel is not None:
        inbox.enter("turn", wait, run.journal)
    try:
        if wait.signal is None:
            await run.wait(wait)
        if turn.channel is None or run.is_stopped():
            await ready(run)
        signal, wait.signal = wait.signal, None
    finally:
        inbox.leave("turn", run.journal)
    if signal is not None:
        turn = turn._replace(at=run.partition.wall(), timer=None, signal=signal.payload)
        with run.partition.together():
            run.partition.services.signals.take(run, signal)
            _keep_next(run, turn)
    elif turn.channel is not None:
        turn = turn._replace(at=run.partition.wall(), timer=None, channel=None)
        _keep_next(run, turn)
    return turn


def _keep_next(run: Run, turn: NextTurn) -> None:
    """Stage the next turn, which replaces the one before."""
    partition = run.partition
    run.journal.turn = turn
    run.put("journal", partition.ledger.entry(run.number, 0), *turn.encode())


async def _turn(branch: "Branch", step: StepFunction[..., Any], turn: Turn) -> Verdict:
    run = branch.run
    ident = f"turn-{turn.number}"
    memory = run.journal.memory(ident)
    if memory.outcome is not None:
        run.journal.deliver(memory)
        if memory.outcome is EntryKind.DONE:
            name, value = memory.payload
            last: Verdict = _LAST[name](read_outcome(run, ident, value))
            return last
        assert memory.failure is not None
        raise step_failed(run, memory.failure)
    memory.fingerprint = 0
    verdict: Verdict = await attempts(branch, step, ident, memory, (turn,), {})
    return verdict


def _keep(run: Run, current: CurrentStep, last: Succeed | Fail | Cancel) -> None:
    """Stage the verdict of the last turn. Usually the commit that ends the run has it, but not if
    the run is held, or its coroutine is cancelled, before it ends."""
    value = last.result if isinstance(last, Succeed) else last.reason
    payload = [type(last).__name__.lower(), run.partition.codec.encode(value)]
    at, attempt, begun = run.partition.wall(), current.attempt, current.begun
    run.write(CallDone(current.step, at, CallKind.STEP, 0, attempt, begun, payload))


def _turned(run: Run, memory: CallRecord, current: CurrentStep, value: Any) -> None:
    """Stage the verdict of a turn. The next turn replaces it, and its failed attempts are
    deleted."""
    if not isinstance(value, Continue | Succeed | Fail | Cancel):
        raise from_user(
            TypeError(
                f"a machine must return Continue, Succeed, Fail or Cancel, got {shown(value)}"
            )
        )
    journal, partition = run.journal, run.partition
    held = run.queue.holder is current
    if held:
        current.seal_state()
    with partition.together():
        if isinstance(value, Continue):
            payload = partition.codec.encode(value.payload)
            number = int(current.step.partition("-")[2]) + 1
            timer = value.timer(partition.steady())
            counted = journal.retries, journal.next
            at = partition.wall()
            _keep_next(run, NextTurn(at, number, payload, timer, *counted, value.on_signal))
        elif run.is_held() or run.unwinding is not None:
            _keep(run, current, value)
        for sequence in journal.turn_entries:
            run.delete("journal", partition.ledger.entry(run.number, sequence))
        journal.turn_entries = ()
        del journal.memories[current.step]
        if held:
            run.queue.keep_state(run, current)
        if current.step in run.memos:
            del run.memos[current.step]
            run.delete("memo", partition.ledger.step(run.number, current.step))
    run.status.steps_done += 1
    now = partition.wall()
    if run.metrics is not None:
        run.metrics.completed("turn", now - current.begun)
    if partition.feed is not None:
        emitter.step_completed(partition.feed, run, current, now)
