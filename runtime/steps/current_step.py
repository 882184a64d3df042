"""The current step: the facts about an attempt that its step can read, and its durable mappings."""

from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING, Any

import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.internal_errors import INTERNAL_CODE
from keyrun.runtime.run import reports
from keyrun.runtime.run.continue_as import identity
from keyrun.runtime.run.draft import Draft
from keyrun.runtime.run.running_step import running
from keyrun.runtime.steps.deadline import start_clock
from keyrun.runtime.values import UNSET
from keyrun.storage import OwnershipUncertain

if TYPE_CHECKING:
    from keyrun.runtime.definitions.step import StepFunction
    from keyrun.runtime.host.tracing import AttemptSpan
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.run.running_step import Report


class CurrentStep:
    """Describe the attempt of a step to the step itself. `current_step()` returns this."""

    __slots__ = (
        "_memo",
        "_run",
        "_state",
        "attempt",
        "begun",
        "in_thread",
        "marked",
        "over",
        "progress",
        "scope",
        "sealed_state",
        "shielded",
        "span",
        "step",
        "suspect",
        "timeout",
        "until",
    )

    def __init__(
        self,
        run: "Run",
        step: "StepFunction[..., Any]",
        ident: str,
        attempt: int = 1,
        suspect: bool = False,
    ) -> None:
        self._run = run
        self.step = ident
        """The name of the step in the journal."""
        self.attempt = attempt
        """The number of this attempt, from 1."""
        wall = run.partition.wall  # called like a method of the partition, it would take longer
        self.begun = wall()
        self.suspect = suspect
        timeout = step.timeout
        self.timeout = run.submission.limits.attempt_timeout if timeout is None else timeout
        self.until: float | None = None
        """The end of the timeout, on Trio's clock. None while an attempt that was started inline
        has not suspended. It has no slot until then."""
        self.marked = False
        self.over = False
        self.in_thread = False
        self.shielded = False
        self.progress: Report | None = None
        self.span: AttemptSpan | None = None
        """The span of the attempt, once its function was called; None if tracing is off."""
        self.sealed_state: bytes | None = None
        self._memo: Draft | None = None
        self._state: Draft | None = None

    def elapsed(self) -> float:
        """Return the seconds since the attempt began. An attempt with a timeout measures them on
        Trio's clock, which never jumps."""
        if self.until is not None and self.until < inf:
            return trio.current_time() - self.until + self.timeout
        return max(0.0, self._run.partition.wall() - self.begun)

    def begin_wait(self, scope: trio.CancelScope | None = None) -> None:
        """Take a slot and start the attempt, because its function was started inline and suspends.
        A slot is free, because no other task has run since. `scope` is the cancel scope of the
        attempt, by default that of the run."""
        with INTERNAL_CODE:
            run = self._run
            run.partition.slots.free -= 1
            # From here on the attempt has a slot, even if the next lines raise an error.
            self.until = inf
            run.current[self.step] = self
            self.start(run.scope if scope is None else scope)

    def expire(self, now: float) -> None:
        """Let an attempt that was started inline, and never suspended, time out if its time is up.
        `now` is the time of Trio's clock. Called in the thread of the watchdog, while the function
        holds the loop."""
        if self.until is None and not self.over:
            left = self.timeout - self.elapsed()
            if left <= 0 and self.until is None:
                self.until = now + left

    def extend(self, seconds: float) -> None:
        """Extend the timeout of an attempt that has suspended, because others held the loop."""
        if self.until is not None and self.until < inf and not self.over:
            self.until += seconds
            self.scope.deadline = min(self.until, self._run.deadline)

    def start(self, scope: trio.CancelScope) -> None:
        """Mark the attempt as begun, because a crash can interrupt it from here on, and let its
        deadline cancel `scope`."""
        run = self._run
        if self.marked and self.progress is not None:
            # The marker was staged before the attempt reported its progress.
            reports.store(run, self)
        self.mark()
        if run.partition.feed is not None:
            emitter.step_started(run.partition.feed, run, self)
        if scope is run.scope:
            run.scope_timed = True
        self.scope = scope
        scope.deadline = start_clock(run, self)

    def mark(self) -> None:
        """Stage the start marker of the attempt, because a crash can interrupt it from now on."""
        if not self.marked:
            self.marked = True
            run = self._run
            if not run.shown_running:
                # Readers of the store see that the run is running. A run that never waits ends
                # before they could.
                run.shown_running = True
                run.store_status()
            key = run.partition.ledger.step(run.number, self.step)
            run.put("begun", key, self.step, self.attempt, self.begun, self.suspect)
            if self.progress is not None:
                reports.store(run, self)

    def unmark(self) -> None:
        """Stage the removal of the start marker, because the attempt is over."""
        run = self._run
        awaited = run.staged
        key = run.partition.ledger.step(run.number, self.step)
        run.delete("begun", key)
        if self.progress is not None:
            run.delete("reports", key)
        if run.checkpointer is not None:
            # Whether the next step waits was decided with the outcome.
            run.staged = awaited

    def is_of(self, run: object) -> bool:
        """Return whether this is a step of `run`."""
        return self._run is run

    @property
    def run_id(self) -> str:
        """Return the id of the run."""
        return self._run.run_id

    @property
    def key(self) -> str:
        """Return the ordering key of the run."""
        return self._run.key

    @property
    def workflow(self) -> str:
        """Return the name of the workflow."""
        return self._run.submission.workflow

    @property
    def headers(self) -> dict[str, str]:
        """Return the headers that `rt.submit` received."""
        return dict(self._run.submission.headers)

    @property
    def idempotency_key(self) -> str:
        """Return an id that is the same for all attempts of this step, and different for every
        other step. Pass it to services that recognise repeated requests."""
        return sha256(identity(self._run, self.step)).hexdigest()[:32]

    @property
    def deadline(self) -> float | None:
        """Return when this attempt will be cancelled, in seconds since the epoch. None if it has
        no time limit."""
        end = min(self.begun + self.timeout, self._run.status.deadline or inf)
        if not self.shielded:
            for scope in self._run.journal.around(self.step):
                end = min(end, scope.due)
        return None if end == inf else end

    @property
    def cancel_requested(self) -> bool:
        """Return whether a cancellation of the run was requested."""
        return self._run.status.cancel_requested

    @property
    def epoch(self) -> int:
        """Return the number of this ownership of the store. Each process that opens the store to
        run steps has a greater number than all before. Pass it to a service that rejects requests
        with a smaller number than it has seen: a process that lost the store without noticing then
        changes nothing there."""
        return self._run.partition.epoch

    def check_owner(self) -> None:
        """Raise `OwnershipUncertain` if it is not certain that this process still owns the store.
        Call this right before an effect that must not be repeated by two processes. If the
        exception leaves the step, the attempt does not count, and Keyrun calls the step again when
        ownership is certain. A store in a directory belongs to its process until the runtime is
        closed."""
        try:
            self._run.partition.check_owner()
        except OwnershipUncertain as error:
            error.attempt = self
            raise

    def could_not_own(self, error: BaseException) -> bool:
        """Return whether `error` is the exception of `check_owner` of this attempt."""
        # Not `isinstance`: the class of the error may answer for any class.
        if not issubclass(type(error), OwnershipUncertain):
            return False
        assert isinstance(error, OwnershipUncertain)
        return error.attempt is self

    @property
    def resources(self) -> Any:
        """Return the value that the `lifespan` of the runtime yielded, for example a connection
        pool."""
        value = self._run.partition.host.lifespan_value
        if value is UNSET:
            raise RuntimeError(
                "the runtime has no lifespan; pass open_runtime(lifespan=...) a context manager "
                "that yields what steps need"
            )
        return value

    @property
    def runtime(self) -> Any:
        """Return the runtime in the form that fits the step: the Trio `Runtime` in an async step,
        the runtime of `keyrun.asyncio` in a step with `asyncio=True`, and the runtime of
        `keyrun.sync` in a sync step."""
        return self._run.partition.host.face()

    @property
    def memo(self) -> Draft:
        """Return a small mapping that survives failed attempts and crashes. Use it as a cursor for
        long work. Keyrun stores a change within 50 ms; in a sync step, when the function returns or
        raises. The memo is removed when the step has succeeded."""
        if self._memo is None:
            self._check()
            with INTERNAL_CODE:
                run = self._run
                keep = None if self.in_thread else self._keep_memo
                self._memo = Draft(run.partition.codec, run.memos.get(self.step, b""), keep)
        return self._memo

    def _keep_memo(self) -> None:
        with INTERNAL_CODE:
            self.store_memo()

    def store_memo(self) -> None:
        """Stage the memo if it was changed."""
        memo = self._memo
        if memo is not None and not self.over:
            encoded = memo.encoded()
            if encoded != memo.stored:
                memo.stored = encoded
                self._run.store_memo(self.step, encoded)

    def _check(self) -> None:
        if self.over:
            raise RuntimeError(
                f"attempt {self.attempt} of step {self.step!r} has ended; code that it left "
                "running cannot change anything durable"
            )

    @property
    def state(self) -> Draft:
        """Return the durable mapping of the ordering key. Keyrun stores changes in one commit with
        the outcome of the step, and drops them if the attempt fails or is cancelled."""
        if self._state is None:
            self._check()
            with INTERNAL_CODE:
                self._state = self._run.queue.borrow_state(self)
        return self._state

    def seal_state(self) -> None:
        """Encode the changed state of the key, because the attempt has a value."""
        if self._state is not None:
            encoded = self._state.encoded()
            if encoded != self._state.stored:
                self.sealed_state = encoded

    def report(self, percent: float, message: str = "") -> None:
        """Report the progress of this attempt to `rt.progress` and `rt.watch`, from any thread.

        `percent` is a number from 0 to 100. The latest report is stored within 50 ms, and removed
        when the attempt is over."""
        reports.check(percent, message)
        with INTERNAL_CODE:
            reports.of_step(self._run, self, percent, message)


def current_step() -> CurrentStep:
    """Return the step that is running. Raises `RuntimeError` outside of a step."""
    current = running.get()
    if not isinstance(current, CurrentStep):
        raise RuntimeError("current_step() is only for code that runs inside a step")
    return current


enter = running.set
leave = running.reset
