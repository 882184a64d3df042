"""Random operations on runs in all locations, and a small model of what is allowed.

A `Script` is plain data. `performed` performs it and keeps evidence: every call with its answer,
every effect and every call of the hook, in the order in which they happened. `complaints` compares
the evidence with the rules of the model. `shrunk` removes from a failing script what it does not
need.
"""

import attrs

from tests.faults.operations.author import ON_ALL, OPS, at_random
from tests.faults.operations.model import complaints, rule
from tests.faults.operations.script import Action, Run, Script, Session
from tests.faults.operations.shrinking import shrunk
from tests.faults.operations.world import World, performed

__all__ = [
    "ON_ALL",
    "OPS",
    "Action",
    "Run",
    "Script",
    "Session",
    "World",
    "at_random",
    "complaints",
    "performed",
    "play",
    "rule",
    "smallest",
]

ORDERS = 8
"""How many orders of tasks are tried for a smaller script."""


def play(script: Script) -> list[str]:
    """What was wrong when a script was performed."""
    return complaints(performed(script))


def smallest(script: Script, wanted: str) -> Script:
    """A small script that breaks the same rule, also if Trio runs tasks in another order."""
    best = script

    def fails(candidate: Script) -> bool:
        nonlocal best
        for seed in (candidate.seed, *range(ORDERS)):
            ordered = attrs.evolve(candidate, seed=seed)
            if wanted in map(rule, play(ordered)):
                best = ordered
                return True
        return False

    shrunk(script, fails)
    return best
