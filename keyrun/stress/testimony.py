"""Testimony: check the evidence by itself, without the store.

The steps of each key must begin in one order: by run, by stage, by attempt. Effects wait for
commits, so a step that begins proves that everything before it is on the disk. A step that begins
again after a later step has begun was therefore executed twice. An attempt may begin again only in
a later process, because a kill cut it off, and this does not count as a failure.

A step in a worker thread runs from the moment at which the thread receives it. So the check
tolerates that it writes its first line just after a pause or a cancel was answered.
"""

from collections.abc import Iterable

import attrs

from keyrun.stress.acting import Planner
from keyrun.stress.evidence import Line, Mark
from keyrun.stress.plan import MAX_ATTEMPTS, PlannedRun, Way, run_id
from keyrun.stress.violation import Promise, Violation

EARLY, LATE_AFTER_RESTART, LATE = 0.005, 0.05, 2.0
"""Seconds by which a clock, or an event loop under load, may be off."""


@attrs.define
class _Key:
    """The progress of a key."""

    run: int = -1
    stage: int = -1
    tries: dict[str, tuple[int, int]] = attrs.field(factory=dict)
    """For each step of the run, the latest attempt and the process that began it."""
    open: dict[tuple[int, str], int] = attrs.field(factory=dict)
    """Steps that run in this process, with their stage."""
    held: int | None = None
    """The process in which the key was paused."""


class Testimony:
    """Reads the evidence from its beginning, and finds violations in it."""

    def __init__(self, planner: Planner) -> None:
        self._plan = planner.plan
        self.violations: list[Violation] = []
        self.life = 0
        self.acknowledged: set[int] = set()
        self.reported: dict[int, set[str]] = {}
        """The states of each run that the hook or `result()` reported."""
        self.hooked: set[tuple[int, int]] = set()
        """The runs and generations whose end the hook received."""
        self.redriven: set[int] = set()
        """The runs that were redriven."""
        self.cancel_asked: dict[int, int] = {}
        """The number of calls of `cancel` for each run."""
        self.cancelled: dict[int, tuple[bool, int]] = {}
        """The answer of the latest `cancel` of each run, and its process."""
        self.begun: dict[int, dict[str, set[int]]] = {}
        """The attempts of each step of each run."""
        self.executions = self.interrupted = 0
        self._asked: dict[int, float] = {}
        """The time at which a delayed run was first submitted."""
        self._first: dict[int, tuple[float, int]] = {}
        """The time at which a run with a time limit began its first step, and the process."""
        self._held: dict[int, int] = {}
        self._keys: dict[str, _Key] = {}

    def add(self, lines: Iterable[Line]) -> "Testimony":
        """Read these lines."""
        for line in lines:
            self._line(line)
        return self

    def _line(self, line: Line) -> None:
        match line.mark:
            case Mark.LIFE:
                self.life += 1
                for key in self._keys.values():
                    key.open.clear()
            case Mark.ACKNOWLEDGED:
                if line.run in self.acknowledged and line.fields[1] == "1":
                    self._found(Promise.LOSS, line.run, "was acknowledged, but was unknown later")
                self.acknowledged.add(line.run)
            case Mark.BEGUN:
                plan = self._plan(line.run)
                self._begun(plan, line.fields[1], int(line.fields[2]))
                self._in_time(plan, line.fields[1], line.at)
            case Mark.SUBMIT:
                self._asked.setdefault(line.run, line.at)
            case Mark.REDRIVE:
                self.redriven.add(line.run)
                self._key(self._plan(line.run)).tries = {}
            case Mark.LEFT:
                self._key(self._plan(line.run)).open.pop((line.run, line.fields[1]), None)
            case Mark.HOOK | Mark.RESULT:
                self.reported.setdefault(line.run, set()).add(line.fields[1])
                if line.mark is Mark.HOOK:
                    self.hooked.add((line.run, int(line.fields[2])))
            case Mark.CANCEL:
                self.cancel_asked[line.run] = self.cancel_asked.get(line.run, 0) + 1
            case Mark.CANCELLED:
                self.cancelled[line.run] = (line.fields[1] == "1", self.life)
            case Mark.PAUSED if line.fields[2] == "1":
                if line.fields[1] == "1":
                    self._key(self._plan(line.run)).held = self.life
                else:
                    self._held[line.run] = self.life
            case Mark.RESUME:
                if line.fields[1] == "1":
                    self._key(self._plan(line.run)).held = None
                else:
                    self._held.pop(line.run, None)

    def _key(self, plan: PlannedRun) -> _Key:
        return self._keys.setdefault(plan.key, _Key())

    def _found(self, promise: Promise, number: int, text: str) -> None:
        plan = self._plan(number)
        self.violations.append(
            Violation(promise=promise, run_id=plan.run_id, key=plan.key, text=text)
        )

    def _begun(self, plan: PlannedRun, name: str, attempt: int) -> None:
        number, key = plan.number, self._key(plan)
        stages = {call.name: at for at, stage in enumerate(plan.stages) for call in stage.calls}
        stage = stages[name]
        what = f"{name}, attempt {attempt},"
        self.executions += 1
        self.begun.setdefault(number, {}).setdefault(name, set()).add(attempt)
        if number in self.reported and (number not in self.redriven or (number, 2) in self.hooked):
            self._found(Promise.DOUBLED, number, f"{what} began after the run had ended")
        if number > key.run:
            key.run, key.stage, key.tries = number, -1, {}
        elif number < key.run:
            said = f"{what} began after the key's later {run_id(key.run)} had begun"
            self._found(Promise.ORDER, number, said)
            return
        for (other, step), at in key.open.items():
            if (other, at) != (number, stage):
                said = f"{what} began while {step} of {run_id(other)} was running"
                self._found(Promise.ORDER, number, said)
        self._again(key, plan, name, attempt, stage)
        self._stopped(key, plan, name, what)
        key.open[number, name] = stage

    def _in_time(self, plan: PlannedRun, name: str, at: float) -> None:
        """Check that a step did not begin before the delay of its run was over, or after the run's
        deadline. In the process that began the run, an event loop under load may be late."""
        number = plan.number
        early = self._asked.get(number, at - plan.delay) + plan.delay - at
        if early > EARLY:
            said = f"{name} began {early:.3f} s before its delay of {plan.delay:.3f} s was over"
            self._found(Promise.LIMITS, number, said)
        if plan.run_timeout is not None:
            first, life = self._first.setdefault(number, (at, self.life))
            late = at - first - plan.run_timeout
            if late > (LATE if life == self.life else LATE_AFTER_RESTART):
                said = f"{name} began {late:.3f} s after the deadline of its run"
                self._found(Promise.LIMITS, number, said)

    def _again(self, key: _Key, plan: PlannedRun, name: str, attempt: int, stage: int) -> None:
        what = f"{name}, attempt {attempt},"
        if stage < key.stage:
            said = f"{what} ran again after a later step had begun"
            self._found(Promise.DOUBLED, plan.number, said)
            return
        key.stage = stage
        last, life = key.tries.get(name, (0, 0))
        if attempt < last:
            said = f"{what} ran again after attempt {last} had begun"
            self._found(Promise.DOUBLED, plan.number, said)
        elif attempt == last:
            self.interrupted += 1
            if life == self.life:
                self._found(Promise.DOUBLED, plan.number, f"{what} ran twice in one process")
        elif attempt > MAX_ATTEMPTS:
            said = f"{what} ran, but at most {MAX_ATTEMPTS} attempts are allowed"
            self._found(Promise.LIMITS, plan.number, said)
        if plan.calls[name].once and last:
            self._found(Promise.DOUBLED, plan.number, f"{what} ran again, but may run only once")
        key.tries[name] = (attempt, self.life)

    def _stopped(self, key: _Key, plan: PlannedRun, name: str, what: str) -> None:
        def holds(since: int | None) -> bool:
            """Return whether the run was held, and no thread can have begun before."""
            thread = plan.calls[name].way is Way.THREAD
            return since is not None and not (thread and since == self.life)

        said = f"{what} began while it was paused"
        if holds(key.held) or holds(self._held.get(plan.number)):
            self._found(Promise.PAUSE, plan.number, said)
        answer, since = self.cancelled.get(plan.number, (False, 0))
        if answer and holds(since):
            self._found(Promise.CANCEL, plan.number, f"{what} began after the run was cancelled")
