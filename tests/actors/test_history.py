"""The guarantees, checked on what happened in random worlds.

Per key messages are handled in order and one at a time, and each accepted one ends exactly once,
through crashes, retries, quarantine, passivation, stops, abandoned asks, cancelled tellers and
every way to leave the system. `KEYRUN_SOAK=1` plays many more worlds, `KEYRUN_SEED=n` just one.
"""

import logging
import os

import pytest

from tests.actors.game import Ending, play

SEEDS = range(6000 if os.environ.get("KEYRUN_SOAK") else 150)


@pytest.mark.parametrize("ending", Ending, ids=lambda ending: ending.value.replace(" ", "_"))
def test_histories_hold_when_the_system_is_left(
    ending: Ending, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "keyrun.actors")
    seed = os.environ.get("KEYRUN_SEED")
    for number in SEEDS if seed is None else [int(seed)]:
        wrong = play(number, ending).check()
        assert not wrong, f"KEYRUN_SEED={number}:\n" + "\n".join(wrong)


def test_a_seed_plays_the_same_world_every_time() -> None:
    def story(seed: int) -> list[tuple[str, str]]:
        return [event[:2] for event in play(seed, Ending.DRAINED).history.events]

    assert story(7) == story(7)
    assert story(7) != story(8)


def test_the_worlds_are_rich_enough_to_mean_something() -> None:
    totals = {"handled": 0, "restarts": 0, "passivations": 0, "dead_letters": 0}
    for seed in range(50):
        now = play(seed, Ending.DRAINED).system.statistics()
        for name in totals:
            totals[name] += getattr(now, name)
    assert all(total > 30 for total in totals.values()), totals
