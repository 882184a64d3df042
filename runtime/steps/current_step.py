"""The current step: what a step can know about itself, and the durable mappings it may change."""

from hashlib import sha256
from math import inf
from typing import TYPE_CHECKING

import trio

from keyrun.runtime.events import emitter
from keyrun.runtime.internal_errors import GUARD
from keyrun.runtime.run import reports
from keyrun.runtime.run.continue_as import identity
from keyrun.runtime.run.draft import Draft
from keyrun.runtime.run.running_step import running
from keyrun.runtime.steps.deadline import start_clock

if TYPE_CHECKING:
    from keyrun.runtime.run.run import Run
    from keyrun.runtime.run.running_step import Report


class CurrentStep:
    """One attempt of a step, as it sees itself."""

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
        "sealed_state",
        "shielded",
        "step",
        "suspect",
        "timeout",
        "until",
    )

    def __init__(
        self,
        run: "Run",
        step: str,
        attempt: int,
        begun: float,
        suspect: bool,
        timeout: float,
    ) -> None:
        self._run = run
        self.step = step
        self.attempt = attempt
        self.begun = begun
        self.suspect = suspect
        self.timeout = timeout
        self.until: float | None = None
        """The end of the timeout, on Trio's clock. None until the attempt starts in earnest: an
        attempt that was started inline has a slot from then on."""
        self.marked = False
        self.over = False
        self.in_thread = False
        self.shielded = False
        self.progress: Report | None = None
        self.sealed_state: bytes | None = None
        self._memo: Draft | None = None
        self._state: Draft | None = None

    def elapsed(self) -> float:
        """Seconds since it began, by the clock that does not jump where that was looked at."""
        if self.until is not None and self.until < inf:
            return trio.current_time() - self.until + self.timeout
        return max(0.0, self._run.partition.wall() - self.begun)

    def begin_wait(self, scope: trio.CancelScope | None = None) -> None:
        """Take a slot and start the attempt, because its function was started inline and suspends.
        A slot is free, because no other task has run since. `scope` is the cancel scope of the
        attempt, by default that of the run."""
        with GUARD:
            run = self._run
            run.partition.slots.free -= 1
            # Says that the attempt has a slot, even if the next lines raise an error.
            self.until = inf
            run.current[self.step] = self
            self.start(run.scope if scope is None else scope)

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
            run.timed = True
        scope.deadline = start_clock(run, self)

    def mark(self) -> None:
        """Stage that the attempt was begun: a crash can interrupt it."""
        if not self.marked:
            self.marked = True
            run = self._run
            if not run.seen:
                # Whoever reads the store shall see that it runs; a run that never waits need not.
                run.seen = True
                run.store_standing()
            key = run.partition.ledger.step(run.number, self.step)
            run.put("begun", key, self.step, self.attempt, self.begun, self.suspect)
            if self.progress is not None:
                reports.store(run, self)

    def unmark(self) -> None:
        """Stage that the attempt is over."""
        run = self._run
        awaited = run.staged
        key = run.partition.ledger.step(run.number, self.step)
        run.delete("begun", key)
        if self.progress is not None:
            run.delete("reports", key)
        if run.cadence is not None:
            # Whether the next step waits was decided with the outcome.
            run.staged = awaited

    def is_of(self, run: object) -> bool:
        """Whether it is a step of `run`."""
        return self._run is run

    @property
    def run_id(self) -> str:
        """The run that this is a step of."""
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
    def idempotency_key(self) -> str:
        """The same for all attempts of this step, and for no other step: give it to services that
        can tell a repeated request by it."""
        return sha256(identity(self._run, self.step)).hexdigest()[:32]

    @property
    def deadline(self) -> float | None:
        """When this attempt will be cut off, in seconds since the epoch; None if never."""
        end = min(self.begun + self.timeout, self._run.standing.deadline or inf)
        if not self.shielded:
            for scope in self._run.journal.around(self.step):
                end = min(end, scope.due)
        return None if end == inf else end

    @property
    def cancel_requested(self) -> bool:
        """Whether somebody asked for the run to be cancelled."""
        return self._run.standing.cancel_requested

    @property
    def memo(self) -> Draft:
        """A small mapping that survives attempts and crashes: a cursor for long work. Each change
        is on the disk within 50 ms, those of a sync step when it returns or raises. It is gone
        when the step has succeeded."""
        if self._memo is None:
            self._check()
            with GUARD:
                run = self._run
                keep = None if self.in_thread else self._keep_memo
                self._memo = Draft(run.partition.codec, run.memos.get(self.step, b""), keep)
        return self._memo

    def _keep_memo(self) -> None:
        with GUARD:
            self.store_memo()

    def store_memo(self) -> None:
        """Stage the memo as it is, if it was changed."""
        memo = self._memo
        if memo is not None and not self.over:
            encoded = memo.encoded()
            if encoded != memo.stored:
                memo.stored = encoded
                self._run.store_memo(self.step, encoded)

    def _check(self) -> None:
        if self.over:
            raise RuntimeError(
                f"attempt {self.attempt} of step {self.step!r} is over; what it left running can "
                "change nothing durable any more"
            )

    @property
    def state(self) -> Draft:
        """The durable mapping of the ordering key. Changes are stored with the outcome of the
        step, in one commit, and dropped if the attempt fails."""
        if self._state is None:
            self._check()
            with GUARD:
                self._state = self._run.queue.borrow_state(self)
        return self._state

    def seal_state(self) -> None:
        """The attempt has a value: find out what it made of the key's mapping."""
        if self._state is not None:
            encoded = self._state.encoded()
            if encoded != self._state.stored:
                self.sealed_state = encoded

    def report(self, percent: float, message: str = "") -> None:
        """Say how far this attempt is, for those who watch, from whatever thread. The last word
        counts: it is with the next commit, within 50 ms, and gone when the attempt is over."""
        reports.check(percent, message)
        with GUARD:
            reports.of_step(self._run, self, percent, message)


def current_step() -> CurrentStep:
    """The step that this code is part of."""
    current = running.get()
    if not isinstance(current, CurrentStep):
        raise RuntimeError("current_step() is only for code that runs inside a step")
    return current


enter = running.set
leave = running.reset
