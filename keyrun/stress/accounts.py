"""Accounts: compare every run in the store with its plan and with the evidence.

A run that was not cancelled must have ended exactly as foreseen. A cancelled run may have stopped
after any of its planned attempts. The journal of a machine does not keep its attempts, so they are
compared with the evidence. A run may be in the store without an acknowledgement, because its
process was killed first. Such a run is checked like the others.

The check tolerates an attempt that timed out against the plan if its journal shows that it took
that long: the computer was slow. The rest of the run is then foreseen from that attempt on.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import attrs

from keyrun import FailureKind, Reader, RunStatus, State, open_reader
from keyrun.runtime.inspect.history import Happening
from keyrun.stress.acting import Planner, keep
from keyrun.stress.plan import (
    RETRY,
    Foreseen,
    PlannedFault,
    PlannedRun,
    Tried,
    foresee,
    number_of,
    value_of,
)
from keyrun.stress.testimony import Testimony
from keyrun.stress.violation import Promise, Violation

PAGE = 1000
REPORTED = 50
"""Runs between two reports of progress."""

Progress = Callable[[str, int, int | None], object]
"""Called with what is checked, the number that was checked, and their total if it is known."""


@attrs.define
class Accounts:
    """Checks all runs of a store, and counts their steps and attempts."""

    planner: Planner
    testimony: Testimony
    kills: int
    violations: list[Violation] = attrs.field(factory=list)
    states: dict[str, int] = attrs.field(factory=dict)
    steps: int = 0
    attempts: int = 0
    timeouts: int = 0
    late: int = 0
    """Attempts that timed out because the machine stood still."""
    _seen: set[int] = attrs.field(factory=set)
    _ledgers: dict[str, dict[str, int]] = attrs.field(factory=dict)
    _audits: dict[str, RunStatus] = attrs.field(factory=dict)

    async def read(self, path: Path, progress: Progress) -> None:
        """Check every run that is in the store at `path`, and that none is missing."""
        total = len(self.testimony.acknowledged)
        async with open_reader(path) as reader:
            dead = await self._dead(reader)
            after: str | None = None
            while page := await reader.runs(limit=PAGE, after=after):
                for status in page:
                    number = number_of(status.run_id)
                    if number is None:
                        self._audits[status.key] = status
                    else:
                        history = await reader.history(status.run_id)
                        self._run(self.planner.plan(number), status, history, number in dead)
                    if len(self._seen) % REPORTED == 0:
                        progress("histories of the runs", len(self._seen), total)
                after = page[-1].run_id
        progress("histories of the runs", len(self._seen), total)
        for number in sorted(self.testimony.acknowledged - self._seen):
            self._found(
                Promise.LOSS,
                self.planner.plan(number),
                "was acknowledged, but the store does not have it",
            )
        self._states()

    async def _dead(self, reader: Reader) -> set[int]:
        found: set[int] = set()
        after: str | None = None
        while page := await reader.dead_letters(limit=PAGE, after=after):
            found.update(n for status in page if (n := number_of(status.run_id)) is not None)
            after = page[-1].run_id
        return found

    def _found(self, promise: Promise, plan: PlannedRun, text: str) -> None:
        self.violations.append(
            Violation(promise=promise, run_id=plan.run_id, key=plan.key, text=text)
        )

    def _run(
        self, plan: PlannedRun, status: RunStatus, history: Sequence[Happening], dead: bool
    ) -> None:
        number = plan.number
        if number in self._seen:
            self._found(Promise.LOSS, plan, "two runs have this id")
            return
        self._seen.add(number)
        self.states[status.state] = self.states.get(status.state, 0) + 1
        self._ended(plan, status)
        foreseen = foresee(
            plan,
            self._overrun(plan, history),
            interrupted=self._interrupted(plan, history),
            generations=status.generation,
        )
        story = self._turns(plan, status, foreseen) if plan.machine else self._story(plan, history)
        if status.state is State.CANCELLED:
            if number not in self.testimony.cancel_asked:
                self._found(Promise.CANCEL, plan, "is cancelled, but no cancel was requested")
            self._partly(plan, story, foreseen)
        elif plan.run_timeout is not None and status.state is State.FAILED:
            self._partly(plan, story, foreseen)
            self._out_of_time(plan, status, plan.run_timeout)
        elif status.state.terminal:
            self._wholly(plan, status, story, foreseen)
        done = sum(tried[-1].kind is None for tried in story.values())
        if status.state.terminal and status.steps_done != done:
            said = f"its end counts {status.steps_done} steps, but its journal has {done}"
            self._found(Promise.RESULT, plan, said)
        if dead != (status.state is State.FAILED and foreseen.dead):
            said = "a dead letter" if dead else "not a dead letter"
            self._found(Promise.RESULT, plan, f"is {said}, which contradicts its plan")

    def _ended(self, plan: PlannedRun, status: RunStatus) -> None:
        """Check that the run has ended, and that all reports of its end agree with the store."""
        testimony, number = self.testimony, plan.number
        if not status.state.terminal:
            said = f"never ended: it is {status.state}, {status.waiting_on or status.reason or ''}"
            self._found(Promise.LOSS, plan, said.rstrip(", "))
            return
        wanted = 2 if plan.redriven and status.state is State.FAILED else 1
        if status.generation != wanted:
            said = f"has the generation {status.generation}, expected {wanted}"
            self._found(Promise.RESULT, plan, said)
        for generation in range(1, status.generation + 1):
            if (number, generation) not in testimony.hooked:
                said = f"is {status.state}, but the hook did not receive generation {generation}"
                self._found(Promise.LOSS, plan, said)
        for reported in testimony.reported.get(number, set()) - {str(status.state)}:
            self._found(Promise.LOSS, plan, f"is {status.state}, but was reported as {reported}")
        asked = testimony.cancel_asked.get(number, 0)
        answer, _ = testimony.cancelled.get(number, (None, 0))
        cancelled = status.state is State.CANCELLED
        if answer is True and not cancelled:
            self._found(
                Promise.CANCEL, plan, f"is {status.state}, although its cancel returned True"
            )
        # Of two calls, the first may have cancelled the run before a kill cut it off.
        if answer is False and cancelled and asked == 1:
            self._found(Promise.CANCEL, plan, "is cancelled, although its cancel returned False")

    def _interrupted(self, plan: PlannedRun, history: Sequence[Happening]) -> set[str]:
        """Return the steps that a kill cut off and that may run only once."""
        found: set[str] = set()
        for each in history:
            name = _name(each.step)
            once = name in plan.calls and plan.calls[name].once
            kind = None if each.failure is None else each.failure.kind
            if once and self.kills and kind is FailureKind.INTERRUPTED:
                found.add(name)
        return found

    def _out_of_time(self, plan: PlannedRun, status: RunStatus, limit: float) -> None:
        failure = status.failure
        if failure is None or failure.kind is not FailureKind.RUN_TIMEOUT:
            said = f"failed with {failure and failure.kind}, expected run_timeout"
            self._found(Promise.RESULT, plan, said)
        elif (failure.elapsed or 0.0) < limit - 0.002:
            said = f"exceeded its run_timeout of {limit} s after only {failure.elapsed} s"
            self._found(Promise.LIMITS, plan, said)

    def _overrun(
        self, plan: PlannedRun, history: Sequence[Happening]
    ) -> dict[tuple[str, int], FailureKind]:
        """Return the attempts that took longer than their timeout."""
        found: dict[tuple[str, int], FailureKind] = {}
        for each in history:
            failure, name = each.failure, _name(each.step)
            if failure is None or name not in plan.calls or each.attempt is None:
                continue
            limit = plan.calls[name].limit
            timed_out = failure.error_type == "builtins.TimeoutError"
            if timed_out and limit is not None and (failure.elapsed or 0.0) >= limit - 1e-6:
                found[name, each.attempt] = FailureKind.STEP_TIMEOUT
                planned = plan.calls[name].faults[each.attempt - 1 : each.attempt]
                self.late += planned != (PlannedFault.TIMEOUT,)
        return found

    def _story(
        self, plan: PlannedRun, history: Sequence[Happening]
    ) -> dict[str, tuple[Tried, ...]]:
        """Return the attempts in the journal, and check what follows from the journal alone."""
        story: dict[str, list[Tried]] = {}
        interruptions: dict[str, int] = {}
        ledger = self._ledgers.setdefault(plan.key, {})
        for each in history:
            name = _name(each.step)
            if each.event == "interrupted":
                interruptions[name] = interruptions.get(name, 0) + 1
            if each.event not in ("step_completed", "attempt_failed", "step_failed"):
                continue
            assert each.attempt is not None
            self.attempts += 1
            kind = None if each.failure is None else each.failure.kind
            self.timeouts += kind is FailureKind.STEP_TIMEOUT
            last = each.event != "attempt_failed"
            story.setdefault(name, []).append(Tried(attempt=each.attempt, kind=kind, last=last))
            if each.event == "step_completed":
                self.steps += 1
                if name in plan.calls and plan.calls[name].keeps:
                    keep(ledger, value_of(plan, name))
            elif each.event == "attempt_failed":
                due = RETRY.delay_for(plan.run_id, each.step or "", each.attempt)
                if each.delay != due:
                    said = f"{name}, attempt {each.attempt}: waits {each.delay} s, not {due} s"
                    self._found(Promise.LIMITS, plan, said)
        for name, count in interruptions.items():
            if count > self.kills:
                said = f"{name} was interrupted {count} times by {self.kills} kills"
                self._found(Promise.LIMITS, plan, said)
        return {name: tuple(tried) for name, tried in story.items()}

    def _turns(
        self, plan: PlannedRun, status: RunStatus, foreseen: Foreseen
    ) -> dict[str, tuple[Tried, ...]]:
        """Return the attempts of a machine. Its journal has only the number of turns, so the
        attempts are those of the plan."""
        story = dict(foreseen.tried)
        if status.state is State.CANCELLED:
            story = dict(list(story.items())[: status.steps_done])
        ledger = self._ledgers.setdefault(plan.key, {})
        for name, tried in story.items():
            self.attempts += len(tried)
            if tried[-1].kind is None:
                self.steps += 1
                keep(ledger, value_of(plan, name))
        return story

    def _partly(
        self, plan: PlannedRun, story: dict[str, tuple[Tried, ...]], foreseen: Foreseen
    ) -> None:
        for name, tried in story.items():
            if tried != foreseen.tried.get(name, ())[: len(tried)]:
                self._differs(plan, name, tried, foreseen.tried.get(name, ()))

    def _wholly(
        self,
        plan: PlannedRun,
        status: RunStatus,
        story: dict[str, tuple[Tried, ...]],
        foreseen: Foreseen,
    ) -> None:
        for name in story.keys() | foreseen.tried.keys():
            if story.get(name, ()) != foreseen.tried.get(name, ()):
                self._differs(plan, name, story.get(name, ()), foreseen.tried.get(name, ()))
        begun = self.testimony.begun.get(plan.number, {})
        for name in begun.keys() | story.keys():
            if any(tried.kind is FailureKind.INTERRUPTED for tried in story.get(name, ())):
                continue  # it is unknown how far the attempt came
            journaled = {tried.attempt for tried in story.get(name, ())}
            if begun.get(name, set()) != journaled:
                ran = sorted(begun.get(name, ()))
                said = f"{name}: attempts {ran} ran, the journal has {sorted(journaled)}"
                self._found(Promise.LIMITS, plan, said)
        kind = None if status.failure is None else status.failure.kind
        if (status.state, kind) != (foreseen.state, foreseen.kind):
            said = f"is {status.state} ({kind}), expected {foreseen.state} ({foreseen.kind})"
            self._found(Promise.RESULT, plan, said)
        elif status.result != foreseen.result:
            said = f"its result is {status.result}, expected {foreseen.result}"
            self._found(Promise.RESULT, plan, said)

    def _differs(
        self, plan: PlannedRun, name: str, tried: tuple[Tried, ...], planned: tuple[Tried, ...]
    ) -> None:
        said = f"{name}: the journal has {_text_of(tried)}, expected {_text_of(planned)}"
        self._found(Promise.LIMITS, plan, said)

    def _states(self) -> None:
        for key, ledger in self._ledgers.items():
            audit = self._audits.get(key)
            found = None if audit is None else audit.result
            if found != ledger:
                said = f"its state is {found}, but its finished steps add up to {ledger}"
                self.violations.append(Violation(promise=Promise.STATE, key=key, text=said))


def _name(step: str | None) -> str:
    """Return the name of a step without the name of its branch."""
    return (step or "").rpartition("/")[2]


def _text_of(tried: tuple[Tried, ...]) -> str:
    words = [
        f"{each.attempt} {each.kind or 'ok'}{'' if each.last else ', again'}" for each in tried
    ]
    return "; ".join(words) or "nothing"
