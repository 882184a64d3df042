"""The orders of the demo: their steps, and the faults of these steps.

    reserve ──► charge ──► pack (takes a while) ──► label beside invoice ──► ship ──► notify

A customer is a key. The orders of one customer run one after the other, and the orders of different
customers run concurrently. The faults follow from the seed and the number of the order alone.
"""

from random import Random
from typing import Any

import attrs

from keyrun import Context, workflow
from keyrun.stress.acting import perform
from keyrun.stress.plan import MAX_ATTEMPTS, PlannedFault, PlannedRun, PlannedStep, Stage, Way

RESERVE_LIMIT = 0.5
"""Seconds within which the warehouse must answer."""


@workflow(name="order")
async def order(ctx: Context, number: int) -> int:
    """Handle one order, from the reservation to the notification."""
    return await perform(ctx, number)


@attrs.frozen(kw_only=True)
class Orders:
    """The orders of `keys` customers."""

    keys: int
    seed: int

    def plan(self, number: int) -> PlannedRun:
        """Return the plan of order `number`."""
        chance = Random(f"{self.seed}/order/{number}")
        slow = PlannedFault.TIMEOUT if chance.random() < 0.04 else PlannedFault.NONE
        declined = chance.random() < 0.03
        busy = [
            PlannedFault.FAIL if chance.random() < 0.15 else PlannedFault.NONE for _ in range(2)
        ]
        lost = chance.random() < 0.03
        return PlannedRun(
            number=number,
            key=f"customer-{number % self.keys}",
            value=chance.getrandbits(32),
            stages=(
                _stage(chance, "reserve", slow, limit=RESERVE_LIMIT),
                _stage(
                    chance,
                    "charge",
                    *busy,
                    PlannedFault.PERMANENT if declined else PlannedFault.NONE,
                ),
                Stage(
                    sleep=chance.uniform(0.1, 0.8),
                    calls=(
                        _call(chance, "label", way=Way.THREAD),
                        _call(chance, "invoice", keeps=False),
                    ),
                ),
                _stage(
                    chance,
                    "ship",
                    PlannedFault.FAIL if chance.random() < 0.1 else PlannedFault.NONE,
                ),
                _stage(chance, "notify", *[PlannedFault.FAIL] * 3 * lost, tolerated=True),
            ),
            cancel_after=chance.uniform(0.0, 3.0) if chance.random() < 0.02 else None,
            awaited=chance.random() < 0.1,
        )


def _stage(chance: Random, name: str, *faults: PlannedFault, **other: Any) -> Stage:
    return Stage(calls=(_call(chance, name, *faults, **other),))


def _call(chance: Random, name: str, *faults: PlannedFault, **other: Any) -> PlannedStep:
    planned = (*faults, *[PlannedFault.NONE] * MAX_ATTEMPTS)[:MAX_ATTEMPTS]
    if PlannedFault.PERMANENT in planned:
        planned = (PlannedFault.PERMANENT,) * MAX_ATTEMPTS
    wait = chance.uniform(0.02, 0.2)
    return attrs.evolve(PlannedStep(name=name, faults=planned, way=Way.WAIT, wait=wait), **other)
