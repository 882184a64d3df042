"""Plans follow from the seed, and what is foreseen from the plan."""

from pathlib import Path

from keyrun import FailureKind, State
from keyrun.stress.evidence import Log, Mark, Tail
from keyrun.stress.options import Options
from keyrun.stress.plan import (
    Foreseen,
    PlannedFault,
    PlannedRun,
    PlannedStep,
    Stage,
    Tried,
    foresee,
)

FAIL, TIMEOUT, PERMANENT, NONE = (
    PlannedFault.FAIL,
    PlannedFault.TIMEOUT,
    PlannedFault.PERMANENT,
    PlannedFault.NONE,
)


def plan(*faults: tuple[PlannedFault, PlannedFault, PlannedFault], **other: int) -> PlannedRun:
    stages = tuple(
        Stage(calls=(PlannedStep(name=f"step-{at}", faults=each),))
        for at, each in enumerate(faults)
    )
    return PlannedRun(number=0, key="key-0", value=1, stages=stages, **other)  # type: ignore[arg-type]


def kinds(foreseen: Foreseen) -> list[list[FailureKind | None]]:
    return [[tried.kind for tried in story] for story in foreseen.tried.values()]


def test_the_same_seed_plans_the_same_and_another_does_not() -> None:
    plans = [Options(seed=3).plan(number) for number in range(50)]
    assert plans == [Options(seed=3).plan(number) for number in range(50)]
    assert plans != [Options(seed=4).plan(number) for number in range(50)]


def test_a_step_that_recovers_ends_well() -> None:
    foreseen = foresee(plan((FAIL, TIMEOUT, NONE)))
    assert foreseen.state is State.SUCCEEDED
    assert foreseen.tried["step-0"] == (
        Tried(attempt=1, kind=FailureKind.STEP_FAILED, last=False),
        Tried(attempt=2, kind=FailureKind.STEP_TIMEOUT, last=False),
        Tried(attempt=3, kind=None, last=True),
    )


def test_a_step_that_is_out_of_attempts_ends_the_run() -> None:
    foreseen = foresee(plan((FAIL, FAIL, TIMEOUT), (NONE, NONE, NONE)))
    assert (foreseen.state, foreseen.kind) == (State.FAILED, FailureKind.STEP_TIMEOUT)
    assert foreseen.dead
    assert list(foreseen.tried) == ["step-0"]


def test_a_permanent_error_is_not_tried_again() -> None:
    assert kinds(foresee(plan((PERMANENT, NONE, NONE)))) == [[FailureKind.PERMANENT_ERROR]]


def test_a_budget_is_for_all_steps_together() -> None:
    foreseen = foresee(plan((FAIL, NONE, NONE), (FAIL, NONE, NONE), retry_budget=1))
    assert foreseen.kind is FailureKind.RETRY_BUDGET
    assert kinds(foreseen) == [[FailureKind.STEP_FAILED, None], [FailureKind.RETRY_BUDGET]]


def test_the_step_after_the_last_iteration_ends_the_run_without_a_dead_letter() -> None:
    foreseen = foresee(plan((NONE, NONE, NONE), (NONE, NONE, NONE), max_iterations=1))
    assert (foreseen.kind, foreseen.dead) == (FailureKind.ITERATION_LIMIT, False)


def test_an_attempt_that_is_known_to_have_been_late_changes_what_is_foreseen() -> None:
    foreseen = foresee(plan((NONE, NONE, NONE)), {("step-0", 1): FailureKind.STEP_TIMEOUT})
    assert kinds(foreseen) == [[FailureKind.STEP_TIMEOUT, None]]


def test_evidence_is_read_as_it_grows_and_a_line_that_was_cut_short_is_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "evidence.log"
    tail = Tail(path)
    assert list(tail.read()) == []
    log = Log(path)
    log.write(Mark.LIFE, 1)
    log.write(Mark.BEGUN, 7, "step-0", 1)
    assert [(line.mark, line.fields) for line in tail.read()] == [
        (Mark.LIFE, ("1",)),
        (Mark.BEGUN, ("7", "step-0", "1")),
    ]
    with path.open("a") as file:
        file.write("B 1.")
    assert list(tail.read()) == []
    with path.open("a") as file:
        file.write("\n?\n")
    log.write(Mark.DONE)
    log.close()
    assert [line.mark for line in tail.read()][-1] is Mark.DONE


def test_what_may_run_once_is_tried_once_and_may_be_cut_off() -> None:
    once = PlannedStep(name="step-0", faults=(FAIL, NONE, NONE), once=True)
    planned = PlannedRun(number=0, key="key-0", value=1, stages=(Stage(calls=(once,)),))
    foreseen = foresee(planned)
    assert (foreseen.kind, kinds(foreseen)) == (
        FailureKind.STEP_FAILED,
        [[FailureKind.STEP_FAILED]],
    )
    cut_off = foresee(planned, interrupted=["step-0"])
    assert (cut_off.kind, cut_off.dead) == (FailureKind.INTERRUPTED, True)


def test_a_run_that_is_redriven_suffers_the_same_again() -> None:
    foreseen = foresee(plan((NONE, NONE, NONE), (FAIL, PERMANENT, NONE)), generations=2)
    story = [FailureKind.STEP_FAILED, FailureKind.PERMANENT_ERROR]
    assert kinds(foreseen) == [[None], story + story]


def test_a_run_that_hangs_runs_out_of_time() -> None:
    foreseen = foresee(plan((NONE, NONE, NONE), (PlannedFault.HANG,) * 3, run_timeout=1))
    assert (foreseen.kind, foreseen.dead) == (FailureKind.RUN_TIMEOUT, False)
    assert kinds(foreseen) == [[None]]


def test_the_plans_have_something_of_everything() -> None:
    plans = [Options(seed=5).plan(number) for number in range(2000)]
    assert sum(each.delay > 0 for each in plans) > 10
    assert sum(each.run_timeout is not None for each in plans) > 10
    assert sum(each.redriven and foresee(each).dead for each in plans) > 10
    assert sum(any(call.once for call in each.calls.values()) for each in plans) > 10
