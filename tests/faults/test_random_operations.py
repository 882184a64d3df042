"""Random operations on runs in all locations, while commits take their time and processes end.

`KEYRUN_SOAK=1` plays many more scripts, `KEYRUN_SEED=n` just one.
"""

import os
from collections import Counter

import pytest

from keyrun import State
from tests.faults.operations import (
    ON_ALL,
    OPS,
    Action,
    Run,
    Script,
    Session,
    at_random,
    complaints,
    performed,
    play,
    rule,
    smallest,
)
from tests.faults.soaking import amount, shown

SEEDS = range(amount(120, 20_000))
PARTS = 4


def told(seed: int) -> str:
    """What a seed does wrong, with the smallest script that shows it."""
    wrong = play(at_random(seed))
    if not wrong:
        return ""
    script = smallest(at_random(seed), rule(wrong[0]))
    return "\n".join((f"KEYRUN_SEED={seed}", *wrong, "", "the same rule is broken by", str(script)))


@pytest.mark.parametrize("part", range(PARTS))
def test_answers_and_ends_are_those_that_the_model_allows(part: int) -> None:
    seed = os.environ.get("KEYRUN_SEED")
    seeds = SEEDS[part::PARTS] if seed is None else [int(seed)]
    for number in shown(seeds, f"operations {part}", len(seeds)):
        found = told(number)
        assert not found, found


def test_a_seed_does_the_same_every_time() -> None:
    def log() -> list[tuple[str, int, float]]:
        calls = performed(at_random(5)).calls
        return [(call.op, call.called, call.answered) for call in calls]

    assert log() == log()


def test_the_scripts_are_rich_enough_to_mean_something() -> None:
    seen: Counter[str] = Counter()
    for seed in range(100):
        world = performed(at_random(seed))
        for call in world.calls:
            useless = call.error is not None or call.answer is False
            seen[f"{'no ' if useless else ''}{call.op}"] += 1
            if call.op == "status" and call.answer is not None:
                seen[call.answer.state.value] += 1
        seen.update(effect.kind for effect in world.effects)
        seen.update(f"ended {end.outcome.state.value}" for end in world.ends)
        seen["redriven"] += sum(end.outcome.generation > 1 for end in world.ends)
        seen["left"] += sum(isinstance(result, Exception) for _, _, result in world.results)
    ops = [op for op in OPS if op not in ON_ALL]
    ends = [f"ended {state.value}" for state in State if state.terminal]
    states = [state.value for state in State]
    wanted = (*ops, *ends, *states, "undo", "cut", "redriven")
    missing = [name for name in wanted if not seen[name] and name not in ("bug", "fix")]
    assert not missing, seen
    assert all(seen[f"no {op}"] for op in ("cancel", "pause", "redrive", "forget", "signal"))


def test_the_model_notices_what_is_wrong() -> None:
    script = Script(
        runs={"r": Run("steps", "k")},
        sessions=(Session(actions=(Action(0, "submit", "r"), Action(1, "cancel", "r")), lasts=2),),
    )
    world = performed(script)
    assert complaints(world) == []
    (cancel,) = [call for call in world.calls if call.op == "cancel"]
    cancel.answer = False
    rules = {rule(each) for each in complaints(world)}
    assert rules == {"cancel"}
    cancel.answer, cancel.answered = True, 1
    world.ends *= 2
    assert {rule(each) for each in complaints(world)} == {"cancel"}
    world.ends.clear()
    assert "hook" in {rule(each) for each in complaints(world)}
