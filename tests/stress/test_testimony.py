"""What evidence alone shows, on evidence that is made up."""

import pytest

from keyrun.stress import testimony
from keyrun.stress.evidence import Line, Mark
from keyrun.stress.plan import PlannedFault, PlannedRun, PlannedStep, Stage, Way
from keyrun.stress.violation import Promise

NONE = (PlannedFault.NONE,) * 3


class Planner:
    """Runs 0 and 2 are of one key, 1 is of another; a, then b and c side by side, then t. Run 4 is
    delayed, run 6 has a time limit, and run 8 may do a only once."""

    def plan(self, number: int) -> PlannedRun:
        return PlannedRun(
            delay=0.5 if number == 4 else 0.0,
            run_timeout=1.0 if number == 6 else None,
            number=number,
            key=f"key-{number % 2}",
            value=number,
            stages=(
                Stage(calls=(PlannedStep(name="a", faults=NONE, once=number == 8),)),
                Stage(
                    calls=(PlannedStep(name="b", faults=NONE), PlannedStep(name="c", faults=NONE))
                ),
                Stage(calls=(PlannedStep(name="t", faults=NONE, way=Way.THREAD),)),
            ),
        )


def hear(story: str) -> testimony.Testimony:
    """What lines come to, such as "B@1.5 0 a 1": run 0 began step a at 1.5 s."""
    lines = []
    for words in story.split(","):
        head, *fields = words.split()
        mark, _, at = head.partition("@")
        lines.append(Line(Mark(mark), float(at or 0), tuple(fields)))
    return testimony.Testimony(Planner()).add(lines)


@pytest.mark.parametrize(
    "story",
    [
        pytest.param("L 1, B 0 a 1, E 0 a 1, B 0 b 1, B 0 c 1, E 0 c 1, E 0 b 1", id="as it goes"),
        pytest.param("L 1, B 0 a 1, L 2, B 0 a 1, E 0 a 1, B 0 b 1", id="a kill cut it off"),
        pytest.param("L 1, B 0 a 1, E 0 a 1, B 0 a 2, E 0 a 2", id="the next attempt"),
        pytest.param("L 1, B 0 b 1, B 0 c 1, E 0 b 1, B 0 b 2", id="one of two tries again"),
        pytest.param("L 1, B 0 a 1, B 1 a 1, E 0 a 1, E 1 a 1", id="two keys at a time"),
        pytest.param("L 1, B 0 a 1, E 0 a 1, H 0 failed 1, B 2 a 1", id="the next run"),
        pytest.param("L 1, p 0 0 1, R 0 0, B 0 a 1", id="paused and resumed"),
        pytest.param("L 1, p 0 0 0, B 0 a 1", id="it had ended, and could not be paused"),
        pytest.param("L 1, p 0 0 1, B 0 t 1", id="a thread was under way"),
        pytest.param("L 1, B 0 a 1, c 0 1, E 0 a 1", id="cancelled in a step"),
        pytest.param("L 1, A 0 1, L 2, A 0 0", id="submitted again, and known"),
        pytest.param("L 1, B 0 a 1, E 0 a 1, H 0 failed 1, X 0, B 0 a 1", id="redriven"),
        pytest.param("L 1, X 0, H 0 failed 1, B 0 a 1", id="redriven before its end was reported"),
        pytest.param("L 1, Q@1 4, L 2, Q@9 4, B@9.1 4 a 1", id="after its delay"),
        pytest.param("L 1, B@1 6 a 1, E@2 6 a 1, B@2 6 a 2", id="within the time of its run"),
    ],
)
def test_evidence_of_what_may_happen_is_accepted(story: str) -> None:
    assert hear(story).violations == []


@pytest.mark.parametrize(
    ("story", "promise", "text"),
    [
        ("L 1, B 2 a 1, E 2 a 1, B 0 a 1", Promise.ORDER, "run-2 had begun"),
        ("L 1, B 0 a 1, B 2 a 1", Promise.ORDER, "while a of run-0 was running"),
        ("L 1, B 0 a 1, B 0 b 1", Promise.ORDER, "while a of run-0 was running"),
        ("L 1, B 0 b 1, L 2, B 0 a 1", Promise.DOUBLED, "after a later step had begun"),
        ("L 1, B 0 a 2, L 2, B 0 a 1", Promise.DOUBLED, "after attempt 2 had begun"),
        ("L 1, B 0 a 1, E 0 a 1, B 0 a 1", Promise.DOUBLED, "twice in one process"),
        ("L 1, H 0 failed 1, L 2, B 0 a 1", Promise.DOUBLED, "after the run had ended"),
        ("L 1, V 0 failed, L 2, B 0 a 1", Promise.DOUBLED, "after the run had ended"),
        ("L 1, B 0 a 4", Promise.LIMITS, "3 attempts are allowed"),
        ("L 1, c 0 1, B 0 a 1", Promise.CANCEL, "after the run was cancelled"),
        ("L 1, c 0 1, L 2, B 0 t 1", Promise.CANCEL, "after the run was cancelled"),
        ("L 1, p 0 0 1, B 0 a 1", Promise.PAUSE, "while it was paused"),
        ("L 1, p 0 1 1, B 2 a 1", Promise.PAUSE, "while it was paused"),
        ("L 1, p 0 0 1, L 2, B 0 t 1", Promise.PAUSE, "while it was paused"),
        ("L 1, A 0 1, L 2, A 0 1", Promise.LOSS, "unknown later"),
        ("L 1, X 0, H 0 failed 2, B 0 a 1", Promise.DOUBLED, "after the run had ended"),
        ("L 1, X 0, B 0 b 1, E 0 b 1, B 0 a 1", Promise.DOUBLED, "a later step had begun"),
        ("L 1, Q@1 4, B@1.05 4 a 1", Promise.LIMITS, "0.450 s before its delay of 0.500 s"),
        (
            "L 1, B@1 6 a 1, L 2, B@2.6 6 a 1",
            Promise.LIMITS,
            "0.600 s after the deadline of its run",
        ),
        ("L 1, B 8 a 1, L 2, B 8 a 1", Promise.DOUBLED, "ran again, but may run only once"),
    ],
)
def test_evidence_of_what_must_not_happen_is_a_violation(
    story: str, promise: Promise, text: str
) -> None:
    (violation,) = hear(story).violations
    assert violation.promise is promise
    assert text in str(violation)
