"""Plans: what each run is to do and to suffer, known beforehand.

A plan follows from a seed and the number of a run alone. So a checker that never saw the run can
say how it must have ended: `foresee` plays the rules of retries and limits through on paper.
"""

from collections.abc import Collection, Mapping
from enum import StrEnum
from zlib import crc32

import attrs

from keyrun import FailureKind, Retry, State

MAX_ATTEMPTS = 3
RETRY = Retry.exponential(max_attempts=MAX_ATTEMPTS, base=0.005, max_delay=0.05)


class PlannedFault(StrEnum):
    """The planned result of one attempt."""

    NONE = "none"
    FAIL = "fail"
    PERMANENT = "permanent"
    TIMEOUT = "timeout"
    HANG = "hang"
    """The attempt runs until the `run_timeout` of its run."""


class Way(StrEnum):
    """How a step works: without waiting, waiting in the loop, or in a worker thread."""

    QUICK = "quick"
    WAIT = "wait"
    THREAD = "thread"


@attrs.frozen(kw_only=True)
class PlannedStep:
    """One step of a run. With `keeps`, the step writes into the key's state. With `tolerated`, the
    workflow continues if the step fails. `limit` is the timeout of the step, or None. With `once`,
    the step may run at most once."""

    name: str
    faults: tuple[PlannedFault, ...]
    way: Way = Way.QUICK
    wait: float = 0.0
    limit: float | None = None
    keeps: bool = True
    tolerated: bool = False
    once: bool = False


@attrs.frozen(kw_only=True)
class Stage:
    """A durable timer if `sleep` is not 0, then one step, or several concurrent steps. Concurrent
    steps of a plan never fail finally, because it would depend on time which one fails first."""

    calls: tuple[PlannedStep, ...]
    sleep: float = 0.0


@attrs.frozen(kw_only=True)
class PlannedPause:
    """A pause of a run, or of its key, some time after the submit of a later run."""

    number: int
    whole_key: bool
    seconds: float


@attrs.frozen(kw_only=True)
class PlannedRun:
    """One run. After the submit, the submitter makes the `pause`, which may be of an earlier run. A
    `machine` has one step in each stage, which is a turn. A run with a `run_timeout` hangs in its
    last step. A `redriven` run is redriven once if it fails. It then fails again in the same
    way."""

    number: int
    key: str
    stages: tuple[Stage, ...]
    value: int
    retry_budget: int | None = None
    max_iterations: int | None = None
    cancel_after: float | None = None
    pause: PlannedPause | None = None
    hook_refuses: bool = False
    awaited: bool = False
    machine: bool = False
    delay: float = 0.0
    run_timeout: float | None = None
    redriven: bool = False

    @property
    def run_id(self) -> str:
        """Return the id that it is submitted with."""
        return run_id(self.number)

    @property
    def calls(self) -> dict[str, PlannedStep]:
        """Return all steps by name, in order."""
        return {call.name: call for stage in self.stages for call in stage.calls}


def run_id(number: int) -> str:
    """Return the id of the run with this number."""
    return f"run-{number}"


def number_of(run_id: str) -> int | None:
    """Return the number of a run, or None if the run is not planned."""
    head, _, tail = run_id.partition("-")
    return int(tail) if head == "run" and tail.isdecimal() else None


def fold(total: int, value: int) -> int:
    """Return a checksum that depends on the order and the number of the values."""
    return crc32(b"%d %d" % (total, value))


def value_of(plan: PlannedRun, name: str) -> int:
    """Return the result of a step."""
    return crc32(f"{plan.value} {name}".encode())


FAILED_CALL = 7
"""The value of a tolerated failure in the result of a run."""

KINDS = {
    PlannedFault.FAIL: FailureKind.STEP_FAILED,
    PlannedFault.PERMANENT: FailureKind.PERMANENT_ERROR,
    PlannedFault.TIMEOUT: FailureKind.STEP_TIMEOUT,
}


@attrs.frozen(kw_only=True)
class Tried:
    """One attempt that the journal must show: the kind of its failure, None if it succeeded, and
    whether it was the last."""

    attempt: int
    kind: FailureKind | None
    last: bool


@attrs.frozen(kw_only=True)
class Foreseen:
    """How a run must end if it is not cancelled. `tried` holds the attempts of each step that was
    reached, in order."""

    state: State
    kind: FailureKind | None
    dead: bool
    result: int | None
    tried: dict[str, tuple[Tried, ...]]


def foresee(
    plan: PlannedRun,
    overrun: Mapping[tuple[str, int], FailureKind] | None = None,
    *,
    interrupted: Collection[str] = (),
    generations: int = 1,
) -> Foreseen:
    """Play the rules through. `overrun` names attempts that are known to have timed out though the
    plan does not say so, and `interrupted` steps that a kill cut off and that may run only once.
    With more `generations` what failed was tried as often again."""
    tried: dict[str, tuple[Tried, ...]] = {}
    retries, begun, total = 0, 0, 0

    def attempts(call: PlannedStep) -> FailureKind | None:
        nonlocal retries
        story: list[Tried] = []
        if call.name in interrupted:
            cut_off = FailureKind.INTERRUPTED
            tried[call.name] = (Tried(attempt=0, kind=cut_off, last=True),)
            return cut_off
        most = 1 if call.once else MAX_ATTEMPTS
        for attempt in range(1, most + 1):
            fault = call.faults[attempt - 1]
            kind = None if fault is PlannedFault.NONE else KINDS[fault]
            if kind is None and overrun and (call.name, attempt) in overrun:
                kind = FailureKind.STEP_TIMEOUT
            again = kind not in (None, FailureKind.PERMANENT_ERROR) and attempt < most
            if again and plan.retry_budget is not None and retries >= plan.retry_budget:
                again, kind = False, FailureKind.RETRY_BUDGET
            story.append(Tried(attempt=attempt, kind=kind, last=not again))
            if not again:
                tried[call.name] = tuple(story)
                return kind
            retries += 1
        raise AssertionError("the last attempt is never followed by another")

    for stage in plan.stages:
        for call in stage.calls:
            begun += 1
            if PlannedFault.HANG in call.faults:
                kind = FailureKind.RUN_TIMEOUT
                return Foreseen(state=State.FAILED, kind=kind, dead=False, result=None, tried=tried)
            if plan.max_iterations is not None and begun > plan.max_iterations:
                kind = FailureKind.ITERATION_LIMIT
                return Foreseen(state=State.FAILED, kind=kind, dead=False, result=None, tried=tried)
            failed = attempts(call)
            if failed is not None and not call.tolerated:
                tried[call.name] *= generations
                return Foreseen(
                    state=State.FAILED, kind=failed, dead=True, result=None, tried=tried
                )
            total = fold(total, FAILED_CALL if failed else value_of(plan, call.name))
    return Foreseen(state=State.SUCCEEDED, kind=None, dead=False, result=total, tried=tried)
